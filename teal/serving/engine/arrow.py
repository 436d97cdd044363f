"""Arrow IPC streams, for size.

A request is a table with either one row a matrix and a list column ``rates`` (all pairs of nodes in the order of the
network's paths, or N x N row by row), or one row a demand: ``source``, ``target``, ``rate`` and perhaps ``matrix`` and
``class``.  With C classes, ``rates`` has C rows a matrix, and D below is the number of pairs times C, class by class.
An answer has one row a matrix: value, bound, gap, satisfied_demand, max_link_utilisation, status, utilisation (E
values), splits (D x K, row by row; or weights, whole numbers, with admitted_share, D values).  Shapes stand in the
schema's metadata.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from teal.network.topology import Topology
from teal.runtime.arrays import FloatArray
from teal.serving.engine.answer import FIGURES, Answer
from teal.serving.engine.errors import wrong
from teal.serving.engine.matrices import MOST_RATES, all_pairs, from_triples, in_classes
from teal.serving.engine.requests import MOST_MATRICES


def from_arrow(body: bytes, topology: Topology, classes: Sequence[str] = ()) -> FloatArray:
    """(B, D) Gbit/s.

    Raises:
        ServiceError: no such table, or one whose content may be larger than it looks.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        refuse_compressed(body)
        with pa.ipc.open_stream(pa.BufferReader(body)) as stream:
            _check_types(stream.schema)
            table = stream.read_all()
        if table.num_rows > MOST_RATES:
            raise wrong(f"rates: at most {MOST_RATES:,} a request")
        table.validate(full=True)
        names = set(table.column_names)
        if "rates" in names:
            if not 1 <= table.num_rows <= MOST_MATRICES:
                raise wrong(f"rates: 1 to {MOST_MATRICES} matrices, not {table.num_rows}")
            column = table.column("rates").combine_chunks()
            if not _is_list(column.type):
                raise wrong("rates: a list of numbers a matrix")
            values = column.flatten()
            if len(values) > MOST_RATES:
                raise wrong(f"rates: at most {MOST_RATES:,} a request")
            flat = values.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
            lengths = pc.list_value_length(column)
            if column.null_count or len(lengths.unique()) != 1 or len(flat) != lengths[0].as_py() * table.num_rows:
                raise wrong("rates: all matrices must be there, and of one length")
            return in_classes(all_pairs(flat.reshape(table.num_rows, -1), topology), classes)
        if not {"source", "target", "rate"} <= names:
            raise wrong("columns: expected rates, or source, target and rate (and perhaps matrix)")
        triples = [table.column(name).combine_chunks() for name in ("source", "target", "rate")]
        if any(column.null_count for column in triples):
            raise wrong("source, target, rate: nothing may be null")
        matrix = table.column("matrix").to_numpy() if "matrix" in names else None
        of_class = table.column("class").to_pylist() if "class" in names else None
        source, target, rate = triples
        return from_triples(
            source.to_pylist(), target.to_pylist(), rate.to_numpy(), matrix, topology, of_class, classes
        )
    except (pa.ArrowException, struct.error, KeyError, ValueError, TypeError, OverflowError, OSError) as error:
        raise wrong(f"not an Arrow IPC stream of traffic matrices: {' '.join(str(error).split())[:200]}") from None


def _check_types(schema: Any) -> None:
    """Plain numbers and texts alone: what a body holds is then no larger than the body."""
    import pyarrow.types as t

    def number(kind: Any) -> bool:
        return bool(t.is_floating(kind) or t.is_integer(kind))

    for field in schema:
        kind = field.type
        listed = field.name == "rates" and _is_list(kind) and getattr(kind, "list_size", 1) > 0
        plain = number(kind) or t.is_string(kind) or t.is_large_string(kind)
        if not (plain or (listed and number(kind.value_type))):
            raise wrong(f"column {field.name[:40]!r}: numbers or texts (rates: lists of numbers), not {str(kind)[:80]}")


def _is_list(kind: Any) -> bool:
    import pyarrow.types as t

    return bool(t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind))


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


def to_arrow(answer: Answer, further: dict[str, Any]) -> bytes:
    """The answer as a stream; ``further`` goes to the metadata."""
    import pyarrow as pa

    def lists(values: npt.NDArray[Any]) -> pa.Array:
        flat = pa.array(np.ascontiguousarray(values).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, values[0].size)

    columns: dict[str, Any] = {name: getattr(answer, name) for name in FIGURES}
    columns["status"] = list(answer.status)
    columns |= answer.of_conditions
    columns["utilisation"] = lists(answer.utilisation.astype(np.float32))
    name, shares = answer.shares
    columns[name] = lists(shares)
    if answer.weights is not None:
        columns["admitted_share"] = lists(answer.admitted_share)
    shape = {"demands": answer.splits.shape[1], "paths": answer.splits.shape[2]}
    metadata = {**shape, **answer.cost, **further, **answer.lines}
    table = pa.table(columns).replace_schema_metadata({"teal": json.dumps(metadata)})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


def last_splits(body: bytes) -> FloatArray:
    """(D, K) splits of the last matrix of an answer that :func:`to_arrow` made."""
    import pyarrow as pa

    with pa.ipc.open_stream(pa.BufferReader(body)) as stream:
        table = stream.read_all()
    shape = json.loads(table.schema.metadata[b"teal"])
    name = "splits" if "splits" in table.column_names else "weights"
    values = table.column(name)[-1].values.to_numpy(zero_copy_only=False).astype(np.float64)
    splits = np.asarray(values.reshape(shape["demands"], shape["paths"]))
    if name == "splits":
        return splits
    share = table.column("admitted_share")[-1].values.to_numpy(zero_copy_only=False).astype(np.float64)
    return splits / np.maximum(1, splits.sum(1, keepdims=True)) * share[:, None]
