"""Programs whose tensors stay where they are, so that recorded launches can read them again."""

from __future__ import annotations

import copy
import dataclasses

import torch
from torch import Tensor

from teal.objectives import Objective
from teal.problem.problem import Problem


@dataclasses.dataclass(frozen=True)
class ProgramShape:
    """The programs for which the same launches are recorded, over one set of paths.

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
        """The shape of a program with a demand and a link."""
        return cls(
            problem.batch,
            problem.objective,
            problem.has_link_cost,
            problem.extremes.smallest_capacity <= 0,
        )


class FixedProgram:
    """A program at a fixed place, into which others of its shape are copied.

    Args:
        problem: the first program, on a GPU with numba-cuda, without side conditions.
        shape: its shape.
        dtype: type of the tensors.

    Attributes:
        device: the GPU.
    """

    @torch.inference_mode(False)  # the tensors outlive the inference mode that the caller may be in
    def __init__(self, problem: Problem, shape: ProgramShape, dtype: torch.dtype) -> None:
        self._shape = shape
        self.device = problem.demand.device
        self._stream: torch.cuda.Stream | None = None  # of the last use
        # Operations without a reference to what keeps this object, so that both are freed at once.
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
        """Whether launches that read no numbers of the program but its tensors can be recorded: a
        linear one without side conditions, on a GPU with numba-cuda.
        """
        if problem.conditions or not problem.is_linear or problem.is_empty:
            return False
        return problem.ops.is_over_paths and problem.ops.backend.name == "cuda"

    def take(self, problem: Problem) -> None:
        """Copy a program in, once what was done with the last one on another stream has ended."""
        self.take_demand(problem.demand)
        for field in ("capacity", "demand_value", "link_cost"):
            getattr(self._program, field).copy_(getattr(problem, field))

    def take_demand(self, demand: Tensor) -> None:
        """Copy other matrices in, as :meth:`take` does.

        Args:
            demand: (B, D) Gbit/s; on the CPU in pinned memory, for the host not to wait.
        """
        if self.device.type == "cuda":
            current = torch.cuda.current_stream(self.device)
            if self._stream is not None:
                current.wait_stream(self._stream)
            self._stream = current
        self._program.demand.copy_(demand, non_blocking=True)

    def problem(self) -> Problem:
        """The program, of which nothing has been computed yet."""
        return self._program.with_known_branches(
            has_link_cost=self._shape.has_link_cost, may_fail=self._shape.may_fail
        )

    @property
    def demand(self) -> Tensor:
        """(B, D) Gbit/s, at its place."""
        return self._program.demand
