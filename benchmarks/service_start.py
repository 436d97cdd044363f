"""Measure the time from the start of `teal serve` to its first answers, on a machine that has
compiled nothing.

    python benchmarks/service_start.py [--networks geant,UsCarrier,Kdl] [--data FOLDER] [--native] [--repeat 3]
        [--out runs/service-start.csv]

Each start is a new process with an empty home: `listens` is the time to the first 200 of /healthz,
`ready` that to the first 200 of /readyz, `answers` that to the first certified allocation, all from
the start of the process, medians over the repetitions.  `--native` leaves the machine code of the
package aside, so that everything is compiled.  The package must have machine code (a wheel has, a
checkout after `python -m teal.app.machine_code`); nothing else should run.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
from public_data import published

from teal_serve.client import Client, NotReady, Overloaded, UnknownNetwork, Unreachable

# Name: source of the topology, and load of the gravity traffic.
NETWORKS = {
    "b4": ("b4", 6),
    "geant": ("topohub:sndlib/geant", 4),
    "UsCarrier": ("UsCarrier.json", 6),
    "Kdl": ("Kdl.json", 6),
}
PORT = 8_123
ADDRESS = f"http://127.0.0.1:{PORT}"
_MAX_WAIT_S = 900.0
_POLL_INTERVAL_S = 0.02


def seconds_until_success(request: Callable[[], Any], begin: float) -> float:
    """Repeat a request until it succeeds; return the seconds since ``begin``.

    Args:
        request: raises an exception of the client or of httpx as long as the service is not ready.
        begin: time of ``time.perf_counter()`` from which the seconds count.

    Raises:
        TimeoutError: if the request fails for :data:`_MAX_WAIT_S`.
    """
    while time.perf_counter() - begin < _MAX_WAIT_S:
        try:
            request()
        except (Unreachable, NotReady, Overloaded, UnknownNetwork, httpx.HTTPError):
            time.sleep(_POLL_INTERVAL_S)
        else:
            return time.perf_counter() - begin
    raise TimeoutError


def require_ok(http: httpx.Client, path: str) -> None:
    """Send a GET request for a path of the service; raise httpx.HTTPError if it fails or its status
    is an error.
    """
    http.get(path).raise_for_status()


def one_start(topology: str, rates: Any, native: bool) -> dict[str, float]:
    """Start a service in a new process with an empty home, and measure the time to its first
    answers.

    Args:
        topology: source of the network that the service loads.
        rates: demands of the allocation, (D,), Gbit/s.
        native: whether the package's machine code is ignored, so that all kernels are compiled.

    Returns:
        seconds from the start of the process to the first success of /healthz ("listens"), of
        /readyz ("ready") and of an allocation to 1% ("answers").
    """
    with tempfile.TemporaryDirectory() as home:
        # Without settings of Teal and Numba or folders of caches.
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith(("TEAL_", "NUMBA_", "XDG_"))
        }
        environment = inherited | {"HOME": home, "TEAL_SHIPPED_KERNELS": "0" if native else "1"}
        command = [sys.executable, "-m", "teal", "serve", "--topology", topology]
        # Start the service, then repeat each request until it succeeds.
        begin = time.perf_counter()
        process = subprocess.Popen(
            [*command, "--port", str(PORT), "--state", f"{home}/state"],
            env=environment,
            cwd=home,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            with httpx.Client(base_url=ADDRESS) as http, Client(ADDRESS) as client:
                seconds_by_event = {
                    "listens": seconds_until_success(partial(require_ok, http, "/healthz"), begin)
                }
                seconds_by_event["ready"] = seconds_until_success(
                    partial(require_ok, http, "/readyz"), begin
                )
                ask = partial(client.allocate, "default", rates, gap=0.01, deadline_ms=60_000)
                seconds_by_event["answers"] = seconds_until_success(ask, begin)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    return seconds_by_event


def main() -> None:
    """Start the service several times for each network, and write the median times
    to a CSV file.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--networks", default="geant,UsCarrier,Kdl")
    parser.add_argument("--data", type=Path, default=Path("."))
    parser.add_argument("--native", action="store_true")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/service-start.csv"))
    options = parser.parse_args()
    import teal

    rows = []
    for network in options.networks.split(","):
        source, load = NETWORKS[network]
        topology_source = (
            str(published(options.data, source)) if source.endswith(".json") else source
        )
        topology = teal.load_topology(topology_source)
        traffic = teal.load_traffic(f"gravity:seed=0,count=1,load={load}", topology)
        rates = traffic.read(slice(None))[0]
        # Median times of several starts.
        starts = [one_start(topology_source, rates, options.native) for _ in range(options.repeat)]
        code = "compiled here" if options.native else "of the package"
        row = {"network": network, "machine_code": code}
        for figure in ("listens", "ready", "answers"):
            seconds = statistics.median(start[figure] for start in starts)
            row[f"{figure}_s"] = f"{seconds:.3g}"
        rows.append(row)
        print(row, flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(options.out, index=False)


if __name__ == "__main__":
    main()
