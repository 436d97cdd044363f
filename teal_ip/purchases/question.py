"""The question of `teal upgrade`: network with candidate cables, demands and failures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from teal.app.instance import Instance, instance_of, load_network
from teal.app.settings import seconds
from teal.errors import InputError
from teal.formats import side_tables
from teal.formats.groups import load_groups
from teal.network import PathSet, Topology, TrafficMatrices, all_pairs, compute_paths
from teal.network.failures import Failure, cable_failures, group_failures, pair_failures
from teal.network.path_changes import with_listed_paths
from teal.problem import Problem
from teal.runtime import rounding
from teal.runtime.arrays import FloatArray, Int64Array, IntArray
from teal.runtime.interruptible import Deadline
from teal_ip.purchases.hose import Hose
from teal_ip.purchases.result import Purchase
from teal_ip.purchases.scenarios import Scenarios, scenarios_of
from teal_ip.purchases.settings import UpgradeOptions

_HOSE = (
    side_tables.Column("node", required=True),
    side_tables.Column("out", side_tables.Kind.RATE, required=True),
    side_tables.Column("in", side_tables.Kind.RATE, required=True),
)
_COST = side_tables.Column("cost", side_tables.Kind.NUMBER, required=True)
_CANDIDATE = (
    side_tables.SOURCE,
    side_tables.TARGET,
    side_tables.Column("latency", side_tables.Kind.DELAY, required=True, aliases=("delay",)),
    side_tables.Column("cost", side_tables.Kind.NUMBER),
    side_tables.Column("most", side_tables.Kind.RATE),
)


@dataclasses.dataclass(frozen=True, eq=False)
class Offer:
    """A network with the cables that can be bought.

    Attributes:
        topology: with candidate cables as links; their capacity is the median of the others', for
            the path search.
        regular: (E,) Gbit/s that are there; 0 on candidate cables.
        cost: (C,) of a Gbit/s on each pair of links; a cable of parallel links has several.
        most: (C,) Gbit/s that can be bought; infinite where nothing limits it.
        candidates: numbers of the pairs of links that do not exist yet.
    """

    topology: Topology
    regular: FloatArray
    cost: FloatArray
    most: FloatArray
    candidates: tuple[int, ...]


def offer(config: UpgradeOptions, topology: Topology) -> Offer:
    """The network of the settings with its candidate cables, and what they cost.

    Raises:
        InputError: a fault in a file.
    """
    before = len(topology.link_pairs())
    regular, whole, own_cost, most = topology.capacity, topology, np.zeros(0), np.zeros(0)
    if config.candidates is not None:
        whole, own_cost, most = _with_candidates(str(config.candidates), topology)
        regular = np.concatenate([regular, np.zeros(whole.num_links - topology.num_links)])
    cost = _costs(config.cost, whole)
    if len(own_cost):
        cost[before:] = np.where(np.isnan(own_cost), cost[before:], own_cost)
    missing = np.flatnonzero(np.isnan(cost))
    if len(missing):
        name = whole.link_name(whole.link_pairs()[missing[0]][0])
        raise InputError(config.cost, "cost", "one for every cable", f"none for {name}")
    limits = np.concatenate([np.full(before, np.inf), most])
    return Offer(whole, regular, cost, limits, tuple(range(before, len(limits))))


def failures_of(config: UpgradeOptions, topology: Topology) -> list[Failure]:
    """The failures beside the network without failure.

    Raises:
        InputError: a fault in the file of groups.
    """
    cables = cable_failures(topology) if config.failures != "none" else []
    failures = list(cables)
    if config.failures == "pairs":
        failures += pair_failures(cables, {one.name: 0.0 for one in cables}, 0)
    if config.groups is not None:
        failures += group_failures(load_groups(config.groups, topology))
    return failures


def hose_of(
    config: UpgradeOptions, topology: Topology, pairs: IntArray, matrices: FloatArray
) -> Hose:
    """The hose of a file, or of the peaks of matrices (M, D), times the growth.

    Raises:
        InputError: a fault in the file.
    """
    if config.hose is None:
        peaks = Hose.of_history(pairs, matrices, topology.num_nodes)
        return Hose(pairs, config.growth * peaks.out, config.growth * peaks.into)
    limits = np.full((2, topology.num_nodes), np.nan)
    rows = side_tables.read_side_table(config.hose, _HOSE)
    nodes = [row.node("node", topology) for row in rows]
    side_tables.require_once(rows, nodes, "each node")
    for row, node in zip(rows, nodes, strict=True):
        limits[:, node] = row.number("out", least=0.0), row.number("in", least=0.0)
    missing = np.flatnonzero(np.isnan(limits).any(0))
    if len(missing):
        raise InputError(
            str(config.hose),
            "node",
            "limits of every node",
            f"none of {topology.node_names[missing[0]]}",
        )
    return Hose(pairs, config.growth * limits[0], config.growth * limits[1])


def _costs(text: str, topology: Topology) -> FloatArray:
    """(C,) cost of a Gbit/s on each pair of links; NaN where a file says none.

    Raises:
        InputError: a file with a cost that is not above 0, or of an unknown cable.
    """
    pairs = topology.link_pairs()
    if text == "capacity":
        return np.ones(len(pairs))
    if text == "length":
        return np.array([float(topology.latency[links].min()) for links in pairs])
    number = {link: c for c, links in enumerate(pairs) for link in links}
    cost = np.full(len(pairs), np.nan)
    if not Path(text).is_file():
        expected = "capacity, length, or a table (.csv, .xlsx) of source, target, cost"
        raise InputError("--cost", "", expected, repr(text))
    rows = side_tables.read_side_table(text, (side_tables.SOURCE, side_tables.TARGET, _COST))
    found = [
        [number[link] for link in topology.find_links(row.text("source"), row.text("target"))]
        for row in rows
    ]
    side_tables.require_once(
        rows, map(tuple, found), "each cable", [row.number("cost") for row in rows]
    )
    for row, cables in zip(rows, found, strict=True):
        cost[cables] = row.number("cost")
    return cost


def _with_candidates(path: str, topology: Topology) -> tuple[Topology, FloatArray, FloatArray]:
    """The network with new cables, (n,) their costs, NaN where none is given, and (n,) their
    limits.
    """
    taken = {tuple(sorted(one)) for one in _ends(topology)}
    ends, latency, cost, most = [], [], [], []
    for row in side_tables.read_side_table(path, _CANDIDATE):
        pair = [row.node("source", topology), row.node("target", topology)]
        key = (min(pair), max(pair))
        if pair[0] == pair[1] or key in taken:
            found = f"{row.text('source')} - {row.text('target')}"
            raise InputError(row.where, "", "two nodes without a cable between them", found)
        taken.add(key)
        ends.append(pair)
        latency.append(row.number("latency"))
        has_cost = row.values.get("cost") is not None
        cost.append(row.number("cost") if has_cost else math.nan)
        has_limit = row.values.get("most") is not None
        most.append(row.number("most") if has_limit else math.inf)
    if not ends:
        raise InputError(path, "rows", "at least one cable", "none")
    both = np.array(ends, dtype=topology.link_source.dtype)
    capacity = float(np.median(topology.capacity[topology.capacity > 0]))
    new = np.repeat(np.array(latency), 2)
    whole = dataclasses.replace(
        topology,
        link_source=np.concatenate([topology.link_source, both.reshape(-1)]),
        link_target=np.concatenate([topology.link_target, both[:, ::-1].reshape(-1)]),
        capacity=np.concatenate([topology.capacity, np.full(len(new), capacity)]),
        latency=np.concatenate([topology.latency, new]),
        metric=None
        if topology.metric is None
        else np.concatenate(
            [topology.metric, np.maximum(1, np.round(new)).astype(topology.metric.dtype)]
        ),
        te_metric=None if topology.te_metric is None else np.pad(topology.te_metric, (0, len(new))),
        affinities=(*topology.affinities, *[frozenset[str]()] * len(new))
        if topology.affinities
        else (),
    )
    return whole, np.array(cost), np.array(most)


def _ends(topology: Topology) -> Iterator[tuple[int, int]]:
    yield from zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True)


_ROUNDING = 1e-9  # Gbit/s, up to which nothing is bought
Notify = Callable[[str], None]
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, eq=False)
class Question:
    """Network with candidate cables, the matrices and failures to plan for, and the settings.

    Attributes:
        num_matrices: number of matrices, but for those that --replay holds back.
        rows: numbers of those that are planned for.
        matrices: (M, D) Gbit/s of these.
        failed: steps after the search that failed, and why.
        proves: whether the plan carries a proof of its bound.
    """

    config: UpgradeOptions
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
    proves: bool = False

    def scenarios(
        self, matrices: FloatArray, failures: Sequence[Failure]
    ) -> tuple[Scenarios, dict[int, list[int]]]:
        """Matrices (M, D), as they are, under no failure and under each."""
        return scenarios_of(
            self.problem,
            matrices,
            [one.links for one in failures],
            self.offer.cost,
            self.config.max_utilisation,
            regular=self.offer.regular,
            most=self.offer.most,
            max_latency=self.instance.max_latency,
        )

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
        self.notify(f"round {number}: cost {cost:.6g}, at least {rounding.at_least(bound)}")


def load_question(topology: Any, traffic: Any, config: UpgradeOptions, notify: Notify) -> Question:
    """Network, traffic, paths over candidate cables, failures.

    Args:
        topology: the network, or a file or name.
        traffic: its matrices, or a file or name.
        config: what is planned for, and what can be bought.
        notify: called with the progress.
    """
    network, given = load_network(topology, traffic, config.program, notify)
    if config.demands == "hose":  # any two nodes may exchange traffic, whatever pairs the file has
        given = given.over(all_pairs(network))

    # The IGP's routing asks no candidate paths: one a demand is enough, unless demands are
    # calibrated over them.
    is_igp = config.routing == "ecmp" and config.calibrate is None and config.paths is None
    chosen = dataclasses.replace(config.program, num_paths=1 if is_igp else config.num_paths)
    deadline = seconds(config.deadline, "--deadline") if config.deadline else math.inf
    first = given.part(0, planned_matrices(given, config))
    instance = instance_of(network, first, chosen, notify, deadline)
    bought = offer(config, instance.topology)
    if bought.candidates:
        paths = _with_candidate_paths(config, instance.paths, bought.topology)
        instance = dataclasses.replace(instance, topology=bought.topology, paths=paths)
    scaled = instance.traffic
    count = scaled.num_matrices
    rows = np.unique(np.linspace(0, count - 1, min(count, config.matrices or count)).astype(int))
    if config.demands != "matrices":
        rows = np.arange(count)
    factor = 1.0
    if config.calibrate is not None and given.num_matrices:
        raw = given.read([0]).sum()
        factor = float(scaled.read([0]).sum() / raw) if raw > 0 else 1.0
    whole = given if factor == 1.0 else given.scaled(factor)
    instance = dataclasses.replace(instance, traffic=whole)
    matrices, failures = whole.read(rows), failures_of(config, bought.topology)
    instance = instance.surviving(
        [one.links for one in failures], notify
    )  # once, not for each block of matrices
    return Question(
        config,
        instance,
        bought,
        instance.problem(matrices[:1]),
        count,
        rows,
        matrices,
        failures,
        instance.end,
        notify,
    )


def _with_candidate_paths(config: UpgradeOptions, paths: PathSet, topology: Topology) -> PathSet:
    """The candidate paths without new cables, and those that a search with them finds: no new cable
    is presumed.

    The links of new cables are the last ones of ``topology``, so that the numbers of the others
    stay.
    """
    found = compute_paths(
        topology,
        paths.pairs,
        num_paths=config.first_paths,
        method=config.path_method,
        weight=config.path_weight,
        cache=False,
    )
    paths = dataclasses.replace(
        paths, num_links=topology.num_links, topology_key=topology.graph_key()
    )
    more = {
        d: [found.links_of(d, k) for k in range(found.num_paths) if found.mask[d, k]]
        for d in range(found.num_demands)
    }
    return with_listed_paths(paths, more)


def planned_matrices(traffic: TrafficMatrices, config: UpgradeOptions) -> int:
    """Number of matrices that the plan is made for."""
    return max(1, round((1 - config.replay) * traffic.num_matrices))


def purchases(
    question: Question, bought: FloatArray, modules: Int64Array | None, by: str = ""
) -> list[Purchase]:
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
                capacity=float(question.offer.regular[forth].sum()),
                bought=float(bought[pairs].sum()),
                cost=float(cost[pairs].sum()),
                by=by,
                modules=" + ".join(
                    f"{n} x {size:g}" for n, (size, _) in zip(count, sizes, strict=False) if n
                ),
            )
        )
    return sorted(found, key=lambda one: -one.cost)
