"""The scheme ``price-gnn``: a PriceGNN, for any network and objective, whose prices certify its
allocations.
"""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from teal.errors import InputError
from teal.network import PathSet
from teal.nn.checkpoint import PRICE_GNN_KIND, check_kind, load_price_gnn
from teal.nn.price_gnn import PriceGNN
from teal.nn.recorded import RecordedPasses
from teal.problem import Allocation, Problem
from teal.runtime.parallel import threads_for
from teal.runtime.storage import model_folder
from teal.schemes.repair import BALANCED_GAP, BALANCING_ITERATIONS, check_model_knows, weights_of
from teal.solvers import pdhg
from teal.solvers.pdhg.fused.rehearsal import three_nodes
from teal.solvers.table_search import in_tables
from teal.spec import Spec

DEFAULT_CHECKPOINT = Path("universal")  # the PriceGNN that comes with Teal
# paths, from which on PDHG ends sooner from the model than from nothing (docs/learning.md)
LARGE = 50_000
_OPERATIONS_PER_ENTRY = (
    4  # scalar operations that a trie node or path takes in a round, approximately
)


@dataclasses.dataclass(frozen=True)
class PriceGnnSchemeConfig:
    """How many rounds are made, and how the splits are finished.

    Attributes:
        rounds: rounds of the allocating pass; 0 for the number that the model was trained for.
        bound_rounds: rounds of the bounding pass; 0 likewise.
        repair: ``none`` to project the splits (under the balanced programs: 64 iterations of PDHG),
            or ``pdhg`` to continue from splits and prices.
        entries: entries of a split table that the splits are rounded to
            (:mod:`teal.solvers.split_table`); 0 for none.
        gap: certified gap at which PDHG stops.
        iterations: iterations of PDHG, at most.
    """

    rounds: int = 0
    bound_rounds: int = 0
    repair: str = "none"
    entries: int = 0
    gap: float = 1e-2
    iterations: int = 10_000


# Rounds of the allocating pass for a program of n iterations from nothing: 2.2 sqrt(n) within these
# limits, the fewest after which PDHG ends first in the median, to 1% and to 0.1%.
_ROUNDS_PER_ROOT = 2.2
_MIN_ROUNDS = 14
_MAX_ROUNDS = 40
# rounds of each pass on a sample; with more the prices fit it better, and the other demands less
_SAMPLE_ROUNDS = 6


class PriceGnnScheme:
    """A PriceGNN as a scheme."""

    def __init__(self, model: PriceGNN, config: PriceGnnSchemeConfig | None = None) -> None:
        self.model = model
        self.config = config or PriceGnnSchemeConfig()
        self._passes = RecordedPasses()
        self._has_rehearsed = False

    @torch.no_grad()
    def solve(self, problem: Problem) -> Allocation:
        """Allocate every matrix of ``problem``; the time is divided evenly among them."""
        problem.objective.require_an_allocation("price-gnn")
        with threads_for(_operations(problem), torch_too=True):
            return self._solve(problem)

    @torch.no_grad()
    def start(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """The model's splits (B, D, K) and prices (B, E), float32."""
        return self._start(problem, self.config.rounds, self.config.bound_rounds)

    def rehearse(self, problem: Problem) -> None:
        """Call on three nodes the kernels that :meth:`start` calls on the CPU, once."""
        if problem.demand.device.type == "cpu" and not self._has_rehearsed:
            self._has_rehearsed = True
            self.start(three_nodes())

    def rounds_for(self, iterations: float) -> int:
        """Rounds of both passes of :meth:`start_for`."""
        return sum(self._rounds_for(iterations))

    def _rounds_for(self, iterations: float) -> tuple[int, int]:
        adapted = min(
            max(round(_ROUNDS_PER_ROOT * math.sqrt(iterations)), _MIN_ROUNDS), _MAX_ROUNDS
        )
        return (
            self.config.rounds or adapted,
            self.config.bound_rounds or self.model.config.bound_rounds,
        )

    @torch.no_grad()
    def start_for(self, problem: Problem, iterations: float) -> tuple[Tensor, Tensor]:
        """:meth:`start` for a program that would take so many iterations from nothing."""
        return self._start(problem, *self._rounds_for(iterations))

    @torch.no_grad()
    def start_sample(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """:meth:`start` of a sample of the demands, to whose prices all demands respond."""
        return self._start(problem, _SAMPLE_ROUNDS, _SAMPLE_ROUNDS)

    def _start(self, problem: Problem, rounds: int, bound_rounds: int) -> tuple[Tensor, Tensor]:
        if next(self.model.parameters()).device != problem.demand.device:
            self.model.to(problem.demand.device)

        model = self.model

        def forward(problem: Problem) -> tuple[Tensor, Tensor]:
            results, prices = model(problem, rounds or None, bound_rounds or None)
            return results[-1].splits, prices

        with threads_for(_operations(problem), torch_too=True):
            return self._passes.run(model, forward, problem, rounds, bound_rounds)

    def _solve(self, problem: Problem) -> Allocation:
        check_model_knows("price-gnn", problem)
        begin = time.perf_counter()
        config = self.config
        start = self.start(problem)
        problem = problem.to(torch.float64)
        # Without iterations only the engine's projection is done, which is compiled; float32 needs
        # no further kernels.
        max_iterations = 0
        gap = 0.0
        if config.repair == "pdhg":
            max_iterations = config.iterations
            gap = config.gap
        elif problem.demand_set.carries_all:
            max_iterations = BALANCING_ITERATIONS
            gap = BALANCED_GAP
        result = pdhg.solve(
            problem.weighted,
            gap=gap,
            max_iterations=max_iterations,
            warm_start=start,
            dtype=None if max_iterations else torch.float32,
        )
        splits = result.splits
        if config.entries:
            splits = in_tables(problem, splits, config.entries)
        if splits.is_cuda:
            torch.cuda.synchronize(splits.device)
        return Allocation.of_batch(splits, result.prices, time.perf_counter() - begin)


def _operations(problem: Problem) -> int:
    """Scalar operations of a compiled round, approximately."""
    packed = problem.paths.packed
    return _OPERATIONS_PER_ENTRY * problem.batch * (packed.num_nodes + packed.num_paths)


def saves_time(paths: PathSet) -> bool:
    """Whether PDHG ends sooner with the model that comes with Teal than without a model: not on
    small networks.
    """
    return int(paths.mask.sum()) >= LARGE


def make(spec: Spec, model: Path | None) -> PriceGnnScheme:
    """``price-gnn[:rounds=8,bound_rounds=8,repair=none|pdhg,entries=0,gap=0.01,iterations=10000,model=,
    weights=trained,seed=0]``.

    With the PriceGNN of ``model`` or else of ``--model``, a folder or a name that comes with Teal
    (``universal``, which is taken without any).  ``weights=random`` as of the scheme ``teal``.
    """
    options: Any = spec.parse_options(
        **dataclasses.asdict(PriceGnnSchemeConfig()), model="", weights="trained", seed=0
    )
    named, weights, seed = (options.pop(name) for name in ("model", "weights", "seed"))
    config = PriceGnnSchemeConfig(**options)
    if config.repair not in ("none", "pdhg"):
        raise InputError(spec.text, "repair", "none or pdhg", repr(config.repair))
    for option in ("rounds", "bound_rounds", "entries", "gap", "iterations"):
        if not getattr(config, option) >= 0:
            raise InputError(spec.text, option, "a number >= 0", getattr(config, option))
    folder = model_folder(Path(named or model or DEFAULT_CHECKPOINT))
    check_kind(folder, PRICE_GNN_KIND, spec.name)
    trained, card = load_price_gnn(folder)
    return PriceGnnScheme(
        weights_of(spec.text, weights, seed, trained, lambda: PriceGNN(card.model)), config
    )
