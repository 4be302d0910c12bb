"""How many replicas: (policy, window of samples, replicas, now) → decision with its reasons. Pure."""
