"""Router configuration of flexible algorithms (RFC 9350): Cisco IOS-XR, Juniper Junos and FRR 9.

Every router participates in every algorithm: its configuration maps affinities to bits, and has a
node segment for each algorithm and the affinities of its interfaces.  For redundancy, the two
routers with the most links advertise the definitions.  With metric ``delay``, IOS-XR advertises the
delays of the topology as constants, and Junos measures them; FRR supports the IGP metric only.

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

# Name of the IS-IS process; to be replaced by the name in the network.
_ISIS_PROCESS = "1"
# Number of routers that advertise the definitions.
_NUM_ADVERTISING = 2
# Largest bit of an extended administrative group (RFC 7308).
_MAX_BIT = 255
# Largest index of a node segment in FRR.
_MAX_FRR_SID = 65_535
# Largest bit of ``protocols mpls admin-groups`` in Junos.
_MAX_JUNOS_BIT = 31


class _Interface(NamedTuple):
    """Interface of a router.

    Attributes:
        name: name of the interface.
        affinities: affinities (administrative groups) of its link.
        delay: delay of its link, microseconds.
        te_metric: TE metric of its link; 0 for none.
    """

    name: str
    affinities: list[str]
    delay: int
    te_metric: int


class _RouterConfig(NamedTuple):
    """Input of the configuration of one router.

    Attributes:
        router: row of the router table.
        interfaces: interfaces of the router on links with capacity.
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
        """Return whether any algorithm uses a metric: ``igp``, ``delay`` or ``te``."""
        return any(algorithm.metric == metric for algorithm in self.algorithms)

    def rules(self, algorithm: FlexAlgo, exclude: str) -> list[tuple[str, list[str]]]:
        """Return the rules by which an algorithm admits links: name and affinities of each.

        Args:
            algorithm: definition of the algorithm.
            exclude: name of the exclusion rule in the vendor's syntax.
        """
        rules = (
            (exclude, algorithm.exclude),
            ("include-any", algorithm.include_any),
            ("include-all", algorithm.include_all),
        )
        return [(name, sorted(affinities)) for name, affinities in rules if affinities]


def _affinity_bits(topology: Topology) -> dict[str, int]:
    """Return the bit of each affinity of the network.

    An affinity called ``bitN`` has bit N; the others get the lowest free bits, by name.

    Raises:
        InputError: more affinities than bits, or a bit above the maximum.
    """
    # Bits by name, and the remaining ones in ascending order.
    names = sorted(frozenset[str]().union(*topology.affinities))
    fixed_bits = {
        name: int(name[3:]) for name in names if re.fullmatch(r"bit(0|[1-9]\d{0,3})", name)
    }
    free_bits = iter(sorted(set(range(_MAX_BIT + 1)) - set(fixed_bits.values())))
    if len(names) > _MAX_BIT + 1 or max(fixed_bits.values(), default=0) > _MAX_BIT:
        raise InputError.invalid(
            "affinities",
            "",
            f"{listed(names)} do not fit into bits from 0 to {_MAX_BIT}",
            "use fewer affinities, or smaller bits",
        )
    return {name: fixed_bits[name] if name in fixed_bits else next(free_bits) for name in names}


def _iosxr_lines(config: _RouterConfig) -> list[str]:
    """Return the configuration lines of a router in the syntax of Cisco IOS-XR."""
    # Affinities and definitions of algorithms.
    lines = [f"router isis {_ISIS_PROCESS}"]
    lines += [f" affinity-map {name} bit-position {bit}" for name, bit in config.bits.items()]
    for algorithm in config.algorithms:
        lines.append(f" flex-algo {algorithm.number}")
        lines += [] if algorithm.metric == "igp" else [f"  metric-type {algorithm.metric}"]
        lines += [
            f"  affinity {rule} {' '.join(names)}"
            for rule, names in config.rules(algorithm, "exclude-any")
        ]
        lines += ["  advertise-definition", " !"] if config.advertises else [" !"]
    # Prefix SIDs of the loopback.
    family = f"  address-family {prefix_of(config.router)[1]} unicast"
    lines += [" interface Loopback0", family]
    lines += [
        f"   prefix-sid algorithm {algorithm.number} index {config.router.sid_of(algorithm.number)}"
        for algorithm in config.algorithms
    ]
    lines += ["  !", " !"]
    # Affinities and TE metrics of the interfaces.
    for port in config.interfaces:
        interface_lines = (
            [f"  affinity flex-algo {' '.join(port.affinities)}"] if port.affinities else []
        )
        if config.uses("te") and port.te_metric:
            interface_lines += [family, f"   te-metric flex-algo {port.te_metric}", "  !"]
        lines += [f" interface {port.name}", *interface_lines, " !"] if interface_lines else []
    lines.append("!")
    # Delays of the links, which IOS-XR advertises as constants.
    if config.uses("delay"):
        lines.append("performance-measurement")
        for port in config.interfaces:
            lines += [
                f" interface {port.name}",
                "  delay-measurement",
                f"   advertise-delay {port.delay}",
                "  !",
                " !",
            ]
        lines.append("!")
    return lines


def _frr_lines(config: _RouterConfig) -> list[str]:
    """Return the configuration lines of a router in the syntax of FRR.

    Raises:
        InputError: a metric or SID that FRR does not support.
    """
    # FRR supports the IGP metric only, and limits SIDs.
    if unsupported := sorted({algorithm.metric for algorithm in config.algorithms} - {"igp"}):
        raise InputError.invalid(
            FLEX_ALGO,
            "metric",
            f"{config.router.name} is an FRR router, which supports metric igp only, not "
            f"{listed(unsupported)}",
            "set its vendor in --routers if this is wrong",
        )
    if (
        largest := max(
            config.router.sid_of(algorithm.number) or 0 for algorithm in config.algorithms
        )
    ) > _MAX_FRR_SID:
        raise InputError(
            "--routers", config.router.name, f"SIDs up to {_MAX_FRR_SID} on an FRR router", largest
        )
    # Affinity bits, and affinities of the interfaces.
    lines = [f"affinity-map {name} bit-position {bit}" for name, bit in config.bits.items()]
    for port in config.interfaces:
        if port.affinities:
            lines += [
                f"interface {port.name}",
                " link-params",
                f"  affinity {' '.join(port.affinities)}",
            ]
            lines += [" exit-link-params", "exit"]
    # Definitions of algorithms, and their prefix SIDs.
    lines.append(f"router isis {_ISIS_PROCESS}")
    for algorithm in config.algorithms:
        lines += [f" flex-algo {algorithm.number}", "  dataplane sr-mpls"]
        lines += [
            f"  affinity {rule} {name}"
            for rule, names in config.rules(algorithm, "exclude-any")
            for name in names
        ]
        lines += ["  advertise-definition", " exit"] if config.advertises else [" exit"]
    lines += [
        f" segment-routing prefix {prefix_of(config.router)[0]} algorithm {algorithm.number} index "
        f"{config.router.sid_of(algorithm.number)}"
        for algorithm in config.algorithms
    ]
    return [*lines, "exit"]


def _junos_lines(config: _RouterConfig) -> list[str]:
    """Return the configuration lines of a router in the syntax of Junos.

    Raises:
        InputError: an affinity bit that Junos does not support.
    """
    if too_large := [
        f"{name} ({bit})" for name, bit in config.bits.items() if bit > _MAX_JUNOS_BIT
    ]:
        raise InputError(
            "affinities",
            "",
            f"bits from 0 to {_MAX_JUNOS_BIT} on Junos routers",
            listed(too_large),
        )
    # Affinity bits, definitions of algorithms, and the export policy of their prefix SIDs.
    lines = [f"set protocols mpls admin-groups {name} {bit}" for name, bit in config.bits.items()]
    policy_term = "set policy-options policy-statement FLEX-ALGO term node"
    lines.append(f"{policy_term} from route-filter {prefix_of(config.router)[0]} exact")
    for algorithm in config.algorithms:
        lines += _junos_algorithm_lines(config, algorithm, policy_term)
    lines += [f"{policy_term} then accept", "set protocols isis export FLEX-ALGO"]
    lines.append("set protocols isis traffic-engineering advertisement always")
    # Interfaces.
    for port in config.interfaces:
        lines += [
            f"set protocols mpls interface {port.name} admin-group {name}"
            for name in port.affinities
        ]
        if config.uses("te") and port.te_metric:
            lines.append(
                f"set protocols isis interface {port.name} level 2 te-metric {port.te_metric}"
            )
        if config.uses("delay"):
            lines.append(f"set protocols isis interface {port.name} delay-measurement")
    return lines


def _junos_algorithm_lines(
    config: _RouterConfig, algorithm: FlexAlgo, policy_term: str
) -> list[str]:
    """Return the Junos lines of an algorithm: its prefix SID, and its definition on routers that
    advertise it.

    Args:
        config: input of the configuration of the router.
        algorithm: definition of the algorithm.
        policy_term: policy term that exports the prefix SID.
    """
    lines = list[str]()
    definition = f"set routing-options flex-algorithm {algorithm.number} definition"
    if config.advertises:
        metrics = {"igp": "igp-metric", "delay": "delay-metric", "te": "te-metric"}
        lines.append(f"{definition} metric-type {metrics[algorithm.metric]}")
        lines += [
            f"{definition} admin-group {rule} {name}"
            for rule, names in config.rules(algorithm, "exclude")
            for name in names
        ]
    segment = f"{policy_term} then prefix-segment algorithm {algorithm.number}"
    lines += [
        f"{segment} index {config.router.sid_of(algorithm.number)}",
        f"{segment} node-segment",
        f"set protocols isis source-packet-routing flex-algorithm {algorithm.number}",
    ]
    return lines


# Function that writes the lines of a router, by vendor.
_WRITERS = {"frr": _frr_lines, "iosxr": _iosxr_lines, "junos": _junos_lines}


def algorithm_config(
    topology: Topology,
    algorithms: Sequence[FlexAlgo],
    routers: Routers,
    interfaces: Mapping[str, Sequence[str]],
) -> dict[str, str]:
    """Return the configuration of every router, by name, in its vendor's format (FRR by default).

    Args:
        topology: the network, with affinities, TE metrics and delays of links.
        algorithms: definitions of the flexible algorithms.
        routers: table with loopback and SIDs of all routers.
        interfaces: names of the interfaces of each link, by name of the link.

    Raises:
        InputError: a router without loopback or SID, a link without an interface, an affinity
            without links or without a free bit, or a metric or SID that a vendor does not support.
    """
    # Check the table of routers, where the name of the file only says that configuration is
    # written, and that every affinity of a definition occurs on links.
    check_routers(
        Path("algorithms.conf"), topology, routers, [algorithm.number for algorithm in algorithms]
    )
    for algorithm in algorithms:
        algorithm.admits(topology)
    # Check that every live link has an interface.
    live_links = np.flatnonzero(topology.capacity > 0)
    link_names = topology.link_names()
    if missing := [link_names[link] for link in live_links if not interfaces.get(link_names[link])]:
        raise InputError.invalid(
            "--interfaces", "", f"no interface for the links {listed(missing)}; add rows for them"
        )
    bits = _affinity_bits(topology)
    # The routers with the most links advertise the definitions.
    degree = np.bincount(topology.link_source[live_links], minlength=topology.num_nodes)
    advertising_nodes = set(np.argsort(-degree, kind="stable")[:_NUM_ADVERTISING].tolist())
    # Configuration of each router.
    text_by_router = {}
    delay = delay_us(topology)
    for node_index, name in enumerate(topology.node_names):
        node_interfaces = [
            _Interface(
                interface,
                sorted(topology.affinities[link]) if topology.affinities else [],
                int(delay[link]),
                0 if topology.te_metric is None else int(topology.te_metric[link]),
            )
            for link in live_links[topology.link_source[live_links] == node_index]
            for interface in interfaces[link_names[link]]
        ]
        config = _RouterConfig(
            routers[name], node_interfaces, bits, algorithms, node_index in advertising_nodes
        )
        text_by_router[name] = "\n".join(_WRITERS[vendor_of(routers[name])](config)) + "\n"
    return text_by_router
