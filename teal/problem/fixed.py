"""Programs in tensors at fixed addresses, which recorded GPU launches (CUDA graphs) read at every
replay.

Entry points: :class:`ProgramShape`, :class:`FixedProgram`.
"""

from __future__ import annotations

import copy
import dataclasses

import torch
from torch import Tensor

from teal.objectives import Objective
from teal.problem.problem import Problem


@dataclasses.dataclass(frozen=True)
class ProgramShape:
    """Key of programs that can share one recorded GPU graph, over one set of paths.

    Attributes:
        batch: B.
        objective: objective of the program.
        has_link_cost: whether a link has a cost.
        may_fail: whether a link has failed.
    """

    batch: int
    objective: Objective
    has_link_cost: bool
    may_fail: bool

    @classmethod
    def of(cls, problem: Problem) -> ProgramShape:
        """Return the shape of a problem, which must have at least one demand and one link."""
        return cls(
            problem.batch,
            problem.objective,
            problem.has_link_cost,
            problem.extremes.smallest_capacity <= 0,
        )


class FixedProgram:
    """Program in fixed memory, into which other programs of its shape are copied.

    Args:
        problem: the first program, on a GPU with numba-cuda, without side conditions; its
            values are not copied.
        shape: shape of the program.
        dtype: type of the tensors.

    Attributes:
        device: the GPU.
    """

    # The tensors outlive an inference mode of the caller.
    @torch.inference_mode(False)
    def __init__(self, problem: Problem, shape: ProgramShape, dtype: torch.dtype) -> None:
        self._shape = shape
        self.device = problem.demand.device
        # Stream of the last copy.
        self._last_stream: torch.cuda.Stream | None = None
        # Copy the operations without a reference to the owner of this object, so that both are
        # freed together.
        ops = copy.copy(problem.ops)
        ops.backend = problem.ops.backend.without_spare_buffers()  # type: ignore[attr-defined]
        self._program = dataclasses.replace(
            problem,
            demand=torch.zeros_like(problem.demand, dtype=dtype),
            capacity=torch.zeros_like(problem.capacity, dtype=dtype).contiguous(),
            demand_value=torch.zeros_like(problem.demand_value, dtype=dtype),
            link_cost=torch.zeros_like(problem.link_cost, dtype=dtype),
            ops=ops,
        )

    @staticmethod
    def accepts(problem: Problem) -> bool:
        """Return whether the launches of a problem can be captured in a CUDA graph.

        It must be a linear program without side conditions, with demands and links, on a GPU with
        numba-cuda: the host branches on no values of such a program.
        """
        if problem.conditions or not problem.is_linear or problem.is_empty:
            return False
        return problem.ops.is_over_paths and problem.ops.backend.name == "cuda"

    def take(self, problem: Problem) -> None:
        """Copy the values of a program into the fixed tensors, after pending work on the stream of
        the last copy.
        """
        self.take_demand(problem.demand)
        for field in ("capacity", "demand_value", "link_cost"):
            getattr(self._program, field).copy_(getattr(problem, field))

    def take_demand(self, demand: Tensor) -> None:
        """Copy demands into the fixed tensors, after pending work on the stream of the last copy.

        Args:
            demand: (B, D) Gbit/s; on the CPU in pinned memory, so that the host does not wait.
        """
        if self.device.type == "cuda":
            current = torch.cuda.current_stream(self.device)
            if self._last_stream is not None:
                current.wait_stream(self._last_stream)
            self._last_stream = current
        self._program.demand.copy_(demand, non_blocking=True)

    def problem(self) -> Problem:
        """Return the program over the fixed tensors, as a new object without cached results."""
        return self._program.with_known_branches(
            has_link_cost=self._shape.has_link_cost, may_fail=self._shape.may_fail
        )

    @property
    def demand(self) -> Tensor:
        """Demands in the fixed memory, (B, D) Gbit/s."""
        return self._program.demand
