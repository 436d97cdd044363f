"""Pydantic models of responses, as the API documents them.

Large bodies (allocations, paths, maps) are encoded without these models, since validation takes
time; tests check that they agree.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from teal.option import MAX_PATHS
from teal_serve.engine.requests import NetworkSpec

# Number that is null if it is infinite or unknown.
_OptionalNumber = float | None


class _ResponseModel(BaseModel):
    """Model that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid")


class Fault(_ResponseModel):
    """Body of every error response."""

    error: str = Field(description="Error code, for programs.")
    message: str = Field(description="Description of the error, for people.")


class NetworkNames(_ResponseModel):
    """Names of all networks."""

    networks: list[str]
    last_used: str | None = Field(description="Network of this process's last allocation.")


class ModelInfo(_ResponseModel):
    """Model for warm starts on large networks."""

    model: str = Field(description="Name or folder of the model; none without a model.")
    loaded_version: str = Field(description="Version of the loaded weights.")
    loaded_at: float = Field(description="Load time, seconds since 1970.")
    last_error: str = Field(description="Reason why a newer model in the folder is not used.")
    solver: str = Field(description="Solver of requests that name none.")


class NodeInfo(_ResponseModel):
    """Node of a network."""

    id: str
    pos: list[_OptionalNumber] = Field(description="[longitude, latitude], null where unknown.")


class LinkInfo(_ResponseModel):
    """Directed link of a network; answers refer to links by their index in this list."""

    source: str
    target: str
    capacity: float = Field(description="Registered capacity, Gbit/s.")
    in_force: float = Field(description="Current capacity, Gbit/s; 0 if down.")


class NetworkInfo(_ResponseModel):
    """Description and state of a network."""

    name: str
    state: Literal["computing", "ready", "failed"]
    generation: str = Field(
        description="Identifier of the registration; changes when the name is registered again."
    )
    num_paths: int | Literal["auto"]
    max_paths: int = Field(description=MAX_PATHS.text)
    path_method: str
    path_weight: str
    objective: str
    gap: float
    groups: list[str] = Field(default=[], description="Names of the shared-risk groups.")
    paths_share: float = Field(
        default=0.0, description="While computing: fraction of the sources with finished paths."
    )
    paths_estimated_s: _OptionalNumber = Field(
        default=None, description="Estimated time of the path search, s; null without an estimate."
    )
    error: str | None = Field(default=None, description="Reason of the failure, if failed.")
    warning: str | None = Field(
        default=None,
        description="Why link changes in effect are not stored, or paths cannot be computed now.",
    )
    demands: int | None = Field(default=None, description="Number of pairs of nodes.")
    paths: int | None = Field(default=None, description="Number of candidate paths.")
    nodes: list[NodeInfo] | None = None
    links: list[LinkInfo] | None = None


class Routes(_ResponseModel):
    """Candidate paths of all pairs of nodes."""

    pairs: list[tuple[str, str]] = Field(
        description="Source and target, in the order of rates and splits."
    )
    paths: list[list[list[str]]] = Field(
        description="Paths of each pair, each a list of its nodes."
    )


class Drawing(_ResponseModel):
    """Coordinates and links for a drawing of the network."""

    nodes: list[str] = Field(description="Names of the nodes.")
    x: list[float] = Field(description="Horizontal coordinate of each node.")
    y: list[float] = Field(description="Vertical coordinate of each node.")
    source: list[int] = Field(description="Index of the source node of each link.")
    target: list[int] = Field(description="Index of the target node of each link.")
    capacity: list[float] = Field(description="Registered capacity of each link, Gbit/s.")


class PathShare(_ResponseModel):
    """Path with traffic, and its part of the demand."""

    nodes: list[str] = Field(description="Nodes of the path, from source to target.")
    links: list[int] = Field(
        description="Indices of the path's links, which distinguish parallel links."
    )
    split: float | None = Field(default=None, description="Fraction of the demand on this path.")
    weight: int | None = Field(
        default=None, description="Integer weight instead of the split, if entries were requested."
    )


class DemandAnswer(_ResponseModel):
    """Allocation of a demand."""

    source: str
    target: str
    of_class: str | None = Field(
        default=None, alias="class", description="Demand class, if classes were given."
    )
    demand: float = Field(description="Requested rate, Gbit/s.")
    admitted: float = Field(description="Carried rate, Gbit/s; the remaining demand is shed.")
    paths: list[PathShare]


class LinkUse(_ResponseModel):
    """Utilisation of a link."""

    link: int = Field(description="Index in the network's links.")
    source: str
    target: str
    utilisation: _OptionalNumber = Field(description="Load over current capacity.")


class _Line(_ResponseModel):
    """Certified figures of a class or level."""

    demand: float = Field(description="Total demand, Gbit/s.")
    value: float = Field(description="Carried rate, Gbit/s.")
    bound: float = Field(
        description="Certified upper bound on the carried rate, given the allocations of higher "
        "classes or lower levels."
    )
    gap: float = Field(description="Certified relative gap between value and bound.")
    satisfied_demand: float = Field(description="Served fraction of the demand; 1 without demand.")


class ClassAnswer(_Line):
    """Figures of a demand class."""

    of_class: str = Field(alias="class")


class LevelAnswer(_Line):
    """Certified figures of the demands with the same max-min fair rate."""

    level: float = Field(description="Fair rate of each of these demands, Gbit/s.")
    demands: int = Field(description="Number of demands at this level.")
    growth: _OptionalNumber = Field(
        description="Certified bound: no allocation gives all of these demands together more than "
        "this multiple of the level."
    )


class _Figures(_ResponseModel):
    """Certified figures of a matrix."""

    value: _OptionalNumber = Field(description="Value of the objective; Gbit/s for total_flow.")
    bound: _OptionalNumber = Field(
        description="Certified bound: no allocation over the candidate paths has a better value."
    )
    gap: _OptionalNumber = Field(description="Certified relative gap between value and bound.")
    satisfied_demand: _OptionalNumber = Field(description="Served fraction of the demand.")
    max_link_utilisation: _OptionalNumber = Field(description="Largest link utilisation.")
    status: str = Field(
        description="gap: the requested gap was reached. Else the reason why the "
        "search ended with the incumbent: deadline, iterations, or "
        "rounding. model: the gap of the model alone exceeds the "
        "requested gap. next: allocation for the next interval, with "
        "figures on the newest measured matrix."
    )
    classes: list[ClassAnswer] | None = Field(
        default=None,
        description="Figures of the classes, the highest priority first, if classes were given.",
    )
    moved: _OptionalNumber = Field(
        default=None,
        description="Moved fraction of the demand with a live path, under a churn limit.",
    )
    largest_share: _OptionalNumber = Field(
        default=None,
        description="Under least_cost, if not all demand can be carried: certified "
        "largest common served fraction. The status is then infeasible.",
    )
    levels: list[LevelAnswer] | None = Field(
        default=None,
        description="Under max_min, the fair-rate levels with the largest flow, ascending.",
    )


class NamedAllocation(_Figures):
    """Allocation of a matrix, by names."""

    shed: float = Field(description="Unserved demand, Gbit/s.")
    demands: list[DemandAnswer]
    utilisation: list[LinkUse]


class DenseAllocation(_Figures):
    """Allocation of a matrix, as arrays."""

    utilisation: list[_OptionalNumber] = Field(description="Utilisation of each link.")
    splits: list[list[float]] | None = Field(
        default=None,
        description="For each pair of nodes, the fraction of its demand on each of its paths.",
    )
    weights: list[list[int]] | None = Field(
        default=None,
        description="Instead of splits, integer weights by which the admitted demand of a pair is "
        "divided among its paths.",
    )
    admitted_share: list[float] | None = Field(
        default=None,
        description="With weights: served fraction of the demand of each pair of nodes.",
    )


class Limit(_ResponseModel):
    """Limit on the largest link utilisation of the next interval, relative to the optimum."""

    level: float = Field(description="Probability with which the limit holds.")
    ratio: _OptionalNumber = Field(
        description="Upper limit on realised over optimal largest utilisation; null until enough "
        "matrices are measured."
    )
    realised: _OptionalNumber = Field(
        description="Realised over optimal largest utilisation in the last allocated interval; "
        "null without one."
    )


class AllocationAnswer(_ResponseModel):
    """Answer to an allocation request, in JSON."""

    id: str = Field(
        description="Request id, as in X-Request-Id; GET .../allocations/{id} repeats the "
        "answer for a while."
    )
    allocations: list[NamedAllocation] | list[DenseAllocation] = Field(
        description="Allocation of each matrix."
    )
    queue_ms: float = Field(description="Time in the queue, ms.")
    solve_ms: float = Field(description="Time of the solver, ms.")
    solver: str = Field(
        description="Solver: model, model-pdhg (PDHG warm-started from the model), "
        "pdhg, or hedge for the next interval."
    )
    batch: int = Field(description="Number of matrices solved together.")
    trace: list[str] = Field(
        default_factory=list,
        description="How the batch was solved: for each engine that iterated its name, iterations, "
        "start (cold, warm, or from a model), and how many of the candidate paths it used if not "
        "all. Text for people; it may change.",
    )
    proof: str | None = Field(
        default=None,
        description=(
            "Path of a zip file that proves value and bound, if requested; kept as "
            "long as the answer."
        ),
    )
    time: str | None = Field(default=None, description="Time of the next interval, if requested.")
    limit: Limit | None = Field(default=None, description="Limit of the next interval.")


class Answered(_ResponseModel):
    """Figures of a recent answer."""

    id: str
    time: float = Field(description="Time of the answer, seconds since 1970.")
    queue_ms: float
    solve_ms: float
    deadline_ms: float = Field(description="Requested deadline, ms.")
    solver: str = Field(description="Solver: model, model-pdhg, pdhg or hedge.")
    batch: int
    trace: list[str] = Field(
        default_factory=list,
        description="Engines that solved the batch, with iterations and start.",
    )
    matrices: int
    gap: _OptionalNumber = Field(description="Largest gap of the request.")
    satisfied_demand: _OptionalNumber = Field(description="Mean over the request.")
    max_link_utilisation: _OptionalNumber = Field(description="In the last matrix of the request.")
    limit: _OptionalNumber = Field(
        default=None,
        description="For the next interval: upper limit on realised over optimal largest "
        "utilisation.",
    )
    realised: _OptionalNumber = Field(
        default=None,
        description="For the next interval: realised over optimal largest utilisation in the last "
        "allocated interval.",
    )
    classes: list[ClassAnswer] | None = Field(
        default=None, description="Figures of the classes, in the last matrix of the request."
    )
    moved: _OptionalNumber = Field(
        default=None,
        description="Moved fraction of the demand with a live path, in the last matrix, under a "
        "churn limit.",
    )
    largest_share: _OptionalNumber = Field(
        default=None,
        description="Certified largest common served fraction, in the last matrix, if not all "
        "demand can be carried under least_cost.",
    )
    levels: list[LevelAnswer] | None = Field(
        default=None, description="Fair-rate levels, in the last matrix of the request."
    )
    protect: str | None = Field(
        default=None,
        description="Failures that every flow survives (cables, groups), if requested.",
    )
    status: str


class RecentAllocations(_ResponseModel):
    """Recently answered requests."""

    allocations: list[Answered]
    utilisation: list[float] = Field(
        description="Utilisation of each link, in the last matrix of the last answer."
    )


class CountedInfo(_ResponseModel):
    """Figures of a matrix that was estimated from interface counters, or checked by them."""

    found_by: Literal["sent", "history", "tracked", "gravity"] = Field(
        description="Origin of the matrix: sent with the counters, or the starting point of its "
        "estimate."
    )
    total_gbps: float = Field(description="Total traffic of the matrix, Gbit/s.")
    unexplained: float = Field(
        description="Fraction of the counted traffic that the matrix does not explain."
    )
    replaced: int = Field(description="Number of counters that contradict all others.")
    alarm: bool = Field(
        description="Whether the counters contradict each other or the matrix, which is then not "
        "stored."
    )
    suspects: list[str]
    kept: bool = Field(description="Whether the matrix is stored.")


class MeasuredInfo(_ResponseModel):
    """Number and times of the measured matrices that the service stores."""

    matrices: int
    first: str | None = Field(description="Time of the oldest matrix, UTC.")
    last: str | None = Field(description="Time of the newest matrix, UTC.")
    interval_s: int = Field(description="Median seconds between matrices; 0 if unknown.")
    most: int = Field(description="Maximum number of matrices; the oldest are dropped.")
    counted: CountedInfo | None = Field(
        default=None, description="Estimate, if counters were sent."
    )


class Health(_ResponseModel):
    """Liveness of the process."""

    status: Literal["ok"]


class Readiness(_ResponseModel):
    """Readiness: the solver responds and, if any network is registered, one is ready; else 503."""

    status: Literal["ready"]
    networks: int
    warnings: dict[str, str] = Field(
        default={}, description="Warnings by network; see NetworkInfo."
    )


def network_settings(spec: NetworkSpec) -> dict[str, object]:
    """Return the settings of a registration that a network description repeats."""
    settings = spec.model_dump(mode="json", exclude={"topology", "groups", "weights", "functions"})
    return {**settings, "groups": list(spec.groups)}
