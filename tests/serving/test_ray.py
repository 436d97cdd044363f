"""The service as it is started, under Ray Serve: who can reach it, what a killed engine costs, how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

pytest.importorskip("ray", reason="needs the service's packages: pip install '.[serve]'")

from teal.cli import main
from teal.client import Client, InvalidRequest, ServiceFault, Unauthorised, UnknownNetwork, Unreachable
from tests.serving.service import TOKEN, free_port

# One worker of pytest-xdist runs them all: each would start a Ray of its own.
pytestmark = pytest.mark.xdist_group("ray")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], str, Path]]:
    """(process, address, log) of a service with two engines."""
    folder = tmp_path_factory.mktemp("service")
    token, log = folder / "token", folder / "log"
    token.write_text(TOKEN)
    token.chmod(0o600)
    port = free_port()
    command = [sys.executable, "-m", "teal", "serve", "--topology", "b4", "--port", str(port), "--replicas", "2"]
    command += ["--token-file", str(token), "--state", str(folder / "state"), "--model", "none"]
    command += ["--log-file", str(folder / "requests.jsonl")]
    environment = {**os.environ, "TEAL_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    with log.open("w") as stream:
        process = subprocess.Popen(command, cwd=folder, stdout=stream, stderr=stream, text=True, env=environment)
    address = f"http://127.0.0.1:{port}"
    for _ in range(240):
        if process.poll() is not None:
            pytest.fail(log.read_text())
        try:
            with Client(address, TOKEN) as client:
                client.wait_ready("default")
            break
        except ServiceFault:
            time.sleep(0.5)
    else:
        pytest.fail(log.read_text())
    yield process, address, log
    family = _family(process.pid)
    process.kill()
    process.wait()
    for child in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def _family(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _engines(pid: int) -> list[psutil.Process]:
    return [child for child in _family(pid) if "ServeReplica:teal:Engine" in " ".join(child.cmdline())]


def test_it_answers_those_who_know_the_token(service: tuple[subprocess.Popen[str], str, Path]) -> None:
    _, address, log = service
    rates = np.random.default_rng(0).lognormal(0, 1, (2, 132)) * 100
    with Client(address, TOKEN) as client:
        found = client.allocate("default", rates)
        assert found.status == ("gap", "gap")
        assert found.utilisation.max() <= 1 + 1e-6
        client.put_network("line", {"nodes": [{"id": "a"}, {"id": "b"}], "links": [
            {"source": "a", "target": "b", "capacity": 2.0}, {"source": "b", "target": "a", "capacity": 2.0},
        ], "directed": True})  # fmt: skip
        client.wait_ready("line")
        assert client.allocate("line", np.array([[3.0, 1.0]])).value[0] == pytest.approx(3.0, rel=1e-2)
        client.delete_network("line")
        with pytest.raises(UnknownNetwork):  # an error's kind outlives the way between processes
            client.allocate("line", np.array([[3.0, 1.0]]))
        with pytest.raises(InvalidRequest, match="finite"):
            client.allocate("default", np.full((1, 132), np.nan))
    guard = log.parent / "cache" / "serve" / "ray-token"
    assert guard.stat().st_mode & 0o077 == 0
    with Client(address, "a-wrong-token-of-length") as stranger, pytest.raises(Unauthorised):
        stranger.networks()
    said, entries = "", list[dict[str, Any]]()
    for _ in range(100):  # a line is written when the answer is on its way
        said = (log.parent / "requests.jsonl").read_text()
        entries = [json.loads(line) for line in said.splitlines()]
        if any(entry["status"] == 401 for entry in entries):
            break
        time.sleep(0.1)
    route = "/v1/networks/{name}/allocations"
    assert any(entry["route"] == route and entry["status"] == 200 and entry["ms"] > 0 for entry in entries)
    assert any(entry["status"] == 401 for entry in entries)
    assert TOKEN not in log.read_text() + said


def test_nobody_else_can_reach_it(service: tuple[subprocess.Popen[str], str, Path]) -> None:
    process, address, _ = service
    port = int(address.rpartition(":")[2])
    mine = {process.pid, *(child.pid for child in _family(process.pid))}
    listening = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.pid in mine]
    assert any(c.laddr.port == port for c in listening)
    open_ones = [c for c in listening if not ip_address(c.laddr.ip.removeprefix("::ffff:")).is_loopback]
    # The documented exception: one port of each replica, Ray's own between its processes.
    names = {" ".join(psutil.Process(c.pid).cmdline()) for c in open_ones}
    assert all("ServeReplica" in name for name in names), names
    assert all(c.laddr.port != port for c in open_ones)


def test_a_killed_engine_costs_no_answer(service: tuple[subprocess.Popen[str], str, Path]) -> None:
    process, address, _ = service
    rates = np.random.default_rng(1).lognormal(0, 1, (4, 132)) * 1000
    answered, faults, stop = [], [], threading.Event()

    def load(seed: int) -> None:
        with Client(address, TOKEN) as client:
            while not stop.is_set():
                try:
                    answered.append(client.allocate("default", rates).value.sum())
                except Exception as fault:
                    faults.append(fault)

    threads = [threading.Thread(target=load, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    before = len(answered)
    engines = _engines(process.pid)
    assert len(engines) >= 2
    engines[0].send_signal(signal.SIGKILL)
    time.sleep(6)
    stop.set()
    for thread in threads:
        thread.join()
    assert not faults
    assert len(answered) > before > 0
    assert np.allclose(answered, answered[0], rtol=2e-2)


def test_what_is_in_flight_when_it_is_told_to_stop_is_answered(
    service: tuple[subprocess.Popen[str], str, Path],
) -> None:
    process, address, log = service
    rates = np.random.default_rng(2).lognormal(0, 1, (16, 132)) * 5000
    results: list[object] = []

    def ask() -> None:
        with Client(address, TOKEN) as client:
            try:
                results.append(client.allocate("default", rates, gap=1e-12, deadline_ms=2000))
            except ServiceFault as fault:
                results.append(fault)

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(0.7)
    process.send_signal(signal.SIGTERM)
    asking.join(timeout=30)
    (result,) = results
    assert not isinstance(result, ServiceFault), result
    assert process.wait(timeout=60) == 0, log.read_text()
    with Client(address, TOKEN) as client, pytest.raises(Unreachable):
        client.networks()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--host", "0.0.0.0"], "--host: expected a loopback address, or a --token-file"),
        (["--token-file", "nowhere"], "--token-file"),
        (["--token-file", "open"], "chmod 600"),
        (["--token-file", "short"], "16 characters"),
        (["--port", "0"], "--port"),
        (["--model", "nowhere"], "nowhere"),
        (["--topology", "nowhere"], "nowhere: topology"),
        (["--topology", "b4", "--objective", "fame"], "objective"),
    ],
)
def test_wrong_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text, mode in (("open", TOKEN, 0o644), ("short", "abc", 0o600)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    assert main(["serve", *more]) == 2
    assert words in capsys.readouterr().err
