"""Load a network with its IGP: current metrics, failed links and shortest paths.

Entry points: :func:`routed` (objects, files or names), :func:`load_routed` (settings).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from teal.app.settings import TrafficFileConfig
from teal.errors import InputError
from teal.formats import load_traffic, topology_from
from teal.network import Topology, TrafficMatrices
from teal.network.ecmp import EcmpDag, check_metric, igp_metric
from teal.runtime.arrays import FloatArray
from teal_ip.routing.settings import IgpConfig, RoutedConfig


def load_igp(
    config: IgpConfig, topology: Topology, notify: Callable[[str], None]
) -> tuple[Topology, EcmpDag]:
    """Apply IGP settings to a network: metrics, failed links, and load balancing.

    Args:
        config: IGP settings.
        topology: the network.
        notify: called with notes on assumptions.

    Returns:
        network with these metrics and capacity 0 on failed links, and its shortest paths.

    Raises:
        InputError: an unknown link, or an invalid metric.
    """
    # Metrics and failed links in the network; with --ucmp the next hops of a node share its traffic
    # in proportion to their capacities.
    metric = metric_in_force(config, topology, notify)
    failed_links = topology.links_named(config.fail, "--fail")
    topology = dataclasses.replace(
        topology.with_failed_links(failed_links), metric=metric.astype(np.int64)
    )
    return topology, EcmpDag.of(
        topology, metric, ucmp_weights(topology.capacity) if config.ucmp else None
    )


def load_routed(
    config: RoutedConfig, notify: Callable[[str], None]
) -> tuple[EcmpDag, TrafficMatrices]:
    """Load the network's shortest paths under the current metrics, and the traffic, from settings.

    Raises:
        InputError: invalid input.
    """
    return routed(config.topology, config.traffic, config, config, notify)


def routed(
    topology: Any,
    traffic: Any,
    files: TrafficFileConfig,
    igp: IgpConfig,
    notify: Callable[[str], None],
) -> tuple[EcmpDag, TrafficMatrices]:
    """Load a network's shortest paths under the current metrics, and its traffic.

    Args:
        topology: the network, or a file or name.
        traffic: its matrices, or a file or name.
        files: file options.
        igp: IGP settings.
        notify: called with notes on assumptions.

    Raises:
        InputError: invalid input.
    """
    network = topology_from(topology, files)
    for note in network.notes:
        notify(note)
    matrices = load_traffic(traffic, network, unit=files.traffic_unit)
    return load_igp(igp, network, notify)[1], matrices


def ucmp_weights(capacity: FloatArray) -> FloatArray:
    """Return UCMP weights (E,) of links: the capacities, and 1 for links without capacity, since
    weights must be positive.
    """
    return np.where(capacity > 0, capacity, 1.0)


def metric_in_force(
    config: IgpConfig, topology: Topology, notify: Callable[[str], None]
) -> FloatArray:
    """Return the IGP metrics (E,) of the settings, with overrides of single links.

    Args:
        config: IGP settings.
        topology: the network of E links.
        notify: called with a note if the file has no metrics.

    Raises:
        InputError: an unknown link, or an invalid metric.
    """
    if config.metric == "file" and topology.metric is None:
        notify(
            f"{topology.name}: the file has no IGP metrics; every link gets metric 1 (change with "
            "--metric)"
        )
    # Apply the overrides: both directions for A,B=20, one for A>B=20.
    metric = check_metric(topology, igp_metric(topology, config.metric)).copy()
    for text in config.set_metric:
        match = re.fullmatch(r"(.+)=(\d+)", text)
        if not match or not re.search("[,>]", match[1]):
            raise InputError(
                "--set-metric", "", "two nodes and a metric: A,B=20 or A>B=20", repr(text)
            )
        link_text, metric_text = match.groups()
        direction = ">" if ">" in link_text else ","
        a, b = topology.ends_of(link_text, "--set-metric", direction)
        links = np.array(topology.find_links(a, b))
        if direction == ">":
            links = links[topology.link_source[links] == topology.node_index()[a]]
        if not len(links):
            raise InputError.invalid("--set-metric", "", f"the network has no link from {a} to {b}")
        metric[links] = float(metric_text)
    return check_metric(topology, metric)
