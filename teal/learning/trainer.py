"""The training loop: steps over matrices in random order, validation, early stop, resume."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from teal.allocator import Allocator
from teal.config import TrainConfig, seconds
from teal.errors import InputError
from teal.interrupts import Interrupted, interrupts_wait
from teal.learning import checkpoint
from teal.learning.coma import Exploration, coma_loss
from teal.learning.direct import direct_loss
from teal.learning.losses import bound_loss, demand_value, has_demand
from teal.learning.noise import Noise, RowStreams
from teal.learning.peers import Alone, Peers
from teal.memory import available_on
from teal.network import Split, TrafficMatrices
from teal.network.traffic import spread
from teal.nn import ModelConfig, TealModel
from teal.problem import Problem
from teal.storage import content_key

_ACTIVATION_BYTES = 1 << 30
_TENSORS_A_LAYER = 12  # path tensors that a FlowGNN layer keeps for its backward pass, about


@dataclasses.dataclass
class TrainState:
    """Where a run stands; with weights, optimiser and generator all that a resume needs.

    Attributes:
        step: optimiser steps done.
        elapsed_s: training time, over all sessions.
        best: best validation score.
        stale: validations since then.
        learning_rate: now; halved while nothing gets better.
        reason: why training ended, ``""`` while it has not.
    """

    step: int = 0
    elapsed_s: float = 0.0
    best: float = -math.inf
    stale: int = 0
    learning_rate: float = 0.0
    reason: str = ""


class _NoLog:
    """Of a process that writes nothing."""

    def add_scalar(self, *_: object) -> None:
        """Forget it."""


class Trainer:
    """Trains one model on one network.

    The order of the matrices follows from (seed, epoch), and what is drawn for a matrix from (seed, step, matrix), so
    that a resumed run continues as if it had never stopped: bit for bit on a CPU, to rounding on a GPU, whose scattered
    sums come in no fixed order.  Several processes make the same steps as one, to rounding: each takes a part of the
    batch, and their gradients are added up.

    Args:
        problem: the network, any one matrix; its demand is replaced.
        traffic: the matrices, read as they are needed.
        split: which of them to train on and to validate on.
        config: the settings.
        peers: the processes that train together; each has a trainer of the same arguments.
    """

    def __init__(
        self,
        problem: Problem,
        traffic: TrafficMatrices,
        split: Split,
        config: TrainConfig,
        peers: Peers | None = None,
    ) -> None:
        self.peers = peers or Alone()
        self.problem, self.traffic, self.split, self.config = problem.to(torch.float32), traffic, split, config
        self.budget_s = seconds(config.time_budget)
        torch.manual_seed(config.seed)
        shape = ModelConfig(problem.paths.num_paths, config.layers, config.width, config.form)
        self.model = TealModel(shape).to(problem.demand.device)
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=config.learning_rate)
        self.state = TrainState(learning_rate=config.learning_rate)
        self._kept = -math.inf  # score of the model on disk, which a last look may have put above state.best
        self.card = checkpoint.ModelCard(
            shape, problem.objective.name.value, problem.objective.epsilon, problem.topology.name,
            problem.topology.content_key(), config.learner, config.seed,
        )  # fmt: skip
        self._validation_rows = spread(split.validation, config.validation_matrices)
        self._micro = config.micro_batch or self._fitting_batch()
        self._epoch_order: tuple[int, np.ndarray] = (-1, split.train)

    def train(
        self, out: Path, progress: bool = True, watch: Callable[[TrainState], None] = lambda _: None
    ) -> TrainState:
        """Train until the time budget, the step limit or the patience is spent.

        Writes the best model to ``out`` whenever there is a better one, and the state to resume from
        after every validation and at the end; of several processes only rank 0 writes.

        Args:
            out: folder.
            progress: show a bar.
            watch: is told after every step.

        Raises:
            KeyboardInterrupt: on Ctrl-C, after the step at hand is done and the state is written.
        """
        from torch.utils.tensorboard import SummaryWriter

        lead = self.peers.rank == 0
        show = progress and lead
        out.mkdir(parents=True, exist_ok=True)
        begin, spent = time.perf_counter(), self.state.elapsed_s
        self.state.reason = ""
        total = self.config.max_steps or None
        with (
            SummaryWriter(str(out / "tensorboard"), purge_step=self.state.step)
            if lead
            else contextlib.nullcontext(_NoLog()) as log,
            interrupts_wait() as stop_here,
            tqdm(total=total, initial=self.state.step, desc="training", unit="step", disable=not show) as bar,
        ):
            if self.state.step == 0:
                self._validate(out, log, bar)
            try:
                while not self._finished():
                    stop_here()
                    losses = self._step()
                    self.state.step += 1
                    self.state.elapsed_s = self.peers.agree(spent + time.perf_counter() - begin)
                    for name, value in losses.items():
                        log.add_scalar(f"train/{name}", value, self.state.step)
                    bar.update()
                    if self.state.step % self.config.validate_every == 0:
                        self._validate(out, log, bar)
                    watch(self.state)
            except Interrupted:
                self.save(out)
                raise
            self.save(out)
            if self.state.step % self.config.validate_every:
                # The last steps may have brought something.  The saved state knows nothing of this
                # look, so that a longer run goes on as if there had been no end here.
                self._validate(out, log, bar, save=False)
        return self.state

    def _finished(self) -> bool:
        state, config = self.state, self.config
        if config.max_steps and state.step >= config.max_steps:
            state.reason = "step limit"
        elif state.elapsed_s >= self.budget_s:
            state.reason = "time budget"
        elif state.stale >= config.patience:
            state.reason = f"no better validation in {config.patience}"
        return bool(state.reason)

    def _step(self) -> dict[str, float]:
        """One optimiser step over a batch; its mean losses."""
        rows = self._batch_rows(self.state.step)
        own = rows[self.peers.rank :: self.peers.size]
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)  # a process without a part of this batch adds nothing
        sums = torch.zeros(2, dtype=torch.float64)
        for begin in range(0, len(own), self._micro):
            part = own[begin : begin + self._micro]
            noise = RowStreams(self.config.seed, self.state.step, part.tolist(), self.problem.demand.device)
            problem = self.problem.with_demand(self._augmented(part, noise))
            means, prices = self.model(problem)
            learn = has_demand(problem)
            both = self._policy_loss(problem, means, noise), bound_loss(problem, prices)
            losses = torch.stack([torch.where(learn, loss, 0).sum() for loss in both]) / len(rows)
            losses.sum().backward()
            sums += losses.detach().cpu()
        self.peers.add_up([sums, *(p.grad for p in self.model.parameters() if p.grad is not None)])
        if not bool(torch.isfinite(sums).all()):
            raise InputError("training", f"step {self.state.step}", "a finite loss; try a lower --learning-rate", sums)
        self.optimiser.step()
        return dict(zip(("policy", "bound"), sums.tolist(), strict=True))

    def _augmented(self, rows: np.ndarray, noise: Noise) -> Tensor:
        """The demands of ``rows``, each times log-normal noise of mean 1: (B, D)."""
        demand = torch.as_tensor(self.traffic.read(rows)).to(self.problem.demand)
        if not self.config.augment:
            return demand
        return demand * torch.exp(self.config.augment * noise.normal(demand) - self.config.augment**2 / 2)

    def _policy_loss(self, problem: Problem, means: Tensor, noise: Noise) -> Tensor:
        if self.config.learner == "direct":
            return direct_loss(problem, means)
        config = self.config
        return coma_loss(problem, means, Exploration(config.std, config.samples, config.episodes), noise)

    def _batch_rows(self, step: int) -> np.ndarray:
        """The rows of a step: epochs are permutations of the training rows, made from (seed, epoch)."""
        rows, size = self.split.train, min(self.config.batch_size, len(self.split.train))
        epoch, place = divmod(step, math.ceil(len(rows) / size))
        if self._epoch_order[0] != epoch:
            order = np.random.default_rng([self.config.seed, epoch]).permutation(rows)
            self._epoch_order = (epoch, order)
        return np.sort(self._epoch_order[1][place * size : (place + 1) * size])

    def _fitting_batch(self) -> int:
        """Matrices whose activations take about 1 GiB, or half of what a GPU has free."""
        paths = self.problem.paths
        entries = paths.num_demands * paths.num_paths * self.config.width * self.config.layers
        device = self.problem.demand.device
        room = available_on(device) // 2 if device.type == "cuda" else _ACTIVATION_BYTES
        return max(1, room // (entries * _TENSORS_A_LAYER * 4))

    def _validate(self, out: Path, log: Any, bar: Any, *, save: bool = True) -> None:
        score = self.score()
        log.add_scalar("validation/score", score, self.state.step)
        if score > self._kept and self.peers.rank == 0:
            self._kept = score
            card = dataclasses.replace(
                self.card, step=self.state.step, train_s=round(self.state.elapsed_s, 3), validation=score
            )
            checkpoint.save_model(out, self.model, card)
        if score > self.state.best:
            self.state.best, self.state.stale = score, 0
        else:
            self.state.stale += 1
            if self.state.stale % self.config.decay_after == 0:
                self._set_learning_rate(self.state.learning_rate / 2)
        bar.set_postfix(validation=f"{score:.4f}", best=f"{self.state.best:.4f}", refresh=True)
        if save:
            self.save(out)

    def score(self) -> float:
        """Mean over the validation matrices of value over the value of all demand (or of minus theta).

        Through the whole inference path: what users of the model get.
        """
        allocator, sums = Allocator(self.model.eval()), torch.zeros(2, dtype=torch.float64)
        own = self._validation_rows[self.peers.rank :: self.peers.size]
        for begin in range(0, len(own), self._micro):
            rows = own[begin : begin + self._micro]
            problem = self.problem.with_demand(torch.as_tensor(self.traffic.read(rows))).to(torch.float64)
            value = problem.value(allocator.solve(problem).splits)
            if problem.objective.maximises_value:
                value = value / demand_value(problem)
            sums[0] += float(value.sum() if problem.objective.higher_is_better else -value.sum())
            sums[1] += len(rows)
        self.model.train()
        self.peers.add_up([sums])
        return self.peers.agree(float(sums[0] / sums[1]))

    def save(self, out: Path) -> None:
        """Write what :meth:`resume` reads; rank 0 does."""
        if self.peers.rank:
            return
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= checkpoint.optimiser_tensors(self.optimiser)
        tensors = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
        text = {"state": dataclasses.asdict(self.state), "settings": self._settings()}
        checkpoint.save_run(out, tensors, text)

    def resume(self, out: Path) -> None:
        """Take up the run in ``out``.

        Raises:
            InputError: no run there, a damaged one, or one with other settings.
        """
        tensors, text = checkpoint.load_run(out)
        where = str(out / checkpoint.RUN)
        settings = self._settings()
        for name, value in text.get("settings", {}).items():
            if settings.get(name) != value:
                raise InputError(where, name, f"the setting of the run, {value}", settings.get(name))
        try:
            self.state = TrainState(**text["state"])
            self.model.load_state_dict(
                {name.removeprefix("model."): v for name, v in tensors.items() if name.startswith("model.")}
            )
            checkpoint.load_optimiser(self.optimiser, tensors)
            self._set_learning_rate(self.state.learning_rate)
            self._kept = checkpoint.best_validation(out)
        except (KeyError, TypeError, RuntimeError, ValueError) as error:
            raise InputError(where, "", "the state of a run of this version", error) from None

    def _set_learning_rate(self, rate: float) -> None:
        self.state.learning_rate = rate
        for group in self.optimiser.param_groups:
            group["lr"] = rate

    def _settings(self) -> dict[str, Any]:
        """What must not change from one session of a run to the next."""
        fixed = (
            "learner",
            "seed",
            "batch_size",
            "learning_rate",
            "augment",
            "std",
            "samples",
            "episodes",
            "validate_every",
            "validation_matrices",
            "decay_after",
        )
        names = {name: getattr(self.config, name) for name in fixed}
        card = dataclasses.asdict(self.card)
        shape = {name: card[name] for name in ("model", "objective", "epsilon", "topology_key")}
        return (
            names
            | shape
            | {
                "traffic": self.traffic.content_key(),
                "paths": self.problem.paths.key,
                "path_value": content_key(self.problem.path_value.cpu().numpy()),
                "micro_batch": self.config.micro_batch,
                "device": self.problem.demand.device.type,
            }
        )
