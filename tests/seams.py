"""Whatever the commands print as certain, replayed on one random network by arithmetic that shares
no code with them.

A network has parallel links, one-way links and sometimes parts; demands of one or two matrices,
some of them 0; failures are cables, nodes and pairs of cables.  Each function counts the statements
that it compares, and keeps those that are contradicted.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

import teal
import teal_availability
import teal_ip
import teal_study
from teal.allocation.settings import SolveConfig
from teal.allocation.solve import solve_matrix
from teal.errors import InputWarning
from teal.formats import save_topology
from teal.network import PathMethod, TrafficMatrices, all_pairs, compute_paths
from teal.network.ecmp import EcmpDag
from teal.network.rates import ArrayRates
from teal.network.reachability import reaches
from teal.objectives import ObjectiveName
from teal.runtime.storage import content_key
from teal.testing import cabled_topology
from teal_serve.engine.allocation_task import single_program_task
from teal_serve.engine.network_state import Job, NetworkState
from teal_serve.engine.path_growth import with_connecting_paths
from teal_study.planning.plan import loss_limits
from tests.free_routing import connected, least_cost, least_utilisation, most_flow
from tests.igp_reference import segment_shares
from tests.router_files import bgp_ls_of, isis_of, ospf_of, system_id, with_both_ends

_ROUNDING = 1e-6  # of HiGHS, relative to the numbers that are compared
_GAP = 1e-3  # to which everything is solved


class Case:
    """A network, its traffic, and what has been compared so far."""

    def __init__(self, seed: int, nodes: int = 5) -> None:
        rng = np.random.default_rng([seed, 1])
        self.seed, self.topology = seed, cabled_topology(seed, nodes)
        pairs = all_pairs(self.topology)
        wanted = rng.random(len(pairs)) < rng.choice([0.15, 0.5])
        wanted[rng.integers(len(pairs))] = True
        self.pairs = pairs[wanted]
        rates = rng.uniform(0.2, 8.0, (int(rng.integers(1, 3)), len(self.pairs)))
        self.rates = np.round(64 * rates * (rng.random(rates.shape) > 0.1)) / 64
        self.rates[:, 0] = np.maximum(self.rates[:, 0], 0.5)
        times = np.datetime64("2026-01-01T00:00:00") + np.arange(len(rates)) * np.timedelta64(
            300, "s"
        )
        stored = ArrayRates(self.rates)
        self.traffic = TrafficMatrices(
            "seam", self.pairs, times, stored, 300, key=content_key(self.pairs, self.rates)
        )
        counts: list[int | Literal["auto"]] = [1, 2, 4, "auto"]
        self.num_paths = counts[int(rng.integers(4))]
        self.method = list(PathMethod)[int(rng.integers(len(PathMethod)))]
        self.count: Counter[str] = Counter()
        self.wrong: list[str] = []

    def check(self, what: str, is_right: bool, detail: object = "") -> None:
        """Count a statement, and keep it if it is wrong."""
        self.count[what] += 1
        if not is_right:
            self.wrong.append(f"seed {self.seed}, {what}: {detail}")


def at_most(low: float, high: float) -> bool:
    """Whether ``low <= high`` but for rounding."""
    return low <= high + _ROUNDING * max(1.0, abs(high))


def check_plan(case: Case) -> None:
    """Strandings, values, bounds and intervals of losses of every failure."""
    topology = case.topology
    for objective in ("total_flow", "max_link_utilisation"):
        report = teal_study.plan(
            topology,
            case.traffic,
            failures=("cables", "nodes"),
            pairs=True,
            max_pairs=10,
            objective=objective,
            gap=_GAP,
            num_paths=case.num_paths,
            path_method=case.method,
        )
        down_of = _failures(topology)
        best = most_flow if objective == "total_flow" else least_utilisation
        before = [best(topology, case.pairs, rates) for rates in case.rates]
        for outage in report.outages:
            rates = case.rates[outage.index]
            down = down_of[outage.failure]
            cut_off = ~connected(topology, case.pairs, down)
            share = rates[cut_off].sum() / rates.sum()
            case.check(
                "plan: stranded",
                abs(outage.stranded - share) < 1e-9,
                (outage.failure, outage.stranded, share),
            )
            optimum = best(topology, case.pairs, rates, down)
            low, high = sorted((outage.value, outage.bound_all_paths))
            if objective == "total_flow":
                case.check(
                    "plan: value",
                    at_most(outage.value, optimum),
                    (outage.failure, outage.value, optimum),
                )
                case.check(
                    "plan: bound",
                    at_most(optimum, outage.bound_all_paths),
                    (outage.failure, high, optimum),
                )
            else:
                case.check(
                    "plan: value",
                    at_most(optimum, outage.value),
                    (outage.failure, outage.value, optimum),
                )
                case.check(
                    "plan: bound",
                    at_most(outage.bound_all_paths, optimum),
                    (outage.failure, low, optimum),
                )
            first = before[outage.index]
            if outage.failure and first > 1e-6:
                sense = 1.0 if objective == "total_flow" else -1.0
                true = sense * (1 - optimum / first)
                least, most = loss_limits(outage, report.objective)
                room = 1e-5 * max(1.0, abs(true))
                is_inside = least - room <= true <= most + room or cut_off[rates > 0].all()
                case.check("plan: loss", is_inside, (objective, outage.failure, least, true, most))


def _failures(topology: teal.Topology) -> dict[str, list[int]]:
    """Links of cables, nodes and pairs of cables by the names that `teal plan` prints, written
    anew."""
    names = topology.node_names
    ends = list(zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True))
    cables: dict[frozenset[int], list[int]] = {}
    for link, pair in enumerate(ends):
        cables.setdefault(frozenset(pair), []).append(link)
    found: dict[str, list[int]] = {"": []}
    named = {}
    for links in cables.values():
        named[f"{names[ends[links[0]][0]]} - {names[ends[links[0]][1]]}"] = links
    found |= named
    for a, first in named.items():
        for b, second in named.items():
            found[f"{a} + {b}"] = first + second
    for n, name in enumerate(names):
        found[name] = [link for link, pair in enumerate(ends) if n in pair]
    return found


def check_upgrade(case: Case) -> None:
    """What is cut off, the bounds of cost, and that every scenario fits after the purchase."""
    topology = case.topology
    kind = ["cables", "pairs", "none"][case.seed % 3]
    down_of = _failures(topology)
    cables = topology.cables()
    names = [name for name in down_of if name and " - " in name and " + " not in name]
    failures = {"none": [], "cables": names}.get(kind)
    if failures is None:
        failures = names + [f"{a} + {b}" for i, a in enumerate(names) for b in names[i + 1 :]]
    growth, limit = 1.5, 0.9
    plan = teal_ip.upgrade(
        topology,
        case.traffic,
        failures=kind,  # type: ignore[arg-type]
        growth=growth,
        max_utilisation=limit,
        gap=_GAP,
        over_all_paths=True,
        num_paths=case.num_paths,
        path_method=case.method,
        matrices=0,
    )
    down = [down_of[name] for name in failures]
    cost = least_cost(topology, case.pairs, growth * case.rates, down, np.ones(len(cables)), limit)
    case.check(
        "upgrade: cost",
        at_most(cost, plan.upgrade.cost * (1 + 1e-6) + 1e-6),
        (plan.upgrade.cost, cost),
    )
    case.check("upgrade: bound", at_most(plan.bound_all_paths, cost), (plan.bound_all_paths, cost))
    wanted = (case.rates > 0).any(0)
    always = ~connected(topology, case.pairs) & wanted
    for name in ["", *failures]:
        cut_off = ~connected(topology, case.pairs, down_of[name]) & wanted
        expected = {
            f"{topology.node_names[s]} -> {topology.node_names[t]}"
            for d, (s, t) in enumerate(case.pairs.tolist())
            if cut_off[d] and not (name and always[d])
        }
        case.check(
            "upgrade: cut off",
            set(plan.cut_off.get(name, ())) == expected,
            (name, plan.cut_off.get(name)),
        )
    for rates in case.rates:
        for name in ["", *failures]:
            fits = least_utilisation(plan.upgraded, case.pairs, growth * rates, down_of[name])
            case.check("upgrade: fits", at_most(fits, limit), (name, fits))


def check_solve(case: Case, folder: Path) -> None:
    """One matrix under failed links: value, both gaps, and the verdict, over all paths or over
    candidate paths."""
    topology, rng = case.topology, np.random.default_rng([case.seed, 2])
    save_topology(folder / "network.json", topology)
    names = topology.node_names
    with (folder / "traffic.csv").open("w") as file:
        print("source,target,rate", file=file)
        for (s, t), rate in zip(case.pairs.tolist(), case.rates[0].tolist(), strict=True):
            print(f"{names[s]},{names[t]},{rate!r}", file=file)
    link = int(rng.integers(topology.num_links))
    ends = int(topology.link_source[link]), int(topology.link_target[link])
    down = [
        e
        for e, pair in enumerate(
            zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True)
        )
        if set(pair) == set(ends)
    ]
    roundings: list[dict[str, Any]] = [{}, {"entries": 4}, {"min_split": 0.4}]
    rounding = roundings[int(rng.integers(3))]
    for objective in ("total_flow", "max_link_utilisation"):
        found = solve_matrix(
            SolveConfig(
                topology=str(folder / "network.json"),
                traffic=str(folder / "traffic.csv"),
                objective=ObjectiveName(objective),
                gap=_GAP,
                fail=(f"{names[ends[0]]},{names[ends[1]]}",),
                over_all_paths=bool(rng.integers(2)),
                **rounding,
                num_paths=case.num_paths,
                path_method=case.method,
            )
        )
        best = most_flow if objective == "total_flow" else least_utilisation
        optimum = best(topology, case.pairs, case.rates[0], down)
        detail = (objective, rounding, found.value, found.gap_all_paths, optimum)
        if objective == "total_flow":
            case.check("solve: value", at_most(found.value, optimum), detail)
            if np.isfinite(found.gap_all_paths) and optimum > 1e-6:
                case.check(
                    "solve: gap",
                    (optimum - found.value) / optimum <= found.gap_all_paths + 1e-6,
                    detail,
                )
        else:
            case.check("solve: value", at_most(optimum, found.value), detail)
            if np.isfinite(found.gap_all_paths) and found.value > 1e-6:
                case.check(
                    "solve: gap",
                    (found.value - optimum) / found.value <= found.gap_all_paths + 1e-6,
                    detail,
                )
        if found.reached and "gap_all_paths" in vars(found):
            case.check("solve: reached", found.gap <= _GAP + 1e-9, detail)


def check_simulate(case: Case) -> None:
    """Loads, lost traffic and the largest utilisation of shortest paths under cables, nodes and
    pairs."""
    topology = case.topology
    found = teal_ip.simulate(
        topology, case.traffic, failures=("cables", "nodes", "pairs"), metric="hops"
    )
    down_of = _failures(topology)

    def replay(rates: np.ndarray, down: list[int]) -> tuple[np.ndarray, float]:
        failed = topology.with_failed_links(down)
        shares = segment_shares(failed, np.ones(topology.num_links))
        load, lost = np.zeros(topology.num_links), 0.0
        for (s, t), rate in zip(case.pairs.tolist(), rates.tolist(), strict=True):
            if np.isnan(shares[t, s]).any():
                lost += rate
            else:
                load += rate * shares[t, s]
        return load, lost

    for one in found.matrices:
        load, lost = replay(case.rates[one.index], [])
        case.check(
            "simulate: utilisation",
            abs(one.utilisation - (load / topology.capacity).max()) < 1e-9,
            one,
        )
        case.check("simulate: lost", abs(one.lost - lost) < 1e-9, (one, lost))
    for failure in found.failures:
        down = down_of[failure.failure]
        load, lost = replay(case.rates[failure.index], down)
        works = np.ones(topology.num_links, bool)
        works[down] = False
        full = (load / topology.capacity)[works].max(initial=0.0)
        case.check("simulate: failure", abs(failure.utilisation - full) < 1e-9, (failure, full))
        is_own = np.zeros(len(case.pairs), bool)
        if failure.kind == "node":
            is_own = (case.pairs == topology.node_index()[failure.failure]).any(1)
        own = max(float(rates[is_own].sum()) for rates in case.rates)
        lost = max(replay(rates, down)[1] - float(rates[is_own].sum()) for rates in case.rates)
        case.check("simulate: lost", abs(failure.lost - lost) < 1e-9, (failure, lost))
        case.check("simulate: own", abs(failure.own - own) < 1e-9, (failure, own))


def check_service(case: Case) -> None:
    """Answers after links went down, and paths that are added then."""
    topology, rng = case.topology, np.random.default_rng([case.seed, 3])
    pairs = all_pairs(topology)
    count = 4 if case.num_paths == "auto" else case.num_paths
    network_state = NetworkState(
        topology, compute_paths(topology, pairs, num_paths=count, method=case.method, cache=False)
    )
    names = list(_failures(topology).items())
    rates = np.zeros(len(pairs))
    rates[
        np.searchsorted(
            pairs[:, 0] * 1000 + pairs[:, 1], case.pairs[:, 0] * 1000 + case.pairs[:, 1]
        )
    ] = case.rates[0]
    for number in rng.integers(len(names), size=2).tolist():
        name, down = names[number]
        network_state.shared.capacity = topology.with_failed_links(down).capacity
        more = with_connecting_paths(network_state)
        if more is not None:
            network_state = NetworkState(topology, more, shared=network_state.shared)
        for objective, best in (
            ("total_flow", most_flow),
            ("max_link_utilisation", least_utilisation),
        ):
            job = Job(
                rates[None],
                single_program_task(ObjectiveName(objective)),
                _GAP,
                time.perf_counter() + 60,
            )
            answer = network_state.answer(network_state.solve(job), slice(0, 1), _GAP, 0, 0.0)
            optimum, value = best(topology, pairs, rates, down), float(answer.value[0])
            is_right = (
                at_most(value, optimum) if objective == "total_flow" else at_most(optimum, value)
            )
            case.check("service: value", is_right, (objective, name, value, optimum))
        cut_off = rates[~connected(topology, pairs, down)].sum()
        can = float(answer.satisfied_demand[0]) * rates.sum()
        case.check(
            "service: carried",
            abs(can - (rates.sum() - cut_off)) <= 1e-6 * rates.sum(),
            (name, can, cut_off),
        )


def check_estimate(case: Case) -> None:
    """A matrix from clean counters, and the worst load that counters leave possible under other
    splits.

    The counters are those of the true matrix on shortest paths by networkx; the other splits are
    the shortest paths without a cable.
    """
    topology = case.topology
    pairs, hops = all_pairs(topology), np.ones(topology.num_links)
    usual = segment_shares(topology, hops)
    truth = np.zeros(len(pairs))
    truth[
        np.searchsorted(
            pairs[:, 0] * 1000 + pairs[:, 1], case.pairs[:, 0] * 1000 + case.pairs[:, 1]
        )
    ] = case.rates[0]
    share = usual[pairs[:, 1], pairs[:, 0]]  # (D, E)
    has_path = np.isfinite(share.sum(1))
    truth[~has_path] = 0.0
    nodes = np.arange(topology.num_nodes)
    seen = np.vstack(
        [
            np.where(has_path[:, None], share, 0.0).T,
            pairs[:, 0] == nodes[:, None],
            pairs[:, 1] == nodes[:, None],
        ]
    )
    counters = seen @ truth
    if not counters.any():
        return
    measured = teal_ip.ecmp_measurements(EcmpDag.of(topology, hops), pairs)
    apart = np.abs(measured.toarray() - seen)[:, has_path].max(initial=0.0)
    case.check("estimate: what counters see", apart < 1e-9, apart)

    estimator = teal_ip.Estimator(pairs, topology.num_nodes)
    estimator.route(measured)
    found = estimator.estimate(counters)
    matrix = np.where(has_path, found.matrix, 0.0)
    off = np.abs(counters - seen @ found.matrix).sum() / counters.sum()
    case.check(
        "estimate: unexplained", abs(off - found.unexplained) < 1e-6, (off, found.unexplained)
    )
    case.check("estimate: explains clean counters", off < 0.02, off)
    case.check("estimate: rates", bool((found.matrix >= 0).all()), found.matrix.min())
    silent = counters[topology.num_links :].reshape(2, -1) == 0
    invented = matrix[silent[0][pairs[:, 0]] | silent[1][pairs[:, 1]]].sum()
    case.check("estimate: routers without traffic", invented <= 1e-6 * truth.sum(), invented)

    names = list(_failures(topology).items())
    _, down = names[int(np.random.default_rng([case.seed, 4]).integers(len(names)))]
    failed = topology.with_failed_links(down)
    without = segment_shares(failed, hops)[pairs[:, 1], pairs[:, 0]]
    without = np.where(np.isfinite(without.sum(1, keepdims=True)), without, 0.0)
    if not without.any():
        return
    tolerance = 0.02
    worst = teal_ip.worst_load(
        sp.csr_array(without.T), failed.capacity, measured, counters, tolerance=tolerance
    )
    live = failed.capacity > 0
    true = ((truth @ without)[live] / failed.capacity[live]).max(initial=0.0)
    case.check("estimate: worst load", at_most(true, worst.bound), (true, worst.bound))
    case.check("estimate: worst load is reached", at_most(worst.utilisation, worst.bound), worst)
    made = ((worst.matrix @ without)[live] / failed.capacity[live]).max(initial=0.0)
    case.check(
        "estimate: worst matrix", at_most(worst.utilisation, made), (worst.utilisation, made)
    )
    off_by = np.abs(measured @ worst.matrix - counters) - tolerance * counters
    case.check("estimate: worst matrix explains", at_most(float(off_by.max()), 0.0), off_by.max())


def _random_components(case: Case, folder: Path) -> list[tuple[list[int], float]]:
    """Links and unavailability of up to four cables that fail; their table is ``components.csv``.

    Other cables never fail (``cable_availability`` 1).
    """
    topology, rng = case.topology, np.random.default_rng([case.seed, 6])
    down_of = _failures(topology)
    cables = [name for name in down_of if " - " in name and " + " not in name]
    cables = [name for name in cables if topology.capacity[down_of[name]].any()]
    chosen = rng.choice(len(cables), size=min(4, len(cables)), replace=False)
    found: list[tuple[list[int], float]] = []
    with (folder / "components.csv").open("w") as file:
        print("source;target;availability", file=file)
        for number in chosen.tolist():
            source, _, target = cables[number].partition(" - ")
            down = float(rng.choice([0.3, 0.05, 1e-3]))
            print(f"{source};{target};{1 - down!r}", file=file)
            found.append((down_of[cables[number]], 1 - (1 - down)))
    return found


def _states(components: list[tuple[list[int], float]]) -> list[tuple[float, list[int]]]:
    """Probability and failed links of every state."""
    states: list[tuple[float, list[int]]] = [(1.0, [])]
    for links, down in components:
        states = [
            *((time * (1 - down), failed) for time, failed in states),
            *((time * down, failed + links) for time, failed in states),
        ]
    return states


def check_availability(case: Case, folder: Path) -> None:
    """Traffic that arrives in every state of a few failing cables, against free routing."""
    components = _random_components(case, folder)
    if not components or not case.rates[0].sum() > 0:
        return
    topology, total = case.topology, float(case.rates[0].sum())
    matrix = case.traffic.part(0, 1)
    report = teal_availability.availability(
        topology,
        matrix,
        components=folder / "components.csv",
        cable_availability=1.0,
        max_unlisted_probability=0.0,
        availability=0.9,
        num_paths=case.num_paths,
        path_method=case.method,
        routing=("igp:metric=hops", "tunnels", "solved", "least-loss", "common-share"),
    )
    states = _states(components)
    most = np.array([most_flow(topology, case.pairs, case.rates[0], down) for _, down in states])
    time = np.array([share for share, _ in states])
    truth = float(time @ most) / total
    rows = {row.routing: row for row in report.summary}
    for name, row in rows.items():
        detail: tuple[object, ...] = (name, row.mean, row.mean_at_most, truth)
        case.check("availability: mean", at_most(row.mean, truth), detail)
        case.check("availability: interval", at_most(row.mean, row.mean_at_most), detail)
    solved = rows["solved"]
    detail = (solved.mean, solved.mean_at_most, truth)
    case.check("availability: solved", at_most(truth, solved.mean_at_most), detail)
    for level, low, high in (
        (1.0, solved.total_100, solved.total_100_at_most),
        (0.99, solved.total_99, solved.total_99_at_most),
        (0.9, solved.total_90, solved.total_90_at_most),
    ):
        least = float(time @ (most >= (level + 1e-5) * total))
        largest = float(time @ (most >= (level - 1e-5) * total))
        detail = (level, low, high, least, largest)
        case.check("availability: time", at_most(low, largest) and at_most(least, high), detail)
    for promise in report.promises:
        row = rows[promise.routing]
        case.check("availability: promise", at_most(promise.share, promise.share_at_most), promise)
        if promise.routing == "least-loss":
            case.check("availability: least loss", at_most(promise.share, truth), promise)
            case.check(
                "availability: promise is kept", at_most(promise.share, row.mean_at_most), promise
            )


def check_promises(case: Case, folder: Path) -> None:
    """What `expand` buys keeps all promises, says `admit`; what `admit` accepts fits, for so much
    of the time."""
    components = _random_components(case, folder)
    if not components:
        return
    topology, rng = case.topology, np.random.default_rng([case.seed, 7])
    names = topology.node_names
    chosen = rng.choice(len(case.pairs), size=min(5, len(case.pairs)), replace=False)
    requests = [
        teal_availability.Request(
            names[case.pairs[d, 0]],
            names[case.pairs[d, 1]],
            round(float(rng.uniform(0.1, 12.0)), 2),
            float(rng.choice([0.5, 0.9, 0.97, 0.999])),
            float(10.0 ** rng.integers(-4, 5)),
        )
        for d in chosen.tolist()
    ]
    options: dict[str, Any] = {
        "components": folder / "components.csv",
        "cable_availability": 1.0,
    }
    bought = teal_availability.expand(topology, requests, **options)
    after = teal_availability.admit(bought.upgraded, requests, **options)
    detail = (bought.cost, bought.bound, [row.status for row in after.rows])
    case.check("expand: bound", at_most(bought.bound, bought.cost), detail)
    for row, kept in zip(after.rows, bought.reservations, strict=True):
        case.check("expand: admitted", (row.status == "accepted") == bool(kept.way), detail)
    before = teal_availability.admit(topology, requests, **options)
    _check_admission(case, components, before, topology)
    _check_admission(case, components, after, bought.upgraded)
    for row, now in zip(before.rows, after.rows, strict=True):
        is_consistent = row.status != "accepted" or now.status == "accepted"
        case.check("admit: more capacity", is_consistent, (row, now))


def _check_admission(
    case: Case,
    components: list[tuple[list[int], float]],
    report: Any,
    topology: teal.Topology,
) -> None:
    """Loads of accepted promises against capacities, their time, and the sum of values."""
    index, states = topology.node_index(), _states(components)
    between: dict[tuple[int, int], list[int]] = {}
    ends = zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True)
    for link, pair in enumerate(ends):
        between.setdefault(pair, []).append(link)
    load = Counter[tuple[int, int]]()
    value = 0.0
    for row in report.rows:
        if row.status not in ("accepted", "sold"):
            case.check("admit: price", row.price >= -1e-9, row)
            continue
        value += row.value
        head, _, listed = row.way.partition(":")
        needed = int(head.split(" of ")[0])
        paths = [[index[name] for name in path.split("|")] for path in listed.strip().split(" ")]
        hops = [list(itertools.pairwise(path)) for path in paths]
        for path in hops:
            for pair in path:
                load[pair] += row.rate / needed
        kept = 0.0
        for time_share, down in states:
            works = topology.capacity > 0
            works[down] = False
            alive = sum(all(works[between[pair]].any() for pair in path) for path in hops)
            kept += time_share * (alive >= needed)
        detail: tuple[object, ...] = (row, kept)
        case.check("admit: time", at_most(row.availability, kept), detail)
        case.check("admit: kept", abs(row.kept - kept) < 1e-9, detail)
    for pair, reserved in load.items():
        capacity = float(topology.capacity[between[pair]].sum())
        case.check("admit: load", reserved <= capacity * (1 + 2e-9), (pair, reserved, capacity))
    detail = (report.value, report.bound, value)
    case.check("admit: value", abs(report.value - value) <= 1e-9 * max(1.0, value), detail)
    case.check("admit: bound", report.value <= report.bound * (1 + 1e-12), detail)


def check_reachability(case: Case) -> None:
    """The function of the graph against networkx, under every failure."""
    for name, down in _failures(case.topology).items():
        live = case.topology.capacity > 0
        live[down] = False
        found = reaches(case.topology, case.pairs, live)
        case.check(
            "reachability", bool((found == connected(case.topology, case.pairs, down)).all()), name
        )


def check_files(case: Case, folder: Path) -> None:
    """The network as files of routers and of Teal, read back: the same links, metrics, capacities
    and overload bits."""
    rng = np.random.default_rng([case.seed, 5])
    overloaded = rng.random(case.topology.num_nodes) < 0.2
    topology = dataclasses.replace(
        case.topology,
        metric=rng.integers(1, 61, case.topology.num_links),
        node_names=tuple(map(system_id, range(case.topology.num_nodes))),
        no_transit=overloaded if overloaded.any() else None,
    )

    def links(
        one: teal.Topology, capacity: float | None = None
    ) -> Counter[tuple[str, str, int, float]]:
        assert one.metric is not None
        names = one.node_names
        return Counter(
            (names[a], names[b], int(metric), capacity or round(float(rate), 6))
            for a, b, metric, rate in zip(
                one.link_source, one.link_target, one.metric, one.capacity, strict=True
            )
        )

    def stubs(one: teal.Topology) -> set[str]:
        return (
            set()
            if one.no_transit is None
            else {one.node_names[node] for node in np.flatnonzero(one.no_transit)}
        )

    said = with_both_ends(topology)
    if said is not None:
        texts = {
            "isis-both-levels.json": json.dumps(isis_of(topology, (1, 2), ("extReach",))),
            "isis-transition.json": json.dumps(isis_of(topology, (2,), ("extReach", "oldReach"))),
            "isis-all.json": json.dumps(isis_of(topology, (1, 2), ("oldReach", "extReach"))),
            "ospf.json": json.dumps(ospf_of(topology, ("0.0.0.0",))),
            "ospf-two-areas.json": json.dumps(ospf_of(topology, ("0.0.0.0", "0.0.0.1"))),
            "bgp-ls.jsonl": bgp_ls_of(topology, (0,)),
            "bgp-ls-two-topologies.jsonl": bgp_ls_of(topology, (2, 0)),
        }
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
            has_capacity = name.startswith("bgp-ls")
            found = teal.load_topology(folder / name, default_capacity=7.0)
            expected = links(said, None if has_capacity else 7.0)
            case.check(
                "files: links of routers", links(found) == expected, (name, links(found) - expected)
            )
            if not name.startswith("ospf"):
                case.check(
                    "files: overload",
                    stubs(found) == stubs(topology) & set(found.node_names),
                    (name, stubs(found)),
                )
    for name in ("net.json", "net.rfc8345.json", "net.csv"):
        save_topology(folder / name, topology.with_failed_links([0]))
        found = teal.load_topology(folder / name)
        is_same = links(found) == links(topology.with_failed_links([0]))
        case.check("files: written and read", is_same, name)


def check(seed: int) -> Case:
    """All comparisons of one seed."""
    case = Case(seed)
    check_reachability(case)
    with tempfile.TemporaryDirectory() as folder:
        check_files(case, Path(folder))
    check_simulate(case)
    check_estimate(case)
    check_service(case)
    with tempfile.TemporaryDirectory() as folder:
        check_solve(case, Path(folder))
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        # Parallel circuits are one cable here too.
        warnings.simplefilter("ignore", InputWarning)
        check_availability(case, Path(folder))
        check_promises(case, Path(folder))
    check_plan(case)
    check_upgrade(case)
    return case
