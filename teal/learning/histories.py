"""Random histories: consecutive matrices on a random network, to train hedges on.

With m[d] a gravity mean, the rate of demand d in interval t is

    m[d] cycle[source, t] drift[d, t] exp(noise[d, t] + noise[source, t]) burst[d, t] crowd[d, t] up[source, t]

- cycle: 1 + a cos(2 pi (t - peak[source]) / period), with one period for all sources;
- drift: exp of a random walk of each demand;
- noise: AR(1) of each demand and of each source, so that demands of a source move together; the standard deviation
  differs between demands;
- burst: a demand is on or off, by a Markov chain of two states;
- crowd: in some intervals in a row, a tenth of the demands sends a multiple of its rate;
- up: in some intervals in a row, a source sends nothing.

Each series has its own random strengths, and each effect but the noise is absent from half of the series.
"""

from __future__ import annotations

import numpy as np
import torch

from teal.learning.network_pool import NetworkPool, draw_problem, pool_network
from teal.network import TrafficMatrices
from teal.network.rates import ArrayRates
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.runtime.arrays import FloatArray, IntArray

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
        the problem (B = 1, max_link_utilisation, float64), whose demand is the mean, and the matrices.
    """
    name = pool.pick(rng)
    while pool_network(name, 1)[0].num_nodes > MAX_NODES:
        name = pool.pick(rng)
    problem = draw_problem(rng, name, 1, num_paths, ObjectiveName.MAX_LINK_UTILISATION).to(torch.float64)
    pairs = problem.paths.pairs
    rates = problem.demand.numpy() * _factors(rng, pairs, problem.topology.num_nodes, count)
    stamps = _FIRST_TIME + np.arange(count) * np.timedelta64(_INTERVAL_S, "s")
    return problem, TrafficMatrices(
        name="history", pairs=pairs, timestamps=stamps, rates=ArrayRates(rates), interval_s=_INTERVAL_S
    )


def _factors(rng: np.random.Generator, pairs: IntArray, nodes: int, count: int) -> FloatArray:
    """(T, D) what the mean rates are multiplied by."""
    source, demands, time = pairs[:, 0], len(pairs), np.arange(count)[:, None]
    has_cycle, has_drift, has_bursts, has_crowds, has_outages = rng.random(5) < 0.5
    noise, correlation = _log_uniform(rng, _NOISE_RANGE), rng.uniform(*_CORRELATION_RANGE)
    shared = rng.uniform(*_SOURCE_SHARE)
    spread = noise * np.exp(0.5 * rng.standard_normal(demands))  # demands differ in how much they vary
    log_rate = np.sqrt(1 - shared) * spread * _autoregression(rng, count, demands, correlation)
    log_rate += np.sqrt(shared) * noise * _autoregression(rng, count, nodes, correlation)[:, source]
    if has_drift:
        log_rate += _log_uniform(rng, _DRIFT_RANGE) * rng.standard_normal((count, demands)).cumsum(0)
    factors = np.exp(log_rate)
    if has_cycle:
        # Peaks within a third of the period of each other, as in a network of a few time zones.
        peak = rng.uniform(0, 1 / 3, nodes)[source]
        factors *= 1 + rng.uniform(*_SWING_RANGE) * np.cos(2 * np.pi * (time / rng.uniform(*_PERIOD_RANGE) - peak))
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


def _autoregression(rng: np.random.Generator, count: int, width: int, correlation: float) -> FloatArray:
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
