"""What the demo and the end-to-end tests share: cluster, charts, chat client, load. Standard library only."""
