"""The one inference path: encode -> allocate -> repair -> project -> certify."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from teal.allocation import Allocation
from teal.bounds import scaled_dual_bound
from teal.errors import InputError
from teal.learning.checkpoint import ModelCard, check_fits, load_model
from teal.nn import TealModel
from teal.parallel import threads_for
from teal.problem import Problem
from teal.solvers import admm, pdhg
from teal.solvers.projection import project
from teal.spec import Spec
from teal.storage import model_folder

REPAIRS = ("admm", "pdhg", "none")


@dataclasses.dataclass(frozen=True)
class AllocatorConfig:
    """How a model's answer is finished.

    Attributes:
        repair: ``admm``; ``pdhg``, which goes on until ``gap`` is certified; or ``none`` to project
            what the model says.
        iterations: of ADMM, -1 for the paper's, 2 below 100 nodes and 5 from there on; of PDHG the
            most, -1 for 10,000.
        gap: of PDHG, certified, at which it stops.
        rho: of ADMM, relative (see :func:`teal.solvers.admm.scaling`).
        refill: rounds in which the projection gives back capacity.
    """

    repair: str = "admm"
    iterations: int = -1
    gap: float = 1e-2
    rho: float = admm.DEFAULT_RHO
    refill: int = 4


class Allocator:
    """A trained model as a scheme."""

    def __init__(self, model: TealModel, config: AllocatorConfig | None = None) -> None:
        self.model, self.config = model, config or AllocatorConfig()

    @torch.no_grad()
    def solve(self, problem: Problem) -> Allocation:
        """Allocate every matrix of ``problem``; times are the batch's, divided evenly."""
        with threads_for(problem.path_mask.numel() * self.model.config.width, torch_too=True):
            return self._solve(problem)

    @torch.no_grad()
    def start(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """What the model says, (B, D, K) and (B, E), before any repair."""
        narrow = problem.to(self.model.dtype)
        means, prices = self.model(narrow)
        return self.model.splits(means, narrow), prices

    def _solve(self, problem: Problem) -> Allocation:
        if problem.demand.is_cuda:
            torch.cuda.synchronize(problem.demand.device)
        begin = time.perf_counter()
        splits, prices = (v.to(torch.float64) for v in self.start(problem))
        problem = problem.to(torch.float64)
        match self.config.repair:
            case "none":
                final = project(problem, splits, self.config.refill)
            case "admm":
                final, prices = self._by_admm(problem, splits, prices)
            case _:  # its first look is at the network's own answer, and it keeps the best it sees
                most = 10_000 if self.config.iterations < 0 else self.config.iterations
                found = pdhg.solve(problem, gap=self.config.gap, max_iterations=most, warm_start=(splits, prices))
                final, prices = found.splits, found.prices
        if final.is_cuda:
            torch.cuda.synchronize(final.device)
        return Allocation.of_batch(final, prices, time.perf_counter() - begin)

    def _by_admm(self, problem: Problem, splits: Tensor, prices: Tensor) -> tuple[Tensor, Tensor]:
        """Splits and prices after the repair.

        Both the model's own answer and the repaired one are projected, and the better is kept matrix
        by matrix: a few iterations repair a good start and may spoil a poor one.  Likewise the prices:
        the network's or the repair's, whichever certify the closer bound.
        """
        count, refill = self.config.iterations, self.config.refill
        count = admm.default_iterations(problem) if count < 0 else count
        found = admm.solve(problem, splits, count, self.config.rho, prices)
        own, repaired = project(problem, splits, refill), project(problem, found.splits, refill)
        up = 1 if problem.objective.higher_is_better else -1
        final = _better(own, repaired, up * problem.value(own), up * problem.value(repaired))
        bound, new_bound = (scaled_dual_bound(problem, p) for p in (prices, found.prices))
        return final, _better(prices, found.prices, -up * bound, -up * new_bound)


def _better(a: Tensor, b: Tensor, score_a: Tensor, score_b: Tensor) -> Tensor:
    """Row by row whichever scores higher; ``a`` on a tie."""
    return torch.where((score_b > score_a).view(-1, *[1] * (a.dim() - 1)), b, a)


@dataclasses.dataclass(frozen=True, eq=False)
class TealScheme:
    """A checkpoint as a scheme, checked against each problem it is given."""

    allocator: Allocator
    folder: Path
    card: ModelCard

    def solve(self, problem: Problem) -> Allocation:
        """Allocate every matrix.

        Raises:
            InputError: the model is for another K or objective.
        """
        self._check(problem)
        return self.allocator.solve(problem)

    def start(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """What the model says; raises as :meth:`solve` does."""
        self._check(problem)
        return self.allocator.start(problem)

    def _check(self, problem: Problem) -> None:
        check_fits(self.card, self.folder, problem.paths.num_paths, problem.objective)
        self.allocator.model.to(problem.demand.device)


def make(spec: Spec, model: Path | None) -> TealScheme:
    """``teal[:repair=admm|pdhg|none,iterations=-1,gap=0.01,rho=0.3,refill=4]``, with the model of ``--model``.

    ``model`` is a folder, or the name of a checkpoint that comes with Teal (``b4``).
    """
    options: Any = spec.take(**dataclasses.asdict(AllocatorConfig()))
    config = AllocatorConfig(**options)
    if config.repair not in REPAIRS:
        raise InputError(spec.text, "repair", " or ".join(REPAIRS), repr(config.repair))
    for option, good in (("rho", config.rho > 0), ("gap", config.gap >= 0), ("refill", config.refill >= 0)):
        if not good:
            raise InputError(spec.text, option, "a larger number", getattr(config, option))
    if model is None:
        raise InputError(spec.text, "model", "the folder of a trained model (--model DIR)", "none")
    folder = model_folder(model)
    network, card = load_model(folder)
    return TealScheme(Allocator(network, config), folder, card)
