"""The only code that speaks to Prometheus: history, never a live decision."""
