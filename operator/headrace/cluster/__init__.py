"""The only code that speaks to the Kubernetes API: reads, watches, server-side apply, Leases, Events."""
