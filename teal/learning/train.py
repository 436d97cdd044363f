"""The training of a model on one network: steps over its matrices in random order, validation,
early stop, resume.

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
from typing import Any

import numpy as np
import torch
from torch import Tensor

from teal.app.run_files import TRAINER
from teal.app.settings import seconds
from teal.errors import InputError
from teal.learning import run_state
from teal.learning.loop import Stopwatch, clipped_step, train_until
from teal.learning.losses import has_demand
from teal.learning.noise import Noise, RowStreams
from teal.learning.peers import Peers, SingleProcess
from teal.learning.run_state import NoLog, log_of
from teal.learning.settings import TrainOptions
from teal.learning.train_tasks import train_task
from teal.network import Split, Topology, TrafficMatrices
from teal.network.traffic import spread
from teal.nn import checkpoint
from teal.nn.adam import Adam
from teal.problem import Problem
from teal.runtime.arrays import Int64Array
from teal.runtime.memory import available_on
from teal.runtime.storage import content_key
from teal.solvers.pdhg.samples import sample
from teal.solvers.projection import cut_only

_ALL_UP_TO = 30_000  # demands that are all learnt from; a training step on more takes seconds
_USUAL_SIZE = 12_000  # demands of a sample: a step takes what it takes on a network of 110 nodes


def sample_size(config: TrainOptions, problem: Problem) -> int:
    """Demands of a training matrix that are drawn; 0 for all of them.

    Args:
        config: the settings; ``sample`` is the size, 0 for all, -1 for what suits the network.
        problem: the network.
    """
    count = problem.paths.num_demands
    if config.sample < 0:
        return _USUAL_SIZE if count > _ALL_UP_TO and not problem.conditions else 0
    return config.sample if config.sample < count else 0


def sampled(problem: Problem, demand: Tensor, size: int, stream: int) -> Problem:
    """About ``size`` demands of one matrix at their raised rates, B = 1, in the type of
    ``problem``.

    Args:
        problem: network, paths and objective.
        demand: (1, D) Gbit/s.
        size: expected number.
        stream: number of the random stream.
    """
    return sample.draw(problem.with_demand(demand), size, stream=stream).problem.to(
        problem.demand.dtype
    )


# For the activations of a micro-batch on a CPU; larger micro-batches are no faster there.
_ACTIVATION_BYTES = 1 << 30
# Float32 tensors (B, D, K, width) that a layer or round keeps for its backward pass, rounded up.
_TENSORS_PER_LAYER = 12
_FLOAT32_BYTES = 4
_BATCH, _SAMPLED_BATCH = 20, 4  # matrices of a step, unless settings say others
_SAMPLED_VALIDATION = (
    4  # matrices of a validation on a network that is sampled, where one takes seconds
)


@dataclasses.dataclass
class TrainState:
    """Progress of a run; with the weights and the optimiser's state, all that a resume needs.

    Attributes:
        step: optimiser steps done.
        elapsed_s: seconds of training, over all sessions.
        best: highest validation score so far, see :meth:`Trainer.score`.
        best_step: optimiser steps done when it was reached; 0 if no step has improved on the first
            weights.
        stale: number of validations since the best one.
        learning_rate: current rate; halved after every ``decay_after`` validations in a row without
            a better score.
        reason: why training ended: ``step limit``, ``time budget`` or no better score; ``""`` while
            it has not.
        reached: figures of the best weights, after the end: see
            :class:`teal.learning.train_command.Reached`.
    """

    step: int = 0
    elapsed_s: float = 0.0
    best: float = -math.inf
    best_step: int = 0
    stale: int = 0
    learning_rate: float = 0.0
    reason: str = ""
    reached: dict[str, float] = dataclasses.field(default_factory=dict)


def _described(
    config: TrainOptions, topology: Topology, traffic: TrafficMatrices
) -> dict[str, Any]:
    """The description of the training in a model's card: the data, the settings that matter, and
    versions.
    """
    names = (
        "calibrate",
        "objective",
        "batch_size",
        "augment",
        "sample",
        "time_budget",
        "max_steps",
        "num_paths",
        "path_method",
    )
    settings = {name.rstrip("_"): getattr(config, name) for name in names}
    return settings | {
        "topology": topology.name,
        "traffic": traffic.name,
        "learning_rate": config.rate,
        "from": config.start,
        "versions": {name: version(name) for name in ("teal-te", "torch", "numpy")},
    }


def validation_rows(config: TrainOptions, problem: Problem, split: Split) -> Int64Array:
    """Numbers of the matrices of a validation, evenly spread over the validation part."""
    most = config.validation_matrices
    return spread(
        split.validation, min(most, _SAMPLED_VALIDATION) if sample_size(config, problem) else most
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
        self.problem, self.traffic, self.config = problem.to(torch.float32), traffic, config
        self.split = split
        if not all(map(len, self.split)):
            raise InputError(traffic.name, "", "training and validation matrices", "none")
        self.budget_s = seconds(config.time_budget)
        self.task = train_task(config, problem, _described(config, problem.topology, traffic))
        self.model = self.task.model.to(problem.demand.device).train()
        self.optimiser = Adam(self.model.parameters(), config.rate)
        self.state = TrainState(learning_rate=config.rate)
        self._saved_score = (
            -math.inf
        )  # of the checkpoint on disk; one after the last step may exceed state.best
        self._sample = sample_size(config, problem)
        self._validation_rows = validation_rows(config, problem, split)
        self._micro_batch = 1 if self._sample else config.micro_batch or self._fitting_micro_batch()
        self._bar: Any = None  # the progress bar, if one is shown
        self._epoch_order: tuple[int, Int64Array] = (
            -1,
            self.split.train,
        )  # number of an epoch, and its rows in order

    def train(
        self, out: Path, progress: bool = True, watch: Callable[[TrainState], None] = lambda _: None
    ) -> TrainState:
        """Train until the time budget, the step limit or the patience is used up.

        Writes a checkpoint to ``out`` whenever the validation score improves, and the state to
        resume from after every validation and at the end; of several processes only rank 0 writes.

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
                    stopwatch = Stopwatch(
                        self.state.elapsed_s
                    )  # what this compiles is no time of training

            def step(bar: Any) -> None:
                losses = self.one_step()
                self.state.step += 1
                self.state.elapsed_s = self.peers.broadcast(stopwatch.elapsed_s())
                for name, value in losses.items():
                    log.add_scalar(f"train/{name}", value, self.state.step)
                if self.state.step % self.config.validate_every == 0:
                    self._validate(out, log, bar)
                watch(self.state)

            train_until(
                self._is_finished,
                step,
                lambda: self.save(out),
                prepare=prepare,
                steps_done=self.state.step,
                max_steps=self.config.max_steps,
                show=progress and is_lead,
            )
            if self.state.step % self.config.validate_every:
                # The last steps may have improved the score.  The saved state does not include this
                # validation, so that a longer run continues as if training had not ended here.
                self._validate(out, log, None, save_state=False)
        return self.state

    def _is_finished(self) -> bool:
        state, config = self.state, self.config
        if config.max_steps and state.step >= config.max_steps:
            state.reason = "step limit"
        elif state.elapsed_s >= self.budget_s:
            state.reason = "time budget"
        elif state.stale >= config.patience:
            state.reason = f"no better score in {config.patience} validations"
        return bool(state.reason)

    def one_step(self) -> dict[str, float]:
        """One optimiser step over a batch; its mean losses."""
        rows = self._batch_rows(self.state.step)
        own_rows = rows[self.peers.rank :: self.peers.size]
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(
                parameter
            )  # a process without a part of this batch contributes 0
        names = self.task.loss_names
        loss_sums = torch.zeros(len(names), dtype=torch.float64)
        for begin in range(0, len(own_rows), self._micro_batch):
            part = own_rows[begin : begin + self._micro_batch]
            noise = RowStreams(
                self.config.seed, self.state.step, part.tolist(), self.problem.demand.device
            )
            problem = self._to_learn_from(part, noise)
            is_counted, by_name = (
                has_demand(problem),
                self.task.losses(problem, noise, self.state.step),
            )
            losses = torch.stack(
                [torch.where(is_counted, by_name[name], 0).sum() for name in names]
            ) / len(rows)
            losses.sum().backward()
            loss_sums += losses.detach().cpu()
        self.peers.all_reduce_sum(
            [loss_sums, *(p.grad for p in self.model.parameters() if p.grad is not None)]
        )
        if not bool(torch.isfinite(loss_sums).all()):
            expected = "a finite loss; try a lower --learning-rate"
            raise InputError("training", f"step {self.state.step}", expected, loss_sums)
        clipped_step(self.optimiser, self.model, self.task.max_gradient_norm, self.state.step)
        return dict(zip(names, loss_sums.tolist(), strict=True))

    def _to_learn_from(self, rows: Int64Array, noise: RowStreams) -> Problem:
        """The matrices of ``rows`` with noise; of a large network a sample of the demands of the
        one matrix.
        """
        demand = self._augmented(rows, noise)
        if not self._sample:
            return self.problem.with_demand(demand)
        return sampled(self.problem, demand, self._sample, noise.whole_number())

    def _augmented(self, rows: Int64Array, noise: Noise) -> Tensor:
        """(B, D) the demands of ``rows``, each multiplied by log-normal noise of mean 1."""
        demand = torch.as_tensor(self.traffic.read(rows)).to(self.problem.demand)
        if not self.config.augment:
            return demand
        return demand * torch.exp(
            self.config.augment * noise.normal(demand) - self.config.augment**2 / 2
        )

    def _measured(self, rows: Int64Array) -> Problem:
        """The matrices of these rows, as they were measured."""
        return self.problem.with_demand(
            torch.as_tensor(self.traffic.read(rows)).to(self.problem.demand)
        )

    def _batch_rows(self, step: int) -> Int64Array:
        """The rows of a step; an epoch is a permutation of the training rows, seeded by (seed,
        epoch).
        """
        usual = _SAMPLED_BATCH if self._sample else _BATCH
        rows, size = self.split.train, min(self.config.batch_size or usual, len(self.split.train))
        epoch, batch = divmod(step, math.ceil(len(rows) / size))
        if self._epoch_order[0] != epoch:
            order = np.random.default_rng([self.config.seed, epoch]).permutation(rows)
            self._epoch_order = (epoch, order)
        return np.sort(self._epoch_order[1][batch * size : (batch + 1) * size])

    def _fitting_micro_batch(self) -> int:
        """Number of matrices whose activations take about 1 GiB, or half of the free memory of a
        GPU.

        The other half is for weights, gradients and temporary tensors.
        """
        paths = self.problem.paths
        entries = self.task.numbers_per_matrix(paths.num_demands, paths.num_paths)
        device = self.problem.demand.device
        available = available_on(device) // 2 if device.type == "cuda" else _ACTIVATION_BYTES
        return max(1, available // (entries * _TENSORS_PER_LAYER * _FLOAT32_BYTES))

    def _validate(self, out: Path, log: Any, bar: Any, *, save_state: bool = True) -> None:
        """Measure the validation score, write the model if it is the best, adapt the learning rate.

        Args:
            out: folder of the run.
            log: log of the run.
            bar: progress bar, or None after the end.
            save_state: also write the state that :meth:`resume` reads.
        """
        self._bar = bar
        score = self.score()
        log.add_scalar("validation/score", score, self.state.step)
        # The checkpoint on disk may be better than the best of the steps: that of after the end.
        if score > self._saved_score and self.peers.rank == 0:
            self._saved_score = score
            self.task.save(
                out, step=self.state.step, train_s=round(self.state.elapsed_s, 3), validation=score
            )
        if score > self.state.best:
            self.state.best, self.state.best_step, self.state.stale = score, self.state.step, 0
        else:
            self.state.stale += 1
            if self.state.stale % self.config.decay_after == 0:
                self._set_learning_rate(self.state.learning_rate / 2)
        if bar is not None:
            bar.set_postfix(
                gap=f"{-100 * score:.2f}%", best=f"{-100 * self.state.best:.2f}%", refresh=True
            )
        if save_state:
            self.save(out)

    @torch.no_grad()
    def score(self) -> float:
        """Minus the mean certified gap of the validation matrices by the model alone; higher is
        better.

        The splits of the model are cut to fit, and neither refilled nor repaired, since a repair
        brings random weights next to the optimum on small networks.  The bound is that of the
        model's own prices.  Both are measured in float64.
        """
        sums = torch.zeros(2, dtype=torch.float64)
        self.model.eval()
        own_rows = self._validation_rows[self.peers.rank :: self.peers.size]
        for begin in range(0, len(own_rows), self._micro_batch):
            rows = own_rows[begin : begin + self._micro_batch]
            if self._bar is not None:  # on a large network a validation takes a minute
                self._bar.set_description(f"validating {begin}/{len(own_rows)}", refresh=True)
            problem = self._measured(rows).to(torch.float64)
            sums[0] -= float(cut_only(problem, *self.task.start(problem)).gap.sum())
            sums[1] += len(rows)
        self.model.train()
        if self._bar is not None:
            self._bar.set_description("training")
        self.peers.all_reduce_sum([sums])
        return self.peers.broadcast(float(sums[0] / sums[1]))

    def save(self, out: Path) -> None:
        """Write what :meth:`resume` reads; rank 0 does."""
        if self.peers.rank:
            return
        tensors = run_state.with_prefix("model", self.model.state_dict())
        tensors |= run_state.with_prefix("adam", self.optimiser.tensors())
        run_state.save_run(
            out, tensors, {"state": dataclasses.asdict(self.state), "settings": self._settings()}
        )

    def resume(self, out: Path) -> None:
        """Continue the run in ``out``.

        Raises:
            InputError: no run there, a damaged one, or one with other settings.
        """
        tensors, fields = run_state.load_run(out)
        where = str(out / TRAINER)
        settings = self._settings()
        for name, value in fields.get("settings", {}).items():
            if settings.get(name) != value:
                raise InputError(
                    where, name, f"the setting of the run, {value}", settings.get(name)
                )
        try:
            self.state = TrainState(**fields["state"])
            if "best_step" not in fields["state"]:
                raise ValueError(
                    "that of an earlier version, whose scores were values after the repair"
                )
            self.model.load_state_dict(run_state.without_prefix("model", tensors))
            self.optimiser.load(run_state.without_prefix("adam", tensors))
            self._set_learning_rate(self.state.learning_rate)
            self._saved_score = checkpoint.best_validation(out)
        except (KeyError, TypeError, RuntimeError, ValueError) as error:
            raise InputError(where, "", "the state of a run of this version", error) from None

    def _set_learning_rate(self, rate: float) -> None:
        self.state.learning_rate = rate
        self.optimiser.rate = rate

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
            "decay_after",
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
