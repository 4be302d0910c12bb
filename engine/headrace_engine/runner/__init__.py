"""Running steps: plans become tensors, tensors become tokens."""
