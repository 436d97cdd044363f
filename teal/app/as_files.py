"""Objects of Python as the files and settings of a command."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from teal.app.options import options_of
from teal.formats import load_topology, load_traffic, save_topology, save_traffic
from teal.network import Topology, TrafficMatrices

_Config = TypeVar("_Config")


@contextlib.contextmanager
def files_of(topology: Any, traffic: Any) -> Iterator[tuple[str, str]]:
    """Names of files of the network and the traffic, which exist as long as the context."""
    with tempfile.TemporaryDirectory() as folder:
        network = topology if isinstance(topology, Topology) else None
        if network is None and not isinstance(topology, str | Path):
            network = load_topology(topology)
        matrices = traffic if isinstance(traffic, TrafficMatrices) else None
        if matrices is None and not isinstance(traffic, str | Path):
            matrices = load_traffic(
                traffic, network if network is not None else load_topology(str(topology))
            )
        if network is not None:
            topology = Path(folder) / "topology.json"
            save_topology(topology, network)
        if matrices is not None:
            known = network if network is not None else load_topology(str(topology))
            traffic = Path(folder) / (
                "traffic.npz" if matrices.classes is None else "traffic.parquet"
            )
            save_traffic(traffic, matrices, known, exact=True)
        yield str(topology), str(traffic)


def settings_of(
    kind: type[_Config], topology: Any, traffic: Any, settings: dict[str, Any]
) -> _Config:
    """The settings of a command for these names of files; errors as in
    :func:`teal.app.options.options_of`.
    """
    return options_of(kind, {"topology": topology, "traffic": traffic, **settings})


def nobody(_: str) -> None:
    """Progress that nobody reads."""
