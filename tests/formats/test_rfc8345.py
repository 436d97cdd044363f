"""Networks that are written and read back, as YANG data and as tables."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from teal.formats import load_topology, load_traffic, save_topology
from teal.formats.rfc8345 import ROOT, to_rfc8345
from teal.network import Topology
from teal.testing import make_topology


@pytest.mark.parametrize("name", ["net.rfc8345.json", "net.csv", "net.json"])
def test_what_is_written_is_read_back(tmp_path: Path, name: str) -> None:
    topology = make_topology(
        [(0, 1, 10), (1, 0, 10), (1, 2, 2.5), (2, 1, 2.5), (2, 1, 2.5), (1, 2, 2.5)], latency=3.25
    )
    topology = Topology(**{**vars(topology), "metric": np.array([1, 2, 3, 4, 5, 6])})
    save_topology(tmp_path / name, topology)
    again = load_topology(str(tmp_path / name))
    assert again.node_names == topology.node_names
    for field in ("link_source", "link_target", "capacity", "latency", "metric"):
        np.testing.assert_allclose(getattr(again, field), getattr(topology, field), rtol=1e-6)


def test_a_table_of_demands_without_times_is_one_matrix(tmp_path: Path) -> None:
    file = tmp_path / "demands.csv"
    file.write_text("source,target,rate\nn0,n1,3\nn1,n2,4\n", encoding="utf-8")
    traffic = load_traffic(str(file), make_topology([(0, 1, 10), (1, 2, 10)], both=True))
    assert traffic.num_matrices == 1
    assert traffic.read([0]).tolist() == [[3, 4]]


_MODULES = {
    "ietf-inet-types": "import",
    "ietf-yang-types": "import",
    "ietf-network": "implement",
    "ietf-network-topology": "implement",
}


def test_what_is_written_is_valid_for_the_models_of_rfc_8345() -> None:
    """By yangson, over the modules that pyang brings, which are those of RFC 8345: without the L3
    and TE attributes."""
    yangson = pytest.importorskip(
        "yangson", reason="pip install yangson pyang to validate against the YANG modules"
    )
    folder = Path(sys.prefix) / "share" / "yang" / "modules" / "ietf"
    if not (folder / "ietf-network-topology.yang").exists():
        pytest.skip("pip install pyang, which brings the YANG modules")
    library = [
        {
            "name": name,
            "revision": "",
            "conformance-type": kind,
            "namespace": f"urn:ietf:params:xml:ns:yang:{name}",
        }
        for name, kind in _MODULES.items()
    ]
    for module in library:
        text = (folder / f"{module['name']}.yang").read_text()
        module["revision"] = re.findall(r"revision\s+\"?(\d{4}-\d\d-\d\d)", text)[0]
    yang_library = {"ietf-yang-library:modules-state": {"module-set-id": "1", "module": library}}
    model = yangson.DataModel(json.dumps(yang_library), [str(folder)])
    topology = make_topology([(0, 1, 10), (1, 2, 2.5), (1, 2, 2.5)], both=True)
    document = _without_augmentations(to_rfc8345(topology))
    model.from_raw(document).validate()
    del document[ROOT]["network"][0]["ietf-network-topology:link"][0]["link-id"]
    with pytest.raises(yangson.exceptions.SchemaError):
        model.from_raw(document).validate()


def _without_augmentations(value: Any) -> Any:
    """A document without members of modules that pyang does not bring (RFC 8346, RFC 8795)."""
    if isinstance(value, dict):
        kept = {
            name: one
            for name, one in value.items()
            if ":" not in name or name.split(":")[0] in _MODULES
        }
        return {name: _without_augmentations(one) for name, one in kept.items()}
    return [_without_augmentations(one) for one in value] if isinstance(value, list) else value
