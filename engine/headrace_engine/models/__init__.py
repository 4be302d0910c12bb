"""Model families: shared layers, the weight loader, one small file per family."""
