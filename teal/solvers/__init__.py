"""Solvers: PDHG, interior points, ADMM, column generation; projection to feasibility; split
tables.
"""
