"""Solvers: PDHG, interior points, dual simplex, ADMM, column generation; projection to feasibility;
split tables.
"""
