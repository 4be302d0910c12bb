"""The HTTP edge: identifies, admits, queues, routes and relays requests; see README.md for the way of a request."""
