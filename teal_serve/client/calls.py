"""Requests of the service's HTTP API, for the synchronous and the asynchronous client.

Each public function builds a :class:`Call`: HTTP method, path, content, and decoder of the
response.  :mod:`teal_serve.client.clients` turns the functions into methods of the clients, and
:func:`answer_of` decodes the response.

Axes: B matrices, D pairs of nodes (demands), C demand classes, K paths of a demand, E links, N
nodes.
"""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack
from urllib.parse import quote

import httpx
import numpy as np
import pyarrow as pa

from teal_serve.client.faults import InvalidRequest, ServiceFault, checked
from teal_serve.client.results import (
    Array,
    ClassResult,
    LevelResult,
    Measured,
    Network,
    Paths,
    ServedAllocation,
    utc,
)

if TYPE_CHECKING:
    from teal.network import Topology

ARROW = "application/vnd.apache.arrow.stream"
JSON = "application/json"
ZIP = "application/zip"
# Columns of an Arrow response with a number for each matrix.
_NUMBER_COLUMNS = (
    "value",
    "bound",
    "gap",
    "satisfied_demand",
    "max_link_utilisation",
)
# Default deadline of allocations and counters.
_DEADLINE_MS = 10_000.0
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Call(Generic[T]):
    """Request to the service, with the decoder of its response.

    Attributes:
        method: HTTP method.
        path: path of the URL.
        decode: decoder of a successful response.
        content: keyword arguments of httpx's ``request``: body, query parameters, headers.
        deadline_s: time limit of the computation, s, added to the timeout; 0 without computation.
        media_type: media type of a successful response; "" without content.
    """

    method: str
    path: str
    decode: Callable[[httpx.Response], T]
    content: dict[str, Any] = dataclasses.field(default_factory=dict)
    deadline_s: float = 0.0
    media_type: str = JSON


def answer_of(call: Call[T], response: httpx.Response) -> T:
    """Check and decode the response to a call.

    Args:
        call: call, with the decoder and the expected media type of its response.
        response: response of the service.

    Raises:
        ServiceFault: an error of the service, or a response that the API does not define, such as
            that of a proxy.
    """
    successful_response = checked(response)
    content_type = (
        successful_response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    )
    # A proxy may have answered: check the media type, then decode all expected fields.
    try:
        if content_type != call.media_type:
            raise ValueError(
                f"Content-Type is {content_type or 'missing'}, not {call.media_type or 'empty'}"
            )
        return call.decode(successful_response)
    except (ValueError, LookupError, TypeError, AttributeError, pa.ArrowException) as error:
        text = f"the response is not from this service: {' '.join(str(error).split())[:200]}"
        raise ServiceFault(response.status_code, "http", text) from None


class LinkOptions(TypedDict, total=False):
    """Change of the links between two nodes; ``restore`` excludes the other options.

    Attributes:
        up: False takes the links down, True takes them up again.
        capacity: new capacity of each link, Gbit/s.
        restore: True resets the links to their registered capacity and takes them up.
    """

    up: bool | None
    capacity: float | None
    restore: bool


class AllocationOptions(TypedDict, total=False):
    """Options of an allocation request.

    Attributes:
        gap: certified relative gap at which to stop; default: value of the registration.
        deadline_ms: time limit, ms, after which the incumbent is returned; default: 10 000.
        objective: name of the objective; default: value of the registration.
        entries: number of entries of integer split tables; default: 0, splits without rounding.
        latency_limits_ms: largest path latency, ms, by name of a class; default: none.
        max_churn: largest fraction of the demand with a live path that may move away from its paths
            in ``previous``.
        previous: ``id`` of the installed answer.
        solver: model (the service's model alone), model-pdhg (PDHG warm-started from the model),
            pdhg (PDHG warm-started from the last allocation) or auto (default: pdhg; model-pdhg if
            there is no last allocation and the model saves time).
        protect: cables or groups: every flow survives the failure of any single cable or group.
        prove: whether to prove value and bound of one matrix; :meth:`proof` returns the zip file.
        key: idempotency key; a repeated request with the same key and rates gets the same answer
            without another solve.
    """

    gap: float | None
    deadline_ms: float | None
    objective: str | None
    entries: int
    solver: str
    latency_limits_ms: Mapping[str, float]
    max_churn: float | None
    previous: str | None
    protect: str | None
    prove: bool
    key: str


def _network_path(name: str, *subpath: str) -> str:
    """Return the URL path of a network or of one of its resources.

    Each name is quoted as one path segment.

    Raises:
        InvalidRequest: a name ("", "." or "..") that would address another resource.
    """
    path_segments = name, *subpath
    for path_segment in path_segments:
        if path_segment in ("", ".", ".."):
            raise InvalidRequest(
                422,
                "invalid_request",
                f"{path_segment!r} cannot be a name in a URL; use a name of letters and digits",
            )
    return "/v1/networks/" + "/".join(
        quote(path_segment, safe="", errors="replace") for path_segment in path_segments
    )


def networks() -> Call[list[str]]:
    """Return the names of all registered networks."""
    return Call("GET", "/v1/networks", lambda response: list(response.json()["networks"]))


def put_network(
    name: str, topology: str | Topology | dict[str, Any], **settings: Any
) -> Call[Network]:
    """Register or replace a network; its paths are computed in the background.

    Args:
        name: name of the network in the service.
        topology: a Topology, networkx node-link data, or a name such as b4 or topohub:GROUP/NAME.
        settings: further fields of the registration: num_paths (auto, or a number), max_paths,
            path_method, path_weight, objective, gap, groups (shared-risk groups: cables by name),
            weights and functions (bandwidth functions) of demands.
    """
    description = topology if isinstance(topology, str | dict) else _node_link(topology)
    return Call(
        "PUT", _network_path(name), _decode_network, {"json": {"topology": description, **settings}}
    )


def _node_link(topology: Topology) -> dict[str, Any]:
    """Return the node-link data of a topology."""
    # Loaded here, since a client that never registers a Topology needs no file formats.
    from teal.formats.node_link import topology_to_node_link

    return topology_to_node_link(topology)


def network(name: str) -> Call[Network]:
    """Return the state, settings, nodes and links of a network."""
    return Call("GET", _network_path(name), _decode_network)


def delete_network(name: str) -> Call[None]:
    """Delete a network from the service, with its measured matrices."""
    return Call("DELETE", _network_path(name), lambda _: None, media_type="")


def change_link(
    name: str, source: str, target: str, **change: Unpack[LinkOptions]
) -> Call[Network]:
    """Change the links between two nodes, in both directions.

    Args:
        name: name of the network.
        source: name of a node.
        target: name of another node.
        change: up (False: down), capacity (Gbit/s), or restore (registered capacity, up).
    """
    return change_links(name, [{"source": source, "target": target, **change}])


def change_links(name: str, changes: Sequence[Mapping[str, Any]]) -> Call[Network]:
    """Change several links at once.

    Args:
        name: name of the network.
        changes: for each pair of nodes ``source``, ``target``, the change (``up``, ``capacity`` in
            Gbit/s, or ``restore``), and ``both`` (False: only from source to target).
    """
    return Call(
        "PATCH",
        _network_path(name, "links"),
        _decode_network,
        {"json": {"links": [dict(change) for change in changes]}},
    )


def paths(name: str) -> Call[Paths]:
    """Return the pairs of nodes in the order of rates and splits, and their candidate paths.

    A path is the list of its nodes.
    """

    def decode(response: httpx.Response) -> Paths:
        """Decode the pairs and paths in a JSON response."""
        body = response.json()
        return Paths([(source, target) for source, target in body["pairs"]], body["paths"])

    return Call("GET", _network_path(name, "paths"), decode)


def allocate(
    name: str, rates: Array | Mapping[str, Array], **options: Unpack[AllocationOptions]
) -> Call[ServedAllocation]:
    """Allocate traffic matrices.

    Args:
        name: name of the network.
        rates: Gbit/s; (B, D) for B matrices over all D pairs of nodes in the order of
            :meth:`paths`, or (B, N * N) for all entries of matrices of N nodes, row by row.  With
            C classes: such an array for each class name, the highest priority first; the answer
            then has C * D demands.
        options: gap, deadline_ms and the further fields of :class:`AllocationOptions`.
    """
    # Options that the client itself needs; the idempotency key is sent as a header.
    key = options.get("key", "")
    entries = options.get("entries", 0)
    params = {option: value for option, value in options.items() if option != "key"}
    # With classes, send rates (B * C, D): the C classes of each matrix one after another.
    if isinstance(rates, Mapping):
        params["classes"] = ",".join(rates)
        class_rates = [np.atleast_2d(np.asarray(part, np.float64)) for part in rates.values()]
        rates = np.stack(class_rates, 1).reshape(-1, class_rates[0].shape[1])
    # Encode the options as query parameters; those without a value are left to the service.
    limits = options.get("latency_limits_ms", {})
    params["latency_limits_ms"] = ",".join(
        f"{class_name}={limit}" for class_name, limit in limits.items()
    )
    headers = {"Content-Type": ARROW, "Accept": ARROW, **({"Idempotency-Key": key} if key else {})}
    query = {option: value for option, value in params.items() if value not in (None, "")}
    request_arguments = {"content": _encode_rates(rates), "params": query, "headers": headers}
    deadline_s = float(options.get("deadline_ms") or _DEADLINE_MS) / 1e3
    path = _network_path(name, "allocations")
    return Call(
        "POST",
        path,
        lambda response: _decode_allocation(response, entries),
        request_arguments,
        deadline_s,
        ARROW,
    )


def allocation(name: str, number: str, entries: int = 0) -> Call[ServedAllocation]:
    """Return the answer of an earlier allocation request, while the service keeps it.

    Args:
        name: name of the network.
        number: ``id`` of the answer.
        entries: number of entries of its split tables; 0 without tables.
    """
    path = _network_path(name, "allocations", number)
    return Call(
        "GET", path, lambda response: _decode_allocation(response, entries), media_type=ARROW
    )


def proof(name: str, number: str) -> Call[bytes]:
    """Return the proof of an answer as the bytes of a zip file, which includes a checker.

    The answer must have been requested with ``prove``, and the service must still keep it.

    Args:
        name: name of the network.
        number: ``id`` of the answer.
    """
    return Call(
        "GET",
        _network_path(name, "allocations", number, "proof"),
        lambda response: response.content,
        media_type=ZIP,
    )


def measure(
    name: str, rates: Array, time: np.datetime64 | datetime, interval_s: int = 0
) -> Call[Measured]:
    """Send measured traffic matrices; the service can then allocate for the following interval.

    Args:
        name: name of the network.
        rates: Gbit/s; (B, D) for B matrices over all D pairs of nodes in the order of
            :meth:`paths`, or (B, N * N) for all entries of matrices of N nodes, row by row.
        time: time of the first matrix; UTC without a time zone.
        interval_s: seconds between consecutive matrices; 0 for a single matrix.
    """
    request_arguments = {
        "content": _encode_rates(rates),
        "params": {"time": _iso_time(time), "interval_s": interval_s},
        "headers": {"Content-Type": ARROW},
    }
    return Call(
        "POST",
        _network_path(name, "measurements"),
        lambda response: Measured.of(response.json()),
        request_arguments,
    )


def measure_counters(
    name: str,
    time: np.datetime64 | datetime,
    links: list[dict[str, Any]],
    nodes: list[dict[str, Any]],
    routing: str = "igp",
    rates: Array | None = None,
    deadline_ms: float | None = None,
) -> Call[Measured]:
    """Send interface counters of an interval, from which the service estimates the traffic matrix.

    With ``rates``, the service checks that matrix against the counters and stores it.

    Args:
        name: name of the network.
        time: time of the interval; UTC without a time zone.
        links: for each link ``source``, ``target``, and rates ``sent`` and ``received``, Gbit/s;
            ``number`` distinguishes parallel links.
        nodes: for each node ``node``, and rates ``ingress`` and ``egress``, Gbit/s.
        routing: routing during the interval: ``igp`` (shortest paths), or ``allocation`` (the
            latest answer of :meth:`allocate_next`).
        rates: (1, D) matrix in the order of the pairs of :meth:`paths`, Gbit/s; None to estimate
            it.
        deadline_ms: time limit, ms; afterwards the request fails with 503 (overloaded).  None for
            10,000.
    """
    body: dict[str, Any] = {
        "time": _iso_time(time),
        "counters": {"links": links, "nodes": nodes, "routing": routing},
    }
    if deadline_ms is not None:
        body["deadline_ms"] = deadline_ms
    if rates is not None:
        body["rates"] = np.asarray(rates, np.float64).tolist()
    return Call(
        "POST",
        _network_path(name, "measurements"),
        lambda response: Measured.of(response.json()),
        {"json": body},
        (deadline_ms or _DEADLINE_MS) / 1e3,
    )


def _iso_time(time: np.datetime64 | datetime) -> str:
    """Return a time in ISO 8601 format; a time without a time zone is UTC."""
    if isinstance(time, np.datetime64):
        return f"{time.astype('datetime64[s]')}Z"
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).isoformat()


def measured(name: str) -> Call[Measured]:
    """Return the number and times of a network's measured matrices that the service stores."""
    return Call(
        "GET", _network_path(name, "measurements"), lambda response: Measured.of(response.json())
    )


def forget_measured(name: str) -> Call[None]:
    """Delete all measured matrices of a network and all state learnt from them."""
    return Call("DELETE", _network_path(name, "measurements"), lambda _: None, media_type="")


def model() -> Call[dict[str, Any]]:
    """Return the description of the service's model for warm starts.

    Fields: ``model`` (name or folder), ``loaded_version``, ``loaded_at`` (seconds since 1970),
    ``last_error`` (reason why a newer version is not used) and ``solver`` (default solver of
    requests).
    """
    return Call("GET", "/v1/model", lambda response: dict(response.json()))


def allocate_next(name: str, deadline_ms: float = _DEADLINE_MS) -> Call[ServedAllocation]:
    """Allocate for the interval after the newest measured matrix; its traffic is unknown yet.

    Args:
        name: name of the network.
        deadline_ms: time limit, ms; afterwards the previous allocation is returned, if any.
    """
    request_arguments = {
        "json": {"for": "next", "deadline_ms": deadline_ms},
        "headers": {"Accept": ARROW},
    }
    path = _network_path(name, "allocations")
    return Call(
        "POST",
        path,
        lambda response: _decode_allocation(response, 0),
        request_arguments,
        deadline_ms / 1e3,
        ARROW,
    )


def _decode_network(response: httpx.Response) -> Network:
    """Decode the network in a JSON response."""
    return Network.of(response.json())


def _encode_rates(rates: Array) -> bytes:
    """Encode matrices as an Arrow IPC stream with one list column, ``rates``.

    Args:
        rates: (B, n) Gbit/s, a row for each matrix; or (n,) for a single matrix.
    """
    rates = np.atleast_2d(np.asarray(rates, np.float64))
    # Column of lists: each row of the table holds the rates of one matrix.
    column = pa.FixedSizeListArray.from_arrays(
        pa.array(np.ascontiguousarray(rates).reshape(-1)), rates.shape[1]
    )
    table = pa.table({"rates": column})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


def _decode_allocation(response: httpx.Response, entries: int) -> ServedAllocation:
    """Decode the allocation in an Arrow response.

    The table has a row for each of the B matrices: number columns (value, gap, ...), and list
    columns with the flattened arrays of a matrix (splits or weights (D, K), utilisation (E,)).
    Figures of the whole request are JSON in the schema metadata ``teal``.

    Args:
        response: successful response with an Arrow IPC stream.
        entries: number of entries of the requested split tables; 0 without tables.
    """
    with pa.ipc.open_stream(pa.BufferReader(response.content)) as stream:
        table = stream.read_all()
    metadata = json.loads(table.schema.metadata[b"teal"])
    # (B, D, K)
    shape = table.num_rows, metadata["demands"], metadata["paths"]

    def flat_values(name: str) -> Array:
        """Return the values of a list column, all rows one after another."""
        return np.asarray(
            table.column(name).combine_chunks().flatten().to_numpy(zero_copy_only=False)
        )

    # Splits, or with entries integer weights: splits = weights / entries * served fraction.
    weights = flat_values("weights").reshape(shape) if "weights" in table.column_names else None
    if weights is None:
        admitted_share = None
        splits = flat_values("splits").reshape(shape)
    else:
        admitted_share = flat_values("admitted_share").reshape(shape[:2])
        splits = weights / np.float32(max(1, entries)) * admitted_share[..., None]
    # Limit of an answer for the next interval: ratio, probability (level), last realised ratio.
    limit_figures = metadata.get("limit") or {}

    def optional_column(name: str) -> Any:
        """Return a number column (B,); None if the response does not have it."""
        return table.column(name).to_numpy() if name in table.column_names else None

    # Collect figures, times, and the results of classes or levels, from columns and metadata.
    return ServedAllocation(
        splits=splits,
        weights=weights,
        admitted_share=admitted_share,
        utilisation=flat_values("utilisation").reshape(table.num_rows, -1),
        status=tuple(table.column("status").to_pylist()),
        queue_ms=metadata["queue_ms"],
        solve_ms=metadata["solve_ms"],
        # Missing in older services.
        solver=metadata.get("solver", ""),
        batch=metadata["batch"],
        trace=tuple(metadata.get("trace", ())),
        id=metadata.get("id", ""),
        time=utc(metadata["time"]) if metadata.get("time") else None,
        limit=limit_figures.get("ratio"),
        level=limit_figures.get("level"),
        realised=limit_figures.get("realised"),
        classes=tuple(
            tuple(ClassResult.of(figures) for figures in matrix_figures)
            for matrix_figures in metadata.get("classes") or ()
        ),
        levels=tuple(
            tuple(LevelResult.of(figures) for figures in matrix_figures)
            for matrix_figures in metadata.get("levels") or ()
        ),
        moved=optional_column("moved"),
        largest_share=optional_column("largest_share"),
        **{name: table.column(name).to_numpy() for name in _NUMBER_COLUMNS},
    )
