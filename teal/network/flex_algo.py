"""Flexible algorithms of the IGP (RFC 9350): shortest paths by another metric over a subset of
links.

A definition has a number from 128 to 255, a metric (the IGP's, the link delay in whole
microseconds, or the TE metric) and affinity rules: ``exclude`` excludes links with any of the
names, ``include-any`` requires at least one of the names, ``include-all`` requires all of them.
Links without the metric are excluded too.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from teal.errors import InputError, listed
from teal.network.ecmp import EcmpDag
from teal.network.topology import Topology
from teal.runtime.arrays import BoolArray, FloatArray
from teal.spec import parse_spec

# Name of the option in messages.
FLEX_ALGO = "--flex-algo"
_EXPECTED = "such as 128:metric=delay,exclude=red+blue,include-any=core,include-all=a+b"
# Range of flexible algorithm numbers; 0 is the IGP's own.
_MIN_NUMBER = 128
_MAX_NUMBER = 255
METRICS = ("igp", "delay", "te")
_RULES = {"exclude", "include_any", "include_all"}
_US_PER_MS = 1000.0


def delay_us(topology: Topology) -> FloatArray:
    """Return the link delays (E,) in microseconds, rounded to integers of at least 1.

    Routers advertise delays in this form.

    Args:
        topology: network with the latencies in ms.
    """
    return np.maximum(1.0, np.round(topology.latency * _US_PER_MS))


@dataclasses.dataclass(frozen=True)
class FlexAlgo:
    """Definition of a flexible algorithm.

    Attributes:
        number: 128 to 255.
        metric: igp, delay or te.
        exclude: links with any of these affinities are excluded.
        include_any: links must have at least one of these affinities; empty for no such rule.
        include_all: links must have all of these affinities.
    """

    number: int
    metric: str = "igp"
    exclude: frozenset[str] = frozenset()
    include_any: frozenset[str] = frozenset()
    include_all: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str, where: str = FLEX_ALGO) -> FlexAlgo:
        """Parse a definition such as ``128:metric=delay,exclude=red+blue``.

        Args:
            text: the definition.
            where: location of the text, for messages.

        Raises:
            InputError: an invalid definition.
        """
        try:
            spec = parse_spec(text.strip())
        except InputError:
            raise InputError(where, "", _EXPECTED, repr(text)) from None
        # Check the number of the algorithm.
        if not spec.name.isdecimal() or not _MIN_NUMBER <= int(spec.name) <= _MAX_NUMBER:
            raise InputError(
                where, "", f"a number from {_MIN_NUMBER} to {_MAX_NUMBER}, {_EXPECTED}", repr(text)
            )
        # Parse the affinity rules, and the metric.
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
        """Return the definition in the format of :meth:`parse`."""
        rules = [
            (name, getattr(self, name.replace("-", "_")))
            for name in ("exclude", "include-any", "include-all")
        ]
        rule_texts = [f"{name}={'+'.join(sorted(names))}" for name, names in rules if names]
        return f"{self.number}:{','.join([f'metric={self.metric}', *rule_texts])}"

    def admits(self, topology: Topology) -> BoolArray:
        """Return whether the algorithm may use each link, (E,) booleans; capacities are ignored.

        A link needs the metric of the algorithm, no affinity of ``exclude``, all of
        ``include_all``, and at least one of ``include_any`` if there are any.

        Args:
            topology: the network.

        Raises:
            InputError: an affinity that no link has, which usually is a misspelt name.
        """
        # Raise an error for names that no link has.
        affinities = topology.affinities or (frozenset[str](),) * topology.num_links
        unknown_affinities = (
            self.exclude | self.include_any | self.include_all
        ) - frozenset().union(*affinities)
        if unknown_affinities:
            known_text = (
                listed(sorted(frozenset().union(*affinities))) or "no link of the topology has any"
            )
            raise InputError(
                FLEX_ALGO,
                str(self.number),
                f"affinities of the links ({known_text})",
                listed(sorted(unknown_affinities)),
            )
        # Apply the affinity rules to each link, and exclude links without the metric.
        is_allowed = [
            not self.exclude & link_affinities
            and self.include_all <= link_affinities
            and (self.include_any & link_affinities or not self.include_any)
            for link_affinities in affinities
        ]
        has_metric = np.ones(topology.num_links, dtype=bool)
        if self.metric == "te":
            has_metric = topology.te_metric > 0 if topology.te_metric is not None else ~has_metric
        return np.array(is_allowed, dtype=bool) & has_metric

    def metrics(self, topology: Topology, igp_metric: FloatArray) -> FloatArray:
        """Return the metrics (E,) of the algorithm, also for links that it does not use.

        Args:
            topology: the network; links of capacity 0 have failed.
            igp_metric: (E,) current IGP metrics, infinite on failed links.
        """
        # IGP metrics are infinite on failed links, whose capacity of 0 excludes them anyway.
        metric = np.where(np.isfinite(igp_metric), igp_metric, 1.0)
        if self.metric == "delay":
            metric = delay_us(topology)
        elif self.metric == "te" and topology.te_metric is not None:
            metric = np.maximum(1, topology.te_metric).astype(np.float64)
        return metric

    def dag(self, topology: Topology, igp_metric: FloatArray) -> EcmpDag:
        """Compute the shortest-path DAGs of the algorithm, over the links that it may use.

        The topology of the result has all links.

        Args:
            topology: the network; links of capacity 0 have failed.
            igp_metric: (E,) current IGP metrics, infinite on failed links.

        Raises:
            InputError: an affinity that no link has.
        """
        unused = np.flatnonzero(~self.admits(topology))
        return EcmpDag.of(topology, self.metrics(topology, igp_metric)).without(unused)

    def dag_alone(self, topology: Topology, igp_metric: FloatArray) -> EcmpDag:
        """Compute the shortest-path DAGs of the algorithm on the network of its links alone.

        The topology of the result has capacity 0 on all links that the algorithm excludes, so that
        adjacencies, and bounds over any paths, use only links of the algorithm.

        Args:
            topology: the network; links of capacity 0 have failed.
            igp_metric: (E,) current IGP metrics, infinite on failed links.

        Raises:
            InputError: an affinity that no link has.
        """
        metric = self.metrics(topology, igp_metric)
        unused = np.flatnonzero(~self.admits(topology))
        restricted = dataclasses.replace(
            topology.with_failed_links(unused.tolist()), metric=metric.astype(np.int64)
        )
        return EcmpDag.of(restricted, metric)
