"""The scheme ``teal``: a network's own trained model, FlowGNN, and the repair of its splits.

The model outputs splits and link prices; ADMM or PDHG repairs the splits; the projection makes them feasible.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from teal.errors import InputError
from teal.network import PathSet
from teal.network.extension import first_columns
from teal.nn.checkpoint import FlowGnnCard, check_fits, load_flow_gnn
from teal.nn.teal_model import TealModel
from teal.problem import Allocation, Problem, scaled_dual_bound
from teal.runtime.parallel import threads_for
from teal.runtime.storage import model_folder
from teal.solvers import admm, pdhg
from teal.solvers.projection import project
from teal.spec import Spec

REPAIRS = ("auto", "admm", "pdhg", "none")
_DEFAULT_PDHG_ITERATIONS = 10_000


@dataclasses.dataclass(frozen=True)
class FlowGnnSchemeConfig:
    """How the model's splits are repaired.

    Attributes:
        repair: ``admm``; ``pdhg``, which iterates until ``gap`` is certified; ``none``, to project only; or ``auto``:
            none for a model that was trained for a later matrix than the one it is given, else admm.
        iterations: of ADMM, -1 for the paper's (2 below 100 nodes, 5 from there on); of PDHG at most, -1 for 10,000.
        gap: certified gap at which PDHG stops.
        rho: relative penalty of ADMM (see :func:`teal.solvers.admm.scaling`).
        refill: rounds in which flows that the projection has cut take up unused capacity.
    """

    repair: str = "auto"
    iterations: int = -1
    gap: float = 1e-2
    rho: float = admm.DEFAULT_RHO
    refill: int = 4


class FlowGnnScheme:
    """A model as a scheme.

    Args:
        model: the model.
        config: how its splits are repaired.
        card: of the checkpoint, to check each problem against; None for a model that is being trained.
        folder: of the checkpoint, for messages.
    """

    def __init__(
        self,
        model: TealModel,
        config: FlowGnnSchemeConfig | None = None,
        card: FlowGnnCard | None = None,
        folder: Path = Path(),
    ) -> None:
        self.model, self.config = model, config or FlowGnnSchemeConfig()
        self._card, self._folder = card, folder
        self._first: tuple[PathSet, PathSet] | None = None  # paths of a problem, and the first K of each demand

    @torch.no_grad()
    def solve(self, problem: Problem) -> Allocation:
        """Allocate every matrix of ``problem``; the time is divided evenly among them.

        Raises:
            InputError: the checkpoint is for another objective.
        """
        with threads_for(problem.path_mask.numel() * self.model.config.width, torch_too=True):
            return self._solve(problem)

    @torch.no_grad()
    def start(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """The model's splits (B, D, K) and prices (B, E), before any repair.

        A model for J paths a demand splits over the first J of more paths, which carry most in a chosen set.

        Raises:
            InputError: the checkpoint is for another objective.
        """
        if self._card is not None:
            check_fits(self._card, self._folder, problem.objective)
            self.model.to(problem.demand.device)
        all_paths, count = problem.paths, self.model.config.num_paths
        if all_paths.num_paths != count:
            if self._first is None or self._first[0] is not all_paths:
                self._first = all_paths, first_columns(all_paths, count)
            problem = problem.with_paths(self._first[1])
        in_model_type = problem.to(self.model.dtype)
        means, prices = self.model(in_model_type)
        splits = self.model.splits(means, in_model_type)
        return torch.nn.functional.pad(splits, (0, all_paths.num_paths - count)), prices

    def _solve(self, problem: Problem) -> Allocation:
        if problem.demand.is_cuda:
            torch.cuda.synchronize(problem.demand.device)
        begin = time.perf_counter()
        splits, prices = (v.to(torch.float64) for v in self.start(problem))
        problem = problem.to(torch.float64)
        match self.config.repair:
            case "none":
                splits = project(problem, splits, self.config.refill)
            case "auto" | "admm":
                splits, prices = self._by_admm(problem, splits, prices)
            case _:  # PDHG checks the model's own splits first, and returns the best that it has checked
                asked = self.config.iterations
                result = pdhg.solve(
                    problem.weighted,
                    gap=self.config.gap,
                    max_iterations=_DEFAULT_PDHG_ITERATIONS if asked < 0 else asked,
                    warm_start=(splits, prices),
                )
                splits, prices = result.splits, result.prices
        if splits.is_cuda:
            torch.cuda.synchronize(splits.device)
        return Allocation.of_batch(splits, prices, time.perf_counter() - begin)

    def _by_admm(self, problem: Problem, splits: Tensor, prices: Tensor) -> tuple[Tensor, Tensor]:
        """Splits and prices after the repair, never worse than without it.

        Both the model's own splits and the repaired ones are projected, and for each matrix the better are kept:
        a few iterations improve a good start but may spoil a poor one.  Likewise the prices with the closer bound.
        """
        count, refill = self.config.iterations, self.config.refill
        count = admm.default_iterations(problem) if count < 0 else count
        result = admm.solve(problem, splits, count, self.config.rho, prices)
        unrepaired, repaired = project(problem, splits, refill), project(problem, result.splits, refill)
        sign = problem.objective.rules.sense
        best = _better(unrepaired, repaired, sign * problem.value(unrepaired), sign * problem.value(repaired))
        bound, repaired_bound = (scaled_dual_bound(problem, p) for p in (prices, result.prices))
        return best, _better(prices, result.prices, -sign * bound, -sign * repaired_bound)


def _better(a: Tensor, b: Tensor, score_a: Tensor, score_b: Tensor) -> Tensor:
    """For each row whichever has the higher score (B,); ``a`` on a tie."""
    return torch.where((score_b > score_a).view(-1, *[1] * (a.dim() - 1)), b, a)


def make(spec: Spec, model: Path | None) -> FlowGnnScheme:
    """``teal[:repair=auto|admm|pdhg|none,iterations=-1,gap=0.01,rho=0.3,refill=4]``, with the model of ``--model``.

    ``model`` is a folder, or the name of a checkpoint that comes with Teal (``b4``).
    """
    options: Any = spec.parse_options(**dataclasses.asdict(FlowGnnSchemeConfig()))
    config = FlowGnnSchemeConfig(**options)
    if config.repair not in REPAIRS:
        raise InputError(spec.text, "repair", " or ".join(REPAIRS), repr(config.repair))
    for option, expected, good in (
        ("rho", "a number > 0", config.rho > 0),
        ("gap", "a number >= 0", config.gap >= 0),
        ("refill", "a number >= 0", config.refill >= 0),
    ):
        if not good:
            raise InputError(spec.text, option, expected, getattr(config, option))
    if model is None:
        raise InputError(spec.text, "model", "the folder of a trained model (--model DIR)", "none")
    folder = model_folder(model)
    network, card = load_flow_gnn(folder)
    return FlowGnnScheme(network, config, card, folder)
