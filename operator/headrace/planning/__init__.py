"""What follows from a spec: memory fit, communication plan, manifests and status. Pure: no I/O, no clock."""
