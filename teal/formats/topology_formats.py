"""Registry of network file formats: suffixes, readers, writers, and what each format omits; advice
on formats that Teal does not read.

Code adds a format by :func:`register_topology_format`, an installed package by an entry point in
the group ``teal.topology_formats``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from teal.errors import InputError
from teal.formats import (
    bgp_ls,
    commalab,
    containerlab,
    graphml,
    json_kinds,
    link_tables,
    node_link,
    rfc8345,
    tntp,
)
from teal.formats.parts import convert_reader_errors
from teal.formats.records import INSIDE, Attributes, require_attributes
from teal.formats.repetita import TOPOLOGY_SUFFIX, read_repetita_topology
from teal.formats.sndlib import is_sndlib, read_sndlib_topology
from teal.network import Topology
from teal.spec import Registry

# Bytes at the start of a file by which its format is recognised.
_SNIFFED_BYTES = 2048
# Readers of networkx, by suffix.
_NETWORKX_READERS = {
    ".gml": "read_gml",
    ".gexf": "read_gexf",
    ".net": "read_pajek",
    ".paj": "read_pajek",
    ".gv": "nx_pydot.read_dot",
    ".dot": "nx_pydot.read_dot",
    ".edgelist": "read_edgelist",
    ".adjlist": "read_adjlist",
    ".g6": "read_graph6",
    ".s6": "read_sparse6",
}
_TABLE_DESCRIPTION = "a table of links, .csv: source,target,capacity and a line for each cable"


@dataclasses.dataclass(frozen=True)
class TopologyFormat:
    """File format of networks: its suffixes, reader and writer.

    Attributes:
        suffixes: lower-case endings of file names; the longest matching ending of all formats wins.
        read: function that reads a network from a path, with the capacity of links without one
            (Gbit/s; None refuses them) and the names of attributes; raises InputError.
        write: function from a network to the text of a file; None for a read-only format.
        holds_failures: whether the format can express failed links.
        left_out: function from a network to descriptions of its parts that the format omits.
        attributes: fields of :class:`Attributes` that ``read`` supports; None for all.
        recognises: function that recognises a file with an unknown ending by its content.
    """

    suffixes: tuple[str, ...]
    read: Callable[[Path, float | None, Attributes], Topology]
    write: Callable[[Topology], str] | None = None
    holds_failures: bool = True
    left_out: Callable[[Topology], list[str]] = lambda _: []
    attributes: tuple[str, ...] | None = None
    recognises: Callable[[Path], bool] = lambda _: False

    def topology(
        self, path: Path, default_capacity: float | None, attributes: Attributes
    ) -> Topology:
        """Read the network of a file in this format.

        Args:
            path: path of the file.
            default_capacity: Gbit/s of links without a capacity; None refuses them.
            attributes: names of the link attributes.

        Raises:
            InputError: an invalid file, or attributes that the format does not have.
        """
        if self.attributes is not None:
            require_attributes(attributes, self.attributes, path.name)
        return _read(path, self, default_capacity, attributes)


@convert_reader_errors("a network in the format of its suffix")
def _read(
    path: Path, file_format: TopologyFormat, default_capacity: float | None, attributes: Attributes
) -> Topology:
    """Read a network by the reader of a format, whose Python errors become InputError."""
    return file_format.read(path, default_capacity, attributes)


def register_topology_format(name: str, form: TopologyFormat, *, replace: bool = False) -> None:
    """Register a file format of networks in this process.

    Args:
        name: name of the format.
        form: the format.
        replace: whether to replace an existing format of that name.

    Raises:
        InputError: another format has the name, and ``replace`` is false.
    """
    _FORMATS.add(name, form, replace=replace)


def topology_suffixes(*, written: bool = False, with_failures: bool = False) -> tuple[str, ...]:
    """Return the suffixes of the formats of networks.

    Args:
        written: only those of formats that can be written.
        with_failures: only those of formats that can express failed links.
    """
    formats = [_FORMATS[name] for name in _FORMATS.names()]
    matching_formats = [
        file_format
        for file_format in formats
        if (file_format.write or not written) and (file_format.holds_failures or not with_failures)
    ]
    return tuple(
        suffix for matching_format in matching_formats for suffix in matching_format.suffixes
    )


def topology_format(path: Path) -> TopologyFormat | None:
    """Return the format of a file by its name, or by its content; None for an unknown one."""
    formats = [_FORMATS[name] for name in _FORMATS.names()]
    suffix_matches = [
        (suffix, file_format)
        for file_format in formats
        for suffix in file_format.suffixes
        if path.name.lower().endswith(suffix)
    ]
    if not suffix_matches:
        return next((file_format for file_format in formats if file_format.recognises(path)), None)
    # The longest suffix wins, so that .rfc8345.json comes before .json.
    return max(suffix_matches, key=lambda match: len(match[0]))[1]


def conversion_advice(path: Path) -> str:
    """Return an instruction to convert an unsupported file of another program, such as a GML file;
    "" for an unknown format.
    """
    # Formats that networkx reads, by suffix; then others, by their first bytes.
    reader = _NETWORKX_READERS.get(path.suffix.lower())
    if reader is not None:
        call = (
            f"networkx.write_graphml(networkx.{reader}({path.name!r}), {path.stem + '.graphml'!r})"
        )
        return f"convert it by {call}"
    try:
        with path.open("rb") as stream:
            head = stream.read(_SNIFFED_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ""
    # Marks of SNDlib's native format, plans of WAE or MATE, DIMACS graphs, and tables.
    if "SNDlib" in head or ("NODES (" in head and "LINKS (" in head):
        return "download the network from SNDlib as XML (.xml)"
    lines = [line.strip() for line in head.splitlines() if line.strip()]
    if any(
        line.startswith(("<Nodes>", "<Circuits>", "<Interfaces>", "<Network>")) for line in lines
    ):
        return f"export the circuits of the WAE or MATE plan as {_TABLE_DESCRIPTION}"
    if any(line.startswith(("p min ", "p max ", "p mcf ")) for line in lines):
        return f"write the arcs of the DIMACS file as {_TABLE_DESCRIPTION}"
    if lines and len(lines[0].split()) >= 3:
        return f"write it as {_TABLE_DESCRIPTION}"
    return ""


def _read_xml(path: Path, default_capacity: float | None, _: Attributes) -> Topology:
    """Read a network of SNDlib; raise InputError for other XML."""
    if not is_sndlib(path):
        raise InputError.invalid(
            str(path),
            "topology",
            "the .xml file is not a network of SNDlib",
            "name a GraphML file *.graphml",
        )
    return read_sndlib_topology(path, default_capacity)


def _csv_text(topology: Topology) -> str:
    """Return a network as CSV text with a row per directed link.

    Beside ends, capacity and latency it has columns for metrics, affinities, costs, one-way links
    and status if the network needs them.
    """
    frame = topology.to_frame().drop(columns="link")
    # Metrics, affinities and costs, if some link has them; names of affinities are joined by ";".
    attributes = [topology.igp_attributes(link) for link in range(topology.num_links)]
    for field in ("metric", "te_metric", "affinity", "cost"):
        if any(field in link_attributes for link_attributes in attributes):
            values = [link_attributes.get(field, "") for link_attributes in attributes]
            frame[field] = (
                # Affinities are a list of names for each link.
                [";".join(link_attributes) for link_attributes in values]
                if field == "affinity"
                else values
            )
    one_way = topology.one_way_links()
    # If at least half of the links are one-way, reading the table would take rows for cables, so
    # that a column states the direction.
    if 2 * len(one_way) >= topology.num_links:
        frame["one_way"] = [
            "yes" if link in set(one_way) else "no" for link in range(topology.num_links)
        ]
    # Failed links have capacity 0.
    if (topology.capacity <= 0).any():
        frame["status"] = np.where(topology.capacity > 0, "up", "down")
    return str(frame.to_csv(index=False))


def _omitted_positions(topology: Topology) -> list[str]:
    """Return ["positions of nodes"] if the network has some, which most formats omit, else []."""
    return ["positions of nodes"] if np.isfinite(topology.coordinates).any() else []


def _omitted_by_table(topology: Topology) -> list[str]:
    """Return descriptions of the parts of a network that a table of links omits."""
    isolated = ["nodes without a link"] if topology.isolated_nodes() else []
    return [*_omitted_positions(topology), *isolated, *_omitted_overloads(topology)]


def _omitted_by_containerlab(topology: Topology) -> list[str]:
    """Return descriptions of the parts of a network that a containerlab file omits."""
    return [*_omitted_positions(topology), *_omitted_overloads(topology), *_omitted_costs(topology)]


def _omitted_costs(topology: Topology) -> list[str]:
    """Return ["costs of links"] if the network has costs, else []."""
    return ["costs of links"] if topology.cost is not None else []


def _omitted_overloads(topology: Topology) -> list[str]:
    """Return ["routers that carry no transit traffic"] if the network has some, else []."""
    return ["routers that carry no transit traffic"] if topology.no_transit is not None else []


def _omitted_by_rfc8345(topology: Topology) -> list[str]:
    """Return descriptions of the parts of a network that RFC 8345 files omit."""
    affinities = ["affinities"] if topology.affinities else []
    return [
        *_omitted_positions(topology),
        *affinities,
        *_omitted_overloads(topology),
        *_omitted_costs(topology),
    ]


_JSON_ATTRIBUTES = (*node_link.ATTRIBUTES, INSIDE)
_FORMATS: Registry[TopologyFormat] = Registry(
    "topology format",
    "teal.topology_formats",
    {
        "json": TopologyFormat(
            (".json",),
            json_kinds.read_json,
            lambda topology: json.dumps(node_link.topology_to_node_link(topology)) + "\n",
            attributes=_JSON_ATTRIBUTES,
        ),
        "rfc8345": TopologyFormat(
            (".rfc8345.json",),
            json_kinds.read_json,
            lambda topology: json.dumps(rfc8345.to_rfc8345(topology)) + "\n",
            left_out=_omitted_by_rfc8345,
            attributes=_JSON_ATTRIBUTES,
        ),
        "table": TopologyFormat(
            (".csv",),
            link_tables.read_link_table,
            _csv_text,
            left_out=_omitted_by_table,
            attributes=link_tables.ATTRIBUTES,
        ),
        "spreadsheet": TopologyFormat(
            (".xlsx", ".tsv"),
            link_tables.read_link_table,
            attributes=(*link_tables.ATTRIBUTES, INSIDE),
        ),
        "bgp-ls": TopologyFormat(
            (bgp_ls.SUFFIX,),
            lambda path, capacity, _: bgp_ls.read_bgp_ls(path, capacity),
            attributes=(),
        ),
        "containerlab": TopologyFormat(
            containerlab.SUFFIXES,
            containerlab.read_containerlab,
            containerlab.containerlab_text,
            left_out=_omitted_by_containerlab,
            attributes=containerlab.ATTRIBUTES,
        ),
        "graphml": TopologyFormat(
            (".graphml",), graphml.read_graphml, attributes=node_link.ATTRIBUTES
        ),
        "sndlib": TopologyFormat((".xml",), _read_xml, attributes=()),
        "repetita": TopologyFormat(
            (TOPOLOGY_SUFFIX,), lambda path, _, __: read_repetita_topology(path), attributes=()
        ),
        "commalab": TopologyFormat(
            (),
            lambda path, _, __: commalab.read_commalab_topology(path),
            attributes=(),
            recognises=commalab.is_commalab,
        ),
        "tntp": TopologyFormat(
            tntp.SUFFIXES, lambda path, _, __: tntp.read_tntp_topology(path), attributes=()
        ),
    },
)
