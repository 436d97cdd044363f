"""The responses of the service, as the API documents them.

Bodies that may be large (allocations, paths, maps) are written without these models, which describe
them; tests hold the two together.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from teal.option import MAX_PATHS
from teal.serving.engine.requests import NetworkSpec

_Number = float | None  # null where it is infinite or unknown


class _Said(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Fault(_Said):
    """Every error."""

    error: str = Field(description="A word that programs can tell faults apart by.")
    message: str = Field(description="A line for people.")


class NetworkNames(_Said):
    """All networks."""

    networks: list[str]
    last_used: str | None = Field(description="The one that this process has allocated for last.")


class ModelInfo(_Said):
    """The model that large networks are started from."""

    model: str = Field(description="Name or folder; none without a model.")
    loaded_version: str = Field(description="Of the weights in use.")
    loaded_at: float = Field(description="Seconds since 1970.")
    last_error: str = Field(description="Why a newer model in the folder is not used.")
    solver: str = Field(description="Solver of requests that name none.")


class NodeInfo(_Said):
    """A node."""

    id: str
    pos: list[_Number] = Field(description="[longitude, latitude], null where unknown.")


class LinkInfo(_Said):
    """A link; links of answers are numbers of this list."""

    source: str
    target: str
    capacity: float = Field(description="As registered, Gbit/s.")
    in_force: float = Field(description="Now, Gbit/s; 0: down.")


class NetworkInfo(_Said):
    """A network, and whether it is ready."""

    name: str
    state: Literal["computing", "ready", "failed"]
    generation: str = Field(description="Changes when the name is registered again.")
    num_paths: int | Literal["auto"]
    max_paths: int = Field(description=MAX_PATHS.text)
    path_method: str
    path_weight: str
    objective: str
    gap: float
    groups: list[str] = Field(default=[], description="Names of the groups of cables.")
    paths_share: float = Field(
        default=0.0, description="While computing: share of the sources that have their paths."
    )
    paths_estimated_s: _Number = Field(
        default=None, description="Estimate of the time for all paths, if it was made."
    )
    error: str | None = Field(default=None, description="Why it failed.")
    warning: str | None = Field(
        default=None, description="Changes of links that are in force and could not be stored."
    )
    demands: int | None = Field(default=None, description="Pairs of nodes.")
    paths: int | None = None
    nodes: list[NodeInfo] | None = None
    links: list[LinkInfo] | None = None


class Routes(_Said):
    """Candidate paths."""

    pairs: list[tuple[str, str]] = Field(
        description="Source and target, in the order of rates and splits."
    )
    paths: list[list[list[str]]] = Field(description="Of each pair its paths, node by node.")


class Drawing(_Said):
    """A network to be drawn."""

    nodes: list[str]
    x: list[float]
    y: list[float]
    source: list[int]
    target: list[int]
    capacity: list[float]


class PathShare(_Said):
    """A path that carries something."""

    nodes: list[str]
    links: list[int] = Field(
        description="Numbers of the network's links, which tell parallel links apart."
    )
    split: float | None = Field(default=None, description="Share of the demand.")
    weight: int | None = Field(
        default=None, description="In place of the split, if entries were asked for."
    )


class DemandAnswer(_Said):
    """A demand that was sent."""

    source: str
    target: str
    of_class: str | None = Field(default=None, alias="class", description="If classes were given.")
    demand: float = Field(description="Gbit/s.")
    admitted: float = Field(description="Gbit/s of it that are carried; the rest is shed.")
    paths: list[PathShare]


class LinkUse(_Said):
    """How full a link is."""

    link: int = Field(description="Number in the network's links.")
    source: str
    target: str
    utilisation: _Number = Field(description="Load over capacity in force.")


class _Line(_Said):
    demand: float = Field(description="Gbit/s.")
    value: float = Field(description="Gbit/s that are carried.")
    bound: float = Field(
        description="Certified, on the value beside what higher classes, or lower levels, have."
    )
    gap: float = Field(description="Certified, between value and bound.")
    satisfied_demand: float = Field(
        description="Share of the demand that is carried; 1 if there is none."
    )


class ClassAnswer(_Line):
    """A class of demands."""

    of_class: str = Field(alias="class")


class LevelAnswer(_Line):
    """The demands that a level of fair rates holds."""

    level: float = Field(description="Gbit/s.")
    demands: int = Field(description="Number of demands that it holds.")
    growth: _Number = Field(
        description="Certified: all of them together cannot have more than this many times it."
    )


class _Figures(_Said):
    value: _Number = Field(description="Of the objective; Gbit/s for total_flow.")
    bound: _Number = Field(description="Certified: no allocation over these paths is better.")
    gap: _Number = Field(description="Certified, between value and bound.")
    satisfied_demand: _Number
    max_link_utilisation: _Number
    status: str = Field(
        description="gap: the target gap was reached. Else the best that was found until: "
        "deadline, iterations, or "
        "rounding. model: the gap of the model alone is wider than the target. next: for an "
        "interval that is not known "
        "yet, figures by the newest measured matrix."
    )
    classes: list[ClassAnswer] | None = Field(
        default=None, description="If classes were given, the highest first."
    )
    moved: _Number = Field(
        default=None,
        description=(
            "Of the demand that has a working path the share that moves, under a limit on it."
        ),
    )
    largest_share: _Number = Field(
        default=None,
        description="Under least_cost, where not all demand can be carried: the share of every "
        "demand that no allocation exceeds, certified. The status is then infeasible.",
    )
    levels: list[LevelAnswer] | None = Field(
        default=None, description="Under max_min, the levels that hold most flow, ascending."
    )


class NamedAllocation(_Figures):
    """The allocation of a matrix, by name."""

    shed: float = Field(description="Gbit/s of all demands that are not carried.")
    demands: list[DemandAnswer]
    utilisation: list[LinkUse]


class DenseAllocation(_Figures):
    """The allocation of a matrix, as arrays."""

    utilisation: list[_Number] = Field(description="Of each link.")
    splits: list[list[float]] | None = Field(
        default=None, description="Of all pairs of nodes, of each path."
    )
    weights: list[list[int]] | None = Field(
        default=None, description="In place of splits: how what is admitted is divided."
    )
    admitted_share: list[float] | None = Field(
        default=None,
        description=(
            "Beside weights: of all pairs of nodes, the share of the demand that may be sent."
        ),
    )


class Limit(_Said):
    """How far the largest utilisation of the next interval may be above its optimum."""

    level: float = Field(description="Probability with which the limit is to hold.")
    ratio: _Number = Field(
        description="Realised over optimal largest utilisation; null until enough was measured."
    )
    realised: _Number = Field(
        description="That ratio in the last interval that was allocated for; null if none was."
    )


class AllocationAnswer(_Said):
    """The answer to a request in JSON."""

    id: str = Field(
        description="As in X-Request-Id; GET .../allocations/{id} has the answer for a while."
    )
    allocations: list[NamedAllocation] | list[DenseAllocation] = Field(description="One a matrix.")
    queue_ms: float = Field(description="Until the engine began.")
    solve_ms: float = Field(description="Of the engine.")
    solver: str = Field(
        description="What computed it: model, model-pdhg (PDHG from the model's allocation), pdhg, "
        "or hedge for the "
        "next interval."
    )
    batch: int = Field(description="Matrices that were solved together.")
    proof: str | None = Field(
        default=None,
        description=(
            "Path of a zip file that proves value and bound, if that was asked for; kept as the "
            "answer is."
        ),
    )
    time: str | None = Field(
        default=None, description="Of the next interval, if that was asked for."
    )
    limit: Limit | None = Field(default=None, description="Of the next interval.")


class Answered(_Said):
    """Figures of an answer that was given lately."""

    id: str
    time: float = Field(description="Of the answer, seconds since 1970.")
    queue_ms: float
    solve_ms: float
    deadline_ms: float = Field(description="That was asked for.")
    solver: str = Field(description="See AllocationAnswer.")
    batch: int
    matrices: int
    gap: _Number = Field(description="The widest of the request.")
    satisfied_demand: _Number = Field(description="Mean of the request.")
    max_link_utilisation: _Number = Field(description="In the last matrix of the request.")
    limit: _Number = Field(
        default=None, description="Ratio of Limit; of an allocation for the next interval."
    )
    realised: _Number = Field(default=None, description="See Limit.")
    classes: list[ClassAnswer] | None = Field(
        default=None, description="In the last matrix of the request."
    )
    moved: _Number = Field(default=None, description="See NamedAllocation, in the last matrix.")
    largest_share: _Number = Field(
        default=None, description="See NamedAllocation, in the last matrix."
    )
    levels: list[LevelAnswer] | None = Field(
        default=None, description="Of fair rates, in the last matrix."
    )
    protect: str | None = Field(
        default=None, description="What promises survive, if that was asked for."
    )
    status: str


class RecentAllocations(_Said):
    """The requests that were answered lately."""

    allocations: list[Answered]
    utilisation: list[float] = Field(description="Of each link, in the last matrix of all.")


class CountedInfo(_Said):
    """The estimate from the counters of an interval."""

    found_by: Literal["sent", "history", "tracked", "gravity"] = Field(
        description="Whether the matrix was sent, or what its estimate began with."
    )
    total_gbps: float
    unexplained: float = Field(
        description="Share of what was counted that the matrix does not explain."
    )
    replaced: int = Field(description="Counters that contradict all others.")
    alarm: bool = Field(
        description="Counters contradict each other, or the matrix; then it is not kept."
    )
    suspects: list[str]
    kept: bool = Field(description="Whether the matrix is, and allocations follow it.")


class MeasuredInfo(_Said):
    """The measured matrices that are kept."""

    matrices: int
    first: str | None = Field(description="Time of the oldest.")
    last: str | None = Field(description="Time of the newest.")
    interval_s: int = Field(description="Between two, the usual one; 0 if unknown.")
    most: int = Field(description="Matrices that are kept at most; the oldest go.")
    counted: CountedInfo | None = Field(default=None, description="If counters were sent.")


class Health(_Said):
    """Whether the process answers."""

    status: Literal["ok"]


class Readiness(_Said):
    """The engine answers, and the paths of some network are there if any is registered; else
    503.
    """

    status: Literal["ready"]
    networks: int
    warnings: dict[str, str] = Field(default={}, description="By network: see NetworkInfo.")


def network_settings(spec: NetworkSpec) -> dict[str, object]:
    """The fields of :class:`NetworkInfo` that repeat what a network was registered with."""
    listed = spec.model_dump(mode="json", exclude={"topology", "groups", "weights", "functions"})
    return {**listed, "groups": list(spec.groups)}
