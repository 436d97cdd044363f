"""Pretraining: resumed runs against uninterrupted ones, trained models against untrained ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from teal.cli import main
from teal.errors import InputError
from teal.nn.checkpoint import load_price_gnn
from teal.nn.price_gnn import PriceGNN, Round
from teal.objectives import SINGLE_PROGRAMS, ObjectiveName
from teal.problem import Problem
from teal.problem.assessment import assess
from teal.problem.bounds import dual_bound
from teal.schemes.price_gnn import PriceGnnScheme
from teal.solvers.projection import cut_only
from teal.solvers.split_table import in_table
from teal_study.learning.network_pool import (
    CONGESTED,
    NetworkPool,
    draw_problem,
    group_of,
    network_family,
    pool_network,
    topohub_pool,
)
from teal_study.learning.pretrain import Pretrainer
from teal_study.learning.pretrain_price_gnn import losses, random_rounds
from teal_study.learning.settings import PretrainConfig

SMALL_POOL = NetworkPool(("topozoo/Compuserve", "topozoo/Nsfnet"), ("sndlib/geant",))


@pytest.mark.slow
def test_no_family_of_networks_is_both_trained_on_and_held_out() -> None:
    parts = topohub_pool()
    assert len(parts.held_out) >= 40
    assert len(parts.train) > 100
    assert not {network_family(n) for n in parts.train} & {
        network_family(n) for n in parts.held_out
    }
    for name in ("topozoo/Geant2012", "sndlib/geant", "sndlib/abilene", "sndlib/germany50"):
        assert name in parts.held_out


def test_drawn_problems_repeat_and_range_from_light_to_heavy_load() -> None:
    first, second = (
        draw_problem(np.random.default_rng(5), SMALL_POOL.train[0], 3) for _ in range(2)
    )
    assert torch.equal(first.demand, second.demand)
    assert torch.equal(first.capacity, second.capacity)
    rng, loads, failed, objectives = np.random.default_rng(0), [], 0, set()
    for _ in range(40):
        problem = draw_problem(rng, SMALL_POOL.train[1], 2)
        objectives.add(problem.objective.name)
        failed += int((problem.capacity == 0).any())
        load = torch.where(problem.capacity > 0, problem.demand.sum(1, keepdim=True), torch.inf)
        loads += (load / problem.capacity.clamp(min=1e-9)).amin(1).tolist()
    assert objectives == set(SINGLE_PROGRAMS) - {ObjectiveName.MAX_CONCURRENT_FLOW}
    assert failed > 3
    assert max(loads) > 10 * min(loads)


def test_draws_for_a_start_are_congested_and_mostly_planar() -> None:
    pool = NetworkPool(("topozoo/Nsfnet", "gabriel/25/0"), ())
    rng = np.random.default_rng(0)
    planar = [group_of(pool.pick(rng, CONGESTED)) == "gabriel" for _ in range(400)]
    assert np.mean(planar) == pytest.approx(0.6, abs=0.08), "0.45 of 0.45 + 0.3"
    for _ in range(20):
        problem = draw_problem(rng, SMALL_POOL.train[1], 2, draws=CONGESTED)
        plain = (problem.capacity > 0).all(1)  # a failure takes load from the first paths
        assert (problem.utilisation(problem.first_path_splits).amax(1)[plain] > 1.29).all()


def test_a_matrix_near_the_optimum_weighs_more_for_a_start(tmp_path: Path) -> None:
    """The weight is 0.02 / (gap + 0.01), with the gap of the splits, cut to fit, and of the prices
    as certified."""
    start, usual = (
        Pretrainer(_config(tmp_path, aim=aim), SMALL_POOL) for aim in ("start", "allocation")
    )
    assert isinstance(start.model, PriceGNN)
    for seed in range(4):
        problem = draw_problem(
            np.random.default_rng(seed),
            SMALL_POOL.train[1],
            1,
            objective=ObjectiveName.TOTAL_FLOW,
            draws=CONGESTED,
        )
        with torch.no_grad():
            of_start, of_usual = (
                float(each.task.loss(start.model, problem, np.random.default_rng(seed)))
                for each in (start, usual)
            )
            counts = np.random.default_rng(seed)
            rounds, prices = start.model(
                problem, random_rounds(counts, 3), random_rounds(counts, 1)
            )
        carried = float(cut_only(problem, rounds[-1].splits, prices).satisfied_demand[0])
        gap = float(dual_bound(problem, prices)[0]) / float(problem.demand.sum()) - carried
        assert of_start / of_usual == pytest.approx(0.02 / (gap + 0.01), rel=1e-3)


def test_a_start_of_pdhg_is_an_aim_of_price_gnn_alone(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--aim"):
        _config(tmp_path, model="flow", aim="start")


def test_a_run_from_a_model_keeps_its_rounds_or_takes_others(tmp_path: Path) -> None:
    first = Pretrainer(_config(tmp_path / "a", rounds=4, bound_rounds=3), SMALL_POOL)
    first.save(tmp_path / "a")
    for rounds, expected in ((0, (4, 3)), (8, (8, 3))):
        config = _config(tmp_path / "b", rounds=rounds, bound_rounds=0, from_=str(tmp_path / "a"))
        model = Pretrainer(config, SMALL_POOL).model
        assert isinstance(model, PriceGNN)
        assert (model.config.rounds, model.config.bound_rounds) == expected
        assert len(model.log_temperature) == expected[0] + 1


def _config(out: Path, **changes: object) -> PretrainConfig:
    settings: dict[str, object] = {
        "hidden": 8,
        "rounds": 3,
        "bound_rounds": 1,
        "max_steps": 6,
        "device": "cpu",
        **changes,
    }
    return PretrainConfig(out=out, **settings)  # type: ignore[arg-type]


@pytest.mark.slow
def test_pretraining_narrows_the_gap(tmp_path: Path) -> None:
    shapes = {"hidden": 16, "rounds": 8, "bound_rounds": 2}
    trainer = Pretrainer(_config(tmp_path, max_steps=40, learning_rate=1e-2, **shapes), SMALL_POOL)
    flow = ObjectiveName.TOTAL_FLOW
    cases = [
        draw_problem(np.random.default_rng([9, i]), SMALL_POOL.train[i % 2], 4, objective=flow)
        for i in range(6)
    ]

    def gap() -> float:
        assert isinstance(trainer.model, PriceGNN)
        scheme = PriceGnnScheme(trainer.model)
        return float(torch.cat([assess(case, scheme.solve(case)).gap for case in cases]).mean())

    before = gap()
    for _ in range(40):
        trainer.one_step()
    assert gap() < before - 0.1


def test_a_resumed_pretraining_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    full_run = Pretrainer(_config(tmp_path / "whole"), SMALL_POOL)
    full_run.train(tmp_path / "whole", progress=False)
    first = Pretrainer(_config(tmp_path / "parts"), SMALL_POOL)
    for _ in range(3):
        first.one_step()
    first.save(tmp_path / "parts")
    second = Pretrainer(_config(tmp_path / "parts"), SMALL_POOL)
    second.resume(tmp_path / "parts")
    second.train(tmp_path / "parts", progress=False)
    resumed, uninterrupted = (
        load_price_gnn(tmp_path / name)[0].state_dict() for name in ("parts", "whole")
    )
    assert all(torch.equal(resumed[name], uninterrupted[name]) for name in uninterrupted)
    with pytest.raises(InputError, match="hidden"):
        Pretrainer(_config(tmp_path / "parts", hidden=9), SMALL_POOL).resume(tmp_path / "parts")


def test_the_checkpoint_of_pretraining_lists_the_held_out_networks(tmp_path: Path) -> None:
    Pretrainer(_config(tmp_path), SMALL_POOL).save(tmp_path)
    model, card = load_price_gnn(tmp_path)
    assert card.held_out == SMALL_POOL.held_out
    assert model.config.hidden == 8
    with pytest.raises(InputError, match="a model of the kind price-gnn, found flow-gnn"):
        load_price_gnn(Path(__file__).parents[3] / "models" / "b4")


@pytest.mark.slow
def test_pretrain_command_trains_resumes_and_refuses_to_overwrite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "pretrain",
        "--out",
        str(tmp_path),
        "--max-steps",
        "2",
        "--hidden",
        "4",
        "--rounds",
        "2",
    ]
    assert main(arguments) == 0
    assert "2 steps" in capsys.readouterr().out
    assert main(arguments) == 2, "an existing run is not overwritten"
    assert main([*arguments, "--resume"]) == 0
    assert main(["pretrain", "--out", str(tmp_path / "x"), "--rounds", "-1"]) == 2


def test_networks_of_the_pool_are_loaded_once() -> None:
    assert pool_network(SMALL_POOL.train[0], 4) is pool_network(SMALL_POOL.train[0], 4)


@pytest.mark.slow
def test_coma_for_split_tables_improves_an_initial_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Split tables of one entry on two networks: a model trained by COMA alone satisfies more
    demand than its initial model, by tables of its own splits, without a search of better ones.

    Over 96 matrices the difference, nearly a hundredth, is five times its standard error.
    """
    first = Pretrainer(
        _config(tmp_path / "a", max_steps=40, learning_rate=5e-3, rounds=4), SMALL_POOL
    )
    first.train(tmp_path / "a", progress=False)
    config = _config(
        tmp_path / "b",
        from_=str(tmp_path / "a"),
        rounds=0,
        learner="coma",
        entries=1,
        std=0.5,
        max_steps=50,
        learning_rate=6e-3,
    )
    second = Pretrainer(config, SMALL_POOL)
    for weight, other in zip(second.model.parameters(), first.average.parameters(), strict=True):
        assert torch.equal(weight, other)
    flow = ObjectiveName.TOTAL_FLOW
    cases = [
        draw_problem(np.random.default_rng([8, i]), SMALL_POOL.train[i % 2], 4, objective=flow)
        for i in range(96)
    ]

    @torch.no_grad()
    def satisfied_demand(model: nn.Module) -> float:
        found = []
        for case in cases:
            rounds, prices = model(case)
            table = in_table(rounds[-1].splits, 1)
            found.append(cut_only(case, table, prices).satisfied_demand)
        return float(torch.cat(found).mean())

    def without_direct_losses(
        problem: Problem, rounds: list[Round], prices: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        parts = losses(problem, rounds, prices)
        return {name: 0 * part for name, part in parts.items()}

    monkeypatch.setattr("teal_study.learning.pretrain_price_gnn.losses", without_direct_losses)
    before = satisfied_demand(first.average)
    second.train(tmp_path / "b", progress=False)
    assert satisfied_demand(second.average) > before + 0.003


def test_pretraining_of_split_tables_without_coma_is_refused() -> None:
    with pytest.raises(InputError, match="no gradient"):
        PretrainConfig(out=Path("x"), entries=4)
