"""From settings to the shortest paths that routers use."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import numpy as np

from teal.errors import InputError
from teal.formats import load_traffic, topology_of
from teal.network import Topology, TrafficMatrices
from teal.network.ecmp import EcmpDag, check_metric, igp_metric
from teal.runtime.arrays import FloatArray
from teal_ip.routing.settings import IgpConfig, RoutedConfig


def load_igp(config: IgpConfig, topology: Topology, notify: Callable[[str], None]) -> tuple[Topology, EcmpDag]:
    """The network with the metrics in force and capacity 0 on failed links, and its shortest paths.

    Raises:
        InputError: an unknown link, or an invalid metric.
    """
    metric = metric_in_force(config, topology, notify)
    failed = topology.links_named(config.fail, "--fail")
    topology = dataclasses.replace(topology.with_failed_links(failed), metric=metric.astype(np.int64))
    return topology, EcmpDag.of(topology, metric, positive(topology.capacity) if config.ucmp else None)


def load_routed(config: RoutedConfig, notify: Callable[[str], None]) -> tuple[EcmpDag, TrafficMatrices]:
    """Shortest paths of the network with the metrics in force, and the traffic.

    Raises:
        InputError: a fault in what the user gave.
    """
    topology = topology_of(config)
    for note in topology.notes:
        notify(note)
    traffic = load_traffic(config.traffic, topology, unit=config.traffic_unit)
    return load_igp(config, topology, notify)[1], traffic


def positive(capacity: FloatArray) -> FloatArray:
    """The capacities (E,), 1 for links that have failed, which carry nothing whatever their weight."""
    return np.where(capacity > 0, capacity, 1.0)


def metric_in_force(config: IgpConfig, topology: Topology, notify: Callable[[str], None]) -> FloatArray:
    """(E,) the metrics that the settings say.

    Raises:
        InputError: see :func:`load_igp`.
    """
    if config.metric == "file" and topology.metric is None:
        notify(f"{topology.name}: the file has no IGP metrics: 1 on every link (--metric says otherwise)")
    metric = check_metric(topology, igp_metric(topology, config.metric)).copy()
    for text in config.set_metric:
        match = re.fullmatch(r"(.+)=(\d+)", text)
        if not match or not re.search("[,>]", match[1]):
            raise InputError("--set-metric", "", "A,B=20 or A>B=20", repr(text))
        ends, value = match.groups()
        direction = ">" if ">" in ends else ","
        a, b = topology.ends_of(ends, "--set-metric", direction)
        links = np.array(topology.find_links(a, b))
        if direction == ">":
            links = links[topology.link_source[links] == topology.node_index()[a]]
        if not len(links):
            raise InputError("--set-metric", "", f"a link from {a} to {b}", "none in this direction")
        metric[links] = float(value)
    return check_metric(topology, metric)
