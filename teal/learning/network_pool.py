"""The networks that a PriceGNN is trained on: topologies of topohub with random capacities, demands, loads and shocks.

Whole families of networks are held out (all years of one operator's network together), so that a measurement on
held-out networks is one on networks that the model has never met.  Of large networks a sample of the demands is
used: the inputs of a link do not reveal how many demands there are.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib.resources.abc import Traversable

import numpy as np
import torch

from teal.formats import load_topology
from teal.formats.topohub_names import topohub_folder
from teal.network import PathSet, Topology, all_pairs, compute_paths
from teal.network.disturbances import flash_crowd
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.runtime.arrays import FloatArray

# Share of the draws for each group of topohub: gabriel are random planar graphs, caida autonomous systems.
GROUP_SHARES = {"topozoo": 0.5, "sndlib": 0.1, "caida": 0.15, "gabriel": 0.15, "backbone": 0.1}
MIN_NODES = 12  # of a network in the pool
_MAX_TRAINING_NODES = 600  # of a network to train on
_MAX_NODES_ALL_PAIRS = 80  # on larger networks only a sample of the pairs has a demand
_SAMPLE_SOURCES, _SAMPLE_TARGETS = 60, 100  # sources of a sample, and targets of each on average
# Families with these words in their names are held out: published results use them.
_ALWAYS_HELD_OUT = ("abilene", "geant", "germany", "kdl", "uscarrier", "cogent", "interoute", "world")
_HELD_OUT_ONE_IN = 4  # of the other families, one in this many is held out
_LOADS = (0.7, 12.0)  # range of the largest utilisation under shortest-path routing
_FAILED_SHARES = (0.01, 0.05)  # range of the share of failed links
# Share of the draws for each objective.
_OBJECTIVE_SHARES = {
    ObjectiveName.TOTAL_FLOW: 0.6,
    ObjectiveName.WEIGHTED_FLOW: 0.1,
    ObjectiveName.LATENCY_PENALISED_FLOW: 0.1,
    ObjectiveName.MAX_LINK_UTILISATION: 0.2,
}


@dataclasses.dataclass(frozen=True)
class NetworkPool:
    """Names of networks, as they follow ``topohub:``.

    Attributes:
        train: to train on.
        held_out: never trained on.
    """

    train: tuple[str, ...]
    held_out: tuple[str, ...]

    def pick(self, rng: np.random.Generator) -> str:
        """A random network to train on: first a group by its share, then one of its networks."""
        groups: dict[str, list[str]] = {}
        for name in self.train:
            groups.setdefault(group_of(name), []).append(name)
        shares = np.array([GROUP_SHARES[group] for group in groups])
        names = list(groups.values())[rng.choice(len(groups), p=shares / shares.sum())]
        return names[rng.integers(len(names))]


def group_of(name: str) -> str:
    """The group of a name: ``topozoo`` for ``topozoo/Nsfnet``."""
    return name.partition("/")[0]


def family_of(name: str) -> str:
    """The family of a name: ``garr`` for ``topozoo/Garr201112`` and ``topozoo/Garr199901``.

    Every random graph and every autonomous system is a family of its own.
    """
    if group_of(name) in ("caida", "gabriel"):
        return name
    return re.sub(r"\d+|_nosc", "", name.rpartition("/")[2].lower())


def topohub_pool() -> NetworkPool:
    """The networks of topohub with at least 12 nodes; those with more than 600 are not trained on.

    Raises:
        InputError: topohub is not installed.
    """
    train, held_out = [], []
    for name, nodes in network_sizes().items():
        family = family_of(name)
        digest = int(hashlib.sha256(family.encode()).hexdigest(), 16)
        if any(word in family for word in _ALWAYS_HELD_OUT) or digest % _HELD_OUT_ONE_IN == 0:
            held_out.append(name)
        elif nodes <= _MAX_TRAINING_NODES:
            train.append(name)
    return NetworkPool(tuple(train), tuple(held_out))


@lru_cache(maxsize=1)
def network_sizes() -> dict[str, int]:
    """Number of nodes of every network of topohub that has at least 12.

    Raises:
        InputError: topohub is not installed.
    """
    data, nodes_by_name = topohub_folder("networks", ""), {}
    for group in GROUP_SHARES:
        for name, file in sorted(_files(data / group, group)):
            nodes = len(json.loads(file.read_text(encoding="utf-8"))["nodes"])
            if nodes >= MIN_NODES:
                nodes_by_name[name] = nodes
    return nodes_by_name


def _files(folder: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    for inner in folder.iterdir():
        if inner.is_dir():
            yield from _files(inner, f"{name}/{inner.name}")
        elif inner.name.endswith(".json"):
            yield f"{name}/{inner.name[:-5]}", inner


@cache
def pool_network(name: str, num_paths: int) -> tuple[Topology, PathSet]:
    """A network of the topohub_pool and its candidate paths, between all pairs or, of a large one, a sample of them."""
    topology = load_topology(f"topohub:{name}")
    pairs = all_pairs(topology)
    if topology.num_nodes > _MAX_NODES_ALL_PAIRS:
        rng = np.random.default_rng(topology.num_nodes)
        source = np.isin(pairs[:, 0], rng.choice(topology.num_nodes, _SAMPLE_SOURCES, replace=False))
        pairs = pairs[source & (rng.random(len(pairs)) < _SAMPLE_TARGETS / topology.num_nodes)]
    return topology, compute_paths(topology, pairs, num_paths=num_paths, cache=False)


def draw_problem(
    rng: np.random.Generator,
    name: str,
    batch: int,
    num_paths: int = 4,
    objective: ObjectiveName | None = None,
    device: torch.device | str = "cpu",
) -> Problem:
    """``batch`` random matrices on a network, float32; each has random capacities, load and shock.

    Args:
        rng: source of all random numbers.
        name: of the network.
        batch: B.
        num_paths: K.
        objective: None for a random one.
        device: where the tensors live.
    """
    topology, paths = pool_network(name, num_paths)
    links = topology.num_links
    if objective is None:
        objective = rng.choice(list(_OBJECTIVE_SHARES), p=list(_OBJECTIVE_SHARES.values()))
    capacity = np.stack([_capacities(rng, links) for _ in range(batch)])
    demand = np.stack([_rates(rng, topology.num_nodes, paths) for _ in range(batch)])
    weight = rng.choice([1.0, 2.0, 4.0], paths.num_demands)
    problem = Problem.create(
        topology, paths, Objective(objective), demand,
        capacity=capacity, weight=weight, device=device, dtype=torch.float32,
    )  # fmt: skip
    largest = problem.utilisation(problem.first_path_splits).amax(1).clamp(min=1e-9).cpu().numpy()
    load = np.exp(rng.uniform(math.log(_LOADS[0]), math.log(_LOADS[1]), batch))
    demand *= (load / largest)[:, None]
    for row in range(batch):
        match rng.integers(3):
            case 1:
                demand[row] = flash_crowd(demand[row], rng)
            case 2:
                capacity[row, rng.random(links) < rng.uniform(*_FAILED_SHARES)] = 0
    return problem.with_demand(torch.from_numpy(demand)).with_capacity(torch.from_numpy(capacity))


def _capacities(rng: np.random.Generator, links: int) -> FloatArray:
    match rng.integers(3):
        case 0:
            return np.ones(links)
        case 1:
            return rng.choice([1.0, 2.5, 4.0, 10.0], links)
        case _:
            return np.exp(0.7 * rng.standard_normal(links))


def _rates(rng: np.random.Generator, nodes: int, paths: PathSet) -> FloatArray:
    """(D,) gravity rates with mean 1 and random skew."""
    send, receive = rng.standard_normal((2, nodes))
    shape = send[paths.pairs[:, 0]] + receive[paths.pairs[:, 1]] + rng.standard_normal(paths.num_demands)
    rates = np.exp(rng.uniform(0.5, 2.0) * (shape - shape.max()))
    return rates / rates.mean()
