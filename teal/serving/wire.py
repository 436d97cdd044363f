"""Traffic matrices and allocations on the wire: JSON for people, Arrow IPC streams for size.

An Arrow request is a table with either one row a matrix and a list column ``rates`` (all pairs of nodes in the order of
the network's paths, or N x N row by row), or one row a demand: ``source``, ``target``, ``rate`` and perhaps ``matrix``.
An Arrow answer has one row a matrix: value, bound, gap, satisfied_demand, max_link_utilisation, status, utilisation
(E values), splits (D x K, row by row; or weights, whole numbers).  Shapes stand in the schema's metadata.
"""

from __future__ import annotations

import dataclasses
import io
import json
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from teal.network.topology import Topology
from teal.runtime.arrays import FloatArray
from teal.serving.errors import ServiceError, wrong
from teal.serving.requests import MOST_MATRICES, AllocationRequest, Options

ARROW, JSON = "application/vnd.apache.arrow.stream", "application/json"
_MOST_JSON = 500_000  # splits of an answer in JSON
_MOST_RATES = 1 << 24  # of a request
_LARGEST_RATE = 1e12  # Gbit/s


@dataclasses.dataclass(frozen=True, eq=False)
class Answer:
    """What became of the matrices of a request.

    Attributes:
        value, bound, gap, satisfied_demand, max_link_utilisation: (B,), certified.
        utilisation: (B, E).
        splits: (B, D, K) float32; weights: (B, D, K) whole numbers instead, if they were asked for.
        status: "gap" where it was reached; else what ended the search with the best so far: "deadline", "iterations"
            or "rounding".
        queue_ms, solve_ms: time waited and computed; batch: matrices that were solved together.
    """

    value: FloatArray
    bound: FloatArray
    gap: FloatArray
    satisfied_demand: FloatArray
    max_link_utilisation: FloatArray
    utilisation: FloatArray
    splits: npt.NDArray[np.float32]
    weights: npt.NDArray[np.uint8] | None
    status: tuple[str, ...]
    queue_ms: float
    solve_ms: float
    batch: int

    def summary(self) -> dict[str, Any]:
        """What it cost and brought: the widest gap, mean satisfied demand, utilisation in the last matrix."""
        return {
            "queue_ms": self.queue_ms,
            "solve_ms": self.solve_ms,
            "batch": self.batch,
            "matrices": len(self.value),
            "gap": _plain(np.max(self.gap)),
            "satisfied_demand": _plain(np.mean(self.satisfied_demand)),
            "status": "gap" if set(self.status) == {"gap"} else next(s for s in self.status if s != "gap"),
            "utilisation": self.utilisation[-1].round(4).tolist(),
        }


_FIGURES = ("value", "bound", "gap", "satisfied_demand", "max_link_utilisation")


def decode(body: bytes, content_type: str, topology: Topology, query: dict[str, str]) -> tuple[FloatArray, Options]:
    """Rates (B, D), Gbit/s, over all pairs of nodes, and what was asked for; of Arrow the options are the query's.

    Raises:
        ServiceError: anything that is not as the API says.
    """
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind == ARROW:
            options = Options.model_validate(dict(query))
            return _checked(_from_arrow(body, topology)), options
        if kind != JSON:  # also what names no type: no page of another site can send this one unasked
            raise ServiceError(415, "unsupported_media_type", f"send {JSON} or {ARROW}, not {kind[:80]!r}")
        request = AllocationRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise wrong(f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}") from None
    options = Options(**{name: getattr(request, name) for name in Options.model_fields})
    if request.rates is not None:
        if len({len(row) for row in request.rates}) != 1:
            raise wrong("rates: at least one matrix, and all of one length")
        return _checked(_all_pairs(np.array(request.rates, np.float64), topology)), options
    demands = request.demands or []
    source, target = [d.source for d in demands], [d.target for d in demands]
    rates = np.array([d.rate for d in demands], np.float64)
    return _checked(_from_triples(source, target, rates, None, topology)), options


def _from_arrow(body: bytes, topology: Topology) -> FloatArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        refuse_compressed(body)
        with pa.ipc.open_stream(pa.BufferReader(body)) as stream:
            _check_types(stream.schema)
            table = stream.read_all()
        table.validate(full=True)
        names = set(table.column_names)
        if "rates" in names:
            if not 1 <= table.num_rows <= MOST_MATRICES:
                raise wrong(f"rates: 1 to {MOST_MATRICES} matrices, not {table.num_rows}")
            column = table.column("rates").combine_chunks()
            flat = column.flatten().to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
            lengths = pc.list_value_length(column)
            if column.null_count or len(lengths.unique()) != 1 or len(flat) != lengths[0].as_py() * table.num_rows:
                raise wrong("rates: all matrices must be there, and of one length")
            return _all_pairs(flat.reshape(table.num_rows, -1), topology)
        if not {"source", "target", "rate"} <= names:
            raise wrong("columns: expected rates, or source, target and rate (and perhaps matrix)")
        triples = [table.column(name).combine_chunks() for name in ("source", "target", "rate")]
        if any(column.null_count for column in triples):
            raise wrong("source, target, rate: nothing may be null")
        matrix = table.column("matrix").to_numpy() if "matrix" in names else None
        source, target, rate = triples
        return _from_triples(source.to_pylist(), target.to_pylist(), rate.to_numpy(), matrix, topology)
    except (pa.ArrowException, struct.error, KeyError, ValueError, TypeError, OverflowError, OSError) as error:
        raise wrong(f"not an Arrow IPC stream of traffic matrices: {' '.join(str(error).split())[:200]}") from None


def _check_types(schema: Any) -> None:
    """Plain numbers and texts alone: what a body holds is then no larger than the body."""
    import pyarrow.types as t

    def number(kind: Any) -> bool:
        return bool(t.is_floating(kind) or t.is_integer(kind))

    for field in schema:
        kind = field.type
        listed = t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind)
        plain = number(kind) or t.is_string(kind) or t.is_large_string(kind)
        if not (plain or (listed and number(kind.value_type))):
            raise wrong(f"column {field.name[:40]!r}: numbers, texts, or lists of numbers, not {str(kind)[:80]}")


def refuse_compressed(body: bytes) -> None:
    """Raise ServiceError for compressed buffers: they may be a thousand times as large as they look.

    pyarrow has no word for it, so this reads the field ``compression`` of each RecordBatch in the message's flatbuffer
    (Message.fbs of the Arrow format: field 1 of a Message is the header's type, 2 the header; 3 of a RecordBatch).
    """
    import pyarrow as pa

    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(body)):
        if message.type == "record batch":
            flat = message.metadata.to_pybytes()
            header = _field(flat, struct.unpack_from("<I", flat, 0)[0], 2)
            if header and _field(flat, header + struct.unpack_from("<I", flat, header)[0], 3):
                raise wrong("send Arrow without compression")
        elif message.type == "dictionary":
            raise wrong("send Arrow without dictionaries")


def _field(flat: bytes, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table stands; 0 if it is not there."""
    virtual = table - struct.unpack_from("<i", flat, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", flat, virtual)[0]:
        return 0
    offset = int(struct.unpack_from("<H", flat, virtual + 4 + 2 * number)[0])
    return table + offset if offset else 0


def _all_pairs(rates: FloatArray, topology: Topology) -> FloatArray:
    nodes = topology.num_nodes
    pairs = nodes * (nodes - 1)
    if rates.shape[1] == pairs and rates.shape[1] != nodes * nodes:
        return rates
    if rates.shape[1] != nodes * nodes:
        raise wrong(f"rates: {pairs} (all pairs) or {nodes * nodes} (N x N) a matrix, not {rates.shape[1]}")
    return rates[:, ~np.eye(nodes, dtype=bool).reshape(-1)]


def _from_triples(
    source: list[Any], target: list[Any], rate: FloatArray, matrix: Any, topology: Topology
) -> FloatArray:
    nodes, index = topology.num_nodes, topology.node_index()
    try:
        s = np.array([index[str(name)] for name in source], np.int64)
        t = np.array([index[str(name)] for name in target], np.int64)
    except KeyError as error:
        raise wrong(f"demands: there is no node {str(error.args[0])[:80]!r}") from None
    if (s == t).any():
        raise wrong(f"demands: {topology.node_names[s[int(np.argmax(s == t))]]!r} to itself")
    row = np.zeros(len(s), np.int64) if matrix is None else np.asarray(matrix, np.int64)
    count = int(row.max(initial=0)) + 1
    if row.min(initial=0) < 0 or count > MOST_MATRICES:
        raise wrong(f"matrix: numbers from 0 to {MOST_MATRICES - 1}")
    if count * nodes * (nodes - 1) > _MOST_RATES:
        raise wrong(f"matrix: at most {_MOST_RATES // (nodes * (nodes - 1))} matrices of this network at once")
    rates = np.zeros((count, nodes * (nodes - 1)))
    place = s * (nodes - 1) + t - (t > s)
    if len(np.unique(row * rates.shape[1] + place)) < len(place):
        raise wrong("demands: each pair of nodes once a matrix")
    rates[row, place] = rate
    return rates


def _checked(rates: FloatArray) -> FloatArray:
    if rates.size > _MOST_RATES:
        raise wrong(f"rates: at most {_MOST_RATES // rates.shape[1]} matrices of this network at once")
    bad = ~((rates >= 0) & (rates <= _LARGEST_RATE))
    if bad.any():
        row, column = np.argwhere(bad)[0].tolist()
        where = f"(matrix {row}, demand {column})"
        raise wrong(f"rates: a finite number from 0 to {_LARGEST_RATE:g}, not {rates[row, column]} {where}")
    return rates


def check_size(splits: int, accept: str) -> None:
    """Raise ServiceError for an answer of so many splits that is too large for what is accepted."""
    if ARROW not in accept and splits > _MOST_JSON:
        raise ServiceError(406, "too_large_for_json", f"{splits:,} splits: ask for {ARROW} (Accept)")


def encode(answer: Answer, accept: str) -> tuple[bytes, str]:
    """Body and content type; see :func:`check_size`."""
    if ARROW in accept:
        return _to_arrow(answer), ARROW
    shares = answer.splits if answer.weights is None else answer.weights
    name = "splits" if answer.weights is None else "weights"
    body = {
        "allocations": [
            {
                **{figure: _plain(getattr(answer, figure)[b]) for figure in _FIGURES},
                "status": answer.status[b],
                "utilisation": [_plain(u) for u in answer.utilisation[b]],
                name: shares[b].tolist(),
            }
            for b in range(len(shares))
        ],
        "queue_ms": answer.queue_ms,
        "solve_ms": answer.solve_ms,
        "batch": answer.batch,
    }
    return json.dumps(body, allow_nan=False).encode(), JSON


def _plain(x: Any) -> float | None:
    return float(x) if np.isfinite(x) else None


def _to_arrow(answer: Answer) -> bytes:
    import pyarrow as pa

    def lists(values: npt.NDArray[Any]) -> pa.Array:
        flat = pa.array(np.ascontiguousarray(values).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, values[0].size)

    columns: dict[str, Any] = {name: getattr(answer, name) for name in _FIGURES}
    columns["status"] = list(answer.status)
    columns["utilisation"] = lists(answer.utilisation.astype(np.float32))
    if answer.weights is None:
        columns["splits"] = lists(answer.splits)
    else:
        columns["weights"] = lists(answer.weights)
    shape = {"demands": answer.splits.shape[1], "paths": answer.splits.shape[2]}
    said = {**shape, "queue_ms": answer.queue_ms, "solve_ms": answer.solve_ms, "batch": answer.batch}
    table = pa.table(columns).replace_schema_metadata({"teal": json.dumps(said)})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()
