"""The PDHG engine compared with LP solvers and with plain memory traffic: times, certified gaps,
memory.

    python benchmarks/engine.py --data FOLDER --out OUT [--networks b4,geant,UsCarrier,Kdl,ASN,world] [--limit 60]

FOLDER holds UsCarrier.json, Kdl.json and ASN2k.json.  Each network is measured in a separate
process, each LP solver in another one, which is stopped after --limit seconds.  OUT/engine.csv has
a row per figure, OUT/engine.png shows gap against time, OUT/overview.png the times to an answer.
Times are medians after warm-up; run it on an otherwise idle machine.  World needs about 6 GiB and
ten minutes, most of them for paths.

- iteration, and iteration per matrix in a batch of 16, each also as a share of one product of
  torch's CSR matrix with the explicit incidence matrix (one feature; not for world, where it would
  not fit);
- copy: a memory copy of the bytes that one iteration must move (tries, splits, anchor, demands);
- cold and warm to a gap: a whole `teal.solve` on a matrix of generated traffic, without a warm
  start or from the solution of the previous matrix (to 0.1%; AR(1) noise 0.3, correlation 0.9);
- paths: all pairs, K = 4, without the cache; pack: conversion of the trie for the engine.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from public_data import published
from timing import median_s

NETWORKS = {
    "b4": ("b4", 6),
    "geant": ("topohub:sndlib/geant", 4),
    "UsCarrier": ("UsCarrier.json", 6),
    "Kdl": ("Kdl.json", 6),
    "ASN": ("ASN2k.json", 6),
    "world": ("topohub:backbone/world", 4),
}
GAPS = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0001)
TARGETS = (0.05, 0.01, 0.001)
EXACT_GAP = 1e-6  # of interior points, where they are asked
SOLVERS = {
    "highs-simplex": 130_000,
    "highs-ipm": 130_000,
    "pdlp": 15_000_000,
}  # largest number of demands x paths of each solver


def load(name: str, data: Path, matrices: int) -> Any:
    """The problem of ``matrices`` consecutive matrices, time of computing paths, s, and of packing
    them, s.
    """
    import teal

    source, traffic_load = NETWORKS[name]
    topology = teal.load_topology(
        str(published(data, source)) if source.endswith(".json") else source
    )
    traffic = teal.load_traffic(f"gravity:seed=0,count={matrices},load={traffic_load}", topology)
    teal.compute_paths(
        teal.load_topology("b4"), cache=False
    )  # compiles the kernels before the timing
    begin = time.perf_counter()
    paths = teal.compute_paths(topology, traffic.pairs, cache=False)
    computed = time.perf_counter()
    _ = paths.packed
    packed = time.perf_counter()
    problem = teal.Problem.create(topology, paths, teal.Objective(), traffic.read(slice(None)))
    return problem, computed - begin, packed - computed


def engine(name: str, data: Path) -> Iterator[tuple[str, float, str]]:
    """Yield (measure, value, unit) of the engine on one network."""
    import torch

    from teal.solvers.interior.engine import is_faster
    from teal.solvers.pdhg import solve
    from teal.solvers.pdhg.fused.engine import FusedEngine

    large = name == "world"
    problem, paths_s, pack_s = load(name, data, 2 if large else 16)
    yield "paths", paths_s, "s"
    yield "pack", pack_s, "s"
    packed, paths = problem.paths.packed, problem.paths
    yield "demands", paths.num_demands, ""
    yield "trie nodes", paths.trie.num_nodes, ""
    repeats = 3 if large else 9
    first, second = problem.row(0), problem.row(1)
    single = FusedEngine(first, None, torch.float32)
    iteration = median_s(lambda: single.advance(1), 20)
    yield "iteration", iteration, "s"
    moved = (
        2 * packed.scan.parent.nbytes
        + packed.scan.end_node.nbytes
        + 12 * packed.num_paths
        + 9 * paths.num_demands
    )
    block = torch.zeros(moved // 8)
    target = torch.empty_like(block)
    yield "bytes of an iteration", moved, ""
    yield "copy", median_s(lambda: target.copy_(block), 20), "s"
    if not large:
        rows, columns = paths.incidences()
        index = torch.stack([torch.from_numpy(rows), torch.from_numpy(columns)])
        matrix = torch.sparse_coo_tensor(
            index, torch.ones(len(rows)), (paths.leaf.size, paths.num_links)
        )
        csr, links = matrix.to_sparse_csr(), torch.rand(paths.num_links, 1)
        del matrix, index, rows, columns
        product = median_s(lambda: csr @ links, 9)
        yield "CSR product", product, "s"
        yield "iteration / CSR product", iteration / product, ""
        batched = FusedEngine(problem, None, torch.float32)
        per_matrix = median_s(lambda: batched.advance(1), 9) / problem.batch
        yield "iteration per matrix of 16", per_matrix, "s"
        yield "iteration per matrix of 16 / CSR product", per_matrix / product, ""
    solve(first, gap=0.5)
    for gap in GAPS if not large else TARGETS:
        yield (
            f"cold to {gap:g}",
            median_s(lambda g=gap: solve(first, gap=g), 1 if large else repeats),  # type: ignore[misc]
            "s",
        )
        solution = solve(first, gap=gap)
        yield f"cold to {gap:g}, iterations", solution.iterations, ""
        yield f"cold to {gap:g}, reached", float(solution.gap), ""
    if is_faster(first, EXACT_GAP):
        yield (
            f"interior to {EXACT_GAP:g}",
            median_s(partial(solve, first, gap=EXACT_GAP), repeats),
            "s",
        )
        exact = solve(first, gap=EXACT_GAP)
        yield f"interior to {EXACT_GAP:g}, iterations", exact.iterations, ""
        yield f"interior to {EXACT_GAP:g}, reached", float(exact.gap), ""
    yield "satisfied demand", float(solution.value / first.demand.sum()), ""
    start = solve(first, gap=0.001) if not large else solution
    for gap in (*TARGETS, 0.005):
        warm = solve(second, gap=gap, warm_start=start)
        yield (
            f"warm to {gap:g}",
            median_s(lambda g=gap: solve(second, gap=g, warm_start=start), 1 if large else repeats),  # type: ignore[misc]
            "s",
        )
        yield f"warm to {gap:g}, iterations", warm.iterations, ""
        yield f"warm to {gap:g}, reached", float(warm.gap), ""
    yield "peak memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20), "GiB"


def solver(kind: str, name: str, data: Path, limit: float) -> Iterator[tuple[str, float, str]]:
    """Yield (measure, value, unit) of one LP solver on the first matrix."""
    problem, _, _ = load(name, data, 1)
    if kind == "pdlp":
        yield from _pdlp(problem, limit)
        return
    from teal.problem.assessment import assess
    from teal.schemes.registry import make_scheme

    scheme = make_scheme(
        f"lp-all:solver=highs,method={kind.removeprefix('highs-')},time_limit={limit}"
    )
    allocation = scheme.solve(problem)
    yield kind, allocation.solve_s[0], "s"
    yield f"{kind}, build", allocation.build_s[0], "s"
    measured = assess(problem, allocation)
    yield f"{kind}, value", float(measured.value), "Gbit/s"
    yield f"{kind}, gap", float(measured.gap), ""


def _pdlp(problem: Any, limit: float) -> Iterator[tuple[str, float, str]]:
    """OR-Tools PDLP on the path form, rows divided by capacity, to relative accuracies of 1e-3 and
    1e-4.
    """
    import scipy.sparse as sp
    from ortools.pdlp import solve_log_pb2, solvers_pb2
    from ortools.pdlp.python import pdlp

    begin = time.perf_counter()
    paths, links = problem.paths.incidences()
    existing = np.flatnonzero(problem.paths.mask.reshape(-1))
    column, demand = np.searchsorted(existing, paths), existing // problem.paths.num_paths
    capacity, rate = problem.capacity[0].numpy(), problem.demand[0].numpy()
    loads = sp.csr_matrix(
        (rate[demand[column]] / capacity[links], (links, column)),
        shape=(len(capacity), len(existing)),
    )
    sums = sp.csr_matrix(
        (np.ones(len(existing)), (demand, np.arange(len(existing)))),
        shape=(len(rate), len(existing)),
    )
    program = pdlp.QuadraticProgram()
    program.constraint_matrix = sp.vstack([loads, sums]).tocsc()
    program.constraint_lower_bounds = np.full(len(capacity) + len(rate), -math.inf)
    program.constraint_upper_bounds = np.ones(len(capacity) + len(rate))
    program.variable_lower_bounds = np.zeros(len(existing))
    program.variable_upper_bounds = np.full(len(existing), math.inf)
    program.objective_vector = -rate[demand] / rate.sum()
    build = time.perf_counter() - begin
    for accuracy in (1e-3, 1e-4):
        settings = solvers_pb2.PrimalDualHybridGradientParams()
        criteria = settings.termination_criteria
        criteria.simple_optimality_criteria.eps_optimal_relative = accuracy
        criteria.simple_optimality_criteria.eps_optimal_absolute = accuracy
        criteria.time_sec_limit = limit
        settings.num_threads = 2
        begin = time.perf_counter()
        result = pdlp.primal_dual_hybrid_gradient(program, settings)
        spent = time.perf_counter() - begin
        reached = result.solve_log.termination_reason == solve_log_pb2.TERMINATION_REASON_OPTIMAL
        yield f"pdlp {accuracy:g}", spent if reached else math.inf, "s"
        yield f"pdlp {accuracy:g}, spent", spent, "s"
    yield "pdlp, build", build, "s"


def child(arguments: list[str], limit: float | None) -> list[tuple[str, float, str]]:
    """Rows of one part, measured in a process of this file; those printed before a failure, none
    after a timeout.
    """
    command = [sys.executable, __file__, *arguments]
    try:
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return []
    return [tuple(json.loads(line)) for line in run.stdout.splitlines() if line.startswith("[")]


def plot(file: Path, rows: list[tuple[str, str, float, str]]) -> None:
    """Plot gap against time, a panel per network; exact solvers, whose gap is 0, are drawn at the
    lower edge.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    min_gap = 1e-3  # per cent, lower edge of the panels
    names = list(dict.fromkeys(row[0] for row in rows))
    columns = min(3, len(names))
    figure, axes = plt.subplots(
        math.ceil(len(names) / columns),
        columns,
        figsize=(4.6 * columns, 3.4 * math.ceil(len(names) / columns)),
        squeeze=False,
        layout="constrained",
    )
    for axis, name in zip(axes.flat, names, strict=False):
        known = {measure: value for network, measure, value, _ in rows if network == name}
        times = []
        for kind, style, gaps in (
            ("cold", "C0o-", GAPS),
            ("warm", "C1s", (0.05, 0.01, 0.005, 0.001)),
        ):
            measures = [f"{kind} to {gap:g}" for gap in gaps if f"{kind} to {gap:g}" in known]
            times += [known[measure] for measure in measures]
            reached = [max(min_gap, 100 * known[f"{measure}, reached"]) for measure in measures]
            axis.plot(times[-len(measures) :], reached, style, ms=4, label=f"PDHG, {kind}")
        for label, measure, style, gap in (
            ("HiGHS simplex (exact)", "highs-simplex", "C2^", 0),
            ("HiGHS ipm (exact)", "highs-ipm", "C3v", 0),
            ("PDLP, 1e-3", "pdlp 0.001", "C4D", 1e-3),
            ("PDLP, 1e-4", "pdlp 0.0001", "C5D", 1e-4),
        ):
            spent = known.get(f"{measure}, spent", known.get(measure))
            if spent is None:
                continue
            stopped = not math.isfinite(known[measure])
            axis.plot(
                spent,
                max(min_gap, 100 * gap),
                style,
                ms=6,
                label=label + (": stopped" if stopped else ""),
                fillstyle="none" if stopped else "full",
                clip_on=False,
            )
            times.append(spent)
        low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
        axis.set(
            xscale="log", yscale="log", title=name, xlim=(10**low, 10**high), ylim=(min_gap, 30)
        )
        axis.set(xlabel="seconds", ylabel="gap (%)")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    for axis in list(axes.flat)[len(names) :]:
        axis.remove()
    figure.savefig(file, dpi=130)


# Bars of the overview: label, measures that add up, colour.
BARS = (
    ("Teal, gap of 1% certified", ("cold to 0.01",), "#00796b"),
    ("Teal, gap of 0.1% certified", ("cold to 0.001",), "#80cbc4"),
    ("HiGHS, interior point, exact", ("highs-ipm",), "#9e9e9e"),
    ("PDLP, tolerance of 0.1%", ("pdlp 0.001",), "#e0a030"),
)


def overview(file: Path, rows: list[tuple[str, str, float, str]], limit: float) -> None:
    """Draw the time of each way on each network as bars; a way that takes longer than the limit
    ends there, hatched.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = {(network, measure): value for network, measure, value, _ in rows}
    names = [name for name in NETWORKS if (name, "demands") in found]
    figure = Figure(figsize=(9, 0.9 + 0.75 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for number, (label, measures, colour) in enumerate(BARS):
        for row, name in enumerate(names):
            seconds = sum(found.get((name, measure), math.nan) for measure in measures)
            if math.isnan(seconds):
                continue
            at, late = row + 0.2 * (number - 1.5), seconds >= limit
            axis.barh(
                at,
                min(seconds, limit),
                0.18,
                color=colour,
                hatch="//" if late else "",
                label=label if not row else "",
            )
            shown = (
                f"more than {limit:g} s"
                if late
                else f"{1e3 * seconds:.3g} ms"
                if seconds < 1
                else f"{seconds:.3g} s"
            )
            axis.text(min(seconds, limit) * 1.15, at, shown, va="center", fontsize=7)
    axis.set_yticks(
        range(len(names)), [f"{name}\n{found[name, 'demands']:,.0f} demands" for name in names]
    )
    axis.set(xscale="log", xlim=(5e-4, 6 * limit), xlabel="seconds, from nothing to the answer")
    axis.invert_yaxis()
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(loc="upper right", fontsize=8, frameon=False)
    figure.savefig(file, dpi=140)


def main() -> None:
    """Measure the networks; write engine.csv and engine.png."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=Path(), help="folder of the files that data/README.md names"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/engine"), help="folder of engine.csv and engine.png"
    )
    parser.add_argument("--networks", default=",".join(NETWORKS), help="names, separated by commas")
    parser.add_argument("--limit", type=float, default=60.0, help="time limit of an LP solver, s")
    parser.add_argument("--redraw", action="store_true", help="only plot the stored OUT/engine.csv")
    parser.add_argument("--part", nargs=2, metavar=("KIND", "NETWORK"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        kind, name = options.part
        parts = (
            engine(name, options.data)
            if kind == "engine"
            else solver(kind, name, options.data, options.limit)
        )
        for part in parts:
            print(json.dumps(part), flush=True)
        return
    if options.redraw:
        with (options.out / "engine.csv").open(encoding="utf-8") as stream:
            stored = [
                (r["network"], r["measure"], float(r["value"]), r["unit"])
                for r in csv.DictReader(stream)
            ]
        plot(options.out / "engine.png", stored)
        overview(options.out / "overview.png", stored, options.limit)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[tuple[str, str, float, str]] = []
    for name in options.networks.split(","):
        common = ["--data", str(options.data), "--limit", str(options.limit), "--part"]
        measured = child([*common, "engine", name], None)
        size = 4 * next((value for measure, value, _ in measured if measure == "demands"), math.inf)
        for kind, max_size in SOLVERS.items():
            if size <= max_size:
                measured += child([*common, kind, name], 10 * options.limit)
        for measure, value, unit in measured:
            print(f"{name:>10}  {measure:<42} {value:12.6g} {unit}", flush=True)
            rows.append((name, measure, value, unit))
        with (options.out / "engine.csv").open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([("network", "measure", "value", "unit"), *rows])
        plot(options.out / "engine.png", rows)
        overview(options.out / "overview.png", rows, options.limit)
    print(options.out / "engine.csv", options.out / "engine.png")


if __name__ == "__main__":
    main()
