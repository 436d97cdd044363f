"""The service as it is started by default: one process without Ray, which answers what it holds
before it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import pytest
import torch

pytest.importorskip("uvicorn", reason="needs the service's packages: pip install '.[serve]'")

import teal
from teal.cli import main
from teal.network import Topology
from teal.objectives import Objective
from teal.problem import Problem
from teal.problem.feasibility import TOLERANCE, violations
from teal_serve.client import Client, NotReady, Overloaded, Unreachable
from tests.gate import OPEN, PATIENCE_S, Gate, wait_until
from tests.processes import descendants, running
from tests.teal_serve.service import TOKEN, Asking, assert_answered_before_the_end, free_port

pytestmark = pytest.mark.system
T = TypeVar("T")


class Running(NamedTuple):
    """A service: its process, its address, what it prints, and a gate at its engine."""

    process: subprocess.Popen[str]
    address: str
    log: Path
    gate: Gate


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    token, log, port = tmp_path / "token", tmp_path / "log", free_port()
    token.write_text(TOKEN)
    token.chmod(0o600)
    command = [
        sys.executable,
        "-m",
        "teal",
        "serve",
        "--topology",
        "b4",
        "--port",
        str(port),
        "--model",
        "none",
    ]
    command += ["--token-file", str(token), "--state", str(tmp_path / "state")]
    gate = Gate(tmp_path / "gate", "teal_serve.engine.scheduler", "Scheduler", "_run_slice", OPEN)
    environment = {**gate.environment, "TEAL_CACHE_DIR": str(tmp_path / "cache")}

    def ready() -> bool:
        assert process.poll() is None, log.read_text()
        return "answers; its API" in log.read_text()

    with log.open("w") as stream, running(command, environment, tmp_path, output=stream) as process:
        wait_until(ready, "a service that answers")
        address = f"http://127.0.0.1:{port}"
        with Client(address, TOKEN) as client:
            client.wait_ready("default")
        yield Running(process, address, log, gate)


def test_one_process_answers_and_ends_after_what_it_holds(service: Running) -> None:
    process, address, log, gate = service
    rates = np.random.default_rng(2).lognormal(0, 1, (16, 132)) * 5000
    with Client(address, TOKEN) as client:
        assert client.allocate("default", rates[:2], deadline_ms=60_000).status == ("gap", "gap")
    assert not descendants(process), "it is the only process"
    before = sum(gate.calls().values())
    gate.allow(0)
    asking = Asking(address, rates)
    asking.start()
    wait_until(lambda: sum(gate.calls().values()) > before, "the request in the engine")
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: "stopping" in log.read_text(), "the message that it stops")
    gate.allow(OPEN)
    assert_answered_before_the_end(asking, process, address, log)


@contextlib.contextmanager
def _second(folder: Path) -> Iterator[str]:
    """The address of another service over the state and with the token of the fixture's."""
    port, log = free_port(), folder / "second"
    command = [sys.executable, "-m", "teal", "serve", "--port", str(port), "--model", "none"]
    command += ["--token-file", str(folder / "token"), "--state", str(folder / "state")]
    with log.open("w") as stream, running(command, dict(os.environ), folder, output=stream):
        wait_until(lambda: "answers; its API" in log.read_text(), "a service that answers")
        yield f"http://127.0.0.1:{port}"


def test_what_was_registered_is_there_after_a_kill(service: Running, tmp_path: Path) -> None:
    process, address, _, _ = service
    with Client(address, TOKEN) as client:
        client.change_link("default", "1", "2", up=False)
    process.kill()
    process.wait(timeout=PATIENCE_S)
    with _second(tmp_path) as address, Client(address, TOKEN) as client:
        client.wait_ready("default")
        links = client.network("default").links
    down = [link for link in links if {link.source, link.target} == {"1", "2"}]
    assert down
    assert all(link.in_force == 0 for link in down)


def test_half_a_day_of_intervals_survives_a_kill_in_its_middle(tmp_path: Path) -> None:
    """144 intervals of Abilene without pauses: each has a valid allocation; links and measurements
    are as before."""
    topology = teal.load_topology("topohub:sndlib/abilene")
    traffic = teal.load_traffic("gravity:seed=0,count=144,load=3", topology)
    paths = teal.compute_paths(topology, traffic.pairs, cache=False)
    begin, kill_at = np.datetime64("2026-03-01T00:00:00", "s"), 72
    port, state = free_port(), tmp_path / "state"
    command = [
        sys.executable,
        "-m",
        "teal",
        "serve",
        "--port",
        str(port),
        "--model",
        "none",
        "--state",
        str(state),
    ]
    environment = {**os.environ, "TEAL_CACHE_DIR": str(tmp_path / "cache")}
    retried = 0

    def insisted(call: Callable[[], T]) -> T:
        """The result of a call, asked again while the service is being restarted."""
        nonlocal retried
        while True:
            try:
                return call()
            except (Unreachable, NotReady, Overloaded):
                retried += 1
                time.sleep(0.05)

    with contextlib.ExitStack() as stack:

        def started() -> subprocess.Popen[str]:
            log = stack.enter_context((tmp_path / f"log-{time.monotonic()}").open("w"))
            return stack.enter_context(running(command, environment, tmp_path, output=log))

        process = started()
        with Client(f"http://127.0.0.1:{port}") as client:
            insisted(lambda: client.put_network("abilene", topology, num_paths=4))
            insisted(lambda: client.wait_ready("abilene"))
            insisted(lambda: client.change_link("abilene", *_ends(topology, 0), up=False))
            capacity = np.array([link.in_force for link in client.network("abilene").links])
            assert (capacity == 0).sum() == 2
            problem = Problem.create(
                topology, paths, Objective(), traffic.read(slice(None))
            ).with_capacity(torch.from_numpy(capacity))
            for row in range(144):
                if row == kill_at:
                    process.kill()
                    process.wait()
                    process = started()
                rates, at = traffic.read([row]), begin + np.timedelta64(300 * row, "s")
                allocation = insisted(lambda rates=rates: client.allocate("abilene", rates))  # type: ignore[misc]
                splits = torch.from_numpy(allocation.splits.astype(np.float64))
                assert float(violations(problem.row(row), splits).largest) <= TOLERANCE
                assert allocation.status == ("gap",)
                insisted(lambda rates=rates, at=at: client.measure("abilene", rates, at))  # type: ignore[misc]
                if row % 48 == 47:
                    ahead = insisted(lambda: client.allocate_next("abilene", deadline_ms=60_000))
                    assert ahead.status == ("next",)
                    assert np.isfinite(ahead.utilisation).all()
            assert retried > 0, "the kill was not noticed"
            kept = client.measured("abilene")
            assert (kept.matrices, kept.interval_s) == (144, 300)
            np.testing.assert_array_equal(
                [link.in_force for link in client.network("abilene").links], capacity
            )


def test_two_services_over_one_folder_stand_in_for_each_other(
    service: Running, tmp_path: Path
) -> None:
    """As behind a load balancer: what one was told the other one does, also after the first one is
    killed."""
    process, address, _, _ = service
    rates = np.random.default_rng(2).lognormal(0, 1, (1, 132)) * 500
    with (
        _second(tmp_path) as other,
        Client(address, TOKEN) as first,
        Client(other, TOKEN) as second,
    ):
        second.wait_ready("default")
        first.put_network("later", "b4")
        wait_until(
            lambda: second.network("later").state == "ready",
            "the network that the other one was given",
        )
        first.change_link("default", "1", "2", up=False)
        first.measure("default", rates, np.datetime64("2026-03-01T00:00:00", "s"))
        process.kill()
        process.wait()
        allocation = second.allocate("default", rates)
        down = [i for i, link in enumerate(second.network("default").links) if link.in_force == 0]
        assert len(down) == 2
        assert (allocation.utilisation[0, down] == 0).all()
        assert second.measured("default").matrices == 1
        second.delete_network("later")
        assert second.networks() == ["default"]


def _ends(topology: Topology, link: int) -> tuple[str, str]:
    return topology.node_names[topology.link_source[link]], topology.node_names[
        topology.link_target[link]
    ]


def test_a_port_that_is_taken_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["serve", "--port", port, "--state", str(tmp_path), "--model", "none"]) == 2
    assert f"127.0.0.1:{port}" in capsys.readouterr().err
