"""Random training problems for models of any network: topologies of topohub with random
capacities, demands, loads and failures.

Families of networks are held out as a whole (all years of one operator's network), so that results
on held-out networks show generalisation to unseen networks.  Large networks get a sample of the
demands, which saves time and does not bias training: no input of the model depends on the number of
demands.  Entry points: :func:`topohub_pool`, :func:`draw_problem`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
import torch

from teal.formats import load_topology
from teal.formats.topohub_names import stored_files, topohub_folder
from teal.network import PathSet, Topology, all_pairs, compute_paths
from teal.network.disturbances import flash_crowd
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.runtime.arrays import FloatArray

# Groups of topohub in use: topozoo, sndlib and backbone are operator networks, caida networks of
# autonomous systems, gabriel random planar graphs.
GROUPS = ("topozoo", "sndlib", "caida", "gabriel", "backbone")
# Smallest number of nodes; smaller networks have few alternative paths.
MIN_NODES = 12
# Largest number of nodes of a training network; a step on larger ones takes too long.
_MAX_TRAINING_NODES = 600
# Largest number of nodes with demands between all pairs; larger networks have a sample of pairs.
_MAX_NODES_ALL_PAIRS = 80
# Sources of a sample, and mean number of targets of each: about 6,000 demands, as all pairs of 80
# nodes.
_SAMPLE_SOURCES = 60
_SAMPLE_TARGETS = 100
# Families with these words in their names are held out: published results use them.
_ALWAYS_HELD_OUT = (
    "abilene",
    "geant",
    "germany",
    "kdl",
    "uscarrier",
    "cogent",
    "interoute",
    "world",
)
# One in this many of the other families is held out.
_HELD_OUT_ONE_IN = 4
# Range of the probability that a link fails, in the third of the matrices with failures.
_FAILED_SHARES = (
    0.01,
    0.05,
)
_OBJECTIVES = (
    ObjectiveName.TOTAL_FLOW,
    ObjectiveName.WEIGHTED_FLOW,
    ObjectiveName.LATENCY_PENALISED_FLOW,
    ObjectiveName.MAX_LINK_UTILISATION,
)


class Draws(NamedTuple):
    """Distribution of random training problems.

    Attributes:
        groups: probability of each of :data:`GROUPS`.
        objectives: probabilities of total_flow, weighted_flow, latency_penalised_flow and
            max_link_utilisation.
        utilisation: range (log-uniform) of the largest utilisation with all demand on first paths,
            before a flash crowd or failures.
    """

    groups: tuple[float, ...]
    objectives: tuple[float, ...]
    utilisation: tuple[float, float]


# Any load: from no congestion to demand far above the capacities.  Mostly total_flow, the most
# frequent objective in use.  Here and below: probabilities of the groups and of the objectives, and
# range of the utilisation.
ANY_LOAD = Draws((0.5, 0.1, 0.15, 0.15, 0.1), (0.6, 0.1, 0.1, 0.2), (0.7, 12.0))
# Problems on which PDHG needs many iterations: congested planar networks, value maximisation.
CONGESTED = Draws((0.3, 0.1, 0.05, 0.45, 0.1), (0.75, 0.1, 0.1, 0.05), (1.3, 12.0))


@dataclasses.dataclass(frozen=True)
class NetworkPool:
    """Names of training and held-out networks, without the prefix ``topohub:``.

    Attributes:
        train: training networks, of at most 600 nodes.
        held_out: networks for evaluation only, of any size.
    """

    train: tuple[str, ...]
    held_out: tuple[str, ...]

    def pick(self, rng: np.random.Generator, draws: Draws = ANY_LOAD) -> str:
        """Draw the name of a training network: first a group by its probability, then one of its
        networks, all with the same probability.

        Args:
            rng: source of randomness.
            draws: probabilities of the groups.
        """
        names_by_group: dict[str, list[str]] = {}
        for name in self.train:
            names_by_group.setdefault(group_of(name), []).append(name)
        group_probabilities = np.array(
            [draws.groups[GROUPS.index(group)] for group in names_by_group]
        )
        names = list(names_by_group.values())[
            rng.choice(len(names_by_group), p=group_probabilities / group_probabilities.sum())
        ]
        return names[rng.integers(len(names))]


def group_of(name: str) -> str:
    """Return the group in the name of a network: ``topozoo`` for ``topozoo/Nsfnet``."""
    return name.partition("/")[0]


def network_family(name: str) -> str:
    """Return the family of a network: ``garr`` for ``topozoo/Garr201112`` and
    ``topozoo/Garr199901``.

    Every network of the groups gabriel (random graphs) and caida (autonomous systems) is a separate
    family.
    """
    if group_of(name) in ("caida", "gabriel"):
        return name
    return re.sub(r"\d+|_nosc", "", name.rpartition("/")[2].lower())


def topohub_pool() -> NetworkPool:
    """Divide the networks of topohub with at least 12 nodes into training and held-out networks.

    Held out are the families of published results, and one in four of the others by a hash of the
    family.  Networks with more than 600 nodes in the remaining families are in neither part.

    Raises:
        InputError: topohub is not installed.
    """
    train = []
    held_out = []
    for name, num_nodes in network_sizes().items():
        family = network_family(name)
        family_hash = int(hashlib.sha256(family.encode()).hexdigest(), 16)
        if any(word in family for word in _ALWAYS_HELD_OUT) or family_hash % _HELD_OUT_ONE_IN == 0:
            held_out.append(name)
        elif num_nodes <= _MAX_TRAINING_NODES:
            train.append(name)
    return NetworkPool(tuple(train), tuple(held_out))


@lru_cache(maxsize=1)
def network_sizes() -> dict[str, int]:
    """Return the number of nodes of every network of topohub with at least 12 nodes.

    Raises:
        InputError: topohub is not installed.
    """
    networks_folder = topohub_folder("networks", "")
    num_nodes_by_name = {}
    for group in GROUPS:
        for name, file in sorted(stored_files(networks_folder / group, f"{group}/")):
            num_nodes = len(json.loads(file.read_text(encoding="utf-8"))["nodes"])
            if num_nodes >= MIN_NODES:
                num_nodes_by_name[name] = num_nodes
    return num_nodes_by_name


@cache
def pool_network(name: str, num_paths: int) -> tuple[Topology, PathSet]:
    """Return a network of topohub and its candidate paths, cached.

    Networks of more than 80 nodes have paths for a fixed sample of the node pairs, others for all.

    Args:
        name: name of the network.
        num_paths: K, candidate paths per pair.
    """
    topology = load_topology(f"topohub:{name}")
    pairs = all_pairs(topology)
    if topology.num_nodes > _MAX_NODES_ALL_PAIRS:
        # A fixed seed: a network always has the same sample.
        rng = np.random.default_rng(topology.num_nodes)
        has_sampled_source = np.isin(
            pairs[:, 0], rng.choice(topology.num_nodes, _SAMPLE_SOURCES, replace=False)
        )
        pairs = pairs[
            has_sampled_source & (rng.random(len(pairs)) < _SAMPLE_TARGETS / topology.num_nodes)
        ]
    return topology, compute_paths(topology, pairs, num_paths=num_paths, cache=False)


def draw_problem(
    rng: np.random.Generator,
    name: str,
    batch: int,
    num_paths: int = 4,
    objective: ObjectiveName | None = None,
    device: torch.device | str = "cpu",
    draws: Draws = ANY_LOAD,
) -> Problem:
    """Draw a random problem of B matrices on a network, float32.

    Each matrix has random capacities, gravity demands, a random load and, with probability 1/3
    each, a flash crowd or failed links.

    Args:
        rng: source of randomness.
        name: name of the network.
        batch: B, number of traffic matrices.
        num_paths: K, candidate paths of each demand.
        objective: objective; None for a random one.
        device: device of the tensors.
        draws: probabilities of the objectives, and range of loads.
    """
    # Draw relative capacities (B, E), demands (B, D) with mean 1, and weights of the demands.
    topology, paths = pool_network(name, num_paths)
    num_links = topology.num_links
    if objective is None:
        objective = rng.choice(list(_OBJECTIVES), p=draws.objectives)
    capacity = np.stack([_capacities(rng, num_links) for _ in range(batch)])
    demand = np.stack([_rates(rng, topology.num_nodes, paths) for _ in range(batch)])
    weight = rng.choice([1.0, 2.0, 4.0], paths.num_demands)
    problem = Problem.create(
        topology,
        paths,
        Objective(objective),
        demand,
        capacity=capacity,
        weight=weight,
        device=device,
        dtype=torch.float32,
    )
    # Scale each matrix so that, with all demand on first paths, the largest utilisation is a
    # log-uniform random number.
    max_utilisation = (
        problem.utilisation(problem.first_path_splits).amax(1).clamp(min=1e-9).cpu().numpy()
    )
    low, high = np.log(draws.utilisation)
    target_utilisation = np.exp(rng.uniform(low, high, batch))
    demand *= (target_utilisation / max_utilisation)[:, None]
    # Apply a flash crowd, failures or nothing to each matrix, with equal probability.
    for matrix_index in range(batch):
        match rng.integers(3):
            case 1:
                demand[matrix_index] = flash_crowd(demand[matrix_index], rng)
            case 2:
                capacity[matrix_index, rng.random(num_links) < rng.uniform(*_FAILED_SHARES)] = 0
    return problem.with_demand(torch.from_numpy(demand)).with_capacity(torch.from_numpy(capacity))


def _capacities(rng: np.random.Generator, num_links: int) -> FloatArray:
    """Draw relative link capacities (E,): all equal, of four sizes, or log-normal."""
    match rng.integers(3):
        case 0:
            return np.ones(num_links)
        case 1:
            return rng.choice([1.0, 2.5, 4.0, 10.0], num_links)
        case _:
            return np.exp(0.7 * rng.standard_normal(num_links))


def _rates(rng: np.random.Generator, num_nodes: int, paths: PathSet) -> FloatArray:
    """Draw gravity demands (D,) with mean 1 and random skew.

    Args:
        rng: source of randomness.
        num_nodes: number of nodes.
        paths: paths of the D node pairs.
    """
    # Log-normal sizes of the nodes and noise of the pairs; a random power sets the skew.
    log_sent_size, log_received_size = rng.standard_normal((2, num_nodes))
    log_rate = (
        log_sent_size[paths.pairs[:, 0]]
        + log_received_size[paths.pairs[:, 1]]
        + rng.standard_normal(paths.num_demands)
    )
    rates = np.exp(rng.uniform(0.5, 2.0) * (log_rate - log_rate.max()))
    return rates / rates.mean()
