"""What routers do with Teal's splits, measured: the whole loop, with faults put in, from nothing to
a page.

1. IGP alone; 2. the controller's splits; 3. other demands, in hitless steps; 4. a cable cut, and
   mended;
5. counters falsified; 6. the controller killed and started again.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import teal
import teal_ip
from deploy.lab import controller, router, traffic
from deploy.lab.monitoring import Monitoring
from deploy.lab.network import PREFIX, STATE, Lab, check_machine, down, run

Notify = Callable[[str], None]
_IGP_UTILISATION = (
    0.9  # of the fullest link without Teal: as much as the shaped links carry without loss
)
_MIN_UTILISATION = 0.05  # of links whose measured load is compared with the predicted one
_BACK = 0.95  # share of the sent packets that must arrive, for traffic to count as flowing again
_SAMPLE_S = 0.1  # seconds between two looks at what arrives, after a cut
_PATIENCE_S = 900.0  # seconds to wait for a step of the loop: the first time, kernels are compiled
_CHANGE = 0.3  # standard deviation, relative, by which demands change for an update in steps


@dataclasses.dataclass
class Settings:
    """How long and on what.

    Attributes:
        topology: file or name of the network.
        scale: bit/s of the laboratory for a bit/s of the network.
        window: seconds of each measurement.
        interval: seconds between two readings of the controller.
        out: folder for lab.json and lab.html.
        seed: of the demands.
    """

    topology: str
    scale: float = 1e-3
    window: float = 20.0
    interval: float = 4.0
    out: Path = Path("runs/lab")
    seed: int = 1


class Experiment:
    """One run."""

    def __init__(self, settings: Settings, notify: Notify) -> None:
        self.settings = settings
        self.notify = notify
        topology = teal.load_topology(settings.topology, default_capacity=10.0)
        if topology.metric is None:
            topology = dataclasses.replace(
                topology, metric=np.ones(topology.num_links, dtype=np.int64)
            )
        self.lab = Lab(topology, settings.scale)
        self.pairs = np.array(
            [
                (s, t)
                for s in range(topology.num_nodes)
                for t in range(topology.num_nodes)
                if s != t
            ],
            dtype=np.int32,
        )
        dag = teal.EcmpDag.of(topology, np.asarray(topology.metric))
        self.igp = teal_ip.ecmp_measurements(dag, self.pairs)[: topology.num_links]
        rng = np.random.default_rng(settings.seed)
        size = rng.lognormal(0, 0.8, topology.num_nodes)
        demand = (
            size[self.pairs[:, 0]] * size[self.pairs[:, 1]] * rng.lognormal(0, 0.4, len(self.pairs))
        )
        self.demand = (
            demand * _IGP_UTILISATION / float((self.igp @ demand / topology.capacity).max())
        )
        self.processes: list[subprocess.Popen[bytes]] = []
        self.samples: list[dict[str, Any]] = []
        self.figures: dict[str, Any] = {"network": topology.name, "scale": settings.scale}
        self._stopping = threading.Event()

    def run(self) -> dict[str, Any]:
        """All phases; the figures."""
        check_machine()
        begin = time.monotonic()
        try:
            self._up()
            self.figures["up_s"] = time.monotonic() - begin
            self._igp_alone()
            self._with_teal()
            self._in_steps()
            self._cut()
            self._falsified()
            self._killed()
        finally:
            self._stopping.set()
            self.events = self._events()
            self._end()
        return self.figures

    def monitor(self) -> None:
        """Read the routers by SNMP and Prometheus for a window, and write what `teal estimate`
        takes to the folder.

        Beside the files of :mod:`deploy.lab.monitoring` that is ``sent.csv``: the mean matrix that
        was sent.
        """
        check_machine()
        monitoring = Monitoring(self.lab)
        out = self.settings.out
        try:
            self._carry()
            self.notify("SNMP agents, snmp_exporter and Prometheus")
            monitoring.start()
            self.notify(f"counters, {self.settings.window:g} s")
            begin = time.time()
            (_, sent) = self._window()
            monitoring.write(out, begin, time.time(), max(1, round(self.settings.interval)))
        finally:
            try:
                monitoring.stop()
            finally:
                self._end()
        rates = sent * _plain_wire() * self.lab.scale
        nodes = self.lab.topology.node_names
        table = [
            (nodes[s], nodes[t], rate)
            for (s, t), rate in zip(self.pairs.tolist(), rates.tolist(), strict=True)
        ]
        with (out / "sent.csv").open("w", newline="") as stream:
            csv.writer(stream).writerows([("source", "target", "rate"), *table])

    def _end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        down()

    # Phases.

    def _carry(self) -> None:
        """Routers with routes, and traffic."""
        self.notify("routers, links and routes")
        self.lab.up()
        self.figures["routes_s"] = self.lab.wait_for_routes()
        self._send(self.demand)
        self._start(sys.executable, "-m", "deploy.lab.traffic", name="traffic")

    def _up(self) -> None:
        self._carry()
        self.port = _free_port()
        state = STATE / "service"
        self._start(
            sys.executable,
            "-m",
            "teal",
            "serve",
            "--port",
            str(self.port),
            "--state",
            str(state),
            name="service",
        )
        threading.Thread(target=self._sample, daemon=True).start()

    def _igp_alone(self) -> None:
        self.notify(f"IGP alone, {self.settings.window:g} s")
        time.sleep(3.0)
        rate, sent = self._window()
        predicted = self.igp @ sent
        self.figures["igp"] = {
            "largest_utilisation": float((rate / self.lab.topology.capacity).max()),
            **self._compared(rate, predicted * _plain_wire()),
        }

    def _with_teal(self) -> None:
        self.notify("the controller: first splits")
        _wait(lambda: self._answers(), _PATIENCE_S, "the service")
        begin = time.monotonic()
        self._start_controller()
        _wait(
            lambda: len(self._named("installed")) >= 3, _PATIENCE_S, "three installed allocations"
        )
        self.figures["three_allocations_s"] = time.monotonic() - begin
        self.notify(f"splits of Teal in force, {self.settings.window:g} s")
        self._pause_controller(True)
        time.sleep(1.0)
        rate, sent = self._window()
        predicted = self._predicted(sent)
        optimum = self._optimum(sent)
        largest = float((rate / self.lab.topology.capacity).max())
        payload = self._predicted(sent, headers=False)
        self.figures["teal"] = {
            "largest_utilisation": largest,
            "certified_optimum": optimum,
            "over_optimum": float((payload / self.lab.topology.capacity).max()) / optimum,
            "measured_over_optimum_with_headers": largest / optimum,
            **self._compared(rate, predicted),
        }
        self.table = self._table(rate, predicted)
        self._pause_controller(False)

    def _in_steps(self) -> None:
        self.notify("other demands, update in steps")
        rng = np.random.default_rng(self.settings.seed + 1)
        changed = self.demand * np.exp(_CHANGE * rng.normal(size=len(self.demand)))
        changed *= 0.8 * self.demand.sum() / changed.sum()
        self._send(changed)
        time.sleep(1.0)
        count = len(self._named("installed"))
        before = self._arrived_and_sent(quiet=True)
        self._send(changed)
        _wait(lambda: len(self._named("installed")) >= count + 3, _PATIENCE_S, "three updates")
        time.sleep(1.0)
        after = self._arrived_and_sent(quiet=True)
        updates = self._named("installed")[count:]
        self.figures["updates"] = {
            "number": len(updates),
            "steps": [one["steps"] for one in updates],
            "kept": [one["kept"] for one in updates],
            "sent_packets": int(after[1] - before[1]),
            "lost_packets": int(after[1] - before[1] - after[0] + before[0]),
        }
        self.demand = changed
        self._send(self.demand)
        time.sleep(2.0)

    def _cut(self) -> None:
        topology = self.lab.topology
        a, b = self._busiest_cable()
        name = f"{topology.node_names[a]} - {topology.node_names[b]}"
        self.notify(f"cut of {name}")
        begin = time.time()
        flowing = None
        self.lab.set_cable(a, b, "down")
        before = self._arrived_and_sent()
        last = begin
        while time.time() - begin < 30.0:
            time.sleep(_SAMPLE_S)
            now = self._arrived_and_sent()
            rate = (now[0] - before[0]) / (time.time() - last)
            wanted = self._packets_per_second()
            if flowing is None and rate >= _BACK * wanted:
                flowing = time.time() - begin
            before = now
            last = time.time()
            noticed = [
                one["time"] for one in self._named("link") if one["down"] and one["time"] > begin
            ]
            installed = [
                one["time"]
                for one in self._named("installed")
                if noticed and one["time"] > noticed[0]
            ]
            if flowing is not None and installed:
                break
        self.figures["cut"] = {
            "cable": name,
            "noticed_s": noticed[0] - begin if noticed else None,
            "flowing_again_s": flowing,
            "splits_in_force_s": installed[0] - begin if installed else None,
        }
        time.sleep(self.settings.interval)
        self.notify(f"{name} mended")
        count = len(self._named("link"))
        self.lab.set_cable(a, b, "up")
        _wait(lambda: len(self._named("link")) > count, _PATIENCE_S, "the adjacency to come back")
        count = len(self._named("installed"))
        _wait(
            lambda: len(self._named("installed")) > count,
            _PATIENCE_S,
            "splits after the cable is back",
        )

    def _falsified(self) -> None:
        self.notify("half of the links' counters at zero")
        count = len(self._named("measured"))
        installed = len(self._named("installed"))
        _wait(lambda: len(self._named("measured")) > count, _PATIENCE_S, "an interval")
        links = np.random.default_rng(self.settings.seed).permutation(self.lab.topology.num_links)
        controller.CORRUPT.write_text(json.dumps({int(e): 0.0 for e in links[: len(links) // 2]}))
        count = len(self._named("measured"))
        installed = len(self._named("installed"))
        _wait(lambda: len(self._named("measured")) >= count + 3, _PATIENCE_S, "three intervals")
        measured = self._named("measured")[count:]
        controller.CORRUPT.unlink()
        wrong = measured[1:]  # the first one may have been read before
        self.figures["falsified"] = {
            "intervals": len(wrong),
            "noticed": sum(bool(one.get("alarm")) for one in wrong),
            "allocations_made_from_them": len(
                [
                    one
                    for one in self._named("installed")[installed:]
                    if one["time"] > wrong[0]["time"]
                ]
            ),
        }
        time.sleep(self.settings.interval)

    def _killed(self) -> None:
        self.notify("controller killed and started again")
        self.control.send_signal(signal.SIGKILL)
        self.control.wait()
        before = self._arrived_and_sent(quiet=True)
        self._send(self.demand)
        time.sleep(5.0)
        after = self._arrived_and_sent(quiet=True)
        self._send(self.demand)
        count = len(self._named("resumed"))
        self._start_controller()
        _wait(lambda: len(self._named("resumed")) > count, _PATIENCE_S, "the controller to resume")
        count = len(self._named("installed"))
        _wait(
            lambda: len(self._named("installed")) > count,
            _PATIENCE_S,
            "splits of the new controller",
        )
        self.figures["killed"] = {
            "sent_packets": int(after[1] - before[1]),
            "lost_packets": int(after[1] - before[1] - after[0] + before[0]),
            "resumed": True,
        }

    # Measurements.

    def _window(self) -> tuple[np.ndarray, np.ndarray]:
        """Loads (E,) with all headers and demands that were sent (D,), Gbit/s of the network, over
        one window.
        """
        before = router.counters(self.lab)
        first = self._sent()
        time.sleep(self.settings.window)
        after = router.counters(self.lab)
        second = self._sent()
        unit = self.lab.scale * 1e9
        rate = (after.sent - before.sent) * 8 / (after.time - before.time) / unit
        packets = np.array([second.get(key, 0) - first.get(key, 0) for key in self._keys()])
        sent = packets * traffic.PACKET_BYTES * 8 / (second["time"] - first["time"]) / unit
        return rate, sent

    def _predicted(self, sent: np.ndarray, headers: bool = True) -> np.ndarray:
        """(E,) Gbit/s of the splits in force, from what was sent."""
        splits = np.array(json.loads((STATE / "controller.json").read_text())["splits"])
        view = self._view()
        view.splits = splits
        load = np.zeros(self.lab.topology.num_links)
        place = {tuple(pair): d for d, pair in enumerate(self.pairs.tolist())}
        for d, (s, t) in enumerate(view.pairs):
            lists = iter(view.lists(splits, d))
            for k, path in enumerate(view.links[d]):
                if splits[d, k] > 0:
                    share, segments = next(lists)
                    wire = controller.wire_share(segments, t) * _plain_wire() if headers else 1.0
                    load[path] += share * wire * sent[place[s, t]]
        return load

    def _view(self) -> controller.Controller:
        """A controller's knowledge of candidate paths, without its loop."""
        from teal_serve.client import Client

        with Client(f"http://127.0.0.1:{self.port}") as client:
            return controller.Controller(
                self.lab, client, STATE / "view.json", STATE / "view.jsonl"
            )

    def _optimum(self, sent: np.ndarray) -> float:
        """The certified least largest utilisation for what was sent, without headers of segment
        lists.
        """
        topology = self.lab.topology
        paths = teal.choose_paths(
            topology, sent[None], objective=teal.Objective("max_link_utilisation"), cache=False
        )
        problem = teal.Problem.create(
            topology, paths.paths, teal.Objective("max_link_utilisation"), sent[None]
        )
        return float(teal.solve(problem, gap=1e-3).bound[0])

    def _compared(self, rate: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
        """How far measured loads are from predicted ones, on links above 5% utilisation."""
        shown = predicted / self.lab.topology.capacity > _MIN_UTILISATION
        error = np.abs(rate[shown] / predicted[shown] - 1)
        return {
            "links": int(shown.sum()),
            "largest_error": float(error.max(initial=0.0)),
            "mean_error": float(error.mean()) if shown.any() else 0.0,
        }

    def _table(self, rate: np.ndarray, predicted: np.ndarray) -> list[dict[str, Any]]:
        topology = self.lab.topology
        return [
            {
                "link": topology.link_name(e),
                "predicted": float(predicted[e]),
                "measured": float(rate[e]),
                "capacity": float(topology.capacity[e]),
            }
            for e in range(topology.num_links)
        ]

    def _sample(self) -> None:
        """Utilisation of all links once a second, for the chart."""
        before = router.counters(self.lab)
        while not self._stopping.wait(1.0):
            with contextlib.suppress(subprocess.SubprocessError, ValueError, KeyError):
                now = router.counters(self.lab)
                rate = (
                    (now.sent - before.sent) * 8 / (now.time - before.time) / (self.lab.scale * 1e9)
                )
                self.samples.append(
                    {"time": now.time, "utilisation": (rate / self.lab.topology.capacity).tolist()}
                )
                before = now

    def _arrived_and_sent(self, quiet: bool = False) -> tuple[int, int]:
        """Packets that hosts received and that were sent, since the start; ``quiet`` stops sending
        and waits first.
        """
        if quiet:
            self._send(np.zeros(len(self.demand)))
            time.sleep(1.5)
        arrived = 0
        for node in range(self.lab.topology.num_nodes):
            for line in run(
                ["ip", "netns", "exec", self.lab.namespace(node) + "h", "cat", "/proc/net/snmp6"]
            ).splitlines():
                if line.startswith(("Udp6InDatagrams", "Udp6InErrors")):
                    arrived += int(line.split()[1])
        sent = self._sent()
        return arrived, sum(value for key, value in sent.items() if key != "time")

    def _sent(self) -> dict[str, Any]:
        try:
            return {**json.loads(traffic.SENT.read_text()), "time": traffic.SENT.stat().st_mtime}
        except FileNotFoundError:
            return {"time": time.time()}

    def _keys(self) -> list[str]:
        return [f"{s} {t}" for s, t in self.pairs.tolist()]

    def _packets_per_second(self) -> float:
        return float(self.demand.sum()) * self.lab.scale * 1e9 / 8 / traffic.PACKET_BYTES

    def _busiest_cable(self) -> tuple[int, int]:
        """The cable with the largest load whose loss leaves all nodes connected."""
        topology = self.lab.topology
        load = np.array(self.samples[-1]["utilisation"]) * topology.capacity
        for cable in sorted(topology.cables(), key=lambda links: -load[links].sum()):
            if topology.with_failed_links(cable).num_components() == 1:
                return int(topology.link_source[cable[0]]), int(topology.link_target[cable[0]])
        raise RuntimeError("every cable of this network is a bridge")

    # Processes and files.

    def _send(self, demand: np.ndarray) -> None:
        rows = [
            [int(s), int(t), float(d) * self.lab.scale * 1e9]
            for (s, t), d in zip(self.pairs, demand, strict=True)
        ]
        temporary = traffic.RATES.with_suffix(".tmp")
        temporary.write_text(json.dumps(rows))
        temporary.replace(traffic.RATES)

    def _start(self, *command: str, name: str) -> subprocess.Popen[bytes]:
        with (STATE / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
            )
        (STATE / f"{name}.pid").write_text(str(process.pid))
        self.processes.append(process)
        return process

    def _start_controller(self) -> None:
        service = f"http://127.0.0.1:{self.port}"
        self.control = self._start(
            sys.executable,
            "-m",
            "deploy.lab.controller",
            "--service",
            service,
            "--interval",
            str(self.settings.interval),
            name="controller",
        )

    def _pause_controller(self, pause: bool) -> None:
        self.control.send_signal(signal.SIGSTOP if pause else signal.SIGCONT)

    def _answers(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), timeout=1.0),
        ):
            return True
        return False

    def _events(self) -> list[dict[str, Any]]:
        with contextlib.suppress(FileNotFoundError):
            return [
                json.loads(line)
                for line in (STATE / "events.jsonl").read_text().splitlines()
                if line.endswith("}")
            ]
        return []

    def _named(self, name: str) -> list[dict[str, Any]]:
        return [one for one in self._events() if one["event"] == name]


def _plain_wire() -> float:
    """Bytes on the wire of a packet without a segment list, for a byte of IPv6."""
    return (traffic.PACKET_BYTES + traffic.ETHERNET_BYTES) / traffic.PACKET_BYTES


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for a condition; raises TimeoutError that names it."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            tails = "\n".join(
                f"{name}: {_tail(STATE / name)}" for name in ("controller.log", "service.log")
            )
            raise TimeoutError(f"{what} did not come within {seconds:g} s\n{tails}")
        time.sleep(0.1)


def _tail(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return path.read_text()[-2000:]
    return ""


def leftovers() -> Iterator[str]:
    """Names of namespaces of the laboratory that exist."""
    for line in run(["ip", "netns", "list"], check=False).splitlines():
        if line.startswith(PREFIX):
            yield line.split()[0]
