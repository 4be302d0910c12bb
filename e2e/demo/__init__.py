"""`make demo`: from nothing to a streamed answer on a real Kubernetes, told step by step. Standard library only."""
