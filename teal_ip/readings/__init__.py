"""Readings of interface counters: what they are, and their files."""
