"""Training of a model on one network: optimiser steps over its matrices, validation, and resume.

Main class: :class:`Trainer`.  On large networks a step uses a sample of the demands.  Demand d is
drawn with probability pi[d] = min(1, a demand[d]) and has the rate demand[d] / pi[d]
(:mod:`teal.solvers.pdhg.samples.sample`), so that the expected load of every link is that of all
demands.  The sample is a separate problem over a subset of the path trie.  Where rewards and prices
are linear in the loads, the expected gradient is that of all demands; elsewhere its error falls
with the size of the sample.
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
from teal_study.learning import run_state
from teal_study.learning.gain import MIN_MATRICES
from teal_study.learning.loop import Budget, ReadAhead, Stopwatch, set_cosine_rate, train_until
from teal_study.learning.noise import row_seeds
from teal_study.learning.peers import Peers, SingleProcess
from teal_study.learning.run_state import NoLog, open_log
from teal_study.learning.settings import TrainOptions
from teal_study.learning.steps import Augmentation, Matrices, Steps
from teal_study.learning.train_tasks import train_task

# Maximum number of demands that are not sampled; a training step on more takes seconds.
_MAX_UNSAMPLED_DEMANDS = 30_000
# Default number of sampled demands: a step takes as long as on a network of 110 nodes.
_DEFAULT_SAMPLE_SIZE = 12_000


def sample_size(config: TrainOptions, problem: Problem) -> int:
    """Return the number of demands sampled from a training matrix; 0 for all demands.

    Args:
        config: settings; ``sample`` is the number, 0 for all, -1 for the default of the network.
        problem: network and paths.
    """
    num_demands = problem.paths.num_demands
    if config.sample < 0:
        is_sampled = num_demands > _MAX_UNSAMPLED_DEMANDS and not problem.conditions
        return _DEFAULT_SAMPLE_SIZE if is_sampled else 0
    return config.sample if config.sample < num_demands else 0


# Bytes of activations of a micro-batch on a CPU; larger micro-batches are no faster there.
_ACTIVATION_BYTES = 1 << 30
# Float32 tensors (B, D, K, width) that a layer or round stores for its backward pass, rounded up.
_TENSORS_PER_LAYER = 12
_FLOAT32_BYTES = 4
# Rounding tolerance of a share of the budget.
_ROUNDING = 1e-9
# Difference of carried shares up to which they count as equal.
_EQUAL = 1e-6
# Minimum number of validations, evenly spread over the budget.
_MIN_VALIDATIONS = 10
# Confidence level of a comparison with the start: 95% over ten validations in two measures
# (Bonferroni), since the best of many validations is better than the start by chance more often
# than a single one.
_SELECTION_LEVEL = 1 - 0.05 / (2 * _MIN_VALIDATIONS)
# Share of the budget in which the learning rate rises linearly.
_WARM_UP_SHARE = 0.1
# Default number of matrices of a step, with all demands and with sampled ones.
_DEFAULT_BATCH_SIZE = 20
_DEFAULT_SAMPLED_BATCH_SIZE = 4
# Maximum number of matrices of a validation on a sampled network, where one takes seconds.
_MAX_SAMPLED_VALIDATION = 4
# A bound is trivial if it is at most this share below the value of all demand, the bound of zero
# prices; on a network that can carry nearly all demand it may be tight.
_TRIVIAL_SHARE = 1e-4
# Mean certified gap from which a trivial bound is reported.
_CONGESTED_GAP = 0.01
# Number of steps after which a trivial bound is reported: prices take some steps to learn.
_STEPS_TO_LEARN_PRICES = 100


@dataclasses.dataclass
class TrainState:
    """Progress of a training run, stored with weights and optimiser state for a resume.

    Attributes:
        step: number of optimiser steps so far.
        elapsed_s: seconds of training, over all sessions.
        best: carried share of the best weights so far, from their validation.
        best_gap: certified gap of the best weights.
        best_step: step of the best weights; 0 for the initial weights.
        reason: stopping reason, ``step limit`` or ``time budget``; ``""`` during training.
        warning: warning text about a trivial bound at the last validation; ``""`` for none.
    """

    step: int = 0
    elapsed_s: float = 0.0
    best: float = -math.inf
    best_gap: float = math.inf
    best_step: int = 0
    reason: str = ""
    warning: str = ""


class Score(NamedTuple):
    """Validation score of the model alone: means over the validation matrices, in float64.

    Its flows are only scaled down to the capacities.  Unused capacity is not allocated to unserved
    demand, since on small networks that brings even random weights close to the optimum.

    Attributes:
        carried: carried share of the value of all demand
            (:func:`teal.solvers.projection.share_of_value`).
        gap: certified gap of these splits at the prices of the model.
    """

    carried: float
    gap: float

    @classmethod
    def of(cls, scores: Tensor) -> Score:
        """Return the means of the scores (V, 2) of V matrices."""
        return cls(*scores.mean(0).tolist())

    def is_better(self, reference: Score, select: str) -> bool:
        """Whether this score is better than another one.

        Args:
            reference: the best score so far.
            select: ``carried`` compares carried shares, then gaps; ``gap`` compares gaps.
        """
        if select == "gap":
            return self.gap < reference.gap
        if abs(self.carried - reference.carried) > _EQUAL:
            return self.carried > reference.carried
        return self.gap < reference.gap


def is_significantly_better(
    scores: Tensor, start_scores: Tensor, rows: Int64Array, select: str
) -> bool:
    """Whether weights are significantly better than the start, in a paired comparison.

    Confidence intervals of the mean differences over the V validation matrices, at the 95% level
    over all validations of a run; False for fewer than four matrices.

    Args:
        scores: (V, 2) carried share and certified gap of each matrix.
        start_scores: (V, 2) scores of the start on the same matrices.
        rows: (V,) indices of the matrices.
        select: ``carried``: a larger share or a smaller gap counts; ``gap``: a smaller gap.
    """
    if len(rows) < MIN_MATRICES:
        return False
    # 95% intervals of the mean difference in carried share, and in gap (negative is better).
    carried, gap = (
        interval_of_mean(list(zip(rows.tolist(), differences, strict=True)), _SELECTION_LEVEL)
        for differences in (scores - start_scores).T.tolist()
    )
    return gap.high < 0 or (select == "carried" and carried.low > 0)


def has_trivial_bound(scores: Tensor) -> bool:
    """Whether the model's prices prove no useful bound on a congested network.

    The bound of every matrix is the value of all demand, and the mean certified gap exceeds 1%.

    Args:
        scores: (V, 2) carried share and certified gap of each matrix.
    """
    carried, gap = scores.T
    bound = carried / (1 - gap)
    return bool((bound >= 1 - _TRIVIAL_SHARE).all()) and float(gap.mean()) > _CONGESTED_GAP


def max_batch_size(config: TrainOptions, problem: Problem) -> int:
    """Return the maximum number of matrices of an optimiser step.

    It is the setting ``batch_size``, by default 20 with all demands and 4 with sampled demands.
    """
    default = _DEFAULT_SAMPLED_BATCH_SIZE if sample_size(config, problem) else _DEFAULT_BATCH_SIZE
    return config.batch_size or default


def _card_entry(
    config: TrainOptions, problem: Problem, traffic: TrafficMatrices, split: Split
) -> dict[str, Any]:
    """Return the ``training`` entry of a model's card: resolved settings, data, versions."""
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
    settings = {name: getattr(config, name) for name in names}
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
        "batch_size": max_batch_size(config, problem),
        "sample": sample_size(config, problem),
        "versions": {name: version(name) for name in ("teal-te", "torch", "numpy")},
    }


def validation_rows(config: TrainOptions, problem: Problem, split: Split) -> Int64Array:
    """Return the indices of the validation matrices, evenly spread over the validation part."""
    return _evenly_spread_rows(config, problem, split.validation)


def gain_rows(config: TrainOptions, problem: Problem, split: Split) -> tuple[str, Int64Array]:
    """Return the part of the traffic on which the gain of a training is measured, and the indices
    of its matrices.

    It is the test part, or the validation part if that is empty, with as many matrices as a
    validation.
    """
    part = "test" if len(split.test) else "validation"
    return part, _evenly_spread_rows(config, problem, getattr(split, part))


def _evenly_spread_rows(config: TrainOptions, problem: Problem, rows: Int64Array) -> Int64Array:
    """Return at most ``validation_matrices`` rows, evenly spread; fewer on sampled networks."""
    max_rows = config.validation_matrices
    return spread(
        rows, min(max_rows, _MAX_SAMPLED_VALIDATION) if sample_size(config, problem) else max_rows
    )


class Trainer:
    """Training of one model on one network.

    The order of the matrices depends on (seed, epoch), and the random numbers of a matrix on (seed,
    step, matrix).  A resumed run therefore continues as if it had not been interrupted: bit for bit
    on a CPU, to rounding on a GPU, where scattered sums have no fixed order.  Several processes
    make the same steps as one process, to rounding: each processes a part of the batch, and the
    gradients are summed.

    Args:
        problem: network, paths and objective; its demand is not used.
        traffic: the matrices, read on demand.
        split: rows for training and for validation.
        config: settings.
        peers: processes that train together, each with a trainer of the same arguments; None for
            this process alone.

    Raises:
        InputError: there are no training or no validation matrices.
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
            raise InputError.invalid(
                traffic.name,
                "",
                "no matrices for training or for validation",
                "use more traffic matrices",
            )
        # Model and losses, progress, and limits of the run.
        self.budget_s = seconds(config.time_budget)
        self.task = train_task(config, problem, _card_entry(config, problem, traffic, split))
        self.model.to(problem.demand.device).train()
        self.state = TrainState()
        self._budget = Budget(self.budget_s, config.max_steps)
        # Score of the checkpoint on disk.  It may exceed ``state.best``, which leaves out the
        # validation after the last step.
        self._saved_score = Score(-math.inf, math.inf)
        # (V, 2) scores of the initial model, which better weights must beat significantly; empty
        # for random initial weights, and before the first validation.
        self._start_scores = torch.empty(0, 2, dtype=torch.float64)
        # Number of demands that are sampled from each matrix; 0 for all.
        self._sample_size = sample_size(config, problem)
        # Data augmentation, rows of the validation matrices, and size of a micro-batch.
        self._augmentation = Augmentation(config.augment, self._sample_size)
        self._validation_rows = validation_rows(config, problem, split)
        self._micro_batch_size = (
            1 if self._sample_size else config.micro_batch or self._fitting_micro_batch()
        )
        # Progress bar; None if none is shown.
        self._bar: Any = None
        # Step of the last validation.
        self._last_validation_step = -1
        # Index of the current epoch, and its permutation of the training rows.
        self._epoch_order: tuple[int, Int64Array] = (
            -1,
            self.split.train,
        )
        # Reads the batch of the next step during the current one.
        self._batch_reader = ReadAhead(self._read)
        self.reset_optimiser()

    @property
    def model(self) -> nn.Module:
        """The neural network in training."""
        return self.task.model

    def reset_optimiser(self) -> None:
        """Create a new optimiser without state, for example after new weights were loaded."""
        self.optimiser = Adam(self.model.parameters(), self.config.rate)
        self._steps = Steps(self.problem, self.task, self.optimiser, self._augmentation)

    def train(
        self, out: Path, progress: bool = True, watch: Callable[[TrainState], None] = lambda _: None
    ) -> TrainState:
        """Train until the time budget or the step limit is used up; return the final state.

        Writes a checkpoint to ``out`` whenever the validation score improves and is significantly
        better than that of the initial model.  Writes the state for a resume after every validation
        and at the end.  Of several processes only rank 0 writes.

        Args:
            out: folder of the run.
            progress: whether to show a progress bar.
            watch: callback with the state after every step.

        Raises:
            KeyboardInterrupt: on Ctrl-C, after the current step is done and the state is written.
        """
        is_lead = self.peers.rank == 0
        out.mkdir(parents=True, exist_ok=True)
        stopwatch = Stopwatch(self.state.elapsed_s)
        self.state.reason = ""
        with open_log(out, self.state.step) if is_lead else contextlib.nullcontext(NoLog()) as log:
            # Before the first step: validate the initial model, which also compiles the kernels.
            def prepare(bar: Any) -> None:
                nonlocal stopwatch
                if self.state.step == 0:
                    self._validate(out, log, bar)
                    # Compilation does not count as training time.
                    stopwatch = Stopwatch(self.state.elapsed_s)

            # One optimiser step, and a validation where one is due.
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
            if self.state.step != self._last_validation_step:
                # The last steps may have improved the score. The saved state does not include this
                # validation, so that a longer run continues as if training had not ended here.
                self._validate(out, log, None, save_state=False)
        return self.state

    def _train_step(self, stopwatch: Stopwatch, log: Any) -> bool:
        """Make one step with the scheduled learning rate, and log its losses.

        Args:
            stopwatch: training time of the run.
            log: log of the run.

        Returns:
            Whether a validation is due: after each tenth of the budget, and every
            ``validate_every`` steps.
        """
        share_before = self._share_used
        set_cosine_rate(
            self.optimiser,
            self.config.rate,
            self.state.step,
            share_before,
            warm_up_steps=1,
            warm_up_share=_WARM_UP_SHARE,
        )
        losses = self.one_step()
        self.state.step += 1
        self.state.elapsed_s = self.peers.broadcast(stopwatch.elapsed_s())
        for name, value in losses.items():
            log.add_scalar(f"train/{name}", value, self.state.step)
        is_due = self._validations_due(self._share_used) > self._validations_due(share_before)
        return is_due or self.state.step % self.config.validate_every == 0

    def _is_finished(self) -> bool:
        """Whether the step limit or the time budget is used up; sets the stopping reason."""
        state = self.state
        config = self.config
        if config.max_steps and state.step >= config.max_steps:
            state.reason = "step limit"
        elif state.elapsed_s >= self.budget_s:
            state.reason = "time budget"
        return bool(state.reason)

    @property
    def _share_used(self) -> float:
        """Used share of the budget, in [0, 1]."""
        return self._budget.share_used(self.state.step, self.state.elapsed_s)

    @staticmethod
    def _validations_due(share: float) -> int:
        """Return how many of the evenly spread validations are due after a share of the budget."""
        return int(_MIN_VALIDATIONS * share + _ROUNDING)

    def one_step(self) -> dict[str, float]:
        """Make one optimiser step over a batch; return the mean losses by name."""
        step = self.state.step
        num_matrices, micro_batches = self._batch_reader.get(step)
        self._steps.begin(num_matrices)
        for matrices in micro_batches:
            self._steps.add(matrices, step)
        return self._steps.finish(step, self.peers)

    def _read(self, step: int) -> tuple[int, list[Matrices]]:
        """Read the batch of a step; return its size, and this process's micro-batches."""
        batch_rows = self._batch_rows(step)
        # Process i of n gets the rows i, i + n, i + 2 n, ... of the batch, in micro-batches.
        peer_rows = batch_rows[self.peers.rank :: self.peers.size]
        micro_batch_size = self._micro_batch_size
        row_parts = [
            peer_rows[begin : begin + micro_batch_size]
            for begin in range(0, len(peer_rows), micro_batch_size)
        ]
        return len(batch_rows), [
            Matrices.of(
                self.traffic.read(part),
                row_seeds(self.config.seed, step, part.tolist()),
                self.problem.demand,
            )
            for part in row_parts
        ]

    def _problem_of_rows(self, rows: Int64Array) -> Problem:
        """Return the problem of the matrices of some rows, without augmentation."""
        return self.problem.with_demand(
            torch.as_tensor(self.traffic.read(rows)).to(self.problem.demand)
        )

    def _batch_rows(self, step: int) -> Int64Array:
        """Return the rows of a step's batch, sorted.

        An epoch is a permutation of the training rows, seeded by (seed, epoch).
        """
        training_rows = self.split.train
        batch_size = min(max_batch_size(self.config, self.problem), len(training_rows))
        # Steps per epoch: number of batches that cover all training rows.
        epoch, batch_index = divmod(step, math.ceil(len(training_rows) / batch_size))
        if self._epoch_order[0] != epoch:
            epoch_rows = np.random.default_rng([self.config.seed, epoch]).permutation(training_rows)
            self._epoch_order = (epoch, epoch_rows)
        return np.sort(
            self._epoch_order[1][batch_index * batch_size : (batch_index + 1) * batch_size]
        )

    def _fitting_micro_batch(self) -> int:
        """Return the number of matrices whose activations fit: into 1 GiB on the CPU, or into a
        third of the free memory of a GPU.

        Of the other two thirds, one is for the recording of a step, which allocates its activations
        again, and one for weights, gradients and temporary tensors.
        """
        paths = self.problem.paths
        num_activations = self.task.numbers_per_matrix(paths.num_demands, paths.num_paths)
        device = self.problem.demand.device
        available_bytes = available_on(device) // 3 if device.type == "cuda" else _ACTIVATION_BYTES
        return max(1, available_bytes // (num_activations * _TENSORS_PER_LAYER * _FLOAT32_BYTES))

    def _validate(self, out: Path, log: Any, bar: Any, *, save_state: bool = True) -> None:
        """Compute the validation score, and save the model if it is the best so far.

        Args:
            out: folder of the run.
            log: log of the run.
            bar: progress bar, or None after the end.
            save_state: whether to save the state for a resume, too.
        """
        # Measure the model, and log the means.
        self._bar = bar
        self._last_validation_step = self.state.step
        scores = self.matrix_scores()
        select = self.config.select
        score = Score.of(scores)
        log.add_scalar("validation/carried", score.carried, self.state.step)
        log.add_scalar("validation/gap", score.gap, self.state.step)
        self.state.warning = self._warning(scores)

        # Compare the scores with those of the initial model.
        # The validation of step 0, before training, is the score of the start.
        if self.state.step == 0 and self.config.start != "none":
            self._start_scores = scores
        may_keep_weights = not self.state.step or self._beats_start(scores)

        # Save the best model.  The checkpoint on disk may be better than the best score of the
        # state: the validation after the last step is not part of the state.
        if may_keep_weights and score.is_better(self._saved_score, select) and self.peers.rank == 0:
            self._saved_score = score
            self.task.save(
                out,
                step=self.state.step,
                train_s=round(self.state.elapsed_s, 3),
                validation=score.carried,
                validation_gap=score.gap,
            )
        if may_keep_weights and score.is_better(
            Score(self.state.best, self.state.best_gap), select
        ):
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
        """Whether scores (V, 2) are significantly better than those of the initial model; always
        true for random initial weights.
        """
        if self.config.start == "none":
            return True
        rows = self._validation_rows
        return is_significantly_better(scores, self._start_scores, rows, self.config.select)

    def _warning(self, scores: Tensor) -> str:
        """Return a warning about a trivial bound; ``""`` if the scores (V, 2) give no reason."""
        is_early = self.state.step < _STEPS_TO_LEARN_PRICES
        if is_early or not self.problem.objective.maximises_value or not has_trivial_bound(scores):
            return ""
        return (
            f"after {self.state.step} steps the model's link prices give a trivial bound, the "
            "value of all demand; if the network cannot carry nearly all demand, try another "
            "--seed or --learning-rate"
        )

    def score(self) -> Score:
        """Return the validation score of the current weights."""
        return Score.of(self.matrix_scores())

    @torch.no_grad()
    def matrix_scores(self) -> Tensor:
        """Return carried share and certified gap of the current weights on each validation matrix.

        The result is (V, 2), float64 on the CPU, for V matrices.  Flows are scaled down to the
        capacities, without repair; the gap is that of the model's prices.
        """
        rank = self.peers.rank
        num_processes = self.peers.size
        own_rows = self._validation_rows[rank::num_processes]
        own_scores = torch.zeros(len(own_rows), 2, dtype=torch.float64)

        # Measure the rows of this process, a micro-batch at a time.
        self.model.eval()
        for begin in range(0, len(own_rows), self._micro_batch_size):
            row_slice = slice(begin, begin + self._micro_batch_size)
            # On a large network a validation takes a minute.
            if self._bar is not None:
                self._bar.set_description(f"validating {begin}/{len(own_rows)}", refresh=True)
            problem = self._problem_of_rows(own_rows[row_slice]).to(torch.float64)
            cut_result = cut_only(problem, *self.task.start(problem))
            own_scores[row_slice] = torch.stack([cut_result.share, cut_result.gap], -1).cpu()
        self.model.train()
        if self._bar is not None:
            self._bar.set_description("training")

        # Gather the scores of all processes: a sum in which one process contributes each row.
        scores = torch.zeros(len(self._validation_rows), 2, dtype=torch.float64)
        scores[rank::num_processes] = own_scores
        self.peers.all_reduce_sum([scores])
        return scores

    def save(self, out: Path) -> None:
        """Write weights, optimiser state, progress and settings for a resume (rank 0 only)."""
        if self.peers.rank:
            return
        tensors = run_state.with_prefix("model", self.model.state_dict())
        tensors |= run_state.with_prefix("adam", self.optimiser.tensors())
        tensors |= run_state.with_prefix("start", {"scores": self._start_scores})
        run_state.save_run(
            out, tensors, {"state": dataclasses.asdict(self.state), "settings": self._settings()}
        )

    def resume(self, out: Path) -> None:
        """Load the state of the run in a folder, to continue it.

        Args:
            out: folder of the run.

        Raises:
            InputError: the folder has no run, a damaged one, or one with other settings.
        """
        tensors, fields = run_state.load_run(out)
        location = str(out / TRAINER)
        settings = self._settings()
        for name, value in fields.get("settings", {}).items():
            if settings.get(name) != value:
                raise InputError.invalid(
                    location,
                    name,
                    f"the run has {value}, the command {settings.get(name)}",
                    "resume with the settings of the run",
                )
        try:
            self.state = TrainState(**fields["state"])
            self.model.load_state_dict(run_state.without_prefix("model", tensors))
            self.reset_optimiser()
            self.optimiser.load(run_state.without_prefix("adam", tensors))
            self._start_scores = run_state.without_prefix("start", tensors)["scores"]
            self._saved_score = Score(*checkpoint.best_validation(out))
        except (KeyError, TypeError, RuntimeError, ValueError) as error:
            raise InputError.invalid(
                location,
                "",
                f"damaged state, or the state of another version of Teal ({error}); train again "
                "with --overwrite",
            ) from None

    def _settings(self) -> dict[str, Any]:
        """Return the settings and data keys that must be equal when a run is resumed.

        ``micro_batch`` is one of them, since it changes the order of sums.
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
