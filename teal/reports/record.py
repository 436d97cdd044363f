"""What an evaluation leaves: rows, the networks they are about, and how full links were."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from teal.errors import InputError
from teal.evaluation import Row
from teal.network import Topology
from teal.network.topology import FloatArray, IntArray
from teal.reports.results import read_csv, write_csv, write_parquet
from teal.storage import atomic_file

Shares = npt.NDArray[np.float32]
ROWS, TABLE, UTILISATION, NETWORKS = "results.csv", "results.parquet", "utilisation.parquet", "networks.json"


@dataclasses.dataclass(frozen=True, eq=False)
class Network:
    """A network as a map needs it.

    Attributes:
        topology, traffic: names, as rows have them.
        nodes: N names.
        coordinates: (N, 2), NaN where unknown.
        source, target: (E,) node indices.
        capacity: (E,) Gbit/s.
        content: equal for runs whose rows may stand in one table: demands, paths, objective, failures, seed.
    """

    topology: str
    traffic: str
    nodes: tuple[str, ...]
    coordinates: FloatArray
    source: IntArray
    target: IntArray
    capacity: FloatArray
    content: str = ""

    @classmethod
    def of(cls, topology: Topology, traffic: str, content: str) -> Network:
        """Of a topology and the name of its traffic."""
        return cls(
            topology.name, traffic, topology.node_names, topology.coordinates,
            topology.link_source, topology.link_target, topology.capacity, content,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Plain lists; null for a coordinate that is unknown."""
        places = [[None if np.isnan(x) else x for x in place] for place in self.coordinates.tolist()]
        lists = {name: getattr(self, name).tolist() for name in ("source", "target", "capacity")}
        names = {"topology": self.topology, "traffic": self.traffic, "content": self.content, "nodes": list(self.nodes)}
        return {**names, "coordinates": places, **lists}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Network:
        """From what :meth:`to_json` gave."""
        return cls(
            found["topology"],
            found["traffic"],
            tuple(found["nodes"]),
            np.array(found["coordinates"], dtype=np.float64).reshape(-1, 2),
            np.array(found["source"], np.int32),
            np.array(found["target"], np.int32),
            np.array(found["capacity"], np.float64),
            found["content"],
        )


@dataclasses.dataclass(frozen=True)
class Place:
    """Which case of which network, and which scheme: what rows and utilisations are found by."""

    topology: str
    traffic: str
    protocol: str
    level: str
    draw: int
    index: int
    scheme: str

    @classmethod
    def of(cls, row: Row) -> Place:
        """Of a row."""
        return cls(*(getattr(row, field) for field in PLACE_FIELDS))

    def replaced(self, scheme: str) -> Place:
        """The same of another scheme."""
        return dataclasses.replace(self, scheme=scheme)


PLACE_FIELDS = tuple(field.name for field in dataclasses.fields(Place))


@dataclasses.dataclass(frozen=True, eq=False)
class Record:
    """An evaluation, or several together.

    Attributes:
        rows: all that was measured.
        networks: each network with its traffic, in order of appearance.
        utilisation: (E,) load / capacity by place.
    """

    rows: list[Row]
    networks: list[Network]
    utilisation: dict[Place, Shares]

    def save(self, folder: Path) -> None:
        """Write rows as CSV and Parquet, utilisations as Parquet, networks as JSON."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        with atomic_file(folder / ROWS) as temporary:
            write_csv(temporary, self.rows)
        with atomic_file(folder / TABLE) as temporary:
            write_parquet(temporary, self.rows)
        with atomic_file(folder / NETWORKS) as temporary:
            text = json.dumps([network.to_json() for network in self.networks], allow_nan=False)
            temporary.write_text(text + "\n", encoding="utf-8")
        columns: dict[str, Any] = {f: [getattr(p, f) for p in self.utilisation] for f in PLACE_FIELDS}
        columns["utilisation"] = pa.array(list(self.utilisation.values()), pa.list_(pa.float32()))
        with atomic_file(folder / UTILISATION) as temporary:
            pq.write_table(pa.table(columns), temporary)

    @classmethod
    def load(cls, folders: Sequence[Path]) -> Record:
        """What several folders hold; where two have the same place the later one counts.

        Raises:
            InputError: a folder without results, or two whose rows cannot stand in one table.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows: dict[Place, Row] = {}
        networks: dict[tuple[str, str], Network] = {}
        utilisation: dict[Place, Shares] = {}
        for folder in folders:
            rows |= {Place.of(row): row for row in read_csv(folder / ROWS, Row)}
            try:
                listed = json.loads((folder / NETWORKS).read_text(encoding="utf-8"))
                found = {(n.topology, n.traffic): n for n in map(Network.from_json, listed)}
                table = pq.read_table(folder / UTILISATION).to_pydict()
                shares = table.pop("utilisation")
                places = [Place(*values) for values in zip(*(table[f] for f in PLACE_FIELDS), strict=True)]
            except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
                raise InputError(str(folder), "", "what teal evaluate wrote", str(error)) from None
            for name, network in found.items():
                if name in networks and networks[name].content != network.content:
                    expected = f"the demands, paths, objective, failed links and seed of the others for {name[0]}"
                    raise InputError(str(folder), "", expected, "others: rows of the two cannot be compared")
            networks |= found
            utilisation |= {p: np.array(u, np.float32) for p, u in zip(places, shares, strict=True)}
        return cls(list(rows.values()), list(networks.values()), utilisation)
