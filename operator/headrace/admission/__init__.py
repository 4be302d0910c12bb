"""Who is let in, and in which order: quotas, queues, deadlines. Pure state machines; time is an argument."""
