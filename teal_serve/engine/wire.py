"""Decoding of requests with matrices and encoding of their answers: JSON for people, Arrow IPC
(:mod:`teal_serve.engine.arrow`) for large ones.

Requests are parsed in two steps: options without the network (:func:`parse_options`), then rates
(:func:`read_rates`). :func:`encode_response` encodes an answer; :func:`check_size` refuses answers
that are too large before they are computed.

Axes: B matrices, D demands, K candidate paths of a pair of nodes, E links. With C demand classes, D
is C times the number of pairs of nodes, class by class.
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
from teal_serve.engine.answer import METRICS, Answer, plain
from teal_serve.engine.arrow import from_arrow, last_splits, to_arrow
from teal_serve.engine.backend import AllocationResponse, EncodedRequest
from teal_serve.engine.errors import ARROW, JSON, ServiceError, invalid_request
from teal_serve.engine.network_state import NetworkState
from teal_serve.engine.request_rates import (
    all_pairs,
    check_rates,
    from_triples,
    in_classes,
    pair_index,
)
from teal_serve.engine.requests import (
    AllocationRequest,
    CounterReadings,
    Form,
    MeasurementOptions,
    MeasurementRequest,
    Options,
    parse_content,
)


def named_allocations(
    answer: Answer, network_state: NetworkState, rates: FloatArray, options: Options
) -> Iterator[dict[str, Any]]:
    """Yield the allocation of each matrix by names of nodes, as a dictionary for JSON.

    Its fields are those of ``responses.NamedAllocation``. ``demands`` is an iterator, to be read
    once: few live objects keep Python's garbage collector, which stops all threads, short.

    Args:
        answer: answer to the matrices.
        network_state: network of the request.
        rates: (B, D) requested rates, Gbit/s, class by class; demands of rate 0 appear only if the
            request lists them.
        options: classes and listed demands of the request.
    """
    topology = network_state.topology
    classes = options.classes
    # (D,) demands of rate 0 that the request lists, and names of the ends of each link.
    is_listed_zero = _listed_zero_demands(options, topology)
    names = topology.node_names
    link_ends = [
        (names[s], names[t])
        for s, t in zip(topology.link_source, topology.link_target, strict=True)
    ]
    for matrix_index, matrix_rates in enumerate(rates):
        # (D,) carried rates: rate times the served fraction.
        carried_rates = matrix_rates * np.minimum(
            1.0, answer.splits[matrix_index].sum(-1, dtype=np.float64)
        )
        yield {
            **{figure: plain(getattr(answer, figure)[matrix_index]) for figure in METRICS},
            "status": answer.status[matrix_index],
            **answer.further_figures(matrix_index),
            "shed": max(0.0, float(matrix_rates.sum() - carried_rates.sum())),
            "demands": _named_demands(
                answer,
                network_state,
                matrix_index,
                matrix_rates,
                carried_rates,
                classes,
                (matrix_rates > 0) | is_listed_zero,
            ),
            "utilisation": [
                {
                    "link": link_index,
                    "source": source,
                    "target": target,
                    "utilisation": plain(utilisation),
                }
                for link_index, ((source, target), utilisation) in enumerate(
                    zip(link_ends, answer.utilisation[matrix_index].tolist(), strict=True)
                )
            ],
        }


def _named_demands(
    answer: Answer,
    network_state: NetworkState,
    matrix_index: int,
    rates: FloatArray,
    carried_rates: FloatArray,
    classes: Sequence[str],
    is_written: BoolArray,
) -> Iterator[dict[str, Any]]:
    """Yield demands of one matrix with their paths, by names of nodes, as dictionaries for JSON.

    The fields are those of ``responses.DemandAnswer``. Demand ``demand_index`` is pair
    ``demand_index % num_pairs`` of class ``demand_index // num_pairs``.

    Args:
        answer: answer to the B matrices.
        network_state: network of the request.
        matrix_index: index of the matrix in the answer.
        rates: (D,) requested rate of each demand, Gbit/s.
        carried_rates: (D,) carried rate of each demand, Gbit/s.
        classes: names of the classes; empty without classes.
        is_written: (D,) whether to yield a demand.
    """
    names = network_state.topology.node_names
    num_pairs = network_state.paths.num_demands
    for demand_index in np.flatnonzero(is_written).tolist():
        # Paths with traffic: nodes, links, and split or integer weight.
        paths = []
        demand_splits = answer.splits[matrix_index, demand_index]
        for path_index in np.flatnonzero(demand_splits).tolist():
            nodes, links = network_state.route(demand_index % num_pairs, path_index)
            path_share: dict[str, Any] = {"nodes": nodes, "links": links}
            if answer.weights is None:
                path_share["split"] = float(demand_splits[path_index])
            else:
                path_share["weight"] = int(answer.weights[matrix_index, demand_index, path_index])
            paths.append(path_share)
        # Names of source, target and class.
        source, target = network_state.paths.pairs[demand_index % num_pairs]
        class_field = {"class": classes[demand_index // num_pairs]} if classes else {}
        ends = {"source": names[source], "target": names[target]}
        yield {
            **ends,
            **class_field,
            "demand": float(rates[demand_index]),
            "admitted": float(carried_rates[demand_index]),
            "paths": paths,
        }


def named_splits(allocation: dict[str, Any], network_state: NetworkState) -> FloatArray:
    """Return the splits (D, K) of an allocation by names of nodes, as decoded from JSON.

    The integer weights w of a demand become splits s[k] = admitted / demand * w[k] / sum(w).

    Args:
        allocation: fields of ``responses.NamedAllocation``, without classes.
        network_state: network of the allocation.

    Raises:
        KeyError: unknown node.
    """
    node_index = network_state.topology.node_index()
    num_nodes = network_state.topology.num_nodes
    splits = np.zeros((network_state.paths.num_demands, network_state.paths.num_paths))
    for demand in allocation["demands"]:
        demand_index = pair_index(
            node_index[demand["source"]], node_index[demand["target"]], num_nodes
        )
        for path in demand["paths"]:
            # Find the path by its links; each path of a demand is listed once.
            path_indices = (
                path_index
                for path_index in np.flatnonzero(network_state.paths.mask[demand_index]).tolist()
                if network_state.route(demand_index, path_index)[1] == path["links"]
            )
            splits[demand_index, next(path_indices)] = (
                path["split"] if "split" in path else path["weight"]
            )
        # Scale integer weights so that they sum to the served fraction of the demand.
        if any("weight" in path for path in demand["paths"]):
            admitted_share = demand["admitted"] / demand["demand"] if demand["demand"] > 0 else 1.0
            splits[demand_index] *= admitted_share / splits[demand_index].sum()
    return splits


def _listed_zero_demands(options: Options, topology: Topology) -> BoolArray:
    """Return (D,) whether the request lists a demand with rate 0, class by class.

    Args:
        options: options of the request, in JSON with its demands by name.
        topology: topology of the network.
    """
    zero_demands = [
        demand for demand in getattr(options, "demands", None) or () if demand.rate == 0
    ]
    source = [demand.source for demand in zero_demands]
    target = [demand.target for demand in zero_demands]
    class_names = [demand.of_class for demand in zero_demands]
    # Mark the listed demands by a rate of 1 in a matrix of their own.
    unit_rates = np.ones(len(zero_demands))
    return np.asarray(
        from_triples(source, target, unit_rates, None, topology, class_names, options.classes)[0]
        > 0
    )


# Maximum number of splits, and of utilisations, of an answer; 268 MB as float32.
MAX_ANSWER_NUMBERS = 1 << 26
# Maximum number of splits of a dense JSON answer, and of utilisations of any JSON answer.
_MAX_JSON_NUMBERS = 500_000
# List entries per call of Python's JSON encoder, during which other threads wait about 1 ms.
_ENCODE_CHUNK = 200
# Maximum number of demands in a JSON answer by name.
_MAX_NAMED_DEMANDS = 20_000


def parse_options(request: EncodedRequest) -> AllocationRequest | Options:
    """Parse the options of an allocation request, which do not depend on the network.

    A JSON body has options and matrices; with an Arrow body, the options are query parameters.

    Raises:
        ServiceError: invalid options or body.
    """
    if request.media_type != ARROW:
        return parse_content(AllocationRequest, request.body)
    return _parse_query(tuple(request.query.items()))


@functools.lru_cache(maxsize=64)
def _parse_query(query: tuple[tuple[str, str], ...]) -> Options:
    """Parse options from query parameters; cached, since many requests have equal parameters."""
    return parse_content(Options, dict(query))


def read_rates(
    request: EncodedRequest, options: AllocationRequest | Options, topology: Topology
) -> FloatArray | None:
    """Return the requested rates over all pairs of nodes.

    Args:
        request: undecoded request.
        options: its parsed options, in JSON with the matrices.
        topology: topology of the network.

    Returns:
        (B, D) Gbit/s, class by class; None for an allocation for the next interval, whose rates are
        unknown.

    Raises:
        ServiceError: invalid rates.
    """
    if isinstance(options, AllocationRequest):
        return None if options.wanted == "next" else _rates_of_json(options, topology)
    return from_arrow(request.body, topology, options.classes)


class SentMeasurements(NamedTuple):
    """Measurements in a request: matrices, interface counters, or a matrix with counters.

    Attributes:
        rates: (B, D) over all pairs of nodes, Gbit/s; None for counters without a matrix.
        times: (B,) UTC times of the matrices; one time for counters without a matrix.
        counters: counters of the interval; None without counters.
    """

    rates: FloatArray | None
    times: list[np.datetime64]
    counters: CounterReadings | None


def parse_measurement_options(request: EncodedRequest) -> MeasurementRequest | MeasurementOptions:
    """Parse the options of measurements, which do not depend on the network.

    A JSON body has options and measurements; with an Arrow body, the options are query parameters.

    Raises:
        ServiceError: invalid options or body.
    """
    is_arrow = request.media_type == ARROW
    return (
        parse_content(MeasurementOptions, request.query)
        if is_arrow
        else parse_content(MeasurementRequest, request.body)
    )


def read_measurements(
    request: EncodedRequest, options: MeasurementRequest | MeasurementOptions, topology: Topology
) -> SentMeasurements:
    """Return the measurements in a request, validated against the network.

    Args:
        request: undecoded request.
        options: its parsed options.
        topology: topology of the network.

    Raises:
        ServiceError: invalid measurements.
    """
    # Decode the matrices, if any, and the counters of a JSON body.
    rates: FloatArray | None
    counters = None
    if isinstance(options, MeasurementRequest):
        counters = options.counters
        rates = (
            None
            if options.demands is None and options.rates is None
            else _rates_of_json(options, topology)
        )
    else:
        rates = from_arrow(request.body, topology)
    num_matrices = 1 if rates is None else len(rates)
    if counters is not None and num_matrices > 1:
        raise invalid_request(
            "counters: sent with several matrices; send at most one matrix with counters"
        )
    # Compute the times of the matrices: time, time + interval_s, ...
    if num_matrices > 1 and not options.interval_s:
        raise invalid_request("interval_s: missing; several matrices need the seconds between them")
    first_time = options.time.timestamp()
    if not 0 <= first_time < 2**32:
        raise invalid_request("time: not in the years 1970 to 2106; send a time in these years")
    times: list[np.datetime64] = [
        np.datetime64(int(first_time) + row * options.interval_s, "s")
        for row in range(num_matrices)
    ]
    return SentMeasurements(rates, times, counters)


def previous_splits(answer: AllocationResponse, network_state: NetworkState) -> FloatArray:
    """Return the splits (D, K) of the last matrix of an earlier answer, class by class.

    Paths that were added since the answer get 0. Each demand's splits sum to at most 1.

    Args:
        answer: earlier answer of this network, in JSON or Arrow.
        network_state: current state of the network.

    Raises:
        ServiceError: the answer is in JSON by name and has classes, so that their order is unknown.
    """
    if answer.media_type == ARROW:
        splits = last_splits(answer.body)
    else:
        allocation = json.loads(answer.body)["allocations"][-1]
        is_named = "demands" in allocation
        splits = named_splits(allocation, network_state) if is_named else _dense_splits(allocation)
        if is_named and any("class" in demand for demand in allocation["demands"]):
            raise invalid_request(
                "previous: the order of the classes is unknown in a JSON answer by name; use an "
                "answer in Arrow or with form=dense"
            )
    # Pad with zeros for paths added since, and scale sums above 1 down to 1.
    num_added_paths = network_state.paths.num_paths - splits.shape[1]
    splits = np.pad(splits, ((0, 0), (0, num_added_paths))) if num_added_paths > 0 else splits
    return splits / np.maximum(1, splits.sum(1, keepdims=True))


def _rates_of_json(
    request: AllocationRequest | MeasurementRequest, topology: Topology
) -> FloatArray:
    """Return the rates (B, D) of a JSON body in Gbit/s, from lists of rates or demands by name.

    Raises:
        ServiceError: rates that do not fit the network, or unknown nodes or classes.
    """
    classes = request.classes if isinstance(request, AllocationRequest) else []
    if request.rates is not None:
        if len({len(row) for row in request.rates}) != 1:
            raise invalid_request(
                "rates: no matrix, or lists that are not all of one length; send a list of rates "
                "for each matrix"
            )
        return check_rates(
            in_classes(all_pairs(np.array(request.rates, np.float64), topology), classes)
        )
    demands = request.demands or []
    source = [demand.source for demand in demands]
    target = [demand.target for demand in demands]
    rate = np.array([demand.rate for demand in demands], np.float64)
    class_names = [demand.of_class for demand in demands]
    return check_rates(from_triples(source, target, rate, None, topology, class_names, classes))


def demands_to_write(rates: FloatArray, accept: str, form: Form) -> tuple[int, bool]:
    """Return the number of demands in an answer, and whether it lists them by names of nodes.

    Args:
        rates: (B, D) requested rates; demands of rate 0 are not written by name.
        accept: Accept header of the request.
        form: requested JSON form.
    """
    is_named = form is Form.NAMED and ARROW not in accept
    return int(np.count_nonzero(rates)) if is_named else rates.size, is_named


def check_size(network_state: NetworkState, rates: FloatArray, accept: str, form: Form) -> None:
    """Raise ServiceError if the answer would be too large for the accepted media type.

    Args:
        network_state: network of the request.
        rates: (B, D) requested rates.
        accept: Accept header of the request.
        form: requested JSON form.
    """
    # All media types: limit the splits and utilisations.
    num_splits = rates.size * network_state.paths.num_paths
    num_utilisations = len(rates) * network_state.topology.num_links
    if max(num_splits, num_utilisations) > MAX_ANSWER_NUMBERS:
        raise invalid_request(
            f"rates: the answer would have more than {MAX_ANSWER_NUMBERS:,} splits or "
            "utilisations; send fewer matrices in a request"
        )
    # JSON has smaller limits.
    if ARROW in accept:
        return
    if num_utilisations > _MAX_JSON_NUMBERS:
        raise ServiceError(
            406,
            "too_large_for_json",
            f"{num_utilisations:,} utilisations are too many for JSON; request {ARROW} (Accept)",
        )
    num_demands = demands_to_write(rates, accept, form)[0]
    if form is Form.DENSE and num_splits > _MAX_JSON_NUMBERS:
        raise ServiceError(
            406,
            "too_large_for_json",
            f"{num_splits:,} splits are too many for JSON; request {ARROW} (Accept)",
        )
    if form is Form.NAMED and num_demands > _MAX_NAMED_DEMANDS:
        raise ServiceError(
            406,
            "too_large_for_json",
            f"{num_demands:,} demands by name are too many for JSON; request {ARROW} (Accept)",
        )


def encode_response(
    answer: Answer,
    network_state: NetworkState,
    rates: FloatArray,
    request: EncodedRequest,
    options: Options,
    extra_fields: dict[str, Any],
) -> tuple[bytes, str]:
    """Encode an answer as Arrow if the request accepts it, else as JSON.

    Args:
        answer: answer to the matrices.
        network_state: network of the request.
        rates: (B, D) requested rates, Gbit/s.
        request: request with identifier and accepted media types.
        options: JSON form, and names of classes.
        extra_fields: further fields of the response, beside the allocations.

    Returns:
        body and media type.
    """
    if ARROW in request.accept:
        return to_arrow(answer, {"id": request.request_id, **extra_fields}), ARROW
    # JSON: the allocation of each matrix, by names of nodes or as arrays.
    is_named = options.form is Form.NAMED
    allocations = (
        named_allocations(answer, network_state, rates, options)
        if is_named
        else iter(_dense_allocations(answer))
    )
    # Append the list of allocations to the other fields, in place of their closing brace.
    fields = {"id": request.request_id, **answer.cost, **extra_fields}
    allocations_json = ", ".join(encode_json(allocation) for allocation in allocations)
    return f'{encode_json(fields)[:-1]}, "allocations": [{allocations_json}]}}'.encode(), JSON


def encode_json(fields: dict[str, Any]) -> str:
    """Encode a JSON object, with its lists in chunks.

    Python's encoder blocks all other threads during a call, so each call encodes a chunk only.

    Args:
        fields: JSON values by name; an iterator is encoded as a list.
    """
    parts = []
    for name, value in fields.items():
        is_long = isinstance(value, list | Iterator)
        value_json = _encode_list(iter(value)) if is_long else json.dumps(value, allow_nan=False)
        parts.append(f"{json.dumps(name)}: {value_json}")
    return "{" + ", ".join(parts) + "}"


def _encode_list(values: Iterator[Any]) -> str:
    """Encode a JSON list in chunks of ``_ENCODE_CHUNK`` values."""
    # Encoded chunks without their brackets.
    encoded_chunks = []
    while chunk := list(itertools.islice(values, _ENCODE_CHUNK)):
        encoded_chunks.append(json.dumps(chunk, allow_nan=False)[1:-1])
    return "[" + ", ".join(encoded_chunks) + "]"


def _dense_splits(allocation: dict[str, Any]) -> FloatArray:
    """Return the splits (D, K) of an allocation in dense form, as decoded from JSON.

    The integer weights w of a demand become splits s[k] = served fraction * w[k] / sum(w).

    Args:
        allocation: fields of ``responses.DenseAllocation``.
    """
    if "splits" in allocation:
        return np.array(allocation["splits"], np.float64)
    weights = np.array(allocation["weights"], np.float64)
    # The sum of the weights counts as 1 for a demand without weights.
    return (
        weights
        / np.maximum(1, weights.sum(1, keepdims=True))
        * np.array(allocation["admitted_share"])[:, None]
    )


def _dense_allocations(answer: Answer) -> list[dict[str, Any]]:
    """Return the allocation of each matrix as arrays over all pairs of nodes and all paths.

    The fields are those of ``responses.DenseAllocation``.
    """
    # Name and array (B, D, K) of the splits, or of the weights if requested.
    name, path_values = answer.splits_or_weights
    return [
        {
            **{figure: plain(getattr(answer, figure)[matrix_index]) for figure in METRICS},
            "status": answer.status[matrix_index],
            **answer.further_figures(matrix_index),
            "utilisation": [plain(u) for u in answer.utilisation[matrix_index]],
            name: path_values[matrix_index].tolist(),
            **(
                {}
                if answer.weights is None
                else {"admitted_share": answer.admitted_share[matrix_index].tolist()}
            ),
        }
        for matrix_index in range(len(path_values))
    ]
