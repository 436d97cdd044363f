"""Measure the service's answers to small requests during one large request, and its memory over
many requests.

    python benchmarks/service_hogs.py --csv runs/hogs.csv
    python benchmarks/service_hogs.py --requests 10000 --csv runs/memory.csv

The first command prints, for each large request, its status, its seconds, and the longest answer to
/healthz and to GET of another network in this time.  The second one prints the memory of the
service after each tenth of the requests: allocations, and every tenth a measured matrix.
"""

from __future__ import annotations

import argparse
import csv
import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from service import arrow, resident, service

JSON = {"Content-Type": "application/json"}
ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}
SMALL = ("/healthz", "/v1/networks/geant")
RING = 20_000  # nodes of the ring
DENSE = 600  # nodes of the dense network
NEIGHBOURS = 109  # links that leave each node of the dense network

# Sends a request, and returns the status of its response.
Answer = Callable[[httpx.Client], int]


def json_request(method: str, path: str, value: Any) -> Answer:
    """Return a function that sends a request with a JSON body and returns the response's status.

    Args:
        method: HTTP method.
        path: path of the request.
        value: body, converted to JSON once, here.
    """
    body = json.dumps(value, separators=(",", ":")).encode()
    return lambda client: client.request(method, path, content=body, headers=JSON).status_code


def large_requests(link: tuple[str, str]) -> dict[str, Answer]:
    """Return the large requests, by their description.

    Args:
        link: source and target of a link of geant.
    """
    change = {"source": link[0], "target": link[1]}
    demand = {**change, "rate": 1}
    # Links of a ring, and of a network in which each node has links to the next 109.
    ring = [{"source": str(i), "target": str((i + 1) % RING), "capacity": 1} for i in range(RING)]
    dense = [
        {"source": str(i), "target": str((i + j) % DENSE), "capacity": 1}
        for i in range(DENSE)
        for j in range(1, NEIGHBOURS + 1)
    ]
    # Many changes of one link, large networks, and many demands, valid and invalid.
    networks = "/v1/networks"
    links = "/v1/networks/geant/links"
    allocations = "/v1/networks/geant/allocations"
    return {
        "PATCH of 80,000 changes": json_request(
            "PATCH", links, {"links": [{**change, "up": i % 2 == 0} for i in range(80_000)]}
        ),
        "PATCH of 80,000, one unknown": json_request(
            "PATCH",
            links,
            {"links": [{**change, "up": True}] * 79_999 + [{**change, "source": "?", "up": True}]},
        ),
        "PUT of 20,000 nodes": json_request(
            "PUT",
            f"{networks}/ring",
            {
                "num_paths": 1,
                "topology": {"nodes": [{"id": str(i)} for i in range(RING)], "links": ring},
            },
        ),
        "PUT of 65,400 links": json_request(
            "PUT",
            f"{networks}/dense",
            {
                "num_paths": 1,
                "topology": {
                    "directed": True,
                    "nodes": [{"id": str(i)} for i in range(DENSE)],
                    "links": dense,
                },
            },
        ),
        "POST of 80,000 demands": json_request("POST", allocations, {"demands": [demand] * 80_000}),
        "POST of 1,000,000 wrong demands": json_request(
            "POST", allocations, {"demands": [[]] * 1_000_000}
        ),
    }


def measure_during(address: str, send_large_request: Answer) -> tuple[int, float, dict[str, float]]:
    """Send a large request while two threads repeat small ones.

    Args:
        address: address of the service.
        send_large_request: sends the large request.

    Returns:
        status and time (s) of the large request, and the longest time (s) of each small request in
        the meantime, by its path.
    """
    times: dict[str, list[float]] = {path: [] for path in SMALL}
    is_over = threading.Event()

    # Repeats a small request, with pauses of 5 ms, until the large one is answered.
    def repeat_small_request(path: str) -> None:
        with httpx.Client(base_url=address, timeout=120) as client:
            while not is_over.is_set():
                begin = time.perf_counter()
                client.get(path)
                times[path].append(time.perf_counter() - begin)
                time.sleep(0.005)

    threads = [threading.Thread(target=repeat_small_request, args=(path,)) for path in SMALL]
    for thread in threads:
        thread.start()
    # Discard the first small requests, which connect.
    time.sleep(0.3)
    for path_times in times.values():
        path_times.clear()
    begin = time.perf_counter()
    with httpx.Client(base_url=address, timeout=120) as client:
        status = send_large_request(client)
    seconds = time.perf_counter() - begin
    time.sleep(0.3)
    is_over.set()
    for thread in threads:
        thread.join()
    return status, seconds, {path: max(path_times) for path, path_times in times.items()}


def memory(address: str, requests: int, pairs: int, pid: int) -> list[tuple[int, float]]:
    """Send requests one by one; print and return the service's memory after each tenth of them.

    Args:
        address: address of the service.
        requests: number of requests, allocations of GEANT and, every tenth, a measured matrix.
        pairs: number of demands of a matrix.
        pid: process of the service.

    Returns:
        rows of the number of requests so far, and the resident memory (MiB).
    """
    rows: list[tuple[int, float]] = []
    rng = np.random.default_rng(0)
    begin = np.datetime64("now", "s") - np.timedelta64(400, "D")
    print("| requests | memory |\n|---|---|")
    with httpx.Client(base_url=address, timeout=120) as client:
        for number in range(requests):
            body = arrow(rng.lognormal(0, 1, (1, pairs)))
            path = "/v1/networks/geant/allocations"
            if number % 10 == 9:
                path = f"/v1/networks/geant/measurements?time={begin + np.timedelta64(30 * number, 's')}Z"
            client.post(path, content=body, headers=ARROW).raise_for_status()
            if (number + 1) % (requests // 10) == 0:
                mib = resident(pid)
                rows.append((number + 1, round(mib)))
                print(f"| {number + 1:,} | {mib:.0f} MiB |", flush=True)
    return rows


def write(file: Path | None, rows: Sequence[tuple[object, ...]]) -> None:
    """Write rows to a CSV file; do nothing if ``file`` is None."""
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(rows)


def main() -> None:
    """Start the service; measure its memory with --requests, else the effect of large requests."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--requests", type=int, default=0, help="measure the memory over so many requests"
    )
    parser.add_argument("--csv", type=Path, help="file of the table, in seconds or MiB")
    options = parser.parse_args()
    import teal
    from teal.network import all_pairs

    topology = teal.load_topology("topohub:sndlib/geant")
    # One engine, and at most 256 waiting requests.
    with service(1, 256) as (address, process):
        if options.requests:
            used = memory(address, options.requests, len(all_pairs(topology)), process.pid)
            write(options.csv, [("requests", "mib"), *used])
            return
        ends = (
            topology.node_names[topology.link_source[0]],
            topology.node_names[topology.link_target[0]],
        )
        # Each large request with the small ones.
        rows = []
        print(
            "| request | status | seconds | /healthz, longest | GET, longest |\n" + 5 * "|---" + "|"
        )
        for name, send_large_request in large_requests(ends).items():
            status, seconds, longest = measure_during(address, send_large_request)
            cells = [f"{1e3 * longest[path]:.0f} ms" for path in SMALL]
            print(f"| {name} | {status} | {seconds:.2f} | {' | '.join(cells)} |", flush=True)
            rows.append(
                (name, status, f"{seconds:.3g}", *(f"{longest[path]:.3g}" for path in SMALL))
            )
        write(options.csv, [("request", "status", "seconds", "health_s", "get_s"), *rows])


if __name__ == "__main__":
    main()
