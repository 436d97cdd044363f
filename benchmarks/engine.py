"""Compare Teal with LP solvers: seconds to a certified gap, cold and warm (from the solution of the
previous matrix).

    python benchmarks/engine.py --data FOLDER [--networks b4,geant,UsCarrier,Kdl,ASN] [--limit 60] \
        --out runs/engine

FOLDER holds UsCarrier.json, Kdl.json and ASN2k.json.  Every solver gets the same consecutive
matrices (AR(1) noise 0.3, correlation 0.9) in the same process: one warm-up on the first matrix, a
timed call on each of the others, the median (:func:`timing.time_series`).  PDLP has a process of its
own, since OR-Tools and HiGHS cannot be loaded into one; its clock runs there.  Each solver may use
all cores; HiGHS's simplex and IPX use one.

A solver that needs a model is compared by the time of the solver alone (``solver_s``), without
building the model; Teal by the time of the whole call.  The gap of every allocation is certified by
the same arithmetic (:func:`teal.problem.assessment.assess`) from the splits and prices that the
solver gives.  Each solver is measured in several settings; the fastest one that reaches a gap
counts.

OUT/engine.csv has a row for each network, solver and setting; OUT/engine-summary.csv the fastest
setting of each solver, and ratios of solver to Teal; OUT/engine.png shows gap against time,
OUT/overview.png the times.  Run it on an otherwise idle machine: an hour with all networks.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import engine_plots
import peers
from public_data import published
from timing import NOT_RUN, Solve, State, time_series

import teal

# Name: source of the topology, and load of the gravity traffic.
NETWORKS = {
    "b4": ("b4", 6),
    "geant": ("topohub:sndlib/geant", 4),
    "UsCarrier": ("UsCarrier.json", 6),
    "Kdl": ("Kdl.json", 6),
    "ASN": ("ASN2k.json", 6),
}
NUM_MATRICES = 16
TARGETS = (0.01, 1e-3, 1e-4, 1e-6)
EXACT_GAP = 1e-6  # a solution within it counts as exact
COLD = "cold"
WARM = "warm"
# Largest number of columns (demands x paths) with which a method is tried.
MAX_COLUMNS_SIMPLEX = 200_000
MAX_COLUMNS_IPM = 10_000_000
MAX_COLUMNS_CLARABEL = 200_000
MAX_COLUMNS_GUROBI = 2_000  # of the licence in its wheel


@dataclasses.dataclass(frozen=True)
class Party:
    """A solver in one setting.

    Attributes:
        solver: name of the solver.
        setting: options of the solver, as text.
        start: :data:`COLD` or :data:`WARM`.
        make: returns a new function that solves a problem of one matrix, which is timed.
        max_columns: largest number of columns (paths) of a program on which the solver is run.
        target: relative gap at which Teal stops; NaN for a solver that stops at its own tolerance.
    """

    solver: str
    setting: str
    start: str
    make: Callable[[], Solve]
    max_columns: float = math.inf
    target: float = math.nan


@dataclasses.dataclass(frozen=True)
class Measured:
    """A row of engine.csv: one solver in one setting on one network.

    Attributes:
        network: key of :data:`NETWORKS`.
        solver: name of the solver.
        setting: options of the solver, as text.
        start: :data:`COLD` or :data:`WARM`.
        target: relative gap at which Teal stops; NaN for other solvers.
        seconds: median time of a whole call, s.
        solver_s: median time of the solver alone, without building its model, s.
        gap: largest certified gap of the allocations.
        calls: number of timed calls.
        state: :class:`timing.State` of the calls.
    """

    network: str
    solver: str
    setting: str
    start: str
    target: float
    seconds: float
    solver_s: float
    gap: float
    calls: int
    state: str


def parties(limit: float) -> Iterator[Party]:
    """Yield all solvers in all settings that are compared.

    Args:
        limit: time limit of a solver, s.
    """
    for target in TARGETS:
        yield Party("Teal", "", COLD, lambda t=target: peers.teal_cold(t, limit), target=target)  # type: ignore[misc]
        yield Party("Teal", "", WARM, lambda t=target: peers.teal_warm(t, limit), target=target)  # type: ignore[misc]
    # Simplex and interior-point methods of HiGHS and Gurobi.
    for solver in ("highs", "gurobi"):
        for method, presolve, crossover, size in (
            ("primal-simplex", False, True, MAX_COLUMNS_SIMPLEX),
            ("simplex", True, True, MAX_COLUMNS_SIMPLEX),
            ("simplex", False, True, MAX_COLUMNS_SIMPLEX),
            ("ipm", True, True, MAX_COLUMNS_IPM),
            ("ipm", True, False, MAX_COLUMNS_IPM),
            ("ipm", False, False, MAX_COLUMNS_SIMPLEX),
        ):
            setting = peers.setting(method, presolve, crossover)
            scheme = f"lp-all:solver={solver},time_limit={limit:g},{setting}"
            yield Party(
                {"highs": "HiGHS", "gurobi": "Gurobi"}[solver],
                setting,
                COLD,
                lambda scheme=scheme: peers.of_scheme(scheme),  # type: ignore[misc]
                min(size, MAX_COLUMNS_GUROBI) if solver == "gurobi" else size,
            )
    yield Party(
        "HiGHS",
        "dual simplex from the last basis",
        WARM,
        lambda: peers.of_scheme(f"lp-all:warm=true,time_limit={limit:g}"),
        MAX_COLUMNS_IPM,
    )
    for tolerance in (1e-3, 1e-8):
        yield Party(
            "Clarabel",
            f"tolerance={tolerance:g}",
            COLD,
            lambda t=tolerance: peers.clarabel(t, limit),  # type: ignore[misc]
            MAX_COLUMNS_CLARABEL,
        )
    for accuracy, threads in itertools.product((1e-3, 1e-4), (1, 2)):
        yield Party(
            "PDLP",
            f"tolerance={accuracy:g}, threads={threads}",
            COLD,
            lambda a=accuracy, t=threads: peers.pdlp(a, t, limit),  # type: ignore[misc]
        )


def load(name: str, data: Path, matrices: int) -> teal.Problem:
    """Return the total-flow problem of consecutive gravity matrices of a network.

    Args:
        name: key of :data:`NETWORKS`.
        data: folder of the published files.
        matrices: number of matrices, the batch size of the problem.
    """
    source, traffic_load = NETWORKS[name]
    is_file = source.endswith(".json")
    topology = teal.load_topology(str(published(data, source)) if is_file else source)
    traffic = teal.load_traffic(f"gravity:seed=0,count={matrices},load={traffic_load}", topology)
    paths = teal.compute_paths(topology, traffic.pairs)
    return teal.Problem.create(topology, paths, teal.Objective(), traffic.read(slice(None)))


def measure(
    name: str, data: Path, limit: float, solvers: Sequence[str]
) -> tuple[teal.Problem, list[Measured]]:
    """Measure the solvers on one network, one after the other in this process.

    Args:
        name: key of :data:`NETWORKS`.
        data: folder of the published files.
        limit: time limit of each solver, s.
        solvers: names of the solvers to measure; empty for all.

    Returns:
        the problem of the network, and a row for each solver and setting.
    """
    # One problem for each matrix of the series.
    problem = load(name, data, NUM_MATRICES)
    # Pack the paths before the timing, as a service does once for a network.
    _ = problem.paths.packed
    rows = [problem.row(number) for number in range(problem.batch)]
    columns = int(problem.paths.mask.sum())
    measured = []
    for party in parties(limit):
        if solvers and party.solver not in solvers:
            continue
        # Programs that are too large for a solver are not run.
        timing = NOT_RUN
        if columns <= party.max_columns:
            timing = time_series(party.make(), rows)
        row = Measured(
            name,
            party.solver,
            party.setting,
            party.start,
            party.target,
            *dataclasses.astuple(timing),
        )
        measured.append(row)
        print(
            f"{name:>10} {party.start} {party.solver:9} {party.setting:40} {party.target:<7g}"
            f"{1e3 * row.seconds:12.3f} ms, solver {1e3 * row.solver_s:12.3f} ms, gap {row.gap:.2e}"
            f", {row.calls} calls, {row.state}",
            flush=True,
        )
    return problem, measured


def time_cell(rows: Sequence[Measured], limit: float) -> tuple[str, Measured | None]:
    """Return the time of the fastest row as the text of a table cell, and this row.

    The text is the solver's seconds; ``>LIMIT`` if no row is solved and some were stopped at the
    time limit; or ``not run``.  Without a solved row the row is None.

    Args:
        rows: measured settings.
        limit: time limit of a solver, s.
    """
    solved = [row for row in rows if row.state == State.SOLVED]
    if solved:
        best = min(solved, key=lambda row: row.solver_s)
        return repr(best.solver_s), best
    was_run = any(row.state == State.STOPPED for row in rows)
    return (f">{limit:g}" if was_run else "not run"), None


def ratio_cell(peer_text: str, teal_text: str) -> str:
    """Return the ratio of another solver's time to Teal's as the text of a table cell.

    The text is ``>NUMBER`` if the other solver was stopped, and ``not run`` if one of the two was
    not run or Teal was stopped.

    Args:
        peer_text: the other solver's time as the text of a table cell.
        teal_text: Teal's time in the same form.
    """
    if teal_text.startswith(">") or "not run" in (teal_text, peer_text):
        return "not run"
    if peer_text.startswith(">"):
        return f">{float(peer_text[1:]) / float(teal_text)!r}"
    return repr(float(peer_text) / float(teal_text))


def summary(problem: teal.Problem, rows: Sequence[Measured], limit: float) -> dict[str, Any]:
    """Return a row of engine-summary.csv: the time of each solver in its fastest setting, and the
    ratios of these times to Teal's.

    Args:
        problem: problem of the network.
        rows: all measurements on the network.
        limit: time limit of a solver, s.
    """
    line: dict[str, Any] = {
        "network": rows[0].network,
        "demands": problem.paths.num_demands,
        "links": problem.topology.num_links,
        "columns": int(problem.paths.mask.sum()),
    }
    for start in (COLD, WARM):
        rows_of_start = [row for row in rows if row.start == start]
        peer_rows = [row for row in rows_of_start if row.solver != "Teal"]
        exact_rows = [row for row in peer_rows if row.solver == "HiGHS" and _may_be_exact(row)]
        for target in TARGETS:
            name = f"{start} to {target:g}"
            teal_text, _ = time_cell(
                [r for r in rows_of_start if r.solver == "Teal" and r.target == target], limit
            )
            # Stopped rows stay: if no solver reached the gap, the cell says ">LIMIT".
            rows_at_target = [
                row for row in peer_rows if row.gap <= target or row.state != State.SOLVED
            ]
            text, fastest = time_cell(rows_at_target, limit)
            line[f"Teal {name}"] = teal_text
            line[f"other {name}"] = text
            line[f"other {name}, which"] = f"{fastest.solver}, {fastest.setting}" if fastest else ""
            line[f"other over Teal {name}"] = ratio_cell(text, teal_text)
            line[f"HiGHS over Teal {name}"] = ratio_cell(time_cell(exact_rows, limit)[0], teal_text)
        line[f"HiGHS {start}, exact"] = time_cell(exact_rows, limit)[0]
        for solver in ("HiGHS", "Gurobi", "Clarabel", "PDLP"):
            solver_rows = [row for row in peer_rows if row.solver == solver]
            if solver_rows:
                text, fastest = time_cell(solver_rows, limit)
                line[f"{solver} {start}"] = text
                line[f"{solver} {start}, setting"] = fastest.setting if fastest else ""
    return line


def _may_be_exact(row: Measured) -> bool:
    """Whether the row may count for an exact solver: its gap is at most :data:`EXACT_GAP`, or it
    has no solution.
    """
    return row.gap <= EXACT_GAP or row.state != State.SOLVED


def write(
    out: Path, rows: Sequence[Measured], lines: Sequence[dict[str, Any]], limit: float
) -> None:
    """Write engine.csv and engine-summary.csv, and draw engine.png and overview.png.

    Args:
        out: folder of the files.
        rows: rows of engine.csv.
        lines: rows of engine-summary.csv.
        limit: time limit of a solver, s.
    """
    out.mkdir(parents=True, exist_ok=True)
    with (out / "engine.csv").open("w", newline="", encoding="utf-8") as stream:
        names = [field.name for field in dataclasses.fields(Measured)]
        csv.writer(stream).writerows([names, *(dataclasses.astuple(row) for row in rows)])
    with (out / "engine-summary.csv").open("w", newline="", encoding="utf-8") as stream:
        columns = list(dict.fromkeys(column for line in lines for column in line))
        writer = csv.DictWriter(stream, columns)
        writer.writeheader()
        writer.writerows(lines)
    engine_plots.gap_against_time(out / "engine.png", rows)
    engine_plots.overview(out / "overview.png", lines, limit)


def read(out: Path) -> list[Measured]:
    """Return the rows of OUT/engine.csv, which a former run has written.

    Args:
        out: folder of engine.csv.
    """
    with (out / "engine.csv").open(encoding="utf-8") as stream:
        lines = list(csv.DictReader(line for line in stream if not line.startswith("# ")))
    return [
        Measured(
            network=line["network"],
            solver=line["solver"],
            setting=line["setting"],
            start=line["start"],
            target=float(line["target"]),
            seconds=float(line["seconds"]),
            solver_s=float(line["solver_s"]),
            gap=float(line["gap"]),
            calls=int(line["calls"]),
            state=line["state"],
        )
        for line in lines
    ]


def main() -> None:
    """Measure the solvers on the networks, or read earlier rows; write tables and pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=Path(), help="folder of the files that data/README.md names"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/engine"), help="folder of results")
    parser.add_argument("--networks", default=",".join(NETWORKS), help="names, separated by commas")
    parser.add_argument("--limit", type=float, default=60.0, help="time limit of a solver, s")
    parser.add_argument(
        "--solvers", nargs="+", default=[], help="measure these; the others' rows in OUT stay"
    )
    parser.add_argument("--redraw", action="store_true", help="measure nothing")
    options = parser.parse_args()
    stored_rows = read(options.out) if options.solvers or options.redraw else []
    rows: list[Measured] = []
    lines: list[dict[str, Any]] = []
    for name in options.networks.split(","):
        network_rows = [row for row in stored_rows if row.network == name]
        # Measured rows replace the stored ones of the same solvers.
        if options.redraw:
            problem = load(name, options.data, 1)
        else:
            network_rows = [row for row in network_rows if row.solver not in options.solvers]
            problem, measured = measure(name, options.data, options.limit, options.solvers)
            network_rows += measured
        rows += network_rows
        lines.append(summary(problem, network_rows, options.limit))
        write(options.out, rows, lines, options.limit)
    print(options.out / "engine.csv", options.out / "engine-summary.csv")


if __name__ == "__main__":
    main()
