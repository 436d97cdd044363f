"""Registry of traffic file formats, by suffix or content.

Code adds a format by :func:`register_traffic_format`, an installed package by an entry point in the
group ``teal.traffic_formats``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from teal.formats import commalab, tntp
from teal.formats.parts import convert_reader_errors
from teal.network import Topology, TrafficMatrices
from teal.spec import Registry


@dataclasses.dataclass(frozen=True)
class TrafficFormat:
    """File format of traffic matrices: its suffixes and reader.

    Attributes:
        suffixes: lower-case endings of file names.
        read: function that reads the matrices of a file over the nodes of a network, in Gbit/s;
            raises InputError.
        recognises: function that recognises a file with an unknown ending by its content.
    """

    suffixes: tuple[str, ...]
    read: Callable[[Path, Topology], TrafficMatrices]
    recognises: Callable[[Path], bool] = lambda _: False

    def traffic(self, path: Path, topology: Topology) -> TrafficMatrices:
        """Read the traffic matrices of a file, in Gbit/s.

        Args:
            path: path of the file.
            topology: network with the node names.

        Raises:
            InputError: an invalid file.
        """
        return _read(path, self, topology)


@convert_reader_errors("traffic in the format of its suffix")
def _read(path: Path, file_format: TrafficFormat, topology: Topology) -> TrafficMatrices:
    """Read matrices by the reader of a format, whose Python errors become InputError."""
    return file_format.read(path, topology)


_FORMATS: Registry[TrafficFormat] = Registry(
    "traffic format",
    "teal.traffic_formats",
    {
        "commalab": TrafficFormat(
            (), commalab.read_commalab_traffic, recognises=commalab.is_commalab
        ),
        "tntp": TrafficFormat(tntp.SUFFIXES, tntp.read_tntp_traffic),
    },
)


def register_traffic_format(name: str, form: TrafficFormat, *, replace: bool = False) -> None:
    """Register a file format of traffic matrices in this process.

    Args:
        name: name of the format.
        form: the format.
        replace: whether to replace an existing format of that name.

    Raises:
        InputError: another format has the name, and ``replace`` is false.
    """
    _FORMATS.add(name, form, replace=replace)


def traffic_format(path: Path) -> TrafficFormat | None:
    """Return the format of a file by its name, or by its content; None for an unknown one."""
    formats = [_FORMATS[name] for name in _FORMATS.names()]
    by_name = next(
        (
            file_format
            for file_format in formats
            if path.name.lower().endswith(file_format.suffixes)
        ),
        None,
    )
    return by_name or next(
        (file_format for file_format in formats if file_format.recognises(path)), None
    )
