"""The laboratory on six routers: loads against predictions, losses, a cut, faults, and no trace
left."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import teal
import teal_ip
from deploy.lab import network
from deploy.lab.__main__ import main
from deploy.lab.experiment import Experiment, Settings, leftovers
from deploy.lab.monitoring import check_programs
from deploy.lab.network import Lab, LabError, check_machine, down
from teal.formats import load_topology, save_topology
from teal.testing import make_topology

ROOT = Path(__file__).parents[2]
try:
    check_machine()
    MISSING = ""
except LabError as error:
    MISSING = str(error)

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(bool(MISSING), reason=MISSING),
    pytest.mark.xdist_group("lab"),
]


def _six(path: Path) -> str:
    """Two ways of three links between two sites, and a chord: enough for the IGP to crowd one of
    them."""
    ends = [(0, 1), (1, 2), (2, 5), (0, 3), (3, 4), (4, 5), (1, 4)]
    topology = make_topology([(a, b, 10.0) for a, b in ends], both=True)
    save_topology(path, topology)
    return str(path)


def test_the_loop_on_six_routers(tmp_path: Path) -> None:
    settings = Settings(_six(tmp_path / "six.json"), window=8.0, interval=2.5)
    said: list[str] = []
    run = Experiment(settings, said.append)
    figures = run.run()
    assert figures["teal"]["links"] > 8
    assert figures["teal"]["mean_error"] < 0.05, "measured loads are the predicted ones"
    assert figures["teal"]["largest_utilisation"] < figures["igp"]["largest_utilisation"]
    assert figures["teal"]["over_optimum"] < 1.1
    assert figures["updates"]["lost_packets"] == 0
    assert figures["updates"]["sent_packets"] > 1000
    assert figures["cut"]["splits_in_force_s"] is not None
    assert figures["falsified"]["noticed"] == figures["falsified"]["intervals"] > 0
    assert figures["falsified"]["allocations_made_from_them"] == 0
    assert figures["killed"]["lost_packets"] == 0
    assert not list(leftovers())


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "deploy.lab",
            "run",
            "--topology",
            _six(tmp_path / "six.json"),
            "--out",
            str(tmp_path),
        ],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + 120
        while not (network.STATE / "traffic.pid").exists() and time.monotonic() < end:
            time.sleep(0.1)
        assert (network.STATE / "traffic.pid").exists()
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert list(leftovers())
    down()
    assert not list(leftovers())
    assert not network.STATE.exists()
    assert main(["cut", "0", "1"]) == 1, "no laboratory is up"


def test_the_database_of_the_routers_is_the_topology(tmp_path: Path) -> None:
    lab = Lab(load_topology(_six(tmp_path / "six.json")), 1e-3)
    try:
        lab.up()
        lab.wait_for_routes()
        ends = zip(
            lab.topology.link_source.tolist(), lab.topology.link_target.tolist(), strict=True
        )
        wanted = {(f"10.255.0.{s + 1}", f"10.255.0.{t + 1}") for s, t in ends}
        file, end, there = (
            tmp_path / "database.json",
            time.monotonic() + 120,
            set[tuple[str, str]](),
        )
        while (
            there != wanted and time.monotonic() < end
        ):  # routes may be there before all adjacencies are
            file.write_text(json.dumps(lab.show(3, "show ipv6 ospf6 database router detail")))
            seen = load_topology(str(file), 10.0)
            ends = zip(seen.link_source.tolist(), seen.link_target.tolist(), strict=True)
            there = {(seen.node_names[s], seen.node_names[t]) for s, t in ends}
        assert there == wanted
    finally:
        down()


def test_counters_by_snmp_and_prometheus_become_the_matrix_that_was_sent(tmp_path: Path) -> None:
    try:
        check_programs()
    except LabError as error:
        pytest.skip(str(error))
    assert (
        main(
            [
                "monitor",
                "--topology",
                _six(tmp_path / "six.json"),
                "--window",
                "20",
                "--out",
                str(tmp_path),
            ]
        )
        == 0
    )
    assert not list(leftovers())
    topology = teal.load_topology(tmp_path / "topology.json")
    counters = teal_ip.load_counters(
        tmp_path / "counters.json", topology, interfaces=tmp_path / "interfaces.csv"
    )
    with (tmp_path / "sent.csv").open() as stream:
        sent = {
            (row["source"], row["target"]): float(row["rate"]) for row in csv.DictReader(stream)
        }
    assert len(counters.sent) >= 3
    total = sum(sent.values())
    assert np.nanmean(counters.ingress, 0).sum() == pytest.approx(total, rel=0.03), (
        "all that hosts send"
    )
    assert np.nanmean(counters.egress, 0).sum() == pytest.approx(total, rel=0.03)
    dag = teal.EcmpDag.of(topology, np.asarray(topology.metric))
    pairs = np.array([[topology.node_index()[name] for name in pair] for pair in sent])
    predicted = (teal_ip.ecmp_measurements(dag, pairs) @ np.array(list(sent.values())))[
        : topology.num_links
    ]
    relative = np.abs(np.nanmean(counters.sent, 0) - predicted).sum() / predicted.sum()
    assert relative < 0.15, "hashes divide flows unevenly"
    sent_rates, received_rates = (np.nanmean(one, 0) for one in (counters.sent, counters.received))
    # Both ends of a link are read at different moments, up to a poll apart in a window of ten polls.
    apart = np.abs(sent_rates - received_rates)
    assert apart.sum() < 0.05 * sent_rates.sum(), "both ends of all links"
    assert (apart < 0.2 * sent_rates).all(), "both ends of each link"
