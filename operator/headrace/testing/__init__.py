"""Importable fakes that stand at the boundaries."""
