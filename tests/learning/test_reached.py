"""What `teal train` says of the model that it leaves, against sums over the links of every path."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import teal
from teal.cli import main
from teal.nn.checkpoint import load_flow_gnn
from teal.problem import assess
from teal.schemes import make_scheme
from tests.explicit import explicit_paths

_COMMAND = [
    "train",
    "--topology",
    "b4",
    "--traffic",
    "gravity:seed=0,count=12,load=8",
    "--num-paths",
    "4",
]
_RANDOM = ["--from", "none:layers=2", "--max-steps", "2", "--quiet", "--json"]


def test_the_card_has_what_the_model_carries_alone_and_repaired(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main([*_COMMAND, *_RANDOM, "--out", str(out)]) == 0
    said = json.loads(capsys.readouterr().out)["reached"]
    card = load_flow_gnn(out)[1]
    assert card.training["reached"] == said

    topology = teal.load_topology("b4")
    traffic = teal.load_traffic("gravity:seed=0,count=12,load=8", topology)
    paths = teal.compute_paths(topology, traffic.pairs, num_paths=4)
    alone, repaired = [], []
    for row in traffic.split().validation.tolist():
        problem = teal.Problem.create(topology, paths, "total_flow", traffic.read([row]))
        splits = teal.load_model(out).start(problem)[0][0].double().numpy()
        use, of_demand = explicit_paths(problem)
        live = splits[problem.path_mask[0].numpy()]
        flow = (
            live
            * (of_demand.T @ problem.demand[0].numpy())
            / np.maximum(1, of_demand.T @ (of_demand @ live))
        )
        excess = np.maximum(1, (use @ flow) / topology.capacity)  # of each link
        flow /= np.where(use > 0, excess[:, None], 1).max(0)
        alone.append(flow.sum() / float(problem.demand.sum()))
        own = assess(problem, make_scheme("teal", out).solve(problem))
        repaired.append(float(own.satisfied_demand[0]))
    assert said["cut_demand"] == pytest.approx(np.mean(alone), rel=1e-5)
    assert said["repaired_demand"] == pytest.approx(np.mean(repaired), rel=1e-6)
    assert said["repaired_demand"] > said["cut_demand"] + 0.01, (
        "random weights carry more with the repair"
    )


def test_the_last_line_says_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    assert (
        main(
            [
                *_COMMAND,
                "--max-steps",
                "1",
                "--learning-rate",
                "1e-9",
                "--quiet",
                "--out",
                str(tmp_path),
            ]
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert "cut to fit and not repaired, carries" in printed
    assert "repaired" in printed
