"""Send small requests while a large one is repeated: is each small request answered within its
deadline and 500 ms (SLICE_MS)?

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

# A small request is late if it takes longer than its deadline by more than this: the time for which
# the service may compute for the large request before it turns to the small one.
SLICE_MS = 500.0
CONNECTIONS = {"counters": 16}  # of a large request, where it is more than one
SMALL_EVERY = 10  # requests between two changes of a link, next intervals and /healthz
BEGIN = int(time.time()) - 86_400  # seconds since 1970 of the first matrix that is measured
ARROW = "application/vnd.apache.arrow.stream"
TOKENS = "a-token-for-small-requests", "a-token-for-large-requests"
START_S = 900.0  # limit for the start of the service, with the compilation of its kernels


@contextlib.contextmanager
def run_service() -> Iterator[str]:
    """Run `teal serve` with the two tokens during the block; yield its address."""
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
    """Return an HTTP client of the service at ``url`` that sends this token."""
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=300.0)


def register(http: httpx.Client, name: str, body: dict[str, Any]) -> dict[str, Any]:
    """Register a network and wait until it is ready.

    Args:
        http: client of the service.
        name: name under which the service registers the network.
        body: request in JSON, with the topology.

    Returns:
        the service's description of the network.
    """
    end = time.monotonic() + START_S
    while True:
        # Before the service listens, the request fails.
        with contextlib.suppress(httpx.TransportError):
            http.put(f"/v1/networks/{name}", json=body)
            break
        time.sleep(0.2)
    while (info := http.get(f"/v1/networks/{name}").json())["state"] != "ready":
        assert time.monotonic() < end, info
        time.sleep(0.2)
    return dict(info)


def node_link(file: Path) -> dict[str, Any]:
    """Return the network of a file as node-link JSON, which the service accepts."""
    from teal.formats.node_link import topology_to_node_link

    return dict(topology_to_node_link(teal.load_topology(str(file))))


def measurement_time(number: int) -> str:
    """Return the time of measurement ``number``, one a minute, in ISO 8601 (UTC)."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(BEGIN + 60 * number))


class LargeRequests:
    """Sends the large requests, most of them to UsCarrier, which is registered as "us".

    Args:
        http: client of the service.
        data: folder of the published files.
        info: the service's description of the network.
    """

    def __init__(self, http: httpx.Client, data: Path, info: dict[str, Any]) -> None:
        self._http = http
        self._nodes = [node["id"] for node in info["nodes"]]
        self._links = info["links"]
        self._pairs = [(a, b) for a in self._nodes for b in self._nodes if a != b]
        rng = np.random.default_rng(0)
        # Demands of 256 matrices, (256, D) Gbit/s, log-normal with median 0.2.
        self._rates = rng.lognormal(0, 1, (256, len(self._pairs))) * 0.2
        self._kdl = node_link(published(data, "Kdl.json"))

    def by_name(self) -> dict[str, Callable[[int], None]]:
        """Return, by the name of a large request, the function that sends it once.

        The function is called with the number of the repetition, from 0.
        """
        first = self._rates[:1]
        # 10, 30 and 60% of the demand in three priority classes.
        by_class = np.repeat(first, 3, axis=0) * np.array([[0.1], [0.3], [0.6]])
        return {
            "max_min": self._allocation("objective=max_min&gap=1e-9", arrow(first)),
            "protect": self._allocation("protect=cables&gap=1e-9", arrow(first)),
            "classes": self._allocation("classes=gold,silver,bronze&gap=1e-9", arrow(by_class)),
            "named": self._allocate_by_name,
            "batch": self._allocation("gap=1e-6", arrow(self._rates)),
            "paths": self._replace_network,
            "measurements": self._measure,
            "counters": self._send_counters,
            "next": self._allocate_next_interval,
            "patch": self._change_links,
        }

    def _allocation(self, options: str, body: bytes) -> Callable[[int], None]:
        """Return a function that requests allocations in Arrow's format.

        Args:
            options: query of the request's address.
            body: matrices in Arrow's format.
        """
        address = f"/v1/networks/us/allocations?deadline_ms=60000&{options}"
        headers = {"Content-Type": ARROW, "Accept": ARROW}

        def send(_: int) -> None:
            self._http.post(address, content=body, headers=headers)

        return send

    def _allocate_by_name(self, number: int) -> None:
        """Request an allocation of 20,000 demands in JSON, with the names of their nodes."""
        rates = self._rates[number % 256]
        demands = [
            {"source": a, "target": b, "rate": float(rate)}
            for (a, b), rate in zip(self._pairs[:20_000], rates[:20_000], strict=True)
        ]
        self._http.post("/v1/networks/us/allocations", json={"demands": demands, "gap": 0.05})

    def _replace_network(self, number: int) -> None:
        """Register Kdl with path settings that change at every call; delete it 5 s later."""
        body = {
            "topology": self._kdl,
            "num_paths": 2 + number % 3,
            "path_method": ("edge-disjoint", "yen")[number % 2],
        }
        self._http.put("/v1/networks/kdl", json=body)
        time.sleep(5.0)
        self._http.delete("/v1/networks/kdl")

    def _measure(self, number: int) -> None:
        """Send a measured matrix, after which the service allocates for the next interval."""
        row = number % 256
        address = f"/v1/networks/us/measurements?time={measurement_time(number)}"
        body = arrow(self._rates[row : row + 1])
        self._http.post(address, content=body, headers={"Content-Type": ARROW})

    def _send_counters(self, number: int) -> None:
        """Send counters of all links; half of the links receive a fifth of what is sent on them."""
        rng = np.random.default_rng(number)
        sent_rates = rng.uniform(10, 20, len(self._links))
        received_rates = sent_rates * rng.choice([0.2, 1.0], len(self._links))
        border_rates = rng.uniform(5, 9, len(self._nodes))
        links = [
            {
                "source": link["source"],
                "target": link["target"],
                "sent": sent_rates[e],
                "received": received_rates[e],
            }
            for e, link in enumerate(self._links)
        ]
        nodes = [
            {"node": node, "ingress": border_rates[n], "egress": border_rates[n]}
            for n, node in enumerate(self._nodes)
        ]
        body = {"time": measurement_time(number), "counters": {"links": links, "nodes": nodes}}
        self._http.post("/v1/networks/us/measurements", json=body)

    def _change_links(self, number: int) -> None:
        """Change the capacities of half of the cables."""
        cables = {tuple(sorted((link["source"], link["target"]))) for link in self._links}
        changes = [
            {"source": a, "target": b, "capacity": 10.0 + number % 2}
            for a, b in sorted(cables)[::2]
        ]
        self._http.patch("/v1/networks/us/links", json={"links": changes})

    def _allocate_next_interval(self, number: int) -> None:
        """Change the capacity of a link, and request an allocation for the next interval."""
        # A forecast needs a measured matrix.
        if number == 0:
            self._measure(0)
        change = {
            "source": self._links[0]["source"],
            "target": self._links[0]["target"],
            "capacity": 10.0 + number % 2,
        }
        self._http.patch("/v1/networks/us/links", json={"links": [change]})
        body = {"for": "next", "deadline_ms": 60_000, "form": "dense"}
        self._http.post("/v1/networks/us/allocations", json=body, headers={"Accept": ARROW})


@contextlib.contextmanager
def repeat_in_background(send: Callable[[int], None] | None, connections: int) -> Iterator[None]:
    """Repeat a large request in background threads during the block.

    Args:
        send: sends the request; its argument is the number of the repetition.  None sends nothing.
        connections: number of threads, which send at the same time.
    """
    is_over = threading.Event()

    # One connection: repetitions first, first + connections, ... until the block ends.
    def send_until_over(first: int) -> None:
        for number in itertools.count(first, connections):
            if is_over.is_set() or send is None:
                return
            with contextlib.suppress(httpx.TransportError):
                send(number)

    threads = [
        threading.Thread(target=send_until_over, args=(first,), daemon=True)
        for first in range(connections)
    ]
    for thread in threads:
        thread.start()
    # The requests are under way when the block begins.
    time.sleep(1.0)
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join(timeout=70.0)


def small_requests(
    url: str, count: int, deadline_ms: float
) -> tuple[list[float], int, dict[str, list[float]]]:
    """Send small requests for B4, one after the other, and time their answers.

    Args:
        url: address of the service.
        count: number of allocations.
        deadline_ms: deadline of each request, ms.

    Returns:
        the times of the answered allocations, ms; the number of those refused with status 503; and
        the times of link changes ("patch"), allocations for the next interval ("next") and health
        checks ("healthz"), ms.
    """
    times = []
    refused = 0
    other_times: dict[str, list[float]] = {"patch": [], "next": [], "healthz": []}
    # 20 random matrices of B4's 132 demands.
    bodies = [
        arrow(np.random.default_rng(seed).lognormal(0, 1, (1, 132)) * 100) for seed in range(20)
    ]
    headers = {"Content-Type": ARROW, "Accept": ARROW}

    def timed(call: Callable[[], httpx.Response]) -> tuple[float, httpx.Response]:
        begin = time.perf_counter()
        response = call()
        return 1e3 * (time.perf_counter() - begin), response

    with client(url, TOKENS[0]) as http:
        for number in range(count):
            address = f"/v1/networks/b4/allocations?deadline_ms={deadline_ms}"
            ms, response = timed(
                lambda n=number, a=address: http.post(a, content=bodies[n % 20], headers=headers)  # type: ignore[misc]
            )
            if response.status_code == 503:
                refused += 1
            else:
                assert response.status_code == 200, response.text
                times.append(ms)
            # One request of each other kind after every tenth allocation.
            if number % SMALL_EVERY == 0:
                change = {
                    "links": [{"source": "1", "target": "2", "capacity": 5000.0 + number % 3}]
                }
                body = {"for": "next", "deadline_ms": deadline_ms}
                for name, (ms, response) in {
                    "patch": timed(lambda c=change: http.patch("/v1/networks/b4/links", json=c)),  # type: ignore[misc]
                    "next": timed(lambda b=body: http.post("/v1/networks/b4/allocations", json=b)),  # type: ignore[misc]
                    "healthz": timed(lambda: http.get("/healthz")),
                }.items():
                    assert response.status_code == 200, response.text
                    other_times[name].append(ms)
            time.sleep(0.02)
    return times, refused, other_times


def start_networks(http: httpx.Client, data: Path) -> dict[str, Any]:
    """Register B4, with a first measured matrix, and UsCarrier ("us"); return the service's
    description of UsCarrier.

    Args:
        http: client of the service.
        data: folder of the published files.
    """
    register(http, "b4", {"topology": "b4"})
    topology = node_link(published(data, "UsCarrier.json"))
    info = register(http, "us", {"topology": topology})
    http.post(
        f"/v1/networks/b4/measurements?time={measurement_time(0)}",
        content=arrow(np.full((1, 132), 50.0)),
        headers={"Content-Type": ARROW},
    ).raise_for_status()
    return info


def main() -> int:
    """Measure small requests beside each large request and print a line for each; return 1 if a
    small request was late.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of the files that data/README.md names"
    )
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--deadline-ms", type=float, default=300.0)
    parser.add_argument("--large", default="")
    options = parser.parse_args()
    num_late = 0
    with run_service() as url, client(url, TOKENS[1]) as http:
        info = start_networks(http, options.data)
        senders = LargeRequests(http, options.data, info).by_name()
        request_names = options.large.split(",") if options.large else ["alone", *senders]
        print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        print(
            f"{'beside':13} answered refused late   p50   p99   max ms; patch  next healthz, longest"
        )
        for name in request_names:
            send = None if name == "alone" else senders[name]
            with repeat_in_background(send, CONNECTIONS.get(name, 1)):
                times, refused, other_times = small_requests(
                    url, options.requests, options.deadline_ms
                )
            # Beyond deadline and slice, of small requests of every kind.
            late = sum(
                ms > options.deadline_ms + SLICE_MS
                for ms in itertools.chain(times, *other_times.values())
            )
            num_late += late
            p50, p99, slowest = np.quantile(times or [np.nan], [0.5, 0.99, 1.0])
            longest = [max(other_times[kind]) for kind in ("patch", "next", "healthz")]
            print(
                f"{name:13} {len(times):8} {refused:7} {late:4} {p50:5.0f} {p99:5.0f} {slowest:5.0f}; "
                + " ".join(f"{ms:5.0f}" for ms in longest),
                flush=True,
            )
    return int(num_late > 0)


if __name__ == "__main__":
    sys.exit(main())
