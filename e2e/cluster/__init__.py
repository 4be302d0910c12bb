"""A real single-node Kubernetes on one machine, for the demo and the tests. Standard library only."""
