"""The planner's sweep of cable failures against LP-all with each cable down and networks solved by
hand."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from teal.app.instance import Instance
from teal.cli import main
from teal.formats.rows import read_csv
from teal.network import Topology, TrafficMatrices, all_pairs, compute_paths
from teal.network.failures import (
    NO_FAILURE,
    cable_failures,
    failures_of,
    group_failures,
    pair_failures,
)
from teal.network.rates import ArrayRates
from teal.objectives import Objective, ObjectiveName
from teal.testing import make_topology, random_topology
from teal_study.planning.plan import FullestLinks, Outage, by_failure, loss, loss_limits, outages
from tests.free_routing import connected, least_utilisation, most_flow


def _instance(
    topology: Topology, rates: np.ndarray, objective: ObjectiveName = ObjectiveName.TOTAL_FLOW
) -> Instance:
    pairs = all_pairs(topology)
    times = np.datetime64("2024-01-01", "s") + 300 * np.arange(len(rates))
    traffic = TrafficMatrices("test", pairs, times, ArrayRates(rates), 300)
    paths = compute_paths(topology, pairs, num_paths=3, cache=False)
    return Instance(
        topology, traffic, paths, Objective(objective), None, traffic.split(), torch.device("cpu")
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "objective", [ObjectiveName.TOTAL_FLOW, ObjectiveName.MAX_LINK_UTILISATION]
)
@pytest.mark.parametrize("seed", [1, 2])
def test_value_and_bound_of_outages_bracket_the_optimum_of_free_routing(
    seed: int, objective: ObjectiveName
) -> None:
    topology = random_topology(seed)
    rates = np.random.default_rng(seed).lognormal(
        0, 1, (19, topology.num_nodes * (topology.num_nodes - 1))
    )
    rows = np.arange(19)  # one full block of 16 matrices and a partial one
    failures = [NO_FAILURE, *cable_failures(topology)[::3]]
    instance = _instance(topology, rates, objective).surviving(
        [failure.links for failure in failures]
    )
    parts = list(outages(instance, rows, 1e-3, failures))
    assert [part for part, _, _ in parts] == [
        (first, failure.name) for first in (0, 16) for failure in failures
    ]
    swept = [outage for _, block, _ in parts for outage in block]
    assert len(swept) == 19 * len(failures)
    assert {(o.index, o.failure) for o in swept} >= {(int(i), "") for i in rows}
    higher = Objective(objective).may_shed
    best = most_flow if higher else least_utilisation
    names = topology.node_names
    outage_of = {(o.index, o.failure): o for o in swept}
    for cable in topology.cables()[::3]:
        a, b = names[topology.link_source[cable[0]]], names[topology.link_target[cable[0]]]
        failed = topology.with_failed_links(topology.find_links(a, b))
        for index in (0, 17):
            (rates,), pairs = instance.traffic.read([index]), instance.traffic.pairs
            optimum = best(failed, pairs, rates)
            outage = outage_of[index, f"{a} - {b}"]
            low, high = sorted((outage.value, outage.bound_all_paths))
            assert low * (1 - 1e-6) - 1e-9 <= optimum <= high * (1 + 1e-6) + 1e-9
            assert outage.gap <= 1e-3 + 1e-9
            assert outage.status == "feasible"
            stranded = rates[~connected(failed, pairs)].sum() / rates.sum()
            assert outage.stranded == pytest.approx(float(stranded))
            low, high = sorted((outage.value_before, outage.bound_before))
            assert (
                low * (1 - 1e-6) - 1e-9 <= best(topology, pairs, rates) <= high * (1 + 1e-6) + 1e-9
            )
            if higher:
                assert loss(outage, Objective()) >= -2e-3
    finished = {part for part, _, _ in parts} - {(16, failures[2].name)}
    (remaining,) = outages(instance, rows, 1e-3, failures, finished)
    assert remaining[0] == (16, failures[2].name)
    assert [o.value for o in remaining[1]] == [
        o.value for o in {part: found for part, found, _ in parts}[remaining[0]]
    ]


def test_no_path_beyond_a_limit_of_latency_is_added() -> None:
    """Ten Gbit/s of which five fit on the only path within the limit; a longer way has room for
    all."""
    topology = make_topology([(0, 1, 5.0), (0, 2, 20.0), (2, 1, 20.0)])
    topology = dataclasses.replace(topology, latency=np.array([1.0, 20.0, 20.0]))
    pairs, times = np.array([[0, 1]], np.int32), np.array(["2026-01-01"], "datetime64[s]")
    traffic = TrafficMatrices("one", pairs, times, ArrayRates(np.array([[10.0]])), 300)
    paths = compute_paths(topology, pairs, num_paths=1, cache=False)
    free = Instance(
        topology, traffic, paths, Objective(), None, traffic.split(), torch.device("cpu")
    )
    limited = dataclasses.replace(free, max_latency=np.array([5.0]))
    for instance, expected in ((limited, 5.0), (free, 10.0)):
        ((_, (outage,), _),) = outages(instance, np.array([0]), 1e-3, [NO_FAILURE])
        assert outage.value == pytest.approx(expected, rel=1e-3)
        assert outage.bound_all_paths >= expected * (1 - 1e-6)


def test_outages_of_a_line_of_three_nodes_equal_values_computed_by_hand() -> None:
    # n0 - n1 - n2: without the first cable all demands from and to n0 are stranded.
    topology = make_topology([(0, 1, 10.0), (1, 2, 10.0)], both=True)
    instance = _instance(topology, np.array([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]))  # 01 02 10 12 20 21
    swept = [
        outage
        for _, block, _ in outages(
            instance, np.array([0]), 1e-6, [NO_FAILURE, *cable_failures(topology)]
        )
        for outage in block
    ]
    outage_of = {o.failure: o for o in swept}
    # Without failures the demands from n2, 11 Gbit/s, exceed the capacity of its link, 10 Gbit/s.
    assert outage_of[""].satisfied_demand == pytest.approx((1 + 2 + 3 + 4 + 10) / 21, abs=1e-4)
    assert outage_of["n0 - n1"].stranded == pytest.approx(11 / 21)
    assert outage_of["n0 - n1"].satisfied_demand == pytest.approx(10 / 21, abs=1e-5)
    assert outage_of["n1 - n2"].satisfied_demand == pytest.approx(4 / 21, abs=1e-5)
    worst, other = by_failure(swept, Objective())
    assert worst.failure == "n1 - n2"
    assert worst.worst == pytest.approx(1 - 4 / 20, abs=1e-4)
    assert other.mean == pytest.approx(1 - 10 / 20, abs=1e-4)


def test_a_loss_is_what_is_certain_and_the_optimum_lies_in_its_interval() -> None:
    # Two equal ways with room: no cable alone costs anything, although each solution stops 5% short
    # of the optimum.
    topology = make_topology([(0, 1, 10.0), (1, 2, 10.0), (0, 2, 10.0)], both=True)
    rates = np.random.default_rng(0).uniform(0.5, 4.0, (6, 6))
    instance = _instance(topology, rates)
    failures = [NO_FAILURE, *cable_failures(topology)]
    coarse, exact = (
        {
            (o.index, o.failure): o
            for _, part, _ in outages(instance, np.arange(6), gap, failures)
            for o in part
        }
        for gap in (5e-2, 1e-6)
    )
    objective = Objective()
    for key, outage in coarse.items():
        low, high = loss_limits(outage, objective)
        true = loss(exact[key], objective)
        assert low - 1e-5 <= true <= high + 1e-5
        assert loss(outage, objective) <= true + 1e-5, "never more than is lost"
        if key[1]:
            assert high - low <= max(1e-3, 0.1 * high) + 1e-9 or high <= 1e-3


def test_cables_that_strand_demand_rank_first_under_max_link_utilisation() -> None:
    # A triangle with a tail: without n2 - n3 the utilisation falls, because the demands of n3 are
    # stranded.
    topology = make_topology([(0, 1, 10.0), (1, 2, 10.0), (0, 2, 10.0), (2, 3, 1.0)], both=True)
    instance = _instance(topology, np.ones((1, 12)), ObjectiveName.MAX_LINK_UTILISATION)
    swept = [
        outage
        for _, block, _ in outages(
            instance, np.array([0]), 1e-4, [NO_FAILURE, *cable_failures(topology)]
        )
        for outage in block
    ]
    worst, *others = by_failure(swept, Objective(ObjectiveName.MAX_LINK_UTILISATION))
    assert worst.failure == "n2 - n3"
    assert worst.worst < 0 < worst.stranded
    assert all(cable.stranded < worst.stranded for cable in others)
    unknown = dataclasses.replace(swept[3], value=math.nan)
    assert (
        by_failure([*swept, unknown], Objective(ObjectiveName.MAX_LINK_UTILISATION))[0].failure
        == unknown.failure
    )


@pytest.mark.system
def test_plan_command_lists_the_worst_cases_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan"
    command = [
        "plan",
        "--topology",
        "b4",
        "--traffic",
        "gravity:seed=0,count=20,load=3",
        "--out",
        str(out),
    ]
    assert main([*command, "--worst", "3"]) == 0
    printed = capsys.readouterr().out
    assert "of 19 cables cause a certain loss" in printed
    assert (out / "failures.png").read_bytes().startswith(b"\x89PNG")
    rows = read_csv(out / "failures.csv", Outage)
    assert len(rows) == 20 * 20
    with (out / "failures.csv").open() as stream:
        assert list(csv.DictReader(stream).fieldnames or ()) == list(Outage.COLUMNS)
    # A journal that ends in the first block of matrices: resuming it gives the same rows.
    manifest = json.loads((out / "manifest.json").read_text())
    begun = {"settings": manifest["settings"], "inputs": manifest["inputs"], "machine": {}}
    block_rows = [vars(row) for row in rows[:48]]
    entries: list[dict[str, Any]] = [begun]
    for i in range(3):
        part, found = [0, block_rows[16 * i]["failure"]], block_rows[16 * i : 16 * i + 16]
        entries.append({"outages": {"part": part, "found": found, "peaks": {}}})
    (out / "journal.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert main(command) == 2
    assert main([*command, "--resume"]) == 0
    resumed = read_csv(out / "failures.csv", Outage)
    assert [repr(row) for row in resumed] == [repr(row) for row in rows]
    assert main([*command, "--overwrite", "--gap", "2"]) == 2
    (out / "journal.jsonl").write_text(
        "".join(json.dumps(entry) + "\n" for entry in [*entries, {"instance": {"content": "x"}}])
    )
    assert main([*command, "--resume"]) == 2
    assert "of the interrupted run" in capsys.readouterr().err


def test_groups_and_pairs_equal_the_lps_without_these_links(tmp_path: Path) -> None:
    topology = random_topology(4, 7, 0.5)
    rates = np.random.default_rng(4).lognormal(
        0, 1, (2, topology.num_nodes * (topology.num_nodes - 1))
    )
    instance = _instance(topology, rates)
    cables = cable_failures(topology)
    groups = group_failures(
        {"conduit": [*cables[0].links, *cables[2].links], "duct": list(cables[1].links)}
    )
    alone = [
        o
        for _, block, _ in outages(instance, np.arange(2), 1e-4, [NO_FAILURE, *cables])
        for o in block
    ]
    cost = {one.failure: one.mean for one in by_failure(alone, Objective())}
    pairs = pair_failures(cables, cost, 5)
    assert len(pairs) == 5
    worst = sorted(cost, key=lambda name: -cost[name])[:2]
    assert set(pairs[0].name.split(" + ")) == set(worst)
    assert len(pair_failures(cables, cost, 0)) == len(cables) * (len(cables) - 1) // 2
    swept = {
        (o.index, o.failure): o
        for _, block, _ in outages(instance, np.arange(2), 1e-4, [*groups, *pairs])
        for o in block
    }
    for failure in (*groups, *pairs):
        for index in range(2):
            optimum = most_flow(
                topology, instance.traffic.pairs, instance.traffic.read([index])[0], failure.links
            )
            outage = swept[index, failure.name]
            assert outage.kind == failure.kind
            assert outage.value <= optimum * (1 + 1e-6)
            assert outage.bound >= optimum * (1 - 1e-6)


@pytest.mark.slow
def test_the_command_sweeps_groups_and_the_worst_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "groups.csv").write_text("group,source,target\nconduit,1,2\nconduit,1,3\n")
    out = tmp_path / "plan"
    command = [
        "plan",
        "--topology",
        "b4",
        "--traffic",
        "gravity:seed=0,count=3,load=3",
        "--out",
        str(out),
    ]
    command += [
        "--groups",
        str(tmp_path / "groups.csv"),
        "--pairs",
        "--max-pairs",
        "10",
        "--worst",
        "4",
    ]
    assert main(command) == 0
    said = capsys.readouterr()
    assert "10 of 171 pairs of cables (5.85%)" in said.err
    assert "groups cause a certain loss" in said.out
    assert "pairs cause a certain loss" in said.out
    rows = read_csv(out / "failures.csv", Outage)
    assert len(rows) == 3 * (1 + 19 + 1 + 10)
    # Node 1 has these two cables alone, so that all its demand is stranded.
    assert all(row.stranded > 0 for row in rows if row.kind == "group")
    (tmp_path / "groups.csv").write_text("group,source,target\nconduit,1,12\n")
    assert main([*command, "--overwrite"]) == 2
    assert "line 2" in capsys.readouterr().err


def test_members_nodes_and_peaks_of_links_by_hand() -> None:
    # Two parallel cables n0 - n1 of 10 and 6 Gbit/s, and a way round by n2.
    topology = make_topology([(0, 1, 10.0), (0, 1, 6.0), (0, 2, 3.0), (2, 1, 3.0)], both=True)
    kinds = list(failures_of(["links", "nodes"], topology, {}))
    assert [one.kind for one in kinds] == ["link"] * 4 + ["node"] * 3
    rates = np.zeros((2, 6))
    rates[:, 0] = 9.0, 14.0  # n0 to n1
    instance = _instance(topology, rates, ObjectiveName.MAX_LINK_UTILISATION)
    instance = dataclasses.replace(
        instance, paths=compute_paths(topology, all_pairs(topology), num_paths=3, cache=False)
    )
    fullest, normal = FullestLinks.none(topology.num_links), FullestLinks.none(topology.num_links)
    for part, _, peaks in outages(instance, np.arange(2), 1e-5, [NO_FAILURE, *kinds]):
        if not part.failure:
            normal.add("", normal.increases("", peaks))
        fullest.add(part.failure, fullest.increases(part.failure, peaks))
    forth = np.flatnonzero((topology.link_source == 0) & (topology.link_target == 1))
    # Without failure 14 Gbit/s over 10 + 6 + 3; without the larger cable over 6 + 3, which is
    # worst.
    np.testing.assert_allclose(normal.utilisation[forth], 14 / 19, rtol=1e-3)
    assert fullest.utilisation[forth[1]] == pytest.approx(14 / 9, rel=1e-3)
    assert fullest.index[forth[1]] == 1
    failed = next(one for one in kinds if forth[0] in one.links)
    assert fullest.failure[forth[1]] == failed.name
    assert topology.find_links("n0", "n1#2") == list(kinds[1].links)
    assert topology.find_links("n2", "*") == sorted(kinds[-1].links)


@pytest.mark.slow
def test_the_page_names_findings_and_links(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan"
    command = [
        "plan",
        "--topology",
        "b4",
        "--traffic",
        "gravity:seed=0,count=3,load=3",
        "--out",
        str(out),
    ]
    assert (
        main([*command, "--failures", "nodes", "--objective", "max_link_utilisation", "--json"])
        == 0
    )
    printed = json.loads(capsys.readouterr().out)
    assert {one["kind"] for one in printed["failures"]} == {"node"}
    page = (out / "report.html").read_text()
    for sentence in printed["findings"]:
        assert sentence.replace(">", "&gt;") in page
    with (out / "links.csv").open(newline="") as stream:
        links = list(csv.DictReader(stream))
    assert len(links) == len(printed["links"]) == 38
    assert all(
        float(row["failed_utilisation"]) >= float(row["utilisation"]) - 1e-9 for row in links
    )
    assert main([*command, "--overwrite", "--failures", "nodes", "--pairs"]) == 2
    assert "--pairs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "after", "expected"),  # (value, bound) before and after the failure
    [
        ((8.0, 10.0), (5.0, 6.0), 1 - 6 / 8),  # it costs at least a quarter
        ((8.0, 10.0), (7.0, 9.0), 0.0),  # it may cost up to 0.3, and may gain
        ((8.0, 10.0), (9.0, 9.5), 0.0),  # it may gain 0.1875, and may cost 0.1: nothing is certain
        ((8.0, 10.0), (12.0, 14.0), 1 - 12 / 10),  # it gains at least a fifth
    ],
)
def test_a_loss_is_what_values_and_bounds_make_certain(
    before: tuple[float, float], after: tuple[float, float], expected: float
) -> None:
    outage = SimpleNamespace(
        value_before=before[0], bound_before=before[1], value=after[0], bound_all_paths=after[1]
    )
    assert loss(outage, Objective()) == pytest.approx(expected)  # type: ignore[arg-type]


def test_the_matrix_that_fills_a_link_most_is_named_in_every_block() -> None:
    """One link and 40 matrices, the largest at known places of each block of 16."""
    topology = make_topology([(0, 1, 10.0)], both=True)
    rates = np.full((40, 2), 1.0)
    rates[5, 0], rates[16 + 3, 0], rates[32 + 7, 0] = 4.0, 5.0, 6.0
    instance, link = _instance(topology, rates), 0
    named = [
        (int(peaks.row[link]), float(peaks.utilisation[link]))
        for _, _, peaks in outages(instance, np.arange(40), 1e-3, [NO_FAILURE])
    ]
    assert [index for index, _ in named] == [5, 19, 39]
    np.testing.assert_allclose(
        [utilisation for _, utilisation in named], [0.4, 0.5, 0.6], rtol=1e-3
    )
