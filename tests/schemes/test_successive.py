"""PDHG over matrices that follow each other, where the next one has other rows."""

from __future__ import annotations

import numpy as np

import teal
from teal.schemes.successive import SuccessivePdhg
from teal.testing import random_problem


def test_other_numbers_of_classes_follow_each_other() -> None:
    base, engine = random_problem(0, batch=1), SuccessivePdhg()
    for count in (2, 3, 2, 2):
        demand = {f"class {number}": base.demand.numpy() / count for number in range(count)}
        problem = teal.priority_problem(
            base.topology, base.paths, demand, capacity=base.capacity.numpy()
        )
        assert float(engine.solve(problem, gap=1e-2).gap) <= 1e-2


def test_several_matrices_start_from_the_last_one_of_the_call_before() -> None:
    base = random_problem(1, batch=3)
    for objective in ("priority", "max_min"):
        engine = SuccessivePdhg()
        for rows in (slice(0, 1), slice(0, 3)):
            demand = 2 * base.demand[rows].numpy()
            capacity = base.capacity[rows].numpy()
            if objective == "priority":
                parts = {"gold": 0.3 * demand, "bronze": 0.7 * demand}
                problem = teal.priority_problem(base.topology, base.paths, parts, capacity=capacity)
            else:
                problem = teal.Problem.create(
                    base.topology, base.paths, teal.Objective(objective), demand, capacity=capacity
                )
            assert np.all(engine.solve(problem, gap=1e-2).gap.numpy() <= 1e-2)
