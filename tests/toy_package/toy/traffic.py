"""Traffic as lines `source target rate`, one matrix."""

from pathlib import Path

import numpy as np

from teal import Topology, TrafficMatrices
from teal.extend import ArrayRates, TrafficFormat


def _read(path: Path, topology: Topology) -> TrafficMatrices:
    node = topology.node_index()
    rows = [line.split() for line in path.read_text().splitlines()]
    pairs = np.array([(node[source], node[target]) for source, target, _ in rows], np.int32)
    rates = ArrayRates(np.array([[float(rate) for *_, rate in rows]]))
    times = np.array(["2026-01-01"], dtype="datetime64[s]")
    return TrafficMatrices(
        name=path.name, pairs=pairs, timestamps=times, rates=rates, interval_s=300
    )


FORMAT = TrafficFormat((".toy",), _read)
