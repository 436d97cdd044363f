"""COPE, ``cope``: splits that are optimal for the measured matrices, with a limit on the worst case
(Wang et al., SIGCOMM 2006).

With r* the smallest ratio to the optimum over all traffic matrices (:mod:`baselines.oblivious`),
c[e] the capacity of link e, and opt(D_t) the smallest maximum utilisation of matrix D_t, COPE
minimises

    max over the matrices D_t of the window of  max_e load_t[e] / c[e] / opt(D_t)

over splits whose ratio over all matrices is at most ``penalty`` r*, the penalty envelope.  The
authors take the maximum over the convex hull of the matrices; here it is over the matrices
themselves, which needs no further variables.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.sparse as sp
from torch import Tensor

from baselines.linear_program import LpSettings, solver_options
from baselines.oblivious import RatioProgram
from teal.errors import InputError
from teal.problem import Problem
from teal.schemes.past import Past
from teal.solvers import pipeline
from teal.spec import Spec

# Certified gap of the optima by which utilisations are divided.
_OPTIMUM_GAP = 1e-3


class Cope:
    """COPE: splits for the next interval that are optimal for the matrices of a window, within the
    penalty envelope.

    Args:
        window: number of matrices, evenly spread over at most ``every`` x ``window`` past
            intervals.
        penalty: limit of the ratio over all matrices, as a multiple of r*; at least 1.
        every: number of intervals after which the splits are computed again.
        settings: settings of the LP solver.
    """

    def __init__(self, window: int, penalty: float, every: int, settings: LpSettings) -> None:
        self._window = window
        self._penalty = penalty
        self._every = every
        self._settings = settings
        self._program: RatioProgram | None = None
        self._splits: Tensor | None = None
        # Upper bound on the ratio over all matrices.
        self._max_ratio = 0.0
        # Index of the interval at which the program is solved again.
        self._next_solve_interval = 0

    def allocate(self, past: Past) -> Tensor:
        """Return the splits (D, K); a new program is solved every ``every`` intervals."""
        if self._program is None:
            self._program = RatioProgram.of(past.network)
            self._max_ratio = self._penalty * float(
                self._program.solve_min_ratio(self._settings)[-1]
            )
        if self._splits is None or past.traffic_row >= self._next_solve_interval:
            self._splits = self._solve(
                self._program, past.last(self._every * self._window, self._window)
            )
            self._next_solve_interval = past.traffic_row + self._every
        return self._splits

    def _solve(self, program: RatioProgram, problem: Problem) -> Tensor:
        """Return the splits (D, K) with the smallest maximum ratio for the matrices of a problem,
        under the limit on the ratio over all matrices.

        Args:
            program: program of the network.
            problem: matrices of the window.
        """
        optimum = pipeline.solve(problem, gap=_OPTIMUM_GAP).value.numpy()
        num_paths = problem.paths.num_paths
        # Rows: the utilisation of each matrix, over its optimum, is at most a further variable.
        utilisation_rows = []
        max_ratio_column = sp.csr_array(
            (np.ones(len(program.links)), (np.arange(len(program.links)), [0] * len(program.links)))
        )
        for demand, optimal_utilisation in zip(problem.demand.numpy(), optimum, strict=True):
            # Rate of the demand of each path over the optimum; 0 for the other variables.
            relative_rate = np.zeros(program.width)
            relative_rate[: len(program.paths)] = (
                demand[program.paths // num_paths] / program.unit / max(optimal_utilisation, 1e-300)
            )
            utilisation = (
                sp.diags_array(1 / program.capacity) @ program.loads @ sp.diags_array(relative_rate)
            )
            utilisation_rows.append(sp.hstack([utilisation, -max_ratio_column]))
        # Add this variable to the rows of the network.
        extended_program = RatioProgram(
            paths=program.paths,
            rows=_with_column(program.rows),
            sums=_with_column(program.sums),
            loads=program.loads,
            links=program.links,
            capacity=program.capacity,
            unit=program.unit,
        )
        # Minimise this last variable.  The ratio r over all matrices, the last variable of the
        # original program, stays within its limit.
        cost = np.zeros(extended_program.width)
        envelope = np.zeros((1, extended_program.width))
        cost[-1] = 1
        envelope[0, program.width - 1] = 1
        rows = sp.vstack([*utilisation_rows, sp.csr_array(envelope)], format="csr")
        limits = np.append(np.zeros(rows.shape[0] - 1), self._max_ratio)
        return program.splits(extended_program.solve(cost, rows, limits, self._settings), problem)


def _with_column(rows: sp.csr_array) -> sp.csr_array:
    """Return the rows with one more variable, whose coefficients are 0."""
    return sp.csr_array(sp.hstack([rows, sp.csr_array((rows.shape[0], 1))]))


def make(spec: Spec, model: Path | None) -> Cope:
    """Build the scheme from its specification; the options and their defaults are
    ``cope[:window=24,penalty=1.2,every=24,solver=highs,method=auto,time-limit=0]``.
    """
    options, settings = solver_options(spec, window=24, penalty=1.2, every=24)
    for name in ("window", "every"):
        if int(options[name]) < 1:
            raise InputError(spec.text, name, "a number >= 1", options[name])
    if not float(options["penalty"]) >= 1:
        raise InputError(spec.text, "penalty", "a number >= 1", options["penalty"])
    return Cope(int(options["window"]), float(options["penalty"]), int(options["every"]), settings)
