"""Arrow IPC streams of requests and answers.

A request is a table with one row per matrix and a list column ``rates`` (all pairs of nodes in the
order of the network's paths, or N x N row by row), or one row per demand: ``source``, ``target``,
``rate`` and optionally ``matrix`` and ``class``. With C classes, ``rates`` has C rows per matrix,
and D below is the number of pairs times C, class by class. An answer has one row per matrix: value,
bound, gap, satisfied_demand, max_link_utilisation, status, utilisation (E values), splits (D x K,
row by row; or integer weights, with admitted_share, D values). Shapes are in the schema's metadata.

Streams of equal schema and shapes differ in their numbers only. A :class:`StreamTemplate` keeps the
constant bytes of a stream that pyarrow has read or written; the next such stream is read or written
by copying bytes. pyarrow takes 0.1 ms for a stream and releases Python's lock a dozen times, for
which it waits while the solver computes. Entry points: :func:`from_arrow`, :func:`to_arrow`.
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
from teal_serve.engine.answer import METRICS, Answer
from teal_serve.engine.errors import invalid_request
from teal_serve.engine.request_rates import (
    MAX_RATES,
    all_pairs,
    check_rates,
    from_triples,
    in_classes,
)
from teal_serve.engine.requests import MAX_MATRICES

# Maximum number of templates in a cache.
_MAX_TEMPLATES = 64
# Maximum constant bytes of a template; usual streams have some hundred, and 8 more per column.
_MAX_TEMPLATE_BYTES = 16 << 10

_Key = TypeVar("_Key", bound=Hashable)


class StreamTemplate(NamedTuple):
    """Constant bytes of a stream, with slots for its numbers.

    Attributes:
        constant_parts: constant bytes before the first slot, between two slots, and after the last
            one; one more than slots.
        slot_sizes: number of bytes of each slot.
        num_rows: number of rows of the table.
    """

    constant_parts: tuple[bytes, ...]
    slot_sizes: tuple[int, ...]
    num_rows: int

    @classmethod
    def of(cls, stream: bytes, slots: Sequence[tuple[int, int]], num_rows: int) -> StreamTemplate:
        """Build the template of a stream: cut the bytes of its slots out of it.

        Args:
            stream: all bytes.
            slots: first byte and number of bytes of each slot, ascending.
            num_rows: number of rows of the table.
        """
        # A constant part lies between the end of a slot and the start of the next one.
        ends = [0, *(first + num_bytes for first, num_bytes in slots)]
        starts = [*(first for first, _ in slots), len(stream)]
        constant_parts = tuple(stream[end:begin] for end, begin in zip(ends, starts, strict=True))
        return cls(constant_parts, tuple(num_bytes for _, num_bytes in slots), num_rows)

    def fill(self, numbers: Sequence[bytes | memoryview]) -> bytes | None:
        """Return the stream with numbers in its slots; None if their sizes do not fit.

        Args:
            numbers: bytes for each slot, in the order of the stream.
        """
        if tuple(map(len, numbers)) != self.slot_sizes:
            return None
        pieces: list[bytes | memoryview] = [self.constant_parts[0]]
        for number_bytes, constant_part in zip(numbers, self.constant_parts[1:], strict=True):
            pieces += (number_bytes, constant_part)
        return b"".join(pieces)

    def locate(self, stream: bytes) -> tuple[int, int] | None:
        """Return first byte and number of bytes of the numbers in a stream with one slot.

        None if the constant bytes of the stream differ from those of the template.
        """
        # One slot lies between two constant parts.
        head, tail = self.constant_parts
        (slot_size,) = self.slot_sizes
        is_match = len(stream) == len(head) + slot_size + len(tail) and (
            stream.startswith(head) and stream.endswith(tail)
        )
        return (len(head), slot_size) if is_match else None


class TemplateCache(Generic[_Key]):
    """Cache of templates, by a key of streams with the same constant bytes."""

    def __init__(self) -> None:
        self._templates: dict[_Key, StreamTemplate] = {}

    def get(self, key: _Key) -> StreamTemplate | None:
        """Return the template with a key; None if it is not cached."""
        return self._templates.get(key)

    def add(self, key: _Key, template: StreamTemplate) -> None:
        """Cache a template unless it is too large; a full cache is cleared first."""
        if sum(map(len, template.constant_parts)) > _MAX_TEMPLATE_BYTES:
            return
        if len(self._templates) >= _MAX_TEMPLATES:
            self._templates.clear()
        self._templates[key] = template


def _byte_range(column: Any, stream: Any) -> tuple[int, int] | None:
    """Return the position of a column's numbers in the stream from which it was read.

    Args:
        column: pyarrow array of numbers or of lists of numbers, which shares the stream's memory.
        stream: pyarrow buffer of the stream.

    Returns:
        first byte and number of bytes; None if the numbers are not contiguous in the stream.
    """
    number_array = column
    # Get the flat array of numbers inside the lists.
    while hasattr(number_array, "values"):
        number_array = number_array.values
    # The last buffer has the numbers; an array with an offset starts inside of its buffer.
    numbers = number_array.buffers()[-1]
    if numbers is None or number_array.offset or column.offset:
        return None
    num_bytes = len(number_array) * number_array.type.bit_width // 8
    first_byte = numbers.address - stream.address
    return (first_byte, num_bytes) if 0 <= first_byte <= stream.size - num_bytes else None


def _byte_view(array: npt.NDArray[Any]) -> memoryview:
    """Return the bytes of a contiguous array, without a copy."""
    return array.reshape(-1).view("u1").data


# Templates of requests with lists of rates, by the number of bytes of the stream.
_request_templates: TemplateCache[int] = TemplateCache()
# Templates of answers, by column types and shapes, status, and length of the metadata.
_response_templates: TemplateCache[tuple[Any, ...]] = TemplateCache()


def from_arrow(body: bytes, topology: Topology, classes: Sequence[str] = ()) -> FloatArray:
    """Decode the rates of an Arrow stream, from a cached template if possible.

    Args:
        body: bytes of the stream.
        topology: topology of the network.
        classes: names of the C demand classes; empty without classes.

    Returns:
        (B, D) rates of B matrices, Gbit/s; D is the number of pairs of nodes, times C with classes,
        class by class.

    Raises:
        ServiceError: a table of another form, content that may be larger than the body, or an
            invalid rate.
    """
    rates = _rates_by_template(body)
    if rates is None:
        return check_rates(_rates_of_table(body, topology, classes))
    return check_rates(in_classes(all_pairs(rates, topology), classes))


def _rates_by_template(body: bytes) -> FloatArray | None:
    """Return the rates of a stream that matches a cached template, without pyarrow; else None.

    Args:
        body: bytes of the stream.

    Returns:
        (rows, n) Gbit/s, a read-only view of the body: a row for each matrix, or with classes for
        each class of each matrix.
    """
    template = _request_templates.get(len(body))
    slot = None if template is None else template.locate(body)
    if template is None or slot is None:
        return None
    first_byte, num_bytes = slot
    return np.frombuffer(body, np.float64, num_bytes // 8, first_byte).reshape(
        template.num_rows, -1
    )


def _rates_of_table(body: bytes, topology: Topology, classes: Sequence[str]) -> FloatArray:
    """Decode the rates (B, D) of any stream by pyarrow, Gbit/s, and cache its template.

    Args:
        body: bytes of the stream.
        topology: topology of the network.
        classes: names of the demand classes; empty without classes.

    Raises:
        ServiceError: a table of another form, or content that may be larger than the body.
    """
    import pyarrow as pa

    try:
        # Refuse content that may be larger than the body, then read the table.
        refuse_compressed(body)
        buffer = pa.py_buffer(body)
        with pa.ipc.open_stream(buffer) as stream:
            _check_types(stream.schema)
            table = stream.read_all()
        if table.num_rows > MAX_RATES:
            raise invalid_request(
                f"rates: more than {MAX_RATES:,} rows in a request; send fewer demands or matrices"
            )
        table.validate(full=True)
        # Decode a list of rates for each matrix, or a row for each demand.
        if "rates" in table.column_names:
            rates = _listed_rates(table)
            _cache_request_template(body, buffer, table, rates)
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
        raise invalid_request(
            f"not an Arrow IPC stream of traffic matrices: {' '.join(str(error).split())[:200]}"
        ) from None


def _listed_rates(table: Any) -> FloatArray:
    """Return the rates (rows, n), Gbit/s, of a pyarrow table with a list of n rates in each row.

    Raises:
        ServiceError: no list column, null entries, different lengths, or too many rates.
    """
    import pyarrow.compute as pc

    # Check the number of matrices, the type of the column, and the number of rates.
    if not 1 <= table.num_rows <= MAX_MATRICES:
        raise invalid_request(
            f"rates: {table.num_rows} matrices in a request; send 1 to {MAX_MATRICES}"
        )
    column = table.column("rates").combine_chunks()
    if not _is_list(column.type):
        raise invalid_request(
            "rates: not a column of lists; send a list of numbers for each matrix"
        )
    values = column.flatten()
    if len(values) > MAX_RATES:
        raise invalid_request(
            f"rates: {len(values):,} rates in a request; send at most {MAX_RATES:,}"
        )
    # Convert the lists, which must all have the same length.
    flat_rates = values.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
    lengths = pc.list_value_length(column)
    if (
        column.null_count
        or len(lengths.unique()) != 1
        or len(flat_rates) != lengths[0].as_py() * table.num_rows
    ):
        raise invalid_request(
            "rates: null entries or matrices of different lengths; send lists of one length"
        )
    rates: FloatArray = flat_rates.reshape(table.num_rows, -1)
    return rates


def _named_rates(table: Any, topology: Topology, classes: Sequence[str]) -> FloatArray:
    """Return the rates (B, D), Gbit/s, of a pyarrow table with a row for each demand.

    Args:
        table: columns source, target and rate; optionally matrix (index) and class (name).
        topology: topology of the network.
        classes: names of the demand classes; empty without classes.

    Raises:
        ServiceError: missing columns, null entries, unknown nodes or classes, or repeated demands.
    """
    # Check the required columns.
    names = set(table.column_names)
    if not {"source", "target", "rate"} <= names:
        raise invalid_request(
            "columns: missing; send rates, or source, target and rate (optional: matrix, class)"
        )
    required_columns = [
        table.column(name).combine_chunks() for name in ("source", "target", "rate")
    ]
    if any(column.null_count for column in required_columns):
        raise invalid_request(
            "source, target, rate: null values are not allowed; send a value in each row"
        )
    # Read the optional columns, and scatter the rates to matrices.
    matrix_index = table.column("matrix").to_numpy() if "matrix" in names else None
    class_names = table.column("class").to_pylist() if "class" in names else None
    source, target, rate = required_columns
    return from_triples(
        source.to_pylist(),
        target.to_pylist(),
        rate.to_numpy(),
        matrix_index,
        topology,
        class_names,
        classes,
    )


def _cache_request_template(body: bytes, buffer: Any, table: Any, rates: FloatArray) -> None:
    """Cache the template of a stream, so that the next such stream is decoded without pyarrow.

    The stream must have one column of float64 lists, whose numbers are contiguous and overlap no
    other buffer.

    Args:
        body: bytes of the stream.
        buffer: pyarrow buffer from which ``table`` was read.
        table: content of the stream.
        rates: (rows, n) decoded rates.
    """
    import pyarrow as pa

    # Require a single column of float64 lists without nulls, and locate its numbers.
    column = table.column("rates")
    if table.num_columns != 1 or column.num_chunks != 1:
        return
    values = column.chunk(0).values
    if values.type != pa.float64() or values.null_count:
        return
    slot = _byte_range(column.chunk(0), buffer)
    if slot is None or slot[1] != rates.nbytes:
        return
    first_byte, num_bytes = slot
    # Require that all other buffers lie outside of the numbers.
    other_buffers = [
        other_buffer for other_buffer in column.chunk(0).buffers()[:-1] if other_buffer is not None
    ]
    other_starts = [other_buffer.address - buffer.address for other_buffer in other_buffers]
    is_disjoint = all(
        start + other_buffer.size <= first_byte or start >= first_byte + num_bytes
        for start, other_buffer in zip(other_starts, other_buffers, strict=True)
    )
    # List offsets may skip numbers at the start or end of the buffer: compare the bytes.
    if is_disjoint and body[first_byte : first_byte + num_bytes] == rates.tobytes():
        _request_templates.add(len(body), StreamTemplate.of(body, [slot], table.num_rows))


def _check_types(schema: Any) -> None:
    """Raise ServiceError unless all columns are numbers or strings, or rates lists of numbers.

    Other types, such as nulls, can have content that is much larger than the body.
    """
    import pyarrow.types as t

    def is_number(dtype: Any) -> bool:
        """Return whether a pyarrow type is a floating-point number or an integer."""
        return bool(t.is_floating(dtype) or t.is_integer(dtype))

    for field in schema:
        dtype = field.type
        # Lists of fixed size 0 are refused: any number of them takes no bytes.
        is_rate_list = (
            field.name == "rates" and _is_list(dtype) and getattr(dtype, "list_size", 1) > 0
        )
        is_number_or_string = is_number(dtype) or t.is_string(dtype) or t.is_large_string(dtype)
        if not (is_number_or_string or (is_rate_list and is_number(dtype.value_type))):
            raise invalid_request(
                f"column {field.name[:40]!r}: unsupported type {str(dtype)[:80]}; use numbers or "
                "strings, and for rates lists of numbers"
            )


def _is_list(dtype: Any) -> bool:
    """Return whether a pyarrow type is a list, with 32-bit or 64-bit offsets or of fixed size."""
    import pyarrow.types as t

    return bool(t.is_list(dtype) or t.is_large_list(dtype) or t.is_fixed_size_list(dtype))


def refuse_compressed(body: bytes) -> None:
    """Raise ServiceError for compressed or dictionary-encoded buffers.

    Such buffers may expand to a thousand times their size.

    pyarrow does not expose compression, so this reads the field ``compression`` of each RecordBatch
    from the message's flatbuffer. In Message.fbs of the Arrow format, field 2 of a Message is the
    header, here a RecordBatch, and field 3 of a RecordBatch is its compression.
    """
    import pyarrow as pa

    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(body)):
        if message.type == "record batch":
            # The first 4 bytes are the position of the root table, the Message. A field that is a
            # table holds the offset from the field to that table.
            flatbuffer = message.metadata.to_pybytes()
            record_batch_field = _flatbuffer_field(
                flatbuffer, struct.unpack_from("<I", flatbuffer, 0)[0], 2
            )
            # Follow the offset to the RecordBatch; its field 3 is present if it is compressed.
            if record_batch_field and _flatbuffer_field(
                flatbuffer,
                record_batch_field + struct.unpack_from("<I", flatbuffer, record_batch_field)[0],
                3,
            ):
                raise invalid_request(
                    "body: compressed Arrow buffers; send Arrow without compression"
                )
        elif message.type == "dictionary":
            raise invalid_request(
                "body: dictionary-encoded column; send Arrow without dictionaries"
            )


def _flatbuffer_field(flatbuffer: bytes, table_position: int, field_index: int) -> int:
    """Return the position of a field of a flatbuffer table; 0 if it is absent.

    A table starts with the offset back to its vtable: 16-bit size of the vtable, 16-bit size of the
    table, then the 16-bit offset of each field from the table, 0 for absent fields.

    Args:
        flatbuffer: bytes of the flatbuffer.
        table_position: position of the table.
        field_index: index of the field, from 0.
    """
    vtable_position = table_position - struct.unpack_from("<i", flatbuffer, table_position)[0]
    # Offsets of fields start at byte 4 of the vtable; a shorter vtable lacks the last fields.
    if 4 + 2 * field_index >= struct.unpack_from("<H", flatbuffer, vtable_position)[0]:
        return 0
    offset = int(struct.unpack_from("<H", flatbuffer, vtable_position + 4 + 2 * field_index)[0])
    return table_position + offset if offset else 0


def to_arrow(answer: Answer, extra_metadata: dict[str, Any]) -> bytes:
    """Encode an answer as an Arrow stream, from a cached template if possible.

    Args:
        answer: answer to the matrices.
        extra_metadata: fields of the schema's metadata beside shapes, times, classes and levels.
    """
    # Collect columns and metadata. The JSON is padded with spaces: fewer lengths need fewer
    # templates.
    numeric_columns = _numeric_columns(answer)
    shape = {"demands": answer.splits.shape[1], "paths": answer.splits.shape[2]}
    metadata = json.dumps({**shape, **answer.cost, **extra_metadata, **answer.lines})
    metadata_bytes = metadata.encode() + b" " * (-len(metadata) % _METADATA_ALIGNMENT)
    column_types = tuple(
        (name, array.dtype.char, array.shape) for name, array in numeric_columns.items()
    )
    # Fill the template of an earlier answer with the same schema and shapes.
    key = (*column_types, answer.status, len(metadata_bytes))
    template = _response_templates.get(key)
    stream = None
    if template is not None:
        stream = template.fill([metadata_bytes, *map(_byte_view, numeric_columns.values())])
    return (
        _stream_of_table(numeric_columns, answer.status, metadata_bytes, key)
        if stream is None
        else stream
    )


# The length of an answer's metadata is padded to a multiple of this number of bytes.
_METADATA_ALIGNMENT = 64


def _numeric_columns(answer: Answer) -> dict[str, npt.NDArray[Any]]:
    """Return the numeric columns of an answer by name, as contiguous arrays.

    Arrays are (B,) for figures, and (B, n) for list columns: utilisation (E values), splits or
    weights (D * K values), with weights the served fractions (D values).
    """
    name, path_values = answer.splits_or_weights
    numbers = {figure: getattr(answer, figure) for figure in METRICS}
    numbers |= answer.condition_figures
    numbers["utilisation"] = answer.utilisation.astype(np.float32)
    numbers[name] = path_values.reshape(len(path_values), -1)
    if answer.weights is not None:
        numbers["admitted_share"] = answer.admitted_share
    return {name: np.ascontiguousarray(array) for name, array in numbers.items()}


def _stream_of_table(
    numeric_columns: dict[str, npt.NDArray[Any]],
    status: tuple[str, ...],
    metadata_bytes: bytes,
    key: tuple[Any, ...],
) -> bytes:
    """Encode an answer with pyarrow, and cache the template of the stream.

    Args:
        numeric_columns: name -> contiguous array (B,) or (B, n) of each numeric column.
        status: (B,) status of each matrix.
        metadata_bytes: encoded metadata.
        key: key of the template.
    """
    import pyarrow as pa

    # Build the columns; status follows the last of the figures.
    columns: dict[str, Any] = {}
    for name, array in numeric_columns.items():
        flat = pa.array(array.reshape(-1))
        is_list = array.ndim > 1
        columns[name] = pa.FixedSizeListArray.from_arrays(flat, array.shape[1]) if is_list else flat
        if name == METRICS[-1]:
            columns["status"] = pa.array(status)
    schema = pa.schema(
        [(name, column.type) for name, column in columns.items()],
        metadata={b"teal": metadata_bytes},
    )
    # Write the stream.
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(pa.record_batch(list(columns.values()), schema=schema))
    stream_bytes = sink.getvalue()
    _cache_response_template(stream_bytes, metadata_bytes, list(numeric_columns), key)
    return stream_bytes


def _cache_response_template(
    stream: bytes, metadata_bytes: bytes, column_names: list[str], key: tuple[Any, ...]
) -> None:
    """Cache the template of an encoded answer, with slots for metadata and numeric columns.

    Nothing is cached if a column is not contiguous in the stream, or the metadata occurs twice.

    Args:
        stream: bytes of the answer.
        metadata_bytes: encoded metadata.
        column_names: names of the numeric columns, in the order of the stream.
        key: key of the template.
    """
    import pyarrow as pa

    buffer = pa.py_buffer(stream)
    with pa.ipc.open_stream(buffer) as reader:
        batch = reader.read_next_batch()
    ranges = [_byte_range(batch.column(name), buffer) for name in column_names]
    known_ranges = [byte_range for byte_range in ranges if byte_range is not None]
    if len(known_ranges) < len(column_names) or stream.count(metadata_bytes) != 1:
        return
    slots = [(stream.index(metadata_bytes), len(metadata_bytes)), *known_ranges]
    # A template needs its slots in the order of the stream.
    if slots == sorted(slots):
        _response_templates.add(key, StreamTemplate.of(stream, slots, batch.num_rows))


def last_splits(body: bytes) -> FloatArray:
    """Return the splits (D, K) of the last matrix of an answer in Arrow.

    The integer weights w of a demand become splits s[k] = served fraction * w[k] / sum(w).

    Args:
        body: bytes of the answer.
    """
    import pyarrow as pa

    with pa.ipc.open_stream(pa.BufferReader(body)) as stream:
        table = stream.read_all()
    metadata = json.loads(table.schema.metadata[b"teal"])
    # Read splits or integer weights; weights also need the served fraction (D,) of each demand.
    name = "splits" if "splits" in table.column_names else "weights"
    values = table.column(name)[-1].values.to_numpy(zero_copy_only=False).astype(np.float64)
    splits_or_weights = np.asarray(values.reshape(metadata["demands"], metadata["paths"]))
    if name == "splits":
        return splits_or_weights
    served_fraction = (
        table.column("admitted_share")[-1].values.to_numpy(zero_copy_only=False).astype(np.float64)
    )
    # Divide weights by their sum (1 for a demand without weights), times the served fraction.
    return (
        splits_or_weights
        / np.maximum(1, splits_or_weights.sum(1, keepdims=True))
        * served_fraction[:, None]
    )
