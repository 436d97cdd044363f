"""A PriceGNN as a scheme: any network, any objective, splits and prices, so that its answers are certified."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from teal.allocation import Allocation
from teal.errors import InputError
from teal.learning.checkpoint import is_price_model, load_price_model
from teal.network import PathSet
from teal.nn import PriceGNN
from teal.parallel import threads_for
from teal.problem import Problem
from teal.solvers import pdhg
from teal.solvers.split_table import admit
from teal.spec import Spec
from teal.storage import model_folder

DEFAULT_MODEL = Path("universal")


@dataclasses.dataclass(frozen=True)
class PriceAllocatorConfig:
    """How the answer is finished.

    Attributes:
        rounds, bound_rounds: of the network; 0 for what it was made for.
        repair: ``none`` to project what the network says, or ``pdhg`` to go on from its splits and prices.
        entries: of a split table that the answer is rounded to (:mod:`teal.solvers.split_table`); 0 for none.
        gap: of PDHG, certified, at which it stops; iterations: the most it does.
    """

    rounds: int = 0
    bound_rounds: int = 0
    repair: str = "none"
    entries: int = 0
    gap: float = 1e-2
    iterations: int = 10_000


LARGE = 50_000  # paths, from which on PDHG is sooner done from the model than from nothing (docs/learning.md)
_START = PriceAllocatorConfig(rounds=4, bound_rounds=4)


class PriceAllocator:
    """See the module."""

    def __init__(self, model: PriceGNN, config: PriceAllocatorConfig | None = None) -> None:
        self.model, self.config = model, config or PriceAllocatorConfig()

    @torch.no_grad()
    def solve(self, problem: Problem) -> Allocation:
        """Allocate every matrix of ``problem``; times are the batch's, divided evenly."""
        with threads_for(_operations(problem), torch_too=True):
            return self._solve(problem)

    @torch.no_grad()
    def start(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """What the network says, (B, D, K) and (B, E), float32."""
        self.model.to(problem.demand.device)
        config = self.config
        with threads_for(_operations(problem), torch_too=True):
            rounds, prices = self.model(problem.to(torch.float32), config.rounds or None, config.bound_rounds or None)
        return rounds[-1].splits, prices

    def _solve(self, problem: Problem) -> Allocation:
        begin, config = time.perf_counter(), self.config
        start = self.start(problem)
        problem = problem.to(torch.float64)
        # Without iterations what is left is the engine's projection, which is fused.
        most, gap = (config.iterations, config.gap) if config.repair == "pdhg" else (0, 0.0)
        found = pdhg.solve(problem, gap=gap, max_iterations=most, warm_start=start)
        splits, prices = found.splits, found.prices
        if config.entries:
            splits = admit(problem, splits, config.entries)
        if splits.is_cuda:
            torch.cuda.synchronize(splits.device)
        return Allocation.of_batch(splits, prices, time.perf_counter() - begin)


def _operations(problem: Problem) -> int:
    """Of a round, as the compiled rounds count them."""
    packed = problem.paths.packed
    return 4 * problem.batch * (len(packed.above) + packed.num_paths)


def starter(name: str) -> PriceAllocator | None:
    """Where PDHG starts from: the universal model (``auto``), nothing (``none``), or the PriceGNN of a folder.

    Raises:
        InputError: no PriceGNN of that name.
    """
    if name == "none":
        return None
    folder = model_folder(DEFAULT_MODEL if name == "auto" else Path(name))
    return PriceAllocator(load_price_model(folder)[0], _START)


def starter_for(name: str, paths: PathSet) -> PriceAllocator | None:
    """The same for these paths: ``auto`` is nothing on small networks, where that is sooner."""
    return None if name == "auto" and int(paths.mask.sum()) < LARGE else starter(name)


def make(spec: Spec, model: Path | None) -> PriceAllocator:
    """``price-gnn[:rounds=8,bound_rounds=8,repair=none|pdhg,entries=0,gap=0.01,iterations=10000]``.

    With the universal network or, if that is a PriceGNN, the one of ``--model``.
    """
    options: Any = spec.take(**dataclasses.asdict(PriceAllocatorConfig()))
    config = PriceAllocatorConfig(**options)
    if config.repair not in ("none", "pdhg"):
        raise InputError(spec.text, "repair", "none or pdhg", repr(config.repair))
    for option in ("rounds", "bound_rounds", "entries", "gap", "iterations"):
        if not getattr(config, option) >= 0:
            raise InputError(spec.text, option, "a number >= 0", getattr(config, option))
    folder = None if model is None else model_folder(model)
    own = folder is not None and is_price_model(folder)
    network, _ = load_price_model(folder if folder and own else model_folder(DEFAULT_MODEL))
    return PriceAllocator(network, config)
