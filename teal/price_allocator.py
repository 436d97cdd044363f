"""A PriceGNN as a scheme: any network, any objective, splits and prices, so that its answers are certified."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import torch

from teal.allocation import Allocation, Status
from teal.errors import InputError
from teal.learning.checkpoint import load_price_model
from teal.nn import PriceGNN
from teal.parallel import threads_for
from teal.problem import Problem
from teal.solvers import pdhg
from teal.spec import Spec
from teal.storage import model_folder

DEFAULT_MODEL = Path("universal")


@dataclasses.dataclass(frozen=True)
class PriceAllocatorConfig:
    """How the answer is finished.

    Attributes:
        repair: ``none`` to project what the network says, or ``pdhg`` to go on from its splits and prices.
        gap: of PDHG, certified, at which it stops; iterations: the most it does.
    """

    repair: str = "none"
    gap: float = 1e-2
    iterations: int = 10_000


class PriceAllocator:
    """See the module."""

    def __init__(self, model: PriceGNN, config: PriceAllocatorConfig | None = None) -> None:
        self.model, self.config = model, config or PriceAllocatorConfig()

    @torch.no_grad()
    def solve(self, problem: Problem) -> Allocation:
        """Allocate every matrix of ``problem``; times are the batch's, divided evenly."""
        self.model.to(problem.demand.device)
        with threads_for(problem.path_mask.numel(), torch_too=True):
            return self._solve(problem)

    def _solve(self, problem: Problem) -> Allocation:
        begin, config, count = time.perf_counter(), self.config, problem.batch
        rounds, prices = self.model(problem.to(torch.float32))
        problem = problem.to(torch.float64)
        splits, prices = rounds[-1].splits.to(torch.float64), prices.to(torch.float64)
        # Without iterations what is left is the engine's projection, which is fused.
        most, gap = (config.iterations, config.gap) if config.repair == "pdhg" else (0, 0.0)
        found = pdhg.solve(problem, gap=gap, max_iterations=most, warm_start=(splits, prices))
        splits, prices = found.splits, found.prices
        if splits.is_cuda:
            torch.cuda.synchronize(splits.device)
        each = (time.perf_counter() - begin) / count
        return Allocation(splits, prices, (Status.FEASIBLE,) * count, (0.0,) * count, (each,) * count)


def make(spec: Spec, model: Path | None) -> PriceAllocator:
    """``price-gnn[:repair=none|pdhg,gap=0.01,iterations=10000]``, with ``--model`` or the universal one."""
    options: Any = spec.take(**dataclasses.asdict(PriceAllocatorConfig()))
    config = PriceAllocatorConfig(**options)
    if config.repair not in ("none", "pdhg"):
        raise InputError(spec.text, "repair", "none or pdhg", repr(config.repair))
    for option in ("gap", "iterations"):
        if not getattr(config, option) >= 0:
            raise InputError(spec.text, option, "a number >= 0", getattr(config, option))
    network, _ = load_price_model(model_folder(model or DEFAULT_MODEL))
    return PriceAllocator(network, config)
