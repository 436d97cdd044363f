"""Requests with matrices, and their answers, as they travel: JSON for people, Arrow IPC streams
(:mod:`teal.serving.engine.arrow`) for size.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from teal.network.topology import Topology
from teal.runtime.arrays import BoolArray, FloatArray
from teal.serving.engine.answer import FIGURES, Answer, plain
from teal.serving.engine.arrow import from_arrow, last_splits, to_arrow
from teal.serving.engine.backend import Found, Sent
from teal.serving.engine.errors import ARROW, JSON, ServiceError, wrong
from teal.serving.engine.listed import all_pairs, checked, from_triples, in_classes, pair_number
from teal.serving.engine.requests import (
    AllocationRequest,
    CounterReadings,
    Form,
    MeasurementOptions,
    MeasurementRequest,
    Options,
    parsed,
)
from teal.serving.engine.served import Served


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


MAX_NUMBERS = 1 << 26  # splits, or utilisations, of an answer; 268 MB as float32
_MAX_JSON = 500_000  # splits of a dense answer in JSON, or utilisations of any
_ENCODED_AT_ONCE = 200  # entries of a list that one call encodes, while other threads wait: 1 ms
_MAX_NAMED = 20_000  # demands of an answer by name


def asked(sent: Sent) -> AllocationRequest | Options:
    """The options of a request: all of it that can be read without its network.

    Raises:
        ServiceError: anything that is not as the API says.
    """
    if sent.media_type != ARROW:
        return parsed(AllocationRequest, sent.body)
    return _options_of(tuple(sent.query.items()))


@functools.lru_cache(maxsize=64)
def _options_of(query: tuple[tuple[str, str], ...]) -> Options:
    """The options in an address, which many requests have in common: nobody changes them."""
    return parsed(Options, dict(query))


def read(sent: Sent, options: AllocationRequest | Options, topology: Topology) -> FloatArray | None:
    """Rates (B, D), Gbit/s, over all pairs, class by class; None for the next interval.

    Raises:
        ServiceError: anything that is not as the API says.
    """
    if isinstance(options, AllocationRequest):
        return None if options.wanted == "next" else _rates(options, topology)
    return from_arrow(sent.body, topology, options.classes)


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
        rates = from_arrow(sent.body, topology)
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
