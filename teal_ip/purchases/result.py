"""Result of ``teal upgrade``: purchases, scenarios, schedule, forecasts and comparisons.

Entry point: :class:`UpgradePlan`.
"""

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
from teal_ip.routing.growth import Growth, LinkForecast, month_phrase

# Relative gap to the bound over all paths above which the bound is too weak to be reported.
_MAX_USEFUL_GAP = 0.5
# Maximum number of demands, links or failures named in a message.
_MAX_NAMED = 5


def _failure_phrase(failure: str) -> str:
    """Describe a failure by its name: "under failure of NAME"; "without failure" for ""."""
    return f"under failure of {failure}" if failure else "without failure"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Purchase:
    """Capacity added to one cable.

    Attributes:
        source: a node at one end.
        target: the node at the other end.
        capacity: Gbit/s of its links together, in one direction, before the expansion.
        bought: Gbit/s added in each direction.
        cost: cost of the added capacity.
        modules: number of modules of each size, such as ``2 x 100``; "" for any amounts.
        by: last month of the quarter by which it is needed; "" without a horizon.
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
    """Fit of one scenario with the expansion.

    Attributes:
        index: index of the matrix; -1 for one outside the traffic (pipe, hose).
        timestamp: time of the matrix.
        failure: name of the failure; "" for none.
        utilisation: largest link utilisation, with the expansion.
        cut_off: number of demands that the failure disconnects, which no expansion serves.
    """

    index: int
    timestamp: str
    failure: str
    utilisation: float
    cut_off: int


@dataclasses.dataclass(frozen=True)
class Replayed:
    """Result of evaluating a plan on the matrices outside it.

    Attributes:
        matrices: number of all matrices, without those held back by ``--replay``.
        planned: number of matrices that the plan is made for.
        added: number of planned matrices that were added because they did not fit an earlier plan.
        replayed: number of other matrices that were evaluated on the plan, under every failure.
        overloaded: number of evaluated matrices that do not fit when the deadline ends the search.
        utilisation: largest link utilisation in an evaluated matrix.
    """

    matrices: int
    planned: int
    added: int
    replayed: int
    overloaded: int
    utilisation: float

    @property
    def is_complete(self) -> bool:
        """Whether every matrix is planned for or evaluated, and fits."""
        return self.planned + self.replayed == self.matrices and not self.overloaded

    def __str__(self) -> str:
        """Summarise the evaluation in one line of text."""
        num_others = self.matrices - self.planned
        text = f"the plan is made for {self.planned:,} of {self.matrices:,} matrices"
        text += f", {self.added:,} of them added because they did not fit" if self.added else ""
        if not num_others:
            return text
        utilisation_text = f"with a largest link utilisation of {100 * self.utilisation:.2f}%"
        if self.is_complete:
            return f"{text}; the others fit, {utilisation_text}"
        return (
            f"{text}; {self.replayed:,} of the others were evaluated in time: "
            f"{self.overloaded:,} do not fit, {utilisation_text}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quarter:
    """Expansion by the end of a quarter.

    Attributes:
        by: last month of the quarter, such as 2027-03.
        growth: factor of all demands by then.
        cost: cumulative cost.
        bound: certified lower bound on the cost of an expansion for this quarter alone.
        utilisation: largest link utilisation in any scenario.
    """

    by: str
    growth: float
    cost: float
    bound: float
    utilisation: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alternative:
    """Expansion for another kind of demands, for comparison.

    Attributes:
        demands: kind of demands that it is made for: matrices, pipe or hose.
        bought: Gbit/s added over all cables.
        cost: cost of the expansion.
        bound: certified lower bound on the cost.
        dropped: share of the held-back traffic that does not fit, without failure; NaN without
            ``--replay``.
        dropped_under_failure: mean of this share over all failures.
        dropped_at_worst: this share under the worst failure, mean over the matrices.
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
    """Cost of the expansion at another growth factor.

    Attributes:
        growth: factor of all demands.
        failures: whether failures are planned for.
        cost: cost of the cheapest expansion found, in any amounts.
        bound: certified lower bound on the cost.
    """

    growth: float
    failures: bool
    cost: float
    bound: float


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class UpgradePlan:
    """Capacity expansion plan.

    Attributes:
        topology: network before the expansion, with candidate cables at a capacity of 0.
        upgraded: network after the expansion, without candidate cables that were not bought.
        upgrade: cost, bound, utilisation of each scenario.
        purchases: cables with added capacity, the most expensive first (with a horizon the earliest
            first).
        scenarios: fit of each scenario, in the order of the matrices.
        cut_off: names of the demands that each failure disconnects; under "" those disconnected
            without a failure.
        continuous: cost in any amounts, if modules were asked for; else NaN.
        before: (E,) largest utilisation of each link over all scenarios, before the expansion; None
            if computing the loads failed.
        after: (E,) largest utilisation of each link after the expansion.
        worst_demands: largest utilisation under the worst demands found in the hose; NaN without a
            hose.
        worst_limit: certified upper bound on the utilisation under any demands of the hose; NaN if
            not computed.
        replayed: result of evaluating the other matrices; None without ``--demands matrices``.
        routing: routing of loads and forecasts: optimal (splits reoptimised in every scenario) or
            ecmp (shortest paths of the IGP).
        growth: growth of the demands in time; None if not requested.
        forecasts: months in which links are full, the earliest first.
        quarters: expansion by the end of each quarter up to the horizon.
        alternatives: expansions for other choices of ``--demands``.
        curve: cost of the expansion at other growth factors.
        failed: messages of failed steps after the search, whose results are missing.
        proof: cuts that prove the bound over all paths; None if not requested.
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
        """Description of the routing that the loads result from, for headings."""
        return (
            "shortest paths of the IGP"
            if self.routing == "ecmp"
            else "splits reoptimised in every scenario"
        )

    @property
    def bound_all_paths(self) -> float:
        """Lower bound on the cost of every expansion (in any amounts), for any paths; NaN if
        unknown.
        """
        return self.upgrade.bound_all_paths

    def to_frame(self) -> Any:
        """Return a pandas frame with a row for each purchase and a column for each of its
        attributes.
        """
        import pandas as pd

        columns = [field.name for field in dataclasses.fields(Purchase)]
        return pd.DataFrame(
            [dataclasses.asdict(purchase) for purchase in self.purchases], columns=columns
        )

    def to_json(self) -> dict[str, Any]:
        """Return all metrics as JSON values; numbers that JSON lacks become null."""
        upgrade = self.upgrade
        names = ("purchases", "forecasts", "quarters", "alternatives", "curve")
        metrics = {
            "cost": upgrade.cost,
            "bound": upgrade.bound,
            "gap": upgrade.gap,
            "bound_all_paths": self.bound_all_paths,
            "cost_of_any_amounts": self.continuous,
            "rounds": upgrade.rounds,
            "cuts": upgrade.cuts,
            "solve_s": upgrade.solve_s,
            "reached": upgrade.reached,
            "largest_utilisation": float(upgrade.utilisation.max(initial=0.0)),
            "worst_demands_found": self.worst_demands,
            "worst_demands_limit": self.worst_limit,
            "scenarios": len(self.scenarios),
            "cut_off": self.cut_off,
            "replayed": self.replayed,
            "routing": self.routing,
            "growth": self.growth,
            "failed": self.failed,
        }
        return dict(json_value(metrics | {name: getattr(self, name) for name in names}))

    def describe(self) -> str:
        """Return the summary of the plan as lines of text: cost and bound, scenarios, further
        results and the effort of the search.
        """
        # Cost and bound, scenarios, and the optional results that the plan has.
        upgrade = self.upgrade
        total_added = sum(entry.bought for entry in self.purchases)
        num_cables = len({(entry.source, entry.target) for entry in self.purchases})
        lines = [
            f"buy {total_added:.6g} Gbit/s on {num_cables} of {len(self.topology.cables())} "
            f"cables: cost {upgrade.cost:.6g}, lower bound {rounding.at_least(upgrade.bound)} (gap "
            f"{rounding.gap_text(upgrade.gap)})",
            f"{len(self.scenarios):,} scenarios, largest link utilisation "
            f"{100 * float(upgrade.utilisation.max(initial=0.0)):.2f}%",
        ]
        if self.replayed is not None:
            lines.append(str(self.replayed))
        if math.isfinite(self.worst_demands):
            lines.append(self._describe_worst_demands())
        if math.isfinite(self.continuous):
            lines.append(f"cost in any amounts, each Gbit/s at --cost: {self.continuous:.6g}")
        if math.isfinite(self.bound_all_paths):
            lines.append(self._describe_all_paths())
        # First full links without an expansion, disconnected demands, and failed steps.
        if self.growth is not None:
            lines.append(f"{self.growth}; {self.routing_text}")
            full_links = [entry for entry in self.forecasts if entry.full_under_failure]
            lines += [
                f"{entry.link} is full {_failure_phrase(entry.worst_failure)} "
                f"{month_phrase(entry.full_under_failure)}"
                for entry in full_links[:_MAX_NAMED]
            ]
        lines += self._describe_cut_off()
        lines += self.failed
        return "\n".join(
            [*lines, f"{upgrade.rounds} rounds, {upgrade.cuts} cuts, {upgrade.solve_s:.3g} s"]
        )

    def _describe_worst_demands(self) -> str:
        """Return the line about the worst demands of the hose, and their certified bound."""
        is_certified = math.isfinite(self.worst_limit)
        limit = (
            f"certified at most {rounding.percent_at_most(self.worst_limit, 2)}"
            if is_certified
            else "no bound for other demands of the hose"
        )
        return (
            "largest link utilisation under the worst demands found in the hose: "
            f"{100 * self.worst_demands:.2f}%, {limit}"
        )

    def _describe_all_paths(self) -> str:
        """Return the line about the bound over all paths, and by how much the candidate paths cost
        more.
        """
        # The bound is on the cost in any amounts.
        continuous_cost = self.continuous if math.isfinite(self.continuous) else self.upgrade.cost
        excess = (
            max(0.0, continuous_cost - self.bound_all_paths) / continuous_cost
            if continuous_cost > 0
            else 0.0
        )
        if not excess <= _MAX_USEFUL_GAP:
            return "no useful bound over all paths of the network"
        bound_text = rounding.at_least(self.bound_all_paths)
        return (
            f"lower bound over all paths of the network {bound_text}: the candidate paths cost at "
            f"most {rounding.percent_at_most(excess, 2)} more"
        )

    def _describe_cut_off(self) -> list[str]:
        """Return a line of text for each failure that disconnects demands, at most _MAX_NAMED, and
        one with the number of further failures.
        """
        lines = []
        for failure, names in list(self.cut_off.items())[:_MAX_NAMED]:
            disconnection = f"{failure} disconnects" if failure else "the network has no path for"
            lines.append(f"{disconnection} {listed(names, _MAX_NAMED)}: excluded from the plan")
        if len(self.cut_off) > _MAX_NAMED:
            lines.append(f"{len(self.cut_off) - _MAX_NAMED} more failures disconnect demands")
        return lines
