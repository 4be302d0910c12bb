"""The Headrace control plane: operator, gateway, autoscaler and command line."""

__version__ = "0.1.0"
