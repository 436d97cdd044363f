"""What a controller may ask, as the API documents it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from teal.network.paths import PathMethod, PathWeight
from teal.objectives import ObjectiveName

_Objective = Literal["total_flow", "latency_penalised_flow", "max_link_utilisation", "max_concurrent_flow"]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
MOST_MATRICES = 1024  # a request


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NetworkSpec(_Strict):
    """A network to be registered."""

    topology: dict[str, Any] | str = Field(
        description="networkx node-link data: nodes with id (and pos, [longitude, latitude]), links with source, "
        "target, capacity (Gbit/s) and perhaps latency (ms); or b4, or topohub:GROUP/NAME.",
        examples=["b4"],
    )
    num_paths: int = Field(default=4, ge=1, le=32, description="Candidate paths a demand at most.")
    path_method: PathMethod = Field(default=PathMethod.DISJOINT, description="edge-disjoint or yen.")
    path_weight: PathWeight = Field(default=PathWeight.HOPS, description="What a short path has least of.")
    objective: _Objective = Field(default="total_flow", description="What to optimise, unless a request says so.")
    gap: float = Field(default=0.01, gt=0, lt=1, description="Certified gap to stop at, unless a request says so.")


class LinkChange(_Strict):
    """What happened to the links between two nodes."""

    source: str
    target: str
    capacity: _Finite | None = Field(default=None, ge=0, description="Gbit/s of each of them from now on.")
    up: bool | None = Field(default=None, description="False: down, true: back with its capacity.")
    restore: bool = Field(default=False, description="Back to what was registered, each link for itself.")
    both: bool = Field(default=True, description="The other direction as well.")

    @model_validator(mode="after")
    def _something(self) -> LinkChange:
        if (self.capacity is None and self.up is None) != self.restore:
            raise ValueError("capacity or up must be given, or restore alone")
        return self


class LinkChanges(_Strict):
    """Some links at once."""

    links: list[LinkChange] = Field(min_length=1, max_length=100_000)


class Demand(_Strict):
    """One demand."""

    source: str
    target: str
    rate: _Finite = Field(ge=0, description="Gbit/s.")


class Options(_Strict):
    """How an allocation is to be made."""

    gap: float | None = Field(default=None, gt=0, lt=1, description="Certified gap to stop at.")
    deadline_ms: float = Field(
        10_000,
        gt=0,
        le=600_000,
        description="From the arrival of the request: then the best feasible allocation.",
    )
    objective: _Objective | None = None
    entries: int = Field(
        default=0, ge=0, le=255, description="Whole-number weights out of so many, as switches have them; 0 for splits."
    )

    def objective_name(self, usual: str) -> ObjectiveName:
        """The objective of this request."""
        return ObjectiveName(self.objective or usual)


class AllocationRequest(Options):
    """One traffic matrix as a list of demands, or several as lists of rates."""

    demands: list[Demand] | None = Field(default=None, description="One matrix; what is not listed is 0.")
    rates: list[list[_Finite]] | None = Field(
        None,
        max_length=MOST_MATRICES,
        description="Matrices, Gbit/s: of each all pairs of nodes in the order of GET .../paths, or N x N, row by row.",
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> AllocationRequest:
        if (self.demands is None) == (self.rates is None):
            raise ValueError("either demands or rates must be given")
        return self
