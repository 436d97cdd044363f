"""The network of a regional ISP as its files: 58 routers, IS-IS metrics, LAGs, parallel circuits,
12 hours of counters.

    python -m tests.isp FOLDER [SEED]

- ``links.csv``: a row a circuit, ends by IS-IS system ID, metrics A-Z and Z-A, members of a LAG;
- ``routers.csv``: names, system IDs, FQDNs, loopbacks, SIDs, vendors (half IOS-XR, half Junos);
- ``interfaces.csv``: interfaces by two vendors' names, external ones, those to be ignored;
- ``counters.csv``: bytes every five minutes, routers by FQDN with a port; one interface in ten is
  wrong, some readings are missing;
- ``truth.csv``: the matrices behind the counters, which an engineer does not have.

16 routers are transit; 45 routers send to each other, 1,980 demands.  Loads are those of a plain
reference for ECMP.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from teal.network import Topology, TrafficMatrices
from teal.runtime.arrays import FloatArray, Int64Array
from teal.testing import make_topology
from tests.igp_reference import segment_shares

TRANSIT, ROUTERS, SENDERS, INTERVALS, STEP_S = 16, 58, 45, 144, 300
_START_S = 1_790_000_000 // STEP_S * STEP_S  # of the first reading, seconds since 1970
_WRONG_SHARE, _MISSING_SHARE = (
    0.1,
    0.02,
)  # of the interfaces whose counters are wrong; of the readings that are missing
_BYTES_PER_GBIT = 1.25e8


class Isp(NamedTuple):
    """The network and its traffic.

    Attributes:
        topology: nodes by name, with metrics.
        pairs: (D, 2) source and target.
        rates: (T, D) Gbit/s.
        load: (T, E) Gbit/s.
        names: (E,) interface at the source of each link.
    """

    topology: Topology
    pairs: Int64Array
    rates: FloatArray
    load: FloatArray
    names: tuple[str, ...]


def router(node: int) -> str:
    """Name of a router: p0 to p15 are transit, the others edges."""
    return f"p{node}" if node < TRANSIT else f"e{node - TRANSIT}"


def make(seed: int = 2) -> Isp:
    """The network of a seed."""
    rng = np.random.default_rng(seed)
    circuits: list[tuple[int, int, float, int, int]] = []  # ends, Gbit/s, metrics A-Z and Z-A
    for p in range(TRANSIT):
        circuits.append((p, (p + 1) % TRANSIT, 100.0, 10, 10))
        if p % 2 == 0:
            circuits.append((p, (p + 5) % TRANSIT, 200.0, 15, 15))
        if p % 4 == 0:  # a second circuit beside the first one, of another metric
            circuits.append((p, (p + 1) % TRANSIT, 100.0, 20, 20))
    for e in range(TRANSIT, ROUTERS):
        first = int(rng.integers(TRANSIT))
        second = (first + int(rng.integers(1, 4))) % TRANSIT
        circuits += [(e, first, 100.0, 10, 10), (e, second, 100.0, 30, 25)]
    ends = [link for a, b, c, _, _ in circuits for link in ((a, b, c), (b, a, c))]
    topology = make_topology(ends, min_nodes=ROUTERS)
    metric = np.array(
        [m for _, _, _, forth, back in circuits for m in (forth, back)], dtype=np.int64
    )
    names = tuple(router(node) for node in range(ROUTERS))
    topology = Topology(
        "isp",
        names,
        topology.link_source,
        topology.link_target,
        topology.capacity,
        topology.latency,
        topology.coordinates,
        metric=metric,
    )
    senders = np.arange(ROUTERS - SENDERS, ROUTERS)
    pairs = np.array([(s, t) for s in senders for t in senders if s != t], dtype=np.int64)
    out, into = np.exp(rng.normal(0, 0.8, ROUTERS)), np.exp(rng.normal(0, 0.8, ROUTERS))
    mean = out[pairs[:, 0]] * into[pairs[:, 1]] * np.exp(rng.normal(0, 0.35, len(pairs)))
    day = 1 + 0.4 * np.sin(2 * np.pi * np.arange(INTERVALS) / 288)
    rates = mean[None] * day[:, None] * np.exp(rng.normal(0, 0.05, (INTERVALS, len(pairs))))
    shares = segment_shares(topology, metric.astype(np.float64))[pairs[:, 1], pairs[:, 0]]  # (D, E)
    load = rates @ shares
    scale = 0.6 / float((load / topology.capacity).max())  # the fullest link at 60%
    return Isp(topology, pairs, rates * scale, load * scale, _interfaces(topology, circuits))


def _interfaces(
    topology: Topology, circuits: list[tuple[int, int, float, int, int]]
) -> tuple[str, ...]:
    """Names at both ends of each circuit: bundles where several links make one, as the router's
    vendor names them."""
    count, names = [0] * ROUTERS, []
    for a, b, capacity, _, _ in circuits:
        for node in (a, b):
            count[node] += 1
            port, is_bundle = count[node], capacity == 200.0
            if node % 2 == 0:
                names.append(f"ae{port}" if is_bundle else f"et-0/0/{port}")
            else:
                names.append(f"Bundle-Ether{port}" if is_bundle else f"HundredGigE0/0/0/{port}")
    assert len(names) == topology.num_links
    return tuple(names)


def write(folder: Path, seed: int = 2) -> Isp:
    """Write the files."""
    isp, rng = make(seed), np.random.default_rng(seed + 1)
    topology, system = isp.topology, [f"4900.0000.{node:04d}" for node in range(ROUTERS)]
    names, links = topology.node_names, range(0, topology.num_links, 2)
    metric = np.asarray(topology.metric)

    def table(name: str, header: str, rows: list[tuple[object, ...]]) -> None:
        with (folder / name).open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(header.split(","))
            writer.writerows(rows)

    ends = [(system[topology.link_source[e]], system[topology.link_target[e]]) for e in links]
    speed = [("100G", 2) if c == 200.0 else (f"{c:g}G", 1) for c in topology.capacity[::2].tolist()]
    table(
        "links.csv",
        "source,target,capacity,members,metric_az,metric_za",
        [
            (*two, *many, metric[e], metric[e + 1])
            for two, many, e in zip(ends, speed, links, strict=True)
        ],
    )
    table(
        "routers.csv",
        "name,system_id,fqdn,loopback,sid,vendor",
        [
            (
                names[n],
                system[n],
                f"{names[n]}.isp.example",
                f"10.255.0.{n + 1}",
                n + 1,
                "junos" if n % 2 == 0 else "iosxr",
            )
            for n in range(ROUTERS)
        ],
    )
    number = topology.link_names()
    leads = [
        (
            names[topology.link_source[e]],
            isp.names[e],
            names[topology.link_target[e]],
            number[e].rpartition("#")[2] if "#" in number[e] else "",
            "",
        )
        for e in range(topology.num_links)
    ]
    borders = [(names[n], _border(n), "", "", "") for n in range(ROUTERS - SENDERS, ROUTERS)]
    table("interfaces.csv", "router,interface,neighbour,number,ignore", [*leads, *borders])
    _write_counters(folder / "counters.csv", isp, rng)
    stamps = np.datetime64(_START_S, "s") + np.arange(1, INTERVALS + 1) * np.timedelta64(
        STEP_S, "s"
    )
    table(
        "truth.csv",
        "timestamp,source,target,rate",
        [
            (stamps[t], names[s], names[d], f"{rate:.9g}")
            for t in range(INTERVALS)
            for (s, d), rate in zip(isp.pairs.tolist(), isp.rates[t].tolist(), strict=True)
        ],
    )
    return isp


def _border(node: int) -> str:
    return f"xe-1/0/{node}" if node % 2 == 0 else f"TenGigE0/1/0/{node}"


def _write_counters(path: Path, isp: Isp, rng: np.random.Generator) -> None:
    topology, names = isp.topology, isp.topology.node_names
    sent, received = (np.zeros((INTERVALS, ROUTERS)) for _ in range(2))
    for d, (s, t) in enumerate(isp.pairs.tolist()):
        sent[:, s] += isp.rates[:, d]
        received[:, t] += isp.rates[:, d]
    series: list[tuple[str, str, str, FloatArray]] = []
    for e in range(topology.num_links):
        back = e + 1 if e % 2 == 0 else e - 1
        place = names[topology.link_source[e]], isp.names[e]
        series += [(*place, "out", isp.load[:, e]), (*place, "in", isp.load[:, back])]
    for n in range(ROUTERS - SENDERS, ROUTERS):
        series += [
            (names[n], _border(n), "in", sent[:, n]),
            (names[n], _border(n), "out", received[:, n]),
        ]
    places = sorted({(r, i) for r, i, _, _ in series if not i.startswith(("xe-", "TenGigE"))})
    wrong = {
        places[k]: float(rng.choice([0.0, 0.5, 2.0]))
        for k in rng.choice(len(places), int(_WRONG_SHARE * len(places)), replace=False)
    }
    for n in range(ROUTERS):  # what is neither a link nor external
        series += [
            (names[n], "lo0" if n % 2 == 0 else "Loopback0", way, np.full(INTERVALS, 1e-6))
            for way in ("in", "out")
        ]
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["time", "router", "interface", "direction", "bytes"])
        for name, interface, way, rate in series:
            factor = wrong.get((name, interface), 1.0)
            noisy = rate * factor * (1 + 0.005 * rng.normal(size=INTERVALS))
            value = np.concatenate(
                [[0.0], np.cumsum(np.maximum(noisy, 0) * STEP_S * _BYTES_PER_GBIT)]
            ) + rng.integers(1 << 40)
            kept = rng.random(INTERVALS + 1) >= _MISSING_SHARE
            for t in np.flatnonzero(kept).tolist():
                writer.writerow(
                    [
                        _START_S + STEP_S * t,
                        f"{name}.isp.example:9116",
                        interface,
                        way,
                        int(value[t]),
                    ]
                )


def error(made: Isp, topology: Topology, found: TrafficMatrices) -> float:
    """NMAE of matrices: the sum of |found - rate| over that of the rates, demands by the names of
    their nodes."""
    index, names = topology.node_index(), made.topology.node_names
    number = {pair: column for column, pair in enumerate(map(tuple, found.pairs.tolist()))}
    true = np.zeros((INTERVALS, len(found.pairs)))
    true[:, [number[index[names[s]], index[names[t]]] for s, t in made.pairs.tolist()]] = made.rates
    return float(np.abs(found.read(np.arange(INTERVALS)) - true).sum() / true.sum())


def main() -> None:
    """Write the files into a folder."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, int(sys.argv[2]) if len(sys.argv) > 2 else 2)


if __name__ == "__main__":
    main()
