"""Reader and writer of traffic as .npz: ``rates`` (T, D) in Gbit/s, ``timestamps`` (T,) in seconds
since 1970 (UTC), ``sources`` and ``targets`` (D,) node names, and optionally ``interval_s``.

The rates of an uncompressed file, as written by :func:`write_npz`, are read row by row from that
file; compressed ones are unpacked once, into the cache if they are large.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from teal.errors import InputError
from teal.formats.rate_store import RateArray, RateFile, make_rates
from teal.network import Topology, TrafficMatrices
from teal.network.rates import FileRates, Rates
from teal.network.traffic import usual_interval
from teal.runtime.archives import check_npz, read_header
from teal.runtime.arrays import IntArray
from teal.runtime.storage import atomic_file, content_key, file_key

_FIELDS = ("rates", "timestamps", "sources", "targets")


def read_npz(path: Path, topology: Topology) -> TrafficMatrices:
    """Read the traffic matrices of a .npz file, whose pairs of nodes may have any order.

    Args:
        path: path of the file.
        topology: network with the node names.

    Raises:
        InputError: not an .npz, a missing field or one of the wrong shape, an unknown node, a
            repeated pair or a self-loop, a rate that is negative or not a number.
    """
    where = str(path)
    content_hash = file_key(path)
    fields = _read_fields(path, content_hash)
    pairs = _pairs(fields, topology, where)
    # Sort the pairs by source and target.
    rates = fields.rates
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    if (order != np.arange(len(order))).any():
        rates = _ReorderedRates(rates, order)
    traffic = TrafficMatrices(
        name=path.stem,
        pairs=pairs[order],
        timestamps=fields.timestamps,
        rates=rates,
        interval_s=fields.interval_s
        if fields.interval_s > 0
        else usual_interval(fields.timestamps),
        key=content_key(content_hash, topology.node_names),
        origin=where,
    )
    # Reading validates every rate.
    for _ in traffic.chunks():
        pass
    return traffic


class _Fields(NamedTuple):
    """Arrays of a .npz file of traffic.

    Attributes:
        ends: names of the D sources, and of the D targets.
        timestamps: (T,) times of the matrices, with a resolution of seconds.
        interval_s: seconds between two matrices; 0 if the file has none.
        rates: (T, D) Gbit/s.
    """

    ends: list[list[str]]
    timestamps: npt.NDArray[np.datetime64]
    interval_s: int
    rates: Rates


def _read_fields(path: Path, content_hash: str) -> _Fields:
    """Read the arrays of a file, except for the rates, which are read on demand from it or from the
    disk cache.

    Args:
        path: path of the file.
        content_hash: SHA-256 of the file, key of the cache.

    Raises:
        InputError: not an .npz, or a missing field.
    """
    where = str(path)
    try:
        check_npz(path)
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as npz_arrays:
            for field in _FIELDS:
                if field not in npz_arrays:
                    expected = "the arrays " + ", ".join(_FIELDS)
                    raise InputError(where, field, expected, ", ".join(npz_arrays.files))
            # Names and times, which are small; a single number is an array without dimensions.
            ends = [
                [str(name) for name in np.atleast_1d(npz_arrays[side]).tolist()]
                for side in ("sources", "targets")
            ]
            timestamps = np.atleast_1d(npz_arrays["timestamps"]).astype("datetime64[s]")
            interval_s = int(npz_arrays["interval_s"]) if "interval_s" in npz_arrays else 0
        # Rates, and errors of damaged files of any kind.
        rates = _open_rates(path, content_hash)
    except (
        ValueError,
        OSError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
        KeyError,
        TypeError,
        OverflowError,
        NotImplementedError,
        RuntimeError,
        SyntaxError,
    ) as error:
        raise InputError.invalid(
            where,
            "",
            f"the .npz file cannot be read: {error}",
            "write it by numpy.savez with the arrays rates, timestamps, sources and targets",
        ) from None
    return _Fields(ends, timestamps, interval_s, rates)


def _pairs(fields: _Fields, topology: Topology, where: str) -> IntArray:
    """Return the (D, 2) source and target indices of the demands, in the order of the file.

    Args:
        fields: arrays of the file.
        topology: network with the node names.
        where: name of the file, for messages.

    Raises:
        InputError: an unknown node, or rates of the wrong shape.
    """
    ends = fields.ends
    rates = fields.rates
    index = topology.node_index()
    unknown = next((name for names in ends for name in names if name not in index), None)
    if unknown is not None:
        raise InputError(where, "node", f"a node of {topology.name}", repr(unknown))
    num_matrices = len(fields.timestamps)
    if len(ends[0]) != len(ends[1]) or rates.shape != (num_matrices, len(ends[0])):
        raise InputError.invalid(
            where,
            "rates",
            f"the shape of rates is {' x '.join(map(str, rates.shape))}, but there are "
            f"{num_matrices} timestamps, {len(ends[0])} sources and {len(ends[1])} targets",
            "use a row per timestamp and a column per demand",
        )
    return np.array(
        [[index[s], index[t]] for s, t in zip(*ends, strict=True)], dtype=np.int32
    ).reshape(-1, 2)


def write_npz(path: Path, traffic: TrafficMatrices, topology: Topology, dtype: str = "<f4") -> None:
    """Write traffic matrices as .npz, chunk by chunk.

    Args:
        path: path of the file.
        traffic: T matrices of D demands.
        topology: network with the node names.
        dtype: NumPy type of the rates: ``<f4`` or ``<f8``.
    """
    # Small arrays are written at once, the rates in chunks of matrices after their header.
    names = np.array(topology.node_names)
    small_arrays = {
        "timestamps": traffic.timestamps.astype("datetime64[s]").astype(np.int64),
        "sources": names[traffic.pairs[:, 0]],
        "targets": names[traffic.pairs[:, 1]],
        "interval_s": np.array(traffic.interval_s),
    }
    with (
        atomic_file(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive,
    ):
        for field, values in small_arrays.items():
            with archive.open(f"{field}.npy", "w") as stream:
                npy.write_array(stream, values, allow_pickle=False)
        # Rates in chunks of matrices, after the header of the whole array.
        with archive.open("rates.npy", "w", force_zip64=True) as stream:
            shape = (traffic.num_matrices, traffic.num_demands)
            npy.write_array_header_1_0(
                stream, {"descr": dtype, "fortran_order": False, "shape": shape}
            )
            for chunk in traffic.chunks():
                stream.write(chunk.astype(dtype).tobytes())


class _ReorderedRates:
    """Rates with permuted demands.

    Args:
        rates: (T, D) rates in the order of the file.
        order: (D,) column of ``rates`` for each demand.
    """

    def __init__(self, rates: Rates, order: npt.NDArray[np.int64]) -> None:
        self._rates = rates
        self._order = order

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of matrices and demands, (T, D)."""
        return self._rates.shape

    def read(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the rates of the B matrices with the indices ``rows``, (B, D), in Gbit/s."""
        return self._rates.read(rows)[:, self._order]


def _write_rows(rates: RateFile | RateArray, values: npt.NDArray[np.generic]) -> None:
    """Write the rates ``values``, (T, D), to a store matrix by matrix, as float64."""
    for row in range(len(values)):
        rates.write(row, values[row][None].astype(np.float64))


def _open_rates(path: Path, content_hash: str) -> Rates:
    """Return the rates (T, D) of a file: mapped in place if they are uncompressed, else unpacked
    matrix by matrix into memory or the disk cache.

    Args:
        path: path of the file.
        content_hash: SHA-256 of the file, key of the cache.

    Raises:
        ValueError: rates that are not numbers in two dimensions, or a truncated file.
    """
    with zipfile.ZipFile(path) as archive:
        zip_entry = archive.getinfo("rates.npy")
        with archive.open(zip_entry) as stream:
            shape, is_fortran, dtype = read_header(stream)
            header_bytes = stream.tell()
            if len(shape) != 2 or dtype.kind not in "fiu":
                raise ValueError(
                    f"rates must be numbers of shape (T, D), but have type {dtype} and shape "
                    f"{shape}"
                )
            # In Fortran order a matrix is not contiguous: load the whole array.
            if is_fortran and min(shape) > 1:
                with np.load(path, allow_pickle=False) as npz_arrays:
                    values = npz_arrays["rates"]
                return make_rates(
                    (shape[0], shape[1]), content_hash, lambda rates: _write_rows(rates, values)
                )
            # Compressed: unpack the stream matrix by matrix.
            if zip_entry.compress_type != zipfile.ZIP_STORED:

                def unpack(rates: RateFile | RateArray) -> None:
                    row_bytes = shape[1] * dtype.itemsize
                    for row in range(shape[0]):
                        data = stream.read(row_bytes)
                        if len(data) < row_bytes:
                            raise ValueError("the file ends before its last matrix")
                        rates.write(row, np.frombuffer(data, dtype)[None].astype(np.float64))

                return make_rates((shape[0], shape[1]), content_hash, unpack)
    # Uncompressed: find the offset of the first rate in the file.
    with path.open("rb") as raw:
        # The local header has 30 bytes, a name and extra data, whose lengths are at byte 26; they
        # may differ from those in the directory of the archive.
        raw.seek(zip_entry.header_offset + 26)
        name_length, extra_length = struct.unpack("<HH", raw.read(4))
    # The rates follow the local header, name and extra data, and the header of the array.
    offset = zip_entry.header_offset + 30 + name_length + extra_length + header_bytes
    if offset + shape[0] * shape[1] * dtype.itemsize > path.stat().st_size:
        raise ValueError("the file ends before its last matrix")
    return FileRates(path, shape, dtype.str, offset)
