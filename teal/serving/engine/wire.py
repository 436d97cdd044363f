"""Requests with matrices, and their answers, as they travel: JSON for people, Arrow IPC streams for size."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from teal.network.topology import Topology
from teal.runtime.arrays import FloatArray
from teal.serving.engine.answer import FIGURES, Answer, plain
from teal.serving.engine.arrow import from_arrow, last_splits, to_arrow
from teal.serving.engine.backend import Found, Sent
from teal.serving.engine.errors import ServiceError, wrong
from teal.serving.engine.matrices import all_pairs, checked, from_triples, in_classes
from teal.serving.engine.media import ARROW, JSON
from teal.serving.engine.named import named, splits_of
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

MOST_NUMBERS = 1 << 26  # splits, or utilisations, of an answer; 268 MB as float32
_MOST_JSON = 500_000  # splits of a dense answer in JSON, or utilisations of any
_ENCODED_AT_ONCE = 200  # entries of a list, a millisecond for demands by name
_MOST_NAMED = 20_000  # demands of an answer by name


def read(sent: Sent, topology: Topology) -> tuple[FloatArray | None, AllocationRequest | Options]:
    """Rates (B, D), Gbit/s, over all pairs, class by class, and what was asked for; None for the next interval.

    Raises:
        ServiceError: anything that is not as the API says.
    """
    if sent.media_type == ARROW:
        options = parsed(Options, sent.query)
        return checked(from_arrow(sent.body, topology, options.classes)), options
    request = parsed(AllocationRequest, sent.body)
    return (None if request.wanted == "next" else _rates(request, topology)), request


class SentMeasurements(NamedTuple):
    """Measurements in a request: matrices or readings of counters.

    Attributes:
        rates: (B, D) Gbit/s, over all pairs of nodes; None for counters alone.
        times: of the matrices.
        counters: of the interval; None if none were sent.
        deadline_s: of counters, from the arrival of the request.
    """

    rates: FloatArray | None
    times: list[np.datetime64]
    counters: CounterReadings | None
    deadline_s: float


def read_measured(sent: Sent, topology: Topology) -> SentMeasurements:
    """The measurements in a request.

    Raises:
        ServiceError: anything that is not as the API says.
    """
    rates: FloatArray | None
    counters, deadline_s = None, 0.0
    when: MeasurementOptions
    if sent.media_type == ARROW:
        rates, when = checked(from_arrow(sent.body, topology)), parsed(MeasurementOptions, sent.query)
    else:
        request = parsed(MeasurementRequest, sent.body)
        when, counters, deadline_s = request, request.counters, request.deadline_ms / 1e3
        rates = None if request.demands is None and request.rates is None else _rates(request, topology)
    count = 1 if rates is None else len(rates)
    if counters is not None and count > 1:
        raise wrong("counters: of one interval, with one matrix at most")
    if count > 1 and not when.interval_s:
        raise wrong("interval_s: seconds from one matrix to the next, since there are several")
    first = when.time.timestamp()
    if not 0 <= first < 2**32:
        raise wrong("time: from 1970 to 2106")
    times: list[np.datetime64] = [np.datetime64(int(first) + row * when.interval_s, "s") for row in range(count)]
    return SentMeasurements(rates, times, counters, deadline_s)


def previous_splits(answer: Found, served: Served) -> FloatArray:
    """(D, K) splits of the last matrix of an earlier answer, or those of its classes, one after the other.

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
        return checked(in_classes(all_pairs(np.array(request.rates, np.float64), topology), classes))
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
    if max(splits, used) > MOST_NUMBERS:
        raise wrong(f"rates: the answer would have more than {MOST_NUMBERS:,} numbers: send fewer matrices at once")
    if ARROW in accept:
        return
    if used > _MOST_JSON:
        raise ServiceError(406, "too_large_for_json", f"{used:,} utilisations: ask for {ARROW} (Accept)")
    demands = int(np.count_nonzero(rates))
    if form is Form.DENSE and splits > _MOST_JSON:
        raise ServiceError(406, "too_large_for_json", f"{splits:,} splits: ask for {ARROW} (Accept)")
    if form is Form.NAMED and demands > _MOST_NAMED:
        raise ServiceError(406, "too_large_for_json", f"{demands:,} demands by name: ask for {ARROW} (Accept)")


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
    allocations = named(answer, served, rates, options.classes) if is_named else iter(_dense(answer))
    body = {"id": sent.number, **answer.cost, **further}
    listed = ", ".join(_encoded(allocation) for allocation in allocations)
    return f'{_encoded(body)[:-1]}, "allocations": [{listed}]}}'.encode(), JSON


def _encoded(fields: dict[str, Any]) -> str:
    """A JSON object.  Lists are encoded in parts: Python's encoder stops all other threads until it is done."""
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
    return weights / np.maximum(1, weights.sum(1, keepdims=True)) * np.array(allocation["admitted_share"])[:, None]


def _dense(answer: Answer) -> list[dict[str, Any]]:
    name, shares = answer.shares
    return [
        {
            **{figure: plain(getattr(answer, figure)[b]) for figure in FIGURES},
            "status": answer.status[b],
            **answer.further(b),
            "utilisation": [plain(u) for u in answer.utilisation[b]],
            name: shares[b].tolist(),
            **({} if answer.weights is None else {"admitted_share": answer.admitted_share[b].tolist()}),
        }
        for b in range(len(shares))
    ]
