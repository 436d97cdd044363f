"""Purchases under the IGP's routing against every set of new cables, each routed by networkx."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import teal_ip
from teal.errors import InputError
from teal.formats import load_topology
from tests.igp_reference import segment_shares

_RING = "source,target,capacity,metric\n" + "".join(
    f"n{i},n{(i + 1) % 5},10,{2 + i % 3}\n" for i in range(5)
)


def _needed(net: str, traffic: list[tuple[int, int, float]], price: list[float]) -> float:
    """Cost of the cables of a network, the last of which are new and have the prices, under every
    failure of one."""
    topology = load_topology(net)
    cables, existing = topology.cables(), len(topology.cables()) - len(price)
    metric = np.asarray(topology.metric, dtype=np.float64)
    cost, most = np.array([1.0] * existing + price), np.zeros(len(cables))
    for failed in [[], *cables]:
        capacity = topology.capacity.copy()
        capacity[failed] = 0
        shares = segment_shares(topology.with_capacity(capacity), metric)
        load = sum(rate * shares[t, s] for s, t, rate in traffic)
        has = np.array([10.0] * existing + [0.0] * len(price))
        most = np.maximum(most, [np.max(load[links]) - has[c] for c, links in enumerate(cables)])
    return float(cost @ most)


@pytest.mark.parametrize("growth", [0.6, 1.5, 4.0])
def test_the_purchase_is_the_cheapest_of_all_sets_of_new_cables(
    growth: float, tmp_path: Path
) -> None:
    rng, net = np.random.default_rng(5), tmp_path / "net.csv"
    traffic = [(s, t, float(rng.uniform(0.5, 2))) for s in range(5) for t in range(5) if s != t]
    net.write_text(_RING)
    (tmp_path / "rates.csv").write_text(
        "source,target,rate\n" + "".join(f"n{s},n{t},{r}\n" for s, t, r in traffic)
    )
    new = [("n0", "n2", 3, 0.4), ("n1", "n3", 1, 4.0), ("n2", "n4", 2, 0.9)]
    (tmp_path / "new.csv").write_text(
        "source,target,latency,cost\n" + "".join(f"{a},{b},{m},{c}\n" for a, b, m, c in new)
    )
    costs = {}
    for count in range(4):
        for some in itertools.combinations(new, count):
            net.write_text(_RING + "".join(f"{a},{b},10,{m}\n" for a, b, m, _ in some))
            grown = [(s, t, growth * r) for s, t, r in traffic]
            costs[some] = _needed(str(net), grown, [one[3] for one in some])
    net.write_text(_RING)
    plan = teal_ip.upgrade(
        str(net),
        str(tmp_path / "rates.csv"),
        growth=growth,
        routing="ecmp",
        candidates=tmp_path / "new.csv",
    )
    least = min(costs.values())
    assert plan.upgrade.cost == pytest.approx(least, rel=1e-6)
    assert plan.upgrade.bound == pytest.approx(least, rel=1e-6)
    assert plan.upgrade.reached
    assert costs[tuple(new)] > 1.01 * least, "building all of them costs more"
    best = {(one[0], one[1]) for one in min(costs, key=lambda one: (costs[one], len(one)))}
    assert {(one.source, one.target) for one in plan.purchases if one.capacity == 0} == best


def test_too_many_new_cables_for_all_their_sets_are_refused(tmp_path: Path) -> None:
    (tmp_path / "net.csv").write_text(_RING.replace("n4,n0", "n4,n5") + "n5,n0,10,1\nn5,n6,10,1\n")
    (tmp_path / "rates.csv").write_text("source,target,rate\nn0,n2,1\n")
    ends = [(0, 2), (0, 3), (0, 4), (1, 3), (1, 4), (1, 5), (2, 4), (2, 5), (3, 5), (0, 6), (1, 6)]
    rows = "".join(f"n{a},n{b},1\n" for a, b in ends)
    (tmp_path / "new.csv").write_text("source,target,latency\n" + rows)
    with pytest.raises(InputError, match="at most 10 new cables"):
        teal_ip.upgrade(
            str(tmp_path / "net.csv"),
            str(tmp_path / "rates.csv"),
            routing="ecmp",
            candidates=tmp_path / "new.csv",
        )
