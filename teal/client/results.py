"""The answers of the service as objects."""

from __future__ import annotations

import dataclasses
from dataclasses import fields
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Node:
    """A node.

    Attributes:
        id: its name.
        pos: longitude and latitude, degrees; None where unknown.
    """

    id: str
    pos: tuple[float | None, float | None]


@dataclasses.dataclass(frozen=True)
class Link:
    """A directed link.

    Attributes:
        source: name of a node.
        target: name of a node.
        capacity: as registered, Gbit/s.
        in_force: capacity now, Gbit/s; 0 if the link is down.
    """

    source: str
    target: str
    capacity: float
    in_force: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """A registered network.

    Attributes:
        name: name of the network in the service.
        state: computing (its paths), ready, or failed.
        generation: changes when the name is registered again.
        objective, gap: defaults of allocations.
        num_paths, max_paths, path_method, path_weight: settings of the candidate paths.
        paths_share: while computing, share of the sources that have their paths.
        paths_estimated_s: estimate of the time for all paths, s; None if none was made.
        error: why it failed; None if it did not.
        warning: changes of links that are in force and could not be stored; None if there are none.
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
        """From the body of a response; fields that this version does not know are left out."""
        known = {field.name for field in dataclasses.fields(cls)}
        known_fields = {name: value for name, value in body.items() if name in known}
        known_fields["nodes"] = tuple(
            Node(str(node["id"]), tuple(node["pos"])) for node in body.get("nodes") or ()
        )
        known_fields["links"] = tuple(
            Link(link["source"], link["target"], link["capacity"], link["in_force"])
            for link in body.get("links") or ()
        )
        return cls(**known_fields)


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
    """The measured matrices that the service keeps.

    Attributes:
        matrices: their number.
        first, last: time of the oldest and of the newest, UTC; None without matrices.
        interval_s: usual time between two, s; 0 if unknown.
        most: number of matrices that are kept at most.
        counted: what counters said, if they were sent: found_by, total_gbps, unexplained, replaced,
            alarm, suspects, kept.
    """

    matrices: int
    first: np.datetime64 | None
    last: np.datetime64 | None
    interval_s: int
    most: int
    counted: dict[str, Any] | None = None

    @classmethod
    def of(cls, body: dict[str, Any]) -> Measured:
        """From the body of a response."""
        first, last = (
            None if body[name] is None else utc(body[name]) for name in ("first", "last")
        )
        return cls(
            body["matrices"], first, last, body["interval_s"], body["most"], body.get("counted")
        )


def utc(text: str) -> np.datetime64:
    """A time of the service, which ends with Z."""
    return np.datetime64(text.removesuffix("Z"), "s")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartResult:
    """A part of the demands in the allocation of a matrix.

    Attributes:
        demand: Gbit/s.
        value: Gbit/s that are carried.
        bound: certified bound on what the part can get beside what the parts before it have,
            Gbit/s.
        gap: certified relative gap between ``value`` and ``bound``.
    """

    demand: float
    value: float
    bound: float
    gap: float

    @classmethod
    def of(cls, body: dict[str, Any]) -> Self:
        """From a line of a response, in which the name of a class is ``class``."""
        return cls(
            **{
                field.name: body["class" if field.name == "name" else field.name]
                for field in fields(cls)
            }
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassResult(PartResult):
    """A class of demands; those before it are the higher ones.

    Attributes:
        name: name of the class.
    """

    name: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class LevelResult(PartResult):
    """The demands that a level of fair rates holds; those before it are the lower levels.

    Attributes:
        level: Gbit/s.
        demands: their number.
        growth: certified: all of them together cannot have more than this many times the level;
            None without a bound.
    """

    level: float
    demands: int
    growth: float | None


@dataclasses.dataclass(frozen=True, eq=False)
class ServedAllocation:
    """The allocation of one request.

    B is the number of matrices, D of demands, K of paths per demand, E of directed links.

    Attributes:
        splits: (B, D, K) share of each demand on each of its paths; ``weights`` / entries *
            ``admitted_share`` where weights were requested.
        weights: (B, D, K) whole numbers that sum to ``entries`` or 0; None unless ``entries`` was
            given.
        admitted_share: (B, D) share of each demand that may be sent, which the weights divide; None
            without weights.
        utilisation: (B, E) load / capacity of each link.
        value: (B,) value of the objective; Gbit/s for total flow.
        bound: (B,) certified bound of the optimal value, in the unit of ``value``.
        gap: (B,) certified relative gap between ``value`` and ``bound``.
        satisfied_demand: (B,) share of the demand that is carried.
        max_link_utilisation: (B,) largest utilisation of a link.
        status: (B,) "gap" where the requested gap was reached; else what ended the search:
            "deadline", "iterations", or "rounding" if the gap was missed by rounding only, or
            "model" if that of the model alone is wider; "next" for an interval that is not known
            yet, whose figures are those that the splits would have with the newest measured matrix.
        queue_ms: time for which the request waited in the service, ms.
        solve_ms: time of the engine, ms.
        solver: what computed it: model, model-pdhg, pdhg, or hedge for an interval that is not
            known yet.
        batch: number of matrices that the engine solved in the same batch.
        id: identifier of the request; the service repeats the answer under it for a while.
        time: time of the interval that the splits are for, UTC; None if matrices were sent.
        limit: limit of realised over optimal largest utilisation in that interval, to hold with
            probability ``level``; None if unknown.
        level: see ``limit``.
        realised: over optimal largest utilisation in the last interval that was allocated for; None
            if unknown.
        classes: for each matrix the figures of its classes, the highest priority first; empty
            without classes.
        levels: under max_min, of each matrix the levels of rates that hold most flow, ascending;
            else empty.
        moved: (B,) of the demand that has a working path the share that moves; None without a limit
            on it.
        largest_share: (B,) under least_cost, the share of every demand that no allocation exceeds,
            NaN where all is carried; None under other objectives.
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
