"""What commands that look at networks and traffic, and convert them, print."""

from __future__ import annotations

import numpy as np

from teal.cli.runners import EXIT_OK, Notify, print_json
from teal.config import TopologyConfig, TopologyListConfig, TrafficConfig, TrafficConvertConfig
from teal.errors import InputError

_MOST_CAPACITIES = 6  # different ones that are listed
_MIN_DEMAND = 1e-300  # Gbit/s, instead of 0 as a divisor
# Shares of the capacity of a node's links, outside which the unit of traffic or capacity is probably wrong.
_LEAST_NEED, _MOST_NEED = 1e-3, 5.0


def traffic_info(config: TrafficConfig, _: Notify) -> int:
    from teal.evaluation.instance import busiest_node, describe_traffic
    from teal.formats import load_traffic, topology_of

    topology = topology_of(config)
    traffic = load_traffic(config.traffic, topology, progress=True, unit=config.traffic_unit)
    print(describe_traffic(traffic))
    mean = traffic.mean()
    largest_tenth = np.sort(mean)[::-1][: max(1, round(len(mean) / 10))]
    totals = np.concatenate([chunk.sum(1) for chunk in traffic.chunks()])
    low, middle, high = np.quantile(totals, [0.0, 0.5, 1.0])
    print(f"total demand of a matrix: {low:.6g} to {high:.6g} Gbit/s, median {middle:.6g}")
    share = largest_tenth.sum() / max(mean.sum(), _MIN_DEMAND)
    print(f"largest tenth of the demands: {100 * share:.1f}% of the total demand")
    need, node = busiest_node(topology, traffic.pairs, mean)
    name = topology.node_names[node]
    print(f"{name} sends or receives {100 * need:.3g}% of what its links carry, the most of all nodes")
    if not _LEAST_NEED < need < _MOST_NEED:
        print("is the unit right (--traffic-unit Mbit/s, --attributes capacity_unit=Mbit/s)?")
    for gap in traffic.gaps:
        print(f"missing matrices: {gap.missing} after {gap.after}")
    for line in traffic.skipped:
        print(f"skipped: {line}")
    return EXIT_OK


def convert_traffic(config: TrafficConvertConfig, _: Notify) -> int:
    from teal.studies.traffic import run_convert

    traffic = run_convert(config)
    print(f"{config.out}: {traffic.num_matrices} matrices of {traffic.num_demands} demands")
    return EXIT_OK


def list_topologies(config: TopologyListConfig, _: Notify) -> int:
    """Print a name and its size a line."""
    from teal.formats.topohub_names import known_topologies

    matching = [(name, nodes) for name, nodes in known_topologies() if config.match.lower() in name.lower()]
    if not matching:
        raise InputError("--match", "", "part of a name, such as sndlib or geant", repr(config.match))
    width = max(len(name) for name, _ in matching)
    for name, nodes in matching:
        print(f"{name:<{width}}  {nodes:>5} nodes")
    return EXIT_OK


def describe_topology(config: TopologyConfig, _: Notify) -> int:
    """Print what a network consists of, and what was assumed."""
    from teal.formats import topology_of

    topology = topology_of(config)
    live = topology.capacity > 0
    if config.json:
        names = topology.link_names()
        print_json(
            {
                "name": topology.name,
                "nodes": topology.num_nodes,
                "links": topology.num_links,
                "cables": len(topology.cables()),
                "capacity": float(topology.capacity.sum()),
                "components": topology.num_components(),
                "isolated_nodes": [topology.node_names[node] for node in topology.isolated_nodes()],
                "one_way_links": [names[link] for link in topology.one_way_links()],
                "notes": list(topology.notes),
            }
        )
        return EXIT_OK
    print(f"{topology.name}: {topology.num_nodes:,} nodes, {topology.num_links:,} directed links, "
          f"{len(topology.cables()):,} cables")  # fmt: skip
    capacities, counts = np.unique(topology.capacity[live], return_counts=True)
    common = np.argsort(-counts, kind="stable")[:_MOST_CAPACITIES]
    listed = ", ".join(f"{counts[i]:,} of {capacities[i]:g}" for i in sorted(common))
    others = f" and {len(capacities) - len(common):,} other values" if len(capacities) > len(common) else ""
    print(f"capacity, Gbit/s: {listed}{others}")
    print(f"latency, ms: {topology.latency.min():g} to {topology.latency.max():g}")
    if topology.metric is not None:
        print(f"IGP metrics: {topology.metric.min()} to {topology.metric.max()}")
    print(f"nodes with positions: {int(np.isfinite(topology.coordinates).all(1).sum()):,}")
    for doubt in topology.doubts():
        print(doubt)
    for note in topology.notes:
        print(note)
    return EXIT_OK
