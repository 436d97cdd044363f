"""Training of the hedge gate, a model that corrects the splits of the default mixture of hedges on
any network, on random histories.

The loss of an interval is the largest utilisation of the splits under the realised matrix (a soft
maximum of the links' utilisations), over that of the mixture.  Every eighth history is for
validation; the weights with the least mean loss there are kept.

Random histories are consecutive matrices on a random network.  With m[d] a gravity mean, the rate
of demand d in interval t is

    m[d] cycle[source, t] drift[d, t] exp(noise[d, t] + noise[source, t])
        burst[d, t] crowd[d, t] up[source, t]

- cycle: 1 + a cos(2 pi (t / period - peak[source])), with one period for all sources;
- drift: exp of a random walk of each demand;
- noise: AR(1) of each demand and of each source, so that demands of a source are correlated; the
  standard deviation differs between demands;
- burst: a demand is on or off, by a Markov chain of two states;
- crowd: in some consecutive intervals, a tenth of the demands sends a multiple of its rate;
- up: in some consecutive intervals, a source sends nothing (outage).

Each series has its own random strengths, and each effect but the noise is absent from half of the
series.  Entry points: :func:`pretrain_hedge`, :class:`HedgeTrainer`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from teal.app.command import Notify, Outcome
from teal.app.run_files import RESUME_HINT, save_settings
from teal.app.settings import seconds
from teal.errors import InputError
from teal.network import TrafficMatrices
from teal.network.rates import ArrayRates
from teal.nn import checkpoint
from teal.nn.adam import Adam
from teal.nn.hedge_gate import HedgeGate, HedgeGateConfig
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.runtime.archives import check_npz
from teal.runtime.arrays import FloatArray, Int64Array, IntArray
from teal.runtime.processes import call_all
from teal.runtime.progress import progress_bar
from teal.runtime.storage import atomic_file, check_out_folder
from teal.schemes.hedges import make_hedge
from teal.schemes.past import Past
from teal.solvers import pipeline
from teal.spec import Spec
from teal_next.learned import HISTORY, model_inputs
from teal_next.mixture import DEFAULT, Mixture
from teal_study.learning import run_state
from teal_study.learning.loop import Budget, Stopwatch, set_cosine_rate, train_until
from teal_study.learning.network_pool import NetworkPool, draw_problem, pool_network, topohub_pool
from teal_study.learning.settings import PretrainConfig
from teal_study.learning.steps import clipped_step
from teal_study.learning.train_command import FILES

# Maximum size of the networks: several hedges solve programs of many matrices in each interval.
MAX_NODES = 30
_INTERVAL_S = 300
_FIRST_TIME = np.datetime64("2024-01-01T00:00:00", "s")
# Ranges of the strengths; log-uniform if they span a decade.
# Standard deviation of the log of a rate.
_NOISE_RANGE = (0.03, 1.0)
# Correlation of that noise from one interval to the next.
_CORRELATION_RANGE = (0.0, 0.995)
# Share of the noise's variance that demands of a source have in common.
_SOURCE_SHARE = (0.0, 0.8)
# Amplitude a of the cycle, as a share of the mean.
_SWING_RANGE = (0.1, 0.8)
# Period of the cycle, intervals.
_PERIOD_RANGE = (48, 400)
# Standard deviation of a step of the random walk.
_DRIFT_RANGE = (0.002, 0.05)
# Share of the demands that are on and off.
_BURSTY_RANGE = (0.1, 0.6)
# Probability that such a demand keeps its state.
_STAY_RANGE = (0.5, 0.98)
# Length of a crowd or an outage, intervals; the upper limit is exclusive.
_CROWD_INTERVALS = (2, 12)
# Factor of the rates in a crowd, and share of the demands that belong to it.
_CROWD_FACTOR = (2.0, 10.0)
_CROWD_SHARE = 0.1
# Mean number of intervals from one crowd or outage to the next.
_MEAN_EVENT_SPACING = 40


def draw_history(
    rng: np.random.Generator, pool: NetworkPool, count: int, num_paths: int
) -> tuple[Problem, TrafficMatrices]:
    """Draw a network of at most MAX_NODES nodes with random capacities, and ``count`` matrices.

    Args:
        rng: random generator.
        pool: networks; drawn until one is small enough.
        count: number of matrices, T.
        num_paths: number of paths per demand, K.

    Returns:
        the problem (B = 1, max_link_utilisation, float64), whose demand is the mean, and the
        matrices.
    """
    # Draw networks until one is small enough.
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
    """Draw random factors (T, D) by which the mean rates are multiplied.

    The factor of demand d in interval t is cycle[source, t] drift[d, t] exp(noise[d, t] +
    noise[source, t]) burst[d, t] crowd[d, t] up[source, t], where source is the source node of d.
    Each effect except noise is left out with probability 1/2: its factor is then 1.

    Args:
        rng: random generator.
        pairs: (D, 2) source and target node of each demand.
        nodes: number of nodes.
        count: T, number of intervals.
    """
    # Draw the effects, and strength and correlations of the noise.
    source = pairs[:, 0]
    num_demands = len(pairs)
    time = np.arange(count)[:, None]
    has_cycle, has_drift, has_bursts, has_crowds, has_outages = rng.random(5) < 0.5
    noise_scale = _log_uniform(rng, _NOISE_RANGE)
    correlation = rng.uniform(*_CORRELATION_RANGE)
    source_share = rng.uniform(*_SOURCE_SHARE)
    # Noise: AR(1) of each demand, whose standard deviation differs, and of each source.
    demand_scale = noise_scale * np.exp(0.5 * rng.standard_normal(num_demands))
    log_rate = (
        np.sqrt(1 - source_share)
        * demand_scale
        * _autoregression(rng, count, num_demands, correlation)
    )
    log_rate += (
        np.sqrt(source_share)
        * noise_scale
        * _autoregression(rng, count, nodes, correlation)[:, source]
    )
    # Drift: random walk of the log rate.
    if has_drift:
        log_rate += _log_uniform(rng, _DRIFT_RANGE) * rng.standard_normal(
            (count, num_demands)
        ).cumsum(0)
    factors = np.exp(log_rate)
    # Cycle: cosine with a common period.
    if has_cycle:
        # Peaks within a third of the period of each other, as in a network of a few time zones.
        peak = rng.uniform(0, 1 / 3, nodes)[source]
        factors *= 1 + rng.uniform(*_SWING_RANGE) * np.cos(
            2 * np.pi * (time / rng.uniform(*_PERIOD_RANGE) - peak)
        )
    # Bursts: some demands switch between their rate and a small fraction of it.
    if has_bursts:
        is_bursty = rng.random(num_demands) < rng.uniform(*_BURSTY_RANGE)
        stay_probability = rng.uniform(*_STAY_RANGE)
        # Number of switches of each demand so far, plus a random first state; even means off.
        num_flips = (rng.random((count, num_demands)) > stay_probability).cumsum(0) + rng.integers(
            2, size=num_demands
        )
        factors *= np.where(is_bursty & (num_flips % 2 == 0), rng.uniform(0, 0.3), 1.0)
    # Flash crowds: a tenth of the demands sends a multiple for some intervals.
    if has_crowds:
        for begin, stop in _events(rng, count):
            is_in_crowd = rng.random(num_demands) < _CROWD_SHARE
            factors[begin:stop, is_in_crowd] *= rng.uniform(*_CROWD_FACTOR)
    # Outages: a source sends nothing for some intervals.
    if has_outages:
        for begin, stop in _events(rng, count):
            factors[begin:stop, source == rng.integers(nodes)] = 0
    return factors


def _events(rng: np.random.Generator, count: int) -> list[tuple[int, int]]:
    """Draw random crowds or outages, as (first interval, interval after the last one).

    Args:
        rng: random generator.
        count: number of intervals.
    """
    begins = np.flatnonzero(rng.random(count) < 1 / _MEAN_EVENT_SPACING)
    return [(int(begin), int(begin + rng.integers(*_CROWD_INTERVALS))) for begin in begins]


def _autoregression(
    rng: np.random.Generator, count: int, width: int, correlation: float
) -> FloatArray:
    """Draw independent AR(1) series (T, width) of variance 1.

    With e_t standard normal, z_t = correlation * z_(t-1) + sqrt(1 - correlation^2) * e_t.

    Args:
        rng: random generator.
        count: T, number of intervals.
        width: number of series.
        correlation: correlation from one interval to the next, in [0, 1).
    """
    innovations = rng.standard_normal((count, width))
    state = innovations[0]
    states = [state]
    for innovation in innovations[1:]:
        state = correlation * state + np.sqrt(1 - correlation**2) * innovation
        states.append(state)
    return np.stack(states)


def _log_uniform(rng: np.random.Generator, limits: tuple[float, float]) -> float:
    """Draw a number whose logarithm is uniform between the logarithms of two limits.

    Args:
        rng: random generator.
        limits: smallest and largest number, above 0.
    """
    return float(np.exp(rng.uniform(*np.log(limits))))


# Recorded intervals of each history.
INTERVALS = 16
# Intervals before them in which the mixture already learns.
_WARM_UP_INTERVALS = 10
# Matrices known before the first interval that the mixture sees.
_MIN_PAST = 12
_MAX_PAST = 160
# Certified gap of the optima that losses are divided by.
_OPTIMUM_GAP = 1e-3


@dataclasses.dataclass(frozen=True, eq=False)
class Recording:
    """One history (a series of matrices), and the splits of the H hedges of a mixture in its last T
    intervals.

    Attributes:
        problem: the network; B = 1, its demand is ignored.
        traffic: all matrices.
        rows: (T,) index of the matrix of each interval.
        decisions: (T, H, D, K) splits of the hedges.
        weights: (T, H) weights of the hedges.
        recent_losses: (T, H) exponential moving average of each hedge's loss less that of the
            mixture.
        optimum: (T,) optimal largest utilisation.
    """

    problem: Problem
    traffic: TrafficMatrices
    rows: Int64Array
    decisions: npt.NDArray[np.float32]
    weights: FloatArray
    recent_losses: FloatArray
    optimum: FloatArray


@dataclasses.dataclass(frozen=True)
class HistorySource:
    """Seed and settings that determine one random history.

    Attributes:
        pool: pool of networks.
        seed: seed of the training run.
        number: index of the history; it is part of the seed.
        num_paths: number of paths per demand, K.
    """

    pool: NetworkPool
    seed: int
    number: int
    num_paths: int

    def load(self) -> tuple[Problem, TrafficMatrices]:
        """Draw the network and its matrices; all calls return the same ones."""
        rng = np.random.default_rng([self.seed, self.number])
        # Number of matrices before the warm-up of the mixture and the recorded intervals.
        past = int(rng.integers(_MIN_PAST, _MAX_PAST + 1))
        return draw_history(rng, self.pool, past + _WARM_UP_INTERVALS + INTERVALS, self.num_paths)


def record(source: HistorySource, file: Path) -> None:
    """Run the default mixture over the last intervals of a history, and write its splits, weights
    and losses to a file.

    Args:
        source: the history.
        file: .npz file to write.
    """
    problem, traffic = source.load()
    mixture = Mixture({name: make_hedge(name) for name in DEFAULT.split("+")}, warm_up=0)
    rows, decisions, weights, recent_losses = [], [], [], []
    # The mixture learns in the warm-up intervals; only later ones with traffic are recorded.
    first = traffic.num_matrices - INTERVALS
    for row in range(first - _WARM_UP_INTERVALS, traffic.num_matrices):
        hedge_splits = mixture.decisions(Past(problem, traffic.part(0, row)))
        if row >= first and traffic.read([row]).sum() > 0:
            rows.append(row)
            decisions.append(hedge_splits.to(torch.float32).numpy())
            weights.append(mixture.weights)
            recent_losses.append(mixture.recent_losses.copy())
    # Optima of the recorded matrices.
    optimum = pipeline.solve(
        problem.with_demand(torch.from_numpy(traffic.read(rows))), gap=_OPTIMUM_GAP
    ).value
    with atomic_file(file) as temporary:
        np.savez(
            temporary,
            rows=np.array(rows),
            decisions=np.stack(decisions),
            weights=np.stack(weights),
            recent_losses=np.stack(recent_losses),
            optimum=optimum.numpy(),
        )


def record_all(
    sources: Sequence[HistorySource], files: Sequence[Path], workers: int
) -> Iterator[int]:
    """Record the histories whose files are missing, in several processes.

    Args:
        sources: the histories.
        files: file of each history.
        workers: number of processes; 0 for one per core.

    Yields:
        the index of each history once its file exists; the existing ones first.
    """
    # Histories without a file are recorded; the others are yielded first.
    missing = [number for number, file in enumerate(files) if not file.exists()]
    yield from sorted(set(range(len(files))) - set(missing))
    calls = [(sources[number], files[number]) for number in missing]
    yield from (missing[index] for index in call_all(record, calls, workers=workers, threads=1))


def load_recording(source: HistorySource, file: Path) -> Recording:
    """Draw a history again, and load the decisions that :func:`record` has written for it.

    Args:
        source: the history.
        file: .npz file with the decisions.
    """
    problem, traffic = source.load()
    check_npz(file)
    with np.load(file, allow_pickle=False) as stored:
        return Recording(problem, traffic, **{name: stored[name] for name in stored.files})


# Subfolder of the run for recorded decisions.
HISTORIES = "histories"
# One of this many histories is for validation.
_HELD_OUT_ONE_IN = 8
# Number of intervals in the batch of an optimiser step.
_BATCH_INTERVALS = 12
# Steps of learning-rate warm-up.
_WARM_UP_STEPS = 30
# Temperature of the soft maximum, as a share of the mixture's largest utilisation.
_SOFT_MAX_TEMPERATURE = 0.01
_MAX_GRADIENT_NORM = 1.0
# Intervals of each validation history.
_VALIDATION_INTERVALS = 3
# Steps between two validations.
_VALIDATE_EVERY = 200


@dataclasses.dataclass(frozen=True, eq=False)
class _Interval:
    """One recorded interval of a history, for training.

    Attributes:
        recording: the history.
        problem: the network in float32; B = 1, its demand is ignored.
        number: index of the interval in the recording.
    """

    recording: Recording
    problem: Problem
    number: int

    def losses(self, model: HedgeGate) -> tuple[Tensor, Tensor]:
        """Return the loss of the model's splits in this interval, and their largest utilisation.

        With u[e] the utilisation of link e under the realised matrix, over the largest utilisation
        of the mixture, and s the temperature of the soft maximum, the loss is that soft maximum,
        s log sum_e exp(u[e] / s), and the largest utilisation is max_e u[e].

        Args:
            model: the gate, which corrects the splits of the mixture.
        """
        recording = self.recording
        matrix_index = int(self.recording.rows[self.number])
        # Inputs: the matrices before the interval with traffic, and the recorded mixture.
        recent_demand = torch.from_numpy(
            recording.traffic.read(slice(max(0, matrix_index - HISTORY), matrix_index))
        )
        recent_demand = recent_demand[recent_demand.sum(1) > 0]
        decisions = torch.from_numpy(recording.decisions[self.number])
        weights = recording.weights[self.number]
        recent_losses = recording.recent_losses[self.number]
        # The lead is 1: the interval follows the newest matrix.
        inputs = model_inputs(self.problem, recent_demand, 1, decisions, weights, recent_losses)
        # Under the realised matrix: largest utilisation of the mixture, and the utilisation of each
        # link by the model as a multiple of it.
        realised_problem = self.problem.with_demand(
            torch.from_numpy(recording.traffic.read([matrix_index])).to(torch.float32)
        )
        mixture_splits = torch.einsum(
            "h,hdk->dk", torch.from_numpy(weights).to(decisions), decisions
        )
        mixture_utilisation = realised_problem.utilisation(mixture_splits[None]).amax()
        utilisation = (
            realised_problem.utilisation(model(inputs, decisions)[None])[0] / mixture_utilisation
        )
        return _SOFT_MAX_TEMPERATURE * torch.logsumexp(
            utilisation / _SOFT_MAX_TEMPERATURE, 0
        ), utilisation.amax()


@dataclasses.dataclass(frozen=True)
class HistorySettings:
    """Settings of the histories that a gate is trained on.

    Attributes:
        histories: number of histories; every eighth is for validation.
        workers: number of processes that record missing ones; 0 for one per core.

    Raises:
        InputError: a number out of its range.
    """

    histories: int = 480
    workers: int = 0

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        for name, minimum in (("histories", 8), ("workers", 0)):
            if getattr(self, name) < minimum:
                raise InputError("--model hedge", name, f"at least {minimum}", getattr(self, name))


class HedgeTrainer:
    """Trainer of a hedge gate, the model that corrects the splits of the mixture.

    Step n draws its intervals from (seed, n) alone, so a resumed run continues identically.

    Args:
        config: the settings.
        histories: settings of the histories.
        pool: networks; None for those of topohub.

    Attributes:
        best: smallest mean validation loss so far; the mixture has 1.
    """

    def __init__(
        self,
        config: PretrainConfig,
        histories: HistorySettings,
        pool: NetworkPool | None = None,
    ) -> None:
        self._histories = histories
        self.config = config
        self._pool = pool or topohub_pool()
        # Model and optimiser; the seed determines the initial weights.
        torch.manual_seed(config.seed)
        self.model = HedgeGate(HedgeGateConfig(config.hidden))
        self.optimiser = Adam(self.model.parameters(), config.learning_rate)
        self.step = 0
        self.elapsed_s = 0.0
        self.best = math.inf
        self._budget = Budget(seconds(config.time_budget), config.max_steps)
        # Intervals of each training history, and of each validation history.
        self._training_histories: list[list[_Interval]] = []
        self._validation_histories: list[list[_Interval]] = []

    def prepare(self, out: Path, progress: Callable[[int, int], None]) -> None:
        """Record missing histories, and load all as training and validation intervals.

        Args:
            out: folder of the run.
            progress: called with the number of finished histories and the number of all.
        """
        count = self._histories.histories
        config = self.config
        folder = out / HISTORIES
        folder.mkdir(parents=True, exist_ok=True)
        sources = [
            HistorySource(self._pool, config.seed, number, config.num_paths)
            for number in range(count)
        ]
        files = [folder / f"{number:05}.npz" for number in range(count)]
        for num_recorded, _ in enumerate(record_all(sources, files, self._histories.workers), 1):
            progress(num_recorded, count)
        # Load the intervals of each history, for training or validation.
        for number, (source, file) in enumerate(zip(sources, files, strict=True)):
            recording = load_recording(source, file)
            problem = recording.problem.to(torch.float32)
            intervals = [_Interval(recording, problem, i) for i in range(len(recording.rows))]
            (
                self._training_histories
                if number % _HELD_OUT_ONE_IN
                else self._validation_histories
            ).append(intervals)

    def train(self, out: Path, progress: bool = True) -> None:
        """Train until the time budget or the step limit.

        A checkpoint is written whenever the validation loss improves.

        Args:
            out: folder of the run.
            progress: whether to show a progress bar.

        Raises:
            KeyboardInterrupt: Ctrl-C, after the current step, with the state written.
        """
        stopwatch = Stopwatch(self.elapsed_s)

        def take_step(bar: Any) -> None:
            """Take one optimiser step, after a validation if one is due, and show the loss."""
            if self.step % _VALIDATE_EVERY == 0:
                self._validate(out)
            loss = self.one_step()
            bar.set_postfix(loss=f"{loss:.4f}", best=f"{self.best:.4f}", refresh=False)
            self.elapsed_s = stopwatch.elapsed_s()

        train_until(
            lambda: self._budget.is_used_up(self.step, self.elapsed_s),
            take_step,
            lambda: self._save(out),
            steps_done=self.step,
            max_steps=self._budget.max_steps,
            show=progress,
        )
        self._validate(out)

    def one_step(self) -> float:
        """Take one optimiser step on a random batch of intervals.

        Returns:
            mean over the batch of the largest utilisation over that of the mixture.
        """
        config = self.config
        rng = np.random.default_rng([self.config.seed, self.step])
        set_cosine_rate(
            self.optimiser,
            config.learning_rate,
            self.step,
            self._budget.share_used(self.step, self.elapsed_s),
            warm_up_steps=_WARM_UP_STEPS,
        )
        # Sum the gradients of the mean loss, and average the largest utilisations, over the batch.
        self.optimiser.zero_grad()
        mean_utilisation = torch.zeros(1, dtype=torch.float64)
        for _ in range(_BATCH_INTERVALS):
            intervals = self._training_histories[rng.integers(len(self._training_histories))]
            soft, largest_utilisation = intervals[rng.integers(len(intervals))].losses(self.model)
            (soft / _BATCH_INTERVALS).backward()
            mean_utilisation += largest_utilisation.detach() / _BATCH_INTERVALS
        # Clip the gradient and update the weights; the mean returns as a number.
        (loss,) = clipped_step(
            self.optimiser, self.model, _MAX_GRADIENT_NORM, self.step, mean_utilisation
        )
        self.step += 1
        return loss

    @torch.no_grad()
    def validate(self) -> float:
        """Return the mean validation loss: the largest utilisation over that of the mixture,
        averaged over some intervals of each validation history.
        """
        means = []
        for intervals in self._validation_histories:
            # Evenly spread intervals of the history.
            sampled = np.unique(
                np.linspace(0, len(intervals) - 1, _VALIDATION_INTERVALS).round().astype(int)
            )
            means.append(np.mean([float(intervals[i].losses(self.model)[1]) for i in sampled]))
        return float(np.mean(means))

    def _validate(self, out: Path) -> None:
        """Validate the model, and write the state of the run; if the loss is the smallest so far,
        also write a checkpoint.

        Args:
            out: folder of the run.
        """
        validation_loss = self.validate()
        if validation_loss < self.best:
            self.best = validation_loss
            card = checkpoint.HedgeGateCard(
                model=self.model.config,
                histories=self._histories.histories,
                held_out=self._pool.held_out,
                seed=self.config.seed,
                step=self.step,
                train_s=round(self.elapsed_s, 1),
                validation=validation_loss,
            )
            checkpoint.save_hedge_gate(out, self.model, card)
        self._save(out)

    def _save(self, out: Path) -> None:
        """Write model, optimiser, step and smallest validation loss, for :meth:`resume`.

        Args:
            out: folder of the run.
        """
        tensors = run_state.with_prefix("model", self.model.state_dict())
        tensors |= run_state.with_prefix("adam", self.optimiser.tensors())
        fields = {"step": self.step, "elapsed_s": self.elapsed_s, "best": self.best}
        run_state.save_run(out, tensors, fields | {"config": dataclasses.asdict(self.model.config)})

    def resume(self, out: Path) -> None:
        """Load the state of a run, to continue it.

        Args:
            out: folder of the run.

        Raises:
            InputError: no state, or that of a model of other shapes.
        """
        tensors, fields = run_state.load_run_of(out, dataclasses.asdict(self.model.config))
        self.model.load_state_dict(run_state.without_prefix("model", tensors))
        self.optimiser.load(run_state.without_prefix("adam", tensors))
        self.step = int(fields["step"])
        self.elapsed_s = float(fields["elapsed_s"])
        self.best = float(fields["best"])


def run_pretrain_hedge(config: PretrainConfig, histories: HistorySettings) -> HedgeTrainer:
    """Record missing histories and train a gate, from the start or from the state in OUT.

    Args:
        config: settings of the training run.
        histories: settings of the histories.

    Returns:
        the trainer with the trained model.

    Raises:
        InputError: invalid settings, or an earlier run in OUT without --overwrite.
    """
    if not config.resume:
        check_out_folder(config.out, FILES, overwrite=config.overwrite, hint=RESUME_HINT)
    trainer = HedgeTrainer(config, histories)
    if config.resume:
        trainer.resume(config.out)
    with progress_bar(total=histories.histories, desc="histories", unit="history") as bar:
        trainer.prepare(config.out, lambda num_recorded, _: bar.update(num_recorded - bar.n))
    save_settings(config)
    trainer.train(config.out)
    return trainer


def pretrain_hedge(config: PretrainConfig, spec: Spec, _: Notify) -> Outcome:
    """Train a gate by ``teal pretrain --model hedge:histories=480,workers=0``.

    Args:
        config: settings of the training run.
        spec: specification of the model, with the number of histories and of processes.

    Returns:
        the text and the JSON data of the command.

    Raises:
        InputError: an unknown option, or a number out of its range.
    """
    options = {name: int(n) for name, n in spec.parse_options(histories=480, workers=0).items()}
    trainer = run_pretrain_hedge(config, HistorySettings(**options))
    return Outcome(
        text=f"{config.out}: {trainer.step} steps in {trainer.elapsed_s:.0f} s; on validation "
        f"histories, largest utilisation {trainer.best:.4f} of the mixture's; try it with: "
        f"teal next-interval --scheme learned --model {config.out}",
        data={
            "out": str(config.out),
            "steps": trainer.step,
            "elapsed_s": trainer.elapsed_s,
            "utilisation_over_mixture": trainer.best,
        },
    )
