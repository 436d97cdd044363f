"""Solvers: PDHG, ADMM, column generation; the projection to exact feasibility; integer split
tables.
"""
