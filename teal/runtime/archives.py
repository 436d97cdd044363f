"""Validation of .npz archives before unpacking, against decompression bombs and corrupt headers."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

# Unpacked size that every archive may have.
_MAX_UNCHECKED_BYTES = 1 << 30
# Maximum ratio of unpacked to packed bytes beyond that; measured traffic compresses to a tenth at
# best.
_MAX_COMPRESSION_RATIO = 200


def read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether in Fortran order, and dtype of the NumPy array (.npy) at the start of a
    stream, which is then positioned after the header.

    Raises:
        ValueError: no array header.
    """
    version = npy.read_magic(stream)
    read_array_header: Any = (
        npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    )
    shape, is_fortran, dtype = read_array_header(stream)
    return shape, is_fortran, dtype


def check_npz(path: Path) -> None:
    """Raise an error unless the .npz archive ``path`` is safe to unpack, by its directory and the
    headers of its arrays.

    Raises:
        ValueError: an array whose size differs from its header, an array of Python objects, or more
            unpacked bytes than 1 GiB and 200 times the size of the file.
        zipfile.BadZipFile: not an archive.
    """
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        unpacked = sum(entry.file_size for entry in entries)
        if unpacked > max(_MAX_UNCHECKED_BYTES, _MAX_COMPRESSION_RATIO * path.stat().st_size):
            raise ValueError(
                f"the archive unpacks to {unpacked:,} bytes, over 1 GiB and 200 times its size; "
                "store it without compression (numpy.savez)"
            )
        for entry in entries:
            with archive.open(entry) as stream:
                shape, _, dtype = read_header(stream)
                if dtype.hasobject:
                    raise ValueError(
                        f"{entry.filename} has pickled objects, which are not read; store numbers"
                    )
                if stream.tell() + math.prod(shape) * dtype.itemsize != entry.file_size:
                    raise ValueError(
                        f"{entry.filename} has {entry.file_size:,} bytes, which is not the size of "
                        f"an array of shape {shape}"
                    )
