"""Pydantic models of request bodies and query parameters, as the API documents them.

:func:`parse_content` validates a body. The options of side conditions are generated from the
registered conditions (:data:`teal.problem.offers.OFFERS`).
"""

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
from teal.problem.offers import CONDITIONS_BY_OPTION
from teal_serve.engine.errors import invalid, invalid_request

# Maximum number of demand classes of a request.
_MAX_CLASSES = 16
# Maximum number of values in a JSON body, since all other threads wait while it is parsed.
_MAX_JSON_VALUES = 500_000


def _requestable_objectives() -> list[str]:
    """Return the names of all objectives that a request may name.

    A request cannot name ``priority``: it is implied by demand classes.
    """
    return [str(name) for name in objective_names() if name != ObjectiveName.PRIORITY]


def _check_objective(text: str) -> str:
    """Return an objective with its options in canonical form, such as ``alpha_fair:alpha=2``.

    Raises:
        ValueError: unknown objective or options.
    """
    try:
        objective = Objective(text)
    except InputError as error:
        raise ValueError(str(error)[:300]) from None
    if objective.name == ObjectiveName.PRIORITY:
        raise ValueError(
            f"{text} needs classes; list them in classes, or use one of "
            f"{', '.join(_requestable_objectives())}"
        )
    return objective.spec


_Objective = Annotated[
    str,
    Field(
        max_length=100,
        description=(
            f"{', '.join(_requestable_objectives())}; fair ones with options, such as "
            "alpha_fair:alpha=2,weight=1."
        ),
        json_schema_extra={
            "pattern": f"^({'|'.join(map(re.escape, _requestable_objectives()))})(:.*)?$"
        },
    ),
    AfterValidator(_check_objective),
]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Scalar = Annotated[str, Field(max_length=200)] | int | _Finite | bool | None
_NodeId = Annotated[
    str,
    Field(max_length=200),
    BeforeValidator(lambda node: str(node) if isinstance(node, int | float) else node),
]
# Maximum number of matrices of a request.
MAX_MATRICES = 1024
# Maximum numbers of nodes and links of a network.
MAX_NODES = 20_000
MAX_LINKS = 500_000
# Maximum number of entries in the list of weights or functions.
_MAX_LISTED_DEMANDS = 2_000_000
# Maximum number of shared-risk groups, and of cables of a group.
_MAX_GROUPS = 10_000
_MAX_CABLES = 1_000


_Model = TypeVar("_Model", bound=BaseModel)


def _split_names(value: Any) -> Any:
    """Split a query parameter such as ``gold,silver`` into names; keep other values."""
    return value.split(",") if isinstance(value, str) else value


def _split_numbers(value: Any) -> Any:
    """Convert a query parameter such as ``gold=30,silver=50`` to a dictionary; keep other values.

    The numbers stay texts, which Pydantic converts.
    """
    # partition returns name, "=" and number, of which the step of 2 keeps name and number.
    return (
        dict(part.partition("=")[::2] for part in value.split(","))
        if isinstance(value, str)
        else value
    )


class _Strict(BaseModel):
    """Model that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid")


class _ForeignModel(BaseModel):
    """Model of an external format, which ignores unknown fields."""

    model_config = ConfigDict(extra="ignore")


class NodeSpec(_ForeignModel):
    """A node of node-link data."""

    id: _NodeId
    pos: list[_Scalar] | None = Field(default=None, description="[longitude, latitude], degrees.")
    lon: _Scalar = Field(default=None, description="Longitude, degrees, instead of pos.")
    lat: _Scalar = Field(default=None, description="Latitude, degrees, instead of pos.")


class LinkSpec(_ForeignModel):
    """A link of node-link data."""

    source: _NodeId
    target: _NodeId
    capacity: _Scalar = Field(
        default=None, description="Capacity, Gbit/s or the graph's capacity_unit."
    )
    latency: _Scalar = Field(default=None, description="Latency, ms.")


class GraphAttributes(_ForeignModel):
    """Attributes of the graph in node-link data."""

    capacity_unit: str = Field(default="Gbit/s", description="Unit of the link capacities.")


class NodeLink(_ForeignModel):
    """Networkx node-link data; unknown attributes are ignored."""

    directed: bool = Field(
        default=False, description="False: each link is two directed links, one in each direction."
    )
    graph: GraphAttributes | None = None
    nodes: list[NodeSpec] = Field(max_length=MAX_NODES, fail_fast=True)
    links: list[LinkSpec] = Field(
        max_length=MAX_LINKS,
        fail_fast=True,
        validation_alias=AliasChoices("links", "edges"),
        description="Links; the name edges is accepted, too.",
    )

    def node_link_data(self) -> dict[str, Any]:
        """Return the networkx node-link data as JSON data, without the fields that are None."""
        return self.model_dump(mode="json", exclude_none=True)


class WeightSpec(_Strict):
    """Weight of the demand between two nodes."""

    source: _NodeId
    target: _NodeId
    weight: Annotated[_Finite, Field(gt=0)]


class FunctionSpec(_Strict):
    """Bandwidth function of a demand; without nodes, the default of all other demands."""

    source: _NodeId = ""
    target: _NodeId = ""
    points: list[tuple[_Finite, _Finite]] | None = Field(
        default=None,
        min_length=1,
        fail_fast=True,
        description="Points [rate in Gbit/s, value], ascending.",
    )
    shares: list[tuple[_Finite, _Finite]] | None = Field(
        default=None,
        min_length=1,
        fail_fast=True,
        description=(
            "Points [fraction of the demand, value per Gbit/s of demand], instead of points."
        ),
    )

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        """Return the model; raise ValueError unless either points or shares are given."""
        if (self.points is None) == (self.shares is None):
            raise ValueError("give either points or shares, not both")
        return self


class NetworkSpec(_Strict):
    """Registration of a network."""

    topology: NodeLink | str = Field(
        description="Node-link data, b4, or topohub:GROUP/NAME.", examples=["b4"]
    )
    num_paths: Annotated[int, Field(ge=1, le=32)] | Literal["auto"] = Field(
        default="auto",
        description="Maximum number of candidate paths of a demand; auto: paths are selected for "
        "generated matrices, and added for measured and requested ones.",
    )
    max_paths: int = Field(default=USUAL_MOST_PATHS, ge=1, le=32, description=MAX_PATHS.text)
    path_method: PathMethod = Field(
        default=PathMethod.DISJOINT,
        description="edge-disjoint, yen, survivable or maximally-disjoint.",
    )
    path_weight: PathWeight = Field(
        default=PathWeight.HOPS, description="Path metric: length of a path in the search."
    )
    objective: _Objective = Field(
        default="total_flow", description="Default objective of requests."
    )
    gap: float = Field(default=0.01, gt=0, lt=1, description="Default certified gap of requests.")

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
            "Shared-risk groups: name -> cables that one event takes down together; for protect "
            "and survivable paths."
        ),
        examples=[{"conduit 3": [["1", "2"], ["1", "3"]]}],
    )

    weights: list[WeightSpec] = Field(
        default=[],
        max_length=_MAX_LISTED_DEMANDS,
        fail_fast=True,
        description="Weights of demands, for weighted_flow and weight=given; default 1.",
    )
    functions: list[FunctionSpec] = Field(
        default=[],
        max_length=_MAX_LISTED_DEMANDS,
        fail_fast=True,
        description="Bandwidth functions of all demands, for bandwidth_functions.",
        examples=[[{"shares": [[0.25, 2], [0.5, 3], [1, 3.5]]}]],
    )

    @model_validator(mode="after")
    def _check_objective_data(self) -> Self:
        """Return the model; raise ValueError without the data that the default objective needs."""
        self.require_data(self.objective)
        return self

    def require_data(self, objective: str) -> None:
        """Raise ValueError if the registration lacks the weights or functions of an objective."""
        rules = Objective.of(objective).rules
        if rules.needs_functions and not self.functions:
            raise ValueError(f"{objective}: needs functions of the network")
        if rules.needs_weight and not rules.is_sequence and not self.weights:
            raise ValueError(f"{objective}: needs weights of the network")

    @property
    def initial_num_paths(self) -> int:
        """Number of candidate paths of a demand before path selection."""
        return FIRST_PATHS if self.num_paths == "auto" else self.num_paths

    @property
    def max_num_paths(self) -> int:
        """Maximum number of candidate paths of a demand."""
        return max(FIRST_PATHS, self.max_paths) if self.num_paths == "auto" else self.num_paths

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON data, for storage."""
        return self.model_dump(mode="json", exclude_none=True)


class LinkChange(_Strict):
    """Change of the links between two nodes."""

    source: str
    target: str
    capacity: _Finite | None = Field(
        default=None, ge=0, description="New capacity of each link, Gbit/s."
    )
    up: bool | None = Field(
        default=None, description="False: take the links down; true: restore their capacity."
    )
    restore: bool = Field(
        default=False, description="Restore the registered capacity of each link."
    )
    both: bool = Field(default=True, description="Change both directions.")

    @model_validator(mode="after")
    def _require_change(self) -> LinkChange:
        """Return the model; raise ValueError unless it has capacity or up, or restore alone."""
        # Allowed are changed fields without restore, or restore without changed fields.
        if (self.capacity is None and self.up is None) != self.restore:
            raise ValueError("give capacity, up or both; or restore alone")
        return self


class LinkChanges(_Strict):
    """Changes of the links between several pairs of nodes."""

    links: list[LinkChange] = Field(min_length=1, max_length=100_000, fail_fast=True)


class Demand(_Strict):
    """Demand between two nodes."""

    source: _NodeId
    target: _NodeId
    rate: _Finite = Field(ge=0, description="Rate, Gbit/s.")
    of_class: str | None = Field(
        default=None, alias="class", max_length=200, description="Demand class, one of classes."
    )


class Form(StrEnum):
    """JSON form of an allocation."""

    NAMED = "named"
    DENSE = "dense"


def _option_field(option: Option, default: Any) -> Any:
    """Return the Pydantic field of an option, with its range and description.

    Args:
        option: option of the command line, whose limits and help text the field repeats.
        default: default of the field.
    """
    limits: dict[str, Any] = option.limits
    return Field(default=default, description=option.text, **limits)


def _optional_field(option: Option) -> tuple[Any, Any]:
    """Return type and Pydantic field of an option that defaults to None."""
    field_type: Any = Literal[option.words] if option.words else float
    return field_type | None, _option_field(option, None)


# Options that request side conditions.
_Conditions = create_model(
    "_Conditions",
    __base__=_Strict,
    **{
        name: _optional_field(condition_type.option)
        for name, condition_type in CONDITIONS_BY_OPTION.items()
        if condition_type.option is not None
    },
)  # type: ignore[call-overload]


class Options(_Conditions):  # type: ignore[valid-type,misc]
    """Options of an allocation; immutable, shared by many requests."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gap: float | None = Field(default=None, gt=0, lt=GAP.high, description=GAP.text)
    deadline_ms: float = Field(
        10_000,
        gt=0,
        le=600_000,
        description="Time limit from the arrival of the request; then the incumbent is returned.",
    )
    objective: _Objective | None = None
    classes: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200)]], BeforeValidator(_split_names)
    ] = Field(
        default=[],
        max_length=_MAX_CLASSES,
        description="Demand classes, the highest priority first: each class is "
        "optimised on the residual capacity of the higher ones. Demands then "
        "name their class; rates have one list per class, in this "
        "order, for each matrix. In query parameters: gold,silver.",
    )
    latency_limits_ms: Annotated[
        dict[str, Annotated[_Finite, Field(gt=0)]], BeforeValidator(_split_numbers)
    ] = Field(
        default={},
        description="Largest path latency of a class, ms. In query parameters: gold=30,silver=50.",
    )
    entries: int = _option_field(ENTRIES, 0)
    prove: bool = Field(
        default=False,
        description="Prove value and bound of the answer to one matrix: the answer links to a zip "
        "file with integer flows and prices, and a checker in a single file "
        "that needs only Python. The proof is written after the allocation; "
        "deadline_ms does not include it.",
    )
    solver: Literal["auto", "model", "model-pdhg", "pdhg"] = Field(
        default="auto",
        description="model: the service's model alone, one forward pass. model-pdhg: "
        "PDHG warm-started from the model, until gap or deadline. pdhg: "
        "PDHG warm-started from the last allocation of the network, or cold. auto: "
        "pdhg if there is a last allocation, else model-pdhg if the "
        "model saves time.",
    )
    form: Form = Field(
        default=Form.NAMED,
        description="JSON form of the answer. named: the paths of each demand, as lists of "
        "nodes, and the utilisation of each link; dense: arrays over "
        "all pairs of nodes and all paths, as always in Arrow.",
    )

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        """Return the model; raise ValueError for options that exclude each other."""
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("classes: repeated name; list each class once")
        if not set(self.latency_limits_ms) <= set(self.classes):
            raise ValueError("latency_limits_ms: unknown class; list it in classes")
        if self.classes and self.objective and not self._has_least_cost:
            raise ValueError(
                "objective: only least_cost can be combined with classes; drop the objective"
            )
        return self

    @property
    def _has_least_cost(self) -> bool:
        """Whether the objective is least_cost, which must carry all demand of all classes."""
        if not self.objective:
            return False
        return Objective.of(self.objective).rules.may_be_infeasible

    def objective_name(self, default: str) -> str:
        """Return the objective of this request, with its options; ``priority`` for classes.

        Args:
            default: objective of the registration, for requests without one.
        """
        if self.classes and not self._has_least_cost:
            return ObjectiveName.PRIORITY
        return self.objective or default


class _Matrices(_Strict):
    """One traffic matrix as a list of demands, or several as lists of rates."""

    demands: list[Demand] | None = Field(
        default=None, fail_fast=True, description="One matrix; demands that are not listed are 0."
    )
    rates: list[Annotated[list[_Finite], Field(fail_fast=True)]] | None = Field(
        None,
        max_length=MAX_MATRICES,
        fail_fast=True,
        description=(
            "Matrices, Gbit/s: each is a list of all pairs of nodes in the order of GET "
            ".../paths, or of N x N entries, row by row."
        ),
    )

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        """Return the model; raise ValueError unless required matrices are given in one form."""
        if self._needs_matrices and (self.demands is None) == (self.rates is None):
            raise ValueError("give either demands or rates")
        return self

    @property
    def _needs_matrices(self) -> bool:
        """Whether the request must have matrices; subclasses override it."""
        return True


class AllocationRequest(Options, _Matrices):
    """Request for an allocation of matrices, or for the next interval."""

    wanted: Literal["sent", "next"] = Field(
        default="sent",
        alias="for",
        description="next: allocate for the interval after the last matrix sent to "
        ".../measurements, whose traffic is unknown; then only deadline_ms and form are allowed.",
    )

    @property
    def _needs_matrices(self) -> bool:
        """Whether the request must have matrices; it has none for the next interval."""
        return self.wanted == "sent"

    @model_validator(mode="after")
    def _refuse_other_fields(self) -> Self:
        """Return the model; raise ValueError for fields that do not apply to the next interval."""
        other_fields = self.model_fields_set - {"wanted", "deadline_ms", "form"}
        if self.wanted == "next" and other_fields:
            raise ValueError(
                "for the next interval only deadline_ms and form may be given; drop "
                f"{', '.join(sorted(other_fields))}"
            )
        return self


class MeasurementOptions(_Strict):
    """Time of the first measured matrix, and interval between consecutive matrices."""

    time: AwareDatetime = Field(
        description="Time of the first matrix; later than all earlier measured matrices."
    )
    interval_s: int = Field(
        default=0,
        ge=0,
        le=31_536_000,
        description="Seconds between consecutive matrices; required for several matrices.",
    )


_Rate = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] | None


class LinkReading(_Strict):
    """Rates of a link in one interval, as counted by the routers at its two ends."""

    source: _NodeId
    target: _NodeId
    number: int = Field(
        default=0, ge=0, description="Index among parallel links, in the order of the topology."
    )
    sent: _Rate = Field(
        default=None, description="Rate in Gbit/s, counted by the router at the source."
    )
    received: _Rate = Field(
        default=None, description="Rate in Gbit/s, counted by the router at the target."
    )


class BorderReading(_Strict):
    """Rates of a node in one interval, as counted at its external interfaces."""

    node: _NodeId
    ingress: _Rate = Field(
        default=None, description="Rate that enters the network at the node, Gbit/s."
    )
    egress: _Rate = Field(
        default=None, description="Rate that leaves the network at the node, Gbit/s."
    )


class CounterReadings(_Strict):
    """Rates of links and nodes in one interval, computed from the routers' byte counters."""

    links: list[LinkReading] = Field(max_length=MAX_LINKS, fail_fast=True)
    nodes: list[BorderReading] = Field(min_length=1, max_length=MAX_NODES, fail_fast=True)
    routing: Literal["igp", "allocation"] = Field(
        default="igp",
        description="Installed routing: shortest paths with ECMP (metrics of the "
        "topology, else hops), or the last allocation of this service for"
        " the next interval.",
    )
    counter_error: float = Field(
        default=0.01,
        gt=0,
        lt=1,
        description="Standard deviation of a counter, relative to its value.",
    )


class MeasurementRequest(MeasurementOptions, _Matrices):
    """Measured traffic: matrices; or interface counters, alone or to check one matrix."""

    counters: CounterReadings | None = Field(
        default=None,
        description=(
            "Counters of one interval. Without demands and rates, the matrix of the interval is "
            "estimated from them."
        ),
    )
    deadline_ms: float = Field(
        10_000,
        gt=0,
        le=600_000,
        description="Time limit of the estimate from counters; afterwards 503.",
    )

    @property
    def _needs_matrices(self) -> bool:
        """Whether the request must have matrices; counters can replace them."""
        return self.counters is None


def parse_content(model: type[_Model], content: bytes | dict[str, str]) -> _Model:
    """Parse and validate a JSON body, or query parameters.

    Args:
        model: Pydantic model of the content.
        content: JSON body, or query parameters by name.

    Raises:
        ServiceError: invalid content; the message names the first fault.
    """
    # Estimate the number of values by the commas and opening brackets.
    if (
        isinstance(content, bytes)
        and sum(map(content.count, (b",", b"[", b"{"))) > _MAX_JSON_VALUES
    ):
        raise invalid_request(
            f"body: more than {_MAX_JSON_VALUES:,} values in JSON; send the matrices as Arrow"
        )
    try:
        return (
            model.model_validate_json(content)
            if isinstance(content, bytes)
            else model.model_validate(content)
        )
    except ValidationError as error:
        raise invalid(error) from None
