"""Responses of the service as dataclasses."""

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
        warning: link changes in effect that could not be stored; None if all are stored.
        demands, paths: numbers of pairs of nodes and of candidate paths; None until ready.
        nodes, links: in the order of the service; empty until ready.
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
        """Network in a response body; unknown fields are ignored."""
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
        first, last: time of the oldest and of the newest, UTC; None without matrices.
        interval_s: median seconds between matrices; 0 if unknown.
        most: maximum number of matrices.
        counted: estimate from counters, if they were sent: found_by, total_gbps, unexplained,
            replaced, alarm, suspects, kept.
    """

    matrices: int
    first: np.datetime64 | None
    last: np.datetime64 | None
    interval_s: int
    most: int
    counted: dict[str, Any] | None = None

    @classmethod
    def of(cls, body: dict[str, Any]) -> Measured:
        """Measured matrices in a response body."""
        first, last = (
            None if body[name] is None else utc(body[name]) for name in ("first", "last")
        )
        return cls(
            body["matrices"], first, last, body["interval_s"], body["most"], body.get("counted")
        )


def utc(text: str) -> np.datetime64:
    """Time of the service, which ends with Z."""
    return np.datetime64(text.removesuffix("Z"), "s")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartResult:
    """Certified figures of a part of the demands, a class or a level.

    Attributes:
        demand: Gbit/s.
        value: carried rate, Gbit/s.
        bound: certified bound on the value, next to the allocations of preceding parts, Gbit/s.
        gap: certified relative gap between ``value`` and ``bound``.
    """

    demand: float
    value: float
    bound: float
    gap: float

    @classmethod
    def of(cls, body: dict[str, Any]) -> Self:
        """Figures in a response; the name of a class is its field ``class``."""
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
    """Figures of the demands that a level of fair rates limits; preceding levels are lower.

    Attributes:
        level: Gbit/s.
        demands: number of demands at this level.
        growth: certified bound: no allocation gives all of them more than this multiple of the
            level; None without a bound.
    """

    level: float
    demands: int
    growth: float | None


@dataclasses.dataclass(frozen=True, eq=False)
class ServedAllocation:
    """Allocation of one request.

    B is the number of matrices, D of demands, K of paths per demand, E of directed links.

    Attributes:
        splits: (B, D, K) split ratios of each demand; ``weights`` / entries * ``admitted_share`` if
            weights were requested.
        weights: (B, D, K) integers that sum to ``entries`` or 0; None unless ``entries`` was given.
        admitted_share: (B, D) served fraction of each demand, which the weights divide; None
            without weights.
        utilisation: (B, E) load / capacity of each link.
        value: (B,) value of the objective; Gbit/s for total flow.
        bound: (B,) certified bound of the optimal value, in the unit of ``value``.
        gap: (B,) certified relative gap between ``value`` and ``bound``.
        satisfied_demand: (B,) served fraction of the demand.
        max_link_utilisation: (B,) largest link utilisation.
        status: (B,) "gap" if the requested gap was reached; else the reason why the search ended:
            "deadline", "iterations", "rounding" if only rounding misses the gap, or "model" if the
            gap of the model alone is larger; "next" for an interval that is not known yet, with the
            figures of the splits on the newest measured matrix.
        queue_ms: time in the queue, ms.
        solve_ms: time of the solver, ms.
        solver: model, model-pdhg, pdhg, or hedge for an interval that is not known yet.
        batch: number of matrices solved in the same batch.
        id: identifier of the request; the service repeats the answer under it for a while.
        time: time of the interval of the splits, UTC; None if matrices were sent.
        limit: limit of realised over optimal largest utilisation in that interval, which holds with
            probability ``level``; None if unknown.
        level: see ``limit``.
        realised: realised over optimal largest utilisation in the last allocated interval; None if
            unknown.
        classes: figures of the classes of each matrix, the highest priority first; empty without
            classes.
        levels: under max_min, the levels of fair rates with most flow of each matrix, ascending;
            else empty.
        moved: (B,) moved fraction of the demand with a working path; None without a churn limit.
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
