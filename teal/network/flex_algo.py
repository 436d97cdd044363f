"""Definitions of flexible algorithms of the IGP (RFC 9350): shortest paths by another metric, over
part of the links.

An algorithm is a number from 128 to 255, a metric (of the IGP, the delay of links in whole
microseconds, or their TE metric) and rules for links by their affinities: ``exclude`` leaves out
links with any of the names, ``include-any`` those with none of them, ``include-all`` those that
lack one; a link without the metric is left out too.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from teal.errors import InputError, listed
from teal.network.ecmp import EcmpDag
from teal.network.topology import Topology
from teal.runtime.arrays import BoolArray, FloatArray
from teal.spec import parse_spec

FLEX_ALGO = "--flex-algo"  # option of a definition, for messages
_EXPECTED = "such as 128:metric=delay,exclude=red+blue,include-any=core,include-all=a+b"
_FIRST, _LAST = 128, 255  # numbers of flexible algorithms; 0 is the IGP's own
METRICS = ("igp", "delay", "te")
_RULES = {"exclude", "include_any", "include_all"}
_US_PER_MS = 1000.0


def delay_us(topology: Topology) -> FloatArray:
    """(E,) delays in whole microseconds, at least 1, as routers advertise them."""
    return np.maximum(1.0, np.round(topology.latency * _US_PER_MS))


@dataclasses.dataclass(frozen=True)
class FlexAlgo:
    """The definition of an algorithm.

    Attributes:
        number: 128 to 255.
        metric: igp, delay or te.
        exclude: affinities that no link of the algorithm has.
        include_any: affinities of which each link of the algorithm has at least one; empty for no
            such rule.
        include_all: affinities that each link of the algorithm has.
    """

    number: int
    metric: str = "igp"
    exclude: frozenset[str] = frozenset()
    include_any: frozenset[str] = frozenset()
    include_all: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str, where: str = FLEX_ALGO) -> FlexAlgo:
        """The algorithm that ``128:metric=delay,exclude=red+blue`` defines.

        Args:
            text: the definition.
            where: place of the text, for messages.

        Raises:
            InputError: another text.
        """
        try:
            spec = parse_spec(text.strip())
        except InputError:
            raise InputError(where, "", _EXPECTED, repr(text)) from None
        if not spec.name.isdecimal() or not _FIRST <= int(spec.name) <= _LAST:
            raise InputError(
                where, "", f"a number from {_FIRST} to {_LAST}, {_EXPECTED}", repr(text)
            )
        rules = {
            name: frozenset(value.split("+"))
            for name, value in spec.options.items()
            if name != "metric"
        }
        if not set(rules) <= _RULES or any("" in names for names in rules.values()):
            raise InputError(where, "", _EXPECTED, repr(text))
        metric = spec.options.get("metric", "igp")
        if metric not in METRICS:
            raise InputError(where, "metric", " or ".join(METRICS), repr(metric))
        return cls(int(spec.name), metric, **rules)

    def __str__(self) -> str:
        """The text that :meth:`parse` reads."""
        rules = [
            (name, getattr(self, name.replace("-", "_")))
            for name in ("exclude", "include-any", "include-all")
        ]
        given = [f"{name}={'+'.join(sorted(names))}" for name, names in rules if names]
        return f"{self.number}:{','.join([f'metric={self.metric}', *given])}"

    def admits(self, topology: Topology) -> BoolArray:
        """(E,) the links of the algorithm, up or down.

        Raises:
            InputError: an affinity that no link has, which is most often a wrong name.
        """
        affinities = topology.affinities or (frozenset[str](),) * topology.num_links
        unknown = (self.exclude | self.include_any | self.include_all) - frozenset().union(
            *affinities
        )
        if unknown:
            known = (
                listed(sorted(frozenset().union(*affinities)))
                or "none: no link of the file has any"
            )
            raise InputError(
                FLEX_ALGO,
                str(self.number),
                f"affinities of the links ({known})",
                listed(sorted(unknown)),
            )
        is_allowed = [
            not self.exclude & own
            and self.include_all <= own
            and (self.include_any & own or not self.include_any)
            for own in affinities
        ]
        has_metric = np.ones(topology.num_links, dtype=bool)
        if self.metric == "te":
            has_metric = topology.te_metric > 0 if topology.te_metric is not None else ~has_metric
        return np.array(is_allowed, dtype=bool) & has_metric

    def metrics(self, topology: Topology, igp_metric: FloatArray) -> FloatArray:
        """(E,) metrics of the algorithm, also of links that it does not use.

        Args:
            topology: the network; links of capacity 0 have failed.
            igp_metric: (E,) metrics of the IGP in force, infinite on failed links.
        """
        metric = np.where(
            np.isfinite(igp_metric), igp_metric, 1.0
        )  # infinite on failed links, which stay left out
        if self.metric == "delay":
            metric = delay_us(topology)
        elif self.metric == "te" and topology.te_metric is not None:
            metric = np.maximum(1, topology.te_metric).astype(np.float64)
        return metric

    def dag(self, topology: Topology, igp_metric: FloatArray) -> EcmpDag:
        """Shortest paths of the algorithm; arguments as in :meth:`metrics`, errors as of
        :meth:`admits`.
        """
        unused = np.flatnonzero(~self.admits(topology))
        return EcmpDag.of(topology, self.metrics(topology, igp_metric)).without(unused)

    def dag_alone(self, topology: Topology, igp_metric: FloatArray) -> EcmpDag:
        """Shortest paths as of :meth:`dag`, of a network where all other links have capacity 0.

        So bounds over any paths, and adjacencies, use links of the algorithm alone.
        """
        metric, unused = self.metrics(topology, igp_metric), np.flatnonzero(~self.admits(topology))
        own = dataclasses.replace(
            topology.with_failed_links(unused.tolist()), metric=metric.astype(np.int64)
        )
        return EcmpDag.of(own, metric)
