"""Starts of PDHG from the solutions of samples of the demands."""
