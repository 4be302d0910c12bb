"""Trace replay: a simulator of gateway, engines and autoscaler, and the benchmarks that run in it."""
