"""Requests and answers as Arrow IPC streams.

A request is a table with either one row a matrix and a list column ``rates`` (all pairs of nodes in
the order of the network's paths, or N x N row by row), or one row a demand: ``source``, ``target``,
``rate`` and perhaps ``matrix`` and ``class``.  With C classes, ``rates`` has C rows a matrix, and D
below is the number of pairs times C, class by class. An answer has one row a matrix: value, bound,
gap, satisfied_demand, max_link_utilisation, status, utilisation (E values), splits (D x K, row by
row; or weights, whole numbers, with admitted_share, D values).  Shapes stand in the schema's
metadata.

Two streams of the same schema and the same shapes differ in their numbers alone.  What pyarrow read
or wrote once is kept as a :class:`Frame`, and the next stream of that kind is read or written by
copying bytes: pyarrow takes a tenth of a millisecond for a stream, and gives up Python's lock a
dozen times on the way, for which it waits again while the engine computes.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Hashable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from teal.network.topology import Topology
from teal.runtime.arrays import FloatArray
from teal.serving.engine.answer import FIGURES, Answer
from teal.serving.engine.errors import wrong
from teal.serving.engine.listed import MAX_RATES, all_pairs, checked, from_triples, in_classes
from teal.serving.engine.requests import MAX_MATRICES

_MAX_FRAMES = 64  # kinds of streams that are kept
_MAX_FRAME_BYTES = 16 << 10  # of a frame: heads have some hundred bytes, and 8 more for a column

_Key = TypeVar("_Key", bound=Hashable)


class Frame(NamedTuple):
    """A stream apart from its numbers.

    Attributes:
        parts: bytes before the first place with numbers, between two, and after the last.
        sizes: bytes of each place.
        rows: number of rows of the table.
    """

    parts: tuple[bytes, ...]
    sizes: tuple[int, ...]
    rows: int

    @classmethod
    def of(cls, stream: bytes, places: Sequence[tuple[int, int]], rows: int) -> Frame:
        """The frame of a stream.

        Args:
            stream: all of its bytes.
            places: first byte and number of bytes of each place with numbers, ascending.
            rows: number of rows of its table.
        """
        ends = [0, *(first + size for first, size in places)]
        begins = [*(first for first, _ in places), len(stream)]
        parts = tuple(stream[end:begin] for end, begin in zip(ends, begins, strict=True))
        return cls(parts, tuple(size for _, size in places), rows)

    def filled(self, numbers: Sequence[bytes | memoryview]) -> bytes | None:
        """The stream of these numbers; None where they are of other sizes."""
        if tuple(map(len, numbers)) != self.sizes:
            return None
        pieces: list[bytes | memoryview] = [self.parts[0]]
        for array, part in zip(numbers, self.parts[1:], strict=True):
            pieces += (array, part)
        return b"".join(pieces)

    def place(self, stream: bytes) -> tuple[int, int] | None:
        """First byte and number of bytes of the numbers in a stream of one place; None where its
        other bytes are not those of the frame.
        """
        head, tail = self.parts
        (size,) = self.sizes
        is_alike = len(stream) == len(head) + size + len(tail) and (
            stream.startswith(head) and stream.endswith(tail)
        )
        return (len(head), size) if is_alike else None


class Frames(Generic[_Key]):
    """Frames by what tells kinds of streams apart."""

    def __init__(self) -> None:
        self._frames: dict[_Key, Frame] = {}

    def get(self, key: _Key) -> Frame | None:
        """The frame of a kind."""
        return self._frames.get(key)

    def keep(self, key: _Key, frame: Frame) -> None:
        """Keep a frame, unless it is large; where too many are kept, the others go."""
        if sum(map(len, frame.parts)) > _MAX_FRAME_BYTES:
            return
        if len(self._frames) >= _MAX_FRAMES:
            self._frames.clear()
        self._frames[key] = frame


def _place_of(column: Any, stream: Any) -> tuple[int, int] | None:
    """Where the numbers of a column stand in the stream that it was read from.

    Args:
        column: array of pyarrow, of numbers or of lists of numbers, that was not copied.
        stream: buffer of pyarrow that it was read from.

    Returns:
        first byte and number of bytes; None where the numbers are not one piece of the stream.
    """
    values = column
    while hasattr(values, "values"):  # a list's numbers, whole
        values = values.values
    numbers = values.buffers()[-1]
    if numbers is None or values.offset or column.offset:
        return None
    size = len(values) * values.type.bit_width // 8
    first = numbers.address - stream.address
    return (first, size) if 0 <= first <= stream.size - size else None


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    """The bytes of an array that is contiguous in memory."""
    return array.reshape(-1).view("u1").data


_read: Frames[int] = Frames()  # streams of lists of rates, by their length
_written: Frames[tuple[Any, ...]] = Frames()  # streams of answers, by all that is not a number


def from_arrow(body: bytes, topology: Topology, classes: Sequence[str] = ()) -> FloatArray:
    """(B, D) Gbit/s.

    Raises:
        ServiceError: no such table, or one whose content may be larger than it looks; a rate that
            is none.
    """
    rates = _framed_rates(body)
    if rates is None:
        return checked(_rates_of_table(body, topology, classes))
    return checked(in_classes(all_pairs(rates, topology), classes))


def _framed_rates(body: bytes) -> FloatArray | None:
    """The lists of rates of a stream, where another one was read that differs in its numbers
    alone.
    """
    frame = _read.get(len(body))
    place = None if frame is None else frame.place(body)
    if frame is None or place is None:
        return None
    first, size = place
    return np.frombuffer(body, np.float64, size // 8, first).reshape(frame.rows, -1)


def _rates_of_table(body: bytes, topology: Topology, classes: Sequence[str]) -> FloatArray:
    """The rates of any stream; see :func:`from_arrow`."""
    import pyarrow as pa

    try:
        refuse_compressed(body)
        buffer = pa.py_buffer(body)
        with pa.ipc.open_stream(buffer) as stream:
            _check_types(stream.schema)
            table = stream.read_all()
        if table.num_rows > MAX_RATES:
            raise wrong(f"rates: at most {MAX_RATES:,} a request")
        table.validate(full=True)
        if "rates" in table.column_names:
            rates = _listed_rates(table)
            _keep_read(body, buffer, table, rates)
            return in_classes(all_pairs(rates, topology), classes)
        return _named_rates(table, topology, classes)
    except (
        pa.ArrowException,
        struct.error,
        KeyError,
        ValueError,
        TypeError,
        OverflowError,
        OSError,
    ) as error:
        raise wrong(
            f"not an Arrow IPC stream of traffic matrices: {' '.join(str(error).split())[:200]}"
        ) from None


def _listed_rates(table: Any) -> FloatArray:
    """(B, D or N x N) rates of a table with a list for each matrix."""
    import pyarrow.compute as pc

    if not 1 <= table.num_rows <= MAX_MATRICES:
        raise wrong(f"rates: 1 to {MAX_MATRICES} matrices, not {table.num_rows}")
    column = table.column("rates").combine_chunks()
    if not _is_list(column.type):
        raise wrong("rates: a list of numbers a matrix")
    values = column.flatten()
    if len(values) > MAX_RATES:
        raise wrong(f"rates: at most {MAX_RATES:,} a request")
    flat = values.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
    lengths = pc.list_value_length(column)
    if (
        column.null_count
        or len(lengths.unique()) != 1
        or len(flat) != lengths[0].as_py() * table.num_rows
    ):
        raise wrong("rates: all matrices must be there, and of one length")
    rates: FloatArray = flat.reshape(table.num_rows, -1)
    return rates


def _named_rates(table: Any, topology: Topology, classes: Sequence[str]) -> FloatArray:
    """(B, D) rates of a table with a row for each demand."""
    names = set(table.column_names)
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


def _keep_read(body: bytes, buffer: Any, table: Any, rates: FloatArray) -> None:
    """Keep the frame of a stream of lists of float64, where its rates are one piece of it, from
    which nothing else is read.

    Args:
        body: the stream.
        buffer: buffer of pyarrow that ``table`` was read from.
        table: content of the stream.
        rates: (B, n) its rates.
    """
    import pyarrow as pa

    column = table.column("rates")
    if table.num_columns != 1 or column.num_chunks != 1:
        return
    values = column.chunk(0).values
    if values.type != pa.float64() or values.null_count:
        return
    place = _place_of(column.chunk(0), buffer)
    if place is None or place[1] != rates.nbytes:
        return
    first, size = place
    others = [one for one in column.chunk(0).buffers()[:-1] if one is not None]
    starts = [one.address - buffer.address for one in others]
    is_apart = all(
        start + one.size <= first or start >= first + size
        for start, one in zip(starts, others, strict=True)
    )
    # A list may begin behind the first number, or end before the last one.
    if is_apart and body[first : first + size] == rates.tobytes():
        _read.keep(len(body), Frame.of(body, [place], table.num_rows))


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
            raise wrong(
                f"column {field.name[:40]!r}: numbers or texts (rates: lists of numbers), not "
                f"{str(kind)[:80]}"
            )


def _is_list(kind: Any) -> bool:
    import pyarrow.types as t

    return bool(t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind))


def refuse_compressed(body: bytes) -> None:
    """Raise ServiceError for compressed buffers: they may be a thousand times as large as they
    look.

    pyarrow has no word for it, so this reads the field ``compression`` of each RecordBatch in the
    message's flatbuffer (Message.fbs of the Arrow format: field 1 of a Message is the header's
    type, 2 the header; 3 of a RecordBatch).
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
    numbers = _numbers(answer)
    shape = {"demands": answer.splits.shape[1], "paths": answer.splits.shape[2]}
    metadata = json.dumps({**shape, **answer.cost, **further, **answer.lines})
    # Spaces at the end of JSON mean nothing, and texts of few lengths have few frames.
    text = metadata.encode() + b" " * (-len(metadata) % _METADATA_STEP)
    kinds = tuple((name, array.dtype.char, array.shape) for name, array in numbers.items())
    key = (*kinds, answer.status, len(text))
    frame = _written.get(key)
    stream = None
    if frame is not None:
        stream = frame.filled([text, *map(_bytes_of, numbers.values())])
    return _stream_of_table(numbers, answer.status, text, key) if stream is None else stream


_METADATA_STEP = 64  # bytes that the length of an answer's metadata is a multiple of


def _numbers(answer: Answer) -> dict[str, npt.NDArray[Any]]:
    """The numbers of an answer by the names of their columns, contiguous in memory."""
    name, shares = answer.shares
    numbers = {figure: getattr(answer, figure) for figure in FIGURES}
    numbers |= answer.of_conditions
    numbers["utilisation"] = answer.utilisation.astype(np.float32)
    numbers[name] = shares.reshape(len(shares), -1)
    if answer.weights is not None:
        numbers["admitted_share"] = answer.admitted_share
    return {name: np.ascontiguousarray(array) for name, array in numbers.items()}


def _stream_of_table(
    numbers: dict[str, npt.NDArray[Any]],
    status: tuple[str, ...],
    text: bytes,
    key: tuple[Any, ...],
) -> bytes:
    """The stream of an answer as pyarrow writes it, whose frame is kept.

    Args:
        numbers: columns, see :func:`_numbers`.
        status: status of each matrix.
        text: metadata.
        key: key of the frame.
    """
    import pyarrow as pa

    columns: dict[str, Any] = {}
    for name, array in numbers.items():
        flat = pa.array(array.reshape(-1))
        is_list = array.ndim > 1
        columns[name] = pa.FixedSizeListArray.from_arrays(flat, array.shape[1]) if is_list else flat
        if name == FIGURES[-1]:
            columns["status"] = pa.array(status)
    schema = pa.schema(
        [(name, column.type) for name, column in columns.items()], metadata={b"teal": text}
    )
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(pa.record_batch(list(columns.values()), schema=schema))
    written = sink.getvalue()
    _keep_written(written, text, list(numbers), key)
    return written


def _keep_written(stream: bytes, text: bytes, names: list[str], key: tuple[Any, ...]) -> None:
    """Keep the frame of an answer, where all its numbers and its metadata are found in it."""
    import pyarrow as pa

    buffer = pa.py_buffer(stream)
    with pa.ipc.open_stream(buffer) as read:
        batch = read.read_next_batch()
    places = [_place_of(batch.column(name), buffer) for name in names]
    found = [place for place in places if place is not None]
    if len(found) < len(names) or stream.count(text) != 1:
        return
    places_of_all = [(stream.index(text), len(text)), *found]
    if places_of_all == sorted(places_of_all):
        _written.keep(key, Frame.of(stream, places_of_all, batch.num_rows))


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
    share = (
        table.column("admitted_share")[-1].values.to_numpy(zero_copy_only=False).astype(np.float64)
    )
    return splits / np.maximum(1, splits.sum(1, keepdims=True)) * share[:, None]
