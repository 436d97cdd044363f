"""The service behind HTTP: bodies, queue, networks, and the engine that answers."""
