"""Routing as it is installed and as it may be: loads, metrics, segment lists."""
