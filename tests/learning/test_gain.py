"""What `teal train` says of the model that it leaves, against sums over the links of every path and
linear programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

import teal
from teal.cli import main
from teal.learning.gain import Carried, Gain
from teal.nn.checkpoint import load_flow_gnn
from teal.problem import assess
from teal.runtime.bootstrap import Interval
from teal.schemes import make_scheme
from tests.explicit import explicit_paths

_TRAFFIC = "gravity:seed=0,count=20,load=8"
_COMMAND = ["train", "--topology", "b4", "--traffic", _TRAFFIC, "--num-paths", "4", "--quiet"]


def _cut(problem: teal.Problem, splits: torch.Tensor) -> float:
    """Share of the demand that splits carry, each path cut by the fullest of its links."""
    use, of_demand = explicit_paths(problem)
    live = splits[0].double().numpy()[problem.path_mask[0].numpy()]
    demand = problem.demand[0].numpy()
    flow = live * (of_demand.T @ demand) / np.maximum(1, of_demand.T @ (of_demand @ live))
    excess = np.maximum(1, (use @ flow) / problem.topology.capacity)  # of each link
    flow /= np.where(use > 0, excess[:, None], 1).max(0)
    return float(flow.sum() / demand.sum())


def _most(problem: teal.Problem) -> float:
    """Share of the demand that the optimum carries."""
    use, of_demand = explicit_paths(problem)
    demand = problem.demand[0].numpy()
    limits = np.concatenate([problem.topology.capacity, demand])
    found = linprog(-np.ones(use.shape[1]), np.vstack([use, of_demand]), limits)
    return float(-found.fun / demand.sum())


@pytest.mark.parametrize("start", ["none:layers=2", "flow"])
def test_the_card_has_the_model_beside_its_start_and_controls_on_the_test_matrices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], start: str
) -> None:
    out = tmp_path / "run"
    command = [*_COMMAND, "--from", start, "--max-steps", "2", "--seed", "3", "--json"]
    assert main([*command, "--out", str(out)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert json.loads((out / "run.json").read_text()) == said
    card = load_flow_gnn(out)[1]
    assert card.training["gain"] == said["gain"]

    topology = teal.load_topology("b4")
    traffic = teal.load_traffic(_TRAFFIC, topology)
    paths = teal.compute_paths(topology, traffic.pairs, num_paths=4)
    if start == "flow":
        schemes: dict[str, Any] = {
            "trained": make_scheme("teal", out),
            "start": make_scheme("teal"),
            "random weights": make_scheme("teal:weights=random", out),
        }
    else:
        schemes = {
            "trained": make_scheme("teal", out),
            "start (random weights)": make_scheme("teal:weights=random,seed=3", out),
        }
    rows = traffic.split().test
    expected: dict[str, list[tuple[float, float, float]]] = {}
    for row in rows.tolist():
        problem = teal.Problem.create(topology, paths, "total_flow", traffic.read([row]))
        most = _most(problem)
        for name, scheme in schemes.items():
            cut = _cut(problem, scheme.start(problem)[0])
            repaired = float(assess(problem, scheme.solve(problem)).satisfied_demand[0])
            expected.setdefault(name, []).append((cut, cut / most, repaired))
        for name, splits in (
            ("shortest path", problem.first_path_splits),
            ("null (repair alone)", 0 * problem.even_splits),
        ):
            cut = _cut(problem, splits)
            expected.setdefault(name, []).append((cut, cut / most, np.nan))
        expected.setdefault("optimum", []).append((most, 1.0, most))

    gain = said["gain"]
    assert (gain["part"], gain["matrices"]) == ("test", len(rows))
    assert [row["name"] for row in gain["rows"]] == list(expected)
    for row in gain["rows"]:
        cut, of_optimum, repaired = np.mean(expected[row["name"]], axis=0)
        close = pytest.approx(cut, rel=2e-4 if row["name"] == "optimum" else 1e-5)
        assert row["cut"] == close, row["name"]
        assert row["of_optimum"] == pytest.approx(of_optimum, rel=2e-4)
        if not np.isnan(repaired):
            assert row["repaired"] == pytest.approx(repaired, rel=2e-4)
        else:
            assert row["repaired"] >= row["cut"]
    trained, first = (np.array(expected[name])[:, 0] for name in list(expected)[:2])
    assert gain["differences"]["cut"][0] == pytest.approx(np.mean(trained - first), abs=1e-6)


def _gain(cut: tuple[float, float], gap: tuple[float, float], kept: bool = False) -> Gain:
    def interval(ends: tuple[float, float]) -> Interval:
        return Interval(sum(ends) / 2, *ends, 8)

    row = Carried("trained", 0.9, 0.95, 0.99, 0.02)
    differences = {"cut": interval(cut), "repaired": interval(cut), "gap": interval(gap)}
    return Gain("test", 8, kept, (row,), differences)


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (_gain((0.01, 0.03), (-0.001, 0.001)), "better than the start: alone it carries +2.00"),
        (_gain((-0.03, -0.01), (0, 0)), "worse than the start: alone it carries +2.00 points (1.0"),
        (_gain((-0.01, 0.02), (0, 0)), "no better than the start: alone it carries +0.50"),
        (_gain((-0.01, 0.02), (-0.04, -0.02)), "its own gap is +3.00 points (2.00, 4.00) narrower"),
        (_gain((-0.01, 0.02), (0.02, 0.04)), "its own gap is +3.00 points (2.00, 4.00) wider"),
        (_gain((0, 0), (0, 0), kept=True), "no validation scored higher"),
    ],
)
def test_the_verdict_says_better_only_where_the_interval_does(gain: Gain, words: str) -> None:
    assert words in gain.verdict


def test_the_last_line_of_a_training_that_did_not_help_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*_COMMAND, "--max-steps", "1", "--learning-rate", "1e-9", "--out", str(tmp_path)]
    assert main(command) == 0
    assert "no better than the start" in " ".join(capsys.readouterr().out.split())
    report = teal.train(
        "b4", _TRAFFIC, num_paths=4, max_steps=1, learning_rate=1e-9, out=tmp_path / "python"
    )
    assert "no better than the start" in repr(report)
    assert "random weights" in repr(report)
