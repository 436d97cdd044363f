"""The formats of networks as files: their suffixes, how they are read and written, and what they do not hold.

Code adds one by :func:`register_topology_format`, an installed package by an entry point in the group
``teal.topology_formats``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from teal.errors import InputError
from teal.formats import containerlab, link_tables, rfc8345, router_databases
from teal.formats.graphml import read_graphml
from teal.formats.node_link import topology_from_node_link, topology_to_node_link
from teal.formats.records import Attributes
from teal.formats.repetita import TOPOLOGY_SUFFIX, read_repetita_topology
from teal.formats.sndlib import is_sndlib, read_sndlib_topology
from teal.network import Topology
from teal.spec import Registry


@dataclasses.dataclass(frozen=True)
class TopologyFormat:
    """One format.

    Attributes:
        suffixes: endings of file names, in lower case; of several formats the one with the longest ending is taken.
        read: makes the network of a file, the capacity of links without one (Gbit/s; None to refuse them) and the names
            of attributes; raises InputError.
        write: text of a file; None for a format that is only read.
        holds_failures: whether a file can say that a link has failed.
        left_out: names of parts of a network that a file does not hold.
    """

    suffixes: tuple[str, ...]
    read: Callable[[Path, float | None, Attributes], Topology]
    write: Callable[[Topology], str] | None = None
    holds_failures: bool = True
    left_out: Callable[[Topology], list[str]] = lambda _: []


def register_topology_format(name: str, form: TopologyFormat, *, replace: bool = False) -> None:
    """Make a format known in this process.

    Raises:
        InputError: another format has the name, and ``replace`` is false.
    """
    _FORMATS.add(name, form, replace=replace)


def topology_suffixes(*, written: bool = False, with_failures: bool = False) -> tuple[str, ...]:
    """The suffixes of all formats, or of those that are written, or that can say that a link has failed."""
    forms = [_FORMATS[name] for name in _FORMATS.names()]
    fitting = [one for one in forms if (one.write or not written) and (one.holds_failures or not with_failures)]
    return tuple(suffix for form in fitting for suffix in form.suffixes)


def topology_format(path: Path) -> TopologyFormat | None:
    """The format of a file by its name; None for an unknown one."""
    forms = [_FORMATS[name] for name in _FORMATS.names()]
    fitting = [(suffix, form) for form in forms for suffix in form.suffixes if path.name.lower().endswith(suffix)]
    return max(fitting, key=lambda one: len(one[0]))[1] if fitting else None


def _read_json(path: Path, default_capacity: float | None, names: Attributes) -> Topology:
    """A network of any kind of JSON, which its members tell."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(str(path), "", "a JSON file", f"invalid JSON: {error}") from None
    if isinstance(document, dict) and rfc8345.ROOT in document:
        return rfc8345.read_rfc8345(document, path, default_capacity)
    if router_databases.is_router_database(document):
        return router_databases.read_router_database(document, path, default_capacity)
    return topology_from_node_link(document, path.stem, str(path), default_capacity, names)


def _read_xml(path: Path, default_capacity: float | None, _: Attributes) -> Topology:
    if not is_sndlib(path):
        raise InputError(str(path), "topology", "a network of SNDlib, for an .xml file", "another kind of file (.xml)")
    return read_sndlib_topology(path, default_capacity)


def _table(topology: Topology) -> str:
    """A row for each link, with columns for what some link has."""
    frame = topology.to_frame().drop(columns="link")
    attributes = [topology.igp_attributes(link) for link in range(topology.num_links)]
    for field in ("metric", "te_metric", "affinity"):
        if any(field in one for one in attributes):
            values = [one.get(field, "") for one in attributes]
            frame[field] = [";".join(one) for one in values] if field == "affinity" else values
    return str(frame.to_csv(index=False))


def _positions(topology: Topology) -> list[str]:
    return ["positions of nodes"] if np.isfinite(topology.coordinates).any() else []


def _left_out_of_table(topology: Topology) -> list[str]:
    return [*_positions(topology), *(["nodes without a link"] if topology.isolated_nodes() else [])]


def _left_out_of_rfc8345(topology: Topology) -> list[str]:
    has_more = topology.te_metric is not None or bool(topology.affinities)
    return [*_positions(topology), *(["TE metrics and affinities"] if has_more else [])]


_FORMATS: Registry[TopologyFormat] = Registry("topology format", "teal.topology_formats", {
    "json": TopologyFormat((".json",), _read_json, lambda one: json.dumps(topology_to_node_link(one)) + "\n"),
    "rfc8345": TopologyFormat(
        (".rfc8345.json",), _read_json, lambda one: json.dumps(rfc8345.to_rfc8345(one)) + "\n",
        holds_failures=False, left_out=_left_out_of_rfc8345,
    ),
    "table": TopologyFormat(
        (".csv",), link_tables.read_link_table, _table, holds_failures=False, left_out=_left_out_of_table
    ),
    "spreadsheet": TopologyFormat((".xlsx",), link_tables.read_link_table),
    "bgp-ls": TopologyFormat(
        (router_databases.BGP_LS_SUFFIX,), lambda path, capacity, _: router_databases.read_bgp_ls(path, capacity)
    ),
    "containerlab": TopologyFormat(
        containerlab.SUFFIXES, containerlab.read_containerlab, containerlab.containerlab_text, left_out=_positions
    ),
    "graphml": TopologyFormat((".graphml",), read_graphml),
    "sndlib": TopologyFormat((".xml",), _read_xml),
    "repetita": TopologyFormat((TOPOLOGY_SUFFIX,), lambda path, _, __: read_repetita_topology(path)),
})  # fmt: skip
