"""Checks of .npz archives before anything in them is unpacked: a small file must not become a large
one in memory.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

_ALWAYS_BYTES = 1 << 30  # unpacked, that any archive may have
# of unpacked bytes to those of the file, beyond that; measured traffic is packed to a tenth at best
_MAX_RATIO = 200


def read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether it is in Fortran order, and type of an array, before which the stream stands.

    Raises:
        ValueError: no header of an array.
    """
    version = npy.read_magic(stream)
    read: Any = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, is_fortran, dtype = read(stream)
    return shape, is_fortran, dtype


def check_npz(path: Path) -> None:
    """Read the directory of an archive and the headers of its arrays.

    Raises:
        ValueError: an array of another size than its header says, one of Python objects, or more
            unpacked bytes than 1 GiB and 200 times the size of the file.
        zipfile.BadZipFile: no archive.
    """
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        unpacked = sum(entry.file_size for entry in entries)
        if unpacked > max(_ALWAYS_BYTES, _MAX_RATIO * path.stat().st_size):
            raise ValueError(
                f"{unpacked:,} bytes unpacked; store so much without compression (numpy.savez)"
            )
        for entry in entries:
            with archive.open(entry) as stream:
                shape, _, dtype = read_header(stream)
                if dtype.hasobject:
                    raise ValueError(f"{entry.filename}: pickled objects")
                if stream.tell() + math.prod(shape) * dtype.itemsize != entry.file_size:
                    raise ValueError(
                        f"{entry.filename}: {entry.file_size:,} bytes are not an array of shape "
                        f"{shape}"
                    )
