"""From a URI to a model folder that is known to be whole. No torch."""
