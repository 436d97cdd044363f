"""The training of a model on one network: steps over its matrices in random order, validation,
and resume.

Training on samples of the demands: a large network's problem in the size of a small one.

Demand d is drawn with probability pi[d] = min(1, a demand[d]) and has the rate demand[d] / pi[d]
(:mod:`teal.solvers.pdhg.samples.sample`), so that the expected load of every link is that of all
demands.  The sample is a problem of its own, over a subset of the path trie; where rewards and
prices are linear in the loads, the expected gradient is that of all demands, and elsewhere its
error falls with the size of the sample.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from teal.app.run_files import TRAINER
from teal.app.settings import seconds
from teal.errors import InputError
from teal.learning import run_state
from teal.learning.gain import MIN_MATRICES
from teal.learning.loop import Budget, ReadAhead, Stopwatch, set_cosine_rate, train_until
from teal.learning.noise import row_seeds
from teal.learning.peers import Peers, SingleProcess
from teal.learning.run_state import NoLog, log_of
from teal.learning.settings import TrainOptions
from teal.learning.steps import Augmentation, Matrices, Steps
from teal.learning.train_tasks import train_task
from teal.network import Split, TrafficMatrices
from teal.network.traffic import spread
from teal.nn import checkpoint
from teal.nn.adam import Adam
from teal.problem import Problem
from teal.runtime.arrays import Int64Array
from teal.runtime.bootstrap import interval_of_mean
from teal.runtime.memory import available_on
from teal.runtime.storage import content_key
from teal.solvers.projection import cut_only

# Maximum number of demands that are not sampled; a training step on more takes seconds.
_MAX_UNSAMPLED_DEMANDS = 30_000
# Demands of a sample: a step takes as long as on a network of 110 nodes.
_DEFAULT_SAMPLE_SIZE = 12_000


def sample_size(config: TrainOptions, problem: Problem) -> int:
    """Number of demands that are sampled from a training matrix; 0 for all of them.

    Args:
        config: settings; ``sample`` is the number, 0 for all, -1 for the default of the network.
        problem: the network.
    """
    count = problem.paths.num_demands
    if config.sample < 0:
        is_sampled = count > _MAX_UNSAMPLED_DEMANDS and not problem.conditions
        return _DEFAULT_SAMPLE_SIZE if is_sampled else 0
    return config.sample if config.sample < count else 0


# For the activations of a micro-batch on a CPU; larger micro-batches are no faster there.
_ACTIVATION_BYTES = 1 << 30
# Float32 tensors (B, D, K, width) that a layer or round keeps for its backward pass, rounded up.
_TENSORS_PER_LAYER = 12
_FLOAT32_BYTES = 4
# Rounding tolerance of a share of the budget.
_ROUNDING = 1e-9
# Difference of two shares below which they count as equal.
_EQUAL = 1e-6
# Minimum number of validations, evenly spread over the budget.
_VALIDATIONS = 10
# Confidence level of a comparison with the start: 95% over ten validations in two measures
# (Bonferroni), since the best of many validations is better than the start by chance more often
# than a single one.
_SELECTION_LEVEL = 1 - 0.05 / (2 * _VALIDATIONS)
# Share of the budget in which the learning rate rises.
_WARM_UP_SHARE = 0.1
# Default number of matrices of a step.
_BATCH = 20
_SAMPLED_BATCH = 4
# Maximum number of matrices of a validation on a sampled network, where one takes seconds.
_SAMPLED_VALIDATION = 4
# A bound is trivial if it is no more than this share below the value of all demand, which zero
# prices prove too; on a network that could carry nearly everything it may be right.
_TRIVIAL_SHARE = 1e-4
# Mean certified gap from which a trivial bound is reported.
_CONGESTED_GAP = 0.01
# Number of steps before which prices are not expected to certify anything.
_STEPS_TO_LEARN_PRICES = 100


@dataclasses.dataclass
class TrainState:
    """Progress of a run; with the weights and the optimiser's state, all that a resume needs.

    Attributes:
        step: optimiser steps done.
        elapsed_s: seconds of training, over all sessions.
        best: share that the best weights so far carry, see :class:`Score`.
        best_gap: certified gap of these.
        best_step: optimiser steps done when it was reached; 0 if no step has improved on the first
            weights.
        reason: why training ended: ``step limit`` or ``time budget``; ``""`` while it has not.
        warning: a trivial bound at the last validation, in words; ``""`` otherwise.
    """

    step: int = 0
    elapsed_s: float = 0.0
    best: float = -math.inf
    best_gap: float = math.inf
    best_step: int = 0
    reason: str = ""
    warning: str = ""


class Score(NamedTuple):
    """Means over the validation matrices of the model alone; both are measured in float64.

    Its splits are cut to fit, and neither refilled nor repaired, since a repair brings random
    weights next to the optimum on small networks.

    Attributes:
        carried: share of the value of all demand (:func:`teal.solvers.projection.share_of_value`).
        gap: certified gap of these splits by the model's own prices.
    """

    carried: float
    gap: float

    @classmethod
    def of(cls, scores: Tensor) -> Score:
        """The means of (V, 2) scores of single matrices."""
        return cls(*scores.mean(0).tolist())

    def is_better(self, other: Score, select: str) -> bool:
        """Whether weights with this score are kept in place of those with the other one.

        Args:
            other: the best score so far.
            select: ``carried``, among equals the narrower gap; or ``gap``.
        """
        if select == "gap":
            return self.gap < other.gap
        if abs(self.carried - other.carried) > _EQUAL:
            return self.carried > other.carried
        return self.gap < other.gap


def is_significantly_better(scores: Tensor, start: Tensor, rows: Int64Array, select: str) -> bool:
    """Whether weights are better than the start in a paired comparison over the validation
    matrices, at the 95% level over all validations; False for fewer than four matrices.

    Args:
        scores: (V, 2) of single matrices, :meth:`Trainer.matrix_scores`.
        start: (V, 2) scores of the start on the same matrices.
        rows: (V,) indices of the matrices.
        select: ``carried``, more is carried or the gap is narrower; or ``gap``, the gap is
            narrower.
    """
    if len(rows) < MIN_MATRICES:
        return False
    carried, gap = (
        interval_of_mean(list(zip(rows.tolist(), differences, strict=True)), _SELECTION_LEVEL)
        for differences in (scores - start).T.tolist()
    )
    return gap.high < 0 or (select == "carried" and carried.low > 0)


def has_trivial_bound(scores: Tensor) -> bool:
    """Whether the own prices prove nothing on a congested network: the bound of every matrix is the
    value of all demand, and the certified gap is not narrow.

    Args:
        scores: (V, 2) of single matrices, :meth:`Trainer.matrix_scores`.
    """
    carried, gap = scores.T
    bound = carried / (1 - gap)
    return bool((bound >= 1 - _TRIVIAL_SHARE).all()) and float(gap.mean()) > _CONGESTED_GAP


def usual_batch(config: TrainOptions, problem: Problem) -> int:
    """Matrices of an optimiser step, at most."""
    usual = _SAMPLED_BATCH if sample_size(config, problem) else _BATCH
    return config.batch_size or usual


def _described(
    config: TrainOptions, problem: Problem, traffic: TrafficMatrices, split: Split
) -> dict[str, Any]:
    """The description of the training in a model's card: the data, the settings as they were used,
    and versions.
    """
    names = (
        "calibrate",
        "objective",
        "augment",
        "time_budget",
        "max_steps",
        "path_method",
        "seed",
        "learner",
        "select",
        "validate_every",
    )
    settings = {name.rstrip("_"): getattr(config, name) for name in names}
    return settings | {
        "topology": problem.topology.name,
        "topology_key": problem.topology.content_key(),
        "traffic": traffic.name,
        "traffic_key": traffic.content_key(),
        "paths_key": problem.paths.key,
        "num_paths": problem.paths.num_paths,
        "validation_matrices": len(validation_rows(config, problem, split)),
        "learning_rate": config.rate,
        "from": config.start,
        "batch_size": usual_batch(config, problem),
        "sample": sample_size(config, problem),
        "versions": {name: version(name) for name in ("teal-te", "torch", "numpy")},
    }


def validation_rows(config: TrainOptions, problem: Problem, split: Split) -> Int64Array:
    """Numbers of the matrices of a validation, evenly spread over the validation part."""
    return _spread_rows(config, problem, split.validation)


def rows_of_gain(config: TrainOptions, problem: Problem, split: Split) -> tuple[str, Int64Array]:
    """The part whose matrices say what a training has brought, and numbers of as many of them as a
    validation has: the test part, the validation part where that is empty.
    """
    part = "test" if len(split.test) else "validation"
    return part, _spread_rows(config, problem, getattr(split, part))


def _spread_rows(config: TrainOptions, problem: Problem, rows: Int64Array) -> Int64Array:
    max_rows = config.validation_matrices
    return spread(
        rows, min(max_rows, _SAMPLED_VALIDATION) if sample_size(config, problem) else max_rows
    )


class Trainer:
    """Trains one model on one network.

    The order of the matrices depends on (seed, epoch) alone, and the random numbers for a matrix on
    (seed, step, matrix), so that a resumed run continues as if it had never stopped: bit for bit on
    a CPU, to rounding on a GPU, where scattered sums have no fixed order.  Several processes make
    the same steps as one, to rounding: each takes a part of the batch, and their gradients are
    summed.

    Args:
        problem: network, paths and objective; its own demand is not used.
        traffic: the matrices, read as they are needed.
        split: rows to train and to validate on.
        config: the settings, described in TrainOptions.
        peers: the processes that train together, each of which makes a trainer with the same
            arguments; None for this process alone.
    """

    def __init__(
        self,
        problem: Problem,
        traffic: TrafficMatrices,
        split: Split,
        config: TrainOptions,
        peers: Peers | None = None,
    ) -> None:
        self.peers = peers or SingleProcess()
        self.problem = problem.to(torch.float32)
        self.traffic = traffic
        self.config = config
        self.split = split
        if not all(map(len, self.split[:2])):
            raise InputError(traffic.name, "", "training and validation matrices", "none")
        self.budget_s = seconds(config.time_budget)
        self.task = train_task(config, problem, _described(config, problem, traffic, split))
        self.model.to(problem.demand.device).train()
        self.state = TrainState()
        self._budget = Budget(self.budget_s, config.max_steps)
        # Of the checkpoint on disk; one after the last step may exceed the best of the state.
        self._saved_score = Score(-math.inf, math.inf)
        # (V, 2) scores of the model that training starts from, which better weights must beat;
        # empty from random weights, and before the first validation.
        self._start_scores = torch.empty(0, 2, dtype=torch.float64)
        self._sample = sample_size(config, problem)
        self._augmentation = Augmentation(config.augment, self._sample)
        self._validation_rows = validation_rows(config, problem, split)
        self._micro_batch = 1 if self._sample else config.micro_batch or self._fitting_micro_batch()
        self._bar: Any = None  # the progress bar, if one is shown
        self._validated_step = -1  # step after which the last validation was made
        # Number of an epoch, and its rows in order.
        self._epoch_order: tuple[int, Int64Array] = (
            -1,
            self.split.train,
        )
        self._ahead = ReadAhead(self._read)
        self.start_anew()

    @property
    def model(self) -> nn.Module:
        """The model that is trained."""
        return self.task.model

    def start_anew(self) -> None:
        """Forget what the optimiser knows, as is due where the model has other weights."""
        self.optimiser = Adam(self.model.parameters(), self.config.rate)
        self._steps = Steps(self.problem, self.task, self.optimiser, self._augmentation)

    def train(
        self, out: Path, progress: bool = True, watch: Callable[[TrainState], None] = lambda _: None
    ) -> TrainState:
        """Train until the time budget, the step limit or the patience is used up.

        Writes a checkpoint to ``out`` whenever the validation score improves, and is significantly
        better than that of the model that training starts from.  Writes the state to resume from
        after every validation and at the end; of several processes only rank 0 writes.

        Args:
            out: folder.
            progress: whether to show a progress bar.
            watch: called after every step.

        Raises:
            KeyboardInterrupt: on Ctrl-C, after the current step is done and the state is written.
        """
        is_lead = self.peers.rank == 0
        out.mkdir(parents=True, exist_ok=True)
        stopwatch = Stopwatch(self.state.elapsed_s)
        self.state.reason = ""
        with log_of(out, self.state.step) if is_lead else contextlib.nullcontext(NoLog()) as log:

            def prepare(bar: Any) -> None:
                nonlocal stopwatch
                if self.state.step == 0:
                    self._validate(out, log, bar)
                    # Compilation does not count as training time.
                    stopwatch = Stopwatch(self.state.elapsed_s)

            def step(bar: Any) -> None:
                if self._train_step(stopwatch, log):
                    self._validate(out, log, bar)
                watch(self.state)

            # Train, then validate the last steps if no validation followed them.
            train_until(
                self._is_finished,
                step,
                lambda: self.save(out),
                prepare=prepare,
                steps_done=self.state.step,
                max_steps=self.config.max_steps,
                show=progress and is_lead,
            )
            if self.state.step != self._validated_step:
                # The last steps may have improved the score. The saved state does not include this
                # validation, so that a longer run continues as if training had not ended here.
                self._validate(out, log, None, save_state=False)
        return self.state

    def _train_step(self, stopwatch: Stopwatch, log: Any) -> bool:
        """Make one step with the learning rate of the schedule, and log its losses; return whether
        a validation is due.

        Args:
            stopwatch: measures the time of the run.
            log: log of the run.
        """
        share = self._share_used
        set_cosine_rate(
            self.optimiser,
            self.config.rate,
            self.state.step,
            share,
            warm_up_steps=1,
            warm_up_share=_WARM_UP_SHARE,
        )
        losses = self.one_step()
        self.state.step += 1
        self.state.elapsed_s = self.peers.broadcast(stopwatch.elapsed_s())
        for name, value in losses.items():
            log.add_scalar(f"train/{name}", value, self.state.step)
        is_due = self._validations_due(self._share_used) > self._validations_due(share)
        return is_due or self.state.step % self.config.validate_every == 0

    def _is_finished(self) -> bool:
        """Whether the step limit or the time budget is used up; store which one."""
        state = self.state
        config = self.config
        if config.max_steps and state.step >= config.max_steps:
            state.reason = "step limit"
        elif state.elapsed_s >= self.budget_s:
            state.reason = "time budget"
        return bool(state.reason)

    @property
    def _share_used(self) -> float:
        """Share of the budget that the steps so far have used up."""
        return self._budget.share_used(self.state.step, self.state.elapsed_s)

    @staticmethod
    def _validations_due(share: float) -> int:
        """Number of the evenly spread validations that are due after this share of the budget."""
        return int(_VALIDATIONS * share + _ROUNDING)

    def one_step(self) -> dict[str, float]:
        """One optimiser step over a batch; its mean losses."""
        step = self.state.step
        count, parts = self._ahead.get(step)
        self._steps.begin(count)
        for matrices in parts:
            self._steps.add(matrices, step)
        return self._steps.finish(step, self.peers)

    def _read(self, step: int) -> tuple[int, list[Matrices]]:
        """The number of matrices of a step's batch, and those of this process in parts."""
        rows = self._batch_rows(step)
        peer_rows = rows[self.peers.rank :: self.peers.size]
        size = self._micro_batch
        parts = [peer_rows[begin : begin + size] for begin in range(0, len(peer_rows), size)]
        return len(rows), [
            Matrices.of(
                self.traffic.read(part),
                row_seeds(self.config.seed, step, part.tolist()),
                self.problem.demand,
            )
            for part in parts
        ]

    def _measured(self, rows: Int64Array) -> Problem:
        """The matrices of these rows, as they were measured."""
        return self.problem.with_demand(
            torch.as_tensor(self.traffic.read(rows)).to(self.problem.demand)
        )

    def _batch_rows(self, step: int) -> Int64Array:
        """The rows of a step; an epoch is a permutation of the training rows, seeded by (seed,
        epoch).
        """
        rows = self.split.train
        size = min(usual_batch(self.config, self.problem), len(rows))
        epoch, batch = divmod(step, math.ceil(len(rows) / size))
        if self._epoch_order[0] != epoch:
            order = np.random.default_rng([self.config.seed, epoch]).permutation(rows)
            self._epoch_order = (epoch, order)
        return np.sort(self._epoch_order[1][batch * size : (batch + 1) * size])

    def _fitting_micro_batch(self) -> int:
        """Number of matrices whose activations take about 1 GiB, or a third of the free memory of a
        GPU.

        A step that runs launch by launch leaves a third in torch's cache, and its recording takes
        another one; the last is for weights, gradients and temporary tensors.
        """
        paths = self.problem.paths
        entries = self.task.numbers_per_matrix(paths.num_demands, paths.num_paths)
        device = self.problem.demand.device
        available = available_on(device) // 3 if device.type == "cuda" else _ACTIVATION_BYTES
        return max(1, available // (entries * _TENSORS_PER_LAYER * _FLOAT32_BYTES))

    def _validate(self, out: Path, log: Any, bar: Any, *, save_state: bool = True) -> None:
        """Measure the validation score, and write the model if it is the best.

        Args:
            out: folder of the run.
            log: log of the run.
            bar: progress bar, or None after the end.
            save_state: also write the state that :meth:`resume` reads.
        """
        # Measure the model, and log the means.
        self._bar = bar
        self._validated_step = self.state.step
        scores = self.matrix_scores()
        select = self.config.select
        score = Score.of(scores)
        log.add_scalar("validation/carried", score.carried, self.state.step)
        log.add_scalar("validation/gap", score.gap, self.state.step)
        self.state.warning = self._warning(scores)

        # Compare it with the start.
        if self.state.step == 0 and self.config.start != "none":
            self._start_scores = scores
        may_be_kept = not self.state.step or self._beats_start(scores)

        # The checkpoint on disk may be better than the best of the steps: that of after the end.
        if may_be_kept and score.is_better(self._saved_score, select) and self.peers.rank == 0:
            self._saved_score = score
            self.task.save(
                out,
                step=self.state.step,
                train_s=round(self.state.elapsed_s, 3),
                validation=score.carried,
                validation_gap=score.gap,
            )
        if may_be_kept and score.is_better(Score(self.state.best, self.state.best_gap), select):
            self.state.best, self.state.best_gap = score
            self.state.best_step = self.state.step
        if bar is not None:
            bar.set_postfix(
                carried=f"{100 * score.carried:.2f}%",
                best=f"{100 * self.state.best:.2f}%",
                gap=f"{100 * score.gap:.2f}%",
                refresh=True,
            )
        if save_state:
            self.save(out)

    def _beats_start(self, scores: Tensor) -> bool:
        """Whether these scores are significantly better than those of the model that training
        starts from; always true from random weights.
        """
        if self.config.start == "none":
            return True
        rows = self._validation_rows
        return is_significantly_better(scores, self._start_scores, rows, self.config.select)

    def _warning(self, scores: Tensor) -> str:
        """A warning about a trivial bound, or ``""``."""
        is_early = self.state.step < _STEPS_TO_LEARN_PRICES
        if is_early or not self.problem.objective.maximises_value or not has_trivial_bound(scores):
            return ""
        return (
            f"after {self.state.step} steps the model's own prices certify nothing: their bound is "
            "the value of all demand; unless the network can carry nearly all of it, try another "
            "--seed or --learning-rate"
        )

    def score(self) -> Score:
        """The score of the model as it is."""
        return Score.of(self.matrix_scores())

    @torch.no_grad()
    def matrix_scores(self) -> Tensor:
        """(V, 2) carried share and certified gap of the model as it is, of each validation matrix,
        float64 on the CPU; see :class:`Score`.
        """
        rank = self.peers.rank
        size = self.peers.size
        own_rows = self._validation_rows[rank::size]
        own_scores = torch.zeros(len(own_rows), 2, dtype=torch.float64)

        # Measure the rows of this process, a micro-batch at a time.
        self.model.eval()
        for begin in range(0, len(own_rows), self._micro_batch):
            part = slice(begin, begin + self._micro_batch)
            if self._bar is not None:  # on a large network a validation takes a minute
                self._bar.set_description(f"validating {begin}/{len(own_rows)}", refresh=True)
            problem = self._measured(own_rows[part]).to(torch.float64)
            alone = cut_only(problem, *self.task.start(problem))
            own_scores[part] = torch.stack([alone.share, alone.gap], -1).cpu()
        self.model.train()
        if self._bar is not None:
            self._bar.set_description("training")

        # Gather those of all processes: in the sum every entry has one summand that is not 0.
        scores = torch.zeros(len(self._validation_rows), 2, dtype=torch.float64)
        scores[rank::size] = own_scores
        self.peers.all_reduce_sum([scores])
        return scores

    def save(self, out: Path) -> None:
        """Write what :meth:`resume` reads; rank 0 does."""
        if self.peers.rank:
            return
        tensors = run_state.with_prefix("model", self.model.state_dict())
        tensors |= run_state.with_prefix("adam", self.optimiser.tensors())
        tensors |= run_state.with_prefix("start", {"scores": self._start_scores})
        run_state.save_run(
            out, tensors, {"state": dataclasses.asdict(self.state), "settings": self._settings()}
        )

    def resume(self, out: Path) -> None:
        """Continue the run in ``out``.

        Raises:
            InputError: no run there, a damaged one, or one with other settings.
        """
        tensors, fields = run_state.load_run(out)
        location = str(out / TRAINER)
        settings = self._settings()
        for name, value in fields.get("settings", {}).items():
            if settings.get(name) != value:
                raise InputError(
                    location, name, f"the setting of the run, {value}", settings.get(name)
                )
        try:
            self.state = TrainState(**fields["state"])
            self.model.load_state_dict(run_state.without_prefix("model", tensors))
            self.start_anew()
            self.optimiser.load(run_state.without_prefix("adam", tensors))
            self._start_scores = run_state.without_prefix("start", tensors)["scores"]
            self._saved_score = Score(*checkpoint.best_validation(out))
        except (KeyError, TypeError, RuntimeError, ValueError) as error:
            raise InputError(location, "", "the state of a run of this version", error) from None

    def _settings(self) -> dict[str, Any]:
        """Settings that must not change when a run is resumed.

        ``micro_batch`` is among them because it changes the order of sums.
        """
        names = (
            "learner",
            "seed",
            "batch_size",
            "augment",
            "validate_every",
            "validation_matrices",
            "select",
            "micro_batch",
            "sample",
        )
        objective = self.problem.objective
        return {
            **{name: getattr(self.config, name) for name in names},
            "from_": self.config.start,
            "learning_rate": self.config.rate,
            "model": dataclasses.asdict(self.task.shapes),
            "objective": str(objective.name),
            "epsilon": objective.epsilon,
            "topology_key": self.problem.topology.content_key(),
            "traffic": self.traffic.content_key(),
            "paths": self.problem.paths.key,
            "path_value": content_key(self.problem.path_value.cpu().numpy()),
            "device": self.problem.demand.device.type,
        }
