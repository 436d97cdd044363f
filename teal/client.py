"""A client of the service: networks, links, allocations.  Arrow inside, errors with a type.

>>> from teal.client import Client
>>> with Client("http://127.0.0.1:8000") as service:
...     service.put_network("geant", "topohub:sndlib/geant")
...     service.wait_ready("geant")
...     allocation = service.allocate("geant", rates, gap=0.01, deadline_ms=500)
...     allocation.splits  # (B, D, K)
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import time
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

import httpx
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from teal.errors import TealError
from teal.formats.node_link import topology_to_node_link
from teal.network import Topology

ARROW = "application/vnd.apache.arrow.stream"
_FIGURES = ("value", "bound", "gap", "satisfied_demand", "max_link_utilisation")
_POLL_S = 0.1
_MARGIN_S = 30.0  # beyond a deadline, for the queue and the way
Array = npt.NDArray[Any]


class ServiceFault(TealError):
    """The service did not do what was asked.

    Attributes:
        status: of HTTP; 0 if there was no answer.
        code: the word of the service for it, such as unknown_network.
        retry_after_s: when to come back; 0 if that would not help.
    """

    def __init__(self, status: int, code: str, message: str, retry_after_s: float = 0.0) -> None:
        self.status, self.code, self.retry_after_s = status, code, retry_after_s
        super().__init__(f"{code} ({status}): {message}")


class InvalidRequest(ServiceFault):
    """What was sent is not what it must be."""


class Unauthorised(ServiceFault):
    """No token, or a wrong one."""


class UnknownNetwork(ServiceFault):
    """No network of that name."""


class NotReady(ServiceFault):
    """Its paths are still being computed."""


class Overloaded(ServiceFault):
    """Come back after ``retry_after_s``."""


class Unreachable(ServiceFault):
    """No answer at all."""


_KINDS: dict[str, type[ServiceFault]] = {
    "invalid_request": InvalidRequest,
    "unauthorised": Unauthorised,
    "unknown_network": UnknownNetwork,
    "not_ready": NotReady,
    "overloaded": Overloaded,
    "unavailable": Overloaded,
}


@dataclasses.dataclass(frozen=True, eq=False)
class ServedAllocation:
    """What the service answered, B matrices.

    Attributes:
        splits: (B, D, K) share of each demand on each of its paths; of integer ``weights`` they are weights / entries.
        weights: (B, D, K) whole numbers, if they were asked for.
        utilisation: (B, E) load / capacity.
        value, bound, gap, satisfied_demand, max_link_utilisation: (B,) certified.
        status: "gap" where it was reached, "deadline" where the best so far was taken.
        queue_ms, solve_ms: in the service; batch: matrices that were solved together.
    """

    splits: Array
    weights: Array | None
    utilisation: Array
    value: Array
    bound: Array
    gap: Array
    satisfied_demand: Array
    max_link_utilisation: Array
    status: tuple[str, ...]
    queue_ms: float
    solve_ms: float
    batch: int


class LinkOptions(TypedDict, total=False):
    """What becomes of links: down or up, another capacity (Gbit/s), or ``restore``, back to what was registered."""

    up: bool | None
    capacity: float | None
    restore: bool


class AllocationOptions(TypedDict, total=False):
    """How to allocate; what is not given is as the network was registered, or 10 s, or splits (entries 0)."""

    gap: float | None
    deadline_ms: float | None
    objective: str | None
    entries: int


class _Calls:
    """Requests and answers as data: what both clients share."""

    def __init__(self, token: str) -> None:
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    @staticmethod
    def network(name: str) -> str:
        return f"/v1/networks/{name}"

    @staticmethod
    def spec(topology: str | Topology | dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        given = topology_to_node_link(topology) if isinstance(topology, Topology) else topology
        return {"topology": given, **settings}

    @staticmethod
    def link(source: str, target: str, change: LinkOptions) -> dict[str, Any]:
        return {"links": [{"source": source, "target": target, **change}]}

    @staticmethod
    def allocation(rates: Array, options: AllocationOptions) -> dict[str, Any]:
        rates = np.atleast_2d(np.asarray(rates, np.float64))
        column = pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rates).reshape(-1)), rates.shape[1])
        table, sink = pa.table({"rates": column}), io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        given = {name: value for name, value in options.items() if value is not None}
        sent = {"content": sink.getvalue(), "params": given, "headers": {"Content-Type": ARROW, "Accept": ARROW}}
        deadline_s = float(options.get("deadline_ms") or 0.0) / 1e3
        return sent | ({"timeout": deadline_s + _MARGIN_S} if deadline_s > _MARGIN_S else {})

    @staticmethod
    def allocated(body: bytes, entries: int) -> ServedAllocation:
        with pa.ipc.open_stream(pa.BufferReader(body)) as stream:
            table = stream.read_all()
        said = json.loads(table.schema.metadata[b"teal"])
        shape = table.num_rows, said["demands"], said["paths"]

        def numbers(name: str) -> Array:
            return np.asarray(table.column(name).combine_chunks().flatten().to_numpy(zero_copy_only=False))

        weights = numbers("weights").reshape(shape) if "weights" in table.column_names else None
        splits = numbers("splits").reshape(shape) if weights is None else weights / np.float32(max(1, entries))
        return ServedAllocation(
            splits=splits,
            weights=weights,
            utilisation=numbers("utilisation").reshape(table.num_rows, -1),
            status=tuple(table.column("status").to_pylist()),
            queue_ms=said["queue_ms"],
            solve_ms=said["solve_ms"],
            batch=said["batch"],
            **{name: table.column(name).to_numpy() for name in _FIGURES},
        )

    @staticmethod
    def checked(response: httpx.Response) -> httpx.Response:
        if response.is_success:
            return response
        try:
            said = response.json()
            code, message = said["error"], said["message"]
        except (ValueError, LookupError, TypeError):
            code, message = "http", response.text[:200]
        after = response.headers.get("Retry-After", "0")
        kind = _KINDS.get(code, ServiceFault)
        raise kind(response.status_code, code, message, float(after) if after.isdigit() else 0.0)


class Client:
    """For programs that wait.

    Args:
        address: of the service, http://127.0.0.1:8000.
        token: that it requires.
        timeout_s: for one answer.

    Raises:
        ServiceFault: from every method, of the kind that says what is wrong.
    """

    def __init__(self, address: str, token: str = "", timeout_s: float = 60.0) -> None:
        self._calls = _Calls(token)
        self._http = httpx.Client(base_url=address, headers=self._calls.headers, timeout=timeout_s)

    def networks(self) -> list[str]:
        """Names of all networks."""
        return list(self._send("GET", "/v1/networks").json()["networks"])

    def put_network(self, name: str, topology: str | Topology | dict[str, Any], **settings: Any) -> dict[str, Any]:
        """Register a network: a Topology, node-link data or a name; settings: num_paths, objective, gap, ..."""
        return dict(self._send("PUT", _Calls.network(name), json=_Calls.spec(topology, settings)).json())

    def network(self, name: str) -> dict[str, Any]:
        """State, nodes, links."""
        return dict(self._send("GET", _Calls.network(name)).json())

    def wait_ready(self, name: str, timeout_s: float = 600.0) -> dict[str, Any]:
        """Wait until its paths are computed.

        Raises:
            NotReady: after ``timeout_s``; ServiceFault: its paths cannot be computed.
        """
        end = time.monotonic() + timeout_s
        while True:
            found = self.network(name)
            if _is_ready(found, end):
                return found
            time.sleep(_POLL_S)

    def delete_network(self, name: str) -> None:
        """Forget it."""
        self._send("DELETE", _Calls.network(name))

    def change_link(self, name: str, source: str, target: str, **change: Unpack[LinkOptions]) -> dict[str, Any]:
        """Take the links between two nodes down or up, both directions, change their capacity, or restore them."""
        sent = _Calls.link(source, target, change)
        return dict(self._send("PATCH", f"{_Calls.network(name)}/links", json=sent).json())

    def paths(self, name: str) -> dict[str, Any]:
        """Pairs of nodes in the order of rates and splits, and the candidate paths of each, node by node."""
        return dict(self._send("GET", f"{_Calls.network(name)}/paths").json())

    def allocate(self, name: str, rates: Array, **options: Unpack[AllocationOptions]) -> ServedAllocation:
        """Allocate matrices (B, D) over all pairs of nodes, or (B, N x N)."""
        sent = _Calls.allocation(rates, options)
        answer = self._send("POST", f"{_Calls.network(name)}/allocations", **sent)
        return _Calls.allocated(answer.content, options.get("entries", 0))

    def close(self) -> None:
        """Give connections back."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, method: str, path: str, **content: Any) -> httpx.Response:
        try:
            return _Calls.checked(self._http.request(method, path, **content))
        except httpx.TransportError as error:
            raise Unreachable(0, "unreachable", str(error) or type(error).__name__) from None


class AsyncClient:
    """The same for programs on an event loop; see :class:`Client`."""

    def __init__(self, address: str, token: str = "", timeout_s: float = 60.0, **http: Any) -> None:
        self._calls = _Calls(token)
        self._http = httpx.AsyncClient(base_url=address, headers=self._calls.headers, timeout=timeout_s, **http)

    async def networks(self) -> list[str]:
        """Names of all networks."""
        return list((await self._send("GET", "/v1/networks")).json()["networks"])

    async def put_network(
        self, name: str, topology: str | Topology | dict[str, Any], **settings: Any
    ) -> dict[str, Any]:
        """Register a network."""
        return dict((await self._send("PUT", _Calls.network(name), json=_Calls.spec(topology, settings))).json())

    async def network(self, name: str) -> dict[str, Any]:
        """State, nodes, links."""
        return dict((await self._send("GET", _Calls.network(name))).json())

    async def wait_ready(self, name: str, timeout_s: float = 600.0) -> dict[str, Any]:
        """Wait until its paths are computed."""
        end = time.monotonic() + timeout_s
        while True:
            found = await self.network(name)
            if _is_ready(found, end):
                return found
            await asyncio.sleep(_POLL_S)

    async def delete_network(self, name: str) -> None:
        """Forget it."""
        await self._send("DELETE", _Calls.network(name))

    async def change_link(self, name: str, source: str, target: str, **change: Unpack[LinkOptions]) -> dict[str, Any]:
        """Take the links between two nodes down or up, both directions, change their capacity, or restore them."""
        sent = _Calls.link(source, target, change)
        return dict((await self._send("PATCH", f"{_Calls.network(name)}/links", json=sent)).json())

    async def paths(self, name: str) -> dict[str, Any]:
        """Pairs of nodes and their candidate paths."""
        return dict((await self._send("GET", f"{_Calls.network(name)}/paths")).json())

    async def allocate(self, name: str, rates: Array, **options: Unpack[AllocationOptions]) -> ServedAllocation:
        """Allocate matrices (B, D) over all pairs of nodes, or (B, N x N)."""
        sent = _Calls.allocation(rates, options)
        answer = await self._send("POST", f"{_Calls.network(name)}/allocations", **sent)
        return _Calls.allocated(answer.content, options.get("entries", 0))

    async def close(self) -> None:
        """Give connections back."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _send(self, method: str, path: str, **content: Any) -> httpx.Response:
        try:
            return _Calls.checked(await self._http.request(method, path, **content))
        except httpx.TransportError as error:
            raise Unreachable(0, "unreachable", str(error) or type(error).__name__) from None


def _is_ready(found: dict[str, Any], end: float) -> bool:
    if found["state"] == "failed":
        raise ServiceFault(409, "failed", found["error"])
    if found["state"] != "ready" and time.monotonic() > end:
        raise NotReady(503, "not_ready", f"{found['name']} is still {found['state']}")
    return bool(found["state"] == "ready")
