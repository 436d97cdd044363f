"""The scheme ``teal``: FlowGNN, whose policy allocates every demand at once, and the repair of its
splits.

The model outputs splits and link prices; ADMM or PDHG repairs the splits; the projection makes them
feasible.  The model is one that was trained for a network, or the one that comes with Teal, for any
network.
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
from teal.network.path_changes import first_columns
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
from teal.solvers import admm, admm_fused, pdhg
from teal.solvers.pdhg.dense import total_value
from teal.solvers.pdhg.reduction import has_ordinary_numbers
from teal.solvers.pdhg.search import LAST_REFILL
from teal.solvers.projection import project
from teal.solvers.table_search import in_tables
from teal.spec import Spec

DEFAULT_CHECKPOINT = Path("flow")  # the FlowGNN for any network that comes with Teal
REPAIRS = ("auto", "admm", "pdhg", "none")
_DEFAULT_PDHG_ITERATIONS = 10_000


@dataclasses.dataclass(frozen=True)
class FlowGnnSchemeConfig:
    """How the model's splits are repaired.

    Attributes:
        repair: ``admm``; ``pdhg``, which iterates until ``gap`` is certified; ``none``, to project
            only; or ``auto``: admm, under the balanced programs 64 iterations of PDHG.
        iterations: iterations of ADMM, -1 for the paper's (2 below 100 nodes, 5 from there on); of
            PDHG at most, -1 for 10,000.
        gap: certified gap at which PDHG stops.
        rho: relative penalty of ADMM (see :func:`teal.solvers.admm.scaling`).
        entries: entries of a split table that the splits are rounded to
            (:mod:`teal.solvers.table_search`); 0 for none.
    """

    repair: str = "auto"
    iterations: int = -1
    gap: float = 1e-2
    rho: float = admm.DEFAULT_RHO
    entries: int = 0


class FlowGnnScheme:
    """A model as a scheme.

    Args:
        model: the model.
        config: how its splits are repaired.
        card: card of the checkpoint, to check each problem against; None for a model that is being
            trained.
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
        # Operations over the paths of a problem, and over the first K of each demand.
        self._first: tuple[PathOps, PathOps] | None = None

    @torch.no_grad()
    def solve(self, problem: Problem) -> Allocation:
        """Allocate every matrix of ``problem``; the time is divided evenly among them.

        Raises:
            InputError: the checkpoint is for another objective, or nothing that a model knows.
        """
        problem.objective.require_an_allocation("teal")
        with threads_for(
            problem.batch * problem.ops.mask.numel() * self.model.config.width, torch_too=True
        ):
            return self._solve(problem)

    def serves(self, objective: Objective) -> bool:
        """Whether the model is for an objective: the one that it was trained for, or any."""
        try:
            if self._card is not None:
                check_fits(self._card, self._folder, objective)
        except InputError:
            return False
        return True

    @torch.no_grad()
    def start(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """The model's splits (B, D, K) and prices (B, E), before any repair.

        A model of a form for J paths a demand splits over the first J of more paths, which carry
        most in a chosen set.

        Raises:
            InputError: the checkpoint is for another objective.
        """
        self._check(problem)
        all_paths = problem.paths
        config = self.model.config
        count = all_paths.num_paths if config.takes_any_paths else config.num_paths
        if all_paths.num_paths != count:
            if self._first is None or self._first[0] is not problem.ops:
                first = first_columns(all_paths, count)
                self._first = problem.ops, problem.with_paths(first).ops
            problem = problem.with_ops(self._first[1])
        if config.is_built_in:
            splits, prices = self._passes.run(self.model, self.model.allocate, problem)
        else:
            splits, prices = self.model.allocate(problem.to(self.model.dtype))
        return torch.nn.functional.pad(splits, (0, all_paths.num_paths - count)), prices

    def _check(self, problem: Problem) -> None:
        """Check that the model is for the objective, and move it to where the problem is."""
        if self._card is not None:
            check_fits(self._card, self._folder, problem.objective)
            self.model.to(problem.demand.device)

    def _solve(self, problem: Problem) -> Allocation:
        check_model_knows("teal", problem)
        if problem.demand.is_cuda:
            torch.cuda.synchronize(problem.demand.device)
        begin = time.perf_counter()
        # Predict splits and prices, and repair them.
        config = self.config
        balances = problem.demand_set.carries_all
        if config.repair == "admm" or (config.repair == "auto" and not balances):
            splits, prices = self._by_admm(problem)
        else:
            splits, prices = (v.to(torch.float64) for v in self.start(problem))
            max_iterations = 0
            gap = 0.0
            if config.repair == "pdhg":  # whose first check is of the model's own splits
                max_iterations = _DEFAULT_PDHG_ITERATIONS
                gap = config.gap
            elif config.repair == "auto":
                max_iterations = BALANCING_ITERATIONS
                gap = BALANCED_GAP
            if max_iterations and config.iterations >= 0:
                max_iterations = config.iterations
            splits, prices = _finished(
                problem.to(torch.float64), splits, prices, max_iterations, gap
            )[:2]
        # Round the splits to tables.
        if config.entries:
            splits = in_tables(problem.to(torch.float64), splits, config.entries)
        if splits.is_cuda:
            torch.cuda.synchronize(splits.device)
        return Allocation.of_batch(splits, prices, time.perf_counter() - begin)

    def _by_admm(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Splits and prices after the repair, never worse than without it.

        Both the model's own splits and the repaired ones are projected, and for each matrix the
        better are kept: a few iterations improve a good start but may spoil a poor one.  Likewise
        the prices with the closer bound.
        """
        count = self.config.iterations
        count = admm.default_iterations(problem) if count < 0 else count
        rho = self.config.rho
        self._check(problem)
        if self._is_one_pass(problem):
            return self._passes.run(
                self.model,
                partial(self._repaired, count, rho),
                problem,
                "with ADMM",
                count,
                rho,
                dtype=torch.float64,
            )
        splits, prices = (v.to(torch.float64) for v in self.start(problem))
        problem = problem.to(torch.float64)
        is_compiled = admm_fused.accepts(problem)
        repair = admm_fused.solve if is_compiled else admm.repaired
        after = repair(problem, splits, count, rho, prices)
        return _better_of(problem, _finished(problem, splits, prices), _finished(problem, *after))

    def _is_one_pass(self, problem: Problem) -> bool:
        """Whether model, repair and projection are recorded together on a GPU: for a program that
        maximises value and is solved as it is, over the model's paths.
        """
        config = self.model.config
        has_its_paths = config.takes_any_paths or config.num_paths == problem.paths.num_paths
        is_itself = problem.weighted is problem and problem.solved is problem
        if not (config.is_built_in and has_its_paths and is_itself):
            return False
        if problem.price_set.on_simplex or not FixedProgram.accepts(problem):
            return False
        return has_ordinary_numbers(problem)

    def _repaired(self, count: int, rho: float, problem: Problem) -> tuple[Tensor, Tensor]:
        """The result of :meth:`_by_admm` by torch alone, in float64, waiting for nothing."""
        narrow = problem.to(self.model.dtype)
        splits, prices = (v.to(torch.float64) for v in self.model.allocate(narrow))
        after = admm.repaired(problem, splits, count, rho, prices)
        return _better_of(problem, _projected(problem, splits, prices), _projected(problem, *after))


class _Finished(NamedTuple):
    """The engine's result from splits and prices: feasible splits (B, D, K), prices (B, E), value
    and bound (B,).
    """

    splits: Tensor
    prices: Tensor
    value: Tensor
    bound: Tensor


def _finished(
    problem: Problem, splits: Tensor, prices: Tensor, max_iterations: int = 0, gap: float = 0.0
) -> _Finished:
    """The engine's result from this start; without iterations only its projection and its bound,
    which are compiled.

    Without iterations there is no target, and float32, which the model's splits have, needs no
    kernels of its own.
    """
    result = pdhg.solve(
        problem.weighted,
        gap=gap,
        max_iterations=max_iterations,
        warm_start=(splits, prices),
        dtype=None if max_iterations else torch.float32,
    )
    return _Finished(result.splits, result.prices, result.value, result.bound)


def _projected(problem: Problem, splits: Tensor, prices: Tensor) -> _Finished:
    """:func:`_finished` without iterations, by torch alone, for ordinary numbers."""
    finite_splits = splits.nan_to_num(0.0, 0.0, 0.0).clamp(min=0)
    splits = project(problem, finite_splits, LAST_REFILL)
    if problem.has_link_cost:  # then more flow may have less value
        cut = project(problem, finite_splits, 0)
        splits = _better(splits, cut, problem.value(splits), problem.value(cut))
    prices = usable_prices(problem, prices, max_ratio=1.0)
    bound = dual_bound(problem, prices)
    trivial = from_score(problem, total_value(problem))  # of prices of 0
    sense = problem.objective.rules.sense
    is_closer = sense * bound < sense * trivial
    return _Finished(
        splits,
        torch.where(is_closer[:, None], prices, 0),
        problem.value(splits),
        torch.where(is_closer, bound, trivial),
    )


def _better_of(problem: Problem, before: _Finished, after: _Finished) -> tuple[Tensor, Tensor]:
    """For each matrix the splits of the larger value, and the prices of the closer bound."""
    sense = problem.objective.rules.sense
    return (
        _better(before.splits, after.splits, sense * before.value, sense * after.value),
        _better(before.prices, after.prices, -sense * before.bound, -sense * after.bound),
    )


def _better(a: Tensor, b: Tensor, score_a: Tensor, score_b: Tensor) -> Tensor:
    """For each row whichever has the higher score (B,); ``a`` on a tie."""
    return torch.where((score_b > score_a).view(-1, *[1] * (a.dim() - 1)), b, a)


def make(spec: Spec, model: Path | None) -> FlowGnnScheme:
    """``teal[:repair=auto|admm|pdhg|none,iterations=-1,gap=0.01,rho=0.3,entries=0,model=,weights=trained,seed=0]``.

    With the FlowGNN of ``model`` or else of ``--model``, a folder or a name that comes with Teal
    (``flow``, for any network, which is taken without any).  ``weights=random`` has random ones in
    the place of the trained, by ``seed``: a control, which shows what the repair does by itself.
    """
    options: Any = spec.parse_options(
        **dataclasses.asdict(FlowGnnSchemeConfig()), model="", weights="trained", seed=0
    )
    named, weights, seed = (options.pop(name) for name in ("model", "weights", "seed"))
    config = FlowGnnSchemeConfig(**options)
    if config.repair not in REPAIRS:
        raise InputError(spec.text, "repair", " or ".join(REPAIRS), repr(config.repair))
    for option, expected, good in (
        ("rho", "a number > 0", config.rho > 0),
        ("gap", "a number >= 0", config.gap >= 0),
        ("entries", "0 to 255", 0 <= config.entries <= 255),
    ):
        if not good:
            raise InputError(spec.text, option, expected, getattr(config, option))
    folder = model_folder(Path(named or model or DEFAULT_CHECKPOINT))
    check_kind(folder, FLOW_GNN_KIND, spec.name)
    network, card = load_flow_gnn(folder)
    network = weights_of(spec.text, weights, seed, network, lambda: new_flow_model(card.model))
    return FlowGnnScheme(network, config, card, folder)
