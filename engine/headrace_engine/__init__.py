"""The Headrace engine: paged attention, continuous batching and an OpenAI-compatible HTTP API. Knows nothing of Kubernetes."""
