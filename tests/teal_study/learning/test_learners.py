"""Models and learners of one's own: the examples of the documentation, and names that nobody
knows."""

from __future__ import annotations

import importlib.metadata
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import teal
from teal.cli import main
from teal.errors import InputError
from teal.nn import flow_gnn_config
from teal.nn.checkpoint import new_flow_model
from teal.nn.flow_gnn_config import FORMS, FlowGnnConfig
from teal.nn.flow_models import FlowModel
from teal.nn.policy import action_splits
from teal.problem import Problem
from teal.spec import parse_spec
from teal.testing import random_problem
from teal_study.learning import learners
from teal_study.learning.learners import LEARNERS, register_learner
from teal_study.learning.noise import RowStreams
from teal_study.learning.settings import TrainConfig

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
B4 = ["--topology", "b4", "--traffic", "gravity:seed=0,count=20,load=6"]


@pytest.mark.system
def test_the_example_model_is_trained_and_every_command_that_knows_its_form_takes_it(
    tmp_path: Path,
) -> None:
    def run(*commands: list[str]) -> subprocess.CompletedProcess[str]:
        """The commands of the example, in one process; its return code is that of the first that
        fails."""
        first, *others = commands
        program = f"""
import runpy, sys
sys.argv[1:] = {first!r}
try:
    runpy.run_path({str(EXAMPLES / "own_model.py")!r}, run_name="__main__")
except SystemExit as end:
    from teal.cli import main
    sys.exit(end.code or next(filter(None, map(main, {others!r})), 0))
"""
        command = [sys.executable, "-c", program]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    options = [
        "--from",
        "none:form=attention,layers=2",
        "--max-steps",
        "3",
        "--quiet",
    ]
    model = ["--model", "run", "--quiet"]
    done = run(
        ["train", *B4, *options, "--out", "run"],
        ["solve", *B4, *model],
        ["evaluate", *B4, *model, "--scheme", "teal", "--limit", "1", "--out", "results"],
    )
    assert done.returncode == 0, done.stderr
    assert main(["solve", *B4, "--model", str(tmp_path / "run"), "--quiet"]) == 2, (
        "nobody knows the form here"
    )


@pytest.mark.slow
def test_the_gradient_of_the_example_learner_is_that_of_the_expected_reward() -> None:
    """The gradient of many joint actions points where the mean gradient of the reward at drawn
    actions does."""
    reinforce = runpy.run_path(str(EXAMPLES / "own_learner.py"))["make"](
        parse_spec("reinforce:episodes=4000,std=0.5")
    )
    torch.manual_seed(0)
    problem = random_problem(3, nodes=4, num_paths=2, batch=1)
    problem = problem.to(torch.float32)
    means = (
        torch.zeros_like(problem.path_value)
        .expand(problem.path_mask.shape)
        .clone()
        .requires_grad_()
    )
    config = TrainConfig(topology="b4", traffic="-", out=Path("x"), learner="direct")

    class Plain(FlowModel):
        def splits(self, means: torch.Tensor, problem: Problem) -> torch.Tensor:
            return action_splits(means, problem.path_mask, maximises_value=True, clamp=self.clamp)

    noise = RowStreams(torch.arange(problem.batch))
    loss = reinforce(Plain(), problem, means, noise, config).sum()
    (slope,) = torch.autograd.grad(loss, means)
    from teal_study.learning.losses import reward

    exact = torch.zeros_like(slope)
    for _ in range(400):
        action = (means + 0.5 * torch.randn_like(means)).detach().requires_grad_()
        exact -= torch.autograd.grad(
            reward(problem, Plain().splits(action, problem)).sum(), action
        )[0]
    cosine = torch.nn.functional.cosine_similarity(slope.flatten(), exact.flatten(), dim=0)
    assert float(cosine) > 0.8


def test_unknown_names_are_refused_before_anything_is_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option, value, known in (
        ("--learner", "mine", "coma, direct"),
        ("--from", "none:form=mine", "universal"),
    ):
        assert main(["train", *B4, option, value, "--out", str(tmp_path)]) == 2
        printed = capsys.readouterr().err
        assert known in printed
        assert "candidate paths" not in printed


def test_names_come_from_entry_points_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from teal import spec

    points = {
        "teal.models": importlib.metadata.EntryPoint(
            "announced", "teal.nn.universal_flow_gnn:UniversalFlowGnn", ""
        ),
        "teal.learners": importlib.metadata.EntryPoint(
            "announced", "teal_study.learning.learners:_test_learner", ""
        ),
        "teal.objectives": importlib.metadata.EntryPoint(
            "announced", "teal.objectives:_TEST_RULES", ""
        ),
    }
    monkeypatch.setattr(
        spec, "_entry_points", lambda group: {"announced": points[group]} if group in points else {}
    )
    monkeypatch.setattr(learners, "_test_learner", LEARNERS["direct"], raising=False)
    monkeypatch.setattr(
        teal.objectives, "_TEST_RULES", teal.Objective("total_flow").rules, raising=False
    )
    model = new_flow_model(FlowGnnConfig(form="announced"))
    assert type(model).__name__ == "UniversalFlowGnn"
    assert model.config.takes_any_paths
    assert LEARNERS["announced"] is LEARNERS["direct"]
    assert teal.Objective("announced").rules is teal.Objective("total_flow").rules
    assert "announced" not in FORMS
    with pytest.raises(InputError, match="another entry has the name"):
        register_learner("announced", LEARNERS["coma"])
    with pytest.raises(InputError, match="another entry has the name"):
        flow_gnn_config.register_model("announced", FlowModel)
