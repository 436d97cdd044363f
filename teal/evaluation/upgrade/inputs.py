"""What `teal upgrade` reads beside network and traffic: costs, new cables, a hose, and what fails."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from teal.config.upgrade import UpgradeConfig
from teal.errors import InputError
from teal.evaluation.failures import Failure, cable_failures, group_failures, pair_failures
from teal.formats.groups import load_groups
from teal.network import Topology
from teal.runtime.arrays import FloatArray, IntArray
from teal.solvers.upgrade.hose import Hose


@dataclasses.dataclass(frozen=True, eq=False)
class Offer:
    """A network with the cables that can be bought.

    Attributes:
        topology: with candidate cables as links; their capacity is the median of the others', for the path search.
        regular: (E,) Gbit/s that are there; 0 on candidate cables.
        cost: (C,) of a Gbit/s on each pair of links; a cable of parallel links has several.
        most: (C,) Gbit/s that can be bought; infinite where nothing limits it.
        candidates: numbers of the pairs of links that do not exist yet.
    """

    topology: Topology
    regular: FloatArray
    cost: FloatArray
    most: FloatArray
    candidates: tuple[int, ...]


def offer(config: UpgradeConfig, topology: Topology) -> Offer:
    """The network of the settings with its candidate cables, and what they cost.

    Raises:
        InputError: a fault in a file.
    """
    before = len(topology.link_pairs())
    regular, whole, own_cost, most = topology.capacity, topology, np.zeros(0), np.zeros(0)
    if config.candidates is not None:
        whole, own_cost, most = _with_candidates(str(config.candidates), topology)
        regular = np.concatenate([regular, np.zeros(whole.num_links - topology.num_links)])
    cost = _costs(config.cost, whole)
    if len(own_cost):
        cost[before:] = np.where(np.isnan(own_cost), cost[before:], own_cost)
    missing = np.flatnonzero(np.isnan(cost))
    if len(missing):
        name = whole.link_name(whole.link_pairs()[missing[0]][0])
        raise InputError(config.cost, "cost", "one for every cable", f"none for {name}")
    limits = np.concatenate([np.full(before, np.inf), most])
    return Offer(whole, regular, cost, limits, tuple(range(before, len(limits))))


def failures_of(config: UpgradeConfig, topology: Topology) -> list[Failure]:
    """What fails, beside nothing.

    Raises:
        InputError: a fault in the file of groups.
    """
    cables = cable_failures(topology) if config.failures != "none" else []
    failures = list(cables)
    if config.failures == "pairs":
        failures += pair_failures(cables, {one.name: 0.0 for one in cables}, 0)
    if config.groups is not None:
        failures += group_failures(load_groups(config.groups, topology))
    return failures


def hose_of(config: UpgradeConfig, topology: Topology, pairs: IntArray, matrices: FloatArray) -> Hose:
    """The hose of a file, or of the peaks of matrices (M, D), times the growth.

    Raises:
        InputError: a fault in the file.
    """
    if config.hose is None:
        peaks = Hose.of_history(pairs, matrices, topology.num_nodes)
        return Hose(pairs, config.growth * peaks.out, config.growth * peaks.into)
    index, limits = topology.node_index(), np.full((2, topology.num_nodes), np.nan)
    for where, row in _rows(str(config.hose), "--hose"):
        node = str(row.get("node", "")).strip()
        if node not in index:
            raise InputError(where, "node", "a node of the topology", repr(node))
        for side, field in enumerate(("out", "in")):
            limits[side, index[node]] = _number(where, row, field, least=0.0)
    missing = np.flatnonzero(np.isnan(limits).any(0))
    if len(missing):
        raise InputError(str(config.hose), "node", "limits of every node", f"none of {topology.node_names[missing[0]]}")
    return Hose(pairs, config.growth * limits[0], config.growth * limits[1])


def _costs(text: str, topology: Topology) -> FloatArray:
    """(C,) cost of a Gbit/s on each pair of links; NaN where a file says none.

    Raises:
        InputError: a file with a cost that is not above 0, or of an unknown cable.
    """
    pairs = topology.link_pairs()
    if text == "capacity":
        return np.ones(len(pairs))
    if text == "length":
        return np.array([float(topology.latency[links].min()) for links in pairs])
    number = {link: c for c, links in enumerate(pairs) for link in links}
    cost = np.full(len(pairs), np.nan)
    for where, row in _rows(text, "--cost", "capacity, length, or a .csv file"):
        value = _number(where, row, "cost")
        try:
            links = topology.find_links(str(row["source"]).strip(), str(row["target"]).strip())
        except KeyError:
            raise InputError(where, "columns", "source, target and cost", sorted(row)) from None
        cost[[number[link] for link in links]] = value
    return cost


def _with_candidates(path: str, topology: Topology) -> tuple[Topology, FloatArray, FloatArray]:
    """The network with new cables, (n,) their costs, NaN where none is given, and (n,) their limits."""
    index, taken = topology.node_index(), {tuple(sorted(one)) for one in _ends(topology)}
    ends, latency, cost, most = [], [], [], []
    for where, row in _rows(path, "--candidates"):
        pair = []
        for field in ("source", "target"):
            name = str(row.get(field, "")).strip()
            if name not in index:
                raise InputError(where, field, "a node of the topology", repr(name))
            pair.append(index[name])
        key = (min(pair), max(pair))
        if pair[0] == pair[1] or key in taken:
            raise InputError(where, "cable", "two nodes without a cable between them", row)
        taken.add(key)
        ends.append(pair)
        latency.append(_number(where, row, "latency"))
        cost.append(_number(where, row, "cost") if row.get("cost") else math.nan)
        most.append(_number(where, row, "most") if row.get("most") else math.inf)
    if not ends:
        raise InputError(path, "rows", "at least one cable", "none")
    both = np.array(ends, dtype=topology.link_source.dtype)
    capacity = float(np.median(topology.capacity[topology.capacity > 0]))
    new = np.repeat(np.array(latency), 2)
    whole = dataclasses.replace(
        topology,
        link_source=np.concatenate([topology.link_source, both.reshape(-1)]),
        link_target=np.concatenate([topology.link_target, both[:, ::-1].reshape(-1)]),
        capacity=np.concatenate([topology.capacity, np.full(len(new), capacity)]),
        latency=np.concatenate([topology.latency, new]),
        metric=None if topology.metric is None else np.concatenate([
            topology.metric, np.maximum(1, np.round(new)).astype(topology.metric.dtype)
        ]),
    )  # fmt: skip
    return whole, np.array(cost), np.array(most)


def _ends(topology: Topology) -> Iterator[tuple[int, int]]:
    yield from zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True)


def _rows(path: str, option: str, expected: str = "a .csv file") -> Iterator[tuple[str, dict[str, Any]]]:
    """File and line, and the row, of a table with a header.

    Raises:
        InputError: no such file.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as stream:
            for line, row in enumerate(csv.DictReader(stream), 2):
                yield f"{path}: line {line}", row
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(option, path, expected, str(error)) from None


def _number(where: str, row: dict[str, Any], field: str, *, least: float | None = None) -> float:
    """A number above 0, or at least ``least``.

    Raises:
        InputError: anything else.
    """
    expected = "a number above 0" if least is None else f"a number of at least {least:g}"
    try:
        value = float(row[field])
    except (KeyError, TypeError, ValueError):
        raise InputError(where, field, expected, repr(row.get(field))) from None
    if not math.isfinite(value) or (value <= 0 if least is None else value < least):
        raise InputError(where, field, expected, value)
    return value
