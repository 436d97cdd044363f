"""A format that this file alone knows: read, written, converted and named in messages as any
other."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from teal.cli import main
from teal.errors import InputError
from teal.formats import left_out_of, load_topology, save_topology
from teal.formats import topology_formats as formats
from teal.formats.records import Attributes
from teal.formats.topology_formats import TopologyFormat, register_topology_format
from teal.network import Topology
from teal.testing import make_topology


def _read(path: Path, default_capacity: float | None, _: Attributes) -> Topology:
    """A link a line: ``0 1 10``; a capacity may be missing."""
    links = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        source, target, *capacity = line.split()
        if not capacity and default_capacity is None:
            raise InputError(
                str(path), f"line {number}", "a capacity, or --default-capacity", "none"
            )
        links.append(
            (int(source), int(target), float(capacity[0]) if capacity else default_capacity or 0.0)
        )
    return make_topology(links)


def _write(topology: Topology) -> str:
    rows = zip(topology.link_source, topology.link_target, topology.capacity, strict=True)
    return "".join(f"{s} {t} {c:g}\n" for s, t, c in rows)


@pytest.fixture(autouse=True)
def _pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats._FORMATS, "_registered", dict(formats._FORMATS._registered))
    register_topology_format(
        "pairs",
        TopologyFormat((".pairs", ".json.pairs"), _read, _write, False, lambda _: ["latencies"]),
    )


def test_a_format_of_its_own_is_read_written_and_converted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "net.pairs"
    file.write_text("0 1 10\n1 2\n2 0 5\n")
    assert load_topology(file, default_capacity=7.0).capacity.tolist() == [10.0, 7.0, 5.0]
    with pytest.raises(InputError, match=r"line 2: expected a capacity"):
        load_topology(file)
    topology = load_topology(file, default_capacity=7.0)
    save_topology(tmp_path / "again.json.pairs", topology)
    assert (tmp_path / "again.json.pairs").read_text() == "0 1 10\n1 2 7\n2 0 5\n"
    assert left_out_of(tmp_path / "x.pairs", topology) == ["latencies"]
    with pytest.raises(
        InputError,
        match=r"1 failed links .*a \.clab\.yml, \.clab\.yaml, \.json, \.rfc8345\.json, \.csv file",
    ):
        save_topology(tmp_path / "failed.pairs", topology.with_failed_links([1]))
    convert = (
        f"topology convert --topology {file} --default-capacity 7 --out {tmp_path / 'net.json'}"
    )
    assert main(convert.split()) == 0
    np.testing.assert_array_equal(load_topology(tmp_path / "net.json").capacity, topology.capacity)
    assert (
        main(
            f"topology convert --topology {tmp_path / 'net.json'} --out {tmp_path / 'back.pairs'}".split()
        )
        == 0
    )
    assert "omits latencies" in capsys.readouterr().err
    assert main(f"topology info --topology {tmp_path / 'net.pdf'}".split()) == 2
    assert ".pairs" in capsys.readouterr().err


def test_a_name_is_taken_once() -> None:
    with pytest.raises(InputError, match="another entry has the name"):
        register_topology_format("json", TopologyFormat((".json",), _read))


def test_the_longest_ending_decides(tmp_path: Path) -> None:
    topology = make_topology([(0, 1, 10.0)], both=True)
    save_topology(tmp_path / "net.rfc8345.json", topology)
    assert "ietf-network:networks" in (tmp_path / "net.rfc8345.json").read_text()
    save_topology(tmp_path / "net.json", topology)
    assert "ietf" not in (tmp_path / "net.json").read_text()


def test_what_rfc_8345_does_not_hold_is_said_and_te_metrics_it_holds(tmp_path: Path) -> None:
    """RFC 8346 has a TE metric of a link, but no administrative groups."""
    plain, file = make_topology([(0, 1, 10.0)], both=True), tmp_path / "net.rfc8345.json"
    measured = dataclasses.replace(plain, te_metric=np.array([7, 0]))
    coloured = dataclasses.replace(plain, affinities=(frozenset({"red"}), frozenset()))
    assert [left_out_of(file, one) for one in (plain, measured, coloured)] == [
        [],
        [],
        ["affinities"],
    ]
    save_topology(file, measured)
    again = load_topology(file)
    assert again.te_metric is not None
    assert again.te_metric.tolist() == [7, 0]
