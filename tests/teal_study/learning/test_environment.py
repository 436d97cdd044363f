"""The environment, by Gymnasium's own checker and by the allocations that it rewards."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import teal

pytest.importorskip("gymnasium", reason="pip install gymnasium for the environment")
import gymnasium
from gymnasium.utils.env_checker import check_env

from teal.errors import InputError
from teal_study.learning.environment import ENVIRONMENT, TrafficEnvironment


def _environment(objective: str = "total_flow") -> TrafficEnvironment:
    topology = teal.load_topology("b4")
    traffic = teal.load_traffic("gravity:seed=0,count=3,load=4", topology)
    return TrafficEnvironment(
        topology, teal.compute_paths(topology, traffic.pairs), traffic, objective
    )


@pytest.mark.parametrize("objective", ["total_flow", "max_link_utilisation"])
def test_gymnasiums_checker_finds_no_fault(objective: str) -> None:
    check_env(_environment(objective), skip_render_check=True)


def test_the_reward_is_that_of_the_feasible_allocation_and_at_most_the_optimum() -> None:
    environment = _environment()
    observation, info = environment.reset(options={"row": 1})
    assert info["row"] == 1
    _, reward, terminated, truncated, info = environment.step(np.zeros((132, 4), np.float32))
    topology = teal.load_topology("b4")
    traffic = teal.load_traffic("gravity:seed=0,count=3,load=4", topology)
    demand = traffic.read([1])
    np.testing.assert_allclose(
        observation["demand"], demand[0] / topology.capacity.mean(), rtol=1e-5
    )
    problem = teal.Problem.create(
        topology, teal.compute_paths(topology, traffic.pairs), "total_flow", demand
    )
    splits = torch.from_numpy(info["splits"])[None]
    assert float(teal.violations(problem, splits).largest) < 1e-9
    assert reward == pytest.approx(float(problem.value(splits)[0] / problem.demand.sum()))
    assert reward <= float(teal.solve(problem, gap=1e-4).bound[0] / problem.demand.sum())
    assert terminated
    assert not truncated


def test_an_action_that_is_none_earns_nothing() -> None:
    environment = _environment()
    environment.reset(options={"row": 1})
    action = np.zeros((132, 4), np.float32)
    action[5, 2] = np.nan
    for wrong, words in ((action, "NaN"), (action[:, :1], r"\(132, 1\)"), (action[0], r"\(4,\)")):
        with pytest.raises(InputError, match=words):
            environment.step(wrong)


def test_sequences_of_programs_are_refused() -> None:
    with pytest.raises(InputError, match="a single program"):
        _environment("max_min")


def test_the_reward_of_the_largest_utilisation_is_its_negative() -> None:
    environment = _environment("max_link_utilisation")
    environment.reset(options={"row": 1})
    _, reward, _, _, info = environment.step(np.zeros((132, 4), np.float32))
    problem = environment._problem
    assert reward == pytest.approx(-float(problem.utilisation(problem.even_splits).max()))
    assert info["value"] == -reward


def test_gymnasium_makes_it_by_name() -> None:
    made = gymnasium.make(ENVIRONMENT, topology="b4", traffic="gravity:seed=0,count=3,load=4")
    expected = _environment()
    action = np.full(expected.action_space.shape or (), 0.5, np.float32)
    rewards = []
    for environment in (made, expected):
        environment.reset(seed=7)
        rewards.append(environment.step(action)[1])
    assert rewards[0] == rewards[1]
