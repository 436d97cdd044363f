"""Traffic as .npz: ``rates`` (T, D) in Gbit/s, ``timestamps`` (T,) in seconds since 1970 (UTC),
``sources`` and ``targets`` (D,) node names, ``interval_s``.

The rates of an uncompressed file (what :func:`write_npz` writes) are read row by row where they lie.
"""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from teal.errors import InputError
from teal.network import Topology, TrafficMatrices
from teal.network.rates import ArrayRates, FileRates, Rates
from teal.storage import atomic_file, content_key, file_key

_FIELDS = ("rates", "timestamps", "sources", "targets")


def read_npz(path: Path, topology: Topology) -> TrafficMatrices:
    """Read traffic matrices; pairs may come in any order.

    Raises:
        InputError: not an .npz, a field missing or of the wrong shape, an unknown node, a pair
            twice or from a node to itself.
    """
    where = str(path)
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            for field in _FIELDS:
                if field not in stored:
                    raise InputError(where, field, "fields " + ", ".join(_FIELDS), ", ".join(stored.files))
            sources, targets, stamps = (stored[f] for f in ("sources", "targets", "timestamps"))
            interval = int(stored["interval_s"]) if "interval_s" in stored else 0
            rates: Rates = _stored_rates(path) or ArrayRates(stored["rates"])
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, KeyError, TypeError) as error:
        raise InputError(where, "", "an .npz file without pickled objects", str(error)) from None
    index = topology.node_index()
    for names in (sources, targets):
        for name in names.tolist():
            if str(name) not in index:
                raise InputError(where, "node", f"a node of {topology.name}", repr(name))
    pairs = np.array(
        [[index[str(s)], index[str(t)]] for s, t in zip(sources.tolist(), targets.tolist(), strict=True)],
        dtype=np.int32,
    ).reshape(-1, 2)
    if rates.shape != (len(stamps), len(pairs)):
        raise InputError(where, "rates", f"{len(stamps)} x {len(pairs)}", " x ".join(map(str, rates.shape)))
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    if (order != np.arange(len(order))).any():
        rates = _Reordered(rates, order)
    return TrafficMatrices(
        name=path.stem,
        pairs=pairs[order],
        timestamps=stamps.astype("datetime64[s]"),
        rates=rates,
        interval_s=interval,
        key=content_key(file_key(path), topology.node_names),
        source=where,
    )


def write_npz(path: Path, traffic: TrafficMatrices, topology: Topology) -> None:
    """Write traffic matrices, a chunk at a time, in float32."""
    names = np.array(topology.node_names)
    small = {
        "timestamps": traffic.timestamps.astype("datetime64[s]").astype(np.int64),
        "sources": names[traffic.pairs[:, 0]],
        "targets": names[traffic.pairs[:, 1]],
        "interval_s": np.array(traffic.interval_s),
    }
    with atomic_file(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        for field, values in small.items():
            with archive.open(f"{field}.npy", "w") as stream:
                npy.write_array(stream, values, allow_pickle=False)
        with archive.open("rates.npy", "w", force_zip64=True) as stream:
            shape = (traffic.num_matrices, traffic.num_demands)
            npy.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
            for chunk in traffic.chunks():
                stream.write(chunk.astype("<f4").tobytes())


class _Reordered:
    """Rates with their columns in another order."""

    def __init__(self, rates: Rates, order: npt.NDArray[np.int64]) -> None:
        self._rates, self._order = rates, order

    @property
    def shape(self) -> tuple[int, int]:
        return self._rates.shape

    def read(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return self._rates.read(rows)[:, self._order]


def _stored_rates(path: Path) -> FileRates | None:
    """The rates where they lie in the file, or None if they are compressed or in Fortran order."""
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo("rates.npy")
        if entry.compress_type != zipfile.ZIP_STORED:
            return None
        with archive.open(entry) as stream:
            version = npy.read_magic(stream)
            read: Any = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read(stream)
            header = stream.tell()
    if fortran or dtype.kind != "f" or len(shape) != 2:
        return None
    with path.open("rb") as raw:
        raw.seek(entry.header_offset + 26)  # the local header's own lengths may differ from the directory's
        name_length, extra_length = struct.unpack("<HH", raw.read(4))
    offset = entry.header_offset + 30 + name_length + extra_length + header
    if offset + shape[0] * shape[1] * dtype.itemsize > path.stat().st_size:
        raise ValueError("the file ends before its last matrix")
    return FileRates(path, shape, dtype.str, offset)
