"""The service under load: latency and throughput, compared with echoes of equal size, and requests
for large networks.

    python benchmarks/service.py [--large UsCarrier.json Kdl.json] [--seconds 10] [--ray] [--out FILE]
    python benchmarks/service.py --overload 60

GEANT with generated traffic, one matrix per request, from a second process with 1, 8 and 64
clients.  The echo is a FastAPI application in one process, like the service; its responses have as
many bytes as those of the service.  With --ray also the service with two engines under Ray Serve
(--replicas 2), and an echo of a FastAPI ingress in front of one deployment.

Overload: 640 clients that send the next request as soon as they have a response, while the service
lets 16 requests wait.  Printed are rate and latency of each HTTP status, and the memory of all
processes of the service before, during and after the overload.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

CLIENTS = (1, 8, 64)  # concurrent clients of each measurement
FLOOD = 640  # concurrent clients of the overload
ARROW = "application/vnd.apache.arrow.stream"


def free_port() -> int:
    """A TCP port that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def arrow(rates: np.ndarray) -> bytes:
    """The Arrow body of a request for ``rates``, (B, D), Gbit/s."""
    import pyarrow as pa

    column = pa.FixedSizeListArray.from_arrays(pa.array(rates.reshape(-1)), rates.shape[1])
    table = pa.table({"rates": column})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


def echo(port: int, size: int) -> None:
    """Serve responses of ``size`` bytes on a port until the process is killed."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    import ray
    from fastapi import FastAPI
    from ray import serve
    from starlette.requests import Request
    from starlette.responses import Response

    class Back:
        async def answer(self, body: bytes) -> bytes:
            return bytes(size)

    class Front:
        def __init__(self, back: Any) -> None:
            self.back = back

        def __serve_build_asgi_app__(self) -> FastAPI:
            app = FastAPI()

            async def answer(request: Request) -> Response:
                return Response(
                    await self.back.answer.remote(await request.body()), media_type=ARROW
                )

            # FastAPI cannot resolve these local names.
            answer.__annotations__ |= {
                "request": Request,
                "return": None,
            }
            app.post("/echo", response_model=None)(answer)

            @app.get("/readyz")
            async def ready() -> str:
                return "ok"

            return app

    ray.init(
        include_dashboard=False, log_to_driver=False, logging_level="ERROR", configure_logging=False
    )
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    options: dict[str, Any] = {"ray_actor_options": {"num_cpus": 0}, "max_ongoing_requests": 256}
    back = serve.deployment(Back).options(**options).bind()
    serve.run(
        serve.deployment(serve.ingress()(Front)).options(**options).bind(back),
        name="echo",
        route_prefix="/",
    )
    signal.pause()


def bare_echo(port: int, size: int) -> None:
    """Serve responses of ``size`` bytes in one process on a port until the process is killed."""
    import uvicorn
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response

    app = FastAPI()

    async def answer(request: Request) -> Response:
        await request.body()
        return Response(bytes(size), media_type=ARROW)

    # FastAPI cannot resolve these local names.
    answer.__annotations__ |= {
        "request": Request,
        "return": None,
    }
    app.post("/echo", response_model=None)(answer)
    app.get("/readyz")(lambda: "ok")
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


async def load(
    url: str, bodies: list[bytes], clients: int, seconds: float
) -> tuple[list[float], int, list[bytes]]:
    """Latencies, s; number of responses other than 200; bodies of up to 2000 responses."""
    import aiohttp

    times: list[float] = []
    faults = 0
    bodies_received: list[bytes] = []
    headers = {"Content-Type": ARROW, "Accept": ARROW}
    end = time.perf_counter() + seconds

    async def client(session: aiohttp.ClientSession, number: int) -> None:
        nonlocal faults
        index = number
        while (begin := time.perf_counter()) < end:
            index += 1
            async with session.post(
                url, data=bodies[index % len(bodies)], headers=headers
            ) as response:
                body = await response.read()
                times.append(time.perf_counter() - begin)
                faults += response.status != 200
                if response.status == 200 and len(bodies_received) < 2000:
                    bodies_received.append(body)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(session, number) for number in range(clients)))
    return times, faults, bodies_received


def metadata_of(body: bytes) -> dict[str, Any]:
    """The metadata in the Arrow body of a response of the service."""
    import pyarrow as pa

    with pa.ipc.open_stream(pa.BufferReader(body)) as stream:
        metadata: dict[str, Any] = json.loads(stream.schema.metadata[b"teal"])
    return metadata


def measure(name: str, url: str, bodies: list[bytes], seconds: float) -> list[dict[str, Any]]:
    """Load ``url`` with each number of clients; print a line for each, and return its figures."""
    asyncio.run(load(url, bodies, 8, 3))  # warm
    rows: list[dict[str, Any]] = []
    for clients in CLIENTS:
        times, faults, responses = asyncio.run(load(url, bodies, clients, seconds))
        p50, p99 = (float(np.quantile(times, q)) for q in (0.5, 0.99))
        rate = len(times) / seconds
        row = {"of": name, "clients": clients, "p50_s": p50, "p99_s": p99, "rate": round(rate)}
        row |= {"queue_ms": "", "solve_ms": "", "batch": ""}
        if not name.startswith("echo"):
            metadata = [metadata_of(body) for body in responses]
            for figure in ("queue_ms", "solve_ms", "batch"):
                row[figure] = round(float(np.median([entry[figure] for entry in metadata])), 2)
        rows.append(row)
        in_ms = f"{1e3 * p50:.1f} ms | {1e3 * p99:.1f} ms | {rate:.0f} | {faults}"
        parts = f"{row['queue_ms'] or '-'} | {row['solve_ms'] or '-'} | {row['batch'] or '-'}"
        print(f"| {name} | {clients} | {in_ms} | {parts} |", flush=True)
    return rows


def solvers(file: Path, address: str) -> None:
    """Print medians of requests of one matrix by each solver: in all, in the engine, certified gap.

    The request for PDHG comes first for each matrix, so that it starts from the allocation of the
    matrix before.
    """
    import teal
    from teal.client import Client

    topology = teal.load_topology(str(file))
    rates = teal.load_traffic("gravity:seed=0,count=12,load=6", topology).read(slice(None))
    with Client(address, timeout_s=600) as client:
        client.put_network("large", topology)
        client.wait_ready("large")
        client.allocate("large", rates[0])
        for target in (1e-2, 1e-3):
            print(
                f"\n| {topology.name}, gap {100 * target:g}% | end to end | engine | gap |\n|---|---|---|---|"
            )
            times_by_solver: dict[str, list[tuple[float, float, float]]] = {
                "pdhg": [],
                "model": [],
                "model-pdhg": [],
            }
            for row in rates[1:]:
                for solver, times in times_by_solver.items():
                    begin = time.perf_counter()
                    answer = client.allocate(
                        "large", row, solver=solver, gap=target, deadline_ms=60_000
                    )
                    times.append(
                        (
                            1e3 * (time.perf_counter() - begin),
                            answer.solve_ms,
                            100 * float(answer.gap[0]),
                        )
                    )
            for solver, times in times_by_solver.items():
                total_ms, engine, gap = np.median(times, axis=0)
                print(
                    f"| {solver} | {total_ms:.0f} ms | {engine:.0f} ms | {gap:.2f}% |", flush=True
                )


def resident(pid: int) -> float:
    """Resident memory of a process and all its descendants, MiB; shared memory counts once per
    process.
    """
    import psutil

    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(member.memory_info().rss for member in family if member.is_running()) / 2**20


async def flood(url: str, body: bytes, seconds: float, pid: int) -> None:
    """Load ``url`` with ``FLOOD`` clients; print the memory of process ``pid``, and rate and
    latency by status.
    """
    import aiohttp

    times_by_status: dict[int, list[float]] = {}
    headers = {"Content-Type": ARROW, "Accept": ARROW}
    end = time.perf_counter() + seconds

    async def client(session: aiohttp.ClientSession) -> None:
        while (begin := time.perf_counter()) < end:
            async with session.post(url, data=body, headers=headers) as response:
                await response.read()
                times_by_status.setdefault(response.status, []).append(time.perf_counter() - begin)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        clients = asyncio.gather(*(client(session) for _ in range(FLOOD)))
        while not clients.done():
            print(
                f"| {seconds - max(0.0, end - time.perf_counter()):.0f} s | {resident(pid):.0f} MiB |",
                flush=True,
            )
            await asyncio.wait({clients}, timeout=seconds / 4)
        await clients
    for status, times in sorted(times_by_status.items()):
        p50, p99 = (1e3 * float(np.quantile(times, q)) for q in (0.5, 0.99))
        print(f"status {status}: {len(times) / seconds:.0f}/s, p50 {p50:.0f} ms, p99 {p99:.0f} ms")


def overload(address: str, body: bytes, seconds: float, pid: int) -> None:
    """Overload the service, then print its memory and its latency for one client."""
    url = f"{address}/v1/networks/geant/allocations"
    asyncio.run(load(url, [body], 8, 5))
    print(f"warm: {resident(pid):.0f} MiB\n\n| after | memory |\n|---|---|")
    asyncio.run(flood(url, body, seconds, pid))
    time.sleep(5)
    times, faults, _ = asyncio.run(load(url, [body], 1, 5))
    print(
        f"afterwards: {resident(pid):.0f} MiB, p50 at one client {1e3 * np.median(times):.1f} ms, {faults} faults"
    )


def main() -> None:
    """Start the service, then the echo, and measure both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--large", type=Path, nargs="*", default=[], help="files of networks, to measure solvers on"
    )
    parser.add_argument("--out", type=Path, help="CSV file of the figures")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of a measurement")
    parser.add_argument(
        "--echo", type=int, nargs=2, metavar=("PORT", "BYTES"), help="run as the echo"
    )
    parser.add_argument(
        "--bare-echo", type=int, nargs=2, metavar=("PORT", "BYTES"), help="run as the bare echo"
    )
    parser.add_argument(
        "--ray", action="store_true", help="measure the service and an echo under Ray Serve too"
    )
    parser.add_argument(
        "--overload", type=float, default=0.0, metavar="SECONDS", help="overload the service"
    )
    options = parser.parse_args()
    if options.echo or options.bare_echo:
        echo(*options.echo) if options.echo else bare_echo(*options.bare_echo)
        return
    import teal

    topology = teal.load_topology("topohub:sndlib/geant")
    traffic = teal.load_traffic("gravity:seed=0,count=200,load=4", topology)
    bodies = [arrow(row[None]) for row in traffic.read(slice(None))]
    print(
        "| | clients | p50 | p99 | requests/s | faults | queue | engine | batch |\n"
        + 9 * "|---"
        + "|"
    )
    rows: list[dict[str, Any]] = []
    for replicas in (1, 2) if options.ray else (1,):
        with service(replicas, 16 if options.overload else 256) as (address, process):
            if options.overload:
                overload(address, bodies[0], options.overload, process.pid)
                return
            name = "service" if replicas == 1 else f"service, --replicas {replicas}"
            url = f"{address}/v1/networks/geant/allocations"
            rows += measure(name, url, bodies, options.seconds)
            for file in options.large if replicas == 1 else ():
                solvers(file, address)
    rows += measure_echo("--bare-echo", "echo", bodies, options.seconds)
    if options.ray:
        rows += measure_echo("--echo", "echo, Ray Serve", bodies, options.seconds)
        stop = [sys.executable, "-m", "ray.scripts.scripts", "stop", "--force"]
        subprocess.run(stop, capture_output=True, check=False)
    if options.out is not None:
        pd.DataFrame(rows).to_csv(options.out, index=False, float_format="%.5g")


@contextlib.contextmanager
def service(replicas: int, max_waiting: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Address and process of a service with GEANT."""
    from teal.client import Client, ServiceFault

    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        command = [sys.executable, "-m", "teal", "serve", "--port", str(port), "--state", folder]
        command += ["--max-waiting", str(max_waiting), "--replicas", str(replicas)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        address = f"http://127.0.0.1:{port}"
        with Client(address, timeout_s=600) as client:
            while True:
                try:
                    client.put_network("geant", "topohub:sndlib/geant")
                    break
                except ServiceFault:
                    if process.poll() is not None:
                        raise SystemExit(f"teal serve ended with {process.returncode}") from None
                    time.sleep(0.1)
            client.wait_ready("geant")
        yield address, process
        process.send_signal(signal.SIGTERM)
        process.wait()


def measure_echo(
    option: str, name: str, bodies: list[bytes], seconds: float
) -> list[dict[str, Any]]:
    """Start an echo and measure it, as :func:`measure` does."""
    import httpx

    port = free_port()
    size = 462 * 4 * 4 + 72 * 4 + 2000
    process = subprocess.Popen([sys.executable, __file__, option, str(port), str(size)])
    while True:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200:
                break
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    rows = measure(name, f"http://127.0.0.1:{port}/echo", bodies, seconds)
    process.kill()
    return rows


if __name__ == "__main__":
    main()
