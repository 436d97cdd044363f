"""The one object that every scheme takes."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from teal.errors import InputError
from teal.network import PathSet, Topology
from teal.objectives import Objective, ObjectiveName
from teal.pathops import PathOps, make_path_ops

Array = npt.NDArray[np.floating]


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """B traffic matrices to allocate on one network.  Validated by :meth:`create`.

    Attributes:
        topology: the network; its capacities are the usual ones.
        paths: candidate paths of the demands.
        objective: which program.
        demand: (B, D) Gbit/s.
        capacity: (B, E) Gbit/s in force for each matrix; 0 where a link has failed.
        demand_value: (D,) value of one Gbit/s of a demand.
        link_cost: (E,) what of it a link takes: v[d, k] = demand_value[d] - sum of link_cost along the path.
        ops: path operations on the tensors' device.
    """

    topology: Topology
    paths: PathSet
    objective: Objective
    demand: Tensor
    capacity: Tensor
    demand_value: Tensor
    link_cost: Tensor
    ops: PathOps

    @classmethod
    def create(
        cls,
        topology: Topology,
        paths: PathSet,
        objective: Objective,
        demand: Array,
        *,
        capacity: Array | None = None,
        weight: Array | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float64,
        backend: str = "auto",
    ) -> Problem:
        """Validate and build.

        Args:
            demand: (B, D) or (D,) Gbit/s.
            capacity: (B, E) or (E,) Gbit/s; None for the topology's.
            weight: (D,) of weighted_flow.

        Raises:
            InputError: a shape that does not fit, or a negative, infinite or NaN entry.
        """
        if paths.topology_key != topology.shape_key():
            raise InputError(topology.name, "paths", "paths over this network's links", "those of another network")
        demand = _checked("demand", np.atleast_2d(demand), paths.num_demands)
        capacity = topology.capacity if capacity is None else capacity
        capacity = _checked("capacity", np.atleast_2d(capacity), topology.num_links)
        if len(capacity) not in (1, len(demand)):
            raise InputError("problem", "capacity", f"1 or {len(demand)} rows, as demand has", len(capacity))
        capacity = np.broadcast_to(capacity, (len(demand), topology.num_links))
        if weight is not None:
            if weight.ndim != 1:
                raise InputError("problem", "weight", f"({paths.num_demands},) weights", weight.shape)
            weight = _checked("weight", np.atleast_2d(weight), paths.num_demands)[0]
        ops = make_path_ops(paths, device, backend)
        longest = 0.0
        if objective.name is ObjectiveName.LATENCY_PENALISED_FLOW:
            longest = float(ops.path_sum(torch.as_tensor(topology.latency[None], device=ops.device)).max())
        value = objective.demand_value(weight, paths.num_demands)
        cost = objective.link_cost(topology.latency, longest)
        return cls(
            topology,
            paths,
            objective,
            torch.tensor(demand, dtype=dtype, device=ops.device),
            torch.tensor(capacity.copy(), dtype=dtype, device=ops.device),
            torch.tensor(value, dtype=dtype, device=ops.device),
            torch.tensor(cost, dtype=dtype, device=ops.device),
            ops,
        )

    @property
    def batch(self) -> int:
        """B."""
        return len(self.demand)

    @cached_property
    def path_value(self) -> Tensor:
        """(D, K) value of one Gbit/s on a path, v[d, k]; 0 where there is none."""
        value = self.demand_value[:, None]
        if self.has_link_cost:
            value = value - self.ops.path_sum(self.link_cost[None])[0]
        return torch.where(self.ops.mask, value, 0)

    @cached_property
    def has_link_cost(self) -> bool:
        """Whether any link has a cost; where none has, all paths of a demand have the same value."""
        return bool((self.link_cost != 0).any())

    @cached_property
    def path_mask(self) -> Tensor:
        """(B, D, K) true where a path exists and none of its links has failed."""
        static = self.ops.mask.expand(self.batch, -1, -1)
        failed = self.capacity <= 0
        if not bool(failed.any()):
            return static
        return static & (self.ops.path_max(failed.to(self.capacity.dtype))[0] == 0)

    @cached_property
    def routable(self) -> Tensor:
        """(B, D) true where a demand has at least one path left."""
        return self.path_mask.any(-1)

    @cached_property
    def inverse_capacity(self) -> Tensor:
        """(B, E) 1 / capacity, 0 for a failed link: nothing ever divides by a capacity of 0."""
        return torch.where(self.capacity > 0, 1 / self.capacity.clamp(min=1e-30), 0)

    @cached_property
    def pressure(self) -> Tensor:
        """(B, E) utilisation if every path that is left carried all of its demand."""
        everything = self.flows(self.path_mask.to(self.demand.dtype))
        return self.ops.link_sum(everything) * self.inverse_capacity

    @cached_property
    def even_splits(self) -> Tensor:
        """(B, D, K) each demand in equal parts over the paths that it has left."""
        count = self.path_mask.sum(-1, keepdim=True).clamp(min=1)
        return self.path_mask.to(self.demand.dtype) / count

    @property
    def mean_value(self) -> Tensor:
        """() mean of v[d, k] over the paths that exist; 0 under the balanced programs."""
        total = self.path_value.sum() if self.has_link_cost else (self.demand_value * self.ops.count).sum()
        return total / self.ops.count.sum().clamp(min=1)

    @property
    def mean_capacity(self) -> Tensor:
        """(B, 1) mean capacity of the links that have not failed, Gbit/s."""
        live = (self.capacity > 0).sum(1, keepdim=True).clamp(min=1)
        return self.capacity.sum(1, keepdim=True) / live

    def flows(self, splits: Tensor) -> Tensor:
        """(B, D, K) Gbit/s from splits (B, D, K), shares of each demand."""
        return splits * self.demand[..., None]

    def loads(self, splits: Tensor) -> Tensor:
        """(B, E) Gbit/s on each link."""
        return self.ops.link_sum(self.flows(splits))

    def utilisation(self, splits: Tensor) -> Tensor:
        """(B, E) load / capacity; infinite where a failed link carries something."""
        load = self.loads(splits)
        broken = (self.capacity <= 0) & (load > 0)
        return torch.where(broken, torch.inf, load * self.inverse_capacity)

    def value(self, splits: Tensor) -> Tensor:
        """(B,) the objective: sum v x in Gbit/s, the largest link utilisation, or the least share carried."""
        if self.objective.maximises_value:
            return (self.flows(splits) * self.path_value).sum((1, 2))
        if self.objective.may_shed:
            share = torch.where(self.routable & (self.demand > 0), splits.sum(-1), torch.inf)
            return share.amin(1).clamp(max=1)
        return self.utilisation(splits).amax(1)

    def with_demand(self, demand: Tensor) -> Problem:
        """The same network under other matrices, (B, D); capacities of the first matrix.  Not validated."""
        capacity = self.capacity[:1].expand(len(demand), -1)
        return dataclasses.replace(self, demand=demand.to(self.demand), capacity=capacity)

    def with_capacity(self, capacity: Tensor) -> Problem:
        """The same matrices under other capacities, (E,) or (B, E): failures, upgrades.  Not validated."""
        return dataclasses.replace(self, capacity=capacity.to(self.capacity).expand(self.batch, -1))

    def with_paths(self, paths: PathSet) -> Problem:
        """The same matrices over other candidate paths of the same demands.  Not validated."""
        return dataclasses.replace(self, paths=paths, ops=make_path_ops(paths, self.ops.device))

    def row(self, index: int) -> Problem:
        """The problem of one matrix, B = 1."""
        one = slice(index, index + 1)
        return dataclasses.replace(self, demand=self.demand[one], capacity=self.capacity[one])

    def to(self, dtype: torch.dtype) -> Problem:
        """The same problem in another floating-point type; itself if it is of that type."""
        if self.demand.dtype == dtype:
            return self
        changed = {f: getattr(self, f).to(dtype) for f in ("demand", "capacity", "demand_value", "link_cost")}
        return dataclasses.replace(self, **changed)


def _checked(field: str, values: Array, width: int) -> Array:
    if values.ndim != 2 or values.shape[1] != width:
        raise InputError("problem", field, f"{width} entries for each matrix", values.shape)
    bad = ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise InputError("problem", f"{field}[{row}, {column}]", "a finite number >= 0", values[row, column])
    return values
