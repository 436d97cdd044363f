"""Proofs of purchases: their bound against the linear program over free routing, changed files, and
the command."""

from __future__ import annotations

import hashlib
import inspect
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linprog

import teal
from teal.cli import main
from teal.network import all_pairs
from teal.proofs import check
from teal.testing import random_topology
from teal_ip.purchases import check_purchase
from teal_ip.purchases.benders import expand_capacity
from teal_ip.purchases.proof import FILES, CutProof, write_purchase_proof
from teal_ip.purchases.scenarios import Scenarios, scenarios_of


def _scenarios(
    seed: int, most: float = np.inf, load: float = 0.25, num_paths: int = 3
) -> Scenarios:
    topology = random_topology(seed, 6)
    pairs = all_pairs(topology)[::3]
    paths = teal.compute_paths(topology, pairs, num_paths=num_paths, method="yen", cache=False)
    rng = np.random.default_rng(seed)
    matrices = rng.exponential(load * float(topology.capacity.mean()), (2, len(pairs)))
    problem = teal.Problem.create(
        topology, paths, teal.Objective("max_link_utilisation"), matrices[:1]
    )
    cost = rng.uniform(1, 3, len(topology.link_pairs()))
    failures = [list(links) for links in topology.cables()[:3]]
    limits = np.full(len(cost), most * float(topology.capacity.mean()))
    return scenarios_of(problem, matrices, failures, cost, 0.9, max_added=limits)[0]


def _optimum(scenarios: Scenarios) -> float:
    """The least cost over every routing: flows of each scenario and source on links, by HiGHS."""
    topology, pairs = scenarios.problem.topology, scenarios.problem.paths.pairs
    nodes, links, cables = topology.num_nodes, topology.num_links, scenarios.num_cables
    sources = np.unique(pairs[:, 0])
    node_rows = np.zeros((nodes, links))
    node_rows[topology.link_source, np.arange(links)] += 1
    node_rows[topology.link_target, np.arange(links)] -= 1
    width = len(sources) * links
    equal, right, upper, room, high = [], [], [], [], []
    for s in range(scenarios.num_scenarios):
        for i, source in enumerate(sources):
            block = np.zeros((nodes, scenarios.num_scenarios * width))
            first = s * width + i * links
            block[:, first : first + links] = node_rows
            net = np.zeros(nodes)
            for d in np.flatnonzero(pairs[:, 0] == source):
                net[source] += scenarios.demand[s, d]
                net[pairs[d, 1]] -= scenarios.demand[s, d]
            equal.append(block)
            right.append(net)
            high += np.where(scenarios.live[s], np.inf, 0.0).tolist()
        block = np.zeros((links, scenarios.num_scenarios * width))
        for i in range(len(sources)):
            block[np.arange(links), s * width + i * links + np.arange(links)] = 1
        upper.append(block)
        room.append(scenarios.max_utilisation * scenarios.existing_capacity)
    bought = np.zeros((links, cables))
    bought[np.arange(links), scenarios.cable] = -scenarios.max_utilisation
    solved = linprog(
        np.concatenate([scenarios.cost, np.zeros(scenarios.num_scenarios * width)]),
        A_ub=sp.csr_array(
            np.hstack([np.tile(bought, (scenarios.num_scenarios, 1)), np.vstack(upper)])
        ),
        b_ub=np.concatenate(room),
        A_eq=sp.csr_array(np.hstack([np.zeros((len(right) * nodes, cables)), np.vstack(equal)])),
        b_eq=np.concatenate(right),
        bounds=[(0, m) for m in scenarios.max_added] + [(0, h) for h in high],
        method="highs",
    )
    assert solved.status == 0, solved.message
    return float(solved.fun)


def _proved(folder: Path) -> float:
    sentence = check_purchase.check(*(str(folder / name) for name in FILES[:4]))
    return float(re.search(r"costs less than ([\d.]+);", sentence)[1])  # type: ignore[index]


def _written(folder: Path, scenarios: Scenarios) -> CutProof:
    upgrade, cuts = expand_capacity(scenarios, gap=1e-3)
    proof = CutProof.of(scenarios, cuts, upgrade.dual, upgrade.cost)
    write_purchase_proof(folder, proof)
    return proof


@pytest.mark.parametrize("most", [np.inf, 2.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_bound_is_below_the_optimum_over_every_routing_and_near_the_cost(
    tmp_path: Path, seed: int, most: float
) -> None:
    scenarios = _scenarios(seed, most)
    try:
        optimum = _optimum(scenarios)
    except AssertionError:
        pytest.skip("the limits of the cables forbid every purchase")
    proof = _written(tmp_path, scenarios)
    assert _proved(tmp_path) <= optimum * (1 + 1e-9)
    assert optimum <= proof.cost * (1 + 1e-6) or proof.cost >= optimum - 1e-6
    run = subprocess.run(
        [sys.executable, "-I", FILES[4], *FILES[:4]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.startswith(
        "proved: no purchase with which the matrices fit under the failures at"
    )


def test_a_bound_of_candidate_paths_that_are_all_paths_is_the_optimum(tmp_path: Path) -> None:
    scenarios = _scenarios(1, load=1.0, num_paths=40)
    proof = _written(tmp_path, scenarios)
    assert proof.cost > 0
    assert _proved(tmp_path) == pytest.approx(_optimum(scenarios), rel=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_no_changed_file_proves_more_than_the_optimum(tmp_path: Path, seed: int) -> None:
    scenarios = _scenarios(seed, 1.5)
    _written(tmp_path, scenarios)
    optimum, rng = _optimum(scenarios), random.Random(seed)
    lines = (tmp_path / FILES[3]).read_text().splitlines()
    accepted = 0
    for _ in range(300):
        changed = list(lines)
        at = rng.randrange(6, len(changed))
        kind = rng.choice(("bound", "number", "link", "swap", "drop", "double", "cut"))
        if kind == "bound":
            changed[6] = (
                f"bound {int(int(changed[6].split()[1]) * rng.choice((0.5, 1.0001, 1.1, 3)))}"
            )
        elif kind == "number":
            changed[at] = re.sub(
                r"(\d+)$",
                lambda found: str(int(int(found[1]) * rng.choice((0, 0.9, 1.1, 7)))),
                changed[at],
            )
        elif kind == "link":
            changed[at] = re.sub(
                r" (\d+):", f" {rng.randrange(len(scenarios.cable))}:", changed[at], count=1
            )
        elif kind == "swap" and changed[at].startswith("cut"):
            words = changed[at].split(" ")
            words[rng.choice((1, 2))] = rng.choice(("0", "1", "-", "4", words[1]))
            changed[at] = " ".join(words)
        elif kind == "drop":
            del changed[at]
        elif kind == "double":
            changed.insert(at, changed[at])
        else:
            changed[at] = changed[at][: rng.randrange(1, len(changed[at]) + 1)]
        (tmp_path / FILES[3]).write_text("\n".join([*changed, ""]))
        try:
            proved = _proved(tmp_path)
        except (ValueError, TypeError):
            continue
        accepted += 1
        assert proved <= optimum * (1 + 1e-9), (kind, changed[at])
    assert accepted > 5, "files that prove less are still proofs"


def test_another_network_is_refused_and_each_check_is_needed(tmp_path: Path) -> None:
    _written(tmp_path, _scenarios(2))
    for name in FILES[:3]:
        before = (tmp_path / name).read_text()
        (tmp_path / name).write_text(before + "\n")
        with pytest.raises(ValueError, match="not of these files"):
            _proved(tmp_path)
        (tmp_path / name).write_text(before)
    # A failure that is not the cut's: its links may have prices there.
    text, links = (
        (tmp_path / FILES[3]).read_text(),
        (tmp_path / FILES[2]).read_text().splitlines()[1:],
    )
    cut = next(
        (line for line in text.splitlines() if line.startswith("cut") and line.split()[2] != "-"),
        None,
    )
    if cut is not None and links:
        failed = next(row.split(",")[1] for row in links if row.split(",")[0] == cut.split()[2])
        (tmp_path / FILES[3]).write_text(text.replace(cut, f"{cut} {failed}:1000"))
        with pytest.raises(ValueError, match="does not exist or has failed"):
            _proved(tmp_path)
    # A purchase that costs less than the bound that the cuts prove.
    (tmp_path / FILES[3]).write_text(re.sub(r"^cost .*$", "cost 0", text, flags=re.M))
    with pytest.raises(ValueError, match="below the proved lower bound"):
        _proved(tmp_path)
    # A cheaper cable: the cuts then pay more than it costs.
    network = (tmp_path / FILES[0]).read_text()
    cheaper = re.sub(
        r",(\d+),([\d.]+),$",
        lambda found: f",{found[1]},{float(found[2]) / 2},",
        network,
        flags=re.M,
    )
    (tmp_path / FILES[0]).write_text(cheaper)
    digest = hashlib.sha256(cheaper.encode()).hexdigest()
    (tmp_path / FILES[3]).write_text(re.sub(r"^network \w+", f"network {digest}", text, flags=re.M))
    with pytest.raises(ValueError, match="exceeds its cost, and it has no limit"):
        _proved(tmp_path)


def test_what_both_checkers_have_is_one_text() -> None:
    """Each file is sent alone, so that each has its own copy: what is mended in one is mended in
    both."""
    for name in ("need", "integer", "decimal", "table"):
        assert inspect.getsource(getattr(check, name)) == inspect.getsource(
            getattr(check_purchase, name)
        ), name


def test_the_command_proves_its_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "upgrade",
        "--topology",
        "b4",
        "--traffic",
        "gravity:seed=0,count=2,load=2",
        "--num-paths",
        "3",
        "--failures",
        "none",
        "--prove",
        str(tmp_path / "proof"),
    ]
    assert main(words) == 0
    text = capsys.readouterr().out
    bound = float(re.search(r"over all paths of the network ([\d.e+]+)", text)[1])  # type: ignore[index]
    assert _proved(tmp_path / "proof") == pytest.approx(bound, rel=1e-5)
    assert main(words) == 2, "not replaced unasked"
    assert main([*words, "--overwrite", "--modules", "100"]) == 2
    assert "no --modules" in capsys.readouterr().err
