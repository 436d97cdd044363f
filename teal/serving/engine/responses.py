"""Pydantic models of responses, as the API documents them.

Large bodies (allocations, paths, maps) are written without these models; tests hold the two
together.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from teal.option import MAX_PATHS
from teal.serving.engine.requests import NetworkSpec

# Null if infinite or unknown.
_OptionalNumber = float | None


class _ResponseModel(BaseModel):
    """Model that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid")


class Fault(_ResponseModel):
    """Body of every error."""

    error: str = Field(description="Error code for programs.")
    message: str = Field(description="Message for people.")


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
    """A node."""

    id: str
    pos: list[_OptionalNumber] = Field(description="[longitude, latitude], null where unknown.")


class LinkInfo(_ResponseModel):
    """A link; answers refer to links by index in this list."""

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
    error: str | None = Field(default=None, description="Reason of the failure.")
    warning: str | None = Field(
        default=None, description="Link changes in effect that could not be stored."
    )
    demands: int | None = Field(default=None, description="Number of pairs of nodes.")
    paths: int | None = None
    nodes: list[NodeInfo] | None = None
    links: list[LinkInfo] | None = None


class Routes(_ResponseModel):
    """Candidate paths."""

    pairs: list[tuple[str, str]] = Field(
        description="Source and target, in the order of rates and splits."
    )
    paths: list[list[list[str]]] = Field(description="Paths of each pair, node by node.")


class Drawing(_ResponseModel):
    """Coordinates and links for a drawing."""

    nodes: list[str]
    x: list[float]
    y: list[float]
    source: list[int]
    target: list[int]
    capacity: list[float]


class PathShare(_ResponseModel):
    """A path with traffic."""

    nodes: list[str]
    links: list[int] = Field(
        description="Indices of the network's links, which distinguish parallel links."
    )
    split: float | None = Field(default=None, description="Share of the demand.")
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
    demand: float = Field(description="Gbit/s.")
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

    demand: float = Field(description="Gbit/s.")
    value: float = Field(description="Carried rate, Gbit/s.")
    bound: float = Field(
        description="Certified bound on the value, next to the allocations of higher classes "
        "or lower levels."
    )
    gap: float = Field(description="Certified, between value and bound.")
    satisfied_demand: float = Field(description="Served fraction of the demand; 1 without demand.")


class ClassAnswer(_Line):
    """Figures of a demand class."""

    of_class: str = Field(alias="class")


class LevelAnswer(_Line):
    """Figures of the demands that a level of fair rates limits."""

    level: float = Field(description="Gbit/s.")
    demands: int = Field(description="Number of demands at this level.")
    growth: _OptionalNumber = Field(
        description="Certified: no allocation gives all of them together more than this "
        "multiple of the level."
    )


class _Figures(_ResponseModel):
    """Certified figures of a matrix."""

    value: _OptionalNumber = Field(description="Value of the objective; Gbit/s for total_flow.")
    bound: _OptionalNumber = Field(
        description="Certified: no allocation over these paths is better."
    )
    gap: _OptionalNumber = Field(description="Certified, between value and bound.")
    satisfied_demand: _OptionalNumber
    max_link_utilisation: _OptionalNumber
    status: str = Field(
        description="gap: the requested gap was reached. Else the reason why the "
        "search ended with the incumbent: deadline, iterations, or "
        "rounding. model: the gap of the model alone exceeds the "
        "requested gap. next: for an interval that is not known yet, "
        "figures by the newest measured matrix."
    )
    classes: list[ClassAnswer] | None = Field(
        default=None,
        description="Figures of the classes, the highest priority first, if classes were given.",
    )
    moved: _OptionalNumber = Field(
        default=None,
        description=("Moved fraction of the demand with a working path, under a churn limit."),
    )
    largest_share: _OptionalNumber = Field(
        default=None,
        description="Under least_cost, if not all demand can be carried: certified "
        "largest common served fraction. The status is then infeasible.",
    )
    levels: list[LevelAnswer] | None = Field(
        default=None, description="Under max_min, the levels with most flow, ascending."
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
        default=None, description="Split ratios of all pairs of nodes, on each path."
    )
    weights: list[list[int]] | None = Field(
        default=None,
        description="Integer weights instead of splits: division of the admitted demand among"
        " paths.",
    )
    admitted_share: list[float] | None = Field(
        default=None,
        description=("With weights: served fraction of the demand, of all pairs of nodes."),
    )


class Limit(_ResponseModel):
    """Limit of the next interval's largest utilisation, relative to its optimum."""

    level: float = Field(description="Probability with which the limit holds.")
    ratio: _OptionalNumber = Field(
        description="Limit of realised over optimal largest utilisation; null until enough is"
        " measured."
    )
    realised: _OptionalNumber = Field(
        description="That ratio in the last allocated interval; null without one."
    )


class AllocationAnswer(_ResponseModel):
    """Answer to a request in JSON."""

    id: str = Field(
        description="Request id, as in X-Request-Id; GET .../allocations/{id} repeats the "
        "answer for a while."
    )
    allocations: list[NamedAllocation] | list[DenseAllocation] = Field(description="One a matrix.")
    queue_ms: float = Field(description="Time in the queue, ms.")
    solve_ms: float = Field(description="Time of the solver, ms.")
    solver: str = Field(
        description="Solver: model, model-pdhg (PDHG warm-started from the model), "
        "pdhg, or hedge for the next interval."
    )
    batch: int = Field(description="Number of matrices solved together.")
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
    solver: str = Field(description="See AllocationAnswer.")
    batch: int
    matrices: int
    gap: _OptionalNumber = Field(description="Largest gap of the request.")
    satisfied_demand: _OptionalNumber = Field(description="Mean over the request.")
    max_link_utilisation: _OptionalNumber = Field(description="In the last matrix of the request.")
    limit: _OptionalNumber = Field(
        default=None, description="Ratio of Limit, for an allocation for the next interval."
    )
    realised: _OptionalNumber = Field(default=None, description="See Limit.")
    classes: list[ClassAnswer] | None = Field(
        default=None, description="In the last matrix of the request."
    )
    moved: _OptionalNumber = Field(
        default=None, description="See NamedAllocation, in the last matrix."
    )
    largest_share: _OptionalNumber = Field(
        default=None, description="See NamedAllocation, in the last matrix."
    )
    levels: list[LevelAnswer] | None = Field(
        default=None, description="Levels of fair rates, in the last matrix."
    )
    protect: str | None = Field(
        default=None, description="Failures that promises survive, if requested."
    )
    status: str


class RecentAllocations(_ResponseModel):
    """Recently answered requests."""

    allocations: list[Answered]
    utilisation: list[float] = Field(
        description="Utilisation of each link, in the last matrix of all."
    )


class CountedInfo(_ResponseModel):
    """Estimate from the counters of an interval."""

    found_by: Literal["sent", "history", "tracked", "gravity"] = Field(
        description="Whether the matrix was sent, or the start of its estimate."
    )
    total_gbps: float
    unexplained: float = Field(
        description="Fraction of the counted traffic that the matrix does not explain."
    )
    replaced: int = Field(description="Number of counters that contradict all others.")
    alarm: bool = Field(
        description="Counters contradict each other, or the matrix, which is then not stored."
    )
    suspects: list[str]
    kept: bool = Field(description="Whether the matrix is stored, so that allocations follow it.")


class MeasuredInfo(_ResponseModel):
    """Stored measured matrices."""

    matrices: int
    first: str | None = Field(description="Time of the oldest.")
    last: str | None = Field(description="Time of the newest.")
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
    """Fields of :class:`NetworkInfo` that repeat the registration."""
    settings = spec.model_dump(mode="json", exclude={"topology", "groups", "weights", "functions"})
    return {**settings, "groups": list(spec.groups)}
