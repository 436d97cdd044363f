"""The question of `teal upgrade`: network with candidate cables, demands and failures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from teal.config import seconds
from teal.config.upgrade import UpgradeConfig
from teal.evaluation.failures import Failure
from teal.evaluation.instance import Instance, load_instance
from teal.evaluation.upgrade.inputs import Offer, failures_of, offer
from teal.evaluation.upgrade.result import Purchase
from teal.network import PathSet, Topology, TrafficMatrices, compute_paths
from teal.network.extension import with_listed_paths
from teal.problem import Problem
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.interruptible import Deadline
from teal.solvers.upgrade import Scenarios, scenarios_of

_ROUNDING = 1e-9  # Gbit/s, up to which nothing is bought
Notify = Callable[[str], None]
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, eq=False)
class Question:
    """Network with candidate cables, the matrices and failures to plan for, and the settings.

    Attributes:
        num_matrices: of the traffic, but for those that --replay holds back.
        rows: numbers of those that are planned for.
        matrices: (M, D) Gbit/s of these.
        failed: steps after the search that failed, and why.
    """

    config: UpgradeConfig
    instance: Instance
    offer: Offer
    problem: Problem
    num_matrices: int
    rows: Int64Array
    matrices: FloatArray
    failures: list[Failure]
    deadline: Deadline
    notify: Notify
    failed: list[str] = dataclasses.field(default_factory=list)

    def scenarios(self, matrices: FloatArray, failures: Sequence[Failure]) -> tuple[Scenarios, dict[int, list[int]]]:
        """Matrices (M, D), as they are, under no failure and under each."""
        return scenarios_of(
            self.problem, matrices, [one.links for one in failures], self.offer.cost, self.config.max_utilisation,
            regular=self.offer.regular, most=self.offer.most, max_latency=self.instance.max_latency,
        )  # fmt: skip

    def with_more(self, rows: Int64Array, scenarios: Scenarios) -> tuple[Question, Scenarios]:
        """The question with more matrices to plan for, and their scenarios behind the others."""
        self.notify(f"{len(rows)} matrices that do not fit are planned for too")
        more = self.instance.traffic.read(rows)
        added, _ = self.scenarios(self.config.growth * more, self.failures)
        both = np.concatenate([self.rows, rows]), np.concatenate([self.matrices, more])
        return dataclasses.replace(self, rows=both[0], matrices=both[1]), scenarios.joined(added)

    def attempt(self, what: str, step: Callable[[], T]) -> T | None:
        """The result of a step after the search; None where it fails, so that the plan is kept."""
        try:
            return step()
        except Exception as error:  # whatever it is: the search may have taken hours
            said = f"{what} failed: {type(error).__name__}: {error}"
            self.failed[:] = [*(one for one in self.failed if one != said), said]
            self.notify(said)
            return None

    def report(self, number: int, cost: float, bound: float) -> None:
        """A line of progress."""
        self.notify(f"round {number}: cost {cost:.6g}, at least {bound:.6g}")


def load_question(config: UpgradeConfig, notify: Notify) -> Question:
    """Network, traffic, paths over candidate cables, failures."""
    planned: list[TrafficMatrices] = []

    def select(traffic: TrafficMatrices) -> TrafficMatrices:
        planned.append(traffic)
        return traffic.part(0, planned_matrices(traffic, config))

    # The IGP's routing asks no candidate paths: one a demand is enough, unless demands are calibrated over them.
    is_igp = config.routing == "ecmp" and config.calibrate is None and config.paths is None
    instance = load_instance(dataclasses.replace(config, num_paths=1) if is_igp else config, notify, select)
    bought = offer(config, instance.topology)
    if bought.candidates:
        paths = _with_candidate_paths(config, instance.paths, bought.topology)
        instance = dataclasses.replace(instance, topology=bought.topology, paths=paths)
    traffic = instance.traffic
    count = traffic.num_matrices
    rows = np.unique(np.linspace(0, count - 1, min(count, config.matrices or count)).astype(int))
    if config.demands != "matrices":
        rows = np.arange(count)
    factor = 1.0
    if config.calibrate is not None and planned[0].num_matrices:
        raw = planned[0].read([0]).sum()
        factor = float(traffic.read([0]).sum() / raw) if raw > 0 else 1.0
    whole = planned[0] if factor == 1.0 else planned[0].scaled(factor)
    instance = dataclasses.replace(instance, traffic=whole)
    deadline = Deadline.after(seconds(config.deadline, "--deadline") if config.deadline else math.inf)
    matrices, failures = whole.read(rows), failures_of(config, bought.topology)
    instance = instance.surviving([one.links for one in failures], notify)  # once, not for each block of matrices
    return Question(
        config, instance, bought, instance.problem(matrices[:1]), count, rows, matrices, failures, deadline, notify
    )


def _with_candidate_paths(config: UpgradeConfig, paths: PathSet, topology: Topology) -> PathSet:
    """The candidate paths without new cables, and those that a search with them finds: no new cable is presumed.

    The links of new cables are the last ones of ``topology``, so that the numbers of the others stay.
    """
    found = compute_paths(
        topology, paths.pairs, num_paths=config.first_paths, method=config.path_method, weight=config.path_weight,
        cache=False,
    )  # fmt: skip
    paths = dataclasses.replace(paths, num_links=topology.num_links, topology_key=topology.graph_key())
    more = {
        d: [found.links_of(d, k) for k in range(found.num_paths) if found.mask[d, k]] for d in range(found.num_demands)
    }
    return with_listed_paths(paths, more)


def planned_matrices(traffic: TrafficMatrices, config: UpgradeConfig) -> int:
    """Number of matrices that the plan is made for."""
    return max(1, round((1 - config.replay) * traffic.num_matrices))


def purchases(question: Question, bought: FloatArray, modules: Int64Array | None, by: str = "") -> list[Purchase]:
    """The cables of which something is bought, the dearest first; parallel links are one cable.

    Args:
        question: for names, costs and sizes.
        bought: (C,) Gbit/s on each pair of links.
        modules: (C, J) number of modules of each size; None where any amounts can be bought.
        by: see :class:`Purchase`.
    """
    topology, sizes, found = question.offer.topology, question.config.sizes, []
    pair_of = {link: number for number, links in enumerate(topology.link_pairs()) for link in links}
    price = np.array([one for _, one in sizes])
    cost = question.offer.cost * (bought if modules is None else modules @ price)
    for links in topology.cables():
        pairs = sorted({pair_of[link] for link in links})
        if not (bought[pairs] > _ROUNDING).any():
            continue
        first = links[0]
        forth = [e for e in links if topology.link_source[e] == topology.link_source[first]]
        count = [] if modules is None else modules[pairs].sum(0).tolist()
        found.append(
            Purchase(
                source=topology.node_names[topology.link_source[first]],
                target=topology.node_names[topology.link_target[first]],
                capacity=float(question.offer.regular[forth].sum()), bought=float(bought[pairs].sum()),
                cost=float(cost[pairs].sum()), by=by,
                modules=" + ".join(f"{n} x {size:g}" for n, (size, _) in zip(count, sizes, strict=False) if n),
            )
        )  # fmt: skip
    return sorted(found, key=lambda one: -one.cost)
