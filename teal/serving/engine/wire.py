"""Requests with matrices, and their answers, as they travel: JSON for people, Arrow IPC streams for
size.

Arrow IPC streams, for size.

A request is a table with either one row a matrix and a list column ``rates`` (all pairs of nodes in
the order of the network's paths, or N x N row by row), or one row a demand: ``source``, ``target``,
``rate`` and perhaps ``matrix`` and ``class``.  With C classes, ``rates`` has C rows a matrix, and D
below is the number of pairs times C, class by class. An answer has one row a matrix: value, bound,
gap, satisfied_demand, max_link_utilisation, status, utilisation (E values), splits (D x K, row by
row; or weights, whole numbers, with admitted_share, D values).  Shapes stand in the schema's
metadata.
"""

from __future__ import annotations

import io
import itertools
import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from teal.network.topology import Topology
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array
from teal.serving.engine.answer import FIGURES, Answer, plain
from teal.serving.engine.backend import Found, Sent
from teal.serving.engine.errors import ARROW, JSON, ServiceError, wrong
from teal.serving.engine.requests import (
    MAX_MATRICES,
    AllocationRequest,
    CounterReadings,
    Form,
    MeasurementOptions,
    MeasurementRequest,
    Options,
    parsed,
)
from teal.serving.engine.served import Served

MAX_RATES = 1 << 24  # of a request
_LARGEST_RATE = 1e12  # Gbit/s


def all_pairs(rates: FloatArray, topology: Topology) -> FloatArray:
    """(B, D) Gbit/s from (B, D) or (B, N x N).

    Raises:
        ServiceError: another number of rates.
    """
    nodes = topology.num_nodes
    pairs = nodes * (nodes - 1)
    if rates.shape[1] == pairs and rates.shape[1] != nodes * nodes:
        return rates
    if rates.shape[1] != nodes * nodes:
        raise wrong(
            f"rates: {pairs} (all pairs) or {nodes * nodes} (N x N) a matrix, not {rates.shape[1]}"
        )
    return rates[:, ~np.eye(nodes, dtype=bool).reshape(-1)]


def pair_number(source: Any, target: Any, nodes: int) -> Any:
    """Place of a pair, or of several, among all pairs of so many nodes, of their numbers."""
    return source * (nodes - 1) + target - (target > source)


def in_classes(rates: FloatArray, classes: Sequence[str]) -> FloatArray:
    """(B, C * D) Gbit/s, class by class, from (B * C, D), the classes of a matrix one after the
    other.

    Raises:
        ServiceError: a number of matrices that is no multiple of C.
    """
    count = max(1, len(classes))
    if len(rates) % count:
        raise wrong(
            f"rates: a matrix for each of the {count} classes of each matrix, not {len(rates)}"
        )
    return rates.reshape(len(rates) // count, -1)


def from_triples(
    source: list[Any],
    target: list[Any],
    rate: FloatArray,
    matrix: Any,
    topology: Topology,
    of_class: Sequence[Any] | None = None,
    classes: Sequence[str] = (),
) -> FloatArray:
    """(B, C * D) Gbit/s from demands by name; C is 1 without classes.

    Args:
        source: name of a node, of each demand.
        target: likewise.
        rate: Gbit/s.
        matrix: number of the matrix; None if there is one.
        topology: the network.
        of_class: name of the class of each demand, or None.
        classes: names of all classes.

    Raises:
        ServiceError: an unknown node or class, a pair twice, or too many matrices.
    """
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
    if row.min(initial=0) < 0 or count > MAX_MATRICES:
        raise wrong(f"matrix: numbers from 0 to {MAX_MATRICES - 1}")
    size = max(1, len(classes)) * nodes * (nodes - 1)
    if count * size > MAX_RATES:
        raise wrong(f"matrix: at most {MAX_RATES // size} matrices of this network at once")
    rates = np.zeros((count, size))
    place = pair_number(s, t, nodes) + nodes * (nodes - 1) * _class_numbers(
        of_class, len(s), classes
    )
    if len(np.unique(row * rates.shape[1] + place)) < len(place):
        raise wrong("demands: each pair of nodes once a matrix and class")
    rates[row, place] = rate
    return rates


def _class_numbers(
    of_class: Sequence[Any] | None, count: int, classes: Sequence[str]
) -> Int64Array:
    """(n,) number of the class of each demand; 0 without classes.

    Raises:
        ServiceError: an unknown class, none where there are classes, or one where there are none.
    """
    names = [None] * count if of_class is None else of_class
    known: dict[Any, int] = {name: number for number, name in enumerate(classes)} or {None: 0}
    for name in names:
        if name not in known:
            expected = (
                "one of " + ", ".join(classes) if classes else "none, since no classes are given"
            )
            raise wrong(f"class: {expected[:200]}, not {str(name)[:80]!r}")
    return np.array([known[name] for name in names], np.int64)


def checked(rates: FloatArray) -> FloatArray:
    """The rates.

    Raises:
        ServiceError: one that is negative, infinite or NaN, or too many.
    """
    if rates.size > MAX_RATES:
        raise wrong(
            f"rates: at most {MAX_RATES // rates.shape[1]} matrices of this network at once"
        )
    bad = ~((rates >= 0) & (rates <= _LARGEST_RATE))
    if bad.any():
        row, column = np.argwhere(bad)[0].tolist()
        where = f"(matrix {row}, demand {column})"
        raise wrong(
            f"rates: a finite number from 0 to {_LARGEST_RATE:g}, not {rates[row, column]} {where}"
        )
    return rates


def named(
    answer: Answer, served: Served, rates: FloatArray, options: Options
) -> Iterator[dict[str, Any]]:
    """:class:`responses.NamedAllocation`, one a matrix; ``demands`` is an iterator, which is read
    once.

    Of many demands not all are in memory at once: Python's garbage collector stops all threads for
    as long as it takes to visit what is there.

    Args:
        answer: to the matrices.
        served: the network.
        rates: (B, D) Gbit/s that were allocated, class by class; of 0 only those are in the answer
            that were listed.
        options: classes, and the demands that were listed.
    """
    topology, classes = served.topology, options.classes
    is_listed = _zeros(options, topology)
    names = topology.node_names
    ends = [
        (names[s], names[t])
        for s, t in zip(topology.link_source, topology.link_target, strict=True)
    ]
    for b, row in enumerate(rates):
        admitted = row * np.minimum(1.0, answer.splits[b].sum(-1, dtype=np.float64))
        yield {
            **{figure: plain(getattr(answer, figure)[b]) for figure in FIGURES},
            "status": answer.status[b],
            **answer.further(b),
            "shed": max(0.0, float(row.sum() - admitted.sum())),
            "demands": _demands(answer, served, b, row, admitted, classes, (row > 0) | is_listed),
            "utilisation": [
                {"link": e, "source": source, "target": target, "utilisation": plain(used)}
                for e, ((source, target), used) in enumerate(
                    zip(ends, answer.utilisation[b].tolist(), strict=True)
                )
            ],
        }


def _demands(
    answer: Answer,
    served: Served,
    b: int,
    rates: FloatArray,
    admitted: FloatArray,
    classes: Sequence[str],
    is_listed: BoolArray,
) -> Iterator[dict[str, Any]]:
    """Yield a :class:`teal.serving.engine.responses.DemandAnswer` for some demands of one matrix.

    Args:
        answer, served, classes: as in :func:`named`.
        b: number of the matrix.
        rates: (D,) requested rate of each demand, Gbit/s.
        admitted: (D,) part of it that is carried, Gbit/s.
        is_listed: (D,) the demands.
    """
    names, pairs = served.topology.node_names, served.paths.num_demands
    for d in np.flatnonzero(is_listed).tolist():
        paths, of_demand = [], answer.splits[b, d]
        for k in np.flatnonzero(of_demand).tolist():
            nodes, links = served.route(d % pairs, k)
            share: dict[str, Any] = {"nodes": nodes, "links": links}
            if answer.weights is None:
                share["split"] = float(of_demand[k])
            else:
                share["weight"] = int(answer.weights[b, d, k])
            paths.append(share)
        source, target = served.paths.pairs[d % pairs]
        of_class = {"class": classes[d // pairs]} if classes else {}
        ends = {"source": names[source], "target": names[target]}
        yield {
            **ends,
            **of_class,
            "demand": float(rates[d]),
            "admitted": float(admitted[d]),
            "paths": paths,
        }


def splits_of(allocation: dict[str, Any], served: Served) -> FloatArray:
    """(D, K) splits of one of :func:`named`'s allocations; weights as shares of what is admitted.

    Raises:
        KeyError: a node that the network has not.
    """
    index, nodes = served.topology.node_index(), served.topology.num_nodes
    splits = np.zeros((served.paths.num_demands, served.paths.num_paths))
    for demand in allocation["demands"]:
        d = pair_number(index[demand["source"]], index[demand["target"]], nodes)
        for path in demand["paths"]:
            known = (
                k
                for k in np.flatnonzero(served.paths.mask[d]).tolist()
                if served.route(d, k)[1] == path["links"]
            )
            splits[d, next(known)] = path["split"] if "split" in path else path["weight"]
        if any("weight" in path for path in demand["paths"]):
            share = demand["admitted"] / demand["demand"] if demand["demand"] > 0 else 1.0
            splits[d] *= share / splits[d].sum()
    return splits


def _zeros(options: Options, topology: Topology) -> BoolArray:
    """(D,) the demands of rate 0 that a request lists, class by class."""
    listed = [demand for demand in getattr(options, "demands", None) or () if demand.rate == 0]
    source, target = [demand.source for demand in listed], [demand.target for demand in listed]
    of_class, ones = [demand.of_class for demand in listed], np.ones(len(listed))
    return np.asarray(
        from_triples(source, target, ones, None, topology, of_class, options.classes)[0] > 0
    )


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
        if table.num_rows > MAX_RATES:
            raise wrong(f"rates: at most {MAX_RATES:,} a request")
        table.validate(full=True)
        names = set(table.column_names)
        if "rates" in names:
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
            source.to_pylist(),
            target.to_pylist(),
            rate.to_numpy(),
            matrix,
            topology,
            of_class,
            classes,
        )
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
    share = (
        table.column("admitted_share")[-1].values.to_numpy(zero_copy_only=False).astype(np.float64)
    )
    return splits / np.maximum(1, splits.sum(1, keepdims=True)) * share[:, None]


MAX_NUMBERS = 1 << 26  # splits, or utilisations, of an answer; 268 MB as float32
_MAX_JSON = 500_000  # splits of a dense answer in JSON, or utilisations of any
_ENCODED_AT_ONCE = 200  # entries of a list that one call encodes, while other threads wait: 1 ms
_MAX_NAMED = 20_000  # demands of an answer by name


def asked(sent: Sent) -> AllocationRequest | Options:
    """The options of a request: all of it that can be read without its network.

    Raises:
        ServiceError: anything that is not as the API says.
    """
    return (
        parsed(Options, sent.query)
        if sent.media_type == ARROW
        else parsed(AllocationRequest, sent.body)
    )


def read(sent: Sent, options: AllocationRequest | Options, topology: Topology) -> FloatArray | None:
    """Rates (B, D), Gbit/s, over all pairs, class by class; None for the next interval.

    Raises:
        ServiceError: anything that is not as the API says.
    """
    if isinstance(options, AllocationRequest):
        return None if options.wanted == "next" else _rates(options, topology)
    return checked(from_arrow(sent.body, topology, options.classes))


class SentMeasurements(NamedTuple):
    """Measurements in a request: matrices or readings of counters.

    Attributes:
        rates: (B, D) Gbit/s, over all pairs of nodes; None for counters alone.
        times: times of the matrices.
        counters: counters of the interval; None if none were sent.
    """

    rates: FloatArray | None
    times: list[np.datetime64]
    counters: CounterReadings | None


def asked_to_measure(sent: Sent) -> MeasurementRequest | MeasurementOptions:
    """The options of measurements: all of a request that can be read without its network.

    Raises:
        ServiceError: anything that is not as the API says.
    """
    is_arrow = sent.media_type == ARROW
    return (
        parsed(MeasurementOptions, sent.query)
        if is_arrow
        else parsed(MeasurementRequest, sent.body)
    )


def read_measured(
    sent: Sent, when: MeasurementRequest | MeasurementOptions, topology: Topology
) -> SentMeasurements:
    """The measurements in a request.

    Raises:
        ServiceError: anything that is not as the API says.
    """
    rates: FloatArray | None
    counters = None
    if isinstance(when, MeasurementRequest):
        counters = when.counters
        rates = None if when.demands is None and when.rates is None else _rates(when, topology)
    else:
        rates = checked(from_arrow(sent.body, topology))
    count = 1 if rates is None else len(rates)
    if counters is not None and count > 1:
        raise wrong("counters: of one interval, with one matrix at most")
    if count > 1 and not when.interval_s:
        raise wrong("interval_s: seconds from one matrix to the next, since there are several")
    first = when.time.timestamp()
    if not 0 <= first < 2**32:
        raise wrong("time: from 1970 to 2106")
    times: list[np.datetime64] = [
        np.datetime64(int(first) + row * when.interval_s, "s") for row in range(count)
    ]
    return SentMeasurements(rates, times, counters)


def previous_splits(answer: Found, served: Served) -> FloatArray:
    """(D, K) splits of the last matrix of an earlier answer, or those of its classes, one after the
    other.

    Raises:
        ServiceError: an answer by name with classes, whose order it does not say.
    """
    if answer.media_type == ARROW:
        splits = last_splits(answer.body)
    else:
        last = json.loads(answer.body)["allocations"][-1]
        is_named = "demands" in last
        splits = splits_of(last, served) if is_named else _dense_splits(last)
        if is_named and any("class" in demand for demand in last["demands"]):
            raise wrong("previous: an answer with classes must be Arrow, or of form=dense")
    missing = served.paths.num_paths - splits.shape[1]  # paths that have been added since
    splits = np.pad(splits, ((0, 0), (0, missing))) if missing > 0 else splits
    return splits / np.maximum(1, splits.sum(1, keepdims=True))


def _rates(request: AllocationRequest | MeasurementRequest, topology: Topology) -> FloatArray:
    classes = request.classes if isinstance(request, AllocationRequest) else []
    if request.rates is not None:
        if len({len(row) for row in request.rates}) != 1:
            raise wrong("rates: at least one matrix, and all of one length")
        return checked(
            in_classes(all_pairs(np.array(request.rates, np.float64), topology), classes)
        )
    demands = request.demands or []
    source, target = [d.source for d in demands], [d.target for d in demands]
    rate, of_class = np.array([d.rate for d in demands], np.float64), [d.of_class for d in demands]
    return checked(from_triples(source, target, rate, None, topology, of_class, classes))


def demands_to_write(rates: FloatArray, accept: str, form: Form) -> tuple[int, bool]:
    """How many demands an answer has, and whether they are written by name."""
    is_named = form is Form.NAMED and ARROW not in accept
    return int(np.count_nonzero(rates)) if is_named else rates.size, is_named


def check_size(served: Served, rates: FloatArray, accept: str, form: Form) -> None:
    """Raise ServiceError for an answer that is too large for what is accepted."""
    splits, used = rates.size * served.paths.num_paths, len(rates) * served.topology.num_links
    if max(splits, used) > MAX_NUMBERS:
        raise wrong(
            f"rates: the answer would have more than {MAX_NUMBERS:,} numbers: send fewer matrices "
            "at once"
        )
    if ARROW in accept:
        return
    if used > _MAX_JSON:
        raise ServiceError(
            406, "too_large_for_json", f"{used:,} utilisations: ask for {ARROW} (Accept)"
        )
    demands = demands_to_write(rates, accept, form)[0]
    if form is Form.DENSE and splits > _MAX_JSON:
        raise ServiceError(
            406, "too_large_for_json", f"{splits:,} splits: ask for {ARROW} (Accept)"
        )
    if form is Form.NAMED and demands > _MAX_NAMED:
        raise ServiceError(
            406, "too_large_for_json", f"{demands:,} demands by name: ask for {ARROW} (Accept)"
        )


def written(
    answer: Answer,
    served: Served,
    rates: FloatArray,
    sent: Sent,
    options: Options,
    further: dict[str, Any],
) -> tuple[bytes, str]:
    """Body and media type of an answer; see :func:`check_size`.

    Args:
        answer: to the matrices.
        served: the network.
        rates: (B, D) Gbit/s that were allocated.
        sent: the request.
        options: form of JSON, and names of classes.
        further: fields beside the allocations.
    """
    if ARROW in sent.accept:
        return to_arrow(answer, {"id": sent.number, **further}), ARROW
    is_named = options.form is Form.NAMED
    allocations = named(answer, served, rates, options) if is_named else iter(_dense(answer))
    body = {"id": sent.number, **answer.cost, **further}
    listed = ", ".join(encoded(allocation) for allocation in allocations)
    return f'{encoded(body)[:-1]}, "allocations": [{listed}]}}'.encode(), JSON


def encoded(fields: dict[str, Any]) -> str:
    """A JSON object.  Lists are encoded in parts: Python's encoder stops all other threads until it
    is done.
    """
    parts = []
    for name, value in fields.items():
        is_long = isinstance(value, list | Iterator)
        text = _encoded_list(iter(value)) if is_long else json.dumps(value, allow_nan=False)
        parts.append(f"{json.dumps(name)}: {text}")
    return "{" + ", ".join(parts) + "}"


def _encoded_list(values: Iterator[Any]) -> str:
    parts = []
    while part := list(itertools.islice(values, _ENCODED_AT_ONCE)):
        parts.append(json.dumps(part, allow_nan=False)[1:-1])
    return "[" + ", ".join(parts) + "]"


def _dense_splits(allocation: dict[str, Any]) -> FloatArray:
    """(D, K) splits of one of :func:`_dense`'s allocations."""
    if "splits" in allocation:
        return np.array(allocation["splits"], np.float64)
    weights = np.array(allocation["weights"], np.float64)
    return (
        weights
        / np.maximum(1, weights.sum(1, keepdims=True))
        * np.array(allocation["admitted_share"])[:, None]
    )


def _dense(answer: Answer) -> list[dict[str, Any]]:
    name, shares = answer.shares
    return [
        {
            **{figure: plain(getattr(answer, figure)[b]) for figure in FIGURES},
            "status": answer.status[b],
            **answer.further(b),
            "utilisation": [plain(u) for u in answer.utilisation[b]],
            name: shares[b].tolist(),
            **(
                {}
                if answer.weights is None
                else {"admitted_share": answer.admitted_share[b].tolist()}
            ),
        }
        for b in range(len(shares))
    ]
