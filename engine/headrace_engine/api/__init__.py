"""The API process: HTTP, templates, tokenizing, detokenizing, stop strings; the parent of the core. No torch."""
