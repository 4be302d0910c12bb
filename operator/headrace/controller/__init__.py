"""The operator's edge: kopf triggers, a keyed queue, reconcile, the scaling loop."""
