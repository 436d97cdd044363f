"""Schemes compared: on cases, in a race, for the next interval, in a benchmark."""
