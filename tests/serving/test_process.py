"""The service as it is started by default: one process without Ray, which answers what it holds before it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="needs the service's packages: pip install '.[serve]'")

from teal.cli import main
from teal.client import Client, ServedAllocation, Unreachable
from tests.gate import OPEN, PATIENCE_S, Gate, wait_until
from tests.processes import descendants, running
from tests.serving.service import TOKEN, Asking, free_port

pytestmark = pytest.mark.system


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
    command = [sys.executable, "-m", "teal", "serve", "--topology", "b4", "--port", str(port), "--model", "none"]
    command += ["--token-file", str(token), "--state", str(tmp_path / "state")]
    gate = Gate(tmp_path / "gate", "teal.serving.served", "Served", "solve", OPEN)
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
    asking.join(timeout=PATIENCE_S)
    assert isinstance(asking.result, ServedAllocation), asking.result
    assert process.wait(timeout=PATIENCE_S) == 0, log.read_text()
    with Client(address, TOKEN) as client, pytest.raises(Unreachable):
        client.networks()


def test_what_was_registered_is_there_after_a_kill(service: Running, tmp_path: Path) -> None:
    process, address, _, _ = service
    with Client(address, TOKEN) as client:
        client.change_link("default", "1", "2", up=False)
    process.kill()
    process.wait(timeout=PATIENCE_S)
    port = free_port()
    command = [sys.executable, "-m", "teal", "serve", "--port", str(port), "--model", "none"]
    command += ["--token-file", str(tmp_path / "token"), "--state", str(tmp_path / "state")]
    log = tmp_path / "second"
    with log.open("w") as stream, running(command, dict(os.environ), tmp_path, output=stream):
        wait_until(lambda: "answers; its API" in log.read_text(), "a service that answers")
        with Client(f"http://127.0.0.1:{port}", TOKEN) as client:
            client.wait_ready("default")
            links = client.network("default").links
    down = [link for link in links if {link.source, link.target} == {"1", "2"}]
    assert down
    assert all(link.in_force == 0 for link in down)


def test_a_port_that_is_taken_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["serve", "--port", port, "--state", str(tmp_path), "--model", "none"]) == 2
    assert f"127.0.0.1:{port}" in capsys.readouterr().err
