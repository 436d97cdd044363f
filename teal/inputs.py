"""`teal topology` and `teal traffic`: inspect and convert networks and traffic.

`teal --help` reads the settings: readers of files are imported where they are used.
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
# Gbit/s, instead of 0 as a divisor.
_MIN_DEMAND = 1e-300
# Shares of the capacity of a node's links, outside which the unit of traffic or capacity is
# probably wrong.
_MIN_NEED, _MAX_NEED = 1e-3, 5.0


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
    """Download a published network by name, and check it.  Without a name: what there is.

    A file that is there already is not fetched again; an interrupted download goes on.
    """

    name: str = ""
    """Name in the catalogue, such as sndlib:geant or teal:Kdl; `teal topology get NAME` does as
    well."""

    out: Path = Path()
    """Folder of the file."""

    mirror: str = ""
    """Address of a folder that has the publisher's files under the same names."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrafficGetConfig(TopologyGetConfig):
    """Download published traffic matrices and their network by name, and check them.  Without a
    name: what there is.

    A file that is there already is not fetched again; an interrupted download goes on.
    """

    sha256: str = ""
    """SHA-256 that the archive must have; publishers state none, so that what arrived is
    printed."""


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
    seconds from one matrix to the next, top the share of the volume of the largest tenth of the
    demands, noise the standard deviation of the logarithm of a rate, and correlation that of the
    noise from one matrix to the next.
    """

    traffic: str = "gravity:seed=0,count=200,load=4"
    """The generator's options; all have defaults."""


def list_outcome(config: TopologyListConfig, _: Notify) -> Outcome:
    """`teal topology list`: a name and its size a line."""
    from teal.formats.topohub_names import known_topologies

    matching = [
        (name, nodes) for name, nodes in known_topologies() if config.match.lower() in name.lower()
    ]
    if not matching:
        raise InputError(
            "--match", "", "part of a name, such as sndlib or geant", repr(config.match)
        )
    width = max(len(name) for name, _ in matching)
    return Outcome(
        text="\n".join(f"{name:<{width}}  {nodes:>5} nodes" for name, nodes in matching),
        data={"topologies": [{"name": name, "nodes": nodes} for name, nodes in matching]},
    )


def topology_outcome(config: TopologyConfig, _: Notify) -> Outcome:
    """`teal topology info`: what a network consists of, and what was assumed."""
    from teal.formats import topology_of

    topology = topology_of(config)
    num_cables = len(topology.cables())
    names = topology.link_names()
    # The most common capacities.
    capacities, counts = np.unique(topology.capacity[topology.capacity > 0], return_counts=True)
    common = np.argsort(-counts, kind="stable")[:_MAX_CAPACITIES]
    listed = ", ".join(f"{counts[i]:,} of {capacities[i]:g}" for i in sorted(common))
    remainder = (
        f" and {len(capacities) - len(common):,} other values"
        if len(capacities) > len(common)
        else ""
    )
    lines = [
        f"{topology.name}: {topology.num_nodes:,} nodes, {topology.num_links:,} directed links, "
        f"{num_cables:,} cables",
        f"capacity, Gbit/s: {listed}{remainder}",
        f"latency, ms: {topology.latency.min():g} to {topology.latency.max():g}",
    ]
    if topology.metric is not None:
        lines.append(f"IGP metrics: {topology.metric.min()} to {topology.metric.max()}")
    lines.append(f"nodes with positions: {int(np.isfinite(topology.coordinates).all(1).sum()):,}")
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
    """`teal topology convert`."""
    from teal.formats import left_out_of, save_topology, topology_of
    from teal.formats.topology_formats import topology_suffixes
    from teal.runtime.storage import check_out_file

    check_out_file(config.out, topology_suffixes(written=True), overwrite=config.overwrite)
    topology = topology_of(config)
    left_out = left_out_of(config.out, topology)
    for note in (
        *topology.notes,
        *([f"{config.out} does not hold {', '.join(left_out)}"] if left_out else []),
    ):
        notify(note)
    save_topology(config.out, topology)
    return Outcome(
        text=f"{config.out}: {topology.num_nodes:,} nodes, {topology.num_links:,} directed links",
        data={"out": str(config.out), "nodes": topology.num_nodes, "links": topology.num_links},
    )


def get_outcome(config: TopologyGetConfig, _: Notify) -> Outcome:
    """`teal topology get` and `teal traffic get`: files, checksums, units and terms, and a command
    that reads them.
    """
    from teal.formats.published import download, published

    with_traffic = isinstance(config, TrafficGetConfig)
    if not config.name:
        return _catalogue_outcome(with_traffic)
    # Download the network, and the traffic.
    entry = published(config.name, with_traffic=with_traffic)
    files = {entry.topology: ""}
    if isinstance(config, TrafficGetConfig) and entry.traffic:
        files[entry.traffic] = config.sha256
    checksums = {
        file.name: download(file, config.out, mirror=config.mirror, expected=expected)
        for file, expected in files.items()
    }
    # Checksums, units and terms.
    lines = [f"{config.out / name}: SHA-256 {checksum}" for name, checksum in checksums.items()]
    lines += [
        f"{file.name}: its publisher states no checksum; this one is of what arrived"
        for file in files
        if not (file.sha256 or files[file])
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
    """List the published networks, or those with traffic."""
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
    """`teal traffic info`: volumes, the largest demands, what is missing, and whether the unit is
    plausible.
    """
    from teal.app.instance import busiest_node, describe_traffic
    from teal.formats import load_traffic, topology_of

    topology = topology_of(config)
    traffic = load_traffic(config.traffic, topology, progress=True, unit=config.traffic_unit)
    # Volumes, the largest demands, and the busiest node.
    mean = traffic.mean()
    largest_tenth = np.sort(mean)[::-1][: max(1, round(len(mean) / 10))]
    totals = np.concatenate([chunk.sum(1) for chunk in traffic.chunks()])
    low, median, high = np.quantile(totals, [0.0, 0.5, 1.0])
    share = largest_tenth.sum() / max(mean.sum(), _MIN_DEMAND)
    need, node = busiest_node(topology, traffic.pairs, mean)
    name = topology.node_names[node]
    lines = [
        describe_traffic(traffic),
        f"total demand of a matrix: {low:.6g} to {high:.6g} Gbit/s, median {median:.6g}",
        f"largest tenth of the demands: {100 * share:.1f}% of the total demand",
        (
            f"{name} sends or receives {100 * need:.3g}% of the capacity of its links, the most of "
            "all nodes"
        ),
    ]
    # Doubtful units, and missing matrices.
    if not _MIN_NEED < need < _MAX_NEED:
        lines.append(
            "is the unit right (--traffic-unit Mbit/s, --attributes capacity_unit=Mbit/s)?"
        )
    lines += [f"missing matrices: {gap.missing} after {gap.after}" for gap in traffic.gaps]
    lines += [f"skipped: {line}" for line in traffic.skipped]
    return Outcome(
        text="\n".join(lines),
        data={
            "matrices": traffic.num_matrices,
            "demands": traffic.num_demands,
            "total_min": low,
            "total_median": median,
            "total_max": high,
            "largest_tenth_share": share,
            "busiest_node": name,
            "busiest_node_share": need,
            "missing": sum(gap.missing for gap in traffic.gaps),
            "skipped": list(traffic.skipped),
        },
    )


def convert_outcome(config: TrafficConvertConfig, _: Notify) -> Outcome:
    """`teal traffic convert` and `teal traffic generate`."""
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
    """Load or generate the matrices, and write them.

    Raises:
        InputError: invalid settings, or an output file that must not be replaced.
    """
    from teal.formats import TRAFFIC_SUFFIXES, load_traffic, save_traffic, topology_of
    from teal.runtime.storage import check_out_file

    check_out_file(config.out, TRAFFIC_SUFFIXES, overwrite=config.overwrite)
    topology = topology_of(config)
    traffic = load_traffic(config.traffic, topology, progress=True, unit=config.traffic_unit)
    save_traffic(config.out, traffic, topology)
    return traffic
