"""An engineer's first afternoon: an ISP's files through one command, against the traffic behind the
counters."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import teal
from teal.cli import main
from teal_ip.routing.settings import SimulateConfig
from teal_ip.routing.simulate_command import run_simulate
from tests import isp

pytestmark = pytest.mark.system
GIVEN = ["--topology", "links.csv", "--routers", "routers.csv"]
COUNTERS = [
    "--counters",
    "counters.csv",
    "--interfaces",
    "interfaces.csv",
    "--ignore-interfaces",
    r"lo\d+|Loopback\d+",
    "--counter-error",
    "0.02",
]


def test_from_files_to_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made = isp.write(tmp_path)

    # One command; what it prints first is true of the traffic that nobody gave to it.
    words = [
        "survey",
        *GIVEN,
        *COUNTERS,
        "--growth-per-year",
        "0.3",
        "--horizon",
        "1y",
        "--max-utilisation",
        "0.8",
    ]
    assert main([*words, "--deadline", "2s", "--out", "survey"]) == 0
    printed = capsys.readouterr().out
    truth = run_simulate(
        SimulateConfig(
            topology="links.csv",
            routers=Path("routers.csv"),
            traffic="truth.csv",
            failures=("cables",),
        ),
        lambda _: None,
    )
    utilisation = (made.load / made.topology.capacity).max(0)
    fullest = made.topology.link_names()[int(utilisation.argmax())]
    assert f"The most utilised link without failure is {fullest}, at" in printed
    found = [float(text) for text in re.findall(r"(\d+\.\d+)% of its capacity\.", printed)]
    assert found == [pytest.approx(100 * utilisation.max(), abs=0.5)]
    # Loads under failures depend on single demands, which counters do not tell apart
    # (docs/counters.md).
    worst = truth.failures[0]
    assert f"that of {worst.failure}: it fills {worst.busiest} to" in printed
    found = [float(text) for text in re.findall(r"it fills \S+ to (\d+\.\d+)%", printed)]
    assert found == [pytest.approx(100 * worst.utilisation, abs=0.5)]
    assert (tmp_path / "survey" / "survey.html").stat().st_size > 10_000

    # The matrices, which no history helped with, by name.
    topology = teal.load_topology("links.csv", routers="routers.csv")
    assert (
        isp.error(made, topology, teal.load_traffic("survey/estimate/matrices.npz", topology))
        <= 0.3
    )

    # Configuration: policies for IOS-XR and Junos by each router's vendor, metrics with real
    # interface names.
    routed = [*GIVEN, "--traffic", "survey/estimate/matrices.npz", "--index", "83", "--quiet"]
    lists = [
        "segments",
        *routed,
        "--objective",
        "max_link_utilisation",
        "--one-list",
        "--target-utilisation",
        "0.5",
    ]
    assert main([*lists, "--out", "policies.json"]) == 0
    export = ["export", *GIVEN, "--policies", "policies.json"]
    assert main([*export, "--out", "policies.conf"]) == 0
    text = (tmp_path / "policies.conf").read_text()
    heads = re.findall(r"^[!#] (\w+)$", text, re.M)
    assert heads
    with open("routers.csv", encoding="utf-8") as stream:
        vendor = {row["name"]: row["vendor"] for row in csv.DictReader(stream)}
    for head, part in zip(heads, re.split(r"^[!#] \w+$", text, flags=re.M)[1:], strict=True):
        assert ("set protocols" in part) == (vendor[head] == "junos")
    assert (
        main(
            [
                "metrics",
                *routed,
                "--at-most",
                "2",
                "--deadline",
                "2s",
                "--out",
                "metrics.json",
            ]
        )
        == 0
    )
    metrics = ["export", *GIVEN, "--metrics", "metrics.json", "--interfaces", "interfaces.csv"]
    assert main([*metrics, "--out", "metrics.conf"]) == 0
    named = re.findall(r"^interface (\S+)$", (tmp_path / "metrics.conf").read_text(), re.M)
    assert named
    assert set(named) <= set(made.names)

    # The same policies for FRR, which loads them.
    (tmp_path / "frr.csv").write_text(
        (tmp_path / "routers.csv").read_text().replace("junos", "frr").replace("iosxr", "frr")
    )
    frr = [word if word != "routers.csv" else "frr.csv" for word in export]
    assert main([*frr, "--out", "frr.conf"]) == 0
    if shutil.which("vtysh") is not None:
        done = subprocess.run(
            ["vtysh", "-C", "--inputfile", "frr.conf"], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, "")
