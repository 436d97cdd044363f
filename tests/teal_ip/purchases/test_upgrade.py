"""`teal upgrade` from files to files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import teal
import teal_ip
from teal.cli import main
from teal.formats import load_topology
from teal.network.ecmp import igp_metric

B4 = [
    "--topology",
    "b4",
    "--traffic",
    "gravity:seed=0,count=6,load=0.8",
    "--path-method",
    "survivable",
]


@pytest.mark.slow
def test_a_plan_is_certified_and_its_network_carries_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan"
    assert (
        main(["upgrade", *B4, "--growth", "1.5", "--matrices", "3", "--out", str(out), "--json"])
        == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert 0 < said["bound"] <= said["cost"] * (1 + 1e-9)
    assert said["gap"] <= 0.01
    assert said["largest_utilisation"] <= 1 + 1e-9
    with (out / "purchases.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert sum(float(row["cost"]) for row in rows) == pytest.approx(said["cost"])
    before, after = load_topology("b4"), load_topology(str(out / "topology.json"))
    bought = (after.capacity - before.capacity).sum()
    assert bought == pytest.approx(2 * sum(float(row["bought"]) for row in rows)), "both directions"
    page = (out / "upgrade.html").read_text()
    assert "<html" in page
    for case in range(
        3
    ):  # what is bought, before, with the purchase: the page looks for CASE/SCHEME
        assert f'"{case}/0"' in page
    modules = ["--modules", "100,400=300", "--failures", "none"]
    assert main(["upgrade", *B4, "--growth", "3", "--matrices", "2", *modules]) == 0
    assert "in any amounts" in capsys.readouterr().out


def test_costs_of_a_file_and_of_lengths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topology, path = load_topology("b4"), tmp_path / "cost.csv"
    names = topology.node_names
    ends = [
        (names[topology.link_source[c[0]]], names[topology.link_target[c[0]]])
        for c in topology.cables()
    ]
    path.write_text(
        "source,target,cost\n" + "".join(f"{a},{b},{n + 1}\n" for n, (a, b) in enumerate(ends))
    )
    assert main(["upgrade", *B4, "--growth", "2", "--matrices", "1", "--cost", str(path)]) == 0
    assert main(["upgrade", *B4, "--growth", "2", "--matrices", "1", "--cost", "length"]) == 0
    capsys.readouterr()
    path.write_text("source,target,cost\n" + f"{ends[0][0]},{ends[0][1]},-1\n")
    assert main(["upgrade", *B4, "--cost", str(path)]) == 2
    assert "above 0" in capsys.readouterr().err
    path.write_text("source,target,cost\n" + f"{ends[0][0]},{ends[0][1]},1\n")
    assert main(["upgrade", *B4, "--cost", str(path)]) == 2
    assert "every cable" in capsys.readouterr().err
    assert main(["upgrade", *B4, "--modules", "big"]) == 2
    assert main(["upgrade", *B4, "--growth", "0"]) == 2


@pytest.mark.slow
def test_new_cables_are_bought_where_they_are_cheaper_and_no_more_than_there_may_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = ["upgrade", *B4, "--growth", "2", "--matrices", "2", "--json"]
    assert main(plain) == 0
    without = json.loads(capsys.readouterr().out)
    path, out = tmp_path / "new.csv", tmp_path / "plan"
    path.write_text("source,target,latency,cost,most\n1,12,5,0.01,40\n")
    assert main([*plain, "--candidates", str(path), "--out", str(out)]) == 0
    with_new = json.loads(capsys.readouterr().out)
    assert with_new["cost"] < without["cost"]
    new = [one for one in with_new["purchases"] if {one["source"], one["target"]} == {"1", "12"}]
    assert new[0]["capacity"] == 0
    assert 0 < new[0]["bought"] <= 40
    assert load_topology(str(out / "topology.json")).num_links == load_topology("b4").num_links + 2
    path.write_text("source,target,latency\n1,2,5\n")
    assert main([*plain, "--candidates", str(path)]) == 2
    assert "is no new cable" in capsys.readouterr().err


def test_purchases_by_quarter_and_when_links_are_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan"
    time = ["--growth-per-year", "0.5", "--horizon", "1y", "--modules", "50,200=150"]
    assert (
        main(
            [
                "upgrade",
                *B4,
                "--growth",
                "1.6",
                "--matrices",
                "2",
                *time,
                "--out",
                str(out),
                "--json",
            ]
        )
        == 0
    )
    said = json.loads(capsys.readouterr().out)
    costs = [one["cost"] for one in said["quarters"]]
    assert costs == sorted(costs)
    assert len(costs) == 4
    assert sum(one["cost"] for one in said["purchases"]) == pytest.approx(costs[-1])
    assert all(one["utilisation"] <= 1 + 1e-6 for one in said["quarters"])
    full = [one for one in said["forecasts"] if one["full_under_failure"]]
    assert full[0]["failed_utilisation"] >= full[0]["utilisation"]
    assert (out / "forecast.csv").is_file()


def test_hose_beside_pipe_and_what_would_be_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    hose = ["--demands", "hose", "--failures", "none", "--replay", "0.34", "--certify"]
    assert main(["upgrade", *B4, "--growth", "2", *hose, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    by_name = {one["demands"]: one for one in said["alternatives"]}
    assert set(by_name) == {"hose", "pipe"}
    assert all(0 <= one["dropped"] <= 1 for one in by_name.values())
    assert said["worst_demands_found"] <= 1.01
    assert said["worst_demands_limit"] >= said["worst_demands_found"] * (1 - 5e-3)


def test_the_igps_loads_need_what_simulate_shows(capsys: pytest.CaptureFixture[str]) -> None:
    igp = ["--growth", "3", "--matrices", "1", "--routing", "ecmp", "--failures", "none"]
    assert main(["upgrade", *B4, *igp, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["cost"] == said["bound"]
    topology = load_topology("b4")
    dag = teal.EcmpDag.of(topology, igp_metric(topology, "file"))
    traffic = teal.load_traffic("gravity:seed=0,count=6,load=0.8", topology)
    rows = teal_ip.ecmp_measurements(dag, traffic.pairs)
    load = (rows @ (3 * traffic.read(np.arange(6)).T))[: topology.num_links].max(1)
    missing = np.maximum(0, load - topology.capacity)
    by_cable = [max(missing[links]) for links in topology.cables()]
    assert said["cost"] == pytest.approx(sum(by_cable), rel=1e-9)


@pytest.mark.parametrize(
    "step",
    [
        "expand_in_modules",
        "bound_over_all_paths",
        "_link_utilisations",
        "forecasts",
        "alternative",
        "curve",
    ],
)
def test_what_fails_after_the_search_leaves_the_plan(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("shapes")

    monkeypatch.setattr(f"teal_ip.purchases.search.{step}", fail)
    asked = [
        "--growth",
        "3",
        "--matrices",
        "1",
        "--failures",
        "none",
        "--modules",
        "50",
        "--replay",
        "0.5",
        "--curve",
    ]
    arguments = [
        "upgrade",
        *B4,
        *asked,
        "--growth-per-year",
        "0.5",
        "--out",
        str(tmp_path),
        "--json",
    ]
    assert main(arguments) == 1
    said = json.loads(capsys.readouterr().out)
    assert [one.endswith("failed: ValueError: shapes") for one in said["failed"]] == [True]
    with (tmp_path / "purchases.csv").open(newline="") as stream:
        assert sum(float(row["cost"]) for row in csv.DictReader(stream)) == pytest.approx(
            said["cost"]
        )
    assert said["cost"] > 0
    assert (tmp_path / "upgrade.html").is_file()


def test_a_growth_that_cannot_be_told_is_refused_before_the_search(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        main(["upgrade", *B4, "--growth", "2", "--matrices", "1", "--growth-per-year", "fit"]) == 2
    )
    assert "round" not in capsys.readouterr().err


def _link(folder: Path, capacities: list[float], rate: float) -> list[str]:
    """Options of a network of two nodes with parallel links and one demand, without failures."""
    rows = "".join(f"a,b,{one},1\n" for one in capacities)
    (folder / "net.csv").write_text("source,target,capacity,metric\n" + rows)
    (folder / "rates.csv").write_text(f"source,target,rate\na,b,{rate}\n")
    return [
        "--topology",
        str(folder / "net.csv"),
        "--traffic",
        str(folder / "rates.csv"),
        "--failures",
        "none",
    ]


@pytest.mark.parametrize("routing", ["optimal", "ecmp"])
def test_lists_by_quarter_name_every_module_and_sum_up_to_the_plan(
    routing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """10 Gbit/s are there, 701 are needed after one year, 350.5 after half a year: 691 and 341
    modules, rounded up."""
    time = [
        "--growth-per-year",
        "3",
        "--horizon",
        "1y",
        "--modules",
        "1,100=200",
        "--routing",
        routing,
    ]
    assert main(["upgrade", *_link(tmp_path, [10], 701 / 4), *time, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    by = [np.ceil(701 / 4 ** (1 - quarter / 4) - 10 - 1e-9) for quarter in range(1, 5)]
    assert [one["cost"] for one in said["quarters"]] == by
    added = np.diff([0, *by])
    assert [one["cost"] for one in said["purchases"]] == added.tolist()
    assert [one["modules"] for one in said["purchases"]] == [f"{n:g} x 1" for n in added]


@pytest.mark.parametrize("options", [[], ["--modules", "3"], ["--routing", "ecmp"]])
def test_what_is_bought_on_parallel_links_is_paid_on_each(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """30 Gbit/s over two links of 10 need 10 more, or four modules of 3; the new network has as
    much as is paid."""
    arguments = [
        "upgrade",
        *_link(tmp_path, [10, 10], 30),
        *options,
        "--out",
        str(tmp_path / "plan"),
        "--json",
    ]
    assert main(arguments) == 0
    said = json.loads(capsys.readouterr().out)
    cost = 12 if "--modules" in options else 10
    assert said["cost"] == pytest.approx(cost)
    assert said["bound"] == pytest.approx(cost)
    assert [(one["capacity"], one["bought"], one["cost"]) for one in said["purchases"]] == [
        (20, pytest.approx(cost), pytest.approx(cost))
    ]
    assert load_topology(str(tmp_path / "plan" / "topology.json")).capacity.sum() == pytest.approx(
        2 * (20 + cost)
    )
