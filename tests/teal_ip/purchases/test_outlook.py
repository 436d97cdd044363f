"""What a plan says of other times, other demands and other growths: by hand on two and three
nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import teal_ip
from teal.network import PathMethod, Topology, TrafficMatrices
from teal.network.rates import ArrayRates
from teal.testing import make_topology

Routing = Literal["optimal", "ecmp"]


def _history(rates: list[float], times: list[str]) -> TrafficMatrices:
    """One demand, from node 0 to node 1."""
    values = ArrayRates(np.array(rates)[:, None])
    when = np.array(times, dtype="datetime64[s]")
    return TrafficMatrices(
        "history", np.array([[0, 1]], dtype=np.int32), when, values, 0, key=f"{rates}{times}"
    )


def _link() -> Topology:
    return make_topology([(0, 1, 10.0)], both=True)


@pytest.mark.parametrize("routing", ["optimal", "ecmp"])
def test_a_link_is_full_so_long_after_the_last_matrix_as_its_largest_load_needs(
    routing: Routing,
) -> None:
    """9 Gbit/s on 10, 50% a year: full after log(10 / 9) / log(1.5) years, 95 days; the last matrix
    has 3 alone."""
    traffic = _history([9.0, 3.0], ["2024-01-15", "2024-03-15"])
    plan = teal_ip.upgrade(
        _link(), traffic, routing=routing, growth_per_year="0.5", failures="none"
    )
    assert plan.forecasts[0].full == "2024-06"
    assert plan.forecasts[0].utilisation == pytest.approx(0.9, rel=2e-3)


@pytest.mark.parametrize("routing", ["optimal", "ecmp"])
def test_the_curve_of_costs_counts_growths_from_todays_demands(routing: Routing) -> None:
    """10 Gbit/s times g on a link of 10: g = 3 buys 20, as the plan does."""
    traffic = _history([10.0], ["2024-01-15"])
    plan = teal_ip.upgrade(
        _link(), traffic, routing=routing, growth=3.0, curve=True, failures="none"
    )
    assert [one.growth for one in plan.curve] == pytest.approx([2.4, 3.0, 3.6, 4.2, 4.8])
    assert [one.cost for one in plan.curve] == pytest.approx([14, 20, 26, 32, 38], rel=1e-2)
    assert plan.upgrade.cost == pytest.approx(20, rel=1e-2)


@pytest.mark.parametrize(("limit", "intact", "failed"), [(1.0, 0.0, 0.25), (0.5, 0.25, 0.625)])
def test_what_replayed_traffic_would_lose_with_and_without_a_failure(
    limit: float, intact: float, failed: float
) -> None:
    """Two ways of 10 Gbit/s, of which any failure leaves one; 20 and 10 Gbit/s are replayed, and
    nothing is bought.

    Within the whole capacity 0 of both is lost without failure, 10 of 20 and 0 of 10 under each;
    within the half of it 10 of 20 and 0 of 10 without failure, 15 of 20 and 5 of 10 under each.
    """
    topology = make_topology([(0, 1, 10.0), (0, 2, 10.0), (2, 1, 10.0)], both=True)
    traffic = _history([1.0, 10.0, 5.0], ["2024-01-01", "2024-01-02", "2024-01-03"])
    plan = teal_ip.upgrade(
        topology,
        traffic,
        growth=2.0,
        replay=0.67,
        max_utilisation=limit,
        path_method=PathMethod.SURVIVABLE,
    )
    assert plan.upgrade.cost == 0
    one = plan.alternatives[0]
    assert one.dropped == pytest.approx(intact, abs=3e-3)
    assert one.dropped_under_failure == pytest.approx(failed, abs=3e-3)
    assert one.dropped_at_worst == pytest.approx(failed, abs=3e-3)


def test_what_any_amounts_cost_beside_modules_carries_every_matrix_too() -> None:
    """100 Gbit/s on a link of 10 in the matrix that is not planned for at first: a module of 95,
    and 90 alone."""
    traffic = _history([50.0, 100.0, 50.0], ["2024-01-01", "2024-01-02", "2024-01-03"])
    for routing in ("optimal", "ecmp"):
        plan = teal_ip.upgrade(
            _link(), traffic, routing=routing, matrices=2, modules="95", failures="none"
        )
        assert plan.upgrade.cost == pytest.approx(95)
        assert plan.continuous == pytest.approx(90, rel=1e-2)


def test_a_hose_is_of_all_pairs_of_nodes_and_not_of_those_with_traffic(tmp_path: Path) -> None:
    """A chain a - b - c - d with 10, 4, 10: a sends 10 and d receives 10, so that b - c lacks 6."""
    (tmp_path / "net.csv").write_text("source,target,capacity\na,b,10\nb,c,4\nc,d,10\n")
    (tmp_path / "rates.csv").write_text("source,target,rate\na,b,10\nc,d,10\n")
    plan = teal_ip.upgrade(
        str(tmp_path / "net.csv"), str(tmp_path / "rates.csv"), demands="hose", failures="none"
    )
    assert plan.upgrade.cost == pytest.approx(6, rel=1e-2)
    assert {(one.source, one.target) for one in plan.purchases} == {("b", "c")}
