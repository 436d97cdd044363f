"""Column generation against the LP over all paths in arc form; files of paths against damaged
ones."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines import arc_form
from teal.errors import InputError
from teal.formats import load_topology, load_traffic
from teal.network import PathMethod, compute_paths
from teal.network.path_changes import first_paths_of_each, with_more_paths
from teal.network.path_file import load_paths, save_paths
from teal.objectives import SINGLE_PROGRAMS, Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.bounds import all_paths_bound
from teal.solvers.columns import ColumnRound, OverAllPaths, generate_columns
from teal.solvers.interior.engine import InteriorPoints
from teal.solvers.pipeline import solve
from teal.solvers.result import SolveState, Stop
from teal.testing import assert_feasible, make_topology, random_problem, random_topology
from tests.bounds import Cases


@pytest.mark.parametrize("engine", ["interior", "pdhg"])
@pytest.mark.parametrize("objective", SINGLE_PROGRAMS)
@pytest.mark.parametrize("name", ["b4", "topohub:sndlib/abilene", "topohub:sndlib/geant"])
def test_column_generation_reaches_the_optimum_of_the_arc_form(
    name: str, objective: ObjectiveName, engine: str
) -> None:
    topology = load_topology(name)
    traffic = load_traffic("gravity:seed=3,count=1,load=4", topology)
    weight = np.random.default_rng(0).choice([1.0, 2.0], traffic.num_demands)
    paths = compute_paths(topology, num_paths=1)
    problem = Problem.create(
        topology, paths, Objective(objective), traffic.read([0]), weight=weight
    )
    optimum = arc_form.optimum(problem)
    rounds: list[ColumnRound] = []
    solution = generate_columns(problem, target=1e-3, report=rounds.append, engine=engine)
    assert float(solution.gap_all_paths) <= 1e-3
    assert float(solution.result.value) == pytest.approx(optimum, rel=1.01e-3)
    sign = problem.objective.rules.sense
    assert sign * (float(solution.bound_all_paths) - optimum) >= -1e-6 * optimum
    assert sign * (optimum - float(solution.result.value)) >= -1e-6 * optimum
    assert sum(column_round.added for column_round in rounds) > 0, (
        "one path per demand is not optimal on these networks"
    )


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(SINGLE_PROGRAMS),
    failed=st.integers(0, 3),
    density=st.sampled_from([0.25, 0.4, 0.7]),
)
def test_the_master_reaches_the_optimum_of_random_networks(
    seed: int, objective: ObjectiveName, failed: int, density: float
) -> None:
    problem = random_problem(
        seed, objective=objective, failed=failed, density=density, num_paths=2, batch=1
    )
    problem = problem.with_paths(first_paths_of_each(problem.paths, 1))
    result = generate_columns(problem, target=1e-6, engine="interior")
    over = problem.with_paths(result.paths)
    live = problem.capacity[0].numpy() > 0
    links = zip(problem.topology.link_source, problem.topology.link_target, strict=True)
    graph = nx.DiGraph([ends for ends, works in zip(links, live, strict=True) if works])
    graph.add_nodes_from(range(problem.topology.num_nodes))
    for (source, target), has_path, rate in zip(
        problem.paths.pairs.tolist(), over.routable[0], problem.demand[0], strict=True
    ):
        assert rate == 0 or bool(has_path) == nx.has_path(graph, source, target)
    # The arc form counts the demands that have a live path: all those that the network connects.
    optimum = arc_form.optimum(over)
    sign = problem.objective.rules.sense
    assert float(result.gap_all_paths) <= 1e-6
    assert float(result.result.value) == pytest.approx(optimum, rel=2e-6, abs=1e-9)
    assert sign * (float(result.bound_all_paths) - optimum) >= -1e-7 * abs(optimum) - 1e-9
    over = problem.with_paths(result.paths)
    torch.testing.assert_close(all_paths_bound(over, result.result.prices), result.bound_all_paths)
    assert_feasible(over, result.result.allocation, 1e-9)


@pytest.mark.parametrize(
    ("objective", "optimum"),
    [
        ("total_flow", [3.0, 2.0, 2.0]),
        ("max_link_utilisation", [0.6, 1.5, 2 / 7]),
        ("max_concurrent_flow", [1.0, 2 / 3, 1.0]),
        ("least_cost", [3e7, math.inf, 2.0]),
    ],
)
def test_a_demand_whose_candidate_paths_have_failed_is_routed(
    objective: str, optimum: list[float]
) -> None:
    """From 0 to 1 by a link of 2 Gbit/s that costs 1, the only candidate, or by way of 2: in the
    first matrix the link has failed, in the second one half of the detour, too."""
    topology = make_topology([(0, 1, 2.0), (0, 2, 5.0), (2, 1, 5.0)])
    topology = dataclasses.replace(topology, cost=np.array([1.0, 1e7, 0.0]))
    pairs = np.array([[0, 1]], np.int32)
    paths = compute_paths(topology, pairs, num_paths=1, cache=False)
    problem = Problem.create(topology, paths, Objective(objective), np.array([[3.0], [3.0], [2.0]]))
    capacity = np.array([[0.0, 5.0, 5.0], [0.0, 2.0, 5.0], [2.0, 5.0, 5.0]])
    failed = problem.with_capacity(capacity)
    last = generate_columns(failed, target=1e-6)
    assert last.result.value.tolist() == pytest.approx(optimum, rel=1e-5)
    assert last.bound_all_paths.tolist() == pytest.approx(optimum, rel=1e-5)
    assert last.paths.mask.sum() == 2


def test_engines_that_do_not_take_a_problem_are_refused() -> None:
    problem = random_problem(1, batch=3)
    with pytest.raises(InputError, match="one matrix"):
        generate_columns(problem, engine="interior")
    with pytest.raises(InputError, match="interior or pdhg"):
        generate_columns(problem, engine="fused")


def test_all_paths_bound_of_any_prices_holds_for_the_optimum_of_the_arc_form() -> None:
    """Prices that are random, too high, 0, or those of the optimum over candidate paths."""
    cases = Cases()

    @settings(max_examples=25)
    @given(
        seed=st.integers(0, 10_000),
        objective=st.sampled_from(SINGLE_PROGRAMS),
        failed=st.integers(0, 3),
        factor=st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.0]),
        noise=st.sampled_from([0.0, 0.1, 5.0]),
    )
    def check(
        seed: int, objective: ObjectiveName, failed: int, factor: float, noise: float
    ) -> None:
        problem = random_problem(seed, objective=objective, failed=failed, num_paths=2)
        generator = torch.Generator().manual_seed(seed)
        random = torch.rand(problem.capacity.shape, generator=generator, dtype=torch.float64)
        prices = factor * solve(problem, gap=1e-4).prices + noise * random**3
        bounds = all_paths_bound(problem, prices)
        trivial = all_paths_bound(problem, 0 * prices)
        sign = problem.objective.rules.sense
        for row, bound in enumerate(bounds.tolist()):
            optimum = arc_form.optimum(problem.row(row))
            assert sign * (bound - optimum) >= -1e-6 * (1 + optimum)
            cases.add(sign * (float(trivial[row]) - bound) > 1e-3 * abs(bound))

    check()
    cases.require_most()


def test_column_generation_adds_the_missing_path_of_a_hand_solved_network() -> None:
    """A demand of 3 over two paths of capacity 1: the optimum is 1 with one path and 2 with both;
    there is no third."""
    topology = make_topology([(0, 1, 1.0), (0, 2, 1.0), (2, 1, 1.0)])
    paths = compute_paths(topology, np.array([[0, 1]], np.int32), num_paths=1, cache=False)
    problem = Problem.create(topology, paths, Objective(), np.array([3.0]))
    assert all_paths_bound(problem, torch.tensor([[1.0, 0.0, 0.0]])).item() == pytest.approx(
        1 + 3 * 1
    )
    assert all_paths_bound(problem, torch.tensor([[1.0, 1.0, 0.0]])).item() == pytest.approx(2.0)
    solution = generate_columns(problem, target=1e-4)
    assert solution.result.value.item() == pytest.approx(2.0, rel=1e-4)
    assert [solution.paths.links_of(0, k) for k in range(2)] == [[0], [1, 2]]


@given(seed=st.integers(0, 10_000))
def test_with_more_paths_keeps_the_existing_paths(seed: int) -> None:
    topology = random_topology(seed)
    rng = np.random.default_rng(seed)
    existing = compute_paths(topology, num_paths=2, cache=False)
    other_paths = compute_paths(topology, num_paths=4, method=PathMethod.YEN, cache=False)
    added_paths = [
        other_paths.links_of(d, int(rng.integers(4))) if rng.random() < 0.5 else []
        for d in range(other_paths.num_demands)
    ]
    ptr = np.concatenate([[0], np.cumsum([len(path) for path in added_paths])])
    extended = with_more_paths(
        existing, ptr, np.array(list(itertools.chain(*added_paths)), dtype=np.int32)
    )
    assert (extended.trie.parent < np.arange(extended.trie.num_nodes)).all()
    for d, path in enumerate(added_paths):
        before = [existing.links_of(d, k) for k in range(2) if existing.mask[d, k]]
        after = [extended.links_of(d, k) for k in range(extended.num_paths) if extended.mask[d, k]]
        assert after == before + ([path] if path and path not in before else [])


def test_a_file_of_paths_is_read_back_and_checked(tmp_path: Path) -> None:
    topology = random_topology(1)
    paths = compute_paths(topology, cache=False)
    save_paths(tmp_path / "p.npz", paths)
    loaded = load_paths(tmp_path / "p.npz", topology)
    np.testing.assert_array_equal(loaded.leaf, paths.leaf)
    assert loaded.key == paths.key
    with pytest.raises(InputError, match="another network"):
        load_paths(tmp_path / "p.npz", random_topology(2))
    (tmp_path / "p.npz").write_bytes(b"no")
    with pytest.raises(InputError, match="another file"):
        load_paths(tmp_path / "p.npz", topology)
    with pytest.raises(InputError, match="No such file"):
        load_paths(tmp_path / "none.npz", topology)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("leaf", lambda a: a.__setitem__((-1, 0), 0)),
        ("leaf", lambda a: a.__setitem__((0, 0), 10**9)),
        ("leaf", lambda a: a.__setitem__(slice(0, 2), a[1::-1].copy())),
        ("parent", lambda a: a.__setitem__(-1, 0)),
        ("parent", lambda a: a.__setitem__(0, 5)),
        ("link", lambda a: a.__setitem__(3, (a[3] + 1) % 20)),
        ("source_ptr", lambda a: a.__setitem__(1, 10**6)),
        ("demand_ptr", lambda a: a.__setitem__(-1, 10**7)),
        ("pairs", lambda a: a.__setitem__((0, 0), -1)),
    ],
)
def test_files_of_paths_with_wrong_indices_are_refused(
    tmp_path: Path, field: str, change: Any
) -> None:
    topology = random_topology(1)
    save_paths(tmp_path / "p.npz", compute_paths(topology, cache=False))
    stored = dict(np.load(tmp_path / "p.npz"))
    change(stored[field])
    np.savez(tmp_path / "p.npz", **stored)
    with pytest.raises(InputError):
        load_paths(tmp_path / "p.npz", topology)


def test_more_than_255_paths_per_demand_are_refused() -> None:
    with pytest.raises(InputError, match="from 1 to 255"):
        compute_paths(random_topology(1), num_paths=256)


def test_computing_paths_without_enough_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("teal.network.paths._MIN_SLOTS_OF_ESTIMATE", 1)
    monkeypatch.setattr("teal.runtime.memory.available", lambda: 1000)
    topology = random_topology(1)
    with pytest.raises(InputError, match=r"[GM]iB are usable; use fewer pairs .* or a smaller K"):
        compute_paths(topology, cache=False)


def test_rounds_of_pdhg_are_asked_of_pdhg_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = load_topology("b4")
    paths = compute_paths(topology, num_paths=1, cache=False)
    demand = load_traffic("gravity:seed=0,count=1,load=4", topology).read([0])
    problem = Problem.create(topology, paths, "max_link_utilisation", demand)

    def refuse(*_: object) -> None:
        pytest.fail("interior points were asked")

    monkeypatch.setattr(InteriorPoints, "solve", refuse)
    result = generate_columns(problem, target=1e-2, engine="pdhg")
    assert float(result.gap_all_paths.max()) <= 1e-2


_STARTS = ("other demands", "itself", "random", "zero")


def _start_for(problem: Problem, kind: str, engine: str) -> OverAllPaths:
    """Return a start: a solution for other demands or for the problem itself, or splits and prices
    that solve nothing."""
    random = np.random.default_rng(1)
    factor = 1.0 if kind == "itself" else random.uniform(0.5, 1.5, problem.demand.shape)
    similar = dataclasses.replace(problem, demand=problem.demand * torch.as_tensor(factor))
    solution = generate_columns(similar, target=1e-3, engine=engine)
    if kind in ("other demands", "itself"):
        return solution
    # Shares whose sums may exceed 1, and prices far above all values.
    scale = 0.0 if kind == "zero" else 1.0
    splits = scale * torch.from_numpy(random.uniform(0, 1, solution.result.splits.shape))
    prices = scale * torch.from_numpy(random.gamma(0.3, 50.0, solution.result.prices.shape))
    state = SolveState(splits, prices)
    result = dataclasses.replace(solution.result, splits=splits, prices=prices, state=state)
    return dataclasses.replace(solution, result=result)


@pytest.mark.parametrize("kind", _STARTS)
@pytest.mark.parametrize("engine", ["interior", "pdhg"])
@pytest.mark.parametrize(
    "objective", ["total_flow", "max_link_utilisation", "max_concurrent_flow", "least_cost"]
)
def test_any_start_leads_to_the_optimum_of_the_arc_form(
    objective: str, engine: str, kind: str
) -> None:
    """A failed link, too, which paths of the start may use."""
    if objective == "least_cost" and engine == "pdhg":
        pytest.skip("least cost always uses the interior-point master")
    topology = load_topology("topohub:sndlib/abilene")
    traffic = load_traffic("gravity:seed=3,count=1,load=1", topology)
    paths = compute_paths(topology, num_paths=1)
    demand = traffic.read([0]) * (0.8 if objective == "least_cost" else 3.0)
    intact = Problem.create(topology, paths, objective, demand)
    start = _start_for(intact, kind, "auto" if objective == "least_cost" else engine)
    for failed in (2, 6, 20):
        _check_warm_start(intact, start, engine, failed)


def _check_warm_start(intact: Problem, start: OverAllPaths, engine: str, failed: int) -> None:
    """Solve a problem with a failed link from a start, against the arc form."""
    objective = intact.objective.name
    topology = intact.topology
    capacity = topology.capacity.copy()
    capacity[failed] = 0.0
    problem = Problem.create(
        topology, intact.paths, objective, intact.demand.numpy(), capacity=capacity
    )
    chosen = "auto" if objective == "least_cost" else engine
    solution = generate_columns(problem, target=1e-3, engine=chosen, start=start)
    # Over the paths of the solution every demand has a live one.
    optimum = arc_form.optimum(problem.with_paths(solution.paths))
    if solution.result.stopped_by == (Stop.INFEASIBLE,):
        assert optimum == math.inf
        return
    assert float(solution.gap_all_paths) <= 1e-3
    assert float(solution.result.value) == pytest.approx(optimum, rel=1.01e-3)
    sign = problem.objective.rules.sense
    assert sign * (float(solution.bound_all_paths) - optimum) >= -1e-6 * optimum
    assert_feasible(problem.with_paths(solution.paths), solution.result.allocation)


@pytest.mark.parametrize("objective", ["total_flow", "least_cost"])
def test_a_solution_is_certified_where_it_starts(objective: str) -> None:
    """From its own solution a problem takes fewer iterations than from nothing."""
    topology = load_topology("topohub:sndlib/geant")
    traffic = load_traffic("gravity:seed=3,count=1,load=1", topology)
    paths = compute_paths(topology, num_paths=1)
    demand = traffic.read([0]) * (4.0 if objective == "least_cost" else 3.0)
    problem = Problem.create(topology, paths, objective, demand)
    engine = "interior" if objective == "total_flow" else "auto"
    cold = generate_columns(problem, target=1e-4, engine=engine)
    warm = generate_columns(problem, target=1e-4, engine=engine, start=cold)
    assert float(warm.gap_all_paths) <= 1e-4
    assert warm.result.iterations < cold.result.iterations
    # Paths without traffic do not pile up.
    for _ in range(5):
        warm = generate_columns(problem, target=1e-4, engine=engine, start=warm)
    assert int(warm.paths.mask.sum()) <= 1.2 * int(cold.paths.mask.sum())


def test_matrices_of_a_batch_start_from_one_solution_or_from_their_own() -> None:
    topology = load_topology("topohub:sndlib/abilene")
    traffic = load_traffic("gravity:seed=3,count=4,load=3", topology)
    paths = compute_paths(topology, num_paths=1)
    matrices = traffic.read(list(range(4)))
    one = generate_columns(Problem.create(topology, paths, "total_flow", matrices[:1]), target=1e-3)
    problem = Problem.create(topology, paths, "total_flow", matrices[1:])
    three = generate_columns(problem, target=1e-3)
    optima = [arc_form.optimum(problem.row(row)) for row in range(3)]
    for start in (one, three):
        solution = generate_columns(problem, target=1e-3, start=start)
        assert float(solution.gap_all_paths.max()) <= 1e-3
        np.testing.assert_allclose(solution.result.value, optima, rtol=1.01e-3)
    with pytest.raises(InputError, match="as many as the problem has, found 3 matrices for 2"):
        generate_columns(problem.rows(slice(0, 2)), target=1e-3, start=three)
    b4 = load_topology("b4")
    other = Problem.create(b4, compute_paths(b4, num_paths=1), "total_flow", np.ones((1, 132)))
    with pytest.raises(InputError, match="start: it is the solution of another network"):
        generate_columns(other, target=1e-3, start=one)
    # The same links in another order.
    names = ("link_source", "link_target", "capacity", "latency")
    order = np.roll(np.arange(topology.num_links), 1)
    permuted = dataclasses.replace(
        topology, **{name: getattr(topology, name)[order] for name in names}
    )
    other = Problem.create(
        permuted, compute_paths(permuted, num_paths=1), "total_flow", matrices[:1]
    )
    with pytest.raises(InputError, match="start: it is the solution of another network"):
        generate_columns(other, target=1e-3, start=one)
