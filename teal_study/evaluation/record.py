"""Stored result of an evaluation: rows, their networks, and link utilisations."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from teal.errors import InputError
from teal.formats.rows import read_csv, write_csv, write_parquet
from teal.network import Topology
from teal.runtime.arrays import Float32Array, FloatArray, IntArray
from teal.runtime.storage import atomic_file
from teal_study.evaluation.fairness_curve import FairnessPoint
from teal_study.evaluation.rows import Row

ROWS = "results.csv"
TABLE = "results.parquet"
UTILISATION = "utilisation.parquet"
NETWORKS = "networks.json"


@dataclasses.dataclass(frozen=True, eq=False)
class NetworkRecord:
    """Data of a network that the maps and charts of a report need.

    Attributes:
        topology: name of the network, as in rows.
        traffic: name of the traffic, as in rows.
        nodes: names of the N nodes.
        coordinates: (N, 2) longitude and latitude, NaN if unknown.
        source: (E,) node index where each link starts.
        target: (E,) node index where each link ends.
        capacity: (E,) Gbit/s.
        content: content hash of network, traffic, paths, objective, failed links and seed; rows of
            two runs can be compared if their hashes are equal.
        selection: description of the evaluated matrices.
        fairness: price of fairness on the first matrix; () for an objective that is linear in flow.
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
        """Return the record of a network without a price of fairness.

        Args:
            topology: the network.
            traffic: name of its traffic.
            content: content hash of the evaluation.
            selection: description of the evaluated matrices.
        """
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
        """Return the record as JSON values; unknown coordinates are None."""
        coordinates = [
            [None if np.isnan(x) else x for x in point] for point in self.coordinates.tolist()
        ]
        link_lists = {
            name: getattr(self, name).tolist() for name in ("source", "target", "capacity")
        }
        named_values = {
            name: getattr(self, name) for name in ("topology", "traffic", "content", "selection")
        }
        named_values["nodes"] = list(self.nodes)
        named_values["fairness"] = [list(dataclasses.astuple(point)) for point in self.fairness]
        return {**named_values, "coordinates": coordinates, **link_lists}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> NetworkRecord:
        """Return the record of JSON values as :meth:`to_json` returns them."""
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
    """Key of a row: one scheme on one case of one network.

    Attributes:
        topology, traffic: names of the network and its traffic.
        protocol, level: kind and strength of the change.
        draw, index: indices of the random draw and of the matrix.
        scheme: specification of the scheme; "" in a key of the case itself.
    """

    topology: str
    traffic: str
    protocol: str
    level: str
    draw: int
    index: int
    scheme: str

    @classmethod
    def of(cls, row: Row) -> ResultKey:
        """Return the key of a row of an evaluation."""
        return cls(*(getattr(row, field) for field in RESULT_KEY_FIELDS))

    def with_scheme(self, scheme: str) -> ResultKey:
        """Return the key of the row of another scheme on the same case."""
        return dataclasses.replace(self, scheme=scheme)


RESULT_KEY_FIELDS = tuple(field.name for field in dataclasses.fields(ResultKey))


@dataclasses.dataclass(frozen=True, eq=False)
class Record:
    """Results of one or several evaluations.

    Attributes:
        rows: all rows.
        networks: each network with its traffic, in order of appearance.
        utilisation: (E,) load / capacity of the links, by key of the row.
    """

    rows: list[Row]
    networks: list[NetworkRecord]
    utilisation: dict[ResultKey, Float32Array]

    def save_rows(self, folder: Path) -> None:
        """Write rows as CSV and Parquet, utilisations as Parquet, and networks as JSON to a
        folder.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        with atomic_file(folder / ROWS) as temporary:
            write_csv(temporary, self.rows)
        with atomic_file(folder / TABLE) as temporary:
            write_parquet(temporary, self.rows)
        with atomic_file(folder / NETWORKS) as temporary:
            text = json.dumps([network.to_json() for network in self.networks], allow_nan=False)
            temporary.write_text(text + "\n", encoding="utf-8")
        # Utilisations: columns of the key's fields, and a list of E values for each row.
        columns: dict[str, Any] = {
            f: [getattr(key, f) for key in self.utilisation] for f in RESULT_KEY_FIELDS
        }
        columns["utilisation"] = pa.array(list(self.utilisation.values()), pa.list_(pa.float32()))
        with atomic_file(folder / UTILISATION) as temporary:
            pq.write_table(pa.table(columns), temporary)

    @classmethod
    def load(cls, folders: Sequence[Path]) -> Record:
        """Return the results of several folders; if rows have equal keys, the last one counts.

        Args:
            folders: folders that teal evaluate wrote.

        Raises:
            InputError: a folder without results, or two folders whose rows cannot be compared.
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
                network_entries = json.loads((folder / NETWORKS).read_text(encoding="utf-8"))
                folder_networks = {
                    (n.topology, n.traffic): n
                    for n in map(NetworkRecord.from_json, network_entries)
                }
                table = pq.read_table(folder / UTILISATION).to_pydict()
                utilisations = table.pop("utilisation")
                keys = [
                    ResultKey(*values)
                    for values in zip(*(table[f] for f in RESULT_KEY_FIELDS), strict=True)
                ]
            except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
                fault = (
                    "no complete results of teal evaluate; give a folder of a finished run: "
                    f"{error}"
                )
                raise InputError.invalid(str(folder), "", fault) from None
            # Networks of the same name must be equal.
            for name, network in folder_networks.items():
                if name in networks and networks[name].content != network.content:
                    fault = (
                        f"the results for {name[0]} cannot be compared with the others: demands, "
                        "paths, objective, failed links or seed differ"
                    )
                    remedy = "report folders of different settings separately"
                    raise InputError.invalid(str(folder), "", fault, remedy)
            networks |= folder_networks
            utilisation |= {
                key: np.array(u, np.float32) for key, u in zip(keys, utilisations, strict=True)
            }
        return cls(list(rows.values()), list(networks.values()), utilisation)
