"""Reader of SNDlib (Orlowski et al., 2010): XML topologies, and dynamic traffic as one XML file per
matrix in a .tgz or folder.

Units come from ``<meta><unit>``; a file without one is read as Mbit/s, SNDlib's usual unit, with a
note.  The capacity of a link is its pre-installed module; without one, its first additional module,
installed once.  Entry points: :func:`read_sndlib_topology`, :func:`read_sndlib_traffic`.
"""

from __future__ import annotations

import dataclasses
import gzip
import re
import tarfile
import zlib
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from teal.errors import InputError
from teal.formats.rate_store import RateArray, RateFile, make_rates
from teal.formats.records import LinkRecord, number, topology_from_records
from teal.formats.units import gbps_per_unit
from teal.network import Topology, TrafficMatrices
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.progress import progress_bar
from teal.runtime.storage import content_key, file_key

_NAMESPACE = "{http://sndlib.zib.de/network}"
# Unit of a file that names none.
_DEFAULT_UNIT = "MBITPERSEC"
_SECONDS_PER_UNIT = {"min": 60, "hour": 3600, "day": 86400, "month": 2592000, "year": 31536000}
# Maximum size of the file of one matrix.
_MAX_XML_BYTES = 64 << 20


def is_sndlib(path: Path) -> bool:
    """Return whether an XML file names SNDlib's namespace near its beginning."""
    with path.open("rb") as stream:
        return b"sndlib.zib.de/network" in stream.read(4096)


def read_sndlib_topology(path: Path, default_capacity: float | None = None) -> Topology:
    """Read a topology of SNDlib; an undirected link becomes two directed ones.

    Args:
        path: path of the .xml file.
        default_capacity: Gbit/s of links without a capacity; None refuses them.

    Raises:
        InputError: not SNDlib XML, or an error of :func:`topology_from_records`.
    """
    where = str(path)
    root = _parse_xml(path.read_bytes(), where)
    unit_gbps, notes = _gbps_of_unit(root, where)
    structure = root.find(f"{_NAMESPACE}networkStructure")
    if structure is None:
        raise InputError.invalid(
            where,
            "",
            "the file has no element networkStructure",
            "name an SNDlib file with nodes and links",
        )
    # Coordinates (x, y) of the nodes by name, None where unknown.
    nodes: dict[str, tuple[float, float] | None] = {}
    for node in structure.iterfind(f"{_NAMESPACE}nodes/{_NAMESPACE}node"):
        x, y = (node.findtext(f"{_NAMESPACE}coordinates/{_NAMESPACE}{axis}") for axis in "xy")
        field = f"node {node.get('id')}: coordinates"
        nodes[str(node.get("id"))] = (
            (number(x, where, field), number(y, where, field)) if x and y else None
        )
    node_list = structure.find(f"{_NAMESPACE}nodes")
    geographical = node_list is not None and node_list.get("coordinatesType") == "geographical"
    # Links: the capacity is that of the pre-installed module, or of the first additional module if
    # the former is missing or 0.
    links = []
    for link in structure.iterfind(f"{_NAMESPACE}links/{_NAMESPACE}link"):
        field = f"link {link.get('id')}"
        capacity = None
        for module in ("preInstalledModule", f"additionalModules/{_NAMESPACE}addModule"):
            text = link.findtext(f"{_NAMESPACE}{module}/{_NAMESPACE}capacity")
            if text is not None and (capacity is None or capacity == 0):
                capacity = number(text, where, f"{field}: capacity") * unit_gbps
        # Node names of the link.
        ends = [(link.findtext(f"{_NAMESPACE}{end}") or "").strip() for end in ("source", "target")]
        # No latency: it follows from the coordinates.
        links.append(LinkRecord(ends[0], ends[1], capacity, None, field))
    return topology_from_records(
        path.stem,
        where,
        nodes,
        links,
        directed=False,
        geographical=geographical,
        default_capacity=default_capacity,
        notes=notes,
    )


@dataclasses.dataclass(frozen=True)
class _Matrix:
    """Parsed file of a matrix of n demands; n is 0 if the measurement has a gap at its time.

    Attributes:
        name: name of the file.
        time: time of the matrix.
        interval_s: seconds between matrices; 0 if unknown.
        pairs: (n,) pair codes source * N + target of the demands, ascending.
        rates: (n,) Gbit/s.
    """

    name: str
    time: np.datetime64
    interval_s: int
    pairs: Int64Array
    rates: FloatArray


def read_sndlib_traffic(path: Path, topology: Topology, progress: bool = False) -> TrafficMatrices:
    """Read a dynamic traffic archive: a .tgz, or a folder with its files at any depth.

    A file without demands, as in GEANT's archive, is listed in the matrices' ``skipped``.

    Args:
        path: path of the archive or folder.
        topology: network with the node names.
        progress: show a progress bar.

    Raises:
        InputError: a truncated archive, a file that is not SNDlib XML, an unknown node, a negative
            or NaN rate, two matrices of one time, or no matrix at all.
    """
    where = str(path)
    archive = _read_archive(path, topology, progress)
    matrix_by_time = archive.matrix_by_time
    if not matrix_by_time:
        raise InputError.invalid(
            where,
            "",
            "no XML file with demands",
            "name an archive or folder with an SNDlib .xml file for each matrix",
        )
    name = re.sub(r"\.(tgz|tar\.gz|tar)$", "", path.name, flags=re.IGNORECASE)
    key = content_key(file_key(path), topology.node_names)
    # The D demands: union of the pair codes of all matrices, ascending.
    times = np.array(sorted(matrix_by_time), dtype="datetime64[s]")
    pair_codes = reduce(np.union1d, (matrix_codes for matrix_codes, _ in matrix_by_time.values()))

    # Write one row of rates for each time; demands that its file lacks have rate 0.
    def write_rates(store: RateFile | RateArray) -> None:
        for row, time in enumerate(sorted(matrix_by_time)):
            matrix_codes, rates = matrix_by_time[time]
            all_rates = np.zeros(len(pair_codes))
            all_rates[np.searchsorted(pair_codes, matrix_codes)] = rates
            store.write(row, all_rates[None])

    return TrafficMatrices(
        name=name,
        pairs=np.stack(np.divmod(pair_codes, topology.num_nodes), 1).astype(np.int32),
        timestamps=times,
        rates=make_rates((len(times), len(pair_codes)), key, write_rates),
        interval_s=int(np.median(archive.intervals)),
        skipped=tuple(archive.skipped),
        key=key,
        origin=where,
    )


@dataclasses.dataclass
class _Archive:
    """Traffic matrices of an archive, and messages about its files without demands.

    Attributes:
        matrix_by_time: for each time, the pair codes source * N + target of the demands,
            ascending, and their rates, Gbit/s.
        intervals: seconds from each matrix to the next, as its file states.
        skipped: messages about files without demands.
    """

    matrix_by_time: dict[np.datetime64, tuple[Int64Array, FloatArray]] = dataclasses.field(
        default_factory=dict
    )
    intervals: list[int] = dataclasses.field(default_factory=list)
    skipped: list[str] = dataclasses.field(default_factory=list)


def _read_archive(path: Path, topology: Topology, progress: bool) -> _Archive:
    """Parse one matrix from each XML file of an archive or folder.

    Args:
        path: path of the archive or folder.
        topology: network with the node names.
        progress: show a progress bar.

    Raises:
        InputError: an unreadable archive, an invalid file, or two files of one time.
    """
    where = str(path)
    index = topology.node_index()
    archive = _Archive()
    num_files = None if path.is_file() else sum(1 for _ in path.rglob("*.xml"))
    members = progress_bar(
        _files(path),
        desc=f"reading {path.name}",
        unit="matrix",
        total=num_files,
        disable=not progress,
    )
    # Collect the matrices by time.
    for name, content in members:
        matrix = _read_matrix(name, content, where, index, topology)
        archive.intervals.append(matrix.interval_s)
        if not len(matrix.rates):
            archive.skipped.append(f"{name}: no demands in the file")
        elif matrix.time in archive.matrix_by_time:
            raise InputError.invalid(
                where,
                f"{name}: time",
                f"an earlier file has the time {matrix.time}, too",
                "remove one of the two files",
            )
        else:
            archive.matrix_by_time[matrix.time] = (matrix.pairs, matrix.rates)
    return archive


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of every XML file of a folder, in the order of paths, or of an
    archive, in its order.

    Raises:
        InputError: a damaged archive, or a file that is too large.
    """
    if path.is_dir():
        for file in sorted(path.rglob("*.xml")):
            yield file.name, file.read_bytes()
        return
    # XML files of the archive, in any compression, up to a maximum size.
    try:
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                if member.isfile() and member.name.endswith(".xml"):
                    name = Path(member.name).name
                    if member.size > _MAX_XML_BYTES:
                        expected = f"at most {_MAX_XML_BYTES:,} bytes"
                        raise InputError(str(path), name, expected, f"{member.size:,} bytes")
                    stream = archive.extractfile(member)
                    yield name, stream.read() if stream else b""
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError.invalid(
            str(path),
            "",
            f"the archive is truncated or damaged: {error}",
            "download it again",
        ) from None


def _interval_s(root: ElementTree.Element) -> int:
    """Return the seconds to the next matrix, from the granularity of the file; 0 if unknown."""
    granularity = root.findtext(f"{_NAMESPACE}meta/{_NAMESPACE}granularity", "").strip()
    match = re.fullmatch(r"(\d+)\s*(min|hour|day|month|year)s?", granularity)
    return int(match[1]) * _SECONDS_PER_UNIT[match[2]] if match else 0


def _read_matrix(
    name: str, content: bytes, archive: str, node_index: dict[str, int], topology: Topology
) -> _Matrix:
    """Parse the file of one matrix; demands of the same pair are added, self-loops dropped.

    Args:
        name: name of the file.
        content: its XML.
        archive: name of the archive, for messages.
        node_index: index of each node by its name.
        topology: the network.

    Raises:
        InputError: not SNDlib XML, an unknown node, an invalid time, or a rate that is negative or
            not finite.
    """
    where = f"{archive}: {name}"
    # Unit of the rates, and time.
    root = _parse_xml(content, where)
    unit_gbps, _ = _gbps_of_unit(root, where)
    time = _time(root, where)
    # Gbit/s by pair of node indices.
    rates: dict[tuple[int, int], float] = {}
    for demand in root.iterfind(f"{_NAMESPACE}demands/{_NAMESPACE}demand"):
        field = f"demand {demand.get('id')}"
        source, target, value = (
            (demand.findtext(f"{_NAMESPACE}{part}") or "").strip()
            for part in ("source", "target", "demandValue")
        )
        for node in (source, target):
            if node not in node_index:
                raise InputError(where, field, f"a node of {topology.name}", repr(node))
        rate = number(value, where, f"{field}: demandValue")
        if not (np.isfinite(rate) and rate >= 0):
            raise InputError(where, f"{field}: demandValue", "a finite rate >= 0", rate)
        if source != target:
            pair = (node_index[source], node_index[target])
            rates[pair] = rates.get(pair, 0.0) + rate * unit_gbps
    # Arrays, sorted by pair.
    sorted_pairs = sorted(rates)
    pair_codes = np.array(
        [
            source_index * topology.num_nodes + target_index
            for source_index, target_index in sorted_pairs
        ],
        dtype=np.int64,
    )
    return _Matrix(
        name,
        time,
        _interval_s(root),
        pair_codes,
        np.array([rates[pair] for pair in sorted_pairs], dtype=np.float64),
    )


def _time(root: ElementTree.Element, where: str) -> np.datetime64:
    """Return the time that a matrix's file states, with a resolution of seconds.

    Raises:
        InputError: no valid date and time.
    """
    text = root.findtext(f"{_NAMESPACE}meta/{_NAMESPACE}time", "").strip()
    match = re.fullmatch(r"(\d{4})(\d\d)(\d\d)(?:-(\d\d)(\d\d))?", text)
    if not match:
        raise InputError(where, "time", "YYYYMMDD or YYYYMMDD-hhmm", repr(text))
    year, month, day, hour, minute = (part or "00" for part in match.groups())
    try:
        return np.datetime64(f"{year}-{month}-{day}T{hour}:{minute}:00", "s")
    except ValueError:
        raise InputError(where, "time", "a date and time", repr(text)) from None


def _parse_xml(content: bytes, where: str) -> ElementTree.Element:
    """Return the root element of SNDlib XML; raise InputError for anything else."""
    try:
        root = ElementTree.fromstring(content)
    except (
        ElementTree.ParseError,
        LookupError,
        ValueError,
    ) as error:
        # The last two exceptions report an unknown encoding.
        raise InputError.invalid(where, "", f"the file is not valid XML: {error}") from None
    if root.tag != f"{_NAMESPACE}network":
        raise InputError(where, "root element", "SNDlib's <network>", f"<{root.tag}>")
    return root


def _gbps_of_unit(root: ElementTree.Element, where: str) -> tuple[float, tuple[str, ...]]:
    """Return the Gbit/s in one unit of the file's capacities and rates, and a tuple with a note if
    the file names no unit.
    """
    text = root.findtext(f"{_NAMESPACE}meta/{_NAMESPACE}unit")
    if text is None:
        return gbps_per_unit(_DEFAULT_UNIT, where), (
            "The file names no unit: capacities are read as Mbit/s.",
        )
    return gbps_per_unit(text, where), ()
