"""The mixture: its update by hand, its regret against the bound that it prints, and what it
remembers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from teal.errors import InputError
from teal.schemes.past import Past
from teal_next.mixture import Mixture, _flow_losses
from tests.teal_next.series import make_past


class _Fixed:
    """Splits that never change: the share of each demand on its first path."""

    def __init__(self, share: float) -> None:
        self.calls, self._share = 0, share

    def allocate(self, past: Past) -> torch.Tensor:
        self.calls += 1
        return torch.tensor([[self._share, 1 - self._share]] * 3, dtype=torch.float64)


def _mixture(**options: float) -> Mixture:
    return Mixture(
        {"direct": _Fixed(1.0), "even": _Fixed(0.5), "around": _Fixed(0.0)}, warm_up=0, **options
    )


def test_the_first_update_is_that_of_the_formula() -> None:
    demand = np.array([[1.0, 1.0, 1.0], [8.0, 1.0, 1.0]])
    mixture = _mixture(rate=2.0, share=0.1)
    mixture.allocate(make_past(demand[:1]))
    np.testing.assert_allclose(mixture.weights, 1 / 3)
    mixture.allocate(make_past(demand))
    problem = make_past(demand).last(1)
    splits = torch.stack([_Fixed(share).allocate(make_past(demand)) for share in (1.0, 0.5, 0.0)])
    loads = problem.with_demand(problem.demand.expand(3, -1)).utilisation(splits).numpy()
    loads = loads / 0.45  # a -> b and a -> c leave a by two links of 10 Gbit/s, 4.5 each
    link = int(loads.mean(0).argmax())
    weights = np.exp(-2.0 * loads[:, link])
    np.testing.assert_allclose(mixture.weights, 0.9 * weights / weights.sum() + 0.1 / 3, rtol=0.02)


@settings(max_examples=10)
@given(seed=st.integers(0, 1000), rate=st.sampled_from([0.5, 5.0, 30.0]))
def test_the_regret_is_within_its_limit(seed: int, rate: float) -> None:
    rng = np.random.default_rng(seed)
    demand = rng.lognormal(0, 2, (25, 3)) * rng.choice([1.0, 20.0], (25, 3))
    mixture = _mixture(rate=rate, share=0.01)
    for known in range(1, 26):
        mixture.allocate(make_past(demand[:known]))
    regret = mixture.regret
    assert regret.intervals == 24
    assert regret.realised <= regret.limit + 1e-9


def test_weights_move_to_the_best_hedge_and_come_back() -> None:
    quiet, heavy = [[4.0, 0.1, 0.1]] * 30, [[9.0, 9.0, 9.0]] * 60
    mixture = Mixture({"direct": _Fixed(1.0), "even": _Fixed(0.5)}, rate=5.0, share=0.01, warm_up=0)
    for known in range(1, 31):
        mixture.allocate(make_past(np.array(quiet)[:known]))
    assert mixture.weights[1] > 0.9, "half of a single large demand goes around"
    series = np.array(quiet + heavy)
    for known in range(31, 91):
        mixture.allocate(make_past(series[:known]))
    assert mixture.weights[0] > 0.9, "if all demands are equal, none gains by a way around"


def test_the_past_is_replayed_once_and_nothing_later_is_used() -> None:
    demand = np.random.default_rng(0).lognormal(0, 1, (40, 3))
    hedges = {"direct": _Fixed(1.0), "even": _Fixed(0.5)}
    mixture = Mixture(hedges, warm_up=10)
    mixture.allocate(make_past(demand[:30]))
    assert hedges["direct"].calls == 11
    assert mixture.regret.intervals == 10
    mixture.allocate(make_past(demand[:31]))
    assert hedges["direct"].calls == 12


def test_intervals_that_are_not_known_yet_wait() -> None:
    demand = np.random.default_rng(0).lognormal(0, 1, (40, 3))
    mixture = Mixture({"direct": _Fixed(1.0), "even": _Fixed(0.5)}, warm_up=0)
    seen = []
    for known in range(1, 8):
        mixture.allocate(make_past(demand[:known], lead=3))
        seen.append(mixture.regret.intervals)
    assert seen == [0, 0, 0, 1, 2, 3, 4]


def test_what_was_learnt_is_saved_and_restored(tmp_path: Path) -> None:
    demand = np.random.default_rng(0).lognormal(0, 2, (20, 3))
    mixture, again = _mixture(), _mixture()
    for known in range(1, 21):
        mixture.allocate(make_past(demand[:known]))
    mixture.save(tmp_path / "state.npz")
    again.begin(make_past(demand))
    again.restore(tmp_path / "state.npz")
    np.testing.assert_array_equal(again.weights, mixture.weights)
    assert str(again.regret) == str(mixture.regret)
    other = Mixture({"direct": _Fixed(1.0)})
    other.begin(make_past(demand))
    with pytest.raises(InputError, match="hedges"):
        other.restore(tmp_path / "state.npz")
    (tmp_path / "broken.npz").write_bytes(b"not a file of arrays")
    with pytest.raises(InputError, match="not the state of a mixture"):
        other.restore(tmp_path / "broken.npz")


def test_under_total_flow_it_learns_from_what_is_lost() -> None:
    """One hedge sheds half of everything, the other carries all: after some intervals the weight is
    on the latter."""

    class Share:
        def __init__(self, share: float) -> None:
            self._share = share

        def allocate(self, past: Past) -> torch.Tensor:
            return self._share * past.last(1).even_splits[0]

    past = make_past(np.full((40, 3), 4.0), objective="total_flow")
    mixture = Mixture({"half": Share(0.5), "all": Share(1.0)}, warm_up=30)
    splits = mixture.allocate(past)
    assert mixture.weights[1] > 0.9
    assert float(splits.sum(-1).min()) > 0.9
    assert mixture.regret.best == "all"
    assert 0 <= mixture.regret.realised <= mixture.regret.limit


def test_what_is_spread_in_each_interval_goes_by_the_first_weights() -> None:
    """The hedge ``residual`` begins with 8 times the weight of others; a share of almost 1 leaves
    nothing else."""
    demand = np.array([[1.0, 1.0, 1.0], [8.0, 1.0, 1.0]])
    mixture = Mixture(
        {"residual": _Fixed(1.0), "even": _Fixed(0.5)}, rate=1.0, share=0.999, warm_up=0
    )
    mixture.allocate(make_past(demand[:1]))
    mixture.allocate(make_past(demand))
    np.testing.assert_allclose(mixture.weights, [8 / 9, 1 / 9], atol=0.01)


def test_the_limit_of_the_regret_has_the_cost_of_not_knowing_the_best_hedge() -> None:
    """At a rate near 0 nothing else is left: ln 3, and -ln 0.9 for the share that is spread, over
    the rate."""
    demand = np.array([[1.0, 1.0, 1.0], [8.0, 1.0, 1.0]])
    mixture = _mixture(rate=1e-6, share=0.1)
    mixture.allocate(make_past(demand[:1]))
    mixture.allocate(make_past(demand))
    assert mixture.regret.limit * 1e-6 == pytest.approx(np.log(3) - np.log(0.9))


def test_the_losses_of_one_interval_by_hand_are_kept_and_outlive_a_restart(tmp_path: Path) -> None:
    """8, 1 and 1 Gbit/s: the first goes straight, half around, or all around; each hedge loads one
    link most.

    Links of 10: a -> b carries 8, 4.5 and 1; the optimum is 0.45 (a has 9 Gbit/s and two links).
    With equal weights the mixture has (8 + 4.5 + 1) / 3 = 4.5 there and (1 + 5 + 9) / 3 = 5 on a ->
    c, its largest.
    """
    demand = np.array([[1.0, 1.0, 1.0], [8.0, 1.0, 1.0]])
    mixture, again = _mixture(), _mixture()
    mixture.allocate(make_past(demand[:1]))
    mixture.allocate(make_past(demand))
    largest = np.array([8.0, 5.0, 9.0])
    np.testing.assert_allclose(mixture.recent_losses, 0.1 * (largest - 5.0) / 4.5, rtol=0.02)
    mixture.save(tmp_path / "state.npz")
    again.begin(make_past(demand))
    again.restore(tmp_path / "state.npz")
    np.testing.assert_array_equal(again.recent_losses, mixture.recent_losses)


def test_it_learns_alike_when_the_oldest_matrices_have_left_the_window() -> None:
    demand = np.random.default_rng(1).lognormal(0, 1, (8, 3))
    whole, windowed = _mixture(), _mixture()
    for known in range(1, 9):
        whole.allocate(make_past(demand[:known]))
        first = max(0, known - 2)
        windowed.allocate(dataclasses.replace(make_past(demand[first:known]), first_row=first))
        np.testing.assert_allclose(windowed.weights, whole.weights)
    assert windowed.regret.intervals == 7


def test_a_link_that_the_mixture_does_not_overload_is_in_no_subgradient_of_the_lost_flow() -> None:
    """14 Gbit/s from a to b straight, or by c: each hedge loads links of 10 with 14, the mixture
    with 7."""
    past = make_past(np.array([[14.0, 0.0, 0.0]]), objective="total_flow")
    splits = torch.stack([_Fixed(share).allocate(past) for share in (1.0, 0.0)])
    problem = past.network.with_demand(torch.tensor([[14.0, 0.0, 0.0]] * 2, dtype=torch.float64))
    losses, loss, gradient = _flow_losses(problem, splits, np.array([0.5, 0.5]), 10.0)
    assert losses.tolist() == pytest.approx([0.4, 0.8]), "4 too much on one link, or on two"
    assert loss == 0
    assert gradient.tolist() == [0, 0]
