"""Router configuration of flexible algorithms (RFC 9350): Cisco IOS-XR, Juniper Junos and FRR 9.

Every router participates in every algorithm: it has the affinities as bits, a node segment in each
algorithm, and the affinities of its interfaces.  Two routers, those with the most links, advertise
the definitions, for redundancy.  The metric ``delay`` is the network's delays on IOS-XR, which
advertises them as constants, and is measured by Junos; FRR supports the IGP metric only, and other
metrics are rejected there.

The texts follow Cisco's *Segment Routing Configuration Guide*, Juniper's reference of
``flex-algorithm`` and FRR's user guide (isisd); tests compare them with examples, and no router has
loaded them.  Entry point: :func:`algorithm_config`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from teal.errors import InputError, listed
from teal.formats.routers import Router, Routers
from teal.network import Topology
from teal.network.flex_algo import FLEX_ALGO, FlexAlgo, delay_us
from teal_ip.configuration.policies import check_routers, prefix_of, vendor_of

# Name of the IS-IS process, to be replaced by the network's own.
_INSTANCE = "1"
# Number of routers that advertise the definitions.
_ADVERTISING = 2
# Largest bit of an extended administrative group (RFC 7308).
_MAX_BIT = 255
# Largest index of a node segment in FRR.
_MAX_FRR_SID = 65_535
# Largest bit of ``protocols mpls admin-groups`` in Junos.
_MAX_JUNOS_BIT = 31


class _Interface(NamedTuple):
    """An interface: name, affinities, delay in microseconds, and TE metric, 0 for none."""

    name: str
    affinities: list[str]
    delay: int
    te_metric: int


class _Node(NamedTuple):
    """Contents of the configuration of one router.

    Attributes:
        router: row of the router table.
        interfaces: interfaces of live links.
        bits: bit of each affinity.
        algorithms: all algorithms.
        advertises: whether the router advertises the definitions.
    """

    router: Router
    interfaces: list[_Interface]
    bits: dict[str, int]
    algorithms: Sequence[FlexAlgo]
    advertises: bool

    def uses(self, metric: str) -> bool:
        """Whether an algorithm uses a metric."""
        return any(algorithm.metric == metric for algorithm in self.algorithms)

    def rules(self, algorithm: FlexAlgo, exclude: str) -> list[tuple[str, list[str]]]:
        """Name and affinities of each rule of an algorithm; ``exclude`` is the vendor's name of the
        exclusion rule.
        """
        rules = (
            (exclude, algorithm.exclude),
            ("include-any", algorithm.include_any),
            ("include-all", algorithm.include_all),
        )
        return [(name, sorted(affinities)) for name, affinities in rules if affinities]


def _bits(topology: Topology) -> dict[str, int]:
    """Assign a bit to each affinity of the network: N for ``bitN``, the first free ones to others
    in the order of names.
    """
    names = sorted(frozenset[str]().union(*topology.affinities))
    numbers = {name: int(name[3:]) for name in names if re.fullmatch(r"bit(0|[1-9]\d{0,3})", name)}
    free = iter(sorted(set(range(_MAX_BIT + 1)) - set(numbers.values())))
    if len(names) > _MAX_BIT + 1 or max(numbers.values(), default=0) > _MAX_BIT:
        raise InputError("affinities", "", f"bits from 0 to {_MAX_BIT}", listed(names))
    return {name: numbers[name] if name in numbers else next(free) for name in names}


def _iosxr(node: _Node) -> list[str]:
    # Affinities, and algorithms.
    lines = [f"router isis {_INSTANCE}"]
    lines += [f" affinity-map {name} bit-position {bit}" for name, bit in node.bits.items()]
    for algorithm in node.algorithms:
        lines.append(f" flex-algo {algorithm.number}")
        lines += [] if algorithm.metric == "igp" else [f"  metric-type {algorithm.metric}"]
        lines += [
            f"  affinity {rule} {' '.join(names)}"
            for rule, names in node.rules(algorithm, "exclude-any")
        ]
        lines += ["  advertise-definition", " !"] if node.advertises else [" !"]
    # Prefix SIDs of the loopback.
    family = f"  address-family {prefix_of(node.router)[1]} unicast"
    lines += [" interface Loopback0", family]
    lines += [
        f"   prefix-sid algorithm {algorithm.number} index {node.router.sid_of(algorithm.number)}"
        for algorithm in node.algorithms
    ]
    lines += ["  !", " !"]
    # Affinities and TE metrics of the interfaces.
    for port in node.interfaces:
        interface_lines = (
            [f"  affinity flex-algo {' '.join(port.affinities)}"] if port.affinities else []
        )
        if node.uses("te") and port.te_metric:
            interface_lines += [family, f"   te-metric flex-algo {port.te_metric}", "  !"]
        lines += [f" interface {port.name}", *interface_lines, " !"] if interface_lines else []
    lines.append("!")
    # Delay measurement.
    if node.uses("delay"):
        lines.append("performance-measurement")
        for port in node.interfaces:
            lines += [
                f" interface {port.name}",
                "  delay-measurement",
                f"   advertise-delay {port.delay}",
                "  !",
                " !",
            ]
        lines.append("!")
    return lines


def _frr(node: _Node) -> list[str]:
    if unsupported := sorted({algorithm.metric for algorithm in node.algorithms} - {"igp"}):
        expected = f"igp for {node.router.name}, a router of FRR (the default without a vendor)"
        raise InputError(FLEX_ALGO, "metric", expected, listed(unsupported))
    if (
        largest := max(node.router.sid_of(algorithm.number) or 0 for algorithm in node.algorithms)
    ) > _MAX_FRR_SID:
        raise InputError(
            "--routers", node.router.name, f"SIDs up to {_MAX_FRR_SID} on routers of FRR", largest
        )
    # Affinities, of the router and of its interfaces.
    lines = [f"affinity-map {name} bit-position {bit}" for name, bit in node.bits.items()]
    for port in node.interfaces:
        if port.affinities:
            lines += [
                f"interface {port.name}",
                " link-params",
                f"  affinity {' '.join(port.affinities)}",
            ]
            lines += [" exit-link-params", "exit"]
    # Algorithms, and their prefix SIDs.
    lines.append(f"router isis {_INSTANCE}")
    for algorithm in node.algorithms:
        lines += [f" flex-algo {algorithm.number}", "  dataplane sr-mpls"]
        lines += [
            f"  affinity {rule} {name}"
            for rule, names in node.rules(algorithm, "exclude-any")
            for name in names
        ]
        lines += ["  advertise-definition", " exit"] if node.advertises else [" exit"]
    lines += [
        f" segment-routing prefix {prefix_of(node.router)[0]} algorithm {algorithm.number} index "
        f"{node.router.sid_of(algorithm.number)}"
        for algorithm in node.algorithms
    ]
    return [*lines, "exit"]


def _junos(node: _Node) -> list[str]:
    if too_large := [f"{name} ({bit})" for name, bit in node.bits.items() if bit > _MAX_JUNOS_BIT]:
        raise InputError(
            "affinities",
            "",
            f"bits from 0 to {_MAX_JUNOS_BIT} on routers of Junos",
            listed(too_large),
        )
    # Affinities, and the export policy of the prefix SIDs.
    lines = [f"set protocols mpls admin-groups {name} {bit}" for name, bit in node.bits.items()]
    statement = "set policy-options policy-statement FLEX-ALGO term node"
    lines.append(f"{statement} from route-filter {prefix_of(node.router)[0]} exact")
    for algorithm in node.algorithms:
        lines += _junos_algorithm(node, algorithm, statement)
    lines += [f"{statement} then accept", "set protocols isis export FLEX-ALGO"]
    lines.append("set protocols isis traffic-engineering advertisement always")
    # Interfaces.
    for port in node.interfaces:
        lines += [
            f"set protocols mpls interface {port.name} admin-group {name}"
            for name in port.affinities
        ]
        if node.uses("te") and port.te_metric:
            lines.append(
                f"set protocols isis interface {port.name} level 2 te-metric {port.te_metric}"
            )
        if node.uses("delay"):
            lines.append(f"set protocols isis interface {port.name} delay-measurement")
    return lines


def _junos_algorithm(node: _Node, algorithm: FlexAlgo, statement: str) -> list[str]:
    """Lines of an algorithm; ``statement`` is the policy term that exports its prefix SID."""
    lines = list[str]()
    definition = f"set routing-options flex-algorithm {algorithm.number} definition"
    if node.advertises:
        metrics = {"igp": "igp-metric", "delay": "delay-metric", "te": "te-metric"}
        lines.append(f"{definition} metric-type {metrics[algorithm.metric]}")
        lines += [
            f"{definition} admin-group {rule} {name}"
            for rule, names in node.rules(algorithm, "exclude")
            for name in names
        ]
    segment = f"{statement} then prefix-segment algorithm {algorithm.number}"
    lines += [
        f"{segment} index {node.router.sid_of(algorithm.number)}",
        f"{segment} node-segment",
        f"set protocols isis source-packet-routing flex-algorithm {algorithm.number}",
    ]
    return lines


_WRITERS = {"frr": _frr, "iosxr": _iosxr, "junos": _junos}


def algorithm_config(
    topology: Topology,
    algorithms: Sequence[FlexAlgo],
    routers: Routers,
    interfaces: Mapping[str, Sequence[str]],
) -> dict[str, str]:
    """Return the configuration of every router, by name, in its vendor's format (FRR by default).

    Args:
        topology: the network; affinities, TE metrics and delays are those of its links.
        algorithms: definitions.
        routers: table with loopback and SIDs of all routers.
        interfaces: names of the interfaces of each link, by link name.

    Raises:
        InputError: a router without loopback or SID, a link without an interface, an affinity
            without links or without a free bit, or a metric or SID that a vendor does not support.
    """
    check_routers(
        Path("algorithms.conf"), topology, routers, [algorithm.number for algorithm in algorithms]
    )
    for algorithm in algorithms:
        algorithm.admits(topology)
    live = np.flatnonzero(topology.capacity > 0)
    names = topology.link_names()
    if missing := [names[link] for link in live if not interfaces.get(names[link])]:
        raise InputError(
            "--interfaces", "", "an interface of each link", f"none of {listed(missing)}"
        )
    bits = _bits(topology)
    degree = np.bincount(topology.link_source[live], minlength=topology.num_nodes)
    advertising = set(np.argsort(-degree, kind="stable")[:_ADVERTISING].tolist())
    texts = {}
    delay = delay_us(topology)
    for node_index, name in enumerate(topology.node_names):
        ports = [
            _Interface(
                port,
                sorted(topology.affinities[link]) if topology.affinities else [],
                int(delay[link]),
                0 if topology.te_metric is None else int(topology.te_metric[link]),
            )
            for link in live[topology.link_source[live] == node_index]
            for port in interfaces[names[link]]
        ]
        node = _Node(routers[name], ports, bits, algorithms, node_index in advertising)
        texts[name] = "\n".join(_WRITERS[vendor_of(routers[name])](node)) + "\n"
    return texts
