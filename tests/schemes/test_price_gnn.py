"""The shipped universal checkpoint on networks that were held out of its training, against LP-all
optima."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

import teal
from baselines.lp_all import LpAll
from teal.nn.checkpoint import load_price_gnn
from teal.runtime.storage import model_folder
from teal.schemes.models import load_model
from teal.schemes.price_gnn import DEFAULT_CHECKPOINT, PriceGnnScheme
from teal_study.learning.network_pool import network_family, topohub_pool

NETWORKS = ("topohub:sndlib/geant", "topohub:sndlib/abilene", "b4")


def test_the_card_of_price_gnn_lists_the_held_out_networks() -> None:
    _, card = load_price_gnn(model_folder(DEFAULT_CHECKPOINT))
    assert set(card.held_out) >= set(topohub_pool().held_out)
    held_out_families = {network_family(name) for name in card.held_out}
    assert {"geant", "abilene", "germany"} <= held_out_families


@pytest.mark.parametrize(
    "objective", [teal.ObjectiveName.TOTAL_FLOW, teal.ObjectiveName.MAX_LINK_UTILISATION]
)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("kind", ["plain", "crowd", "failures"])
def test_price_gnn_is_near_the_optimum_on_held_out_networks(
    name: str, kind: str, objective: teal.ObjectiveName
) -> None:
    topology = teal.load_topology(name)
    traffic = teal.load_traffic("gravity:seed=3,count=4,load=4", topology)
    paths = teal.compute_paths(topology, traffic.pairs, cache=False)
    rng = np.random.default_rng(0)
    demand, capacity = traffic.read([0, 1, 2, 3]), topology.capacity.copy()
    if kind == "crowd":
        demand = np.where(rng.random(demand.shape) < 0.1, 10 * demand, demand)
    if kind == "failures":
        capacity[rng.choice(topology.num_links, 2, replace=False)] = 0
    problem = teal.Problem.create(
        topology, paths, teal.Objective(objective), demand, capacity=capacity
    )
    measured = teal.assess(problem, teal.make_scheme("price-gnn").solve(problem))
    optimum = teal.assess(problem, LpAll().solve(problem)).value
    share = measured.value / optimum if problem.objective.may_shed else optimum / measured.value
    assert (share > (0.97 if problem.objective.may_shed else 0.85)).all(), share
    assert share.mean() > (0.99 if problem.objective.may_shed else 0.93), share
    assert (measured.max_violation < 1e-9).all()
    assert torch.isfinite(measured.gap).all()


def test_a_start_from_price_gnn_saves_iterations_of_pdhg() -> None:
    topology = teal.load_topology("topohub:sndlib/germany50")
    traffic = teal.load_traffic("gravity:seed=0,count=1,load=3", topology)
    paths = teal.compute_paths(topology, traffic.pairs, cache=False)
    problem = teal.Problem.create(topology, paths, teal.Objective(), traffic.read([0]))
    scheme = teal.make_scheme("price-gnn")
    assert isinstance(scheme, teal.Starter)
    cold = teal.solve(problem, gap=0.01, model=None).iterations
    warm = teal.solve(problem, gap=0.01, warm_start=scheme.start(problem)).iterations
    assert warm < 0.5 * cold


@pytest.mark.slow
def test_a_start_compiles_nothing_that_was_not_warmed_up() -> None:
    """In a process of its own, where nothing was called before."""
    program = (
        "import teal\n"
        "from teal.nn import price_gnn_fused\n"
        "from teal.pathops import response\n"
        "from teal.schemes.models import load_model\n"
        "from teal.solvers.pipeline import prepare\n"
        "topology = teal.load_topology('b4')\n"
        "traffic = teal.load_traffic('gravity:seed=0,load=8,count=1', topology)\n"
        "paths = teal.compute_paths(topology, traffic.pairs)\n"
        "problem = teal.Problem.create(topology, paths, teal.Objective(), traffic.read([0]))\n"
        "def forms():\n"
        "    kernels = [*vars(price_gnn_fused).values(), *vars(response).values()]\n"
        "    parts = [part for kernel in kernels for part in getattr(kernel, 'dispatchers', (kernel,))]\n"
        "    return sum(len(part.signatures) for part in parts if hasattr(part, 'signatures'))\n"
        "model = load_model('universal')\n"
        "nothing = forms()\n"
        "prepare(problem, starter=model)\n"
        "warm = forms()\n"
        "model.start(problem)\n"
        "print(nothing, warm, forms())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True
    )
    nothing, warm, after = map(int, done.stdout.split())
    assert nothing == 0
    assert warm == after > 2


def test_more_iterations_to_save_are_worth_more_rounds() -> None:
    scheme = load_model("universal")
    assert isinstance(scheme, PriceGnnScheme)
    rounds = [scheme.rounds_for(iterations) for iterations in (0, 6, 60, 120, 300, 1e6)]
    assert rounds == sorted(rounds)
    assert (rounds[0], rounds[-1]) == (14 + 8, 40 + 8)
    assert rounds[2] == pytest.approx(2.2 * 60**0.5 + 8, abs=0.5)
    fixed = teal.make_scheme("price-gnn:rounds=3,bound_rounds=2")
    assert isinstance(fixed, PriceGnnScheme)
    assert fixed.rounds_for(100) == 5, "rounds that are asked for stay"
