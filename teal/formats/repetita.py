"""Reader of Repetita files (Gay, Schaus & Vissicchio, 2017): ``.graph`` networks, ``.demands``
matrices.

A ``.graph`` file lists ``label x y`` for each node, and ``label src dest weight bw delay`` for each
directed link: node numbers, IGP metric, capacity in kbit/s, delay in microseconds.  A ``.demands``
file lists ``label src dest bw``: node numbers of its network, kbit/s.  Repeated demands of a pair
are added.
"""

from __future__ import annotations

from collections.abc import Iterator
from glob import glob
from pathlib import Path

import numpy as np

from teal.errors import InputError
from teal.formats.rate_store import RateArray, RateFile, make_rates
from teal.formats.records import LinkRecord, number, topology_from_records
from teal.formats.units import gbps_per_unit
from teal.network import Topology, TrafficMatrices
from teal.runtime.arrays import FloatArray
from teal.runtime.storage import content_key, file_key

TOPOLOGY_SUFFIX = ".graph"
TRAFFIC_SUFFIX = ".demands"
_GBPS_PER_KBPS = gbps_per_unit("kbit/s", "Repetita")
# Delays are in microseconds.
_MS_PER_US = 1e-3
# Microseconds; files round shorter delays to 0, but latencies are positive.
_MIN_DELAY_US = 1
# The files have no times: matrix i of several gets this time plus i intervals.
_FIRST_TIME = np.datetime64("2024-01-01T00:00:00", "s")
_INTERVAL_S = 300


def read_repetita_topology(path: Path) -> Topology:
    """Read the network of a ``.graph`` file of Repetita, with its IGP metrics.

    Raises:
        InputError: another kind of file, a field that is not a number, or an error of
            :func:`topology_from_records`.
    """
    where = str(path)
    # Coordinates by node name, and names by node number.
    nodes: dict[str, tuple[float, float] | None] = {}
    names: list[str] = []
    links: list[LinkRecord] = []
    for section, line_number, entry_fields in _read_entries(path, {"NODES": 3, "EDGES": 6}):
        field = f"line {line_number}"
        # Node: name, x, y.
        if section == "NODES":
            if entry_fields[0] in nodes:
                raise InputError.invalid(
                    where,
                    field,
                    f"an earlier node has the name {entry_fields[0]!r}, too",
                    "rename one",
                )
            x, y = (
                number(text, where, f"{field}: {axis}")
                for text, axis in zip(entry_fields[1:], "xy", strict=True)
            )
            nodes[entry_fields[0]] = (x, y)
            names.append(entry_fields[0])
            continue
        # Link: label, node numbers of source and target, metric, kbit/s, microseconds.
        source, target = (_node(text, names, where, field) for text in entry_fields[1:3])
        metric, capacity, delay = (
            number(text, where, f"{field}: {quantity}")
            for text, quantity in zip(entry_fields[3:], ("weight", "bw", "delay"), strict=True)
        )
        latency = max(delay, _MIN_DELAY_US) * _MS_PER_US
        links.append(
            LinkRecord(
                names[source],
                names[target],
                capacity * _GBPS_PER_KBPS,
                latency,
                f"{field} ({entry_fields[0]})",
                metric=metric,
            )
        )
    # Files of Rocketfuel networks have (0, 0) for unknown coordinates.
    if all(point == (0.0, 0.0) for point in nodes.values()):
        nodes = dict.fromkeys(nodes)
    return topology_from_records(path.stem, where, nodes, links, directed=True)


def demand_files(text: str) -> list[Path]:
    """Return the existing files that a text names, a ``.demands`` file or a pattern such as
    ``rf1221.*.demands``, sorted by name; [] for other texts and if there is no such file.
    """
    if not text.endswith(TRAFFIC_SUFFIX):
        return []
    path = Path(text).expanduser()
    return [path] if path.is_file() else [Path(name) for name in sorted(glob(str(path)))]


def read_repetita_traffic(files: list[Path], topology: Topology) -> TrafficMatrices:
    """Read one matrix per file, in the order of ``files``, as consecutive intervals of 5 minutes.

    Args:
        files: paths of one or more ``.demands`` files.
        topology: network whose nodes the files number from 0.

    Raises:
        InputError: another kind of file, an unknown node number, or a rate that is negative or not
            finite.
    """
    # Rates by pair of node indices, for each file; the D demands are the pairs of all files.
    matrices = [_read_matrix(path, topology) for path in files]
    pairs = sorted(set().union(*matrices))
    if not pairs:
        raise InputError.invalid(
            str(files[0]), "DEMANDS", "no demand between different nodes", "add a demand"
        )
    column_of_pair = {pair: index for index, pair in enumerate(pairs)}
    key = content_key(*(file_key(path) for path in files), topology.node_names)

    # Write one row of rates for each file; pairs that it lacks have rate 0.
    def write_rates(store: RateFile | RateArray) -> None:
        for row, matrix in enumerate(matrices):
            rates: FloatArray = np.zeros(len(pairs))
            rates[[column_of_pair[pair] for pair in matrix]] = list(matrix.values())
            store.write(row, rates[None])

    return TrafficMatrices(
        name=files[0].stem.split(".")[0],
        pairs=np.array(pairs, dtype=np.int32),
        timestamps=_FIRST_TIME + np.arange(len(files)) * np.timedelta64(_INTERVAL_S, "s"),
        rates=make_rates((len(files), len(pairs)), key, write_rates),
        interval_s=_INTERVAL_S,
        key=key,
        origin=str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more",
    )


def _read_matrix(path: Path, topology: Topology) -> dict[tuple[int, int], float]:
    """Return the Gbit/s of each pair of different nodes (source index, target index) in a file."""
    where = str(path)
    rates = dict[tuple[int, int], float]()
    for _, line, entry_fields in _read_entries(path, {"DEMANDS": 4}):
        field = f"line {line}"
        source, target = (
            _node(text, topology.node_names, where, field) for text in entry_fields[1:3]
        )
        rate = number(entry_fields[3], where, f"{field}: bw")
        if not (np.isfinite(rate) and rate >= 0):
            raise InputError(where, f"{field}: bw", "a finite rate >= 0", rate)
        if source != target:
            rates[source, target] = rates.get((source, target), 0.0) + rate * _GBPS_PER_KBPS
    return rates


def _node(text: str, names: list[str] | tuple[str, ...], where: str, field: str) -> int:
    """Parse a node number, an index from 0 into ``names``."""
    if not text.isdecimal() or int(text) >= len(names):
        raise InputError(where, field, f"a node number from 0 to {len(names) - 1}", repr(text))
    return int(text)


def _read_entries(path: Path, field_counts: dict[str, int]) -> Iterator[tuple[str, int, list[str]]]:
    """Yield section, line number and fields of every entry of a file.

    A section is a line with its name and its number of entries, a header row, and the entries.

    Args:
        path: path of the file.
        field_counts: number of fields of an entry, by section, in the order of the sections.

    Raises:
        InputError: not UTF-8, another section, another number of fields, or fewer entries than
            announced.
    """
    where = str(path)
    # Sections to come, and number of entries to come in the current one.
    pending_sections = list(field_counts)
    num_remaining = 0
    section = ""
    expects_header = False
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError.invalid(where, "", f"the file is not UTF-8 text: {error}") from None
    for line_number, text in enumerate(lines, start=1):
        line_fields = text.split()
        if not line_fields:
            continue
        # Skip the header row, which has the column names.
        if expects_header:
            expects_header = False
        # An entry of the current section.
        elif num_remaining:
            if len(line_fields) != field_counts[section]:
                expected = f"{field_counts[section]} fields"
                raise InputError(
                    where, f"line {line_number}", expected, f"{len(line_fields)} fields"
                )
            yield section, line_number, line_fields
            num_remaining -= 1
        # The first line of the next section.
        else:
            if not pending_sections:
                raise InputError.invalid(
                    where,
                    f"line {line_number}",
                    f"text behind the last section: {text[:80]!r}",
                    "remove it, or correct the numbers of entries",
                )
            section = pending_sections.pop(0)
            if len(line_fields) != 2 or line_fields[0] != section or not line_fields[1].isdecimal():
                expected = f"{section} and a number of entries"
                raise InputError(where, f"line {line_number}", expected, repr(text[:80]))
            num_remaining = int(line_fields[1])
            expects_header = True
    # The file must not end within a section or before one.
    if num_remaining or pending_sections:
        missing = (
            f"{num_remaining} more entries of {section}"
            if num_remaining
            else f"the section {pending_sections[0]}"
        )
        raise InputError.invalid(
            where,
            section or pending_sections[0],
            f"the file ends before {missing}",
            "download it again, or correct the numbers of entries",
        )
