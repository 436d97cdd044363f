"""Reinforcement-learning environment with Gymnasium's interface: one traffic matrix per episode,
the action is an allocation.

>>> env = TrafficEnvironment(topology, paths, traffic)      # pip install 'teal-te[rl]'
>>> name = "teal_study.learning.environment:teal/Traffic-v0"  # or teal/Traffic-v0, once imported
>>> env = gymnasium.make(name, topology="b4", traffic="gravity:count=100,load=3")
>>> observation, _ = env.reset(seed=0)
>>> observation, reward, terminated, truncated, info = env.step(env.action_space.sample())

- *Observation*: ``demand`` (D,) and ``capacity`` (E,), both over the mean link capacity.
- *Action*: (D, K) logits; a softmax over the live paths of each demand gives splits, which are
  projected to feasible ones.
- *Reward*: value of the feasible allocation over the value of all demand; under
  max_link_utilisation minus the largest utilisation.

An episode is one step: matrices do not depend on allocations.  ``info`` has the splits (D, K) and
the value.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch

from teal.errors import InputError
from teal.formats import load_topology, load_traffic
from teal.network import PathSet, Topology, TrafficMatrices, compute_paths
from teal.objectives import Objective
from teal.problem import Problem
from teal.runtime.arrays import AnyArray
from teal.solvers.projection import project
from teal_study.learning.losses import total_demand_value

# Largest absolute value of a logit; larger differences put all traffic on one path.
_MAX_LOGIT = 10.0
# Upper bound of demands and capacities, in mean link capacities.
_MAX_OBSERVED = 1e6


class TrafficEnvironment(gymnasium.Env[dict[str, AnyArray], AnyArray]):
    """Gymnasium environment over the matrices of a network, in random order, one per episode.

    Args:
        topology: the network.
        paths: candidate paths of the D demands.
        traffic: the traffic matrices.
        objective: objective or its name; a single program without demand classes.

    Raises:
        InputError: the objective is a sequence of programs, or the paths belong to another network.
    """

    metadata = {"render_modes": []}  # noqa: RUF012, as Gymnasium declares it

    def __init__(
        self,
        topology: Topology,
        paths: PathSet,
        traffic: TrafficMatrices,
        objective: Objective | str = "total_flow",
    ) -> None:
        objective = Objective.of(objective)
        if objective.rules.is_sequence:
            raise InputError("environment", "objective", "a single program", objective.name)
        self._traffic = traffic
        self._problem = Problem.create(topology, paths, objective, traffic.read([0]))
        # Unit of observations, the mean link capacity, and the spaces of actions and observations.
        self._mean_capacity = float(topology.capacity[topology.capacity > 0].mean())
        shape = (paths.num_demands, paths.num_paths)
        max_observation = np.float32(_MAX_OBSERVED)
        self.action_space = gymnasium.spaces.Box(-_MAX_LOGIT, _MAX_LOGIT, shape, np.float32)
        self.observation_space = gymnasium.spaces.Dict(  # type: ignore[assignment]
            demand=gymnasium.spaces.Box(0, max_observation, shape[:1], np.float32),
            capacity=gymnasium.spaces.Box(0, max_observation, (topology.num_links,), np.float32),
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, AnyArray], dict[str, Any]]:
        """Begin an episode with a random matrix, or with that of ``options={"row": INDEX}``.

        Returns:
            Observation, and the row of the matrix.
        """
        super().reset(seed=seed)
        requested_row = (options or {}).get("row")
        row = (
            int(self.np_random.integers(self._traffic.num_matrices))
            if requested_row is None
            else int(requested_row)
        )
        self._problem = self._problem.with_demand(self._traffic.read([row]))
        return self._observation(), {"row": row}

    def step(
        self, action: AnyArray
    ) -> tuple[dict[str, AnyArray], float, bool, bool, dict[str, Any]]:
        """Allocate by the logits of an action, and end the episode.

        Args:
            action: (D, K) logits.

        Returns:
            Observation, reward, terminated (True), truncated (False), and splits (D, K) and value.

        Raises:
            InputError: the action has another shape than (D, K), or a NaN.
        """
        problem = self._problem
        logits = torch.as_tensor(np.asarray(action), dtype=torch.float64)[None]
        if logits.shape != problem.path_mask.shape or bool(logits.isnan().any()):
            actual = (
                "NaN" if logits.shape == problem.path_mask.shape else str(tuple(logits.shape[1:]))
            )
            raise InputError("environment", "action", f"{self.action_space.shape} numbers", actual)
        logits = logits.clamp(-_MAX_LOGIT, _MAX_LOGIT).masked_fill(~problem.path_mask, -torch.inf)
        # The softmax of a demand without a live path is NaN: it gets splits of 0.
        splits = torch.nan_to_num(logits.softmax(-1))
        if problem.objective.maximises_value:
            splits = project(problem, splits)
            value = problem.value(splits)
            reward = value / total_demand_value(problem)
        else:
            value = problem.value(splits)
            reward = problem.objective.rules.sense * value
        info = {"splits": splits[0].numpy(), "value": float(value[0])}
        return self._observation(), float(reward[0]), True, False, info

    def _observation(self) -> dict[str, AnyArray]:
        """Return demands (D,) and capacities (E,) in mean link capacities."""
        return {
            "demand": (self._problem.demand[0].numpy() / self._mean_capacity).astype(np.float32),
            "capacity": (self._problem.capacity[0].numpy() / self._mean_capacity).astype(
                np.float32
            ),
        }


def named_environment(
    topology: Topology | str,
    traffic: TrafficMatrices | str,
    num_paths: int = 4,
    objective: Objective | str = "total_flow",
) -> TrafficEnvironment:
    """Create the environment of ``gymnasium.make(ENVIRONMENT, ...)``, with K candidate paths.

    Args:
        topology: network, or its file or name.
        traffic: traffic matrices, or their file or name.
        num_paths: K, candidate paths of a demand.
        objective: objective or its name; a single program without demand classes.

    Raises:
        InputError: an invalid argument.
    """
    network = load_topology(topology) if isinstance(topology, str) else topology
    matrices = load_traffic(traffic, network) if isinstance(traffic, str) else traffic
    paths = compute_paths(network, matrices.pairs, num_paths=num_paths)
    return TrafficEnvironment(network, paths, matrices, objective)


ENVIRONMENT = "teal/Traffic-v0"
if ENVIRONMENT not in gymnasium.registry:
    gymnasium.register(ENVIRONMENT, entry_point=f"{__name__}:{named_environment.__name__}")
