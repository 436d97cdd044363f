"""Readers and writers of topologies, traffic and allocations; no other package handles formats or
units.

Entry points: :func:`load_topology`, :func:`load_traffic`, :func:`save_topology`,
:func:`save_traffic`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from teal.errors import InputError
from teal.formats import inventory, link_tables, topohub_names
from teal.formats.frames import topology_from_graph, traffic_from_object
from teal.formats.node_link import read_node_link
from teal.formats.npz import read_npz, write_npz
from teal.formats.records import PENDING_CAPACITY, Attributes, parse_attributes, require_attributes
from teal.formats.repetita import demand_files, read_repetita_traffic
from teal.formats.routers import read_routers
from teal.formats.sndlib import read_sndlib_traffic
from teal.formats.tables import read_table, write_table
from teal.formats.topology_formats import conversion_advice, topology_format, topology_suffixes
from teal.formats.traffic_formats import traffic_format
from teal.formats.units import gbps_per_unit
from teal.network import Topology, TrafficMatrices
from teal.runtime.storage import atomic_file, packaged

__all__ = [
    "TRAFFIC_SUFFIXES",
    "check_topology_name",
    "is_named",
    "load_topology",
    "load_traffic",
    "save_topology",
    "save_traffic",
    "topology_from",
    "topology_of",
]

TRAFFIC_SUFFIXES = (".npz", ".csv", ".parquet")
BUILT_IN = {"b4": "data/b4.json"}
_EXPECTED_TRAFFIC = (
    "an SNDlib .tgz or folder, a .npz, .csv, .parquet or Repetita .demands file, or "
    "gravity:seed=0,count=200,load=4"
)


def _expected_topology() -> str:
    """Return a description of the accepted files and names of networks, for messages."""
    return (
        "a table of links (.csv, .xlsx; columns separated by commas, semicolons or tabs), a "
        f"{', '.join(end for end in topology_suffixes() if end not in link_tables.SUFFIXES)} file, "
        "a problem of CommaLab (three numbers first), topohub:GROUP/NAME, or one of: "
        f"{', '.join(BUILT_IN)}"
    )


def is_named(text: str) -> bool:
    """Return whether ``text`` names a topology of Teal or topohub, instead of a file."""
    return text.startswith(topohub_names.PREFIX) or text.lower() in BUILT_IN


def check_topology_name(text: str) -> None:
    """Raise InputError unless ``text`` is a file or a name for :func:`load_topology`; reads
    nothing.
    """
    file, _ = _split_inner_name(text)
    if not is_named(text) and not Path(file).expanduser().is_file():
        raise InputError.invalid(
            text, "topology", "no such file or name", f"use {_expected_topology()}"
        )


def _split_inner_name(text: Any) -> tuple[Any, str]:
    """Split ``FILE#NAME`` into file and name; the name is "" for a text without #, an object, or an
    existing file whose own name has a #.
    """
    if not isinstance(text, str | Path) or "#" not in str(text) or Path(text).is_file():
        return text, ""
    file, _, part_name = str(text).rpartition("#")
    return file, part_name


def load_topology(
    text: Any,
    default_capacity: float | None = None,
    attributes: str | Mapping[str, str] = "",
    bidirectional: bool = False,
    routers: Path | str | None = None,
) -> Topology:
    """Load a topology from a file, a name, a networkx graph, or a pandas frame of links.

    Args:
        text: a node-link, RFC 8345 or FRR database ``.json``, ``.graphml``, SNDlib ``.xml`` or
            Repetita ``.graph`` file, a table of links (``.csv``, ``.xlsx``), BGP-LS updates
            (``.jsonl``), a topology of containerlab (``.clab.yml``); ``topohub:GROUP/NAME``;
            ``b4``; a graph; or a frame with the columns of a table of links.  ``FILE#NAME`` is the
            network of this name of an RFC 8345 file with several, or the sheet of a workbook.
        default_capacity: Gbit/s of links without a capacity; None refuses such files.
        attributes: names of the attributes of links in a file, a graph or a frame, such as
            ``capacity=bandwidth`` or ``{"capacity": "bandwidth"}``; or a table (``.csv``,
            ``.xlsx``) with the capacities, latencies and costs of links
            (:mod:`teal.formats.inventory`).
        bidirectional: add missing reverse links.
        routers: table of routers that renames nodes (:mod:`teal.formats.routers`); None for the
            names of the file.

    Raises:
        InputError: an unknown file or name, or invalid content.
    """
    # Options for the attributes: their names, or an inventory table, which is read after the
    # network.
    if not isinstance(attributes, str):
        attributes = ",".join(f"{name}={value}" for name, value in attributes.items())
    if inventory.is_inventory(attributes):
        topology = load_topology(text, PENDING_CAPACITY, "", bidirectional, routers)
        return inventory.with_inventory(Path(attributes), topology, default_capacity)
    # Read the network, add reverse links, and rename its nodes.
    text, part_name = _split_inner_name(text)
    attribute_names = dataclasses.replace(parse_attributes(attributes), inside=part_name)
    topology = _load_topology(text, default_capacity, attribute_names)
    topology = topology.bidirectional() if bidirectional else topology
    return topology if routers is None else read_routers(Path(routers)).apply_to(topology)


class FileSettings(Protocol):
    """Settings for reading a network file, as :func:`load_topology` takes them."""

    @property
    def default_capacity(self) -> float | None:
        """Capacity in Gbit/s of links without one in the file; None refuses such files."""
        ...

    @property
    def attributes(self) -> str:
        """Names of the link attributes, ``capacity=bandwidth,...``, or the name of a table with the
        capacities, latencies and costs of links; "" for the default names.
        """
        ...

    @property
    def bidirectional(self) -> bool:
        """Whether missing reverse links are added to the network."""
        ...

    @property
    def routers(self) -> Path | None:
        """Path of the table of routers that renames the nodes; None for the names of the file."""
        ...


class TopologySettings(FileSettings, Protocol):
    """Settings of a command that reads a network, with the network's file or name."""

    @property
    def topology(self) -> str:
        """File of the network, or its name, as :func:`load_topology` takes them."""
        ...


def topology_of(settings: TopologySettings) -> Topology:
    """Load the network of a command's settings; raise InputError for invalid input."""
    return topology_from(settings.topology, settings)


def topology_from(topology: Any, settings: FileSettings) -> Topology:
    """Return a network unchanged, or load it from a file, a name, a graph or a frame.

    Args:
        topology: a network, the name of a file or network, a networkx graph, or a pandas frame of
            links.
        settings: settings for reading a file.

    Raises:
        InputError: an unknown file or name, or invalid content.
    """
    if isinstance(topology, Topology):
        return topology
    options = settings.default_capacity, settings.attributes, settings.bidirectional
    return load_topology(topology, *options, settings.routers)


def _load_topology(
    source: Any, default_capacity: float | None, attribute_names: Attributes
) -> Topology:
    """Load a network from a frame or graph, a name, or a file.

    Args:
        source: a pandas frame of links, a networkx graph, or the name of a network or file.
        default_capacity: Gbit/s of links without a capacity; None refuses them.
        attribute_names: names of the link attributes, and the part of a file to read.

    Raises:
        InputError: an unknown file or name, or invalid content.
    """
    # Objects.
    if hasattr(source, "columns"):
        return link_tables.topology_from_link_frame(source, default_capacity, attribute_names)
    if not isinstance(source, str | Path):
        if not (hasattr(source, "nodes") and hasattr(source, "edges")):
            raise InputError(
                "topology",
                "",
                "a file, a name, a networkx graph or a pandas frame",
                type(source).__name__,
            )
        return topology_from_graph(source, default_capacity, attribute_names)
    # Names of networks.
    source = str(source)
    if is_named(source):
        require_attributes(attribute_names, (), source)
    if source.startswith(topohub_names.PREFIX):
        return topohub_names.load_topohub(source)
    if source.lower() in BUILT_IN:
        return read_node_link(packaged(BUILT_IN[source.lower()]))
    # Files.
    path = Path(source).expanduser()
    check_topology_name(source)
    file_format = topology_format(path)
    if file_format is None:
        # Software that writes such files may have an export that Teal reads.
        hint = conversion_advice(path)
        raise InputError.invalid(
            source,
            "topology",
            f"unknown kind of file ({path.suffix or 'no suffix'})",
            f"{hint + '; ' if hint else ''}use {_expected_topology()}",
        )
    return file_format.topology(path, default_capacity, attribute_names)


def load_traffic(
    text: Any,
    topology: Topology,
    progress: bool = False,
    unit: str = "",
    class_order: Sequence[str] = (),
) -> TrafficMatrices:
    """Load traffic matrices from a file, folder, name or object, over the nodes of ``topology``.

    Args:
        text: an SNDlib archive (.tgz or folder); a .npz, .csv, .parquet or Repetita .demands file
            (or a pattern, ``rf1221.*.demands``); ``gravity:...``; traffic matrices; or a pandas
            frame or series, a dict of pairs ``{("a", "b"): 3.0}``, or an array (N, N), (T, N, N) or
            (T, N (N - 1)).
        topology: the network.
        progress: show progress bars.
        unit: unit of the rates in a .csv, .parquet or .npz file, such as ``Mbit/s``; "" for Gbit/s.
        class_order: names in the column ``class`` of a .csv or .parquet file, the highest priority
            first; () orders them by number or by name.

    Raises:
        InputError: an unknown file or name, or invalid content.
    """
    if isinstance(text, TrafficMatrices):
        return text
    if not isinstance(text, str | Path):
        factor = gbps_per_unit(unit, "unit") if unit else 1.0
        return traffic_from_object(text, topology, class_order, unit).scaled(factor)
    return _load_named_traffic(str(text), topology, progress, unit, class_order)


# Suffixes of tables of traffic, which alone may have classes.
_TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")


def _load_named_traffic(
    text: str, topology: Topology, progress: bool, unit: str, class_order: Sequence[str]
) -> TrafficMatrices:
    """Load the traffic matrices of a file, folder or name, in Gbit/s.

    Args:
        text: name of a file or folder, a pattern of Repetita files, or ``gravity:...``.
        topology: network of the node names.
        progress: show progress bars.
        unit: unit of the rates in a table or .npz file; "" for Gbit/s.
        class_order: names of the classes of a table, the highest priority first; () orders them by
            number or by name.

    Raises:
        InputError: an unknown file or name, invalid content, or an option that the format does not
            support.
    """
    path = Path(text).expanduser()
    # Refuse options that the format does not support: only tables have classes, and only tables and
    # .npz files leave the unit to the user.
    if class_order and path.suffix.lower() not in _TABLE_SUFFIXES:
        raise InputError.invalid(
            "--classes",
            "",
            f"{text} has no classes, but {','.join(class_order)} orders classes",
            "give the fraction of each class as NAME=FRACTION",
        )
    # Traffic of SNDlib is a folder or a tar archive.
    is_archive = path.is_dir() or (
        path.name.lower().endswith((".tgz", ".tar.gz", ".tar")) and path.is_file()
    )
    repetita_files = demand_files(text)
    file_format = traffic_format(path)
    if unit and (
        file_format or repetita_files or is_archive or text.partition(":")[0] == "gravity"
    ):
        raise InputError.invalid(
            "--traffic-unit", "", f"{text} states its unit already", "drop the option"
        )
    # Formats that state their unit.
    if text.partition(":")[0] == "gravity":
        # Imported here: it loads the shortest-path kernels, and thus the compiler.
        from teal.formats import gravity

        return gravity.generate_traffic(text, topology, progress)
    if is_archive:
        return read_sndlib_traffic(path, topology, progress)
    if repetita_files:
        return read_repetita_traffic(repetita_files, topology)
    if not path.is_file():
        raise InputError.invalid(
            text, "traffic", "no such file or name", f"use {_EXPECTED_TRAFFIC}"
        )
    if file_format is not None:
        return file_format.traffic(path, topology)
    # Tables and arrays in the given unit.
    factor = gbps_per_unit(unit, "--traffic-unit") if unit else 1.0
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return read_npz(path, topology).scaled(factor)
    if suffix in _TABLE_SUFFIXES:
        return read_table(path, topology, progress, class_order, unit).scaled(factor)
    problem = f"unknown kind of file ({path.suffix or 'no suffix'})"
    raise InputError.invalid(text, "traffic", problem, f"use {_EXPECTED_TRAFFIC}")


def save_topology(path: Path | str, topology: Topology) -> None:
    """Write a network in the format of the suffix: node-link .json, .rfc8345.json, a table (.csv),
    .clab.yml.

    Raises:
        InputError: an unknown suffix, or failed links that the format cannot express.
    """
    file_format = topology_format(Path(path))
    if file_format is None or file_format.write is None:
        expected = f"a {', '.join(topology_suffixes(written=True))} file"
        raise InputError(str(path), "out", expected, repr(Path(path).suffix))
    if (num_failed := int((topology.capacity <= 0).sum())) and not file_format.holds_failures:
        suffixes = topology_suffixes(written=True, with_failures=True)
        raise InputError.invalid(
            str(path),
            "out",
            f"the format cannot express {num_failed} failed links (capacity 0)",
            f"write a {', '.join(suffixes)} file",
        )
    with atomic_file(Path(path)) as temporary:
        temporary.write_text(file_format.write(topology), encoding="utf-8", newline="")


def left_out_of(path: Path, topology: Topology) -> list[str]:
    """Return descriptions of the parts of a network that its file, in the format of the suffix,
    would omit.
    """
    file_format = topology_format(path)
    return [] if file_format is None else file_format.left_out(topology)


def save_traffic(
    path: Path | str, traffic: TrafficMatrices, topology: Topology, *, exact: bool = False
) -> None:
    """Write traffic matrices to a ``.npz``, ``.csv`` or ``.parquet`` file, streamed.

    Args:
        path: path of the file.
        traffic: the matrices.
        topology: network of the node indices.
        exact: write rates to a .npz file in float64 instead of float32.

    Raises:
        InputError: another suffix, or traffic with classes and a .npz file.
    """
    path = Path(path)
    match path.suffix.lower():
        case ".npz":
            if traffic.classes is not None:
                raise InputError.invalid(
                    str(path),
                    "out",
                    "the format .npz cannot hold traffic classes",
                    "write a .csv or .parquet file",
                )
            write_npz(path, traffic, topology, "<f8" if exact else "<f4")
        case ".csv" | ".parquet":
            write_table(path, traffic, topology)
        case suffix:
            raise InputError(str(path), "out", "a .npz, .csv or .parquet file", repr(suffix))
