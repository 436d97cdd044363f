"""Objects of Python as the files and settings of a command."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from teal.app.run_files import typed
from teal.errors import InputError
from teal.formats import load_topology, load_traffic, save_topology, save_traffic
from teal.network import Topology, TrafficMatrices
from teal.objectives import Objective

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
            matrices = load_traffic(traffic, network if network is not None else load_topology(str(topology)))
        if network is not None:
            topology = Path(folder) / "topology.json"
            save_topology(topology, network)
        if matrices is not None:
            known = network if network is not None else load_topology(str(topology))
            traffic = Path(folder) / ("traffic.npz" if matrices.classes is None else "traffic.parquet")
            save_traffic(traffic, matrices, known, exact=True)
        yield str(topology), str(traffic)


def settings_of(kind: type[_Config], topology: Any, traffic: Any, settings: dict[str, Any]) -> _Config:
    """The settings of a command; a name that it does not have is refused with those that it has.

    Paths may be texts, names of an enumeration too, and one value may stand where several are taken.
    """
    hints, names = get_type_hints(kind), [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    values = {"topology": topology, "traffic": traffic}
    for name, value in settings.items():
        if name not in names:
            raise InputError(kind.__name__, name, "one of " + ", ".join(sorted(names)), repr(value))
        try:
            # An objective may also be one that was registered.
            values[name] = Objective(value).spec if name == "objective" else typed(hints[name], value)
        except (TypeError, ValueError) as error:
            raise InputError(f"--{name.replace('_', '-')}", "", "a value of this setting", str(error)) from None
    make: Callable[..., _Config] = kind
    return make(**values)


def nobody(_: str) -> None:
    """Progress that nobody reads."""
