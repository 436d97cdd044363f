"""Teal on real routers, on one machine: see docs/lab.md."""
