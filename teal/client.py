"""Clients of the service, synchronous and asynchronous: networks, links and allocations.

Allocations travel as Arrow IPC streams; every error of the service is raised as an exception of its own type.

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
_FIGURES = ("value", "bound", "gap", "satisfied_demand", "max_link_utilisation")  # columns with a number per matrix
_POLL_S = 0.1  # s between two requests for the state of a network
_MARGIN_S = 30.0  # s added to the deadline of a request for its HTTP timeout: queue and transfer
Array = npt.NDArray[Any]


class ServiceFault(TealError):
    """The service refused or failed a request; the subclasses name the causes.

    Attributes:
        status: HTTP status; 0 if there was no response.
        code: error code of the service, such as unknown_network.
        retry_after_s: time after which to repeat the request, s; 0 if repeating does not help.
    """

    def __init__(self, status: int, code: str, message: str, retry_after_s: float = 0.0) -> None:
        self.status, self.code, self.retry_after_s = status, code, retry_after_s
        super().__init__(f"{code} ({status}): {message}")


class InvalidRequest(ServiceFault):
    """The request is malformed or inconsistent with the network."""


class Unauthorised(ServiceFault):
    """The token is missing or wrong."""


class UnknownNetwork(ServiceFault):
    """No network of this name is registered."""


class NotReady(ServiceFault):
    """The candidate paths of the network are still being computed."""


class Overloaded(ServiceFault):
    """Too many requests are waiting, or no engine is available; repeat the request after ``retry_after_s``."""


class Unreachable(ServiceFault):
    """The service did not respond: connection refused, broken or timed out."""


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
    """The allocation of one request.

    B is the number of matrices, D of demands, K of paths per demand, E of directed links.

    Attributes:
        splits: (B, D, K) share of each demand on each of its paths; ``weights`` / entries where weights were requested.
        weights: (B, D, K) whole numbers that sum to ``entries`` or 0; None unless ``entries`` was given.
        utilisation: (B, E) load / capacity of each link.
        value: (B,) value of the objective; Gbit/s for total flow.
        bound: (B,) certified bound of the optimal value, in the unit of ``value``.
        gap: (B,) certified relative gap between ``value`` and ``bound``.
        satisfied_demand: (B,) share of the demand that is carried.
        max_link_utilisation: (B,) largest utilisation of a link.
        status: (B,) "gap" where the requested gap was reached; else what ended the search: "deadline", "iterations", or
            "rounding" if the gap was missed by rounding only.
        queue_ms: time for which the request waited in the service, ms.
        solve_ms: time of the engine, ms.
        batch: number of matrices that the engine solved in the same batch.
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
    """A change of the links between two nodes; ``restore`` must be given alone.

    Attributes:
        up: False takes the links down, True takes them up again.
        capacity: new capacity of each link, Gbit/s.
        restore: give every link its registered capacity and take it up.
    """

    up: bool | None
    capacity: float | None
    restore: bool


class AllocationOptions(TypedDict, total=False):
    """Options of an allocation.

    Attributes:
        gap: certified relative gap at which to stop; default: the one that the network was registered with.
        deadline_ms: time after which the best allocation so far is returned, ms; default: 10 000.
        objective: name of the objective; default: the one that the network was registered with.
        entries: number of entries of integer split tables; default: 0, splits without rounding.
    """

    gap: float | None
    deadline_ms: float | None
    objective: str | None
    entries: int


class _Calls:
    """URL paths, headers, bodies and decoding of the requests of both clients."""

    def __init__(self, token: str) -> None:
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    @staticmethod
    def network(name: str) -> str:
        return f"/v1/networks/{name}"

    @staticmethod
    def spec(topology: str | Topology | dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        """JSON body that registers a network."""
        description = topology_to_node_link(topology) if isinstance(topology, Topology) else topology
        return {"topology": description, **settings}

    @staticmethod
    def link(source: str, target: str, change: LinkOptions) -> dict[str, Any]:
        """JSON body that changes the links between two nodes."""
        return {"links": [{"source": source, "target": target, **change}]}

    @staticmethod
    def allocation(rates: Array, options: AllocationOptions) -> dict[str, Any]:
        """Arguments of the HTTP request that allocates ``rates``, (B, D) or (B, N x N), Gbit/s."""
        rates = np.atleast_2d(np.asarray(rates, np.float64))
        column = pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rates).reshape(-1)), rates.shape[1])
        table, sink = pa.table({"rates": column}), io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        params = {name: value for name, value in options.items() if value is not None}
        request = {"content": sink.getvalue(), "params": params, "headers": {"Content-Type": ARROW, "Accept": ARROW}}
        deadline_s = float(options.get("deadline_ms") or 0.0) / 1e3
        return request | ({"timeout": deadline_s + _MARGIN_S} if deadline_s > _MARGIN_S else {})

    @staticmethod
    def allocated(body: bytes, entries: int) -> ServedAllocation:
        """Decode the Arrow body of a response."""
        with pa.ipc.open_stream(pa.BufferReader(body)) as stream:
            table = stream.read_all()
        metadata = json.loads(table.schema.metadata[b"teal"])
        shape = table.num_rows, metadata["demands"], metadata["paths"]

        def numbers(name: str) -> Array:
            return np.asarray(table.column(name).combine_chunks().flatten().to_numpy(zero_copy_only=False))

        weights = numbers("weights").reshape(shape) if "weights" in table.column_names else None
        splits = numbers("splits").reshape(shape) if weights is None else weights / np.float32(max(1, entries))
        return ServedAllocation(
            splits=splits,
            weights=weights,
            utilisation=numbers("utilisation").reshape(table.num_rows, -1),
            status=tuple(table.column("status").to_pylist()),
            queue_ms=metadata["queue_ms"],
            solve_ms=metadata["solve_ms"],
            batch=metadata["batch"],
            **{name: table.column(name).to_numpy() for name in _FIGURES},
        )

    @staticmethod
    def checked(response: httpx.Response) -> httpx.Response:
        """Return a successful response; raise the ServiceFault of any other."""
        if response.is_success:
            return response
        try:
            error = response.json()
            code, message = error["error"], error["message"]
        except (ValueError, LookupError, TypeError):
            code, message = "http", response.text[:200]
        retry_after = response.headers.get("Retry-After", "0")
        kind = _KINDS.get(code, ServiceFault)
        raise kind(response.status_code, code, message, float(retry_after) if retry_after.isdigit() else 0.0)


class Client:
    """Synchronous client.  Every method raises a ServiceFault of the type of the error.

    Args:
        address: URL of the service, such as http://127.0.0.1:8000.
        token: token that the service requires; empty if none.
        timeout_s: timeout of a request, s; longer for allocations with a longer deadline.
    """

    def __init__(self, address: str, token: str = "", timeout_s: float = 60.0) -> None:
        self._calls = _Calls(token)
        self._http = httpx.Client(base_url=address, headers=self._calls.headers, timeout=timeout_s)

    def networks(self) -> list[str]:
        """Names of all registered networks."""
        return list(self._send("GET", "/v1/networks").json()["networks"])

    def put_network(self, name: str, topology: str | Topology | dict[str, Any], **settings: Any) -> dict[str, Any]:
        """Register a network, or replace the one of this name; its paths are computed in the background.

        Args:
            name: name of the network in the service.
            topology: a Topology, networkx node-link data, or a name such as b4 or topohub:GROUP/NAME.
            settings: num_paths, path_method, path_weight, objective and gap of the network.
        """
        return dict(self._send("PUT", _Calls.network(name), json=_Calls.spec(topology, settings)).json())

    def network(self, name: str) -> dict[str, Any]:
        """State, nodes and links of a network."""
        return dict(self._send("GET", _Calls.network(name)).json())

    def wait_ready(self, name: str, timeout_s: float = 600.0) -> dict[str, Any]:
        """Wait until the paths of a network are computed; return its state, nodes and links.

        Args:
            name: name of the network.
            timeout_s: longest time to wait, s.

        Raises:
            NotReady: the paths are not computed after ``timeout_s``.
            ServiceFault: the paths cannot be computed.
        """
        end_s = time.monotonic() + timeout_s
        while True:
            network = self.network(name)
            if _is_ready(network, end_s):
                return network
            time.sleep(_POLL_S)

    def delete_network(self, name: str) -> None:
        """Remove a network from the service."""
        self._send("DELETE", _Calls.network(name))

    def change_link(self, name: str, source: str, target: str, **change: Unpack[LinkOptions]) -> dict[str, Any]:
        """Change the links between two nodes, in both directions: down or up, another capacity, or restored.

        Args:
            name: name of the network.
            source: name of a node.
            target: name of another node.
            change: see :class:`LinkOptions`.
        """
        body = _Calls.link(source, target, change)
        return dict(self._send("PATCH", f"{_Calls.network(name)}/links", json=body).json())

    def paths(self, name: str) -> dict[str, Any]:
        """Pairs of nodes in the order of rates and splits, and the candidate paths of each pair as lists of nodes."""
        return dict(self._send("GET", f"{_Calls.network(name)}/paths").json())

    def allocate(self, name: str, rates: Array, **options: Unpack[AllocationOptions]) -> ServedAllocation:
        """Allocate traffic matrices.

        Args:
            name: name of the network.
            rates: (B, D) rates of all pairs of nodes in the order of :meth:`paths`, or (B, N x N) row by row, Gbit/s.
            options: see :class:`AllocationOptions`.
        """
        request = _Calls.allocation(rates, options)
        response = self._send("POST", f"{_Calls.network(name)}/allocations", **request)
        return _Calls.allocated(response.content, options.get("entries", 0))

    def close(self) -> None:
        """Close the connections to the service."""
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
    """Asynchronous client with the methods and arguments of :class:`Client`; ``http`` goes to httpx.AsyncClient."""

    def __init__(self, address: str, token: str = "", timeout_s: float = 60.0, **http: Any) -> None:
        self._calls = _Calls(token)
        self._http = httpx.AsyncClient(base_url=address, headers=self._calls.headers, timeout=timeout_s, **http)

    async def networks(self) -> list[str]:
        """Names of all registered networks."""
        return list((await self._send("GET", "/v1/networks")).json()["networks"])

    async def put_network(
        self, name: str, topology: str | Topology | dict[str, Any], **settings: Any
    ) -> dict[str, Any]:
        """Register a network; see :meth:`Client.put_network`."""
        return dict((await self._send("PUT", _Calls.network(name), json=_Calls.spec(topology, settings))).json())

    async def network(self, name: str) -> dict[str, Any]:
        """State, nodes and links of a network."""
        return dict((await self._send("GET", _Calls.network(name))).json())

    async def wait_ready(self, name: str, timeout_s: float = 600.0) -> dict[str, Any]:
        """Wait until the paths of a network are computed; see :meth:`Client.wait_ready`."""
        end_s = time.monotonic() + timeout_s
        while True:
            network = await self.network(name)
            if _is_ready(network, end_s):
                return network
            await asyncio.sleep(_POLL_S)

    async def delete_network(self, name: str) -> None:
        """Remove a network from the service."""
        await self._send("DELETE", _Calls.network(name))

    async def change_link(self, name: str, source: str, target: str, **change: Unpack[LinkOptions]) -> dict[str, Any]:
        """Change the links between two nodes; see :meth:`Client.change_link`."""
        body = _Calls.link(source, target, change)
        return dict((await self._send("PATCH", f"{_Calls.network(name)}/links", json=body)).json())

    async def paths(self, name: str) -> dict[str, Any]:
        """Pairs of nodes and their candidate paths; see :meth:`Client.paths`."""
        return dict((await self._send("GET", f"{_Calls.network(name)}/paths")).json())

    async def allocate(self, name: str, rates: Array, **options: Unpack[AllocationOptions]) -> ServedAllocation:
        """Allocate traffic matrices; see :meth:`Client.allocate`."""
        request = _Calls.allocation(rates, options)
        response = await self._send("POST", f"{_Calls.network(name)}/allocations", **request)
        return _Calls.allocated(response.content, options.get("entries", 0))

    async def close(self) -> None:
        """Close the connections to the service."""
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


def _is_ready(network: dict[str, Any], end_s: float) -> bool:
    """Whether the paths of a network are computed; raises after ``end_s`` on the monotonic clock, or if they failed."""
    if network["state"] == "failed":
        raise ServiceFault(409, "failed", network["error"])
    if network["state"] != "ready" and time.monotonic() > end_s:
        raise NotReady(503, "not_ready", f"{network['name']} is still {network['state']}")
    return bool(network["state"] == "ready")
