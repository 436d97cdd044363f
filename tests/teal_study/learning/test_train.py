"""Training: resumed, micro-batched and distributed runs against one plain run; saved runs against
damaged files."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from teal.errors import InputError
from teal.formats import load_topology, load_traffic
from teal.network import compute_paths
from teal.network.rates import ArrayRates
from teal.nn.checkpoint import check_fits, load_flow_gnn, load_price_gnn
from teal.nn.flow_models import FlowModel
from teal.nn.universal_flow_gnn import UniversalFlowGnn
from teal.objectives import SINGLE_PROGRAMS, Objective, ObjectiveName
from teal.problem import Problem
from teal.schemes.flow_gnn import FlowGnnScheme
from teal.testing import assert_feasible
from teal_study.learning.losses import reward
from teal_study.learning.noise import Stream
from teal_study.learning.settings import TrainConfig
from teal_study.learning.steps import Augmentation
from teal_study.learning.train import (
    Score,
    Trainer,
    TrainState,
    has_trivial_bound,
    is_significantly_better,
)


def _trainer(
    out: Path,
    objective: ObjectiveName = ObjectiveName.TOTAL_FLOW,
    demand_value: float = 1.0,
    peers: Any = None,
    **settings: Any,
) -> Trainer:
    topology = load_topology("b4")
    traffic = load_traffic("gravity:seed=0,count=40,load=3", topology)
    paths = compute_paths(topology, traffic.pairs)
    defaults: dict[str, Any] = {
        "batch_size": 8,
        "validate_every": 5,
        "validation_matrices": 4,
        "from_": "none:layers=2",
        "time_budget": "10m",
    }
    config = TrainConfig(
        topology="b4", traffic="-", objective=objective, out=out, **(defaults | settings)
    )
    weight = np.random.default_rng(0).choice([1.0, 2.0, 4.0], paths.num_demands)
    problem = Problem.create(
        topology, paths, Objective(objective), traffic.read([0]), weight=weight
    )
    problem = dataclasses.replace(problem, demand_value=demand_value * problem.demand_value)
    return Trainer(problem, traffic, traffic.split(), config, peers)


def _interrupt(trainer: Trainer, out: Path, step: int) -> None:
    """Train until SIGINT comes, right after a step."""

    def watch(state: TrainState) -> None:
        if state.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        trainer.train(out, progress=False, watch=watch)


def _slot(trainer: Trainer, slot: str) -> torch.Tensor:
    """All values of a slot of the optimiser's state."""
    state = trainer.optimiser.tensors()
    return torch.cat(
        [value.flatten() for name, value in state.items() if name.endswith(f".{slot}")]
    )


@pytest.mark.parametrize("learner", ["direct", "coma"])
def test_a_resumed_training_equals_an_uninterrupted_one(tmp_path: Path, learner: str) -> None:
    uninterrupted = _trainer(tmp_path / "whole", learner=learner, max_steps=12)
    uninterrupted.train(tmp_path / "whole", progress=False)
    _interrupt(_trainer(tmp_path / "parts", learner=learner, max_steps=12), tmp_path / "parts", 7)
    second = _trainer(tmp_path / "parts", learner=learner, max_steps=12)
    second.resume(tmp_path / "parts")
    assert second.state.step == 7
    second.train(tmp_path / "parts", progress=False)
    for name, value in uninterrupted.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name
    assert second.state.step == uninterrupted.state.step == 12
    assert (second.state.best, second.state.best_step) == (
        uninterrupted.state.best,
        uninterrupted.state.best_step,
    )


def test_a_training_interrupted_within_a_step_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGINT within a step: the step ends, the state is complete, the resumed run equals an
    uninterrupted one."""
    trainer = _trainer(tmp_path / "cut", learner="coma", max_steps=6)
    add, calls = trainer._steps.add, iter(range(100))

    def interrupted(*arguments: Any) -> None:
        if next(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        add(*arguments)

    monkeypatch.setattr(trainer._steps, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer.train(tmp_path / "cut", progress=False)
    resumed = _trainer(tmp_path / "cut", learner="coma", max_steps=6)
    resumed.resume(tmp_path / "cut")
    assert resumed.state.step == 4
    assert resumed.train(tmp_path / "cut", progress=False).reason == "step limit"
    uninterrupted = _trainer(tmp_path / "whole", learner="coma", max_steps=6)
    uninterrupted.train(tmp_path / "whole", progress=False)
    for name, value in uninterrupted.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


@pytest.mark.parametrize("learner", ["direct", "coma"])
def test_micro_batches_do_not_change_the_trained_weights(tmp_path: Path, learner: str) -> None:
    trainers = []
    for micro in (8, 3):
        trainers.append(
            _trainer(tmp_path / str(micro), learner=learner, micro_batch=micro, max_steps=3)
        )
        trainers[-1].train(tmp_path / str(micro), progress=False)
    _assert_same_training(*trainers)


class _ThreadPeers:
    """Peers that are threads of this process."""

    def __init__(
        self, rank: int, size: int, barrier: threading.Barrier, values: dict[int, Any]
    ) -> None:
        self.rank, self.size, self._barrier, self._values = rank, size, barrier, values

    def _all(self, value: Any) -> list[Any]:
        self._values[self.rank] = value
        self._barrier.wait()
        gathered = [self._values[rank] for rank in range(self.size)]
        self._barrier.wait()
        return gathered

    def all_reduce_sum(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor, *others in zip(
            tensors, *self._all([t.detach().clone() for t in tensors]), strict=True
        ):
            tensor.copy_(sum(others))

    def broadcast(self, number: float) -> float:
        return float(self._all(number)[0])


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["direct", "coma"])
def test_training_in_several_processes_equals_training_in_one(tmp_path: Path, learner: str) -> None:
    """Batches of 8 and 4 rows over 1 and 5 processes, one of which has no row of the small
    batches."""
    single = _trainer(tmp_path / "alone", learner=learner, max_steps=10)
    single.train(tmp_path / "alone", progress=False)
    size = 5
    barrier, values = threading.Barrier(size, timeout=60), dict[int, Any]()
    out = tmp_path / "together"
    several = [
        _trainer(
            out, learner=learner, max_steps=10, peers=_ThreadPeers(rank, size, barrier, values)
        )
        for rank in range(size)
    ]
    with ThreadPoolExecutor(size) as pool:
        states = list(pool.map(lambda trainer: trainer.train(out, progress=False), several))
    for trainer, state in zip(several, states, strict=True):
        _assert_same_training(trainer, single)
        assert torch.equal(_flat_weights(trainer), _flat_weights(several[0])), (
            "all processes have the same weights"
        )
        assert state == states[0]
        assert (state.step, state.reason) == (10, "step limit")
        assert state.best == pytest.approx(single.state.best, rel=1e-3)
    resumed = _trainer(
        out, learner=learner, max_steps=12
    )  # one process can resume what several wrote
    resumed.resume(out)
    assert resumed.state.step == 10
    assert resumed.state.best == pytest.approx(states[0].best, rel=1e-12)  # a sum's rounding


def _flat_weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def _assert_same_training(one: Trainer, other: Trainer) -> None:
    """The same mean gradients to rounding, and so the same weights, but for a few.

    Adam divides every gradient by its own size: where that is nearly 0, a rounding error moves the
    weight as far.
    """
    means = [_slot(t, "exp_avg") for t in (one, other)]
    torch.testing.assert_close(
        means[0], means[1], atol=float(1e-3 * means[0].abs().max()), rtol=1e-3
    )
    apart = (_flat_weights(one) - _flat_weights(other)).abs() > 2e-4
    assert float(apart.float().mean()) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("objective", SINGLE_PROGRAMS)
@pytest.mark.parametrize("learner", ["direct", "coma"])
def test_training_improves_every_objective(
    tmp_path: Path, objective: ObjectiveName, learner: str
) -> None:
    trainer = _trainer(tmp_path, objective, learner=learner, max_steps=15, learning_rate=1e-2)
    problem = trainer.problem.with_demand(
        torch.as_tensor(trainer.traffic.read(trainer.split.validation))
    )
    model = cast(FlowModel, trainer.model)

    def mean_reward() -> float:
        with torch.no_grad():
            return float(reward(problem, model.splits(model(problem)[0], problem)).mean())

    before = mean_reward()
    trainer.train(tmp_path, progress=False)
    assert mean_reward() > before


@pytest.mark.slow
def test_a_price_gnn_learns_one_network_resumes_to_the_bit_and_says_what_it_is(
    tmp_path: Path,
) -> None:
    settings: dict[str, Any] = {
        "model": "price",
        "from_": "none",
        "max_steps": 40,
        "learning_rate": 3e-3,
    }
    whole = _trainer(tmp_path / "whole", **settings)
    first = whole.score()
    whole.train(tmp_path / "whole", progress=False)
    assert whole.state.best > first.carried + 0.002
    assert whole.state.best_gap < first.gap - 0.02
    _interrupt(_trainer(tmp_path / "parts", **settings), tmp_path / "parts", 22)
    resumed = _trainer(tmp_path / "parts", **settings)
    resumed.resume(tmp_path / "parts")
    resumed.train(tmp_path / "parts", progress=False)
    assert torch.equal(_flat_weights(whole), _flat_weights(resumed))
    card = load_price_gnn(tmp_path / "whole")[1]
    assert (card.topology, card.step, card.training["from"]) == (
        "b4",
        whole.state.best_step,
        "none",
    )
    assert card.validation == whole.state.best


def test_a_price_gnn_takes_no_settings_of_a_flow_gnn() -> None:
    for other in ({"learner": "coma"}, {"from_": "none:form=published"}):
        with pytest.raises(InputError, match="--model price"):
            TrainConfig(topology="b4", traffic="-", out=Path("x"), model="price", **other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("score", "other", "by_carried", "by_gap"),
    [
        (Score(0.90, 0.5), Score(0.89, 0.1), True, False),
        (Score(0.89, 0.1), Score(0.90, 0.5), False, True),
        (Score(0.90, 0.1), Score(0.90 + 1e-8, 0.2), True, True),  # equal but for rounding
        (Score(0.90, 0.1), Score(0.90, 0.1), False, False),
        (Score(math.nan, math.nan), Score(-math.inf, math.inf), False, False),
    ],
)
def test_weights_that_carry_more_are_kept_or_those_of_a_narrower_gap(
    score: Score, other: Score, by_carried: bool, by_gap: bool
) -> None:
    assert score.is_better(other, "carried") is by_carried
    assert score.is_better(other, "gap") is by_gap


_NOISE = torch.tensor([[0.02, -0.02], [0.02, -0.02], [-0.02, 0.02], [-0.02, 0.02]]).double()


@pytest.mark.parametrize(
    ("change", "by_carried", "by_gap"),
    [
        (torch.tensor([[0.01, 0.0]]).double().expand(4, 2), True, False),
        (torch.tensor([[0.0, -0.01]]).double().expand(4, 2), True, True),
        (torch.tensor([[-0.01, 0.01]]).double().expand(4, 2), False, False),
        (_NOISE + torch.tensor([0.001, -0.001]), False, False),
        (_NOISE + torch.tensor([0.1, 0.0]), True, False),
        (torch.tensor([[0.1, -0.1]]).double().expand(3, 2), False, False),  # too few matrices
        (torch.full((4, 2), math.nan).double(), False, False),
    ],
)
def test_weights_are_better_than_the_start_only_by_more_than_noise(
    change: torch.Tensor, by_carried: bool, by_gap: bool
) -> None:
    start = torch.tensor([[0.5, 0.3], [0.9, 0.1], [0.7, 0.2], [0.8, 0.2]]).double()[: len(change)]
    rows = np.arange(len(change))
    assert is_significantly_better(start + change, start, rows, "carried") is by_carried
    assert is_significantly_better(start + change, start, rows, "gap") is by_gap


def test_the_start_is_kept_where_no_validation_is_significantly_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores by step: the start, a larger mean within noise, and, in a resumed run, a significantly
    larger one, with an even larger mean within noise."""
    start = torch.tensor([[0.9, 0.1]] * 4).double()
    scores = {0: start, 1: start + _NOISE + 0.001, 2: start + 0.001, 3: start + _NOISE + 0.004}
    monkeypatch.setattr(Trainer, "matrix_scores", lambda trainer: scores[trainer.state.step])
    settings: dict[str, Any] = {"from_": "flow", "validate_every": 1}
    first = _trainer(tmp_path, max_steps=1, **settings)
    first.train(tmp_path, progress=False)
    assert (first.state.best_step, load_flow_gnn(tmp_path)[1].step) == (0, 0)
    resumed = _trainer(tmp_path, max_steps=3, **settings)
    resumed.resume(tmp_path)
    resumed.train(tmp_path, progress=False)
    assert (resumed.state.best_step, load_flow_gnn(tmp_path)[1].step) == (2, 2)


@pytest.mark.parametrize(
    ("scores", "is_trivial"),
    [
        ([[0.9, 0.1], [0.7, 0.3]], True),  # bounds of 1
        ([[0.9, 0.0999], [0.7, 0.3]], False),
        ([[0.995, 0.005], [0.995, 0.005]], False),  # nearly all is carried: 1 may be the optimum
    ],
)
def test_a_bound_is_trivial_where_it_is_all_demand_of_a_congested_network(
    scores: list[list[float]], is_trivial: bool
) -> None:
    assert has_trivial_bound(torch.tensor(scores).double()) is is_trivial


def test_ten_validations_however_few_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    trainer = _trainer(tmp_path, max_steps=43, validate_every=50)

    def scores(trainer: Trainer) -> torch.Tensor:
        steps.append(trainer.state.step)
        return torch.full((4, 2), 0.5)

    monkeypatch.setattr(Trainer, "matrix_scores", scores)
    trainer.train(tmp_path, progress=False)
    assert steps == [0, 5, 9, 13, 18, 22, 26, 31, 35, 39, 43]


def test_the_learning_rate_rises_for_a_tenth_of_the_budget_and_falls_to_nothing(
    tmp_path: Path,
) -> None:
    trainer, rates = _trainer(tmp_path, max_steps=20, learning_rate=0.01), list[float]()
    trainer.train(tmp_path, progress=False, watch=lambda _: rates.append(trainer.optimiser.rate))
    cosine = [0.01 * (1 + math.cos(math.pi * step / 20)) / 2 for step in range(20)]
    assert rates == pytest.approx([0.01 * cosine[0], 0.5 * cosine[1], *cosine[2:]])


def test_the_time_budget_of_a_training_includes_earlier_runs(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, time_budget="0.5s")
    assert trainer.train(tmp_path, progress=False).reason == "time budget"
    resumed = _trainer(tmp_path, time_budget="0.5s")
    resumed.resume(tmp_path)
    steps = resumed.state.step
    assert resumed.train(tmp_path, progress=False).step == steps


def test_a_training_with_other_settings_or_damaged_state_cannot_resume(tmp_path: Path) -> None:
    _trainer(tmp_path, max_steps=2).train(tmp_path, progress=False)
    with pytest.raises(InputError, match=r"seed: the run has 0, the command 1"):
        _trainer(tmp_path, seed=1).resume(tmp_path)
    with pytest.raises(InputError, match="path_value"):
        _trainer(tmp_path, demand_value=2.0).resume(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        _trainer(tmp_path).resume(tmp_path / "nowhere")
    (tmp_path / "trainer.safetensors").write_bytes(b"rubbish")
    with pytest.raises(InputError, match="damaged"):
        _trainer(tmp_path).resume(tmp_path)


def test_a_checkpoint_holds_the_model_and_no_pickle(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, max_steps=5)
    trainer.train(tmp_path, progress=False)
    model, card = load_flow_gnn(tmp_path)
    assert card.topology == "b4"
    assert {f.suffix for f in tmp_path.iterdir() if f.is_file()} == {
        ".json",
        ".safetensors",
        ".csv",
    }
    allocation = FlowGnnScheme(model).solve(trainer.problem)
    assert_feasible(trainer.problem, allocation)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("model.safetensors", b"garbage", "damaged safetensors file"),
        ("model.safetensors", None, "no such file"),
        ("model.json", b"{", "damaged JSON"),
        ("model.json", b"[]", "a JSON object"),
        ("model.json", b'{"format": 99}', "format: expected 1, found 99"),
        ("model.json", b'{"format": 1, "model": {"num_paths": 4}}', "weights_sha256"),
        (
            "model.json",
            b'{"format": 1, "model": {"num_paths": 0}, "weights_sha256": ""}',
            "num_paths",
        ),
    ],
)
def test_damaged_checkpoints_are_named(
    tmp_path: Path, file: str, content: bytes | None, words: str
) -> None:
    _trainer(tmp_path, max_steps=1).train(tmp_path, progress=False)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_flow_gnn(tmp_path)
    assert words in str(caught.value)
    assert file in str(caught.value)


def test_files_of_two_saves_and_unusable_weights_are_refused(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path / "a", max_steps=1)
    trainer.train(tmp_path / "a", progress=False)
    _trainer(tmp_path / "b", max_steps=1, seed=1).train(tmp_path / "b", progress=False)
    weights = (tmp_path / "a" / "model.safetensors").read_bytes()
    (tmp_path / "a" / "model.safetensors").write_bytes(
        (tmp_path / "b" / "model.safetensors").read_bytes()
    )
    with pytest.raises(InputError, match=r"not those of model\.json"):
        load_flow_gnn(tmp_path / "a")
    (tmp_path / "a" / "model.safetensors").write_bytes(weights)
    card = json.loads((tmp_path / "a" / "model.json").read_text())
    card["model"]["width"] = 8
    (tmp_path / "a" / "model.json").write_text(json.dumps(card))
    with pytest.raises(InputError, match="the weights do not fit model"):
        load_flow_gnn(tmp_path / "a")
    with torch.no_grad():
        next(trainer.model.parameters()).fill_(float("nan"))
    trainer.task.save(tmp_path / "c")
    with pytest.raises(InputError, match="infinite or NaN weights"):
        load_flow_gnn(tmp_path / "c")


def test_a_resumed_training_never_replaces_a_better_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a run (step 2) scores best; resumed with more steps, others score less: the model
    of step 2 stays."""
    scores = iter([0.5, 0.6, 0.9, 0.7, 0.8])
    monkeypatch.setattr(
        Trainer,
        "matrix_scores",
        lambda _: torch.tensor([[next(scores), 0.1]] * 4, dtype=torch.float64),
    )
    _trainer(tmp_path, max_steps=2).train(tmp_path, progress=False)
    assert load_flow_gnn(tmp_path)[1].validation == 0.9
    resumed = _trainer(tmp_path, max_steps=4)
    resumed.resume(tmp_path)
    resumed.train(tmp_path, progress=False)
    assert load_flow_gnn(tmp_path)[1].step == 2


def test_matrices_without_demand_do_not_disturb_training(tmp_path: Path) -> None:
    """Unprotected, the loss and gradient would be of order 1e30 and stay in the moments of Adam."""
    trainer = _trainer(tmp_path, augment=0.0, micro_batch=4, max_steps=12)
    rates = trainer.traffic.read(slice(None))
    rates[trainer.split.train[:3]] = 0
    rates[trainer.split.train[3:5]] *= 1e-9
    trainer.traffic = dataclasses.replace(trainer.traffic, rates=ArrayRates(rates))
    assert isinstance(trainer.model, UniversalFlowGnn)
    before = torch.cat(
        [p.detach().flatten().clone() for p in trainer.model.bound_price.parameters()]
    )
    trainer.train(tmp_path, progress=False)
    after = torch.cat([p.detach().flatten() for p in trainer.model.bound_price.parameters()])
    assert (after - before).abs().max() > 1e-3
    largest = float(_slot(trainer, "exp_avg_sq").max())
    assert largest < 1


def test_a_model_for_another_k_or_objective_is_refused(tmp_path: Path) -> None:
    _trainer(tmp_path, max_steps=1).train(tmp_path, progress=False)
    _, card = load_flow_gnn(tmp_path)
    check_fits(card, tmp_path, Objective())
    with pytest.raises(InputError, match="max_link_utilisation"):
        check_fits(card, tmp_path, Objective(ObjectiveName.MAX_LINK_UTILISATION))


def test_demands_with_noise_are_the_traffic_in_the_mean() -> None:
    """Of 5280 log-normal factors with a spread of 0.53 the mean is off by 0.007."""
    demand = torch.rand(40, 132) + 0.1
    ratio = Augmentation(0.5, 0).noisy(demand, Stream(0)) / demand
    assert float(ratio.std()) > 0.4
    assert float(ratio.mean()) == pytest.approx(1, abs=0.03)
