"""A closed loop over byte counters alone: the service estimates each interval's matrix and
allocates for the next one.

    python benchmarks/counter_loop.py TOPOLOGY TRAFFIC [--first 2016] [--intervals 288] [--history 0] [--faults 0]

Every interval is carried by the splits that the service gave for it; their counters, with 1% noise,
are all that it is told (after --history measured matrices, if any).  Realised is the largest
utilisation over the optimum of the interval. With --faults N every N-th interval has half of its
links' counters at zero: noticed means an alarm.
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

from teal.client import AsyncClient
from teal.formats import load_topology, load_traffic
from teal.network import all_pairs, compute_paths
from teal.objectives import Objective
from teal.problem import Problem
from teal.serving.engine.engine import AllocationEngine
from teal.serving.http.app import make_app
from teal.solvers.pdhg import solve
from teal_ip.routing.measurements import path_measurements

_NOISE = 0.01


def main() -> None:
    """See the module."""
    parser = loop_parser(__doc__, first=2016, intervals=288)
    parser.add_argument("--faults", type=int, default=0)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_run(parser.parse_args(), Path(folder)))


async def _run(options: argparse.Namespace, folder: Path) -> None:
    topology = load_topology(options.topology, options.default_capacity)
    traffic = load_traffic(options.traffic, topology)
    pairs = all_pairs(topology)
    index_of_pair = {tuple(pair): d for d, pair in enumerate(pairs.tolist())}
    at = [index_of_pair[tuple(pair)] for pair in traffic.pairs.tolist()]
    series = np.zeros((options.history + options.intervals, len(pairs)))
    first = options.first - options.history
    series[:, at] = traffic.read(np.arange(first, first + len(series)))
    paths = compute_paths(topology, pairs, num_paths=4)
    problem = Problem.create(topology, paths, Objective("max_link_utilisation"), series[:1])
    rng = np.random.default_rng(0)
    ratios = list[float]()
    noticed = 0
    faults = 0
    false = 0
    splits = problem.first_path_splits[0].numpy()
    transport = httpx.ASGITransport(
        make_app(AllocationEngine(folder), ()), raise_app_exceptions=False
    )
    async with AsyncClient("http://service", transport=transport) as client:
        await client.put_network("net", topology, objective="max_link_utilisation", num_paths=4)
        await client.wait_ready("net")
        begin = np.datetime64("2026-01-01T00:00:00", "s")
        if options.history:
            await client.measure("net", series[: options.history], begin, 300)
            splits = await _next(client)
        names = topology.node_names
        links = topology.num_links
        nodes = topology.num_nodes
        for number, matrix in enumerate(series[options.history :]):
            here = problem.with_demand(matrix[None])
            load = float(here.utilisation(torch.from_numpy(splits)[None]).amax())
            ratios.append(load / float(solve(here, gap=1e-3).value))
            counted = path_measurements(paths, splits, nodes) @ matrix
            ends = np.concatenate([counted[:links], counted])
            ends = np.maximum(ends * (1 + _NOISE * rng.normal(size=len(ends))), 0.0)
            is_fault = bool(options.faults) and number % options.faults == options.faults - 1
            if is_fault:
                ends[: 2 * links][rng.random(2 * links) < 0.5] = 0.0
            of_links: list[dict[str, Any]] = [
                {
                    "source": names[s],
                    "target": names[t],
                    "sent": float(ends[e]),
                    "received": float(ends[links + e]),
                }
                for e, (s, t) in enumerate(
                    zip(topology.link_source, topology.link_target, strict=True)
                )
            ]
            of_nodes: list[dict[str, Any]] = [
                {
                    "node": names[n],
                    "ingress": float(ends[2 * links + n]),
                    "egress": float(ends[2 * links + nodes + n]),
                }
                for n in range(nodes)
            ]
            routing = "allocation" if number or options.history else "igp"
            time = begin + np.timedelta64(300 * (options.history + number), "s")
            answer = await client.measure_counters("net", time, of_links, of_nodes, routing=routing)
            assert answer.counted is not None
            faults = faults + is_fault
            noticed = noticed + (is_fault and answer.counted["alarm"])
            false += not is_fault and answer.counted["alarm"]
            if answer.matrices:
                splits = await _next(client)
    values = np.array(ratios[len(ratios) // 3 :])
    print(
        f"{topology.name}: realised / optimum mean {values.mean():.4f}, p95 {np.quantile(values, 0.95):.4f} (after the "
        f"first third); {noticed} of {faults} faults noticed, {false} false alarms"
    )


async def _next(client: AsyncClient) -> np.ndarray:
    allocation = await client.allocate_next("net", deadline_ms=600_000)
    assert allocation.splits is not None
    return np.asarray(allocation.splits[0], np.float64)


if __name__ == "__main__":
    main()
