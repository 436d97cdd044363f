"""The scheme ``price-gnn``: a PriceGNN for any network and objective, with a certified gap.

The model outputs splits and link prices, whose dual bound certifies the allocation.  Entry points:
:class:`PriceGnnScheme`, :func:`make`.
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
from teal.solvers import pipeline
from teal.solvers.pdhg.fused.warm_up import three_nodes
from teal.solvers.table_search import round_to_tables
from teal.spec import Spec

DEFAULT_CHECKPOINT = Path("universal")  # the PriceGNN that comes with Teal
# Number of paths from which PDHG takes less time with the model than without (docs/learning.md).
LARGE = 50_000
_OPERATIONS_PER_ENTRY = 4  # scalar operations per trie node or path in a round, approximately


@dataclasses.dataclass(frozen=True)
class PriceGnnSchemeConfig:
    """Numbers of message-passing rounds of the model, and options of the repair of its splits.

    Attributes:
        rounds: rounds of the pass that predicts splits; 0 for the number in the training.
        bound_rounds: rounds of the pass that predicts prices; 0 for the number in the training.
        repair: ``none`` to project the splits (under the min-max programs: 64 iterations of PDHG),
            or ``pdhg`` to continue from splits and prices.
        entries: entries of the split table to whose ratios splits are rounded; 0 for no tables.
        gap: certified gap at which PDHG stops.
        iterations: iteration limit of PDHG.
    """

    rounds: int = 0
    bound_rounds: int = 0
    repair: str = "none"
    entries: int = 0
    gap: float = 1e-2
    iterations: int = 10_000


# Rounds of the allocating pass for a program of n iterations after a cold start: 2.2 sqrt(n) within
# these limits.  With these PDHG takes the least time in the median, to gaps of 1% and of 0.1%.
_ROUNDS_PER_ROOT = 2.2
_MIN_ROUNDS = 14
_MAX_ROUNDS = 40
# Rounds of each pass on a sample; with more, prices overfit the sampled demands.
_SAMPLE_ROUNDS = 6


class PriceGnnScheme:
    """Scheme that predicts splits and link prices by a PriceGNN, and may repair the splits by PDHG.

    Args:
        model: the model.
        config: rounds and repair; None for the defaults.
    """

    def __init__(self, model: PriceGNN, config: PriceGnnSchemeConfig | None = None) -> None:
        self.model = model
        self.config = config or PriceGnnSchemeConfig()
        self._passes = RecordedPasses()
        self._has_compiled_kernels = False

    @torch.no_grad()
    def solve(self, problem: Problem) -> Allocation:
        """Return the allocation of all matrices; each gets an equal part of the time.

        Raises:
            InputError: models do not support the problem.
        """
        problem.objective.require_an_allocation("price-gnn")
        with threads_for(_operations_of_round(problem), torch_too=True):
            return self._solve(problem)

    @torch.no_grad()
    def start(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Return the splits (B, D, K) and link prices (B, E) of the model, float32."""
        return self._start(problem, self.config.rounds, self.config.bound_rounds)

    def warm_up_kernels(self, problem: Problem) -> None:
        """Compile the CPU kernels of :meth:`start` by one call on three nodes."""
        if problem.demand.device.type == "cpu" and not self._has_compiled_kernels:
            self._has_compiled_kernels = True
            self.start(three_nodes())

    def rounds_for(self, iterations: float) -> int:
        """Return the number of rounds of both passes together for a program.

        Args:
            iterations: predicted number of iterations of the program after a cold start.
        """
        return sum(self._rounds_for(iterations))

    def _rounds_for(self, iterations: float) -> tuple[int, int]:
        """Return the rounds of the pass for splits and of the pass for prices.

        Args:
            iterations: predicted number of iterations of the program after a cold start.
        """
        adaptive_rounds = min(
            max(round(_ROUNDS_PER_ROOT * math.sqrt(iterations)), _MIN_ROUNDS), _MAX_ROUNDS
        )
        return (
            self.config.rounds or adaptive_rounds,
            self.config.bound_rounds or self.model.config.bound_rounds,
        )

    @torch.no_grad()
    def start_for(self, problem: Problem, iterations: float) -> tuple[Tensor, Tensor]:
        """Return splits (B, D, K) and link prices (B, E), after more rounds for harder programs.

        Args:
            problem: B matrices.
            iterations: predicted number of iterations after a cold start; more get more rounds.
        """
        return self._start(problem, *self._rounds_for(iterations))

    @torch.no_grad()
    def start_sample(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Return splits (B, D, K) and link prices (B, E) for a sample of the demands.

        Few rounds are run, since prices would overfit the sample.
        """
        return self._start(problem, _SAMPLE_ROUNDS, _SAMPLE_ROUNDS)

    def _start(self, problem: Problem, rounds: int, bound_rounds: int) -> tuple[Tensor, Tensor]:
        """Run the model, and return its splits (B, D, K) and link prices (B, E).

        Args:
            problem: B matrices.
            rounds: rounds of the pass for splits; 0 for the number in the training.
            bound_rounds: rounds of the pass for prices; 0 for the number in the training.
        """
        # Move the model to the device of the problem.
        if next(self.model.parameters()).device != problem.demand.device:
            self.model.to(problem.demand.device)

        model = self.model

        def forward(problem: Problem) -> tuple[Tensor, Tensor]:
            # Splits after the last round, and prices.
            results, prices = model(problem, rounds or None, bound_rounds or None)
            return results[-1].splits, prices

        with threads_for(_operations_of_round(problem), torch_too=True):
            return self._passes.run(model, forward, problem, rounds, bound_rounds)

    def _solve(self, problem: Problem) -> Allocation:
        """Return the allocation of every matrix: predicted, repaired, and rounded to tables.

        Splits are rounded only if the options have table entries.
        """
        check_model_knows("price-gnn", problem)
        begin = time.perf_counter()
        config = self.config
        start = self.start(problem)
        problem = problem.to(torch.float64)
        # Without iterations PDHG only projects the splits, in float32, which needs no further
        # kernels.  Min-max programs always get some iterations.
        max_iterations = 0
        gap = 0.0
        if config.repair == "pdhg":
            max_iterations = config.iterations
            gap = config.gap
        elif problem.demand_set.carries_all:
            max_iterations = BALANCING_ITERATIONS
            gap = BALANCED_GAP
        result = pipeline.solve(
            problem.weighted,
            gap=gap,
            max_iterations=max_iterations,
            warm_start=start,
            dtype=None if max_iterations else torch.float32,
        )
        # Round the splits to tables; on a GPU wait for the end of the work.
        splits = result.splits
        if config.entries:
            splits = round_to_tables(problem, splits, config.entries)
        if splits.is_cuda:
            torch.cuda.synchronize(splits.device)
        return Allocation.of_batch(splits, result.prices, time.perf_counter() - begin)


def _operations_of_round(problem: Problem) -> int:
    """Return the approximate number of scalar operations of a round, which sets the threads."""
    packed = problem.paths.packed
    return _OPERATIONS_PER_ENTRY * problem.batch * (packed.num_nodes + packed.num_paths)


def saves_time(paths: PathSet) -> bool:
    """Return whether PDHG takes less time with the model that comes with Teal than without it.

    This is so for path sets of at least 50,000 paths.
    """
    return int(paths.mask.sum()) >= LARGE


def make(spec: Spec, model: Path | None) -> PriceGnnScheme:
    """Create the scheme of a specification ``price-gnn[:OPTION=VALUE,...]``.

    The options are ``rounds=0``, ``bound_rounds=0``, ``repair=none|pdhg``, ``entries=0``,
    ``gap=0.01``, ``iterations=10000``, ``model=``, ``weights_option=trained`` and ``seed=0``.  The
    option
    ``model``, else the argument ``model``, else ``universal`` sets the PriceGNN: a folder, or the
    name of a model that comes with Teal.  ``weights_option=random`` replaces the trained weights by
    random ones, drawn with ``seed``, as a control.

    Args:
        spec: name and options of the scheme.
        model: folder or name of a PriceGNN; None for the default.

    Raises:
        InputError: an unknown option, an invalid value, or no such model.
    """
    # Parse and check the options.
    options: Any = spec.parse_options(
        **dataclasses.asdict(PriceGnnSchemeConfig()), model="", weights="trained", seed=0
    )
    model_option, weights_option, seed = (
        options.pop(name) for name in ("model", "weights", "seed")
    )
    config = PriceGnnSchemeConfig(**options)
    if config.repair not in ("none", "pdhg"):
        raise InputError(spec.text, "repair", "none or pdhg", repr(config.repair))
    for option in ("rounds", "bound_rounds", "entries", "gap", "iterations"):
        if not getattr(config, option) >= 0:
            raise InputError(spec.text, option, "a number >= 0", getattr(config, option))
    # Load the model.
    folder = model_folder(Path(model_option or model or DEFAULT_CHECKPOINT))
    check_kind(folder, PRICE_GNN_KIND, spec.name)
    trained, card = load_price_gnn(folder)
    return PriceGnnScheme(
        weights_of(spec.text, weights_option, seed, trained, lambda: PriceGNN(card.model)), config
    )
