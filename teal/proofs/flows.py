"""Read the flows of a solution: of Teal, of a solver's model over paths or over links, or of a
script.

A table (.csv or .parquet) has a row for each path, ``source, target, links, flow``, or a row for
each link of each demand, ``source, target, link, flow``; flows are Gbit/s, links have the names of
Teal's files (``A->B``, and ``A->B#1`` for a parallel one) or are numbers counted from 0; several
links are a JSON list, or have semicolons between them.  A .json file is what ``teal solve --out``
writes.

Flows on links are decomposed into paths.  A decomposition exists where flow is conserved at every
other node; flow in cycles carries nothing and is dropped.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from teal.errors import InputError
from teal.formats.allocations import (
    Demand,
    PathValues,
    amount_of,
    demand_numbers,
    read_allocation,
    require_path,
    stored_paths,
)
from teal.network import DemandClasses, PathSet, Topology
from teal.network.path_changes import with_listed_paths
from teal.runtime.arrays import FloatArray

_SUFFIXES = (".json", ".csv", ".parquet")
# Share of a demand's flow up to which missing conservation is rounding; solvers allow 1e-9 to 1e-6.
_ROUNDING = 1e-9
# Flow of each path, Gbit/s.
PathFlows = PathValues


def read_flows(file: Path, topology: Topology) -> dict[Demand, PathFlows]:
    """Flow of each demand on each of its paths, Gbit/s.

    Raises:
        InputError: another format; a node or link that the network does not have; links that are no
            path; a flow below 0; flow over links that is not conserved at a node.
    """
    if file.suffix.lower() not in _SUFFIXES:
        raise InputError(
            str(file), "", f"a file that ends with {', '.join(_SUFFIXES)}", repr(file.name)
        )
    if file.suffix.lower() == ".json":
        return stored_paths(read_allocation(file), topology, str(file))
    # Sum the flows of each demand on its paths, or on links.
    flows: dict[Demand, PathFlows] = defaultdict(dict)
    on_links: dict[Demand, dict[int, float]] = defaultdict(dict)
    node_index = topology.node_index()
    link_index = _link_indices(topology)
    for line, row in enumerate(_rows(file), 2):
        location = f"{file}, row {line}"
        demand = _demand_of_row(row, topology, node_index, location)
        amount = amount_of(row.get("flow"), location, "flow", "a number >= 0, Gbit/s")
        path = _links_of_row(row, topology, link_index, location)
        if "links" in row:
            require_path(path, topology, demand, location)
            flows[demand][path] = flows[demand].get(path, 0.0) + amount
        else:
            on_links[demand][path[0]] = on_links[demand].get(path[0], 0.0) + amount
    # Decompose flows on links into paths.
    for demand, of_demand in on_links.items():
        for path, amount in _decomposed(of_demand, topology, demand, str(file)).items():
            flows[demand][path] = flows[demand].get(path, 0.0) + amount
    return dict(flows)


def _demand_of_row(
    row: dict[str, Any], topology: Topology, node_index: dict[str, int], location: str
) -> Demand:
    """Source, target and class of a row.

    Args:
        row: row of the table.
        topology: network.
        node_index: index of each node by its name.
        location: file and row, for messages.

    Raises:
        InputError: an unknown node.
    """
    ends = [node_index.get(str(row.get(name)), -1) for name in ("source", "target")]
    if min(ends) < 0:
        raise InputError(
            location,
            "source and target",
            f"nodes of {topology.name}",
            f"{row.get('source')}, {row.get('target')}",
        )
    return ends[0], ends[1], str(row.get("class") or "")


def _links_of_row(
    row: dict[str, Any], topology: Topology, link_index: dict[str, int], location: str
) -> tuple[int, ...]:
    """Link indices of a row: those of a path, or one link.

    Args:
        row: row of the table, with the column links or link.
        topology: network.
        link_index: index of each link by its name.
        location: file and row, for messages.

    Raises:
        InputError: an unknown link, no link, or several in the column link.
    """
    names = _links(row.get("links") if "links" in row else row.get("link"), location)
    unknown = [name for name in names if name not in link_index]
    if unknown or not names:
        raise InputError(
            location, "links", f"links of {topology.name}", unknown[0] if unknown else "none"
        )
    if "links" not in row and len(names) > 1:
        raise InputError(
            location, "link", "one link; the column of paths is links", ", ".join(names)
        )
    return tuple(link_index[name] for name in names)


def read_prices(file: Path, topology: Topology) -> FloatArray:
    """(E,) prices of a table with the columns link and price; 0 for links that it does not have.

    Raises:
        InputError: no such file or columns; an unknown link; no number of at least 0.
    """
    link_index = _link_indices(topology)
    prices = np.zeros(topology.num_links)
    try:
        with file.open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            rows = list(reader)
            columns = reader.fieldnames or ()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(str(file), "", "a CSV file of link prices", error) from None
    if not {"link", "price"} <= set(columns):
        raise InputError(str(file), "columns", "link, price", ", ".join(columns) or "none")
    for line, row in enumerate(rows, 2):
        location = f"{file}, line {line}"
        name = row.get("link") or ""
        if name not in link_index:
            raise InputError(location, "link", f"a link of {topology.name}", repr(name))
        prices[link_index[name]] = amount_of(row.get("price"), location, "price")
    return prices


def _link_indices(topology: Topology) -> dict[str, int]:
    """Index of each link by its name, and by its index as text unless a link has that name."""
    indices = {str(link): link for link in range(topology.num_links)}
    return indices | {name: link for link, name in enumerate(topology.link_names())}


def _rows(file: Path) -> list[dict[str, Any]]:
    """Rows of a table with the columns of the module."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    try:
        if file.suffix.lower() == ".csv":
            as_text = {
                name: pa.string() for name in ("source", "target", "links", "link", "flow", "class")
            }
            table = pa.csv.read_csv(
                file, convert_options=pa.csv.ConvertOptions(column_types=as_text)
            )
        else:
            table = pa.parquet.read_table(file)
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(str(file), "", "a table of flows", error) from None
    # Check the columns.
    columns = set(table.column_names)
    if len(columns) < len(table.column_names):
        raise InputError(str(file), "columns", "each column once", ", ".join(table.column_names))
    if not ({"source", "target", "flow"} <= columns and columns & {"links", "link"}):
        raise InputError(
            str(file),
            "columns",
            "source, target, flow, and links or link",
            ", ".join(table.column_names),
        )
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _links(value: Any, location: str) -> list[str]:
    """Names of links, from a list, a JSON list, or text with semicolons."""
    if isinstance(value, list):
        return [str(link) for link in value]
    text = str(value if value is not None else "").strip()
    if text.startswith("["):
        try:
            return [str(link) for link in json.loads(text)]
        except ValueError as error:
            raise InputError(location, "links", "a JSON list", error) from None
    return [part.strip() for part in text.split(";") if part.strip()]


def _decomposed(
    on_links: dict[int, float], topology: Topology, demand: Demand, location: str
) -> PathFlows:
    """Paths whose flows add up to those of the links, less cycles."""
    source, target, _ = demand
    names = topology.node_names
    balance: dict[int, float] = defaultdict(float)
    for link, amount in on_links.items():
        balance[int(topology.link_source[link])] += amount
        balance[int(topology.link_target[link])] -= amount
    total = max(balance[source], 0.0)
    for node, surplus in balance.items():
        if node not in (source, target) and abs(surplus) > _ROUNDING * max(
            total, max(on_links.values())
        ):
            expected = (
                f"flow from {names[source]} to {names[target]} that is conserved at {names[node]}"
            )
            raise InputError(location, "link, flow", expected, f"{surplus:+.9g} Gbit/s")
    residual = dict(on_links)
    paths = PathFlows()
    while path := _path(residual, topology, source, target):
        amount = min(residual[link] for link in path)
        for link in path:
            residual[link] -= amount
        residual = {link: flow for link, flow in residual.items() if flow > _ROUNDING * total}
        paths[path] = paths.get(path, 0.0) + amount
    return paths


def _path(flows: dict[int, float], topology: Topology, source: int, target: int) -> tuple[int, ...]:
    """A path with the fewest links that have flow; empty where there is none."""
    leaving: dict[int, list[int]] = defaultdict(list)
    for link in flows:
        leaving[int(topology.link_source[link])].append(link)
    reached: dict[int, tuple[int, ...]] = {source: ()}
    queue = [source]
    for node in queue:
        for link in leaving[node]:
            head = int(topology.link_target[link])
            if head not in reached:
                reached[head] = (*reached[node], link)
                queue.append(head)
    return reached.get(target, ())


def splits_over(
    flows: dict[Demand, PathFlows],
    topology: Topology,
    paths: PathSet,
    demand: FloatArray,
    classes: DemandClasses | None,
    location: str,
) -> tuple[PathSet, FloatArray]:
    """Candidate paths with those of the flows that are none of them yet, and (D, K) shares of the
    demands on them.

    Args:
        flows: flows of :func:`read_flows`.
        topology: gives the names of nodes.
        paths: candidate paths.
        demand: (D,) Gbit/s.
        classes: classes of the demands; None for none.
        location: name of the file, for messages.

    Raises:
        InputError: flow of a demand that the matrix does not have.
    """
    number = demand_numbers(paths, classes)
    demand_flows = {number[key]: of_demand for key, of_demand in flows.items() if key in number}
    for key, of_demand in flows.items():
        if sum(of_demand.values()) > 0 and (key not in number or demand[number[key]] <= 0):
            names_of = topology.node_names
            flow = f"flow from {names_of[key[0]]} to {names_of[key[1]]}" + (
                f" of class {key[2]}" if key[2] else ""
            )
            raise InputError(location, "source and target", "demands of the matrix", flow)
    more = {
        d: list(of_demand.keys() - _candidates(paths, d).keys())
        for d, of_demand in demand_flows.items()
    }
    paths = with_listed_paths(paths, more)
    splits = np.zeros(paths.leaf.shape)
    for d, of_demand in demand_flows.items():
        column = _candidates(paths, d)
        for path, amount in of_demand.items():
            splits[d, column[path]] = amount / demand[d] if amount else 0.0
    return paths, splits


def _candidates(paths: PathSet, d: int) -> dict[tuple[int, ...], int]:
    """Column of each candidate path of a demand, by its links."""
    return {tuple(paths.links_of(d, k)): k for k in range(paths.num_paths) if paths.leaf[d, k] >= 0}
