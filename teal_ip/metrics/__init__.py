"""Metrics of the IGP under which the fullest link is least full."""
