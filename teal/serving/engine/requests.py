"""The requests of a controller, as the API documents them."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)

from teal.errors import InputError
from teal.network.path_options import FIRST_PATHS, USUAL_MOST_PATHS, PathMethod, PathWeight
from teal.objectives import Objective, ObjectiveName, objective_names
from teal.option import ENTRIES, GAP, MAX_PATHS, Option
from teal.problem.offers import OFFERS
from teal.serving.engine.errors import invalid, wrong

_MAX_CLASSES = 16  # of the demands of a request
_MAX_VALUES = 500_000  # of a body in JSON: all other threads wait while it is parsed


def _served() -> list[str]:
    """The objectives that a request may name: all but the one of classes, which a request lists."""
    return [str(name) for name in objective_names() if name != ObjectiveName.PRIORITY]


def _objective(text: str) -> str:
    """An objective as a request names it; raises ValueError for another one, or for options that it
    does not take.
    """
    try:
        objective = Objective(text)
    except InputError as error:
        raise ValueError(str(error)[:300]) from None
    if objective.name == ObjectiveName.PRIORITY:
        raise ValueError(f"one of {', '.join(_served())}")
    return objective.spec


_Objective = Annotated[
    str,
    Field(
        max_length=100,
        description=(
            f"{', '.join(_served())}; fair ones with options, such as alpha_fair:alpha=2,weight=1."
        ),
        json_schema_extra={"pattern": f"^({'|'.join(map(re.escape, _served()))})(:.*)?$"},
    ),
    AfterValidator(_objective),
]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Scalar = Annotated[str, Field(max_length=200)] | int | _Finite | bool | None
_NodeId = Annotated[
    str,
    Field(max_length=200),
    BeforeValidator(lambda node: str(node) if isinstance(node, int | float) else node),
]
MAX_MATRICES = 1024  # a request
MAX_NODES, MAX_LINKS = 20_000, 500_000  # of a network
_MAX_LISTED_DEMANDS = 2_000_000  # of a network, in a list of weights or functions
_MAX_GROUPS, _MAX_CABLES = 10_000, 1_000  # of a network; of a group


_Model = TypeVar("_Model", bound=BaseModel)


def _names(value: Any) -> Any:
    """A list of names, or one of an address: gold,silver."""
    return value.split(",") if isinstance(value, str) else value


def _numbers(value: Any) -> Any:
    """Numbers by name, or those of an address: gold=30,silver=50."""
    return (
        dict(part.partition("=")[::2] for part in value.split(","))
        if isinstance(value, str)
        else value
    )


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Known(BaseModel):
    """Fields of others' formats, which have many more."""

    model_config = ConfigDict(extra="ignore")


class NodeSpec(_Known):
    """A node of node-link data."""

    id: _NodeId
    pos: list[_Scalar] | None = Field(default=None, description="[longitude, latitude], degrees.")
    lon: _Scalar = Field(default=None, description="Longitude, in place of pos.")
    lat: _Scalar = Field(default=None, description="Latitude, in place of pos.")


class LinkSpec(_Known):
    """A link of node-link data."""

    source: _NodeId
    target: _NodeId
    capacity: _Scalar = Field(default=None, description="Gbit/s, or the graph's capacity_unit.")
    latency: _Scalar = Field(default=None, description="ms.")


class GraphAttributes(_Known):
    """Attributes of the graph in node-link data."""

    capacity_unit: str = Field(default="Gbit/s", description="Of the links' capacities.")


class NodeLink(_Known):
    """Networkx node-link data; attributes that have no meaning here are dropped."""

    directed: bool = Field(
        default=False, description="False: each link stands for two, one in each direction."
    )
    graph: GraphAttributes | None = None
    nodes: list[NodeSpec] = Field(max_length=MAX_NODES, fail_fast=True)
    links: list[LinkSpec] = Field(
        max_length=MAX_LINKS,
        fail_fast=True,
        validation_alias=AliasChoices("links", "edges"),
        description="Or edges.",
    )

    def plain(self) -> dict[str, Any]:
        """As :func:`teal.formats.node_link.topology_from_node_link` reads it."""
        return self.model_dump(mode="json", exclude_none=True)


class WeightSpec(_Strict):
    """The weight of a demand."""

    source: _NodeId
    target: _NodeId
    weight: Annotated[_Finite, Field(gt=0)]


class FunctionSpec(_Strict):
    """A bandwidth function: of a demand, or without nodes of all demands that have none of their
    own.
    """

    source: _NodeId = ""
    target: _NodeId = ""
    points: list[tuple[_Finite, _Finite]] | None = Field(
        default=None, min_length=1, fail_fast=True, description="[rate in Gbit/s, value], rising."
    )
    shares: list[tuple[_Finite, _Finite]] | None = Field(
        default=None,
        min_length=1,
        fail_fast=True,
        description="[share of the demand, value of a Gbit/s of demand], in place of points.",
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.points is None) == (self.shares is None):
            raise ValueError("either points or shares must be given")
        return self


class NetworkSpec(_Strict):
    """A network to be registered."""

    topology: NodeLink | str = Field(
        description="Node-link data, or b4, or topohub:GROUP/NAME.", examples=["b4"]
    )
    num_paths: Annotated[int, Field(ge=1, le=32)] | Literal["auto"] = Field(
        default="auto",
        description="Candidate paths a demand at most; auto: chosen for generated matrices.",
    )
    max_paths: int = Field(default=USUAL_MOST_PATHS, ge=1, le=32, description=MAX_PATHS.text)
    path_method: PathMethod = Field(
        default=PathMethod.DISJOINT,
        description="edge-disjoint, yen, survivable or maximally-disjoint.",
    )
    path_weight: PathWeight = Field(
        default=PathWeight.HOPS, description="What a short path has least of."
    )
    objective: _Objective = Field(
        default="total_flow", description="What to optimise, unless a request says so."
    )
    gap: float = Field(
        default=0.01, gt=0, lt=1, description="Certified gap to stop at, unless a request says so."
    )

    groups: dict[
        Annotated[str, Field(max_length=200)],
        Annotated[
            list[tuple[_NodeId, _NodeId]],
            Field(min_length=1, max_length=_MAX_CABLES, fail_fast=True),
        ],
    ] = Field(
        default={},
        max_length=_MAX_GROUPS,
        description=(
            "Cables that one event takes down together, by name: for promises, and for survivable "
            "paths."
        ),
        examples=[{"conduit 3": [["1", "2"], ["1", "3"]]}],
    )

    weights: list[WeightSpec] = Field(
        default=[],
        max_length=_MAX_LISTED_DEMANDS,
        fail_fast=True,
        description=(
            "Weights of demands, for weighted_flow and weight=given; 1 of a demand that is not "
            "listed."
        ),
    )
    functions: list[FunctionSpec] = Field(
        default=[],
        max_length=_MAX_LISTED_DEMANDS,
        fail_fast=True,
        description="Bandwidth functions of all demands, for bandwidth_functions.",
        examples=[[{"shares": [[0.25, 2], [0.5, 3], [1, 3.5]]}]],
    )

    @model_validator(mode="after")
    def _has_what_the_objective_needs(self) -> Self:
        self.require_data(self.objective)
        return self

    def require_data(self, objective: str) -> None:
        """Raise ValueError for an objective whose weights or functions the network does not
        have.
        """
        rules = Objective.of(objective).rules
        if rules.needs_functions and not self.functions:
            raise ValueError(f"{objective}: needs functions of the network")
        if rules.needs_weight and not rules.is_sequence and not self.weights:
            raise ValueError(f"{objective}: needs weights of the network")

    @property
    def first_paths(self) -> int:
        """Paths of a demand before any are chosen."""
        return FIRST_PATHS if self.num_paths == "auto" else self.num_paths

    @property
    def most_paths(self) -> int:
        """Paths of a demand, at most."""
        return max(FIRST_PATHS, self.max_paths) if self.num_paths == "auto" else self.num_paths

    def stored(self) -> dict[str, Any]:
        """As JSON, to be read back."""
        return self.model_dump(mode="json", exclude_none=True)


class LinkChange(_Strict):
    """A change of the links between two nodes."""

    source: str
    target: str
    capacity: _Finite | None = Field(
        default=None, ge=0, description="Gbit/s of each of them from now on."
    )
    up: bool | None = Field(default=None, description="False: down, true: back with its capacity.")
    restore: bool = Field(
        default=False, description="Back to what was registered, each link for itself."
    )
    both: bool = Field(default=True, description="The other direction as well.")

    @model_validator(mode="after")
    def _something(self) -> LinkChange:
        if (self.capacity is None and self.up is None) != self.restore:
            raise ValueError("capacity or up must be given, or restore alone")
        return self


class LinkChanges(_Strict):
    """Some links at once."""

    links: list[LinkChange] = Field(min_length=1, max_length=100_000, fail_fast=True)


class Demand(_Strict):
    """One demand."""

    source: _NodeId
    target: _NodeId
    rate: _Finite = Field(ge=0, description="Gbit/s.")
    of_class: str | None = Field(
        default=None, alias="class", max_length=200, description="One of classes."
    )


class Form(StrEnum):
    """How an allocation is written in JSON."""

    NAMED = "named"
    DENSE = "dense"


def _number(option: Option, default: Any) -> Any:
    """The field of an option, with its range."""
    limits: dict[str, Any] = option.limits
    return Field(default=default, description=option.text, **limits)


def _field(option: Option) -> tuple[Any, Any]:
    """Type and field of an option that is None where it was not sent."""
    kind: Any = Literal[option.words] if option.words else float
    return kind | None, _number(option, None)


# The options by which requests ask for side conditions.
_Conditions = create_model(
    "_Conditions",
    __base__=_Strict,
    **{name: _field(kind.option) for name, kind in OFFERS.items() if kind.option is not None},
)  # type: ignore[call-overload]


class Options(_Conditions):  # type: ignore[valid-type,misc]
    """How an allocation is to be made; many requests share one object."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gap: float | None = Field(default=None, gt=0, lt=GAP.high, description=GAP.text)
    deadline_ms: float = Field(
        10_000,
        gt=0,
        le=600_000,
        description="From the arrival of the request: then the best feasible allocation.",
    )
    objective: _Objective | None = None
    classes: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200)]], BeforeValidator(_names)
    ] = Field(
        default=[],
        max_length=_MAX_CLASSES,
        description="Of the demands, the highest priority first: each class gets its optimum on "
        "what the higher ones "
        "need. Demands then name their class; rates have a matrix for each class, in this order, "
        "of each matrix. In an "
        "address: gold,silver.",
    )
    latency_limits_ms: Annotated[
        dict[str, Annotated[_Finite, Field(gt=0)]], BeforeValidator(_numbers)
    ] = Field(
        default={},
        description="Of a class, the largest latency of a path. In an address: gold=30,silver=50.",
    )
    entries: int = _number(ENTRIES, 0)
    prove: bool = Field(
        default=False,
        description="Of one matrix: the answer links to a zip file with flows and prices in whole "
        "numbers, which prove "
        "value and bound, and a checker of one file that needs nothing but Python.  It is written "
        "after the "
        "allocation, in time that deadline_ms does not count.",
    )
    solver: Literal["auto", "model", "model-pdhg", "pdhg"] = Field(
        default="auto",
        description="model: the service's model alone, in the time of one pass. model-pdhg: PDHG "
        "from the model's "
        "allocation, until gap or deadline. pdhg: PDHG from the last allocation of the network, or "
        "from nothing. "
        "auto: pdhg where there is a last allocation, else model-pdhg where the model saves time.",
    )
    form: Form = Field(
        default=Form.NAMED,
        description="Of an answer in JSON. named: for each demand that was sent its paths, node by "
        "node, and the "
        "utilisation of each link; dense: arrays over all pairs of nodes and all paths, as Arrow "
        "always has them.",
    )

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("classes: each once")
        if not set(self.latency_limits_ms) <= set(self.classes):
            raise ValueError("latency_limits_ms: of classes that are given")
        if self.classes and self.objective and not self._has_least_cost:
            raise ValueError("classes: they are the objective; no other one but least_cost")
        return self

    @property
    def _has_least_cost(self) -> bool:
        """Whether all classes are to be carried, at the least cost."""
        if not self.objective:
            return False
        return Objective.of(self.objective).rules.may_have_no_allocation

    def objective_name(self, usual: str) -> str:
        """The objective of this request, with its options."""
        if self.classes and not self._has_least_cost:
            return ObjectiveName.PRIORITY
        return self.objective or usual


class _Matrices(_Strict):
    """One traffic matrix as a list of demands, or several as lists of rates."""

    demands: list[Demand] | None = Field(
        default=None, fail_fast=True, description="One matrix; what is not listed is 0."
    )
    rates: list[Annotated[list[_Finite], Field(fail_fast=True)]] | None = Field(
        None,
        max_length=MAX_MATRICES,
        fail_fast=True,
        description=(
            "Matrices, Gbit/s: of each all pairs of nodes in the order of GET .../paths, or N x "
            "N, row by row."
        ),
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self._needs_matrices and (self.demands is None) == (self.rates is None):
            raise ValueError("either demands or rates must be given")
        return self

    @property
    def _needs_matrices(self) -> bool:
        return True


class AllocationRequest(Options, _Matrices):
    """A request for an allocation of matrices, or for the next interval."""

    wanted: Literal["sent", "next"] = Field(
        default="sent",
        alias="for",
        description="next: for the interval after the last one that was sent to .../measurements, "
        "whose traffic nobody "
        "knows yet; then neither demands nor rates, and no gap, objective or entries.",
    )

    @property
    def _needs_matrices(self) -> bool:
        return self.wanted == "sent"

    @model_validator(mode="after")
    def _nothing_else(self) -> Self:
        sent = self.model_fields_set - {"wanted", "deadline_ms", "form"}
        if self.wanted == "next" and sent:
            raise ValueError(
                f"for the next interval deadline_ms and form alone may be given, not {sorted(sent)}"
            )
        return self


class MeasurementOptions(_Strict):
    """When the matrices were measured."""

    time: AwareDatetime = Field(
        description="Of the first matrix; later than all that were sent before."
    )
    interval_s: int = Field(
        default=0,
        ge=0,
        le=31_536_000,
        description="From one matrix to the next, if there are several.",
    )


_Rate = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] | None


class LinkReading(_Strict):
    """The two counters of a link, as rates."""

    source: _NodeId
    target: _NodeId
    number: int = Field(
        default=0, ge=0, description="Of parallel links, in the order of the topology."
    )
    sent: _Rate = Field(default=None, description="Gbit/s, by the router at its start.")
    received: _Rate = Field(default=None, description="Gbit/s, by the router at its end.")


class BorderReading(_Strict):
    """Counters of the external interfaces of a node, as rates."""

    node: _NodeId
    ingress: _Rate = Field(default=None, description="Gbit/s that enter the network there.")
    egress: _Rate = Field(default=None, description="Gbit/s that leave it there.")


class CounterReadings(_Strict):
    """Byte counters of one interval, as rates."""

    links: list[LinkReading] = Field(max_length=MAX_LINKS, fail_fast=True)
    nodes: list[BorderReading] = Field(min_length=1, max_length=MAX_NODES, fail_fast=True)
    routing: Literal["igp", "allocation"] = Field(
        default="igp",
        description="What was in force: shortest paths with ECMP (metrics of the topology, else "
        "hops), or the "
        "allocation for the next interval that this service gave last.",
    )
    counter_error: float = Field(
        default=0.01, gt=0, lt=1, description="Standard deviation, as a share of a counter."
    )


class MeasurementRequest(MeasurementOptions, _Matrices):
    """A measurement: one matrix or several; or byte counters, alone or to check one matrix
    against.
    """

    counters: CounterReadings | None = Field(
        default=None,
        description=(
            "Of one interval.  Without demands and rates its matrix is estimated from them."
        ),
    )
    deadline_ms: float = Field(
        10_000,
        gt=0,
        le=600_000,
        description="Of counters, from the arrival of the request: then 503.",
    )

    @property
    def _needs_matrices(self) -> bool:
        return self.counters is None


def parsed(model: type[_Model], content: bytes | dict[str, str]) -> _Model:
    """A body in JSON, or the parameters of an address.

    Raises:
        ServiceError: the first fault in it.
    """
    if isinstance(content, bytes) and sum(map(content.count, (b",", b"[", b"{"))) > _MAX_VALUES:
        raise wrong(f"body: at most {_MAX_VALUES:,} values in JSON; matrices may be sent as Arrow")
    try:
        return (
            model.model_validate_json(content)
            if isinstance(content, bytes)
            else model.model_validate(content)
        )
    except ValidationError as error:
        raise invalid(error) from None
