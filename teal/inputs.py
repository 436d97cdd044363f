"""Commands `teal topology` and `teal traffic`: describe, convert, download and generate networks
and traffic.

Functions import the readers of files, so that `teal --help`, which reads the settings, is fast.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np

from teal.app.command import Notify, Outcome
from teal.app.settings import NetworkConfig, TopologyFileConfig
from teal.errors import InputError
from teal.option import OVERWRITE, TOPOLOGY

if TYPE_CHECKING:
    from teal.network import TrafficMatrices

# Maximum number of different capacities that are listed.
_MAX_CAPACITIES = 6
# Lower limit of a divisor, Gbit/s, to avoid division by 0.
_MIN_DEMAND = 1e-300
# Plausible ratios of the busiest node's traffic to the capacity of its links; outside them the unit
# of traffic or capacity is probably wrong.
_MIN_NODE_LOAD, _MAX_NODE_LOAD = 1e-3, 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopologyListConfig:
    """List the networks that can be used by name, of the package topohub and those that come with
    Teal.
    """

    match: str = ""
    """Only names that contain this text, such as sndlib or geant."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopologyConfig(TopologyFileConfig):
    """Describe a network: nodes, links, capacities, and what was assumed when it was read."""

    topology: Annotated[str, TOPOLOGY]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopologyConvertConfig(TopologyConfig):
    """Write a network to another format."""

    out: Path
    """A .json file (node-link), .rfc8345.json (RFC 8345), .csv (a row for each link), or .clab.yml
    (containerlab, with capacities and metrics as labels)."""
    overwrite: Annotated[bool, OVERWRITE] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopologyGetConfig:
    """Download a published network by name, and check it; without a name, list the catalogue.

    An existing file is not downloaded again; an interrupted download continues.
    """

    name: str = ""
    """Name in the catalogue, such as sndlib:geant or teal:Kdl; may be given without --name."""

    out: Path = Path()
    """Output folder."""

    mirror: str = ""
    """Address of a folder with the publisher's files under the same names."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrafficGetConfig(TopologyGetConfig):
    """Download published traffic matrices and their network by name, and check them; without a
    name, list the catalogue.

    An existing file is not downloaded again; an interrupted download continues.
    """

    sha256: str = ""
    """Expected SHA-256 of the archive; publishers state none, so that the one of the downloaded
    file is printed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrafficConfig(NetworkConfig):
    """Describe the traffic matrices of a network."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrafficConvertConfig(TrafficConfig):
    """Write traffic matrices to another format."""

    out: Path
    """A .npz (fastest to train from), .csv or .parquet file."""
    overwrite: Annotated[bool, OVERWRITE] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrafficGenerateConfig(TrafficConvertConfig):
    """Generate traffic matrices into a file.

    gravity:seed=0,count=200,load=4,interval=300,top=0.88,noise=0.3,correlation=0.9, where load is
    the largest link utilisation of the mean matrix under shortest-path routing, interval the
    seconds from one matrix to the next, top the share of the largest tenth of the demands in the
    volume, noise the standard deviation of the logarithm of a rate, and correlation the correlation
    of that logarithm from one matrix to the next.
    """

    traffic: str = "gravity:seed=0,count=200,load=4"
    """The generator's options; all have defaults."""


def list_outcome(config: TopologyListConfig, _: Notify) -> Outcome:
    """Run `teal topology list`: print name and number of nodes of each network, one per line."""
    from teal.formats.topohub_names import known_topologies

    matching = [
        (name, nodes) for name, nodes in known_topologies() if config.match.lower() in name.lower()
    ]
    if not matching:
        raise InputError.invalid(
            "--match",
            "",
            f"no network has {config.match!r} in its name",
            "use a part of a name, such as sndlib or geant",
        )
    width = max(len(name) for name, _ in matching)
    return Outcome(
        text="\n".join(f"{name:<{width}}  {nodes:>5} nodes" for name, nodes in matching),
        data={"topologies": [{"name": name, "nodes": nodes} for name, nodes in matching]},
    )


def topology_outcome(config: TopologyConfig, _: Notify) -> Outcome:
    """Run `teal topology info`: print numbers of nodes and links, capacities, latencies, doubts and
    notes about a network.
    """
    from teal.formats import topology_of

    # Facts about the network, and those for --json only.
    topology = topology_of(config)
    num_cables = len(topology.cables())
    names = topology.link_names()
    # The most common capacities, in ascending order: "COUNT of GBPS".
    capacities, counts = np.unique(topology.capacity[topology.capacity > 0], return_counts=True)
    common_indices = np.argsort(-counts, kind="stable")[:_MAX_CAPACITIES]
    listed = ", ".join(f"{counts[i]:,} of {capacities[i]:g}" for i in sorted(common_indices))
    remainder = (
        f" and {len(capacities) - len(common_indices):,} other values"
        if len(capacities) > len(common_indices)
        else ""
    )
    # Printed lines.
    lines = [
        f"{topology.name}: {topology.num_nodes:,} nodes, {topology.num_links:,} directed links, "
        f"{num_cables:,} cables",
        f"capacity, Gbit/s: {listed}{remainder}",
        f"latency, ms: {topology.latency.min():g} to {topology.latency.max():g}",
    ]
    if topology.metric is not None:
        lines.append(f"IGP metrics: {topology.metric.min()} to {topology.metric.max()}")
    lines.append(f"nodes with positions: {int(np.isfinite(topology.coordinates).all(1).sum()):,}")
    # The outcome; --json has isolated nodes and one-way links by name.
    return Outcome(
        text="\n".join([*lines, *topology.doubts(), *topology.notes]),
        data={
            "name": topology.name,
            "nodes": topology.num_nodes,
            "links": topology.num_links,
            "cables": num_cables,
            "capacity": float(topology.capacity.sum()),
            "components": topology.num_components(),
            "isolated_nodes": [topology.node_names[node] for node in topology.isolated_nodes()],
            "one_way_links": [names[link] for link in topology.one_way_links()],
            "notes": list(topology.notes),
        },
    )


def convert_topology_outcome(config: TopologyConvertConfig, notify: Notify) -> Outcome:
    """Run `teal topology convert`: write a network in another format, and name the parts that this
    format omits.
    """
    from teal.formats import left_out_of, save_topology, topology_of
    from teal.formats.topology_formats import topology_suffixes
    from teal.runtime.storage import check_out_file

    check_out_file(config.out, topology_suffixes(written=True), overwrite=config.overwrite)
    topology = topology_of(config)
    left_out = left_out_of(config.out, topology)
    for note in (
        *topology.notes,
        *([f"{config.out} omits {', '.join(left_out)}"] if left_out else []),
    ):
        notify(note)
    save_topology(config.out, topology)
    return Outcome(
        text=f"{config.out}: {topology.num_nodes:,} nodes, {topology.num_links:,} directed links",
        data={"out": str(config.out), "nodes": topology.num_nodes, "links": topology.num_links},
    )


def get_outcome(config: TopologyGetConfig, _: Notify) -> Outcome:
    """Run `teal topology get` or `teal traffic get`: download files, and print their checksums,
    units and terms of use, and a command that reads them.
    """
    from teal.formats.published import download, published

    with_traffic = isinstance(config, TrafficGetConfig)
    if not config.name:
        return _catalogue_outcome(with_traffic)
    # Download the network, and the traffic.  Each file has its expected SHA-256, or "" for none.
    entry = published(config.name, with_traffic=with_traffic)
    expected_checksums = {entry.topology: ""}
    if isinstance(config, TrafficGetConfig) and entry.traffic:
        expected_checksums[entry.traffic] = config.sha256
    checksums = {
        file.name: download(file, config.out, mirror=config.mirror, expected=expected)
        for file, expected in expected_checksums.items()
    }
    # Checksums, units and terms.
    lines = [f"{config.out / name}: SHA-256 {checksum}" for name, checksum in checksums.items()]
    # Files without a checksum, neither from the publisher nor from the user.
    lines += [
        f"{file.name}: the publisher states no checksum; this is that of the downloaded file"
        for file in expected_checksums
        if not (file.sha256 or expected_checksums[file])
    ]
    if with_traffic:
        lines.append(entry.series)
    lines += [f"capacities and rates in {entry.unit}", entry.terms]
    # Command that reads the files.
    command = f"teal topology info --topology {config.out / entry.topology.name}"
    if with_traffic and entry.traffic:
        command = (
            command.replace("topology info", "traffic info")
            + f" --traffic {config.out / entry.traffic.name}"
        )
    return Outcome(
        text="\n".join([*lines, command]),
        data={
            "files": [
                {"file": str(config.out / name), "sha256": checksum}
                for name, checksum in checksums.items()
            ],
            "unit": entry.unit,
            "terms": entry.terms,
            "series": entry.series,
        },
    )


def _catalogue_outcome(with_traffic: bool) -> Outcome:
    """Return the outcome of a download without a name: a line for each published network, or only
    for those with traffic matrices.
    """
    from teal.formats.published import CATALOGUE

    entries = {
        name: entry for name, entry in CATALOGUE.items() if entry.traffic or not with_traffic
    }
    return Outcome(
        text="\n".join(
            f"{name:<22} {entry.series or entry.topology.name}" for name, entry in entries.items()
        ),
        data={
            "published": [{"name": name, "series": entry.series} for name, entry in entries.items()]
        },
    )


def traffic_outcome(config: TrafficConfig, _: Notify) -> Outcome:
    """Run `teal traffic info`: print volumes, the share of the largest demands, the busiest node,
    missing matrices, and a doubt if the unit is implausible.
    """
    from teal.app.instance import busiest_node, describe_traffic
    from teal.formats import load_traffic, topology_of

    topology = topology_of(config)
    traffic = load_traffic(config.traffic, topology, progress=True, unit=config.traffic_unit)
    # (D,) mean demands, and the share of the largest tenth of them in the total.
    mean = traffic.mean()
    largest_tenth = np.sort(mean)[::-1][: max(1, round(len(mean) / 10))]
    largest_tenth_share = largest_tenth.sum() / max(mean.sum(), _MIN_DEMAND)
    # (T,) total demand of each matrix, Gbit/s.
    totals = np.concatenate([chunk.sum(1) for chunk in traffic.chunks()])
    low, median, high = np.quantile(totals, [0.0, 0.5, 1.0])
    # Largest ratio of a node's mean traffic to the capacity of its links.
    node_load, node = busiest_node(topology, traffic.pairs, mean)
    # Printed lines.
    name = topology.node_names[node]
    lines = [
        describe_traffic(traffic),
        f"total demand of a matrix: {low:.6g} to {high:.6g} Gbit/s, median {median:.6g}",
        f"largest tenth of the demands: {100 * largest_tenth_share:.1f}% of the total demand",
        f"{name} sends or receives {100 * node_load:.3g}% of the capacity of its links, the most "
        "of all nodes",
    ]
    # Doubtful units, and missing matrices.
    if not _MIN_NODE_LOAD < node_load < _MAX_NODE_LOAD:
        lines.append(
            "is the unit right (--traffic-unit Mbit/s, --attributes capacity_unit=Mbit/s)?"
        )
    lines += [f"missing matrices: {gap.missing} after {gap.after}" for gap in traffic.gaps]
    lines += [f"skipped: {line}" for line in traffic.skipped]
    # The outcome; totals in Gbit/s, shares as fractions.
    return Outcome(
        text="\n".join(lines),
        data={
            "matrices": traffic.num_matrices,
            "demands": traffic.num_demands,
            "total_min": low,
            "total_median": median,
            "total_max": high,
            "largest_tenth_share": largest_tenth_share,
            "busiest_node": name,
            "busiest_node_share": node_load,
            "missing": sum(gap.missing for gap in traffic.gaps),
            "skipped": list(traffic.skipped),
        },
    )


def convert_outcome(config: TrafficConvertConfig, _: Notify) -> Outcome:
    """Run `teal traffic convert` or `teal traffic generate`: write the matrices to the output file,
    and report their number.
    """
    traffic = run_convert(config)
    return Outcome(
        text=f"{config.out}: {traffic.num_matrices} matrices of {traffic.num_demands} demands",
        data={
            "out": str(config.out),
            "matrices": traffic.num_matrices,
            "demands": traffic.num_demands,
        },
    )


def run_convert(config: TrafficConvertConfig) -> TrafficMatrices:
    """Load or generate the traffic matrices of the settings, write them to the output file, and
    return them.

    Raises:
        InputError: invalid settings, or an output file that must not be replaced.
    """
    from teal.formats import TRAFFIC_SUFFIXES, load_traffic, save_traffic, topology_of
    from teal.runtime.storage import check_out_file

    # Check the output file before reading.
    check_out_file(config.out, TRAFFIC_SUFFIXES, overwrite=config.overwrite)
    topology = topology_of(config)
    traffic = load_traffic(config.traffic, topology, progress=True, unit=config.traffic_unit)
    save_traffic(config.out, traffic, topology)
    return traffic
