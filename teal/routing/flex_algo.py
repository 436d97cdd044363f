"""Flexible algorithms of the IGP (RFC 9350): shortest paths by another metric, over part of the links.

An algorithm is a number from 128 to 255, a metric (of the IGP, the delay of links in whole microseconds, or their TE
metric) and rules for links by their affinities: ``exclude`` leaves out links with any of the names, ``include-any``
those with none of them, ``include-all`` those that lack one; a link without the metric is left out too.  Traffic of an
algorithm takes its shortest paths alone, with ECMP: where it has none, traffic is lost, even if the IGP has a path.
After a failure each algorithm converges, and repairs, within its own links.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from teal.errors import InputError, listed
from teal.formats.link_tables import cells
from teal.network import Topology
from teal.network.ecmp import EcmpDag
from teal.pathops.igp_failures import FailureResults
from teal.routing.installed import IgpRouting, Loads, in_chunks, results_of
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array, IntArray
from teal.spec import parse_spec

_OPTION, _FILE_OPTION = "--flex-algo", "--algorithm-of"
_EXPECTED = "such as 128:metric=delay,exclude=red+blue,include-any=core,include-all=a+b"
_FIRST, _LAST = 128, 255  # numbers of flexible algorithms; 0 is the IGP's own
METRICS = ("igp", "delay", "te")
_RULES = {"exclude", "include_any", "include_all"}
_US_PER_MS = 1000.0
_ANY = "*"  # source or target of a row of the file


@dataclasses.dataclass(frozen=True)
class FlexAlgo:
    """The definition of an algorithm.

    Attributes:
        number: 128 to 255.
        metric: igp, delay or te.
        exclude: affinities of which a link has none.
        include_any: affinities of which a link has at least one; empty for no such rule.
        include_all: affinities which a link has all.
    """

    number: int
    metric: str = "igp"
    exclude: frozenset[str] = frozenset()
    include_any: frozenset[str] = frozenset()
    include_all: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str) -> FlexAlgo:
        """The algorithm that ``128:metric=delay,exclude=red+blue`` defines.

        Raises:
            InputError: another text.
        """
        try:
            spec = parse_spec(text.strip())
        except InputError:
            raise InputError(_OPTION, "", _EXPECTED, repr(text)) from None
        if not spec.name.isdecimal() or not _FIRST <= int(spec.name) <= _LAST:
            raise InputError(_OPTION, "", f"a number from {_FIRST} to {_LAST}, {_EXPECTED}", repr(text))
        rules = {name: frozenset(value.split("+")) for name, value in spec.options.items() if name != "metric"}
        if not set(rules) <= _RULES or any("" in names for names in rules.values()):
            raise InputError(_OPTION, "", _EXPECTED, repr(text))
        metric = spec.options.get("metric", "igp")
        if metric not in METRICS:
            raise InputError(_OPTION, "metric", " or ".join(METRICS), repr(metric))
        return cls(int(spec.name), metric, **rules)

    def admits(self, topology: Topology) -> BoolArray:
        """(E,) the links of the algorithm, up or down.

        Raises:
            InputError: an affinity that no link has, which is most often a wrong name.
        """
        affinities = topology.affinities or (frozenset[str](),) * topology.num_links
        unknown = (self.exclude | self.include_any | self.include_all) - frozenset().union(*affinities)
        if unknown:
            known = listed(sorted(frozenset().union(*affinities))) or "none: no link of the file has any"
            raise InputError(_OPTION, str(self.number), f"affinities of the links ({known})", listed(sorted(unknown)))
        is_allowed = [
            not self.exclude & own and self.include_all <= own and (self.include_any & own or not self.include_any)
            for own in affinities
        ]
        has_metric = np.ones(topology.num_links, dtype=bool)
        if self.metric == "te":
            has_metric = topology.te_metric > 0 if topology.te_metric is not None else ~has_metric
        return np.array(is_allowed, dtype=bool) & has_metric

    def dag(self, topology: Topology, igp_metric: FloatArray) -> EcmpDag:
        """The shortest paths of the algorithm.

        Args:
            topology: the network; links of capacity 0 have failed.
            igp_metric: (E,) metrics of the IGP in force, infinite on failed links.

        Raises:
            InputError: see :meth:`admits`.
        """
        is_admitted = self.admits(topology)
        metric = np.where(np.isfinite(igp_metric), igp_metric, 1.0)  # infinite on failed links, which stay left out
        if self.metric == "delay":
            metric = np.maximum(1.0, np.round(topology.latency * _US_PER_MS))
        elif self.metric == "te" and topology.te_metric is not None:
            metric = np.maximum(1, topology.te_metric).astype(np.float64)
        return EcmpDag.of(topology, metric).without(np.flatnonzero(~is_admitted))


def algorithms_of(
    definitions: Sequence[FlexAlgo], file: Path | None, topology: Topology, pairs: IntArray
) -> Int64Array:
    """(D,) number of the algorithm of each demand, 0 for the IGP's own.

    Args:
        definitions: algorithms.
        file: table (.csv) of source, target and algorithm, where ``*`` stands for any node and the first row that
            fits decides; demands that no row names stay with the IGP.  None: all demands take the one algorithm.
        topology: the network.
        pairs: (D, 2) source and target of each demand.

    Raises:
        InputError: several definitions and no file, two of one number, or a row with an unknown node or algorithm.
    """
    numbers = [one.number for one in definitions]
    if len(set(numbers)) < len(numbers):
        raise InputError(_OPTION, "", "one definition for each number", listed(list(map(str, numbers))))
    if file is None:
        if len(numbers) != 1:
            raise InputError(_FILE_OPTION, "", "a table of source, target, algorithm, for several algorithms", "none")
        return np.full(len(pairs), numbers[0], dtype=np.int64)
    found, index = np.full(len(pairs), -1, dtype=np.int64), topology.node_index()
    for line, source, target, algorithm in _rows(file):
        if algorithm not in {"0", *map(str, numbers)}:
            raise InputError(str(file), f"line {line}: algorithm", f"0 or a number of {_OPTION}", repr(algorithm))
        fits = found < 0
        for column, name in enumerate((source, target)):
            own = topology.name_of(name)
            if name != _ANY and own not in index:
                expected = "a node of the network, or *"
                raise InputError(str(file), f"line {line}: {('source', 'target')[column]}", expected, repr(name))
            if name != _ANY:
                fits &= pairs[:, column] == index[own]
        found[fits] = int(algorithm)
    return np.maximum(found, 0)


def _rows(file: Path) -> Iterator[tuple[int, str, str, str]]:
    """Line, source, target and algorithm of each row of the table."""
    try:
        header, rows = cells(file)
    except OSError as error:
        raise InputError(str(file), "", "a table of source, target, algorithm (.csv)", str(error)) from None
    columns = [name.strip() for name in header]
    if not {"source", "target", "algorithm"} <= set(columns):
        raise InputError(str(file), "header", "the columns source, target, algorithm", ", ".join(columns))
    for line, row in rows:
        named = dict(zip(columns, map(str.strip, row), strict=False))
        yield line, named.get("source", ""), named.get("target", ""), named.get("algorithm", "")


class FlexRouting:
    """Demands on several algorithms: a :class:`teal.routing.installed.InstalledRouting`.

    Args:
        dag: network, and shortest paths of the IGP.
        pairs: (D, 2) source and target of each demand.
        definitions: algorithms.
        algorithm: (D,) number of each demand's; 0 for the IGP's own.
    """

    is_igp_alone = False

    def __init__(self, dag: EcmpDag, pairs: IntArray, definitions: Sequence[FlexAlgo], algorithm: Int64Array) -> None:
        self.dag, self._demands = dag, len(pairs)
        dags = {0: dag, **{one.number: one.dag(dag.topology, dag.links.metric) for one in definitions}}
        self._parts = [
            (of, IgpRouting(dags[number], pairs[of]))
            for number in np.unique(algorithm).tolist()
            if len(of := np.flatnonzero(algorithm == number))
        ]

    def loads(self, demand: FloatArray) -> SumOfLoads:
        """Loads (:meth:`InstalledRouting.loads`)."""
        return SumOfLoads([part.loads(demand[:, of]) for of, part in self._parts], self.dag.topology.capacity)

    def latency(self) -> FloatArray:
        """Latencies (:meth:`InstalledRouting.latency`)."""
        latency = np.empty(self._demands)
        for of, part in self._parts:
            latency[of] = part.latency()
        return latency

    def measurements(self) -> sp.csr_array:
        """Measurements (:meth:`InstalledRouting.measurements`)."""
        columns = sp.hstack([part.measurements() for _, part in self._parts], format="csc")
        order = np.concatenate([of for of, _ in self._parts])
        return sp.csr_array(columns[:, np.argsort(order)])


class SumOfLoads:
    """The loads of demands that are routed in parts.

    Args:
        parts: loads of each part.
        capacity: (E,) Gbit/s.

    Attributes:
        load: (M, E) Gbit/s without failure.
        lost: (M,) Gbit/s between nodes that have no path even without failure.
    """

    def __init__(self, parts: Sequence[Loads], capacity: FloatArray) -> None:
        self._parts, self._capacity = parts, capacity
        self.load: FloatArray = np.sum([part.load for part in parts], axis=0)
        self.lost: FloatArray = np.sum([part.lost for part in parts], axis=0)

    def under(self, failures: list[list[int]], *, repairing: bool = False, loads: bool = False) -> FailureResults:
        """The loads after failures (:meth:`Loads.under`)."""

        def some(chunk: list[list[int]]) -> FailureResults:
            each = [part.under(chunk, repairing=repairing, loads=True) for part in self._parts]
            load, lost, at_risk = (
                np.sum([getattr(one, name) for one in each], axis=0) for name in ("load", "lost", "at_risk")
            )
            return results_of(load, lost, at_risk, self._capacity, loads=loads)

        return in_chunks(failures, self.load.size, some)
