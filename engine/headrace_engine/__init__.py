"""The Headrace engine: paged attention, continuous batching, an OpenAI-compatible HTTP API; nothing of Kubernetes."""
