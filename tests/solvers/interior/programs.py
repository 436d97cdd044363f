"""Random programs of every kind that interior points solve, and their equations as dense matrices."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.objectives import Objective
from teal.problem import Problem
from teal.runtime.arrays import FloatArray
from teal.solvers.interior import engine
from teal.solvers.interior.presolve import PresolvedProgram
from teal.testing import random_problem, with_random_steps

KINDS = (
    "total_flow",
    "weighted_flow",
    "latency_penalised_flow",
    "max_link_utilisation",
    "max_concurrent_flow",
    "proportional_fair",
    "alpha_fair:alpha=2,weight=1",
    "churn limit",
    "protection",
    "value in steps",
)


def problem_of(kind: str, seed: int, batch: int = 1, failed: int = 0) -> Problem:
    """A random problem of a kind: one-way links, demands of 0, and pairs without a path."""
    objective = kind if kind in KINDS[:7] else "total_flow"
    density = 0.6 if kind == "protection" else 0.4
    random = random_problem(seed, batch=batch, failed=failed, num_paths=4, density=density)
    weight = np.random.default_rng(seed).choice([1.0, 2.0, 4.0], random.paths.num_demands)
    problem = Problem.create(
        random.topology,
        random.paths,
        Objective.of(objective),
        random.demand.numpy(),
        capacity=random.capacity.numpy(),
        weight=weight if objective == "weighted_flow" else None,
    )
    if kind == "churn limit":
        scale = np.random.default_rng(seed).uniform(0.2, 1.0, (batch, 1, 1))
        in_force = problem.first_path_splits * problem.first_path_splits.new_tensor(scale)
        return problem.with_churn_limit(in_force, 0.1)
    if kind == "protection":
        return problem.with_protection()
    if kind == "value in steps":
        return with_random_steps(problem, seed)
    return problem


def program_of(problem: Problem) -> tuple[PresolvedProgram, FloatArray]:
    """The presolved program of the first matrix, and the splits (D K,) that presolve has fixed."""
    return engine.FirstMatrixProgram(engine_form(problem)).presolved


def engine_form(problem: Problem) -> Problem:
    """The problem over the columns that the engine is given."""
    return problem.over_columns if problem.conditions else problem


class Dense(NamedTuple):
    """A program's equations, without its sparse layout.

    Attributes:
        loads: (n, Q) Gbit/s on each row of all of a column.
        block: (Q,) number of the block of each column.
        blocks: (G, Q) 1 where a column is of a block.
        largest: (Q,) limit of each column, infinite for none.
    """

    loads: FloatArray
    block: np.ndarray
    blocks: FloatArray
    upper_bound: FloatArray


def dense(program: PresolvedProgram) -> Dense:
    """The equations of a program."""
    columns = len(program.column_value)
    block = np.repeat(np.arange(len(program.rate)), np.diff(program.block_ptr))
    loads = np.zeros((len(program.capacity), columns))
    for q in range(columns):
        for i in range(program.row_ptr[q], program.row_ptr[q + 1]):
            factor = program.coefficient[i] if len(program.coefficient) else 1.0
            loads[program.row[i], q] += factor * program.rate[block[q]]
    upper_bound = np.full(columns, np.inf)
    upper_bound[program.bounded] = program.upper_bound
    blocks = (block == np.arange(len(program.rate))[:, None]).astype(np.float64)
    return Dense(loads, block, blocks, upper_bound)
