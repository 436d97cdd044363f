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
import teal_study
from teal.cli import main
from teal.nn.checkpoint import load_flow_gnn
from teal.problem import assess
from teal.runtime.bootstrap import Interval
from teal.schemes import make_scheme
from teal_study.learning.gain import Carried, Gain
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
    expected: dict[str, list[tuple[float, float, float, float]]] = {}
    for row in rows.tolist():
        problem = teal.Problem.create(topology, paths, "total_flow", traffic.read([row]))
        most = _most(problem)
        for name, scheme in schemes.items():
            cut = _cut(problem, scheme.start(problem)[0])
            assessment = assess(problem, scheme.solve(problem))
            repaired = float(assessment.satisfied_demand[0])
            certified_gap = float(assessment.gap[0])
            expected.setdefault(name, []).append((cut, cut / most, repaired, certified_gap))
        for name, splits in (
            ("shortest path", problem.first_path_splits),
            ("null (repair alone)", 0 * problem.even_splits),
        ):
            cut = _cut(problem, splits)
            expected.setdefault(name, []).append((cut, cut / most, np.nan, np.nan))
        expected.setdefault("optimum", []).append((most, 1.0, most, 0.0))

    gain = said["gain"]
    assert (gain["part"], gain["matrices"]) == ("test", len(rows))
    assert [row["name"] for row in gain["rows"]] == list(expected)
    for row in gain["rows"]:
        cut, of_optimum, repaired, certified_gap = np.mean(expected[row["name"]], axis=0)
        close = pytest.approx(cut, rel=2e-4 if row["name"] == "optimum" else 1e-5)
        assert row["cut"] == close, row["name"]
        assert row["of_optimum"] == pytest.approx(of_optimum, rel=2e-4)
        if not np.isnan(repaired):
            assert row["repaired"] == pytest.approx(repaired, rel=2e-4)
            assert row["repaired_gap"] == pytest.approx(certified_gap, abs=1e-5)
        else:
            assert row["repaired"] >= row["cut"]
            assert row["repaired_gap"] is None
    trained, first = (np.array(expected[name])[:, 0] for name in list(expected)[:2])
    assert gain["differences"]["cut"][0] == pytest.approx(np.mean(trained - first), abs=1e-6)


_Ends = tuple[float, float]
_EQUAL = (-0.001, 0.001)


def _gain(
    cut: _Ends = _EQUAL,
    gap: _Ends = _EQUAL,
    repaired: _Ends = _EQUAL,
    repaired_gap: _Ends = _EQUAL,
    kept: bool = False,
    matrices: int = 8,
) -> Gain:
    def interval(ends: _Ends) -> Interval:
        return Interval(sum(ends) / 2, *ends, matrices)

    row = Carried("trained", 0.9, 0.95, 0.99, 0.02, 0.01)
    differences = {
        "cut": interval(cut),
        "repaired": interval(repaired),
        "gap": interval(gap),
        "repaired_gap": interval(repaired_gap),
    }
    return Gain("test", matrices, kept, (row,), differences)


@pytest.mark.parametrize(
    ("ends", "rank"),
    [
        ((0.01, 0.03), "better than the start: it carries 2.00 points more (+1.00 to +3.00)"),
        ((-0.03, -0.01), "worse than the start: it carries 2.00 points less (-3.00 to -1.00)"),
        ((-0.01, 0.02), "no better than the start: it carries 0.50 points more (-1.00 to +2.00)"),
        ((-0.03, 0.01), "no better than the start: it carries 1.00 points less (-3.00 to +1.00)"),
    ],
)
def test_the_verdict_says_better_or_worse_only_where_the_interval_does(
    ends: _Ends, rank: str
) -> None:
    """Of the model alone and of the scheme with its repair."""
    assert f"The model alone is {rank}." in _gain(cut=ends).verdict
    assert f"After the repair, the scheme is {rank}." in _gain(repaired=ends).verdict


def test_the_verdict_has_the_gap_where_it_differs() -> None:
    narrower = "less (-3.00 to +1.00), and its gap is 3.00 points narrower (-4.00 to -2.00)."
    wider = "less (-3.00 to +1.00), and its gap is 3.00 points wider (+2.00 to +4.00)."
    ends = (-0.03, 0.01)
    assert narrower in _gain(cut=ends, gap=(-0.04, -0.02)).verdict
    assert wider in _gain(repaired=ends, repaired_gap=(0.02, 0.04)).verdict
    assert "gap" not in _gain(cut=ends, gap=(-0.04, 0.02)).verdict


def test_the_verdict_says_why_there_is_no_comparison() -> None:
    assert "the weights of the start were kept" in _gain((0, 0), (0, 0), kept=True).verdict
    assert "too few" in _gain((0.01, 0.03), matrices=3).verdict


def test_the_last_line_of_a_training_that_did_not_help_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*_COMMAND, "--max-steps", "1", "--learning-rate", "1e-9", "--out", str(tmp_path)]
    assert main(command) == 0
    assert "no better than the start" in " ".join(capsys.readouterr().out.split())
    report = teal_study.train(
        "b4", _TRAFFIC, num_paths=4, max_steps=1, learning_rate=1e-9, out=tmp_path / "python"
    )
    assert "no better than the start" in repr(report)
    assert "random weights" in repr(report)


def test_a_training_warns_once_of_prices_that_certify_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("teal_study.learning.train._STEPS_TO_LEARN_PRICES", 2)
    scores = torch.tensor([[0.8, 0.2], [0.9, 0.1]]).double()  # bounds of 1
    monkeypatch.setattr("teal_study.learning.train.Trainer.matrix_scores", lambda _: scores)
    command = [*_COMMAND[:-1], "--from", "none:layers=1", "--max-steps", "4"]
    assert main([*command, "--validate-every", "1", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.err.count("after 2 steps the model's link prices give a trivial bound") == 1
    assert printed.err.count("give a trivial bound") == 1
    assert " ".join(printed.out.split()).count("after 4 steps the model's link prices") == 1
    assert "give a trivial bound" in json.loads((tmp_path / "run.json").read_text())["warning"]
