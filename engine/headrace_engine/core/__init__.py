"""The engine's core: sequences, pages, scheduler, the step loop. No torch."""
