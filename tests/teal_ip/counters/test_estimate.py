"""`teal estimate` and `teal check` from files to files."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from teal.cli import main
from teal.errors import TealError
from teal.formats import load_topology, load_traffic
from teal.runtime.arrays import FloatArray
from teal_ip.counters.repair import Repaired, repaired_values
from teal_ip.readings.files import load_counters, save_counters


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """B4 with a history, a day to come, and its counters."""
    folder = tmp_path_factory.mktemp("counters")
    for name, seed, count in (("history", 1, 80), ("today", 2, 12)):
        out = str(folder / f"{name}.npz")
        gravity = f"gravity:seed={seed},count={count},load=0.5"
        assert (
            main(["traffic", "generate", "--topology", "b4", "--traffic", gravity, "--out", out])
            == 0
        )
    counters = ["--counters", str(folder / "counters.npz")]
    assert (
        main(["simulate", "--topology", "b4", "--traffic", str(folder / "today.npz"), *counters])
        == 0
    )
    return folder


def _common(folder: Path) -> list[str]:
    return [
        "--topology",
        "b4",
        "--counters",
        str(folder / "counters.npz"),
        "--history",
        str(folder / "history.npz"),
    ]


def test_estimates_are_matrices_that_other_commands_take(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, truth = folder / "estimate", str(folder / "today.npz")
    assert main(["estimate", *_common(folder), "--truth", truth, "--out", str(out)]) == 0
    assert "error (NMAE)" in capsys.readouterr().out
    with (out / "estimate.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 12
    assert {row["prior"] for row in rows} == {"history"}
    assert all(float(row["unexplained"]) < 0.05 for row in rows)
    with np.load(out / "intervals.npz") as stored:
        assert (stored["lower"] <= stored["upper"]).all()
        real = load_traffic(truth, load_topology("b4")).read(slice(None))
        volume = np.where((stored["lower"] <= real) & (real <= stored["upper"]), real, 0).sum(
            1
        ) / real.sum(1)
    np.testing.assert_allclose([float(row["covered_volume"]) for row in rows], volume, rtol=1e-4)
    assert "<html" in (out / "estimate.html").read_text()
    matrices = str(out / "matrices.npz")
    network = ["--topology", "b4", "--objective", "max_link_utilisation"]
    assert main(["solve", *network, "--traffic", matrices]) == 0
    hedges = ["--split", "all", "--scheme", "last", "--known", matrices, "--lead", "0"]
    assert (
        main(
            ["next-interval", *network, "--traffic", truth, *hedges, "--out", str(folder / "next")]
        )
        == 0
    )
    twice = [*hedges[:-2], "--lead", "0", "--topology", "b4"]
    assert main(
        ["next-interval", *network, "--traffic", truth, *twice, "--out", str(folder / "n2")]
    ) in (0, 2)
    capsys.readouterr()
    assert main(["estimate", *_common(folder)[:4], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["error"] is None


def test_a_check_names_what_is_wrong_and_its_exit_code_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    today = ["--traffic", str(folder / "today.npz")]
    assert main(["check", *_common(folder), *today]) == 0
    assert "no alarm" in capsys.readouterr().out
    topology = load_topology("b4")
    counters = load_counters(folder / "counters.npz", topology)
    counters.sent[:, 3] *= 0.3
    counters.received[:, 5] = 0.0
    counters.sent[:, 5] = 0.0
    save_counters(folder / "wrong.npz", counters)
    wrong = _common(folder)
    wrong[3] = str(folder / "wrong.npz")
    out = folder / "check.csv"
    assert main(["check", *wrong, *today, "--out", str(out)]) in (0, 4)
    with out.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    names = topology.link_names()
    assert all(f"counter sent of {names[3]}" in row["suspects"] for row in rows)
    assert all(f"link {names[5]}: carries nothing" in row["suspects"] for row in rows)
    capsys.readouterr()
    bytes_for_bits = ["--traffic-unit", "Mbit/s", "--json"]
    assert main(["check", *_common(folder), *today, *bytes_for_bits]) == 4
    found = json.loads(capsys.readouterr().out)
    assert found["alarms"] == 12
    assert "too large" in found["intervals"][0]["unit"]


def test_flow_records_are_measured_demands(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = load_topology("b4").node_names
    prefixes, flows = folder / "prefixes.csv", folder / "flows.json"
    prefixes.write_text(
        "prefix,router\n" + "".join(f"10.{n}.0.0/16,{name}\n" for n, name in enumerate(names))
    )
    record = {
        "ip_src": "10.0.0.1",
        "ip_dst": "10.1.0.1",
        "bytes": 10**9,
        "stamp_inserted": "2024-01-01 00:00:00",
    }
    flows.write_text(json.dumps(record) + "\n")
    arguments = [
        "estimate",
        *_common(folder),
        "--flows",
        str(flows),
        "--prefixes",
        str(prefixes),
        "--json",
    ]
    assert main([*arguments, "--sampling", "100"]) == 0
    record["stamp_inserted"] = "2030-01-01 00:00:00"
    flows.write_text(json.dumps(record) + "\n")
    capsys.readouterr()
    assert main(arguments) == 2
    assert "no time is one of the counters" in capsys.readouterr().err


def test_matrices_with_the_other_labels_raise_no_alarm_or_the_labels_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counters = load_counters(folder / "counters.npz", load_topology("b4"))
    step = np.timedelta64(round(counters.interval_s), "s")
    save_counters(
        folder / "ends.npz", dataclasses.replace(counters, timestamps=counters.timestamps + step)
    )
    given = [
        "--topology",
        "b4",
        "--counters",
        str(folder / "ends.npz"),
        "--history",
        str(folder / "history.npz"),
    ]
    today = str(folder / "today.npz")
    assert main(["check", *given, "--traffic", today, "--json"]) == 4
    shown = capsys.readouterr()
    assert "--labels start?" in shown.err
    alarmed = [one for one in json.loads(shown.out)["intervals"] if one["alarm"]]
    assert all("--labels start?" in one["suspects"] for one in alarmed)
    assert main(["check", *given, "--traffic", today, "--labels", "start"]) == 0
    assert main(["estimate", *given, "--truth", today]) == 0
    shown = capsys.readouterr()
    assert "--labels start?" in shown.err
    assert "(end of the intervals)" in shown.out
    assert main(["estimate", *given, "--truth", today, "--labels", "start", "--json"]) == 0
    shown = capsys.readouterr()
    assert "--labels" not in shown.err
    result = json.loads(shown.out)
    assert result["labels"] == "start"
    assert result["intervals"][0]["timestamp"] == str(counters.timestamps[0])


def test_no_traffic_is_invented_at_a_router_without_external_interfaces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Demands a-b of 4, b-c of 2 and c-a of 1 Gbit/s cross the inner router m of a star."""
    loads = {
        ("a", "m"): 4.0,
        ("m", "b"): 4.0,
        ("b", "m"): 2.0,
        ("m", "c"): 2.0,
        ("c", "m"): 1.0,
        ("m", "a"): 1.0,
    }
    (tmp_path / "net.csv").write_text("source,target,capacity\na,m,10\nb,m,10\nc,m,10\n")
    cells = [(a, b, "out", rate) for (a, b), rate in loads.items()]
    cells += [(b, a, "in", rate) for (a, b), rate in loads.items()]
    cells += [("a", "lan", "in", 4), ("b", "lan", "in", 2), ("c", "lan", "in", 1)]
    cells += [("a", "lan", "out", 1), ("b", "lan", "out", 4), ("c", "lan", "out", 2)]
    rows = [
        f"{1_704_067_200 + 300 * i},{','.join(map(str, cell))}" for i in range(3) for cell in cells
    ]
    (tmp_path / "counters.csv").write_text(
        "\n".join(["time,router,interface,direction,rate", *rows])
    )
    given = ["--topology", str(tmp_path / "net.csv"), "--counters", str(tmp_path / "counters.csv")]
    assert main(["estimate", *given, "--out", str(tmp_path / "out")]) == 0
    assert "no traffic of their own" in capsys.readouterr().err
    topology = load_topology(str(tmp_path / "net.csv"))
    traffic = load_traffic(str(tmp_path / "out" / "matrices.npz"), topology)
    is_of_m = (traffic.pairs == topology.node_index()["m"]).any(1)
    matrices = traffic.read(slice(None))
    assert matrices[:, is_of_m].sum() <= 1e-3 * matrices.sum()
    np.testing.assert_allclose(matrices.sum(1), 7.0, rtol=0.02)


@pytest.mark.parametrize("ends_by", ["signal", "fault"])
def test_intervals_are_written_as_they_come_and_kept_when_the_run_ends_early(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_by: str
) -> None:
    called: list[int] = []

    def believe_four(*arguments: Any) -> tuple[FloatArray, Repaired]:
        called.append(1)
        if len(called) == 4 and ends_by == "signal":
            os.kill(os.getpid(), signal.SIGINT)
        if len(called) == 4 and ends_by == "fault":
            raise TealError("a fault")
        return repaired_values(*arguments)

    monkeypatch.setattr("teal_ip.counters.estimate.repaired_values", believe_four)
    if ends_by == "fault":
        monkeypatch.setattr("teal_ip.counters.estimate._MIN_SAVE_INTERVAL_S", 0.0)
        monkeypatch.setattr("teal_ip.counters.estimate._MAX_SAVE_SHARE", float("inf"))
    assert main(["estimate", *_common(folder), "--out", str(tmp_path / "out")]) == (
        130 if ends_by == "signal" else 1
    )
    done = 4 if ends_by == "signal" else 3
    with (tmp_path / "out" / "estimate.csv").open(newline="") as stream:
        assert len(list(csv.DictReader(stream))) == done
    topology = load_topology("b4")
    assert load_traffic(str(tmp_path / "out" / "matrices.npz"), topology).num_matrices == done
    with np.load(tmp_path / "out" / "intervals.npz") as stored:
        assert len(stored["lower"]) == done


def test_faults_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "--topology", "b4", "--counters", str(folder / "none.npz")]) == 2
    assert (
        main(["check", *_common(folder), "--traffic", str(folder / "history.npz"), "--window", "0"])
        == 2
    )
    assert main(["estimate", *_common(folder), "--level", "2"]) == 2
    assert "level" in capsys.readouterr().err


def test_a_check_lists_each_interface_of_which_a_counter_is_wrong(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sends too little throughout, one counts half in both directions for a quarter of the
    day."""
    topology = load_topology("b4")
    counters, names = load_counters(folder / "counters.npz", topology), topology.node_names
    (forth, back), (other, _) = topology.link_pairs()[3], topology.link_pairs()[5]
    counters.sent[:, other] *= 0.3
    counters.sent[:3, forth] *= 0.5
    counters.received[:3, back] *= 0.5
    save_counters(folder / "two.npz", counters)
    words = _common(folder)
    words[3] = str(folder / "two.npz")
    capsys.readouterr()
    assert main(["check", *words, "--traffic", str(folder / "today.npz"), "--json"]) in (0, 4)
    rows = json.loads(capsys.readouterr().out)["counters"]
    found = [(row["router"], row["interface"], row["kind"], row["share"]) for row in rows]
    ends = topology.link_source, topology.link_target
    assert found == [
        (names[ends[0][other]], names[ends[1][other]], "sent", 1.0),
        (names[ends[0][forth]], names[ends[1][forth]], "sent and received", 0.25),
    ]
    assert [row["ratio"] for row in rows] == pytest.approx([0.3, 0.5], rel=0.05)


def test_links_that_carry_nothing_raise_no_warning_beside_the_truth(folder: Path) -> None:
    """Warnings are errors in tests: nothing is divided by a counter of 0."""
    counters = load_counters(folder / "counters.npz", load_topology("b4"))
    counters.sent[:, 5] = counters.received[:, 5] = 0.0
    save_counters(folder / "silent.npz", counters)
    words = [
        "--topology",
        "b4",
        "--counters",
        str(folder / "silent.npz"),
        "--truth",
        str(folder / "today.npz"),
    ]
    assert main(["estimate", *words]) == 0
    for rates in (counters.sent, counters.received, counters.ingress, counters.egress):
        rates[:] = 0.0
    save_counters(folder / "silent.npz", counters)
    assert main(["estimate", *words]) == 0
