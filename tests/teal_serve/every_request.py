"""Send requests of every kind to a service in this process, and print a line for each kernel that
they compile.

    python -m tests.teal_serve.every_request STATE_FOLDER NETWORK[:few] ...

Kinds are those of :mod:`teal_serve.engine.request_kinds`; of a network with ``:few``, each program
alone, in a batch and under each side condition.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

import teal
from teal.problem.offers import CONDITIONS_BY_OPTION
from teal.runtime import kernel_cache
from teal_serve.engine.engine import AllocationEngine
from teal_serve.engine.kernels import KernelStatus
from teal_serve.engine.request_kinds import AllocationKind, allocation_kinds, examples
from teal_serve.engine.requests import NetworkSpec
from teal_serve.http.app import make_app

ARROW = "application/vnd.apache.arrow.stream"
DEADLINE_MS = 60_000.0
FEW_DEADLINE_MS = 500.0  # larger networks: a search may end early, since it compiles no more then
LOAD = 4.0
MEASURED = 3  # matrices of a measurement
HISTORY = 20  # matrices that a check of counters needs
NETWORK = "network"
AT = f"/v1/networks/{NETWORK}"
PATIENCE_S = 300.0


class Compilations(kernel_cache.Announcer):
    """Prints what is compiled, and for which request.

    Attributes:
        doing: what is being done.
    """

    def __init__(self) -> None:
        self.doing = "start"

    def begins(self, name: str) -> None:
        sys.stdout.write(f"{name}: {self.doing}\n")


class Sender:
    """Sends requests to one service.

    Args:
        client: client of the service.
        solver: solver of the service.
        compilations: is told what is being done.
        topology: specification of the network.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        solver: AllocationEngine,
        compilations: Compilations,
        topology: str,
    ) -> None:
        self._client, self._solver = client, solver
        self._compilations, self._source = compilations, topology
        self.topology = teal.load_topology(topology)
        traffic = teal.load_traffic(f"gravity:seed=3,count=20,load={LOAD}", self.topology)
        self.rates = traffic.read(slice(None))

    async def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request, whatever the answer: options that do not go together are refused."""
        text = {k: v for k, v in options.get("json", {}).items() if k not in ("rates", "counters")}
        self._compilations.doing = f"{self._source} {method} {path} {text}"
        return await self._client.request(method, path, **options)

    async def register(self, **spec: Any) -> None:
        """Register the network, and wait for its paths."""
        put = await self.send("PUT", AT, json={"topology": self._source, **spec})
        assert put.status_code in (200, 201), put.text[:200]
        async with asyncio.timeout(PATIENCE_S):
            while (await self._client.get(AT)).json()["state"] == "computing":
                await asyncio.sleep(0.02)
        info = (await self._client.get(AT)).json()
        assert info["state"] == "ready", (spec, info.get("error"))

    async def allocate(self, kind: AllocationKind, deadline_ms: float = DEADLINE_MS) -> int:
        """Ask for an allocation of a kind; its status."""
        rates = self.rates[: kind.num_matrices].repeat(kind.num_classes, axis=0) / kind.num_classes
        body = {"deadline_ms": deadline_ms, **kind.options, "rates": rates.tolist()}
        query = ""
        if kind.needs_previous:
            plain = {
                name: value for name, value in body.items() if name not in CONDITIONS_BY_OPTION
            }
            first = await self.send("POST", f"{AT}/allocations", json=plain)
            if first.status_code != 200:
                return first.status_code
            query = f"?previous={first.headers['x-request-id']}"
        headers = {"accept": ARROW} if rates.size > 10_000 else {}
        sent = await self.send("POST", f"{AT}/allocations{query}", json=body, headers=headers)
        return sent.status_code

    async def change_links(self) -> None:
        """Change links in every way; paths then grow in the background."""
        names, topology = self.topology.node_names, self.topology
        changes: tuple[dict[str, Any], ...] = (
            {"up": False},
            {"capacity": 1.0},
            {"capacity": 0.0, "both": False},
        )
        for link, change in enumerate(changes):
            ends = {
                "source": names[topology.link_source[link]],
                "target": names[topology.link_target[link]],
            }
            body = {"links": [{**ends, **change}]}
            assert (await self.send("PATCH", f"{AT}/links", json=body)).status_code == 200

    async def settle(self) -> None:
        """Wait until no paths are being added."""
        self._compilations.doing = f"{self._source} added paths"
        async with asyncio.timeout(PATIENCE_S):
            while self._solver._path_growth._tasks:
                await asyncio.sleep(0.02)

    async def measure(self) -> None:
        """Send measured matrices and counters, and ask for the next interval after each."""
        count = max(HISTORY, MEASURED)
        time = "2026-01-01T00:00:00Z"
        body = {"time": time, "interval_s": 300, "rates": self.rates[:count].tolist()}
        sent = await self.send("POST", f"{AT}/measurements", json=body)
        assert sent.status_code == 200, sent.text[:200]
        following = {"for": "next", "deadline_ms": DEADLINE_MS}
        assert (await self.send("POST", f"{AT}/allocations", json=following)).status_code == 200
        for hour, options in enumerate(({}, {"routing": "allocation"}, {"routing": "igp"}), 2):
            counted = {"time": f"2026-01-01T{hour:02}:00:00Z", "deadline_ms": DEADLINE_MS}
            counted["counters"] = {**self._counters(), **options}
            if hour == 4:  # a matrix that is checked against them
                counted["rates"] = self.rates[:1].tolist()
            sent = await self.send("POST", f"{AT}/measurements", json=counted)
            assert sent.status_code == 200, sent.text[:200]
            assert (await self.send("POST", f"{AT}/allocations", json=following)).status_code == 200

    def _counters(self) -> dict[str, Any]:
        """Counters of which no node sees any traffic but its own."""
        names, topology = self.topology.node_names, self.topology
        links = [
            {"source": names[s], "target": names[t], "sent": 1.0, "received": 1.0}
            for s, t in zip(topology.link_source, topology.link_target, strict=True)
        ]
        return {
            "links": links,
            "nodes": [{"node": n, "ingress": 2.0, "egress": 2.0} for n in names],
        }


def few_kinds() -> Iterator[AllocationKind]:
    """Each program alone, in a batch, and under each side condition."""
    for kind in allocation_kinds():
        others = set(kind.options) - {"objective", "classes", "latency_limits_ms"}
        if kind.num_matrices <= 2 and others <= set(CONDITIONS_BY_OPTION):
            yield kind


def specs(topology: teal.Topology) -> Iterator[dict[str, Any]]:
    """Registrations with every value of every setting, all with the data that settings need."""
    a, b = (topology.node_names[ends[0]] for ends in (topology.link_source, topology.link_target))
    data = {
        "weights": [{"source": a, "target": b, "weight": 3.0}],
        "functions": [{"shares": [(0.5, 2.0), (1.0, 3.0)]}],
        "groups": {"group": [(a, b)]},
    }
    yield data
    for name, values in examples(NetworkSpec).items():
        for value in values:
            yield {**data, name: value}


async def send_all(folder: Path, networks: list[str]) -> None:
    """Send every kind of request to each network."""
    compilations = Compilations()
    with kernel_cache.announcing(compilations):
        # The whole of a service's start, with the model that it starts with.
        solver = AllocationEngine(folder, kernels=KernelStatus(), model="auto", grow_every_s=0.0)
        solver.prepare()
        solver.kernels.finish()
        transport = httpx.ASGITransport(make_app(solver, max_bytes=64 << 20))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://test", timeout=PATIENCE_S
        ) as client:
            for network in networks:
                topology, is_few = network.removesuffix(":few"), network.endswith(":few")
                await _send_to(Sender(client, solver, compilations, topology), is_few=is_few)


async def _send_to(sender: Sender, *, is_few: bool) -> None:
    registrations = list(specs(sender.topology))
    if not is_few:
        for spec in registrations[1:]:
            await sender.register(**spec)
            await sender.allocate(AllocationKind({}))
    await sender.register(**registrations[0])
    answered = set()
    for kind in few_kinds() if is_few else allocation_kinds():
        if await sender.allocate(kind, FEW_DEADLINE_MS if is_few else DEADLINE_MS) == 200:
            answered |= {(name, str(value)) for name, value in kind.options.items()}
    await sender.change_links()
    for kind in few_kinds():
        if len(kind.options) == 1 and kind.num_matrices == 1:
            await sender.allocate(kind, FEW_DEADLINE_MS)
    await sender.settle()
    for path in ("allocations", "paths", "map"):
        assert (await sender.send("GET", f"{AT}/{path}")).status_code == 200
    if is_few:
        return
    await sender.measure()
    expected = {(n, str(v)) for kind in allocation_kinds() for n, v in kind.options.items()}
    assert answered == expected, f"never answered: {expected - answered}"


if __name__ == "__main__":
    asyncio.run(send_all(Path(sys.argv[1]), sys.argv[2:]))
