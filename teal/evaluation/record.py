"""The stored result of an evaluation: rows, the networks that they are about, and link
utilisations.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from teal.errors import InputError
from teal.evaluation.fairness_curve import FairnessPoint
from teal.evaluation.rows import Row
from teal.formats.rows import read_csv, write_csv, write_parquet
from teal.network import Topology
from teal.runtime.arrays import Float32Array, FloatArray, IntArray
from teal.runtime.storage import atomic_file

ROWS = "results.csv"
TABLE = "results.parquet"
UTILISATION = "utilisation.parquet"
NETWORKS = "networks.json"


@dataclasses.dataclass(frozen=True, eq=False)
class NetworkRecord:
    """A network as the map in the report needs it.

    Attributes:
        topology: name of the network, as in rows.
        traffic: name of the traffic, as in rows.
        nodes: N names.
        coordinates: (N, 2), NaN where unknown.
        source: (E,) node index where each link starts.
        target: (E,) node index where it ends.
        capacity: (E,) Gbit/s.
        content: content key of demands, paths, objective, failures and seed; rows of two runs may
            be compared if they have the same.
        selection: evaluated matrices, in words.
        fairness: what fairness costs on the first matrix; () where the objective is linear in flow.
    """

    topology: str
    traffic: str
    nodes: tuple[str, ...]
    coordinates: FloatArray
    source: IntArray
    target: IntArray
    capacity: FloatArray
    content: str = ""
    selection: str = ""
    fairness: tuple[FairnessPoint, ...] = ()

    @classmethod
    def of(cls, topology: Topology, traffic: str, content: str, selection: str) -> NetworkRecord:
        """The record of a topology and the name of its traffic."""
        return cls(
            topology.name,
            traffic,
            topology.node_names,
            topology.coordinates,
            topology.link_source,
            topology.link_target,
            topology.capacity,
            content,
            selection,
        )

    def to_json(self) -> dict[str, Any]:
        """The record as lists and strings; unknown coordinates are null."""
        coordinates = [
            [None if np.isnan(x) else x for x in point] for point in self.coordinates.tolist()
        ]
        lists = {name: getattr(self, name).tolist() for name in ("source", "target", "capacity")}
        names = {
            name: getattr(self, name) for name in ("topology", "traffic", "content", "selection")
        }
        names["nodes"] = list(self.nodes)
        names["fairness"] = [list(dataclasses.astuple(point)) for point in self.fairness]
        return {**names, "coordinates": coordinates, **lists}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> NetworkRecord:
        """The record that :meth:`to_json` returned as ``data``."""
        return cls(
            data["topology"],
            data["traffic"],
            tuple(data["nodes"]),
            np.array(data["coordinates"], dtype=np.float64).reshape(-1, 2),
            np.array(data["source"], np.int32),
            np.array(data["target"], np.int32),
            np.array(data["capacity"], np.float64),
            data["content"],
            data.get("selection", ""),
            tuple(FairnessPoint(*point) for point in data.get("fairness", ())),
        )


@dataclasses.dataclass(frozen=True)
class ResultKey:
    """Identifies a row: one scheme on one case of one network."""

    topology: str
    traffic: str
    protocol: str
    level: str
    draw: int
    index: int
    scheme: str

    @classmethod
    def of(cls, row: Row) -> ResultKey:
        """The key of a row."""
        return cls(*(getattr(row, field) for field in RESULT_KEY_FIELDS))

    def with_scheme(self, scheme: str) -> ResultKey:
        """The key of the same case and another scheme."""
        return dataclasses.replace(self, scheme=scheme)


RESULT_KEY_FIELDS = tuple(field.name for field in dataclasses.fields(ResultKey))


@dataclasses.dataclass(frozen=True, eq=False)
class Record:
    """The results of one or several evaluations.

    Attributes:
        rows: all rows.
        networks: each network with its traffic, in order of appearance.
        utilisation: (E,) load / capacity of the links, by row.
    """

    rows: list[Row]
    networks: list[NetworkRecord]
    utilisation: dict[ResultKey, Float32Array]

    def save_rows(self, folder: Path) -> None:
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
        columns: dict[str, Any] = {
            f: [getattr(key, f) for key in self.utilisation] for f in RESULT_KEY_FIELDS
        }
        columns["utilisation"] = pa.array(list(self.utilisation.values()), pa.list_(pa.float32()))
        with atomic_file(folder / UTILISATION) as temporary:
            pq.write_table(pa.table(columns), temporary)

    @classmethod
    def load(cls, folders: Sequence[Path]) -> Record:
        """The results in several folders; of rows with the same key the last one counts.

        Raises:
            InputError: a folder without results, or two whose rows cannot be compared.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows: dict[ResultKey, Row] = {}
        networks: dict[tuple[str, str], NetworkRecord] = {}
        utilisation: dict[ResultKey, Float32Array] = {}
        for folder in folders:
            # Read the tables of a folder.
            rows |= {ResultKey.of(row): row for row in read_csv(folder / ROWS, Row)}
            try:
                listed = json.loads((folder / NETWORKS).read_text(encoding="utf-8"))
                listed_networks = {
                    (n.topology, n.traffic): n for n in map(NetworkRecord.from_json, listed)
                }
                table = pq.read_table(folder / UTILISATION).to_pydict()
                utilisations = table.pop("utilisation")
                keys = [
                    ResultKey(*values)
                    for values in zip(*(table[f] for f in RESULT_KEY_FIELDS), strict=True)
                ]
            except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
                raise InputError(str(folder), "", "what teal evaluate wrote", str(error)) from None
            # Networks of the same name must be equal.
            for name, network in listed_networks.items():
                if name in networks and networks[name].content != network.content:
                    expected = (
                        "the demands, paths, objective, failed links and seed of the others for "
                        f"{name[0]}"
                    )
                    raise InputError(
                        str(folder), "", expected, "others: rows of the two cannot be compared"
                    )
            networks |= listed_networks
            utilisation |= {
                key: np.array(u, np.float32) for key, u in zip(keys, utilisations, strict=True)
            }
        return cls(list(rows.values()), list(networks.values()), utilisation)
