"""Read the flows of a solution: of Teal, of an LP solver over paths or links, or of a script.

A table (.csv or .parquet) has a row for each path, ``source, target, links, flow``, or a row for
each link of each demand, ``source, target, link, flow``; flows are Gbit/s, links have the names of
Teal's files (``A->B``, and ``A->B#1`` for a parallel one) or are numbers counted from 0; several
links are a JSON list, or have semicolons between them.  A .json file is what ``teal solve --out``
writes.

Flows on links are decomposed into paths.  This is possible if flow is conserved at all nodes except
source and target; flow in cycles serves no demand and is dropped.
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
# A violation of flow conservation up to this share of the demand's flow counts as rounding; solvers
# allow 1e-9 to 1e-6.
_BALANCE_TOLERANCE = 1e-9
# Flow of each path, Gbit/s.
PathFlows = PathValues


def read_flows(file: Path, topology: Topology) -> dict[Demand, PathFlows]:
    """Return the flow in Gbit/s on each path of each demand, as read from a file.

    Flows on links are decomposed into paths.

    Args:
        file: table (.csv or .parquet) of flows on paths or links, or a .json file of `teal solve`.
        topology: network.

    Raises:
        InputError: another file format; an unknown node or link; links that do not form a path; a
            flow below 0; flow on links that is not conserved at a node.
    """
    if file.suffix.lower() not in _SUFFIXES:
        raise InputError(
            str(file), "", f"a file that ends with {', '.join(_SUFFIXES)}", repr(file.name)
        )
    if file.suffix.lower() == ".json":
        return stored_paths(read_allocation(file), topology, str(file))
    # Sum the flows of each demand on its paths, or on links; the header is line 1 of a table.
    flows: dict[Demand, PathFlows] = defaultdict(dict)
    link_flows: dict[Demand, dict[int, float]] = defaultdict(dict)
    node_index = topology.node_index()
    link_index = _link_indices(topology)
    for line, row in enumerate(_read_rows(file), 2):
        location = f"{file}, row {line}"
        demand_key = _parse_demand(row, topology, node_index, location)
        amount = amount_of(row.get("flow"), location, "flow", "a number >= 0, Gbit/s")
        path = _parse_links(row, topology, link_index, location)
        if "links" in row:
            require_path(path, topology, demand_key, location)
            flows[demand_key][path] = flows[demand_key].get(path, 0.0) + amount
        else:
            link_flows[demand_key][path[0]] = link_flows[demand_key].get(path[0], 0.0) + amount
    # Decompose flows on links into paths.
    for demand_key, link_flow in link_flows.items():
        for path, amount in _decompose(link_flow, topology, demand_key, str(file)).items():
            flows[demand_key][path] = flows[demand_key].get(path, 0.0) + amount
    return dict(flows)


def _parse_demand(
    row: dict[str, Any], topology: Topology, node_index: dict[str, int], location: str
) -> Demand:
    """Return the demand of a row: indices of source and target, and the class or "".

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


def _parse_links(
    row: dict[str, Any], topology: Topology, link_index: dict[str, int], location: str
) -> tuple[int, ...]:
    """Return the link indices in a row: all links of a path, or a single link.

    Args:
        row: row of the table, with the column ``links`` or ``link``.
        topology: network.
        link_index: index of each link by its name.
        location: file and row, for messages.

    Raises:
        InputError: an unknown link, no link, or several links in the column ``link``.
    """
    names = _split_link_names(row.get("links") if "links" in row else row.get("link"), location)
    unknown = [name for name in names if name not in link_index]
    if unknown or not names:
        raise InputError(
            location, "links", f"links of {topology.name}", unknown[0] if unknown else "none"
        )
    if "links" not in row and len(names) > 1:
        raise InputError(
            location, "link", "one link (the column for paths is links)", ", ".join(names)
        )
    return tuple(link_index[name] for name in names)


def read_prices(file: Path, topology: Topology) -> dict[str, FloatArray]:
    """Return link prices from a CSV table with the columns link and price, and maybe matrix.

    Links that the table does not have get the price 0.

    Args:
        file: the table.
        topology: network of E links.

    Returns:
        prices (E,) of each matrix, by its name in the table; "" without the column matrix.

    Raises:
        InputError: the file or a column is missing; an unknown link, or one that is listed twice; a
            price that is not a number of at least 0.
    """
    link_index = _link_indices(topology)
    prices: dict[str, FloatArray] = {}
    priced: set[tuple[str, int]] = set()
    try:
        with file.open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            rows = list(reader)
            columns = reader.fieldnames or ()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError.invalid(
            str(file), "", f"the file cannot be read as a CSV file of link prices: {error}"
        ) from None
    if not {"link", "price"} <= set(columns):
        raise InputError(str(file), "columns", "link, price", ", ".join(columns) or "none")
    for line, row in enumerate(rows, 2):
        location = f"{file}, line {line}"
        link_name = row.get("link") or ""
        if link_name not in link_index:
            raise InputError(location, "link", f"a link of {topology.name}", repr(link_name))
        matrix_name = row.get("matrix") or ""
        matrix_prices = prices.setdefault(matrix_name, np.zeros(topology.num_links))
        link = link_index[link_name]
        if (matrix_name, link) in priced:
            raise InputError.invalid(
                location,
                "link",
                f"the price of {link_name} is stated twice",
                "keep one of the rows",
            )
        priced.add((matrix_name, link))
        matrix_prices[link] = amount_of(row.get("price"), location, "price")
    return prices or {"": np.zeros(topology.num_links)}


def _link_indices(topology: Topology) -> dict[str, int]:
    """Return the index of each link by its name, or by its decimal index if no name equals it."""
    indices = {str(link): link for link in range(topology.num_links)}
    return indices | {name: link for link, name in enumerate(topology.link_names())}


def _read_rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a table of flows on paths or links, as dictionaries by column.

    Raises:
        InputError: the file cannot be read, or has missing or repeated columns.
    """
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
        raise InputError.invalid(
            str(file), "", f"the file cannot be read as a table of flows: {error}"
        ) from None
    # Check the columns.
    columns = set(table.column_names)
    if len(columns) < len(table.column_names):
        raise InputError.invalid(
            str(file), "columns", f"a column occurs twice: {', '.join(table.column_names)}"
        )
    if not ({"source", "target", "flow"} <= columns and columns & {"links", "link"}):
        raise InputError(
            str(file),
            "columns",
            "source, target, flow, and links or link",
            ", ".join(table.column_names),
        )
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _split_link_names(value: Any, location: str) -> list[str]:
    """Return the link names of a table's value: a list, a JSON list, or text with semicolons.

    Args:
        value: value of the column ``links`` or ``link``; None for an empty one.
        location: file and row, for messages.

    Raises:
        InputError: text that begins like a JSON list but is none.
    """
    if isinstance(value, list):
        return [str(link) for link in value]
    text = str(value if value is not None else "").strip()
    if text.startswith("["):
        try:
            return [str(link) for link in json.loads(text)]
        except ValueError as error:
            raise InputError.invalid(
                location, "links", f"the text is not a JSON list: {error}"
            ) from None
    return [part.strip() for part in text.split(";") if part.strip()]


def _decompose(
    link_flow: dict[int, float], topology: Topology, demand_key: Demand, location: str
) -> PathFlows:
    """Return the flow on paths of a demand whose flow on links is given; cycles are dropped.

    Each step finds a path with the fewest links over links with residual flow, and removes the
    smallest residual flow along it from these links.

    Args:
        link_flow: Gbit/s on each link.
        topology: network.
        demand_key: source, target and class.
        location: file, for messages.

    Raises:
        InputError: flow that is not conserved at a node other than source and target, or that runs
            from the target to the source.
    """
    source, target, _ = demand_key
    names = topology.node_names
    # Outgoing less incoming flow of each node; that of the source is the flow of the demand.
    net_outflow: dict[int, float] = defaultdict(float)
    for link, amount in link_flow.items():
        net_outflow[int(topology.link_source[link])] += amount
        net_outflow[int(topology.link_target[link])] -= amount
    total_flow = max(net_outflow[source], 0.0)
    tolerance = _BALANCE_TOLERANCE * max(total_flow, max(link_flow.values()))
    if net_outflow[source] < -tolerance:
        raise InputError.invalid(
            location,
            "link, flow",
            f"the flow from {names[source]} to {names[target]} runs from {names[target]} to "
            f"{names[source]}: {-net_outflow[source]:.9g} Gbit/s",
            "state the links of the other direction",
        )
    for node, node_surplus in net_outflow.items():
        if node not in (source, target) and abs(node_surplus) > tolerance:
            raise InputError.invalid(
                location,
                "link, flow",
                f"the flow from {names[source]} to {names[target]} is not conserved at "
                f"{names[node]}: outgoing less incoming flow is {node_surplus:+.9g} Gbit/s",
                "state the flow on every link that carries this demand",
            )
    # Flow decomposition: take the bottleneck off a path with flow until no such path is left; flow
    # in cycles remains.
    residual = dict(link_flow)
    path_flows = PathFlows()
    while path := _shortest_flow_path(residual, topology, source, target):
        amount = min(residual[link] for link in path)
        for link in path:
            residual[link] -= amount
        residual = {
            link: flow for link, flow in residual.items() if flow > _BALANCE_TOLERANCE * total_flow
        }
        path_flows[path] = path_flows.get(path, 0.0) + amount
    return path_flows


def _shortest_flow_path(
    flows: dict[int, float], topology: Topology, source: int, target: int
) -> tuple[int, ...]:
    """Return the links of a shortest path (fewest links) over links with flow; () for none.

    Args:
        flows: flow on each link, Gbit/s; only links with flow.
        topology: network.
        source: index of the node where the path begins.
        target: index of the node where it ends.
    """
    # Breadth-first search from the source; the queue grows during the loop.
    links_from: dict[int, list[int]] = defaultdict(list)
    for link in flows:
        links_from[int(topology.link_source[link])].append(link)
    path_to: dict[int, tuple[int, ...]] = {source: ()}
    queue = [source]
    for node in queue:
        for link in links_from[node]:
            head = int(topology.link_target[link])
            if head not in path_to:
                path_to[head] = (*path_to[node], link)
                queue.append(head)
    return path_to.get(target, ())


def splits_over(
    flows: dict[Demand, PathFlows],
    topology: Topology,
    paths: PathSet,
    demand: FloatArray,
    classes: DemandClasses | None,
    location: str,
) -> tuple[PathSet, FloatArray]:
    """Return candidate paths that include all paths with flow, and the splits (D, K) on them.

    Args:
        flows: flow of each demand on each path, Gbit/s.
        topology: network, for the names of nodes.
        paths: candidate paths; missing paths of the flows are added.
        demand: (D,) Gbit/s.
        classes: classes of the demands; None for none.
        location: name of the file, for messages.

    Raises:
        InputError: flow of a demand that the matrix does not have, or that is 0 there.
    """
    # Flows by index of the demand.
    demand_index = demand_numbers(paths, classes)
    demand_flows = {
        demand_index[demand_key]: path_flow
        for demand_key, path_flow in flows.items()
        if demand_key in demand_index
    }
    # All demands with flow must be in the matrix.
    for demand_key, path_flow in flows.items():
        if sum(path_flow.values()) > 0 and (
            demand_key not in demand_index or demand[demand_index[demand_key]] <= 0
        ):
            node_name = topology.node_names
            flow_text = f"flow from {node_name[demand_key[0]]} to {node_name[demand_key[1]]}" + (
                f" of class {demand_key[2]}" if demand_key[2] else ""
            )
            raise InputError.invalid(
                location,
                "source and target",
                f"the matrix has no demand for the {flow_text}",
                "remove the flow, or add the demand to the matrix",
            )
    # Paths with flow that are no candidate paths, by demand.
    new_paths = {
        d: list(path_flow.keys() - _path_columns(paths, d).keys())
        for d, path_flow in demand_flows.items()
    }
    # Add them; splits are flows over the demand.
    paths = with_listed_paths(paths, new_paths)
    splits = np.zeros(paths.leaf.shape)
    for d, path_flow in demand_flows.items():
        column_of_path = _path_columns(paths, d)
        for path, amount in path_flow.items():
            splits[d, column_of_path[path]] = amount / demand[d] if amount else 0.0
    return paths, splits


def _path_columns(paths: PathSet, d: int) -> dict[tuple[int, ...], int]:
    """Return the position k of each candidate path of demand ``d``, by the links of the path."""
    return {tuple(paths.links_of(d, k)): k for k in range(paths.num_paths) if paths.leaf[d, k] >= 0}
