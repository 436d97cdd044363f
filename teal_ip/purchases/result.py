"""The result of `teal upgrade`: what is bought, for what, when, and what else was found."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from teal.errors import listed
from teal.network import Topology
from teal.runtime import rounding
from teal.runtime.storage import json_value
from teal_ip.purchases.benders import Upgrade
from teal_ip.purchases.proof import CutProof
from teal_ip.routing.growth import Growth, LinkForecast, when

_PROVES_SOMETHING = 0.5  # gap over all paths, above which the prices say nothing about them
_MAX_NAMED = 5  # demands, links or failures that are named in a message


@dataclasses.dataclass(frozen=True, kw_only=True)
class Purchase:
    """One cable.

    Attributes:
        source: a node at one end.
        target: the node at the other end.
        capacity: Gbit/s of its links together, in one direction, before.
        bought: Gbit/s, in each direction.
        cost: cost of the capacity.
        modules: how many of each size, such as ``2 x 100``; "" where any amount can be bought.
        by: the quarter's last month, by which it must be there; "" without a horizon.
    """

    source: str
    target: str
    capacity: float
    bought: float
    cost: float
    modules: str = ""
    by: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScenarioFit:
    """One scenario.

    Attributes:
        index: number of the matrix; -1 for one that is not of the traffic (pipe, hose).
        timestamp: time of the matrix.
        failure: what fails; "" for nothing.
        utilisation: largest of a link, with the purchase.
        cut_off: number of demands that the network does not connect, which no purchase carries.
    """

    index: int
    timestamp: str
    failure: str
    utilisation: float
    cut_off: int


@dataclasses.dataclass(frozen=True)
class Replayed:
    """Result of replaying, on a plan, the matrices that it was not made for.

    Attributes:
        matrices: number of matrices, but for those that ``--replay`` holds back.
        planned: matrices that the plan is made for.
        added: number of these that were added because they did not fit an earlier plan.
        replayed: others that were replayed on the plan, under every failure.
        overloaded: number of these that do not fit, since time was over.
        utilisation: largest of a link in a replayed matrix.
    """

    matrices: int
    planned: int
    added: int
    replayed: int
    overloaded: int
    utilisation: float

    @property
    def is_complete(self) -> bool:
        """Whether every matrix fits."""
        return self.planned + self.replayed == self.matrices and not self.overloaded

    def __str__(self) -> str:
        left = self.matrices - self.planned
        text = f"{self.planned:,} of {self.matrices:,} matrices are planned for"
        text += f", {self.added:,} of them because they did not fit before" if self.added else ""
        if not left:
            return text
        percent = f"the fullest link at {100 * self.utilisation:.2f}%"
        if self.is_complete:
            return f"{text}; the others were replayed and fit, {percent}"
        return (
            f"{text}; {self.replayed:,} of the others were replayed in time, of which "
            f"{self.overloaded:,} do not fit, "
            f"{percent}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quarter:
    """The capacity that must be there by the end of a quarter.

    Attributes:
        by: its last month, such as 2027-03.
        growth: factor of all demands by then.
        cost: cost of all that is bought by then.
        bound: certified, that no purchase for this quarter alone costs less.
        utilisation: largest of a link in any scenario.
    """

    by: str
    growth: float
    cost: float
    bound: float
    utilisation: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alternative:
    """The purchase for other demands.

    Attributes:
        demands: matrices, pipe or hose.
        bought: Gbit/s over all cables.
        cost: cost of the purchase.
        bound: certified.
        dropped: share of the replayed traffic that does not fit, without failure; NaN without
            replay.
        dropped_under_failure: the same, mean over all failures.
        dropped_at_worst: the same, under the worst failure, mean over the matrices.
    """

    demands: str
    bought: float
    cost: float
    bound: float
    dropped: float
    dropped_under_failure: float
    dropped_at_worst: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """The cost of another growth.

    Attributes:
        growth: factor of all demands.
        failures: whether failures are planned for.
        cost: cost of the cheapest purchase found, in any amounts.
        bound: certified.
    """

    growth: float
    failures: bool
    cost: float
    bound: float


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class UpgradePlan:
    """A purchase, with the scenarios that it was planned for and its results.

    Attributes:
        topology: network before the purchase, with candidate cables at a capacity of 0.
        upgraded: network after the purchase, without candidate cables that were not bought.
        upgrade: cost, bound, utilisation of each scenario.
        purchases: the cables on which something is bought, the dearest first (with a horizon the
            earliest first).
        scenarios: fit of each scenario, in the order of the matrices.
        cut_off: names of the demands that each failure disconnects; under "" those disconnected
            without a failure.
        continuous: cost if any amount could be bought, where only modules can; else NaN.
        before: (E,) largest utilisation of each link over all scenarios, before the purchase; None
            if computing the loads failed.
        after: (E,) largest utilisation of each link after the purchase.
        worst_demands: largest utilisation under the worst demands found in the hose; NaN without a
            hose.
        worst_limit: certified upper bound on the utilisation under any demands of the hose; NaN if
            not computed.
        replayed: result of replaying the matrices that were not planned for; None without
            ``--demands matrices``.
        routing: routing of loads and forecasts, optimal or ecmp
            (:class:`teal.planning.settings.UpgradeConfig`).
        growth: growth of the demands in time; None if it was not asked for.
        forecasts: when each link is full, the earliest first.
        quarters: capacity needed by the end of each quarter up to the horizon.
        alternatives: purchases for other choices of ``--demands``.
        curve: cost of the purchase at other growth factors.
        failed: steps after the search that failed, and why; their results are missing.
        proof: cuts that prove the bound over all paths; None where it was not asked for.
    """

    topology: Topology
    upgraded: Topology
    upgrade: Upgrade
    purchases: list[Purchase]
    scenarios: list[ScenarioFit]
    cut_off: dict[str, list[str]]
    continuous: float
    before: Any
    after: Any
    worst_demands: float = math.nan
    worst_limit: float = math.nan
    replayed: Replayed | None = None
    routing: str = "optimal"
    growth: Growth | None = None
    forecasts: list[LinkForecast] = dataclasses.field(default_factory=list)
    quarters: list[Quarter] = dataclasses.field(default_factory=list)
    alternatives: list[Alternative] = dataclasses.field(default_factory=list)
    curve: list[CurvePoint] = dataclasses.field(default_factory=list)
    failed: list[str] = dataclasses.field(default_factory=list)
    proof: CutProof | None = None

    @property
    def routing_text(self) -> str:
        """Which routing the loads are of, for headings."""
        return (
            "shortest paths of the IGP"
            if self.routing == "ecmp"
            else "splits chosen anew in every scenario"
        )

    @property
    def bound_all_paths(self) -> float:
        """Lower bound on the cost of every purchase (in any amounts), whichever paths are used; NaN
        if unknown.
        """
        return self.upgrade.bound_all_paths

    def to_frame(self) -> Any:
        """A pandas frame of the purchases."""
        import pandas as pd

        columns = [field.name for field in dataclasses.fields(Purchase)]
        return pd.DataFrame([dataclasses.asdict(one) for one in self.purchases], columns=columns)

    def to_json(self) -> dict[str, Any]:
        """All figures; numbers that JSON cannot hold become null."""
        one = self.upgrade
        names = ("purchases", "forecasts", "quarters", "alternatives", "curve")
        figures = {
            "cost": one.cost,
            "bound": one.bound,
            "gap": one.gap,
            "bound_all_paths": self.bound_all_paths,
            "cost_of_any_amounts": self.continuous,
            "rounds": one.rounds,
            "cuts": one.cuts,
            "solve_s": one.solve_s,
            "reached": one.reached,
            "largest_utilisation": float(one.utilisation.max(initial=0.0)),
            "worst_demands_found": self.worst_demands,
            "worst_demands_limit": self.worst_limit,
            "scenarios": len(self.scenarios),
            "cut_off": self.cut_off,
            "replayed": self.replayed,
            "routing": self.routing,
            "growth": self.growth,
            "failed": self.failed,
        }
        return dict(json_value(figures | {name: getattr(self, name) for name in names}))

    def describe(self) -> str:
        """The plan in a few lines."""
        one = self.upgrade
        total = sum(part.bought for part in self.purchases)
        cables = len({(part.source, part.target) for part in self.purchases})
        lines = [
            f"buy {total:.6g} Gbit/s on {cables} of {len(self.topology.cables())} cables: cost "
            f"{one.cost:.6g}, "
            f"at least {rounding.at_least(one.bound)} (gap {rounding.gap_text(one.gap)})",
            f"{len(self.scenarios):,} scenarios fit, the fullest link of any at "
            f"{100 * float(one.utilisation.max(initial=0.0)):.2f}%",
        ]
        if self.replayed is not None:
            lines.append(str(self.replayed))
        if math.isfinite(self.worst_demands):
            is_certified = math.isfinite(self.worst_limit)
            limit = (
                f"certified at most {rounding.percent_at_most(self.worst_limit, 2)}"
                if is_certified
                else "others may be worse"
            )
            lines.append(
                f"the worst demands of the hose that were found: {100 * self.worst_demands:.2f}%, "
                f"{limit}"
            )
        if math.isfinite(self.continuous):
            lines.append(f"in any amounts, each Gbit/s at --cost: {self.continuous:.6g}")
        if math.isfinite(self.bound_all_paths):
            base = self.continuous if math.isfinite(self.continuous) else one.cost
            more = max(0.0, base - self.bound_all_paths) / base if base > 0 else 0.0
            least = rounding.at_least(self.bound_all_paths)
            lines.append(
                f"over all paths of the network at least {least}: "
                f"candidate paths buy at most {rounding.percent_at_most(more, 2)} too much"
                if more <= _PROVES_SOMETHING
                else "what other paths would save is unknown"
            )
        if self.growth is not None:
            lines.append(f"{self.growth}; {self.routing_text}")
            full = [part for part in self.forecasts if part.full_under_failure]
            lines += [
                f"{part.link} is full under failure of {part.worst_failure or 'nothing'} "
                f"{when(part.full_under_failure)}"
                for part in full[:_MAX_NAMED]
            ]
        for failure, names in list(self.cut_off.items())[:_MAX_NAMED]:
            what = f"{failure} cuts off" if failure else "the network has no path for"
            lines.append(f"{what} {listed(names, _MAX_NAMED)}: no purchase carries them")
        if len(self.cut_off) > _MAX_NAMED:
            lines.append(f"and {len(self.cut_off) - _MAX_NAMED} more failures cut demands off")
        lines += self.failed
        return "\n".join([*lines, f"{one.rounds} rounds, {one.cuts} cuts, {one.solve_s:.3g} s"])
