"""A controller: topology from the routers, matrices from their counters, splits from Teal,
installed in hitless steps.

It uses the public API, the client of the service, and the functions of :mod:`deploy.lab.router`.
Every --interval seconds it reads the byte counters and posts them; the service estimates the
matrix, checks it, and answers with splits for the next interval.  Between two intervals it watches
the link-state database: where an adjacency is gone or back, the service is told, and new splits are
installed at once.  What is in force stands in --state, so that a controller that was killed goes on
from there; the routers forward all the time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import teal
import teal_ip
from deploy.lab import router
from deploy.lab.network import STATE, Lab, LabError
from deploy.lab.traffic import ETHERNET_BYTES, PACKET_BYTES
from teal.allocation.update import PathIncidence, plan_update
from teal_ip.configuration.allocations import Igp, segment_list
from teal_ip.routing.measurements import with_node_rows
from teal_serve.client import Client, ServiceFault

NAME = "lab"
# Counters that are falsified on purpose: number of a link to a factor.
CORRUPT = STATE / "corrupt.json"
_MIN_SHARE = 0.01  # of a demand on a path, below which the path is left out
_MIN_CHANGE = 0.02  # share of a demand that must move, for a demand to be installed anew
# Bytes of IPv6, of SRv6's header, of each segment but the first.
_OUTER_HEADER = 40
_ROUTING_HEADER = 8
_SEGMENT = 16
_LOOK_S = 0.2  # seconds between two looks at the link-state database
_STEP_S = (
    0.3  # seconds between two steps of an update, for routers to have installed the one before
)


class Controller:
    """The state of the loop.

    Args:
        lab: the routers.
        service: client of `teal serve`.
        state: file with the splits in force.
        log: file of events, one JSON object a line.
    """

    def __init__(self, lab: Lab, service: Client, state: Path, log: Path) -> None:
        self.lab = lab
        self.service = service
        self.state = state
        self.log_file = log
        self.topology = lab.topology
        answer = service.paths(NAME)
        index = self.topology.node_index()
        self.pairs = [(index[s], index[t]) for s, t in answer.pairs]
        link_of = {}
        for link in reversed(range(self.topology.num_links)):
            link_of[int(self.topology.link_source[link]), int(self.topology.link_target[link])] = (
                link
            )
        self.links = [
            [[link_of[index[a], index[b]] for a, b in itertools.pairwise(path)] for path in paths]
            for paths in answer.paths
        ]
        self.width = max(len(paths) for paths in self.links)
        self.down: set[tuple[int, int]] = set()
        self.splits: np.ndarray | None = None
        if state.exists():
            stored = json.loads(state.read_text())
            self.splits = np.array(stored["splits"])
            self.log("resumed", intervals=stored["intervals"])
        self.factor = self._wire_factor()

    def log(self, event: str, **figures: Any) -> None:
        """Write one event with its time."""
        with self.log_file.open("a") as stream:
            stream.write(json.dumps({"time": time.time(), "event": event, **figures}) + "\n")

    # What the routers forward.

    def shares(self) -> sp.csr_array:
        """(E, D) share of each demand on each link: by the splits in force, or by the IGP."""
        live = self.topology.with_failed_links(self._failed())
        if self.splits is None:
            dag = teal.EcmpDag.of(live, _metric(live))
            return sp.csr_array(
                teal_ip.ecmp_measurements(dag, np.array(self.pairs, dtype=np.int32))
            )[: live.num_links]
        rows = []
        columns = []
        values = []
        for d, paths in enumerate(self.links):
            for k, path in enumerate(paths):
                if self.splits[d, k] > 0:
                    rows += path
                    columns += [d] * len(path)
                    values += [self.splits[d, k]] * len(path)
        return sp.csr_array((values, (rows, columns)), shape=(live.num_links, len(self.pairs)))

    def lists(self, splits: np.ndarray, demand: int) -> list[tuple[float, router.Segments]]:
        """The segment lists of a demand, with their shares."""
        live = self.topology.with_failed_links(self._failed())
        igp = Igp(live, _metric(live).astype(np.float64))
        return [
            (
                float(splits[demand, k]),
                tuple((one.kind, one.number) for one in segment_list(igp, live, path)),
            )
            for k, path in enumerate(self.links[demand])
            if splits[demand, k] > 0
        ]

    def _wire_factor(self) -> np.ndarray:
        """(E,) what counters are divided by: bytes on a link for a byte without segment lists, for
        equal demands.
        """
        if self.splits is None:
            return np.ones(self.topology.num_links)
        plain = np.zeros(self.topology.num_links)
        wire = np.zeros(self.topology.num_links)
        for d, paths in enumerate(self.links):
            lists = iter(self.lists(self.splits, d))
            for k, path in enumerate(paths):
                if self.splits[d, k] > 0:
                    share, segments = next(lists)
                    plain[path] += share
                    wire[path] += share * wire_share(segments, self.pairs[d][1])
        return np.where(plain > 0, wire / np.where(plain > 0, plain, 1), 1.0)

    def _failed(self) -> list[int]:
        ends = zip(
            self.topology.link_source.tolist(), self.topology.link_target.tolist(), strict=True
        )
        return [link for link, end in enumerate(ends) if end in self.down]

    # Steps of the loop.

    def look_at_topology(self) -> bool:
        """Tell the service which cables are gone or back; whether something changed."""
        numbers = {f"10.255.0.{n + 1}": n for n in range(self.topology.num_nodes)}
        file = self.state.with_name("database.json")
        file.write_text(json.dumps(router.database(self.lab)))
        seen = teal.load_topology(file, default_capacity=1.0)
        ends = zip(seen.link_source, seen.link_target, strict=True)
        there = {(numbers[seen.node_names[s]], numbers[seen.node_names[t]]) for s, t in ends}
        wanted = set(
            zip(self.topology.link_source.tolist(), self.topology.link_target.tolist(), strict=True)
        )
        down = wanted - there
        if down == self.down:
            return False
        for a, b in sorted(down ^ self.down):
            if a < b or (b, a) not in down ^ self.down:
                names = self.topology.node_names
                self.service.change_link(NAME, names[a], names[b], up=(a, b) not in down)
                self.log("link", source=names[a], target=names[b], down=(a, b) in down)
        self.down = down
        return True

    def measure(
        self, before: router.Counts, after: router.Counts, demands: teal_ip.Estimator
    ) -> np.ndarray | None:
        """Post the counters of an interval; the estimated matrix (D,) Gbit/s, None if they were not
        believed.
        """
        seconds = after.time - before.time
        scale = self.lab.scale * 1e9
        wrong = json.loads(CORRUPT.read_text()) if CORRUPT.exists() else {}
        rate = {
            name: (getattr(after, name) - getattr(before, name)) * 8 / seconds / scale
            for name in ("sent", "received", "ingress", "egress")
        }
        for link, factor in wrong.items():
            rate["sent"][int(link)] *= factor
            rate["received"][int(link)] *= factor
        names = self.topology.node_names
        topology = self.topology
        links = [
            {
                "source": names[s],
                "target": names[t],
                "sent": rate["sent"][e] / self.factor[e],
                "received": rate["received"][e] / self.factor[e],
            }
            for e, (s, t) in enumerate(zip(topology.link_source, topology.link_target, strict=True))
        ]
        nodes = [
            {"node": names[n], "ingress": rate["ingress"][n], "egress": rate["egress"][n]}
            for n in range(topology.num_nodes)
        ]
        routing = "igp" if self.splits is None else "allocation"
        at = np.datetime64(round(after.time), "s")
        answer = (
            self.service.measure_counters(NAME, at, links, nodes, routing=routing).counted or {}
        )
        self.log("measured", **{name: value for name, value in answer.items() if name != "kept"})
        if answer.get("alarm"):
            return None
        demands.route(
            with_node_rows(self.shares(), np.array(self.pairs, dtype=np.int32), topology.num_nodes)
        )
        inner = np.concatenate([rate["sent"] / self.factor, rate["ingress"], rate["egress"]])
        return np.asarray(demands.estimate(inner).matrix)

    def install(self, ahead: np.ndarray, matrix: np.ndarray | None) -> None:
        """Install splits (D, K), in as many hitless steps as the demands in force need."""
        splits = np.where(ahead >= _MIN_SHARE, ahead, 0.0)[:, : self.width]
        total = splits.sum(1, keepdims=True)
        splits = np.divide(splits, total, out=np.zeros_like(splits), where=total > 0)
        begin = time.time()
        steps, kept = self._steps(splits, matrix)
        for number, step in enumerate(steps):
            changed = (
                range(len(step))
                if self.splits is None
                else np.flatnonzero(np.abs(step - self.splits).sum(1) / 2 > _MIN_CHANGE).tolist()
            )
            router.install(self.lab, {self.pairs[d]: self.lists(step, d) for d in changed})
            if self.splits is None:
                self.splits = step.copy()
            self.splits[list(changed)] = step[list(changed)]
            if number < len(steps) - 1:
                time.sleep(_STEP_S)
        self.factor = self._wire_factor()
        intervals = 1 + (
            json.loads(self.state.read_text())["intervals"] if self.state.exists() else 0
        )
        temporary = self.state.with_suffix(".tmp")
        temporary.write_text(
            json.dumps({"intervals": intervals, "splits": np.asarray(self.splits).tolist()})
        )
        temporary.replace(self.state)
        self.log("installed", steps=len(steps), kept=kept, seconds=time.time() - begin)

    def _steps(
        self, splits: np.ndarray, matrix: np.ndarray | None
    ) -> tuple[list[np.ndarray], float]:
        """Splits after each step of an update, and the share of every demand that it keeps all the
        time.
        """
        if self.splits is None or matrix is None or self.down:
            return [splits], 1.0
        slots = [(d, k) for d, paths in enumerate(self.links) for k in range(len(paths))]
        links = [self.links[d][k] for d, k in slots]
        number_of = np.repeat(np.arange(len(links)), [len(path) for path in links])
        through = sp.csr_array(
            (np.ones(len(number_of)), (np.concatenate(links), number_of)),
            shape=(self.topology.num_links, len(slots)),
        )
        demand = np.array([d for d, _ in slots])
        paths = PathIncidence(through, demand, self.topology.capacity)
        flows = [
            np.array([one[d, k] * matrix[d] for d, k in slots]) for one in (self.splits, splits)
        ]
        try:
            plan = plan_update(paths, flows[0], flows[1])
        except (
            teal.SolverError
        ):  # more is sent than fits, before or after: nothing can be kept hitless
            return [splits], 0.0
        steps = []
        for flow in plan.flows[1:]:
            step = np.zeros_like(splits)
            for number, (d, k) in enumerate(slots):
                step[d, k] = flow[number]
            total = step.sum(1, keepdims=True)
            steps.append(np.where(total > 0, step / np.where(total > 0, total, 1), splits))
        return steps, plan.min_served_fraction


def wire_share(segments: router.Segments, target: int) -> float:
    """Bytes on the wire of a packet with a segment list, over those without one."""
    count = len(segments) + (not segments or segments[-1] != ("node", target))
    header = _OUTER_HEADER + (_ROUTING_HEADER + _SEGMENT * (count - 1) if count > 1 else 0)
    return (PACKET_BYTES + ETHERNET_BYTES + header) / (PACKET_BYTES + ETHERNET_BYTES)


def _metric(topology: teal.Topology) -> np.ndarray:
    return (
        np.ones(topology.num_links, dtype=np.int64) if topology.metric is None else topology.metric
    )


def main() -> None:
    """Run the loop until killed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--service", default="http://127.0.0.1:8000")
    parser.add_argument(
        "--interval", type=float, default=5.0, help="seconds between two readings of the counters"
    )
    parser.add_argument("--state", type=Path, default=STATE / "controller.json")
    parser.add_argument("--log", type=Path, default=STATE / "events.jsonl")
    options = parser.parse_args()
    lab = Lab.current()
    with Client(options.service) as service:
        if NAME not in service.networks():
            service.put_network(NAME, lab.topology, objective="max_link_utilisation", num_paths=4)
        service.wait_ready(NAME)
        loop = Controller(lab, service, options.state, options.log)
        demands = teal_ip.Estimator(np.array(loop.pairs, dtype=np.int32), lab.topology.num_nodes)
        loop.log("started")
        before = router.counters(lab)
        matrix = None
        deadline = before.time + options.interval
        while True:
            time.sleep(_LOOK_S)
            try:
                if loop.look_at_topology() and loop.splits is not None:
                    ahead = service.allocate_next(NAME, deadline_ms=2_000)
                    loop.install(np.asarray(ahead.splits)[0], None)
                    # Bytes counted across the change belong to neither routing.
                    before = router.counters(lab)
                    deadline = before.time + options.interval
                if time.time() < deadline:
                    continue
                after = router.counters(lab)
                estimated = loop.measure(before, after, demands)
                before = after
                deadline = after.time + options.interval
                if estimated is None:
                    continue  # what is in force stays
                matrix = estimated
                ahead = service.allocate_next(NAME, deadline_ms=1e3 * options.interval / 2)
                loop.install(np.asarray(ahead.splits)[0], matrix)
                before = router.counters(lab)
                deadline = before.time + options.interval
            # Service overloaded or restarting, a router that does not answer: what is installed
            # stays in force.
            except (ServiceFault, LabError, subprocess.SubprocessError) as fault:
                loop.log("fault", text=str(fault))


if __name__ == "__main__":
    main()
