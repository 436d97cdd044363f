"""Seeded generator of traffic matrices by a gravity model with daily cycles and AR(1) noise.

``gravity:seed=0,count=200,load=4`` with options:

- seed; count, the number of matrices; interval, seconds between matrices (300);
- load: maximum link utilisation of the mean matrix under shortest-path (fewest hops) routing (1);
- top: share of the volume of the largest tenth of the demands (0.88, as measured in WANs);
- noise and correlation: standard deviation of the log of a rate, and its correlation from one
  matrix to the next (0.3 and 0.9).

The mean of a demand is a gravity product of log-normal node masses with a log-normal factor of the
pair, raised to the power that gives ``top``.  Over time it follows a daily cycle (from 60% to 140%,
each source with its own peak hour), a weekly one (weekends at 75%), and AR(1) noise in its log.
Entry point: :func:`generate_traffic`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from teal.errors import InputError
from teal.formats.rate_store import RateArray, RateFile, make_rates
from teal.network import Topology, TrafficMatrices, all_pairs, compute_paths
from teal.network.shards import divide
from teal.runtime.arrays import AnyArray, FloatArray
from teal.runtime.progress import progress_bar
from teal.runtime.storage import content_key
from teal.spec import parse_spec

# Part of the cache key: increment it when the generator changes.
_GENERATOR_VERSION = 1
# Time of the first matrix, a Monday.
_FIRST_TIME = np.datetime64("2024-01-01T00:00:00", "s")
_DAY_S = 86400  # seconds
# Ratio of weekend rates to weekday rates.
_WEEKEND_FACTOR = 0.75
# Maximum number of node pairs whose shortest paths are in memory at once.
_MAX_PAIRS_IN_MEMORY = 20_000_000
# Amplitude of the daily cycle, relative to the mean rate.
_DAILY_AMPLITUDE = 0.4


@dataclasses.dataclass(frozen=True)
class Gravity:
    """Options of the generator of traffic matrices.

    Attributes:
        seed: seed of all random numbers.
        count: number of matrices.
        load: maximum link utilisation of the mean matrix under shortest-path routing.
        interval: seconds between matrices.
        top: fraction of the volume in the largest tenth of the demands.
        noise: standard deviation of the logarithm of a rate.
        correlation: correlation of that logarithm from one matrix to the next.
    """

    seed: int = 0
    count: int = 200
    load: float = 1.0
    interval: int = 300
    top: float = 0.88
    noise: float = 0.3
    correlation: float = 0.9

    def check(self, where: str) -> None:
        """Raise InputError for an option out of range."""
        for field, expected, is_valid in (
            ("seed", "at least 0", self.seed >= 0),
            ("count", "at least 1", self.count >= 1),
            ("load", "above 0", 0 < self.load < np.inf),
            ("interval", "at least 1 second", self.interval >= 1),
            ("top", "in [0.1, 1)", 0.1 <= self.top < 1),
            ("noise", "at least 0", 0 <= self.noise < np.inf),
            ("correlation", "in [0, 1)", 0 <= self.correlation < 1),
        ):
            if not is_valid:
                raise InputError(where, field, f"a number {expected}", getattr(self, field))


def generate_traffic(text: str, topology: Topology, progress: bool = False) -> TrafficMatrices:
    """Generate matrices by a gravity model over all pairs of nodes.

    The rate of demand d at time t is mean_d * cycle_d(t) * noise_d(t): a gravity product of node
    masses, a daily and weekly cycle, and log-normal AR(1) noise with mean 1.  Text and topology
    determine the matrices, for one NumPy version.

    Args:
        text: ``gravity`` or ``gravity:seed=0,count=200,load=4,...``.
        topology: the network.
        progress: show a progress bar.

    Raises:
        InputError: an unknown option, or one out of range.
    """
    options: dict[str, float] = parse_spec(text).parse_options(**dataclasses.asdict(Gravity()))  # type: ignore[assignment]
    model = Gravity(**options)  # type: ignore[arg-type]
    model.check(text)
    # (D,) factor mean_d of each pair, scaled so that the mean over the pairs is 1; 0 for pairs at
    # nodes without a link.
    pairs = all_pairs(topology)
    rng = np.random.default_rng(model.seed)
    mean_rates = _mean_rates(rng, topology.num_nodes, pairs, model.top)
    is_isolated = np.isin(pairs, topology.isolated_nodes()).any(1)
    if is_isolated.any() and not is_isolated.all():
        mean_rates = np.where(is_isolated, 0.0, mean_rates)
        mean_rates /= mean_rates.mean()
    # (D,) second of the day at which a demand peaks, drawn for each source.
    peak_second = rng.uniform(0, _DAY_S, topology.num_nodes)[pairs[:, 0]]
    noise_seed = int(rng.integers(1 << 62))

    def write_rates(rates: RateFile | RateArray) -> None:
        rows = progress_bar(
            range(model.count), desc="generating traffic", unit="matrix", disable=not progress
        )
        for row, noise in zip(rows, _noise_factors(model, noise_seed, len(pairs)), strict=False):
            cycle = _cycle_factor(row * model.interval, peak_second)
            # Rates of matrix t: mean_d * cycle_d(t) * noise_d(t).
            rates.write(row, (mean_rates * cycle * noise)[None])

    # The cached rates are those of load 1, which all loads share.
    key = content_key(
        "gravity", _GENERATOR_VERSION, dataclasses.replace(model, load=1.0), topology.graph_key()
    )
    timestamps = _FIRST_TIME + np.arange(model.count) * np.timedelta64(model.interval, "s")
    shape = (model.count, len(pairs))
    traffic = TrafficMatrices(
        name=text,
        pairs=pairs,
        timestamps=timestamps,
        rates=make_rates(shape, key, write_rates),
        interval_s=model.interval,
        key=key,
        origin=text,
    )
    # Scale all matrices so that the mean matrix has the load under shortest-path routing.
    return traffic.scaled(model.load / shortest_path_load(topology, traffic, mean_rates))


def _noise_factors(model: Gravity, seed: int, num_pairs: int) -> Iterator[AnyArray]:
    """Yield the (D,) noise factors of each matrix: log-normal with mean 1.

    z_0 ~ N(0, 1), z_{t+1} = c z_t + sqrt(1 - c^2) N(0, 1), factor_t = exp(s z_t - s^2 / 2), with
    correlation c and standard deviation s.

    Args:
        model: standard deviation (``noise``) and correlation.
        seed: seed of the noise.
        num_pairs: number of demands, D.
    """
    rng = np.random.default_rng(seed)
    log_noise = rng.standard_normal(num_pairs, dtype=np.float32)
    # (D,) states z; this factor of the innovations keeps the variance of z at 1.
    innovation_scale = np.float32(np.sqrt(1 - model.correlation**2))
    while True:
        # exp(s z - s^2 / 2) has mean 1.
        yield np.exp(np.float32(model.noise) * log_noise - np.float32(model.noise**2 / 2))
        log_noise = np.float32(model.correlation) * log_noise
        log_noise += innovation_scale * rng.standard_normal(num_pairs, dtype=np.float32)


def shortest_path_load(topology: Topology, traffic: TrafficMatrices, rates: FloatArray) -> float:
    """Return the maximum link utilisation if each demand is routed over its fewest-hop path.

    Args:
        topology: the network.
        traffic: traffic with the pairs (D, 2) of the demands.
        rates: (D,) Gbit/s.
    """
    # Imported here: it takes two seconds, and files without loads do not need it.
    import torch

    from teal.pathops import make_path_ops

    # (E,) Gbit/s on each link.
    load = np.zeros(topology.num_links)
    # Process the pairs in parts, since the paths of all pairs would need much memory.
    parts = divide(traffic.pairs, math.ceil(len(rates) / _MAX_PAIRS_IN_MEMORY))
    for part in parts:
        paths = compute_paths(topology, traffic.pairs[part], num_paths=1, cache=len(parts) == 1)
        flow = torch.from_numpy(np.ascontiguousarray(rates[part], np.float64)).view(1, -1, 1)
        load += make_path_ops(paths).link_sum(flow)[0].numpy()
    is_up = topology.capacity > 0
    return float((load[is_up] / topology.capacity[is_up]).max())


def _mean_rates(
    rng: np.random.Generator, num_nodes: int, pairs: np.ndarray, top_fraction: float
) -> FloatArray:
    """Return the (D,) mean rates of the gravity model, with mean 1.

    The rate of pair d from node s to node t is (send_s receive_t factor_d)^p, with log-normal
    masses send and receive of the nodes and log-normal factors of the pairs.  The power p makes the
    largest tenth of the rates a fraction ``top_fraction`` of their sum.

    Args:
        rng: generator of the random numbers (written).
        num_nodes: number of nodes, N.
        pairs: (D, 2) source and target of each demand.
        top_fraction: fraction of the volume in the largest tenth of the demands.
    """
    # Logarithms of the masses, (N,), and of the rates for p = 1, (D,).
    log_send, log_receive = rng.standard_normal((2, num_nodes))
    log_rates = log_send[pairs[:, 0]] + log_receive[pairs[:, 1]] + rng.standard_normal(len(pairs))
    # Number of the largest tenth of the rates, and logarithms of all, largest first, at most 0.
    num_top = max(1, round(len(pairs) / 10))
    sorted_logs = np.sort(log_rates - log_rates.max())[::-1]
    # Bisection for the power p in [0, 64]: the fraction of the largest tenth increases with p.  60
    # halvings leave an interval below 1e-16.
    low = 0.0
    high = 64.0
    for _ in range(60):
        power = (low + high) / 2
        trial_rates = np.exp(power * sorted_logs)
        low, high = (
            (power, high)
            if trial_rates[:num_top].sum() < top_fraction * trial_rates.sum()
            else (low, power)
        )
    # Rates for the power p that the bisection has found, scaled to mean 1.
    rates = np.exp(high * (log_rates - log_rates.max()))
    return rates / rates.mean()


def _cycle_factor(second: int, peak: FloatArray) -> FloatArray:
    """Return the (D,) factor of the daily and weekly cycle:
    (1 + 0.4 cos(2 pi (second - peak) / day)), times 0.75 at weekends.

    Args:
        second: time since the first matrix, a Monday at 0:00.
        peak: (D,) second of the day at which each demand peaks.
    """
    daily = 1 + _DAILY_AMPLITUDE * np.cos(2 * np.pi * (second - peak) / _DAY_S)
    return daily * (_WEEKEND_FACTOR if (second // _DAY_S) % 7 >= 5 else 1.0)
