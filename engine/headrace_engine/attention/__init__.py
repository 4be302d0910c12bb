"""Attention over paged KV: one interface, a reference, and one file per backend."""
