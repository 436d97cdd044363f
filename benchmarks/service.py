"""Measure latency and throughput of the service under load, beside echo servers of equal response
size, and its solvers on large networks.

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
    """Return a TCP port of the local host that is free at present."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def arrow(rates: np.ndarray) -> bytes:
    """Return the body of an allocation request in Arrow's stream format.

    Args:
        rates: demands of B matrices, (B, D), Gbit/s.
    """
    import pyarrow as pa

    column = pa.FixedSizeListArray.from_arrays(pa.array(rates.reshape(-1)), rates.shape[1])
    table = pa.table({"rates": column})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


def serve_ray_echo(port: int, size: int) -> None:
    """Serve zero bytes under Ray Serve, a FastAPI ingress before one deployment, until the process
    is killed.

    Args:
        port: TCP port of the local host.
        size: length of each response, bytes.
    """
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    import ray
    from fastapi import FastAPI
    from ray import serve
    from starlette.requests import Request
    from starlette.responses import Response

    # The deployment, which answers with zero bytes.
    class Back:
        async def answer(self, body: bytes) -> bytes:
            return bytes(size)

    # The ingress, which passes each request to the deployment.
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


def serve_plain_echo(port: int, size: int) -> None:
    """Serve zero bytes by FastAPI and uvicorn in one process until the process is killed.

    Args:
        port: TCP port of the local host.
        size: length of each response, bytes.
    """
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


async def send_requests(
    url: str, bodies: list[bytes], clients: int, seconds: float
) -> tuple[list[float], int, list[bytes]]:
    """Send requests from concurrent clients, each of which posts again after every response.

    Args:
        url: address of the requests.
        bodies: Arrow bodies, which each client sends in turn.
        clients: number of concurrent clients.
        seconds: duration of the load, s.

    Returns:
        the latency of each request, s; the number of responses with a status other than 200; and
        the bodies of up to 2000 responses with status 200.
    """
    import aiohttp

    times: list[float] = []
    num_faults = 0
    bodies_received: list[bytes] = []
    headers = {"Content-Type": ARROW, "Accept": ARROW}
    end = time.perf_counter() + seconds

    # One client: sends the bodies in turn, from its own number on, until the time is over.
    async def client(session: aiohttp.ClientSession, number: int) -> None:
        nonlocal num_faults
        index = number
        while (begin := time.perf_counter()) < end:
            index += 1
            async with session.post(
                url, data=bodies[index % len(bodies)], headers=headers
            ) as response:
                body = await response.read()
                times.append(time.perf_counter() - begin)
                num_faults += response.status != 200
                if response.status == 200 and len(bodies_received) < 2000:
                    bodies_received.append(body)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(session, number) for number in range(clients)))
    return times, num_faults, bodies_received


def metadata_of(body: bytes) -> dict[str, Any]:
    """Return the JSON metadata of an allocation response in Arrow's format, such as
    ``solve_ms``.
    """
    import pyarrow as pa

    with pa.ipc.open_stream(pa.BufferReader(body)) as stream:
        metadata: dict[str, Any] = json.loads(stream.schema.metadata[b"teal"])
    return metadata


def measure(name: str, url: str, bodies: list[bytes], seconds: float) -> list[dict[str, Any]]:
    """Measure latency and rate at 1, 8 and 64 clients; print a table row for each.

    Args:
        name: name of the server in the table; "echo..." has no metadata to read.
        url: address of the requests.
        bodies: Arrow bodies of the requests.
        seconds: duration of each measurement, s.

    Returns:
        a row for each number of clients: quantiles of the latency (s), requests per s, and medians
        of the service's ``queue_ms``, ``solve_ms`` and ``batch`` (empty for an echo).
    """
    # Warm up for three seconds.
    asyncio.run(send_requests(url, bodies, 8, 3))
    rows: list[dict[str, Any]] = []
    for clients in CLIENTS:
        times, num_faults, responses = asyncio.run(send_requests(url, bodies, clients, seconds))
        p50, p99 = (float(np.quantile(times, q)) for q in (0.5, 0.99))
        rate = len(times) / seconds
        row = {"of": name, "clients": clients, "p50_s": p50, "p99_s": p99, "rate": round(rate)}
        row |= {"queue_ms": "", "solve_ms": "", "batch": ""}
        if not name.startswith("echo"):
            # Time in the queue and in the engine, and size of the batch, as the service says.
            metadata = [metadata_of(body) for body in responses]
            for figure in ("queue_ms", "solve_ms", "batch"):
                row[figure] = round(float(np.median([entry[figure] for entry in metadata])), 2)
        rows.append(row)
        latency_cells = f"{1e3 * p50:.1f} ms | {1e3 * p99:.1f} ms | {rate:.0f} | {num_faults}"
        service_cells = (
            f"{row['queue_ms'] or '-'} | {row['solve_ms'] or '-'} | {row['batch'] or '-'}"
        )
        print(f"| {name} | {clients} | {latency_cells} | {service_cells} |", flush=True)
    return rows


def measure_solvers(file: Path, address: str) -> None:
    """Print, for each solver of the service, the median time end to end, the median time in the
    engine, and the certified gap of requests of one matrix.

    For each matrix PDHG is requested first, so that it starts from the allocation of the previous
    matrix.

    Args:
        file: topology of a large network.
        address: address of the service.
    """
    import teal
    from teal_serve.client import Client

    topology = teal.load_topology(str(file))
    rates = teal.load_traffic("gravity:seed=0,count=12,load=6", topology).read(slice(None))
    with Client(address, timeout_s=600) as client:
        client.put_network("large", topology)
        client.wait_ready("large")
        # Warm up with the first matrix; the others are measured.
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
            # Total time (ms), time in the engine (ms) and certified gap (%) of each request.
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
                # Medians of total time (ms), time in the engine (ms) and gap (%).
                total_ms, engine_ms, gap = np.median(times, axis=0)
                print(
                    f"| {solver} | {total_ms:.0f} ms | {engine_ms:.0f} ms | {gap:.2f}% |",
                    flush=True,
                )


def resident(pid: int) -> float:
    """Return the resident memory of a process and its descendants, MiB; memory that several of
    them share counts for each.
    """
    import psutil

    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(member.memory_info().rss for member in family if member.is_running()) / 2**20


async def flood(url: str, body: bytes, seconds: float, pid: int) -> None:
    """Overload a service with :data:`FLOOD` clients; print its memory four times, then rate and
    latency by HTTP status.

    Args:
        url: address of the requests.
        body: Arrow body of every request.
        seconds: duration of the load, s.
        pid: process of the service.
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
        # Print the memory every quarter of the time while the clients run.
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
    """Overload the service; print its memory before, during and after, and its latency for one
    client afterwards.

    Args:
        address: address of the service.
        body: Arrow body of every request.
        seconds: duration of the overload, s.
        pid: process of the service.
    """
    url = f"{address}/v1/networks/geant/allocations"
    # Warm up with 8 clients for five seconds.
    asyncio.run(send_requests(url, [body], 8, 5))
    print(f"warm: {resident(pid):.0f} MiB\n\n| after | memory |\n|---|---|")
    asyncio.run(flood(url, body, seconds, pid))
    # Let the service settle.
    time.sleep(5)
    times, num_faults, _ = asyncio.run(send_requests(url, [body], 1, 5))
    print(
        f"afterwards: {resident(pid):.0f} MiB, p50 at one client {1e3 * np.median(times):.1f} ms, {num_faults} faults"
    )


def main() -> None:
    """Measure the service, then servers that answer at once (echoes), and write the figures; with
    --echo (Ray Serve) or --bare-echo (FastAPI) run as that server instead.
    """
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
        serve_ray_echo(*options.echo) if options.echo else serve_plain_echo(*options.bare_echo)
        return
    import teal

    # A request for each of 200 matrices of GEANT.
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
        # At most 16 requests wait under overload, so that most are rejected.
        with service(replicas, 16 if options.overload else 256) as (address, process):
            # The overload alone is measured, with one engine.
            if options.overload:
                overload(address, bodies[0], options.overload, process.pid)
                return
            name = "service" if replicas == 1 else f"service, --replicas {replicas}"
            url = f"{address}/v1/networks/geant/allocations"
            rows += measure(name, url, bodies, options.seconds)
            for file in options.large if replicas == 1 else ():
                measure_solvers(file, address)
    # The echoes, for comparison.
    rows += measure_echo("--bare-echo", "echo", bodies, options.seconds)
    if options.ray:
        rows += measure_echo("--echo", "echo, Ray Serve", bodies, options.seconds)
        stop = [sys.executable, "-m", "ray.scripts.scripts", "stop", "--force"]
        subprocess.run(stop, capture_output=True, check=False)
    if options.out is not None:
        pd.DataFrame(rows).to_csv(options.out, index=False, float_format="%.5g")


@contextlib.contextmanager
def service(replicas: int, max_waiting: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run ``teal serve`` with the network "geant" during the block.

    Args:
        replicas: number of engines.
        max_waiting: number of requests that may wait in its queue.

    Yields:
        the address and the process of the service, once GEANT is ready.
    """
    from teal_serve.client import Client, ServiceFault

    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        command = [sys.executable, "-m", "teal", "serve", "--port", str(port), "--state", folder]
        command += ["--max-waiting", str(max_waiting), "--replicas", str(replicas)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        address = f"http://127.0.0.1:{port}"
        with Client(address, timeout_s=600) as client:
            # Until the service listens; requests fail before.
            while True:
                try:
                    client.put_network("geant", "topohub:sndlib/geant")
                    break
                except ServiceFault:
                    if process.poll() is not None:
                        raise SystemExit(
                            f"teal serve ended with exit code {process.returncode} before it "
                            "was ready"
                        ) from None
                    time.sleep(0.1)
            client.wait_ready("geant")
        yield address, process
        process.send_signal(signal.SIGTERM)
        process.wait()


def measure_echo(
    option: str, name: str, bodies: list[bytes], seconds: float
) -> list[dict[str, Any]]:
    """Start an echo server, measure it at 1, 8 and 64 clients, and stop it.

    Args:
        option: option of this script that runs the echo.
        name: name of the echo in the table.
        bodies: Arrow bodies of the requests.
        seconds: duration of each measurement, s.

    Returns:
        a row of figures for each number of clients (:func:`measure`).
    """
    import httpx

    port = free_port()
    # Size of a response for GEANT in bytes: 4-byte splits of 462 demands on 4 paths and
    # utilisations of 72 links, and about 2000 bytes of metadata.
    size = 462 * 4 * 4 + 72 * 4 + 2000
    process = subprocess.Popen([sys.executable, __file__, option, str(port), str(size)])
    # Wait until it answers.
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
