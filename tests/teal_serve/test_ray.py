"""The service as it is started, under Ray Serve: who can reach it, what a killed engine costs, how
it ends."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest

# Ray is not imported to see whether it is there: that takes seconds, in every process that collects
# tests.
if not all(map(importlib.util.find_spec, ("ray", "fastapi"))):
    pytest.skip("needs the service's packages: pip install '.[serve]'", allow_module_level=True)

from teal.cli import main
from teal_serve.client import Client, InvalidRequest, Unauthorised, UnknownNetwork
from tests.gate import OPEN, Gate, wait_until
from tests.processes import descendants, running
from tests.teal_serve.service import TOKEN, Asking, assert_answered_before_the_end, free_port

# One worker of pytest-xdist runs the tests of a group: each would start the service anew.
pytestmark = [pytest.mark.system, pytest.mark.xdist_group("ray-b")]


class Running(NamedTuple):
    """A service in other processes: its main process, its address, what it prints, and a gate at
    its engines."""

    process: subprocess.Popen[str]
    address: str
    log: Path
    gate: Gate


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with two engines."""
    folder = tmp_path_factory.mktemp("service")
    token, log = folder / "token", folder / "log"
    token.write_text(TOKEN)
    token.chmod(0o600)
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "teal",
        "serve",
        "--topology",
        "b4",
        "--port",
        str(port),
        "--replicas",
        "2",
    ]
    command += ["--token-file", str(token), "--state", str(folder / "state"), "--model", "none"]
    command += ["--log-file", str(folder / "requests.jsonl")]
    gate = Gate(folder / "gate", "teal_serve.engine.scheduler", "Scheduler", "_run_slice", OPEN)
    environment = {**gate.environment, "TEAL_CACHE_DIR": str(folder / "cache")}
    address = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        assert process.poll() is None, log.read_text()
        return (
            "answers; its API" in log.read_text()
        )  # both engines run, and the process handles signals

    with log.open("w") as stream, running(command, environment, folder, output=stream) as process:
        wait_until(ready, "a service that answers")
        with Client(address, TOKEN) as client:
            client.wait_ready("default")
        yield Running(process, address, log, gate)


def _engines(process: subprocess.Popen[str]) -> dict[int, psutil.Process]:
    """Processes of engines, by their IDs."""
    engines = {}
    for child in descendants(process):
        try:
            if "ServeReplica:teal-engines:Engine" in " ".join(child.cmdline()):
                engines[child.pid] = child
        except psutil.NoSuchProcess:  # ended since it was listed
            pass
    return engines


def _serving(gate: Gate) -> set[int]:
    """IDs of the engines that have worked on requests."""
    return {process for process, calls in gate.calls().items() if calls}


def test_the_service_answers_those_who_know_the_token(service: Running) -> None:
    _, address, log, _ = service
    rates = np.random.default_rng(0).lognormal(0, 1, (2, 132)) * 100
    with Client(address, TOKEN) as client:
        answer = client.allocate("default", rates, deadline_ms=60_000)
        assert answer.status == ("gap", "gap")
        assert answer.utilisation.max() <= 1 + 1e-6
        client.put_network(
            "line",
            {
                "nodes": [{"id": "a"}, {"id": "b"}],
                "links": [
                    {"source": "a", "target": "b", "capacity": 2.0},
                    {"source": "b", "target": "a", "capacity": 2.0},
                ],
                "directed": True,
            },
        )
        client.wait_ready("line")
        assert client.allocate("line", np.array([[3.0, 1.0]])).value[0] == pytest.approx(
            3.0, rel=1e-2
        )
        client.delete_network("line")
        with pytest.raises(UnknownNetwork):  # an error's kind outlives the way between processes
            client.allocate("line", np.array([[3.0, 1.0]]))
        with pytest.raises(InvalidRequest, match="finite"):
            client.allocate("default", np.full((1, 132), np.nan))
    guard = log.parent / "cache" / "serve" / "ray-token"
    assert guard.stat().st_mode & 0o077 == 0
    with Client(address, "a-wrong-token-of-length") as stranger, pytest.raises(Unauthorised):
        stranger.networks()
    requests = log.parent / "requests.jsonl"

    def entries() -> list[dict[str, Any]]:
        return [
            json.loads(line)
            for line in requests.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]

    # A line is written when the answer is on its way.
    wait_until(
        lambda: any(entry["status"] == 401 for entry in entries()),
        "a line about the refused request",
    )
    route = "/v1/networks/{name}/allocations"
    assert any(
        entry["route"] == route and entry["status"] == 200 and entry["ms"] > 0
        for entry in entries()
    )
    assert TOKEN not in log.read_text() + requests.read_text()


def test_other_machines_cannot_reach_the_service(service: Running) -> None:
    process, address, _, _ = service
    port = int(address.rpartition(":")[2])
    mine = {process.pid, *(child.pid for child in descendants(process))}
    listening = [
        c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.pid in mine
    ]
    assert any(c.laddr.port == port for c in listening)
    open_ones = [
        c for c in listening if not ip_address(c.laddr.ip.removeprefix("::ffff:")).is_loopback
    ]
    # The documented exception: one port of each replica, Ray's own between its processes.
    names = {" ".join(psutil.Process(c.pid).cmdline()) for c in open_ones}
    assert all("ServeReplica" in name for name in names), names
    assert all(c.laddr.port != port for c in open_ones)


def test_a_killed_engine_costs_no_answer(service: Running) -> None:
    process, address, log, gate = service
    rates = np.random.default_rng(1).lognormal(0, 1, (4, 132)) * 1000
    answered, faults, stop = [], [], threading.Event()

    def load(seed: int) -> None:
        with Client(address, TOKEN) as client:
            while not stop.is_set():
                try:
                    answered.append(
                        client.allocate("default", rates, deadline_ms=60_000).value.sum()
                    )
                except Exception as fault:
                    faults.append(fault)
                time.sleep(0.02)  # without it they would take the cores from the engine that starts

    threads = [threading.Thread(target=load, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(answered) >= 12 or bool(faults), "answers of two engines")
        engines = _engines(process)
        assert len(engines) >= 2
        next(iter(engines.values())).send_signal(signal.SIGKILL)
        first = engines.keys()
        wait_until(
            lambda: bool(_serving(gate) - first) or bool(faults),
            "answers of an engine in its place",
            log,
        )
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not faults
    assert np.allclose(answered, answered[0], rtol=2e-2)


def test_a_request_in_an_engine_when_the_service_is_told_to_stop_is_answered(
    service: Running,
) -> None:
    process, address, log, gate = service
    rates = np.random.default_rng(2).lognormal(0, 1, (16, 132)) * 5000
    gate.allow(0)
    before, refused = gate.calls(), list[Any]()
    asking = Asking(address, rates)
    asking.start()

    def is_in_an_engine() -> bool:
        nonlocal asking
        if asking.result is not None:  # refused before an engine took it: a busy machine
            refused.append(asking.result)
            assert len(refused) < 30, refused
            asking = Asking(address, rates)
            asking.start()
        return any(gate.calls()[p] > before.get(p, 0) for p in _serving(gate))

    wait_until(is_in_an_engine, "the request in an engine")
    process.send_signal(signal.SIGTERM)
    gate.allow(OPEN)
    assert_answered_before_the_end(asking, process, address, log)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--host", "0.0.0.0"], "use a loopback address, or give a --token-file"),
        (["--token-file", "nowhere"], "--token-file"),
        (["--token-file", "open"], "chmod 600"),
        (["--token-file", "short"], "16 characters"),
        (["--port", "0"], "--port"),
        (["--model", "nowhere"], "nowhere"),
        (["--topology", "nowhere"], "nowhere: topology"),
        (["--topology", "b4", "--objective", "fame"], "objective"),
    ],
)
def test_wrong_settings_of_the_service_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text, mode in (("open", TOKEN, 0o644), ("short", "abc", 0o600)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    assert main(["serve", *more]) == 2
    assert words in capsys.readouterr().err
