"""Readings of interface counters: rates of links and routers, and import from files."""
