"""The training loop: steps over matrices in random order, validation, early stop, resume."""

from __future__ import annotations

import dataclasses
import math
import time
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


class Trainer:
    """Trains one model on one network.

    The order of the matrices follows from (seed, epoch) and all exploration from one generator that
    is saved, so that a resumed run continues as if it had never stopped: bit for bit on a CPU, to
    rounding on a GPU, whose scattered sums come in no fixed order.

    Args:
        problem: the network, any one matrix; its demand is replaced.
        traffic: the matrices, read as they are needed.
        split: which of them to train on and to validate on.
        config: the settings.
    """

    def __init__(self, problem: Problem, traffic: TrafficMatrices, split: Split, config: TrainConfig) -> None:
        self.problem, self.traffic, self.split, self.config = problem.to(torch.float32), traffic, split, config
        self.budget_s = seconds(config.time_budget)
        torch.manual_seed(config.seed)
        shape = ModelConfig(problem.paths.num_paths, config.layers, config.width, config.form)
        self.model = TealModel(shape).to(problem.demand.device)
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=config.learning_rate)
        self.generator = torch.Generator(problem.demand.device).manual_seed(config.seed)
        self.state = TrainState(learning_rate=config.learning_rate)
        self._kept = -math.inf  # score of the model on disk, which a last look may have put above state.best
        self.card = checkpoint.ModelCard(
            shape, problem.objective.name.value, problem.objective.epsilon, problem.topology.name,
            problem.topology.content_key(), config.learner, config.seed,
        )  # fmt: skip
        self._validation_rows = spread(split.validation, config.validation_matrices)
        self._micro = config.micro_batch or self._fitting_batch()
        self._epoch_order: tuple[int, np.ndarray] = (-1, split.train)

    def train(self, out: Path, progress: bool = True) -> TrainState:
        """Train until the time budget, the step limit or the patience is spent.

        Writes the best model to ``out`` whenever there is a better one, and the state to resume from
        after every validation and at the end.

        Raises:
            KeyboardInterrupt: on Ctrl-C, after the step at hand is done and the state is written.
        """
        from torch.utils.tensorboard import SummaryWriter

        out.mkdir(parents=True, exist_ok=True)
        begin, spent = time.perf_counter(), self.state.elapsed_s
        self.state.reason = ""
        total = self.config.max_steps or None
        with (
            SummaryWriter(str(out / "tensorboard"), purge_step=self.state.step) as log,
            interrupts_wait() as stop_here,
            tqdm(total=total, initial=self.state.step, desc="training", unit="step", disable=not progress) as bar,
        ):
            if self.state.step == 0:
                self._validate(out, log, bar)
            try:
                while not self._finished():
                    stop_here()
                    losses = self._step()
                    self.state.step += 1
                    self.state.elapsed_s = spent + time.perf_counter() - begin
                    for name, value in losses.items():
                        log.add_scalar(f"train/{name}", value, self.state.step)
                    bar.update()
                    if self.state.step % self.config.validate_every == 0:
                        self._validate(out, log, bar)
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
        self.optimiser.zero_grad(set_to_none=True)
        sums: dict[str, float] = {}
        for begin in range(0, len(rows), self._micro):
            part = rows[begin : begin + self._micro]
            problem = self.problem.with_demand(self._augmented(part))
            means, prices = self.model(problem)
            learn = has_demand(problem)
            losses = {"policy": self._policy_loss(problem, means), "bound": bound_loss(problem, prices)}
            losses = {name: torch.where(learn, loss, 0) for name, loss in losses.items()}
            total = torch.stack([loss.sum() for loss in losses.values()]).sum() / len(rows)
            if not bool(torch.isfinite(total)):
                raise InputError(
                    "training", f"step {self.state.step}", "a finite loss; try a lower --learning-rate", total
                )
            total.backward()
            for name, loss in losses.items():
                sums[name] = sums.get(name, 0.0) + float(loss.detach().sum()) / len(rows)
        self.optimiser.step()
        return sums

    def _augmented(self, rows: np.ndarray) -> Tensor:
        """The demands of ``rows``, each times log-normal noise of mean 1: (B, D)."""
        demand = torch.as_tensor(self.traffic.read(rows)).to(self.problem.demand)
        if not self.config.augment:
            return demand
        noise = torch.randn(demand.shape, generator=self.generator, dtype=demand.dtype, device=demand.device)
        return demand * torch.exp(self.config.augment * noise - self.config.augment**2 / 2)

    def _policy_loss(self, problem: Problem, means: Tensor) -> Tensor:
        if self.config.learner == "direct":
            return direct_loss(problem, means)
        config = self.config
        return coma_loss(problem, means, Exploration(config.std, config.samples, config.episodes), self.generator)

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
        if score > self._kept:
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
        allocator, scores = Allocator(self.model.eval()), []
        for begin in range(0, len(self._validation_rows), self._micro):
            rows = self._validation_rows[begin : begin + self._micro]
            problem = self.problem.with_demand(torch.as_tensor(self.traffic.read(rows))).to(torch.float64)
            value = problem.value(allocator.solve(problem).splits)
            if problem.objective.maximises_value:
                value = value / demand_value(problem)
            scores.append(value if problem.objective.higher_is_better else -value)
        self.model.train()
        return float(torch.cat(scores).mean())

    def save(self, out: Path) -> None:
        """Write what :meth:`resume` reads."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors["generator"] = self.generator.get_state()
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
            self.generator.set_state(tensors["generator"])
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
                "micro_batch": self._micro,
                "device": self.problem.demand.device.type,
            }
        )
