"""COPE against cutting planes: instead of the dual of the worst case, the worst matrices themselves
are rows.

A matrix of the worst case is a flow within the capacities: its optimum is at most 1, and scaling it
changes no ratio. The oracle minimises over splits under the matrices found so far, looks for the
flow with the largest utilisation by these splits, one LP for each link, adds what it finds, and
stops when nothing is above the limit.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from baselines import cope
from baselines.cope import Cope
from baselines.linear_program import LpSettings
from baselines.matrix import Array
from baselines.oblivious import Oblivious
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.schemes.past import Past
from teal.testing import random_problem
from tests.baselines.test_demand_pinning_oracle import Program
from tests.teal_next.series import past_of

MLU = ObjectiveName.MAX_LINK_UTILISATION
EXACT = 1e-7  # relative; of the oracle's cuts


class Oracle:
    """Splits of a network with the least ratio to the optimum, over all matrices or over some of
    them.

    Args:
        network: B = 1; its demand means nothing.
    """

    def __init__(self, network: Problem) -> None:
        self.program = Program.of(network)
        self._live = self.program.capacity > 0
        self._share = self.program.use[self._live] / self.program.capacity[self._live, None]
        self._routable = self.program.owner.any(1)
        self._cuts: list[Array] = []

    def optimum(self, demand: Array) -> float:
        """The least largest utilisation of one matrix."""
        return self.program.least_utilisation(demand, np.zeros(len(self.program.capacity)))

    def ratio(self, splits: Array, matrices: Array) -> float:
        """The largest ratio to the optimum over some matrices."""
        return max(
            float((self._share @ (splits * (demand @ self.program.owner))).max())
            / self.optimum(demand)
            for demand in matrices
        )

    def worst(self, splits: Array) -> tuple[float, list[Array]]:
        """The largest ratio over all matrices; for each link the matrix (D,), of optimum 1, that
        loads it most."""
        largest, found = 0.0, []
        for share in self._share:
            gain = self.program.owner @ (
                share * splits
            )  # utilisation of the link by one Gbit/s of each demand
            if gain.any():
                result = linprog(
                    -(gain @ self.program.owner),
                    self._share,
                    np.ones(len(self._share)),
                    method="highs",
                )
                largest = max(largest, -float(result.fun))
                found.append(self.program.owner @ result.x)
        return largest, found

    def _least(self, measured: Array, limit: float) -> tuple[float, Array]:
        """The least largest ratio over measured matrices, of splits that keep a limit on the cuts;
        0 for none."""
        width, rows, limits = len(self.program.value), [], []
        for demand in measured:
            rows.append(
                np.column_stack(
                    [self._share * (demand @ self.program.owner), -np.ones(len(self._share))]
                )
            )
            limits.append(np.zeros(len(self._share)))
        for demand in self._cuts:
            last = np.full(len(self._share), 0.0 if limit else -1.0)
            rows.append(np.column_stack([self._share * (demand @ self.program.owner), last]))
            limits.append(np.full(len(self._share), limit))
        sums = np.column_stack(
            [self.program.owner[self._routable], np.zeros(int(self._routable.sum()))]
        )
        a_ub, b_ub = (np.vstack(rows), np.concatenate(limits)) if rows else (None, None)
        result = linprog(
            np.append(np.zeros(width), 1), a_ub, b_ub, sums, np.ones(len(sums)), method="highs"
        )
        return float(result.fun), np.asarray(result.x[:-1])

    def solve_min_ratio(self) -> float:
        """Over all matrices."""
        for _ in range(200):
            ratio, splits = self._least(np.zeros((0, 0)), 0.0)
            largest, found = self.worst(splits)
            if largest <= ratio * (1 + EXACT):
                return ratio
            self._cuts += found
        raise AssertionError("the cuts do not converge")

    def least_measured(self, measured: Array, limit: float) -> float:
        """Over measured matrices, each divided by its optimum, of splits whose ratio over all is at
        most a limit."""
        scaled = np.array([demand / self.optimum(demand) for demand in measured])
        for _ in range(200):
            ratio, splits = self._least(scaled, limit)
            largest, found = self.worst(splits)
            if largest <= limit * (1 + EXACT):
                return ratio
            self._cuts += found
        raise AssertionError("the cuts do not converge")


def make_past(seed: int, count: int, failed: int = 0) -> Past:
    """Matrices of log-normal rates, a fifth of them 0, on five nodes."""
    network = random_problem(
        seed, objective=MLU, batch=1, nodes=5, density=0.55, failed=failed, num_paths=3
    )
    demand = network.demand.numpy() * np.random.default_rng(seed).lognormal(
        0, 0.8, (count, network.paths.num_demands)
    )
    return past_of(network, demand)


def path_splits(past: Past, splits: torch.Tensor) -> Array:
    """(n,) splits of the live paths."""
    mask = past.network.path_mask[0].numpy()
    assert not splits.numpy()[~mask].any()
    served = splits.numpy().sum(1)
    np.testing.assert_allclose(served[mask.any(1)], 1.0, rtol=1e-9)
    return np.asarray(splits.numpy()[mask])


@pytest.mark.parametrize(("seed", "failed"), [(1, 1), (2, 2), (7, 1), (8, 2)])
def test_both_programs_have_the_optimum_of_the_cutting_planes(
    seed: int, failed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measured ratio for each penalty; what it is worst over all matrices is within the penalty
    envelope."""
    monkeypatch.setattr(cope, "_OPTIMUM_GAP", 1e-6)
    past = make_past(seed, 4, failed)
    oracle, measured = Oracle(past.network), past.traffic.read(np.arange(4))
    least = oracle.solve_min_ratio()
    oblivious = Oblivious(LpSettings())
    splits = path_splits(past, oblivious.allocate(past))
    assert oblivious.ratio == pytest.approx(least, rel=1e-5)
    assert oracle.worst(splits)[0] == pytest.approx(least, rel=1e-5)
    for penalty in (1.0, 1.1, 1.5):
        splits = path_splits(past, Cope(4, penalty, 1, LpSettings()).allocate(past))
        assert oracle.worst(splits)[0] <= penalty * least * (1 + 1e-5)
        best = oracle.least_measured(measured, penalty * least * (1 + 2e-6))
        assert oracle.ratio(splits, measured) == pytest.approx(best, rel=1e-4)


def test_the_optima_of_the_matrices_are_known_to_a_thousandth() -> None:
    """The utilisations are divided by values of the first-order engine; the loss of that is at most
    their gap."""
    for seed in (1, 2):
        past = make_past(seed, 3)
        oracle, measured = Oracle(past.network), past.traffic.read(np.arange(3))
        least = oracle.solve_min_ratio()
        splits = path_splits(past, Cope(3, 1.2, 1, LpSettings()).allocate(past))
        best = oracle.least_measured(measured, 1.2 * least * (1 + 2e-6))
        assert best * (1 - 1e-4) <= oracle.ratio(splits, measured) <= best * (1 + 1.2e-3)


def test_the_matrices_of_the_window_are_evenly_spread_over_the_past() -> None:
    """Of 9 matrices, every = 4 and window = 2 look at the last 8 and take the first and the last of
    these."""
    past = make_past(1, 9)
    oracle = Oracle(past.network)
    least = oracle.solve_min_ratio()
    rates, excess = past.traffic.read(np.arange(9)), []
    splits = path_splits(past, Cope(2, 1.3, 4, LpSettings()).allocate(past))
    for chosen in ([1, 8], [7, 8], [0, 8], [5, 6]):
        best = oracle.least_measured(rates[chosen], 1.3 * least * (1 + 2e-6))
        excess.append(oracle.ratio(splits, rates[chosen]) / best)
    assert excess[0] == pytest.approx(1, abs=1.2e-3)
    assert min(excess[1:]) > 1.1
