"""What to buy, from settings to a certified plan: `teal upgrade`."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from teal.config import seconds
from teal.config.upgrade import UpgradeConfig
from teal.errors import InputError
from teal.evaluation.instance import Instance, load_instance
from teal.evaluation.plan import Failure, cable_failures, group_failures
from teal.formats.allocations import finite_only
from teal.formats.groups import load_groups
from teal.network import Topology
from teal.runtime.arrays import FloatArray
from teal.runtime.interruptible import Deadline
from teal.solvers.upgrade import Scenarios, Upgrade, buy, buy_modules, scenarios_of

_MOST_NAMED = 5  # demands that are named in a message


@dataclasses.dataclass(frozen=True, kw_only=True)
class Purchase:
    """One cable.

    Attributes:
        source: a node at one end.
        target: the node at the other end.
        capacity: Gbit/s of its links together, in one direction, before.
        bought: Gbit/s, in each direction.
        cost: of it.
    """

    source: str
    target: str
    capacity: float
    bought: float
    cost: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScenarioFit:
    """One scenario.

    Attributes:
        index: number of the matrix.
        timestamp: of it.
        failure: what fails; "" for nothing.
        utilisation: largest of a link, with the purchase.
        cut_off: number of demands without a path, which no purchase carries.
    """

    index: int
    timestamp: str
    failure: str
    utilisation: float
    cut_off: int


@dataclasses.dataclass(frozen=True, eq=False)
class UpgradePlan:
    """A purchase, and what it is for.

    Attributes:
        topology: before.
        upgraded: with the purchase.
        upgrade: cost, bound, utilisation of each scenario.
        purchases: the cables on which something is bought, the dearest first.
        scenarios: one for each, in the order of the matrices.
        cut_off: names of demands that a failure cuts off, by failure.
        continuous: cost in any amounts, where modules are bought; else NaN.
    """

    topology: Topology
    upgraded: Topology
    upgrade: Upgrade
    purchases: list[Purchase]
    scenarios: list[ScenarioFit]
    cut_off: dict[str, list[str]]
    continuous: float

    def to_json(self) -> dict[str, Any]:
        """All figures; numbers that JSON cannot hold become null."""
        one = self.upgrade
        return finite_only({
            "cost": one.cost, "bound": one.bound, "gap": one.gap, "cost_of_any_amounts": self.continuous,
            "rounds": one.rounds, "cuts": one.cuts, "solve_s": one.solve_s, "reached": one.reached,
            "largest_utilisation": float(one.utilisation.max(initial=0.0)), "scenarios": len(self.scenarios),
            "purchases": [dataclasses.asdict(part) for part in self.purchases], "cut_off": self.cut_off,
        })  # fmt: skip

    def describe(self) -> str:
        """The same in a few lines."""
        one = self.upgrade
        total = sum(part.bought for part in self.purchases)
        lines = [
            f"buy {total:.6g} Gbit/s on {len(self.purchases)} of {len(self.topology.cables())} cables: cost "
            f"{one.cost:.6g}, at least {one.bound:.6g} (gap {100 * one.gap:.3f}%)",
            f"{len(self.scenarios):,} scenarios fit, the fullest link of any at "
            f"{100 * float(one.utilisation.max(initial=0.0)):.2f}%",
        ]
        if math.isfinite(self.continuous):
            lines.append(f"in any amounts {self.continuous:.6g}: modules cost {one.cost - self.continuous:.6g} more")
        for failure, names in list(self.cut_off.items())[:_MOST_NAMED]:
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            lines.append(f"{failure} cuts off {', '.join(names[:_MOST_NAMED])}{more}: no purchase carries them")
        if len(self.cut_off) > _MOST_NAMED:
            lines.append(f"and {len(self.cut_off) - _MOST_NAMED} more failures cut demands off")
        return "\n".join([*lines, f"{one.rounds} rounds, {one.cuts} cuts, {one.solve_s:.3g} s"])


def plan_upgrade(config: UpgradeConfig, notify: Callable[[str], None]) -> UpgradePlan:
    """Load, and find what to buy.

    Raises:
        InputError: a fault in what the user gave.
        SolverError: no purchase of modules was found in time.
    """
    instance = load_instance(config, notify)
    topology, count = instance.topology, instance.traffic.num_matrices
    rows = np.unique(np.linspace(0, count - 1, min(count, config.matrices or count)).astype(int))
    failures = cable_failures(topology) if config.failures == "cables" else []
    failures += group_failures(load_groups(config.groups, topology)) if config.groups is not None else []
    scenarios, cut_off = scenarios_of(
        instance.problem(instance.traffic.read([0])), instance.traffic.read(rows), [one.links for one in failures],
        _costs(config.cost, topology), config.max_utilisation, config.growth,
    )  # fmt: skip
    notify(f"{len(scenarios.demand):,} scenarios: {len(rows)} matrices, {len(failures)} failures and none")
    deadline = Deadline.after(seconds(config.deadline, "--deadline") if config.deadline else math.inf)

    def report(number: int, cost: float, bound: float) -> None:
        notify(f"round {number}: cost {cost:.6g}, at least {bound:.6g}")

    upgrade, cuts = buy(scenarios, gap=config.gap, deadline=deadline, report=report)
    continuous = math.nan
    if config.sizes:
        continuous = upgrade.cost
        upgrade = buy_modules(scenarios, cuts, config.sizes, deadline=deadline, report=report)
    return _plan(instance, scenarios, upgrade, failures, cut_off, rows.tolist(), continuous)


def _plan(
    instance: Instance, scenarios: Scenarios, upgrade: Upgrade, failures: list[Failure],
    cut_off: dict[int, list[int]], rows: list[int], continuous: float,
) -> UpgradePlan:  # fmt: skip
    topology, names = instance.topology, instance.topology.node_names
    purchases = []
    for number, links in enumerate(topology.cables()):
        if upgrade.bought[number] > 0:
            first = links[0]
            forth = [e for e in links if topology.link_source[e] == topology.link_source[first]]
            purchases.append(
                Purchase(
                    source=names[topology.link_source[first]], target=names[topology.link_target[first]],
                    capacity=float(topology.capacity[forth].sum()), bought=float(upgrade.bought[number]),
                    cost=float(upgrade.bought[number] * scenarios.cost[number]),
                )
            )  # fmt: skip
    purchases.sort(key=lambda one: -one.cost)
    sets = [Failure("", "none", ()), *failures]
    fits = [
        ScenarioFit(
            index=row, timestamp=str(instance.traffic.timestamps[row]), failure=failure.name,
            utilisation=float(upgrade.utilisation[len(sets) * m + number]),
            cut_off=len(cut_off.get(number - 1, ())),
        )
        for m, row in enumerate(rows) for number, failure in enumerate(sets)
    ]  # fmt: skip
    pairs = instance.traffic.pairs
    named = {
        failures[number].name: [f"{names[pairs[d, 0]]} -> {names[pairs[d, 1]]}" for d in demands]
        for number, demands in cut_off.items()
    }
    capacity = topology.capacity + upgrade.bought[scenarios.cable]
    upgraded = dataclasses.replace(topology, capacity=capacity)
    return UpgradePlan(topology, upgraded, upgrade, purchases, fits, named, continuous)


def _costs(text: str, topology: Topology) -> FloatArray:
    """(C,) cost of a Gbit/s on each cable.

    Raises:
        InputError: a file without a cost above 0 for every cable.
    """
    cables = topology.cables()
    if text == "capacity":
        return np.ones(len(cables))
    if text == "length":
        return np.array([float(topology.latency[links].min()) for links in cables])
    path = Path(text)
    number = {link: c for c, links in enumerate(cables) for link in links}
    cost = np.full(len(cables), np.nan)
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            for line, row in enumerate(csv.DictReader(stream), 2):
                try:
                    value = float(row["cost"])
                    links = topology.find_links(row["source"].strip(), row["target"].strip())
                except (KeyError, TypeError, ValueError, AttributeError):
                    raise InputError(text, f"line {line}", "source, target and a cost", row) from None
                if not (math.isfinite(value) and value > 0):
                    raise InputError(text, f"line {line}: cost", "a number above 0", value)
                cost[number[links[0]]] = value
    except OSError as error:
        raise InputError("--cost", text, "capacity, length, or a .csv file", str(error)) from None
    missing = np.flatnonzero(np.isnan(cost))
    if len(missing):
        raise InputError(text, "cost", "one for every cable", f"none for {topology.link_name(cables[missing[0]][0])}")
    return cost
