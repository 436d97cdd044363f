"""The training of a hedge for any network: a gate over the default mixture, on random histories.

The loss of an interval is the largest utilisation that the splits cause under the matrix that came
(a soft maximum of the links' utilisations), over that of the mixture.  Every eighth history is held
out; the weights kept are those of the least mean loss there.

Random histories: consecutive matrices on a random network, to train hedges on.

With m[d] a gravity mean, the rate of demand d in interval t is

    m[d] cycle[source, t] drift[d, t] exp(noise[d, t] + noise[source, t])
        burst[d, t] crowd[d, t] up[source, t]

- cycle: 1 + a cos(2 pi (t - peak[source]) / period), with one period for all sources;
- drift: exp of a random walk of each demand;
- noise: AR(1) of each demand and of each source, so that demands of a source move together; the
  standard deviation differs between demands;
- burst: a demand is on or off, by a Markov chain of two states;
- crowd: in some intervals in a row, a tenth of the demands sends a multiple of its rate;
- up: in some intervals in a row, a source sends nothing.

Each series has its own random strengths, and each effect but the noise is absent from half of the
series.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from teal.app.command import Notify, Outcome
from teal.app.run_files import RESUME_HINT, save_settings
from teal.app.settings import seconds
from teal.errors import InputError
from teal.learning import run_state
from teal.learning.loop import Budget, Stopwatch, set_cosine_rate, train_until
from teal.learning.network_pool import NetworkPool, draw_problem, pool_network, topohub_pool
from teal.learning.settings import PretrainConfig
from teal.learning.steps import clipped_step
from teal.learning.train_command import FILES
from teal.network import TrafficMatrices
from teal.network.rates import ArrayRates
from teal.nn import checkpoint
from teal.nn.adam import Adam
from teal.nn.hedge_gate import HedgeGate, HedgeGateConfig
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.runtime.archives import check_npz
from teal.runtime.arrays import Float32Array, FloatArray, Int64Array, IntArray
from teal.runtime.processes import call_all
from teal.runtime.progress import progress_bar
from teal.runtime.storage import atomic_file, check_out_folder
from teal.schemes.hedges import make_hedge
from teal.schemes.past import Past
from teal.solvers import pdhg
from teal.spec import Spec
from teal_next.learned import HISTORY, model_inputs
from teal_next.mixture import DEFAULT, Mixture

MAX_NODES = 30  # of the networks: several hedges solve programs of many matrices for each interval
_INTERVAL_S = 300
_FIRST_TIME = np.datetime64("2024-01-01T00:00:00", "s")
# Ranges of the strengths; log-uniform where they span a decade.
_NOISE_RANGE = (0.03, 1.0)  # standard deviation of the log of a rate
_CORRELATION_RANGE = (0.0, 0.995)  # of that noise from one interval to the next
_SOURCE_SHARE = (0.0, 0.8)  # share of the noise's variance that demands of a source have in common
_SWING_RANGE = (0.1, 0.8)  # a, share of the mean
_PERIOD_RANGE = (48, 400)  # intervals
_DRIFT_RANGE = (0.002, 0.05)  # standard deviation of a step of the random walk
_BURSTY_RANGE = (0.1, 0.6)  # share of the demands that are on and off
_STAY_RANGE = (0.5, 0.98)  # probability that such a demand stays as it is
_CROWD_INTERVALS, _CROWD_FACTOR, _CROWD_SHARE = (2, 12), (2.0, 10.0), 0.1
_EVENT_EVERY = 40  # intervals, on average, from one crowd or outage to the next


def draw_history(
    rng: np.random.Generator, pool: NetworkPool, count: int, num_paths: int
) -> tuple[Problem, TrafficMatrices]:
    """A network of at most MAX_NODES nodes with random capacities, and ``count`` matrices.

    Args:
        rng: for everything.
        pool: networks; its names are drawn until one is small enough.
        count: T.
        num_paths: K.

    Returns:
        the problem (B = 1, max_link_utilisation, float64), whose demand is the mean, and the
        matrices.
    """
    name = pool.pick(rng)
    while pool_network(name, 1)[0].num_nodes > MAX_NODES:
        name = pool.pick(rng)
    problem = draw_problem(rng, name, 1, num_paths, ObjectiveName.MAX_LINK_UTILISATION).to(
        torch.float64
    )
    pairs = problem.paths.pairs
    rates = problem.demand.numpy() * _factors(rng, pairs, problem.topology.num_nodes, count)
    stamps = _FIRST_TIME + np.arange(count) * np.timedelta64(_INTERVAL_S, "s")
    return problem, TrafficMatrices(
        name="history",
        pairs=pairs,
        timestamps=stamps,
        rates=ArrayRates(rates),
        interval_s=_INTERVAL_S,
    )


def _factors(rng: np.random.Generator, pairs: IntArray, nodes: int, count: int) -> FloatArray:
    """(T, D) what the mean rates are multiplied by."""
    source, demands, time = pairs[:, 0], len(pairs), np.arange(count)[:, None]
    has_cycle, has_drift, has_bursts, has_crowds, has_outages = rng.random(5) < 0.5
    noise, correlation = _log_uniform(rng, _NOISE_RANGE), rng.uniform(*_CORRELATION_RANGE)
    shared = rng.uniform(*_SOURCE_SHARE)
    spread = noise * np.exp(
        0.5 * rng.standard_normal(demands)
    )  # demands differ in how much they vary
    log_rate = np.sqrt(1 - shared) * spread * _autoregression(rng, count, demands, correlation)
    log_rate += np.sqrt(shared) * noise * _autoregression(rng, count, nodes, correlation)[:, source]
    if has_drift:
        log_rate += _log_uniform(rng, _DRIFT_RANGE) * rng.standard_normal((count, demands)).cumsum(
            0
        )
    factors = np.exp(log_rate)
    if has_cycle:
        # Peaks within a third of the period of each other, as in a network of a few time zones.
        peak = rng.uniform(0, 1 / 3, nodes)[source]
        factors *= 1 + rng.uniform(*_SWING_RANGE) * np.cos(
            2 * np.pi * (time / rng.uniform(*_PERIOD_RANGE) - peak)
        )
    if has_bursts:
        bursty, stay = rng.random(demands) < rng.uniform(*_BURSTY_RANGE), rng.uniform(*_STAY_RANGE)
        flips = (rng.random((count, demands)) > stay).cumsum(0) + rng.integers(2, size=demands)
        factors *= np.where(bursty & (flips % 2 == 0), rng.uniform(0, 0.3), 1.0)
    if has_crowds:
        for at, stop in _events(rng, count):
            crowd = rng.random(demands) < _CROWD_SHARE
            factors[at:stop, crowd] *= rng.uniform(*_CROWD_FACTOR)
    if has_outages:
        for at, stop in _events(rng, count):
            factors[at:stop, source == rng.integers(nodes)] = 0
    return factors


def _events(rng: np.random.Generator, count: int) -> list[tuple[int, int]]:
    """First interval and end of each crowd or outage."""
    begins = np.flatnonzero(rng.random(count) < 1 / _EVENT_EVERY)
    return [(int(at), int(at + rng.integers(*_CROWD_INTERVALS))) for at in begins]


def _autoregression(
    rng: np.random.Generator, count: int, width: int, correlation: float
) -> FloatArray:
    """(T, width) AR(1) series of variance 1."""
    steps = rng.standard_normal((count, width))
    state = steps[0]
    rows = [state]
    for step in steps[1:]:
        state = correlation * state + np.sqrt(1 - correlation**2) * step
        rows.append(state)
    return np.stack(rows)


def _log_uniform(rng: np.random.Generator, limits: tuple[float, float]) -> float:
    return float(np.exp(rng.uniform(*np.log(limits))))


INTERVALS = 16  # recorded of each history
_WARM_UP_INTERVALS = 10  # intervals before them in which the mixture already learns
_MIN_PAST, _MAX_PAST = 12, 160  # matrices known before the first interval that the mixture sees
_OPTIMUM_GAP = 1e-3  # of the optima that losses are divided by


@dataclasses.dataclass(frozen=True, eq=False)
class Recording:
    """One history, and the mixture's decisions in its last T intervals, H hedges.

    Attributes:
        problem: the network; B = 1, its demand means nothing.
        traffic: all matrices.
        rows: (T,) number of the matrix of each interval.
        decisions: (T, H, D, K) splits.
        weights: (T, H) of the hedges.
        recent_losses: (T, H) see :class:`teal_next.mixture.Mixture`.
        optimum: (T,) least possible largest utilisation.
    """

    problem: Problem
    traffic: TrafficMatrices
    rows: Int64Array
    decisions: Float32Array
    weights: FloatArray
    recent_losses: FloatArray
    optimum: FloatArray


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A history that is drawn from a seed.

    Attributes:
        pool: pool of networks.
        seed: seed of the training run.
        number: number of the history.
        num_paths: K.
    """

    pool: NetworkPool
    seed: int
    number: int
    num_paths: int

    def load(self) -> tuple[Problem, TrafficMatrices]:
        """The network and its matrices."""
        rng = np.random.default_rng([self.seed, self.number])
        past = int(rng.integers(_MIN_PAST, _MAX_PAST + 1))
        return draw_history(rng, self.pool, past + _WARM_UP_INTERVALS + INTERVALS, self.num_paths)


def record(source: Drawn, file: Path) -> None:
    """Run the default mixture over the last intervals of a history and write its decisions."""
    problem, traffic = source.load()
    mixture = Mixture({name: make_hedge(name) for name in DEFAULT.split("+")}, warm_up=0)
    rows, decisions, weights, recent = [], [], [], []
    first = traffic.num_matrices - INTERVALS
    for row in range(first - _WARM_UP_INTERVALS, traffic.num_matrices):
        decided = mixture.decisions(Past(problem, traffic.part(0, row)))
        if row >= first and traffic.read([row]).sum() > 0:
            rows.append(row)
            decisions.append(decided.to(torch.float32).numpy())
            weights.append(mixture.weights)
            recent.append(mixture.recent_losses.copy())
    optimum = pdhg.solve(
        problem.with_demand(torch.from_numpy(traffic.read(rows))), gap=_OPTIMUM_GAP
    ).value
    with atomic_file(file) as temporary:
        np.savez(
            temporary,
            rows=np.array(rows),
            decisions=np.stack(decisions),
            weights=np.stack(weights),
            recent_losses=np.stack(recent),
            optimum=optimum.numpy(),
        )


def record_all(sources: Sequence[Drawn], files: Sequence[Path], workers: int) -> Iterator[int]:
    """Record each history whose file does not exist; yields the numbers of those that are there.

    Args:
        sources: the histories.
        files: for each of them.
        workers: processes; 0 for one per core.
    """
    missing = [number for number, file in enumerate(files) if not file.exists()]
    yield from sorted(set(range(len(files))) - set(missing))
    calls = [(sources[number], files[number]) for number in missing]
    yield from (missing[done] for done in call_all(record, calls, workers=workers, threads=1))


def load_recording(source: Drawn, file: Path) -> Recording:
    """Load what :func:`record` wrote."""
    problem, traffic = source.load()
    check_npz(file)
    with np.load(file, allow_pickle=False) as stored:
        return Recording(problem, traffic, **{name: stored[name] for name in stored.files})


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
        weights, recent_losses = (
            recording.weights[self.number],
            recording.recent_losses[self.number],
        )
        inputs = model_inputs(self.problem, recent, 1, decisions, weights, recent_losses)
        came = self.problem.with_demand(
            torch.from_numpy(recording.traffic.read([row])).to(torch.float32)
        )
        mixture = torch.einsum("h,hdk->dk", torch.from_numpy(weights).to(decisions), decisions)
        scale = came.utilisation(mixture[None]).amax()
        utilisation = came.utilisation(model(inputs, decisions)[None])[0] / scale
        return _MAXIMUM_SOFTNESS * torch.logsumexp(
            utilisation / _MAXIMUM_SOFTNESS, 0
        ), utilisation.amax()


@dataclasses.dataclass(frozen=True)
class HistorySettings:
    """The histories that a gate is trained on.

    Attributes:
        histories: their number; each eighth is for validation.
        workers: processes that compute what is missing; 0 for one per core.

    Raises:
        InputError: a number out of its range.
    """

    histories: int = 480
    workers: int = 0

    def __post_init__(self) -> None:
        for name, least in (("histories", 8), ("workers", 0)):
            if getattr(self, name) < least:
                raise InputError("--model hedge", name, f"at least {least}", getattr(self, name))


class HedgeTrainer:
    """Trains one gate.

    Step n draws its intervals from (seed, n) alone, so that a resumed run continues with the same.

    Args:
        config: the settings.
        histories: number of histories, and of the processes that compute them.
        pool: networks; None for those of topohub.

    Attributes:
        best: least mean loss on the histories that are held out; 1 is the mixture's.
    """

    def __init__(
        self,
        config: PretrainConfig,
        histories: HistorySettings,
        pool: NetworkPool | None = None,
    ) -> None:
        self._histories = histories
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
        count, config = self._histories.histories, self.config
        folder = out / HISTORIES
        folder.mkdir(parents=True, exist_ok=True)
        sources = [
            Drawn(self._pool, config.seed, number, config.num_paths) for number in range(count)
        ]
        files = [folder / f"{number:05}.npz" for number in range(count)]
        for done, _ in enumerate(record_all(sources, files, self._histories.workers)):
            progress(done + 1, count)
        for number, (source, file) in enumerate(zip(sources, files, strict=True)):
            recording = load_recording(source, file)
            problem = recording.problem.to(torch.float32)
            intervals = [_Interval(recording, problem, i) for i in range(len(recording.rows))]
            (self._train if number % _HELD_OUT_ONE_IN else self._held_out).append(intervals)

    def train(self, out: Path, progress: bool = True) -> None:
        """Train until the time budget or the step limit; writes a checkpoint whenever the
        validation is better.

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
            lambda: self._budget.is_used_up(self.step, self.elapsed_s),
            step,
            lambda: self._save(out),
            steps_done=self.step,
            max_steps=self._budget.max_steps,
            show=progress,
        )
        self._validate(out)

    def one_step(self) -> float:
        """One optimiser step over a few intervals; the mean loss."""
        config, rng = self.config, np.random.default_rng([self.config.seed, self.step])
        set_cosine_rate(
            self.optimiser,
            config.learning_rate,
            self.step,
            self._budget.share_used(self.step, self.elapsed_s),
            warm_up_steps=_WARM_UP_STEPS,
        )
        self.optimiser.zero_grad()
        total = torch.zeros(1, dtype=torch.float64)
        for _ in range(_BATCH_INTERVALS):
            intervals = self._train[rng.integers(len(self._train))]
            soft, largest = intervals[rng.integers(len(intervals))].losses(self.model)
            (soft / _BATCH_INTERVALS).backward()
            total += largest.detach() / _BATCH_INTERVALS
        (loss,) = clipped_step(self.optimiser, self.model, _MAX_GRADIENT_NORM, self.step, total)
        self.step += 1
        return loss

    @torch.no_grad()
    def validate(self) -> float:
        """Mean loss on the histories that are held out; 1 is the mixture's."""
        means = []
        for intervals in self._held_out:
            spread = np.unique(
                np.linspace(0, len(intervals) - 1, _VALIDATION_INTERVALS).round().astype(int)
            )
            means.append(np.mean([float(intervals[i].losses(self.model)[1]) for i in spread]))
        return float(np.mean(means))

    def _validate(self, out: Path) -> None:
        score = self.validate()
        if score < self.best:
            self.best = score
            card = checkpoint.HedgeGateCard(
                model=self.model.config,
                histories=self._histories.histories,
                held_out=self._pool.held_out,
                seed=self.config.seed,
                step=self.step,
                train_s=round(self.elapsed_s, 1),
                validation=score,
            )
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
        self.step, self.elapsed_s, self.best = (
            int(fields["step"]),
            float(fields["elapsed_s"]),
            float(fields["best"]),
        )


def run_pretrain_hedge(config: PretrainConfig, histories: HistorySettings) -> HedgeTrainer:
    """Compute the histories that are missing and train, from the start or from the state in OUT.

    Raises:
        InputError: a fault in the settings, or an earlier run in OUT that must not be replaced.
    """
    if not config.resume:
        check_out_folder(config.out, FILES, overwrite=config.overwrite, hint=RESUME_HINT)
    trainer = HedgeTrainer(config, histories)
    if config.resume:
        trainer.resume(config.out)
    with progress_bar(total=histories.histories, desc="histories", unit="history") as bar:
        trainer.prepare(config.out, lambda done, _: bar.update(done - bar.n))
    save_settings(config)
    trainer.train(config.out)
    return trainer


def pretrain_hedge(config: PretrainConfig, spec: Spec, _: Notify) -> Outcome:
    """`teal pretrain --model hedge:histories=480,workers=0`.

    Raises:
        InputError: an unknown option, or a number out of its range.
    """
    options = {name: int(n) for name, n in spec.parse_options(histories=480, workers=0).items()}
    trainer = run_pretrain_hedge(config, HistorySettings(**options))
    return Outcome(
        text=f"{config.out}: {trainer.step} steps in {trainer.elapsed_s:.0f} s; on histories that "
        "are held out, "
        f"largest utilisation {trainer.best:.4f} of the mixture's; try it with: teal next-interval "
        f"--scheme learned --model {config.out}",
        data={
            "out": str(config.out),
            "steps": trainer.step,
            "elapsed_s": trainer.elapsed_s,
            "utilisation_over_mixture": trainer.best,
        },
    )
