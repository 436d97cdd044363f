"""Objectives that are sequences of programs: their tasks, and the combination of the results."""
