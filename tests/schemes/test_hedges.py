"""Hedges by name: windows in names, faults, and schemes that act on the last matrix."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("teal_next", reason="needs the package teal_next")

import teal
from teal.errors import InputError
from teal.network import CandidateLists
from teal.schemes.hedges import OfLastMatrix, hedge_names, make_hedge
from teal_next.saa import SampleAverage
from tests.teal_next.series import make_past


@pytest.mark.system
def test_all_names_make_hedges_that_allocate_all_demand() -> None:
    demand = np.random.default_rng(0).lognormal(1, 0.5, (30, 3))
    for name in [
        *hedge_names(),
        "saa5",
        "peak:spread=0.7",
        "lp-all",
        "ecmp:over=candidates",
    ]:
        if name.startswith("mean-of-test"):
            continue
        hedge = make_hedge(name)
        for known in (1, 2, 30):
            splits = hedge.allocate(make_past(demand[:known]))
            assert splits.shape == (3, 2), name
            torch.testing.assert_close(splits.sum(-1), torch.ones(3, dtype=torch.float64), msg=name)


def test_splits_of_the_igp_are_over_lists_of_their_own_and_no_part_of_a_mixture() -> None:
    past = make_past(np.random.default_rng(0).lognormal(1, 0.5, (5, 3)))
    hedge = make_hedge("ecmp")
    splits = hedge.allocate(past)
    assert isinstance(hedge, OfLastMatrix)
    assert isinstance(hedge.paths, CandidateLists)
    assert splits.shape == hedge.paths.mask.shape
    torch.testing.assert_close(splits.sum(-1), torch.ones(3, dtype=torch.float64))
    with pytest.raises(InputError, match="candidate paths"):
        make_hedge("mixture:of=last+ecmp").allocate(past)


def test_a_name_may_end_with_its_window() -> None:
    hedge = make_hedge("saa36:tail=0.5")
    assert isinstance(hedge, SampleAverage)
    assert (hedge._window, hedge._tail) == (36, 0.5)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("nothing", "nothing"),
        ("saa0", "window"),
        ("saa:tail=2", "tail"),
        ("saa:gap=0", "gap"),
        ("peak:spread=2", "spread"),
        ("mixture:of=last+last", "of"),
        ("mixture:of=nothing", "nothing"),
        ("mixture:rate=0", "rate"),
        ("static:window=0", "window"),
        ("residual:fit=0", "fit"),
        ("last:window=3", "window"),
    ],
)
def test_wrong_hedges_are_refused(text: str, field: str) -> None:
    with pytest.raises(InputError, match=field):
        make_hedge(text)


def test_another_scheme_acts_on_the_last_matrix() -> None:
    demand = np.random.default_rng(0).lognormal(1, 0.5, (5, 3))
    for objective in ("max_link_utilisation", "total_flow"):
        past = make_past(10 * demand, objective=objective)
        splits = make_hedge("pdhg:gap=0.0001").allocate(past)
        problem = past.network.with_demand(torch.from_numpy(10 * demand[-1:]))
        optimum = float(teal.solve(problem, gap=1e-4).value)
        assert float(problem.value(splits[None])) == pytest.approx(optimum, rel=3e-4)
