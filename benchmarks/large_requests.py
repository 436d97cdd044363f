"""Small requests beside a request that asks for much: does each get its answer by its deadline and
a slice?

    python benchmarks/large_requests.py --data FOLDER [--requests 500] [--large max_min,protect,...] [--deadline-ms 300]

FOLDER holds UsCarrier.json and Kdl.json.  A service is started on this machine; one client sends
matrices of B4 one after the other, while another client, with another token, sends one of these
again and again:

- max_min, protect, classes: UsCarrier under that option, to a gap of 1e-9 with a deadline of 60 s;
- named: 20,000 demands of UsCarrier, answered in JSON by name;
- batch: 256 matrices of UsCarrier to a gap of 1e-6;
- paths: Kdl is registered and deleted again and again, each time with other settings;
- measurements: matrices of UsCarrier, one after the other, each of which begins an allocation for
  the next interval;
- counters: of UsCarrier, half of which contradict the others, on 16 connections;
- next: allocations for the next interval of UsCarrier, each after a change of a link;
- patch: a change of half of UsCarrier's links.

Printed are the large request, how many small requests were answered, refused (503) and late (beyond
deadline and slice), the quantiles of the time to answer, ms, and the longest time of a change of a
link of B4, of an allocation for its next interval and of /healthz, one of each after every tenth
request, which count as late in the same way.  "alone" has no large request.  Exit code 1: some
request was late.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from public_data import published
from service import arrow, free_port

import teal

SLICE_MS = 500.0
CONNECTIONS = {"counters": 16}  # of a large request, where it is more than one
SMALL_EVERY = 10  # requests between two changes of a link, next intervals and /healthz
BEGIN = int(time.time()) - 86_400  # seconds since 1970 of the first matrix that is measured
ARROW = "application/vnd.apache.arrow.stream"
TOKENS = "a-token-for-small-requests", "a-token-for-large-requests"
START_S = 120.0  # that the service and the paths of UsCarrier may take


@contextlib.contextmanager
def running() -> Iterator[str]:
    """The address of a service with two tokens."""
    with tempfile.TemporaryDirectory() as folder:
        tokens = Path(folder) / "tokens"
        port = free_port()
        tokens.write_text("\n".join(TOKENS) + "\n")
        tokens.chmod(0o600)
        command = [
            sys.executable,
            "-m",
            "teal",
            "serve",
            "--port",
            str(port),
            "--token-file",
            str(tokens),
        ]
        process = subprocess.Popen(
            [*command, "--state", f"{folder}/state"], stdout=subprocess.DEVNULL
        )
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def client(url: str, token: str) -> httpx.Client:
    """A client with one of the tokens."""
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=300.0)


def register(http: httpx.Client, name: str, body: dict[str, Any]) -> dict[str, Any]:
    """Register a network and wait until it is ready; its description."""
    end = time.monotonic() + START_S
    while True:
        with contextlib.suppress(httpx.TransportError):  # the service is not there yet
            http.put(f"/v1/networks/{name}", json=body)
            break
        time.sleep(0.2)
    while (info := http.get(f"/v1/networks/{name}").json())["state"] != "ready":
        assert time.monotonic() < end, info
        time.sleep(0.2)
    return dict(info)


def node_link(file: Path) -> dict[str, Any]:
    """A network as the service takes it."""
    from teal.formats.node_link import topology_to_node_link

    return dict(topology_to_node_link(teal.load_topology(str(file))))


def moment(number: int) -> str:
    """A time of a measurement, the later the larger the number."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(BEGIN + 60 * number))


def large_requests(
    http: httpx.Client, data: Path, info: dict[str, Any]
) -> dict[str, Callable[[int], Any]]:
    """Of each large request, what its client does again and again; called with the number of the
    time.
    """
    nodes = [node["id"] for node in info["nodes"]]
    links = info["links"]
    pairs = len(nodes) * (len(nodes) - 1)
    rates = np.random.default_rng(0).lognormal(0, 1, (256, pairs)) * 0.2
    kdl = node_link(published(data, "Kdl.json"))
    names = [(a, b) for a in nodes for b in nodes if a != b]
    headers = {"Content-Type": ARROW, "Accept": ARROW}
    payload = arrow(rates[:1])
    classes = arrow(np.repeat(rates[:1], 3, axis=0) * np.array([[0.1], [0.3], [0.6]]))

    def allocate(options: str, body: bytes) -> Callable[[int], Any]:
        address = f"/v1/networks/us/allocations?deadline_ms=60000&{options}"
        return lambda _: http.post(address, content=body, headers=headers)

    def named(number: int) -> None:
        demands = [
            {"source": a, "target": b, "rate": float(rates[number % 256, d])}
            for d, (a, b) in enumerate(names[:20_000])
        ]
        http.post("/v1/networks/us/allocations", json={"demands": demands, "gap": 0.05})

    def paths(number: int) -> None:
        spec = {
            "topology": kdl,
            "num_paths": 2 + number % 3,
            "path_method": ("edge-disjoint", "yen")[number % 2],
        }
        http.put("/v1/networks/kdl", json=spec)
        time.sleep(5.0)
        http.delete("/v1/networks/kdl")

    def measure(number: int) -> None:
        body = arrow(rates[number % 256 : number % 256 + 1])
        address = f"/v1/networks/us/measurements?time={moment(number)}"
        http.post(address, content=body, headers={"Content-Type": ARROW})

    def counters(number: int) -> None:
        rng = np.random.default_rng(number)
        sent_rate = rng.uniform(10, 20, len(links))
        factor = rng.choice([0.2, 1.0], len(links))
        border = rng.uniform(5, 9, len(nodes))
        of_links = [
            {
                "source": link["source"],
                "target": link["target"],
                "sent": sent_rate[e],
                "received": sent_rate[e] * factor[e],
            }
            for e, link in enumerate(links)
        ]
        of_nodes = [
            {"node": node, "ingress": border[n], "egress": border[n]}
            for n, node in enumerate(nodes)
        ]
        body = {"time": moment(number), "counters": {"links": of_links, "nodes": of_nodes}}
        http.post("/v1/networks/us/measurements", json=body)

    def change(number: int) -> None:
        ends = {tuple(sorted((link["source"], link["target"]))) for link in links}
        changes = [
            {"source": a, "target": b, "capacity": 10.0 + number % 2} for a, b in sorted(ends)[::2]
        ]
        http.patch("/v1/networks/us/links", json={"links": changes})

    def ask_next(number: int) -> None:
        if number == 0:
            measure(0)
        payload = {
            "source": links[0]["source"],
            "target": links[0]["target"],
            "capacity": 10.0 + number % 2,
        }
        http.patch("/v1/networks/us/links", json={"links": [payload]})
        body = {"for": "next", "deadline_ms": 60_000, "form": "dense"}
        http.post("/v1/networks/us/allocations", json=body, headers={"Accept": ARROW})

    return {
        "max_min": allocate("objective=max_min&gap=1e-9", payload),
        "protect": allocate("protect=cables&gap=1e-9", payload),
        "classes": allocate("classes=gold,silver,bronze&gap=1e-9", classes),
        "named": named,
        "batch": allocate("gap=1e-6", arrow(rates)),
        "paths": paths,
        "measurements": measure,
        "counters": counters,
        "next": ask_next,
        "patch": change,
    }


def small_requests(
    url: str, count: int, deadline_ms: float
) -> tuple[list[float], int, dict[str, list[float]]]:
    """Times to answer of the requests that were answered, ms, how many were refused, and times of
    other requests.
    """
    times = []
    refused = 0
    other_times: dict[str, list[float]] = {"patch": [], "next": [], "healthz": []}
    bodies = [
        arrow(np.random.default_rng(seed).lognormal(0, 1, (1, 132)) * 100) for seed in range(20)
    ]
    headers = {"Content-Type": ARROW, "Accept": ARROW}

    def took(call: Callable[[], httpx.Response]) -> tuple[float, httpx.Response]:
        begin = time.perf_counter()
        response = call()
        return 1e3 * (time.perf_counter() - begin), response

    with client(url, TOKENS[0]) as http:
        for number in range(count):
            address = f"/v1/networks/b4/allocations?deadline_ms={deadline_ms}"
            ms, response = took(
                lambda n=number, a=address: http.post(a, content=bodies[n % 20], headers=headers)  # type: ignore[misc]
            )
            if response.status_code == 503:
                refused += 1
            else:
                assert response.status_code == 200, response.text
                times.append(ms)
            if number % SMALL_EVERY == 0:
                change = {
                    "links": [{"source": "1", "target": "2", "capacity": 5000.0 + number % 3}]
                }
                body = {"for": "next", "deadline_ms": deadline_ms}
                for name, (ms, response) in {
                    "patch": took(lambda c=change: http.patch("/v1/networks/b4/links", json=c)),  # type: ignore[misc]
                    "next": took(lambda b=body: http.post("/v1/networks/b4/allocations", json=b)),  # type: ignore[misc]
                    "healthz": took(lambda: http.get("/healthz")),
                }.items():
                    assert response.status_code == 200, response.text
                    other_times[name].append(ms)
            time.sleep(0.02)
    return times, refused, other_times


def main() -> int:
    """Print a line for each large request; 1 if a request was late."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of the files that data/README.md names"
    )
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--deadline-ms", type=float, default=300.0)
    parser.add_argument("--large", default="")
    options = parser.parse_args()
    all_late = 0
    with running() as url, client(url, TOKENS[1]) as http:
        register(http, "b4", {"topology": "b4"})
        info = register(
            http, "us", {"topology": node_link(published(options.data, "UsCarrier.json"))}
        )
        works = large_requests(http, options.data, info)
        http.post(
            f"/v1/networks/b4/measurements?time={moment(0)}",
            content=arrow(np.full((1, 132), 50.0)),
            headers={"Content-Type": ARROW},
        ).raise_for_status()
        chosen = options.large.split(",") if options.large else ["alone", *works]
        print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        print(
            f"{'beside':13} answered refused late   p50   p99   max ms; patch  next healthz, longest"
        )
        for name in chosen:
            ended = threading.Event()
            connections = CONNECTIONS.get(name, 1)

            def work(
                first: int,
                name: str = name,
                ended: threading.Event = ended,
                step: int = connections,
            ) -> None:
                number = first
                while not ended.is_set() and name != "alone":
                    with contextlib.suppress(httpx.TransportError):
                        works[name](number)
                    number += step

            threads = [
                threading.Thread(target=work, args=(first,), daemon=True)
                for first in range(connections)
            ]
            for thread in threads:
                thread.start()
            time.sleep(1.0)
            times, refused, other_times = small_requests(url, options.requests, options.deadline_ms)
            late = sum(
                took > options.deadline_ms + SLICE_MS
                for took in itertools.chain(times, *other_times.values())
            )
            all_late += late
            p50, p99, slowest = np.quantile(times or [np.nan], [0.5, 0.99, 1.0])
            print(
                f"{name:13} {len(times):8} {refused:7} {late:4} {p50:5.0f} {p99:5.0f} {slowest:5.0f}",
                end="",
            )
            print(
                "; "
                + " ".join(
                    f"{max(other_times[kind]):5.0f}" for kind in ("patch", "next", "healthz")
                ),
                flush=True,
            )
            ended.set()
            for thread in threads:
                thread.join(timeout=70.0)
    return int(all_late > 0)


if __name__ == "__main__":
    sys.exit(main())
