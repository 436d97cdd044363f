"""Iterations with an explicit state and a pure step; and the projection to exact feasibility."""
