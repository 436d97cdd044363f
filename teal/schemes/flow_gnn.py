"""The scheme ``teal``: FlowGNN allocates all demands at once, and its splits are repaired.

The model (Xu et al., SIGCOMM 2023) outputs splits and link prices; ADMM or PDHG repairs the splits;
the projection makes them feasible.  A model is trained for one network, or for any network (the one
that comes with Teal).  Entry points: :class:`FlowGnnScheme`, :func:`make`.
"""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from teal.errors import InputError
from teal.network.path_changes import first_paths_of_each
from teal.nn.checkpoint import (
    FLOW_GNN_KIND,
    FlowGnnCard,
    check_fits,
    check_kind,
    load_flow_gnn,
    new_flow_model,
)
from teal.nn.flow_models import FlowModel
from teal.nn.recorded import RecordedPasses
from teal.objectives import Objective
from teal.pathops import PathOps
from teal.problem import Allocation, Problem, dual_bound
from teal.problem.bounds import from_score, usable_prices
from teal.problem.fixed import FixedProgram
from teal.runtime.parallel import threads_for
from teal.runtime.storage import model_folder
from teal.schemes.repair import BALANCED_GAP, BALANCING_ITERATIONS, check_model_knows, weights_of
from teal.solvers import admm, admm_fused, pipeline
from teal.solvers.pdhg.dense import total_value
from teal.solvers.pdhg.reduction import has_ordinary_numbers
from teal.solvers.pdhg.search import LAST_REFILL
from teal.solvers.projection import project
from teal.solvers.table_search import round_to_tables
from teal.spec import Spec

DEFAULT_CHECKPOINT = Path("flow")  # the FlowGNN for any network that comes with Teal
REPAIRS = ("auto", "admm", "pdhg", "none")
_DEFAULT_PDHG_ITERATIONS = 10_000


@dataclasses.dataclass(frozen=True)
class FlowGnnSchemeConfig:
    """Options of the repair of the model's splits.

    Attributes:
        repair: ``admm``; ``pdhg``, which iterates until ``gap`` is certified; ``none``, to project
            only; or ``auto``: admm, under the min-max programs 64 iterations of PDHG.
        iterations: iterations of ADMM, -1 for the paper's (2 below 100 nodes, else 5); iteration
            limit of PDHG, -1 for 10,000.
        gap: certified gap at which PDHG stops.
        rho: penalty of ADMM, as a multiple of mean capacity times mean value.
        entries: entries of the split table to whose ratios splits are rounded; 0 for no tables.
    """

    repair: str = "auto"
    iterations: int = -1
    gap: float = 1e-2
    rho: float = admm.DEFAULT_RHO
    entries: int = 0


class FlowGnnScheme:
    """Scheme that predicts splits by a FlowGNN, and repairs them by ADMM or PDHG.

    Args:
        model: the model.
        config: options of the repair; None for the defaults.
        card: card of the checkpoint, which problems must fit; None for a model in training.
        folder: folder of the checkpoint, for messages.
    """

    def __init__(
        self,
        model: FlowModel,
        config: FlowGnnSchemeConfig | None = None,
        card: FlowGnnCard | None = None,
        folder: Path = Path(),
    ) -> None:
        self.model = model
        self.config = config or FlowGnnSchemeConfig()
        self._card = card
        self._folder = folder
        self._passes = RecordedPasses()
        # Path operations of the last problem, and those over the model's first K paths per demand.
        self._first_path_ops: tuple[PathOps, PathOps] | None = None

    @torch.no_grad()
    def solve(self, problem: Problem) -> Allocation:
        """Return the allocation of all matrices; each gets an equal part of the time.

        Raises:
            InputError: the checkpoint is for another objective, or models do not support the
                problem.
        """
        problem.objective.require_an_allocation("teal")
        with threads_for(
            problem.batch * problem.ops.mask.numel() * self.model.config.width, torch_too=True
        ):
            return self._solve(problem)

    def serves(self, objective: Objective) -> bool:
        """Return whether the model supports an objective: that of its training, or any."""
        try:
            if self._card is not None:
                check_fits(self._card, self._folder, objective)
        except InputError:
            return False
        return True

    @torch.no_grad()
    def start(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Return the splits (B, D, K) and link prices (B, E) of the model, before any repair.

        A model for J paths per demand uses the first J paths, those with the largest shares in a
        selected path set; other paths get 0.

        Raises:
            InputError: the checkpoint is for another objective.
        """
        self._check_objective(problem)
        all_paths = problem.paths
        config = self.model.config
        num_model_paths = all_paths.num_paths if config.takes_any_paths else config.num_paths
        # Restrict the problem to the model's paths; the path operations are cached.
        if all_paths.num_paths != num_model_paths:
            if self._first_path_ops is None or self._first_path_ops[0] is not problem.ops:
                first_paths = first_paths_of_each(all_paths, num_model_paths)
                self._first_path_ops = problem.ops, problem.with_paths(first_paths).ops
            problem = problem.with_ops(self._first_path_ops[1])
        # Built-in models have recorded passes; splits of further paths are 0.
        if config.is_built_in:
            splits, prices = self._passes.run(self.model, self.model.allocate, problem)
        else:
            splits, prices = self.model.allocate(problem.to(self.model.dtype))
        return torch.nn.functional.pad(splits, (0, all_paths.num_paths - num_model_paths)), prices

    def _check_objective(self, problem: Problem) -> None:
        """Check that the checkpoint is for a problem's objective, and move the model to its device.

        A model without a card, in training, stays as it is.

        Raises:
            InputError: the checkpoint is for another objective.
        """
        if self._card is not None:
            check_fits(self._card, self._folder, problem.objective)
            self.model.to(problem.demand.device)

    def _solve(self, problem: Problem) -> Allocation:
        """Return the allocation of every matrix: predicted, repaired, and rounded to tables.

        Splits are rounded only if the options have table entries.
        """
        check_model_knows("teal", problem)
        # On a GPU wait for earlier work, which does not count.
        if problem.demand.is_cuda:
            torch.cuda.synchronize(problem.demand.device)
        begin = time.perf_counter()
        # Predict splits and prices, and repair them.
        config = self.config
        carries_all = problem.demand_set.carries_all
        if config.repair == "admm" or (config.repair == "auto" and not carries_all):
            splits, prices = self._repair_by_admm(problem)
        else:
            splits, prices = (tensor.to(torch.float64) for tensor in self.start(problem))
            # Without iterations PDHG only projects the model's splits and bounds the optimum.
            max_iterations = 0
            gap = 0.0
            if config.repair == "pdhg":
                max_iterations = _DEFAULT_PDHG_ITERATIONS
                gap = config.gap
            elif config.repair == "auto":
                max_iterations = BALANCING_ITERATIONS
                gap = BALANCED_GAP
            if max_iterations and config.iterations >= 0:
                max_iterations = config.iterations
            splits, prices = _evaluate_by_pdhg(
                problem.to(torch.float64), splits, prices, max_iterations, gap
            )[:2]
        # Round the splits to tables.
        if config.entries:
            splits = round_to_tables(problem.to(torch.float64), splits, config.entries)
        if splits.is_cuda:
            torch.cuda.synchronize(splits.device)
        return Allocation.of_batch(splits, prices, time.perf_counter() - begin)

    def _repair_by_admm(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Return splits (B, D, K) and prices (B, E) after ADMM, never worse than without it.

        The model's splits and the repaired ones are both projected, and each matrix keeps the
        better splits: a few iterations improve a good start but may spoil a poor one.  Each matrix
        also keeps the prices with the tighter bound.
        """
        # Number of iterations: the paper's if the option is negative.
        num_iterations = self.config.iterations
        num_iterations = admm.default_iterations(problem) if num_iterations < 0 else num_iterations
        rho = self.config.rho
        self._check_objective(problem)
        # Model, repair and projection recorded together.
        if self._can_record_repair(problem):
            return self._passes.run(
                self.model,
                partial(self._repaired, num_iterations, rho),
                problem,
                "with ADMM",
                num_iterations,
                rho,
                dtype=torch.float64,
            )
        # One after the other: model, then ADMM in compiled passes or by torch, then evaluation.
        splits, prices = (tensor.to(torch.float64) for tensor in self.start(problem))
        problem = problem.to(torch.float64)
        is_compiled = admm_fused.accepts(problem)
        repair = admm_fused.solve if is_compiled else admm.repaired
        repaired_solution = repair(problem, splits, num_iterations, rho, prices)
        return _best_of_both(
            problem,
            _evaluate_by_pdhg(problem, splits, prices),
            _evaluate_by_pdhg(problem, *repaired_solution),
        )

    def _can_record_repair(self, problem: Problem) -> bool:
        """Return whether model, repair and projection can be recorded as one sequence for a GPU.

        They can for a problem over the model's paths that maximises a value as it is, without
        conversion to another program, with numbers of ordinary magnitudes.
        """
        config = self.model.config
        has_model_paths = config.takes_any_paths or config.num_paths == problem.paths.num_paths
        needs_no_conversion = problem.weighted is problem and problem.solved is problem
        if not (config.is_built_in and has_model_paths and needs_no_conversion):
            return False
        if problem.price_set.on_simplex or not FixedProgram.accepts(problem):
            return False
        return has_ordinary_numbers(problem)

    def _repaired(self, num_iterations: int, rho: float, problem: Problem) -> tuple[Tensor, Tensor]:
        """Return splits (B, D, K) and prices (B, E): the better of the model's and ADMM's results.

        All operations are torch operations that a GPU can record.

        Args:
            num_iterations: iterations of ADMM.
            rho: penalty of ADMM, as a multiple of mean capacity times mean value.
            problem: B matrices, float64.
        """
        model_problem = problem.to(self.model.dtype)
        splits, prices = (tensor.to(torch.float64) for tensor in self.model.allocate(model_problem))
        repaired_solution = admm.repaired(problem, splits, num_iterations, rho, prices)
        return _best_of_both(
            problem,
            _evaluate_by_torch(problem, splits, prices),
            _evaluate_by_torch(problem, *repaired_solution),
        )


class _Evaluation(NamedTuple):
    """Feasible splits and prices of B matrices, with their values and bounds.

    Attributes:
        splits: (B, D, K) feasible splits.
        prices: (B, E) value per Gbit/s.
        value: (B,) value of the splits.
        bound: (B,) dual bound of the prices.
    """

    splits: Tensor
    prices: Tensor
    value: Tensor
    bound: Tensor


def _evaluate_by_pdhg(
    problem: Problem, splits: Tensor, prices: Tensor, max_iterations: int = 0, gap: float = 0.0
) -> _Evaluation:
    """Project splits and bound the optimum by prices; PDHG may improve both.

    Without iterations only PDHG's compiled projection and bound run, in float32: the model's splits
    have this type, and no further kernels are needed.

    Args:
        problem: B matrices, float64.
        splits: (B, D, K) splits of a model.
        prices: (B, E) prices of a model.
        max_iterations: iteration limit of PDHG.
        gap: target gap of PDHG.
    """
    result = pipeline.solve(
        problem.weighted,
        gap=gap,
        max_iterations=max_iterations,
        warm_start=(splits, prices),
        dtype=None if max_iterations else torch.float32,
    )
    return _Evaluation(result.splits, result.prices, result.value, result.bound)


def _evaluate_by_torch(problem: Problem, splits: Tensor, prices: Tensor) -> _Evaluation:
    """Project splits and bound the optimum by prices, by torch operations alone.

    All numbers must have ordinary magnitudes.

    Args:
        problem: B matrices, float64.
        splits: (B, D, K) splits of a model.
        prices: (B, E) prices of a model; zeros replace prices whose bound is no tighter.
    """
    # Replace NaN and infinite splits by 0; the projection makes the splits feasible.
    finite_splits = splits.nan_to_num(0.0, 0.0, 0.0).clamp(min=0)
    splits = project(problem, finite_splits, LAST_REFILL)
    # With link costs more flow may have less value: compare with the projection without refill.
    if problem.has_link_cost:
        unrefilled_splits = project(problem, finite_splits, 0)
        splits = _select(
            splits, unrefilled_splits, problem.value(splits), problem.value(unrefilled_splits)
        )
    prices = usable_prices(problem, prices, max_ratio=1.0)
    bound = dual_bound(problem, prices)
    # Bound of zero prices.
    trivial_bound = from_score(problem, total_value(problem))
    # With the sense 1 of a maximum and -1 of a minimum, the tighter bound has the smaller product.
    sense = problem.objective.rules.sense
    is_tighter = sense * bound < sense * trivial_bound
    return _Evaluation(
        splits,
        torch.where(is_tighter[:, None], prices, 0),
        problem.value(splits),
        torch.where(is_tighter, bound, trivial_bound),
    )


def _best_of_both(
    problem: Problem, first: _Evaluation, second: _Evaluation
) -> tuple[Tensor, Tensor]:
    """Return the better splits (B, D, K) and the prices (B, E) of the tighter bound, by matrix."""
    # The sense is 1 for a maximum, -1 for a minimum: the higher score is better.
    sense = problem.objective.rules.sense
    return (
        _select(first.splits, second.splits, sense * first.value, sense * second.value),
        _select(first.prices, second.prices, -sense * first.bound, -sense * second.bound),
    )


def _select(a: Tensor, b: Tensor, score_a: Tensor, score_b: Tensor) -> Tensor:
    """Return for each matrix the row of ``a`` or of ``b``, by the higher score; ``a`` on a tie.

    Args:
        a, b: (B, ...) tensors.
        score_a, score_b: (B,) score of each row.
    """
    return torch.where((score_b > score_a).view(-1, *[1] * (a.dim() - 1)), b, a)


def make(spec: Spec, model: Path | None) -> FlowGnnScheme:
    """Create the scheme of a specification ``teal[:OPTION=VALUE,...]``.

    The options are ``repair=auto|admm|pdhg|none``, ``iterations=-1``, ``gap=0.01``, ``rho=0.3``,
    ``entries=0``, ``model=``, ``weights_option=trained`` and ``seed=0``.  The option ``model``,
    else the argument ``model``, else ``flow`` sets the FlowGNN: a folder, or the name of a model
    that comes with Teal.  ``weights_option=random`` replaces the trained weights by random ones,
    drawn with
    ``seed``: a control that shows the effect of the repair alone.

    Args:
        spec: name and options of the scheme.
        model: folder or name of a FlowGNN; None for the default.

    Raises:
        InputError: an unknown option, an invalid value, or no such model.
    """
    # Parse and check the options.
    options: Any = spec.parse_options(
        **dataclasses.asdict(FlowGnnSchemeConfig()), model="", weights="trained", seed=0
    )
    model_option, weights_option, seed = (
        options.pop(name) for name in ("model", "weights", "seed")
    )
    config = FlowGnnSchemeConfig(**options)
    if config.repair not in REPAIRS:
        raise InputError(spec.text, "repair", " or ".join(REPAIRS), repr(config.repair))
    for option, expected, is_valid in (
        ("rho", "a number > 0", config.rho > 0),
        ("gap", "a number >= 0", config.gap >= 0),
        ("entries", "an integer from 0 to 255", 0 <= config.entries <= 255),
    ):
        if not is_valid:
            raise InputError(spec.text, option, expected, getattr(config, option))
    # Load the model.
    folder = model_folder(Path(model_option or model or DEFAULT_CHECKPOINT))
    check_kind(folder, FLOW_GNN_KIND, spec.name)
    flow_model, card = load_flow_gnn(folder)
    flow_model = weights_of(
        spec.text, weights_option, seed, flow_model, lambda: new_flow_model(card.model)
    )
    return FlowGnnScheme(flow_model, config, card, folder)
