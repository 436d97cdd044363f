"""Results of the client's methods: dataclasses for networks, measurements and allocations."""

from __future__ import annotations

import dataclasses
from dataclasses import fields
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Node:
    """Node of a network.

    Attributes:
        id: name of the node.
        pos: longitude and latitude, degrees; None if unknown.
    """

    id: str
    pos: tuple[float | None, float | None]


@dataclasses.dataclass(frozen=True)
class Link:
    """Directed link of a network.

    Attributes:
        source: name of a node.
        target: name of a node.
        capacity: registered capacity, Gbit/s.
        in_force: current capacity, Gbit/s; 0 if the link is down.
    """

    source: str
    target: str
    capacity: float
    in_force: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """Registered network.

    Attributes:
        name: name of the network in the service.
        state: computing (its paths), ready, or failed.
        generation: identifier of the registration; changes when the name is registered again.
        objective, gap: defaults of allocations.
        num_paths, max_paths, path_method, path_weight: settings of the candidate paths.
        paths_share: while computing, fraction of the sources with finished paths.
        paths_estimated_s: estimated time of the path search, s; None without an estimate.
        error: reason of the failure; None if it did not fail.
        warning: reason why link changes in effect are not stored, or why paths cannot be computed
            now; None without a problem.
        demands, paths: numbers of pairs of nodes and of candidate paths; None until ready.
        nodes, links: nodes, and directed links in the order of their indices; empty until ready.
    """

    name: str
    state: Literal["computing", "ready", "failed"]
    generation: str
    objective: str
    gap: float
    num_paths: int | Literal["auto"]
    max_paths: int
    path_method: str
    path_weight: str
    paths_share: float = 0.0
    paths_estimated_s: float | None = None
    error: str | None = None
    warning: str | None = None
    demands: int | None = None
    paths: int | None = None
    nodes: tuple[Node, ...] = ()
    links: tuple[Link, ...] = ()

    @classmethod
    def of(cls, body: dict[str, Any]) -> Network:
        """Build a network from a JSON response; unknown fields of newer services are ignored."""
        field_names = {field.name for field in dataclasses.fields(cls)}
        values = {name: value for name, value in body.items() if name in field_names}
        values["nodes"] = tuple(
            Node(str(node["id"]), tuple(node["pos"])) for node in body.get("nodes") or ()
        )
        values["links"] = tuple(
            Link(link["source"], link["target"], link["capacity"], link["in_force"])
            for link in body.get("links") or ()
        )
        return cls(**values)


@dataclasses.dataclass(frozen=True)
class Paths:
    """Candidate paths.

    Attributes:
        pairs: (D, 2) names of source and target, in the order of rates and splits.
        paths: for each pair its paths, each a list of the names of its nodes.
    """

    pairs: list[tuple[str, str]]
    paths: list[list[list[str]]]


@dataclasses.dataclass(frozen=True)
class Measured:
    """Measured matrices that the service stores.

    Attributes:
        matrices: number of matrices.
        first, last: time of the oldest and of the newest matrix, UTC; None without matrices.
        interval_s: median interval between matrices, seconds; 0 if unknown.
        most: maximum number of matrices that the service stores.
        counted: figures of the estimate, if counters were sent (fields found_by, total_gbps,
            unexplained, replaced, alarm, suspects, kept); None otherwise.
    """

    matrices: int
    first: np.datetime64 | None
    last: np.datetime64 | None
    interval_s: int
    most: int
    counted: dict[str, Any] | None = None

    @classmethod
    def of(cls, body: dict[str, Any]) -> Measured:
        """Build the summary of the stored measured matrices from a JSON response."""
        first, last = (
            None if body[name] is None else utc(body[name]) for name in ("first", "last")
        )
        return cls(
            body["matrices"], first, last, body["interval_s"], body["most"], body.get("counted")
        )


def utc(text: str) -> np.datetime64:
    """Parse a UTC time of the service, such as ``2024-01-31T12:00:00Z``."""
    return np.datetime64(text.removesuffix("Z"), "s")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartResult:
    """Certified figures of the demands of a class or level.

    Attributes:
        demand: total demand, Gbit/s.
        value: carried rate, Gbit/s.
        bound: certified upper bound on the carried rate, given the allocations of all preceding
            classes or levels, Gbit/s.
        gap: certified relative gap between ``value`` and ``bound``.
    """

    demand: float
    value: float
    bound: float
    gap: float

    @classmethod
    def of(cls, body: dict[str, Any]) -> Self:
        """Build the figures from a JSON response; its field ``class`` is the name of a class."""
        return cls(
            **{
                field.name: body["class" if field.name == "name" else field.name]
                for field in fields(cls)
            }
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassResult(PartResult):
    """Figures of a demand class; preceding classes have higher priority.

    Attributes:
        name: name of the class.
    """

    name: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class LevelResult(PartResult):
    """Certified figures of the demands with the same max-min fair rate; levels are ascending.

    Attributes:
        level: fair rate of each of these demands, Gbit/s.
        demands: number of demands at this level.
        growth: certified bound: no allocation gives all of these demands more than this multiple of
            the level; None without a bound.
    """

    level: float
    demands: int
    growth: float | None


@dataclasses.dataclass(frozen=True, eq=False)
class ServedAllocation:
    """Allocation of the matrices of one request, with certified figures.

    Axes: B matrices, D demands, K candidate paths of a demand, E directed links.

    Attributes:
        splits: (B, D, K) fraction of each demand on each of its paths; if ``entries`` was given,
            ``weights`` / entries * ``admitted_share``.
        weights: (B, D, K) integer weights of the paths, which sum to ``entries`` or 0; None unless
            ``entries`` was given.
        admitted_share: (B, D) served fraction of each demand; None without weights.
        utilisation: (B, E) load / capacity of each link.
        value: (B,) value of the objective; Gbit/s for total flow.
        bound: (B,) certified bound of the optimal value, in the unit of ``value``.
        gap: (B,) certified relative gap between ``value`` and ``bound``.
        satisfied_demand: (B,) served fraction of the demand.
        max_link_utilisation: (B,) largest link utilisation.
        status: (B,) "gap" if the requested gap was reached; else the reason why the search ended:
            "deadline", "iterations", "rounding" if only rounding misses the gap, or "model" if the
            gap of the model alone is larger.  "next" for the interval after the newest measured
            matrix; the figures then evaluate the splits on that matrix.
        queue_ms: time in the queue, ms.
        solve_ms: time of the solver, ms.
        solver: model, model-pdhg, pdhg, or hedge (allocation for the next interval).
        batch: number of matrices solved in the same batch.
        trace: turns of the engines that solved the batch: name, iterations, start, and the columns
            where a part of them was selected.
        id: identifier of the answer; the service keeps the answer under it for a while.
        time: time of the next interval, UTC; None if matrices were sent.
        limit: upper limit on the ratio of realised to optimal largest utilisation in the next
            interval; None if unknown.
        level: probability with which ``limit`` holds.
        realised: ratio of realised to optimal largest utilisation in the last allocated interval;
            None if unknown.
        classes: figures of the classes of each matrix, the highest priority first; empty without
            classes.
        levels: under max_min, the fair-rate levels with the largest flow of each matrix, ascending;
            else empty.
        moved: (B,) moved fraction of the demand with a live path; None without a churn limit.
        largest_share: (B,) under least_cost, largest common served fraction, NaN where all demand
            is carried; None under other objectives.
    """

    splits: Array
    weights: Array | None
    utilisation: Array
    value: Array
    bound: Array
    gap: Array
    satisfied_demand: Array
    max_link_utilisation: Array
    status: tuple[str, ...]
    queue_ms: float
    solve_ms: float
    solver: str
    batch: int
    id: str = ""
    time: np.datetime64 | None = None
    limit: float | None = None
    level: float | None = None
    realised: float | None = None
    classes: tuple[tuple[ClassResult, ...], ...] = ()
    levels: tuple[tuple[LevelResult, ...], ...] = ()
    moved: Array | None = None
    largest_share: Array | None = None
    admitted_share: Array | None = None
    trace: tuple[str, ...] = ()
