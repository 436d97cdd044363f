"""Starts of PDHG from the solutions of sampled demands."""
