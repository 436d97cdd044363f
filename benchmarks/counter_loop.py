"""Run a closed loop over byte counters: the service estimates each interval's matrix from them and
allocates for the next interval.

    python benchmarks/counter_loop.py TOPOLOGY TRAFFIC [--first 2016] [--intervals 288] [--history 0] [--faults 0]

The traffic of every interval takes the splits that the service gave for it; the resulting counters,
with 1% noise, are its only input (after --history measured matrices, if any).  Realised is the
largest utilisation over the optimum of the interval.  With --faults N, half of the link counters of
every N-th interval are zero; a fault is noticed if the service raises an alarm.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from series import loop_parser

from teal.formats import load_topology, load_traffic
from teal.network import PathSet, all_pairs, compute_paths
from teal.objectives import Objective
from teal.problem import Problem
from teal.runtime.arrays import FloatArray
from teal.solvers.pipeline import solve
from teal_ip.routing.measurements import path_measurements
from teal_serve.client import AsyncClient
from teal_serve.engine.engine import AllocationEngine
from teal_serve.http.app import make_app

_NOISE = 0.01  # relative standard deviation of a counter
Records = list[dict[str, Any]]


def main() -> None:
    """Run the loop and print its summary."""
    parser = loop_parser(__doc__, first=2016, intervals=288)
    parser.add_argument("--faults", type=int, default=0)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_run(parser.parse_args(), Path(folder)))


class Loop:
    """The network and its traffic, the splits in use, and the results of the loop so far.

    Args:
        options: options of the command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        # Every fault_period-th interval has faulty counters; 0 for none.
        self.fault_period: int = options.faults
        self.history: int = options.history
        self.topology = load_topology(options.topology, options.default_capacity)
        self.paths, self.series = self._read_series(options)
        self.problem = Problem.create(
            self.topology, self.paths, Objective("max_link_utilisation"), self.series[:1]
        )
        self.splits = self.problem.first_path_splits[0].numpy()
        self.ratios: list[float] = []
        self.num_faults = 0
        self.num_noticed_faults = 0
        self.num_false_alarms = 0
        self._rng = np.random.default_rng(0)

    def _read_series(self, options: argparse.Namespace) -> tuple[PathSet, FloatArray]:
        """Return candidate paths of all pairs of nodes, and the matrices (T, D) of the history and
        the intervals, Gbit/s.
        """
        traffic = load_traffic(options.traffic, self.topology)
        pairs = all_pairs(self.topology)
        # Column of each pair of the traffic among all pairs of nodes; other pairs have no demand.
        index_of_pair = {tuple(pair): d for d, pair in enumerate(pairs.tolist())}
        columns = [index_of_pair[tuple(pair)] for pair in traffic.pairs.tolist()]
        series = np.zeros((options.history + options.intervals, len(pairs)))
        first = options.first - options.history
        series[:, columns] = traffic.read(np.arange(first, first + len(series)))
        return compute_paths(self.topology, pairs, num_paths=4), series

    def record_utilisation(self, matrix: FloatArray) -> None:
        """Route a matrix (D,), Gbit/s, by the current splits; record its largest link utilisation
        divided by the optimum.
        """
        interval = self.problem.with_demand(matrix[None])
        utilisation = interval.utilisation(torch.from_numpy(self.splits)[None])
        optimum = float(solve(interval, gap=1e-3).value)
        self.ratios.append(float(utilisation.amax()) / optimum)

    def read_counters(self, matrix: FloatArray, *, is_faulty: bool) -> tuple[Records, Records]:
        """Return the counters of links and of nodes while the current splits route a matrix, as
        records for the service; rates are in Gbit/s and have 1% noise.

        Args:
            matrix: demands, (D,) Gbit/s.
            is_faulty: whether half of the link counters read 0.
        """
        names = self.topology.node_names
        num_links = self.topology.num_links
        num_nodes = self.topology.num_nodes
        # Loads of links, then ingress and egress of nodes; links are counted at both ends.
        counted = path_measurements(self.paths, self.splits, num_nodes) @ matrix
        rates = np.concatenate([counted[:num_links], counted])
        rates = np.maximum(rates * (1 + _NOISE * self._rng.normal(size=len(rates))), 0.0)
        if is_faulty:
            rates[: 2 * num_links][self._rng.random(2 * num_links) < 0.5] = 0.0
        sent_rates, received_rates, ingress, egress = np.split(
            rates, np.cumsum([num_links, num_links, num_nodes])
        )
        link_ends = zip(self.topology.link_source, self.topology.link_target, strict=True)
        links = [
            {
                "source": names[source],
                "target": names[target],
                "sent": float(sent_rates[e]),
                "received": float(received_rates[e]),
            }
            for e, (source, target) in enumerate(link_ends)
        ]
        nodes = [
            {"node": names[n], "ingress": float(ingress[n]), "egress": float(egress[n])}
            for n in range(num_nodes)
        ]
        return links, nodes

    def record_alarm(self, *, is_faulty: bool, is_alarm: bool) -> None:
        """Update the numbers of faults, of faults with an alarm, and of alarms without a fault."""
        self.num_faults += is_faulty
        self.num_noticed_faults += is_faulty and is_alarm
        self.num_false_alarms += is_alarm and not is_faulty

    def summary(self) -> str:
        """Return the line that the benchmark prints: realised utilisation, faults and alarms."""
        ratios = np.array(self.ratios[len(self.ratios) // 3 :])
        return (
            f"{self.topology.name}: realised / optimum mean {ratios.mean():.4f}, p95 "
            f"{np.quantile(ratios, 0.95):.4f} (after the first third); {self.num_noticed_faults} of "
            f"{self.num_faults} faults noticed, {self.num_false_alarms} false alarms"
        )


async def _run(options: argparse.Namespace, folder: Path) -> None:
    """Run the loop against a service in this process, and print its summary."""
    loop = Loop(options)
    app = make_app(AllocationEngine(folder), ())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    begin = np.datetime64("2026-01-01T00:00:00", "s")
    async with AsyncClient("http://service", transport=transport) as client:
        await client.put_network(
            "net", loop.topology, objective="max_link_utilisation", num_paths=4
        )
        await client.wait_ready("net")
        if loop.history:
            await client.measure("net", loop.series[: loop.history], begin, 300)
            loop.splits = await _splits_for_next_interval(client)
        for number, matrix in enumerate(loop.series[loop.history :]):
            loop.record_utilisation(matrix)
            # Every fault_period-th interval has faulty counters.
            period = loop.fault_period
            is_faulty = bool(period) and number % period == period - 1
            links, nodes = loop.read_counters(matrix, is_faulty=is_faulty)
            # Before the first allocation the service's routing is the IGP's.
            routing = "allocation" if number or loop.history else "igp"
            time = begin + np.timedelta64(300 * (loop.history + number), "s")
            answer = await client.measure_counters("net", time, links, nodes, routing=routing)
            assert answer.counted is not None
            loop.record_alarm(is_faulty=is_faulty, is_alarm=answer.counted["alarm"])
            if answer.matrices:
                loop.splits = await _splits_for_next_interval(client)
    print(loop.summary())


async def _splits_for_next_interval(client: AsyncClient) -> FloatArray:
    """Request an allocation for the next interval; return its splits (D, K)."""
    allocation = await client.allocate_next("net", deadline_ms=600_000)
    assert allocation.splits is not None
    return np.asarray(allocation.splits[0], np.float64)


if __name__ == "__main__":
    main()
