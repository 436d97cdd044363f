"""The training of a hedge for any network: a gate over the default mixture, on random histories.

The loss of an interval is the largest utilisation that the splits cause under the matrix that came (a soft maximum of
the links' utilisations), over that of the mixture.  Every eighth history is held out; the weights kept are those of the
least mean loss there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from teal.config import PretrainHedgeConfig, seconds
from teal.learning import run_state
from teal.learning.hedge_samples import Drawn, Recording, load_recording, record_all
from teal.learning.loop import Budget, Stopwatch, clipped_step, set_cosine_rate, train_until
from teal.learning.network_pool import NetworkPool, topohub_pool
from teal.nn import checkpoint
from teal.nn.adam import Adam
from teal.nn.hedge_gate import HedgeGate, HedgeGateConfig
from teal.problem import Problem
from teal.schemes.hedges.learned import HISTORY, model_inputs

HISTORIES = "histories"  # subfolder of the run for what the mixture decided
_HELD_OUT_ONE_IN = 8  # histories
_BATCH_INTERVALS = 12  # intervals of an optimiser step
_WARM_UP_STEPS = 30  # in which the learning rate rises
_MAXIMUM_SOFTNESS = 0.01  # of the soft maximum, share of the mixture's largest utilisation
_MAX_GRADIENT_NORM = 1.0
_VALIDATION_INTERVALS = 3  # of each history that is held out
_VALIDATE_EVERY = 200  # steps


@dataclasses.dataclass(frozen=True, eq=False)
class _Interval:
    """One interval of a history, to learn from."""

    recording: Recording
    problem: Problem  # in float32
    number: int

    def losses(self, model: HedgeGate) -> tuple[Tensor, Tensor]:
        """Soft and true largest utilisation, both over that of the mixture."""
        recording, row = self.recording, int(self.recording.rows[self.number])
        recent = torch.from_numpy(recording.traffic.read(slice(max(0, row - HISTORY), row)))
        recent = recent[recent.sum(1) > 0]
        decisions = torch.from_numpy(recording.decisions[self.number])
        weights, recent_losses = recording.weights[self.number], recording.recent_losses[self.number]
        inputs = model_inputs(self.problem, recent, 1, decisions, weights, recent_losses)
        came = self.problem.with_demand(torch.from_numpy(recording.traffic.read([row])).to(torch.float32))
        mixture = torch.einsum("h,hdk->dk", torch.from_numpy(weights).to(decisions), decisions)
        scale = came.utilisation(mixture[None]).amax()
        utilisation = came.utilisation(model(inputs, decisions)[None])[0] / scale
        return _MAXIMUM_SOFTNESS * torch.logsumexp(utilisation / _MAXIMUM_SOFTNESS, 0), utilisation.amax()


class HedgeTrainer:
    """Trains one gate.

    Step n draws its intervals from (seed, n) alone, so that a resumed run continues with the same.

    Args:
        config: the settings.
        pool: networks; None for those of topohub.

    Attributes:
        best: least mean loss on the histories that are held out; 1 is the mixture's.
    """

    def __init__(self, config: PretrainHedgeConfig, pool: NetworkPool | None = None) -> None:
        self.config, self._pool = config, pool or topohub_pool()
        torch.manual_seed(config.seed)
        self.model = HedgeGate(HedgeGateConfig(config.hidden))
        self.optimiser = Adam(self.model.parameters(), config.learning_rate)
        self.step, self.elapsed_s, self.best = 0, 0.0, math.inf
        self._budget = Budget(seconds(config.time_budget), config.max_steps)
        self._train: list[list[_Interval]] = []
        self._held_out: list[list[_Interval]] = []

    def prepare(self, out: Path, progress: Callable[[int, int], None]) -> None:
        """Run the mixture over the histories, those that were not done before, and load all.

        Args:
            out: folder of the run.
            progress: called with the number of histories that are there, and of all.
        """
        count, config = self.config.histories, self.config
        folder = out / HISTORIES
        folder.mkdir(parents=True, exist_ok=True)
        sources = [Drawn(self._pool, config.seed, number, config.num_paths) for number in range(count)]
        files = [folder / f"{number:05}.npz" for number in range(count)]
        for done, _ in enumerate(record_all(sources, files, config.workers)):
            progress(done + 1, count)
        for number, (source, file) in enumerate(zip(sources, files, strict=True)):
            recording = load_recording(source, file)
            problem = recording.problem.to(torch.float32)
            intervals = [_Interval(recording, problem, i) for i in range(len(recording.rows))]
            (self._train if number % _HELD_OUT_ONE_IN else self._held_out).append(intervals)

    def train(self, out: Path, progress: bool = True) -> None:
        """Train until the time budget or the step limit; writes a checkpoint whenever the validation is better.

        Raises:
            KeyboardInterrupt: on Ctrl-C, after the current step is done and the state is written.
        """
        stopwatch = Stopwatch(self.elapsed_s)

        def step(bar: Any) -> None:
            if self.step % _VALIDATE_EVERY == 0:
                self._validate(out)
            loss = self.one_step()
            bar.set_postfix(loss=f"{loss:.4f}", best=f"{self.best:.4f}", refresh=False)
            self.elapsed_s = stopwatch.elapsed_s()

        train_until(
            lambda: self._budget.is_used_up(self.step, self.elapsed_s), step, lambda: self._save(out),
            steps_done=self.step, max_steps=self._budget.max_steps, show=progress,
        )  # fmt: skip
        self._validate(out)

    def one_step(self) -> float:
        """One optimiser step over a few intervals; the mean loss."""
        config, rng = self.config, np.random.default_rng([self.config.seed, self.step])
        set_cosine_rate(
            self.optimiser, config.learning_rate, self.step, self._budget.share_used(self.step, self.elapsed_s),
            warm_up_steps=_WARM_UP_STEPS,
        )  # fmt: skip
        self.optimiser.zero_grad()
        total = 0.0
        for _ in range(_BATCH_INTERVALS):
            intervals = self._train[rng.integers(len(self._train))]
            soft, largest = intervals[rng.integers(len(intervals))].losses(self.model)
            (soft / _BATCH_INTERVALS).backward()
            total += float(largest.detach()) / _BATCH_INTERVALS
        clipped_step(self.optimiser, self.model, _MAX_GRADIENT_NORM, self.step)
        self.step += 1
        return total

    @torch.no_grad()
    def validate(self) -> float:
        """Mean loss on the histories that are held out; 1 is the mixture's."""
        means = []
        for intervals in self._held_out:
            spread = np.unique(np.linspace(0, len(intervals) - 1, _VALIDATION_INTERVALS).round().astype(int))
            means.append(np.mean([float(intervals[i].losses(self.model)[1]) for i in spread]))
        return float(np.mean(means))

    def _validate(self, out: Path) -> None:
        score = self.validate()
        if score < self.best:
            self.best = score
            card = checkpoint.HedgeGateCard(
                model=self.model.config, histories=self.config.histories, held_out=self._pool.held_out,
                seed=self.config.seed, step=self.step, train_s=round(self.elapsed_s, 1), validation=score,
            )  # fmt: skip
            checkpoint.save_hedge_gate(out, self.model, card)
        self._save(out)

    def _save(self, out: Path) -> None:
        """Write what :meth:`resume` reads."""
        tensors = run_state.with_prefix("model", self.model.state_dict())
        tensors |= run_state.with_prefix("adam", self.optimiser.tensors())
        fields = {"step": self.step, "elapsed_s": self.elapsed_s, "best": self.best}
        run_state.save_run(out, tensors, fields | {"config": dataclasses.asdict(self.model.config)})

    def resume(self, out: Path) -> None:
        """Continue from what a run in ``out`` wrote.

        Raises:
            InputError: no state there, or that of a model of other shapes.
        """
        tensors, fields = run_state.load_run_of(out, dataclasses.asdict(self.model.config))
        self.model.load_state_dict(run_state.without_prefix("model", tensors))
        self.optimiser.load(run_state.without_prefix("adam", tensors))
        self.step, self.elapsed_s, self.best = int(fields["step"]), float(fields["elapsed_s"]), float(fields["best"])
