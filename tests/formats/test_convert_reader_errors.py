"""Readers of files that are cut, changed and mixed up: a network or traffic, or one line that names
the file.

Each right file loses a field, gets a null, a number, a list or a text in the place of a part, or
has two parts in the place of each other, as files of other versions and programs do.  No change may
end in anything but an InputError.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("teal_ip", reason="needs the package teal_ip")

import teal
from teal.errors import InputError
from teal_ip.counters.flow_records import Prefixes, load_flows
from teal_ip.readings.files import load_counters

CASES = Path(__file__).parents[1] / "cases"
CHANGES_OF_EACH = 150
_ODD: tuple[Any, ...] = (
    None,
    "",
    "x",
    0,
    -1,
    1e400,
    [],
    {},
    [None],
    {"a": None},
    True,
    "\u202e",
    "9" * 400,
)
NETWORKS = [
    "isis-overload-bit/net.json",
    "ospf-maxage/net.json",
    "ospf-vrf-all/net.json",
    "rfc8795-oper-down/net.json",
    "restconf-one-network/net.json",
    "disconnected/net.json",
    "bgpls-exabgp-isis-pseudonode/net.jsonl",
    "bgpls-max-metric/net.jsonl",
    "graphml-metric/net.graphml",
    "decimal-comma-capacity/net.csv",
    "attributes-on-repetita/n.graph",
    "node-called-NA-link-table/net.csv",
]


def _read_or_refusal(read: Callable[[], Any], file: Path) -> Any:
    """What a reader returns; None where it refuses the file in one line that names the file or an
    option."""
    try:
        return read()
    except InputError as error:
        refusal = str(error)
    assert "\n" not in refusal
    assert any(name in refusal for name in (str(file), "--", "counters:")), refusal
    return None


def _places(part: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each part of a document."""
    inner = (
        part.items()
        if isinstance(part, dict)
        else enumerate(part)
        if isinstance(part, list)
        else ()
    )
    for key, value in inner:
        yield (*path, key)
        yield from _places(value, (*path, key))


def _parent(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        document = document[key]
    return document


def _changed(document: Any, rng: random.Random) -> Any:
    """The document with one part gone, changed, or in the place of another one."""
    document = copy.deepcopy(document)
    places = list(_places(document))
    path = rng.choice(places)
    parent = _parent(document, path)
    kind = rng.randrange(4)
    if kind == 0:
        del parent[path[-1]]
    elif kind == 1:
        parent[path[-1]] = rng.choice(_ODD)
    elif kind == 2:
        other = rng.choice(places)
        parent[path[-1]] = copy.deepcopy(_parent(document, other)[other[-1]])
    elif isinstance(parent, dict):
        parent["y"] = parent.pop(path[-1])
    else:
        parent.append(rng.choice(_ODD))
    return document


def _changed_text(text: str, rng: random.Random) -> str:
    """The text with a line, a cell or a piece gone, doubled or changed."""
    lines = text.splitlines()
    number = rng.randrange(len(lines))
    kind = rng.randrange(5)
    if kind == 0:
        del lines[number]
    elif kind == 1:
        lines[number] = lines[rng.randrange(len(lines))]
    elif kind == 2:
        separator = max(",; <", key=lines[number].count)
        cells = lines[number].split(separator)
        cells[rng.randrange(len(cells))] = str(rng.choice(_ODD))
        lines[number] = separator.join(cells)
    elif kind == 3:
        return text[: rng.randrange(len(text))]
    else:
        at = rng.randrange(len(text))
        return text[:at] + rng.choice(["\0", '"', ",", "\n", "é", "<", "]"]) + text[at:]
    return "\n".join(lines) + "\n"


def _variants(file: Path, seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    for _ in range(CHANGES_OF_EACH):
        if file.suffix == ".json":
            yield json.dumps(_changed(json.loads(text), rng))
        elif file.suffix == ".jsonl":
            number = rng.randrange(len(lines))
            changed = json.dumps(_changed(json.loads(lines[number]), rng))
            yield "\n".join([*lines[:number], changed, *lines[number + 1 :]])
        else:
            yield _changed_text(text, rng)


@pytest.mark.parametrize("name", NETWORKS)
def test_changed_networks_are_read_or_refused(name: str, tmp_path: Path) -> None:
    read = 0
    for number, text in enumerate(_variants(CASES / name, NETWORKS.index(name))):
        file = tmp_path / f"{number}{(CASES / name).suffix}"
        file.write_text(text, encoding="utf-8")
        topology = _read_or_refusal(partial(teal.load_topology, file, default_capacity=10), file)
        if topology is not None:
            read += 1
            assert (topology.capacity >= 0).all()
    assert read > 0, "some changes are harmless"


@pytest.mark.filterwarnings("ignore::teal.errors.InputWarning")
@pytest.mark.parametrize("name", ["traffic-epoch-ms/d.csv", "time-grafana-ms/d.csv"])
def test_changed_traffic_is_read_or_refused(name: str, tmp_path: Path) -> None:
    topology = teal.load_topology(CASES / name.replace("/d.csv", "/net.csv"))
    for number, text in enumerate(_variants(CASES / name, 7)):
        file = tmp_path / f"{number}.csv"
        file.write_text(text, encoding="utf-8")
        traffic = _read_or_refusal(partial(teal.load_traffic, file, topology), file)
        if traffic is not None:
            assert (traffic.read(slice(None)) >= 0).all()


@pytest.mark.parametrize(
    "name",
    [
        "semicolon-counters/c.csv",
        "counters-node-called-NA/c.csv",
        "prometheus-32-and-64-bit-together/c.json",
    ],
)
def test_changed_counters_are_read_or_refused(name: str, tmp_path: Path) -> None:
    folder = (CASES / name).parent
    topology = teal.load_topology(folder / "net.csv")
    named = folder / "i.csv"
    interfaces = named if named.is_file() else None
    for number, text in enumerate(_variants(CASES / name, 8)):
        file = tmp_path / f"{number}{(CASES / name).suffix}"
        file.write_text(text, encoding="utf-8")
        counters = _read_or_refusal(
            partial(load_counters, file, topology, interfaces=interfaces), file
        )
        if counters is not None:
            assert not (counters.sent < 0).any()


@pytest.mark.parametrize(
    "name", ["nfdump17-json-first-last/f.json", "nfdump17-default-csv-duration/f.csv"]
)
def test_changed_flow_records_are_read_or_refused(name: str, tmp_path: Path) -> None:
    folder = (CASES / name).parent
    topology = teal.load_topology(folder / "net.csv")
    prefixes = Prefixes.load(folder / "p.csv", topology)
    for number, text in enumerate(_variants(CASES / name, 9)):
        file = tmp_path / f"{number}{(CASES / name).suffix}"
        file.write_text(text, encoding="utf-8")
        flows = _read_or_refusal(
            partial(load_flows, file, topology, prefixes, interval_s=300.0), file
        )
        if flows is not None:
            assert (flows.traffic.read(slice(None)) >= 0).all()
