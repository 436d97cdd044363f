"""Many networks to learn from: topologies of topohub, random capacities and demands, light to hopeless loads, shocks.

Whole families of networks are held out (all years of one operator's network together), so that what is measured on
them is measured on networks never seen.  Of large networks a sample of the demands is enough: what a link sees does
not tell how many there are.
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
from teal.network.topology import FloatArray
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem

# How often a network of each group of topohub is drawn: gabriel are random planar graphs, caida autonomous systems.
SHARES = {"topozoo": 0.5, "sndlib": 0.1, "caida": 0.15, "gabriel": 0.15, "backbone": 0.1}
LEAST_NODES = 12
_MOST_NODES = 600  # of those to learn from
_ALL_PAIRS = 80  # nodes up to which all pairs have a demand; beyond, samples
_SOURCES, _DESTINATIONS = 60, 100  # of a sample, at most
_ALWAYS_HELD_OUT = ("abilene", "geant", "germany", "kdl", "uscarrier", "cogent", "interoute", "world")
_HELD_OUT = 4  # besides, one family in so many
_LOADS = (0.7, 12.0)  # largest utilisation under shortest-path routing
_FAILED = (0.01, 0.05)  # of the links
_OBJECTIVES = {
    ObjectiveName.TOTAL_FLOW: 0.6,
    ObjectiveName.WEIGHTED_FLOW: 0.1,
    ObjectiveName.LATENCY_PENALISED_FLOW: 0.1,
    ObjectiveName.MAX_LINK_UTILISATION: 0.2,
}


@dataclasses.dataclass(frozen=True)
class Universe:
    """Names of networks, as ``topohub:`` takes them: to learn from, and never to be learnt from."""

    train: tuple[str, ...]
    held_out: tuple[str, ...]

    def pick(self, rng: np.random.Generator) -> str:
        """A network to learn from: first its group, so that none drowns the others."""
        groups: dict[str, list[str]] = {}
        for name in self.train:
            groups.setdefault(group_of(name), []).append(name)
        shares = np.array([SHARES[group] for group in groups])
        names = list(groups.values())[rng.choice(len(groups), p=shares / shares.sum())]
        return names[rng.integers(len(names))]


def group_of(name: str) -> str:
    """``topozoo`` of ``topozoo/Nsfnet``."""
    return name.partition("/")[0]


def family(name: str) -> str:
    """``topozoo/Garr201112`` and ``topozoo/Garr199901`` are both ``garr``; a random graph or an AS is one by itself."""
    if group_of(name) in ("caida", "gabriel"):
        return name
    return re.sub(r"\d+|_nosc", "", name.rpartition("/")[2].lower())


def universe() -> Universe:
    """The networks of topohub of at least 12 nodes; large ones are in neither part, unless held out.

    Raises:
        InputError: topohub is not installed.
    """
    train, held_out = [], []
    for name, nodes in sizes().items():
        kin = family(name)
        digest = int(hashlib.sha256(kin.encode()).hexdigest(), 16)
        if any(word in kin for word in _ALWAYS_HELD_OUT) or digest % _HELD_OUT == 0:
            held_out.append(name)
        elif nodes <= _MOST_NODES:
            train.append(name)
    return Universe(tuple(train), tuple(held_out))


@lru_cache(maxsize=1)
def sizes() -> dict[str, int]:
    """Nodes of every network of topohub that has at least 12.

    Raises:
        InputError: topohub is not installed.
    """
    data, found = topohub_folder("networks", ""), {}
    for group in SHARES:
        for name, file in sorted(_files(data / group, group)):
            nodes = len(json.loads(file.read_text(encoding="utf-8"))["nodes"])
            if nodes >= LEAST_NODES:
                found[name] = nodes
    return found


def _files(folder: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    for inner in folder.iterdir():
        if inner.is_dir():
            yield from _files(inner, f"{name}/{inner.name}")
        elif inner.name.endswith(".json"):
            yield f"{name}/{inner.name[:-5]}", inner


@cache
def network(name: str, num_paths: int) -> tuple[Topology, PathSet]:
    """A network of the universe and its candidate paths, between all pairs or, of a large one, a sample of them."""
    topology = load_topology(f"topohub:{name}")
    pairs = all_pairs(topology)
    if topology.num_nodes > _ALL_PAIRS:
        rng = np.random.default_rng(topology.num_nodes)
        source = np.isin(pairs[:, 0], rng.choice(topology.num_nodes, _SOURCES, replace=False))
        pairs = pairs[source & (rng.random(len(pairs)) < _DESTINATIONS / topology.num_nodes)]
    return topology, compute_paths(topology, pairs, num_paths=num_paths, cache=False)


def draw(
    rng: np.random.Generator,
    name: str,
    batch: int,
    num_paths: int = 4,
    objective: ObjectiveName | None = None,
    device: torch.device | str = "cpu",
) -> Problem:
    """``batch`` random matrices on a network, in float32; each has its own capacities, load and shock.

    Args:
        objective: None for a random one.
    """
    topology, paths = network(name, num_paths)
    links = topology.num_links
    if objective is None:
        objective = rng.choice(list(_OBJECTIVES), p=list(_OBJECTIVES.values()))
    capacity = np.stack([_capacities(rng, links) for _ in range(batch)])
    demand = np.stack([_rates(rng, topology.num_nodes, paths) for _ in range(batch)])
    weight = rng.choice([1.0, 2.0, 4.0], paths.num_demands)
    problem = Problem.create(
        topology, paths, Objective(objective), demand,
        capacity=capacity, weight=weight, device=device, dtype=torch.float32,
    )  # fmt: skip
    first = torch.zeros_like(problem.even_splits)
    first[..., 0] = 1
    worst = problem.utilisation(torch.where(problem.path_mask, first, 0)).amax(1).clamp(min=1e-9).cpu().numpy()
    load = np.exp(rng.uniform(math.log(_LOADS[0]), math.log(_LOADS[1]), batch))
    demand *= (load / worst)[:, None]
    for row in range(batch):
        match rng.integers(3):
            case 1:
                demand[row] = flash_crowd(demand[row], rng)
            case 2:
                capacity[row, rng.random(links) < rng.uniform(*_FAILED)] = 0
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
    """(D,) gravity rates of a random skew, mean 1."""
    send, receive = rng.standard_normal((2, nodes))
    shape = send[paths.pairs[:, 0]] + receive[paths.pairs[:, 1]] + rng.standard_normal(paths.num_demands)
    rates = np.exp(rng.uniform(0.5, 2.0) * (shape - shape.max()))
    return rates / rates.mean()
