"""Measure the engines of a linear program on many networks, and fit the cost model of their choice.

    python benchmarks/engine_choice.py measure --out OUT [--data FOLDER] [--seconds 10]
    python benchmarks/engine_choice.py fit --out OUT [--write]

``measure`` writes OUT/engine-choice.csv: a row for each network, traffic, objective, target gap,
start and batch, with the features of the cost model and the seconds of interior points and of PDHG,
medians of calls in turn.  It continues a table that is there.  FOLDER holds the published networks
and matrices, which are left out without it.

``fit`` fits the cost model (:mod:`teal.solvers.cost_model`) to the table, predicts the networks of
each fold from the others, and prints how much longer than the fastest engine the chosen one takes.
With ``--write`` it stores the model of all rows in the package.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from public_data import published

# Names of topologies of topohub; nodes in ascending order within each group.
_SNDLIB = [
    "pdh",
    "di-yuan",
    "dfn-gwin",
    "abilene",
    "polska",
    "nobel-us",
    "atlanta",
    "newyork",
    "nobel-germany",
    "geant",
    "ta1",
    "france",
    "norway",
    "sun",
    "nobel-eu",
    "india35",
    "cost266",
    "giul39",
    "janos-us-ca",
    "pioro40",
    "germany50",
    "zib54",
    "ta2",
]
_ZOO = [
    "Netrail",
    "Nsfnet",
    "Cesnet1999",
    "Spiralight",
    "Highwinds",
    "Basnet",
    "Belnet2005",
    "Uran",
    "Sunet",
    "Garr200109",
    "Quest",
    "VisionNet",
    "Funet",
    "Bbnplanet",
    "Darkstrand",
    "Xspedius",
    "Renater2010",
    "Garr201104",
    "Iris",
    "Forthnet",
    "Uninett2011",
    "Latnet",
    "Ulaknet",
    "VtlWavenet2008",
    "TataNld",
]
_GABRIEL = [
    "10/0",
    "15/1",
    "20/2",
    "25/1",
    "30/3",
    "35/4",
    "40/5",
    "50/6",
    "60/8",
    "70/3",
    "80/4",
    "90/7",
    "100/2",
    "125/5",
    "150/9",
    "175/0",
    "200/1",
    "250/2",
]
_CAIDA = ["5617", "6830", "4134", "5410", "8151"]
_BACKBONE = ("africa_nosc", "south_america_nosc", "africa")
# Load of the gravity traffic: the network carries all of it, or not.
_LOADS = (1.5, 6.0)
_PUBLISHED = ("UsCarrier.json", "Kdl.json")
_MEASURED = ("geant_long", "germany50_long")

_OBJECTIVES = ("total_flow", "max_link_utilisation", "proportional_fair")
_GAPS = (1e-2, 1e-4, 1e-6)
_BATCHES = (16, 256)
_MAX_BATCH_SCAN = {16: 60_000, 256: 4_000}  # largest scan size of a network for each batch
_MAX_UTILITY_SCAN = 30_000
_REPEAT_S = 0.25  # repeated calls of an engine end after these seconds
_MAX_REPEATS = 7
_LONG_CALL_S = 1.0  # a call that takes longer is not repeated
_MAX_TIME_RATIO = 4.0  # an engine is stopped after this multiple of the time of the other
_MAX_ITERATIONS = 1_000_000
ENGINES = ("interior", "fused")


class Case(NamedTuple):
    """A program to solve.

    Attributes:
        network: source of the topology.
        traffic: source of the matrices, or name of the measured ones.
        objective: name of the objective.
        gap: target gap.
        start: "cold", or "warm" for the solution of the matrix before.
        batch: number of matrices.
    """

    network: str
    traffic: str
    objective: str
    gap: float
    start: str
    batch: int


class Row(NamedTuple):
    """Measurement of a case.

    Attributes:
        nodes: number of nodes of the network.
        demands: number of demands.
        scan: number of trie nodes and path slots, which PDHG reads in an iteration.
        rows: rows of the presolved program of the first matrix.
        columns: its columns.
        updates: updates of its Schur complement.
        interior_s: median time of interior points, s.
        interior_gap: largest certified gap of interior points.
        fused_s: median time of PDHG, by the fused engine, s.
        fused_gap: largest certified gap of PDHG.
    """

    nodes: int
    demands: int
    scan: int
    rows: int
    columns: int
    updates: int
    interior_s: float
    interior_gap: float
    fused_s: float
    fused_gap: float


COLUMNS = (*Case._fields, *Row._fields)


def networks(data: Path | None) -> Iterator[tuple[str, str]]:
    """Yield the source of each topology and of its traffic, small and large ones in turn.

    Args:
        data: folder of the published files; None to leave them out.
    """
    groups = [
        ["b4"],
        [f"topohub:sndlib/{name}" for name in _SNDLIB],
        [f"topohub:topozoo/{name}" for name in _ZOO],
        [f"topohub:gabriel/{name}" for name in _GABRIEL],
        [f"topohub:caida/2024-08/{name}" for name in _CAIDA],
        [f"topohub:backbone/{name}" for name in _BACKBONE],
    ]
    if data is not None:
        groups.append([str(published(data, name)) for name in _PUBLISHED])
        groups.append([str(data / "history" / f"{name}.json") for name in _MEASURED])
    for names in itertools.zip_longest(*groups):
        for name in filter(None, names):
            if "history" in name:
                yield name, name.replace(".json", ".npz")
                continue
            for load in _LOADS:
                yield name, f"gravity:seed=0,count=257,load={load}"


def _timed_in_turn(solves: list[Any], limit_s: float) -> list[tuple[float, float]]:
    """Return the median seconds and the largest gap of each solve, called in turn.

    The first call of each compiles kernels and is not counted, unless it is long.

    Args:
        solves: function of a deadline, s, that returns a result, for each engine.
        limit_s: deadline of a call, s.
    """
    # First calls; the second engine is stopped after a multiple of the first engine's time.
    first_s: list[float] = []
    gaps: list[float] = []
    for solve in solves:
        deadline = (
            limit_s if not first_s else min(limit_s, _MAX_TIME_RATIO * first_s[0] + _REPEAT_S)
        )
        begin = time.perf_counter()
        result = solve(deadline)
        first_s.append(time.perf_counter() - begin)
        gaps.append(float(result.gap.max()))
    # Repeated calls, in turn.
    times: list[list[float]] = [[] for _ in solves]
    for _ in range(_MAX_REPEATS):
        for index, solve in enumerate(solves):
            # A long call is not repeated: its first time counts.  The others repeat for _REPEAT_S.
            is_recorded = first_s[index] > _LONG_CALL_S and times[index]
            if is_recorded or sum(times[index]) > _REPEAT_S:
                continue
            if first_s[index] > _LONG_CALL_S:
                times[index].append(first_s[index])
                continue
            begin = time.perf_counter()
            solve(limit_s)
            times[index].append(time.perf_counter() - begin)
    return [
        (statistics.median(engine_times), gap)
        for engine_times, gap in zip(times, gaps, strict=True)
    ]


def _measure_network(
    network: str, traffic: str, limit_s: float, measured_cases: set[tuple[str, ...]]
) -> Iterator[tuple[Case, Row]]:
    """Yield the measurements of all cases of a network and its traffic.

    Args:
        network: source of the topology.
        traffic: source of the matrices.
        limit_s: deadline of a call, s.
        measured_cases: cases that are measured already, as strings.
    """
    import teal
    from teal.solvers.interior.engine import FirstMatrixProgram

    topology = teal.load_topology(network)
    matrices = teal.load_traffic(traffic, topology)
    paths = teal.compute_paths(topology, matrices.pairs)
    max_batch = max([1] + [b for b in _BATCHES if paths.scan_size <= _MAX_BATCH_SCAN[b]])
    count = min(len(matrices), max_batch + 1)
    demand = matrices.read(list(range(count)))
    for objective in _OBJECTIVES:
        if objective == "proportional_fair" and paths.scan_size > _MAX_UTILITY_SCAN:
            continue
        problem = teal.Problem.create(topology, paths, objective, demand)
        program_size = FirstMatrixProgram(problem.row(1)).size
        for gap in _GAPS:
            previous = None
            starts_and_batches = [
                ("cold", 1),
                ("warm", 1),
                *(("cold", b) for b in _BATCHES if b < count),
            ]
            for start, batch in starts_and_batches:
                case = Case(network, traffic, objective, gap, start, batch)
                if tuple(map(str, case)) in measured_cases:
                    continue
                # Matrix 0 is left for the warm start: the batch begins at matrix 1.
                case_problem = problem.rows(slice(1, 1 + batch))
                warm_start = None
                if start == "warm":
                    previous = previous or teal.solve(
                        problem.row(0), gap=gap, deadline=limit_s, model=None
                    )
                    warm_start = previous.state

                def solve(
                    engine: str,
                    deadline: float,
                    case_problem: Any = case_problem,
                    gap: float = gap,
                    warm_start: Any = warm_start,
                ) -> Any:
                    return teal.solve(
                        case_problem,
                        gap=gap,
                        engine=engine,
                        warm_start=warm_start,
                        model=None,
                        deadline=deadline,
                        max_iterations=_MAX_ITERATIONS,
                    )

                solves = [
                    lambda s, engine=engine, solve=solve: solve(engine, s) for engine in ENGINES
                ]
                interior, fused = _timed_in_turn(solves, limit_s)
                network_size = topology.num_nodes, paths.num_demands, paths.scan_size
                yield case, Row._make((*network_size, *program_size, *interior, *fused))


def measure(out: Path, data: Path | None, limit_s: float) -> None:
    """Append the cases that OUT/engine-choice.csv lacks.

    Args:
        out: folder of the table.
        data: folder of the published files; None to leave them out.
        limit_s: deadline of a call, s.
    """
    out.mkdir(parents=True, exist_ok=True)
    table = out / "engine-choice.csv"
    measured_cases: set[tuple[str, ...]] = set()
    if table.exists():
        with table.open(newline="") as stream:
            measured_cases = {
                tuple(row[name] for name in Case._fields) for row in csv.DictReader(stream)
            }
    with table.open("a", newline="") as stream:
        writer = csv.writer(stream)
        if not measured_cases:
            writer.writerow(COLUMNS)
        for network, traffic in networks(data):
            for case, row in _measure_network(network, traffic, limit_s, measured_cases):
                writer.writerow((*case, *row))
                stream.flush()
            print(network, traffic, flush=True)


# Factor on the time of an engine that missed the target.
_MISS_PENALTY = 3.0
_RIDGE = 1e-4  # ridge penalty of the fit, on standardised monomials
_FOLDS = 8
_KINDS = {
    "total_flow": "shed",
    "max_link_utilisation": "carry",
    "proportional_fair": "utility",
}
# Numbers of the cost model that are not fitted here: start of interior points from a PriceGNN,
# time of a PDHG iteration, interior points under bounds on columns, and the largest network.
_FIXED_PARAMETERS = {
    "price_gnn": {
        "seconds": 2e-3,
        "seconds_per_scan_entry": 3e-7,
        "saved_share": 0.775,
        "saved_share_per_digit": -0.0625,
    },
    "column_selection": {"columns": 5500, "exponent": -0.3},
    "simplex": {
        "min_gap": 1e-7,
        "max_warm_gap": 1e-4,
        "min_batch": 8,
        "max_slots": 3_100,
        "fine_gap": 1e-5,
        "max_slots_at_fine_gap": 10_000,
        "max_links": 250,
        "first_basis": 10,
        "seconds": 2e-5,
        "pivots_per_row": 0.2,
        "pivot_seconds": 2e-6,
        "pivot_seconds_per_slot": 5e-9,
        "pivot_seconds_per_entry": 6e-10,
    },
    "pdhg_iteration": {
        "seconds": 5e-5,
        "seconds_per_scan_entry": 8e-9,
        "lanes": 16,
        "exponent": 0.4,
        "least": 32,
    },
    "interior_with_bounds": 0.5,
    "max_interior_scan": 400_000,
}


class Measured(NamedTuple):
    """A row of the table as the fit uses it.

    Attributes:
        case: the case.
        features: values of the cost model's features.
        seconds: seconds of each engine, with a penalty where it missed the target.
    """

    case: Case
    features: tuple[float, ...]
    seconds: dict[str, float]


def read_table(table: Path) -> list[Measured]:
    """Return the rows of a table in which at least one engine reached the target.

    Args:
        table: file that ``measure`` has written.
    """
    from teal.solvers.cost_model import features

    rows = []
    with table.open(newline="") as stream:
        for record in csv.DictReader(stream):
            gap = float(record["gap"])
            seconds = {}
            has_reached = {}
            for engine, column in (("interior", "interior"), ("pdhg", "fused")):
                has_reached[engine] = float(record[f"{column}_gap"]) <= gap * (1 + 1e-4)
                penalty = 1.0 if has_reached[engine] else _MISS_PENALTY
                seconds[engine] = penalty * float(record[f"{column}_s"])
            if not any(has_reached.values()):
                continue
            case = Case(
                record["network"],
                record["traffic"],
                record["objective"],
                gap,
                record["start"],
                int(record["batch"]),
            )
            num_rows, columns, updates, scan = (
                int(record[name]) for name in ("rows", "columns", "updates", "scan")
            )
            values = features(num_rows, columns, updates, scan, case.batch, gap)
            rows.append(Measured(case, values, seconds))
    return rows


def fit_model(rows: list[Measured]) -> dict[str, Any]:
    """Return the cost model of some measurements, as it is stored.

    The logarithm of the seconds is fitted by least squares with a ridge penalty.

    Args:
        rows: measurements.
    """
    import numpy as np

    from teal.solvers.cost_model import monomials

    log_seconds: dict[str, Any] = {}
    for engine, objective, start in itertools.product(
        ("interior", "pdhg"), _OBJECTIVES, ("cold", "warm")
    ):
        group = [row for row in rows if (row.case.objective, row.case.start) == (objective, start)]
        monomial_rows = np.array([monomials(row.features) for row in group])
        target = np.log([row.seconds[engine] for row in group])
        # Standardise all monomials but the constant.
        mean = monomial_rows.mean(0)
        scale = monomial_rows.std(0) + 1e-9
        mean[0], scale[0] = 0, 1
        scaled_monomials = (monomial_rows - mean) / scale
        ridge = _RIDGE * len(group) * np.eye(monomial_rows.shape[1])
        weights = np.linalg.solve(
            scaled_monomials.T @ scaled_monomials + ridge, scaled_monomials.T @ target
        )
        # Undo the standardisation: coefficients of the monomials themselves.
        coefficients = weights / scale
        coefficients[0] -= coefficients @ mean
        by_start = log_seconds.setdefault(engine, {}).setdefault(_KINDS[objective], {})
        by_start[start] = [float(f"{value:.9g}") for value in coefficients]
    columns = list(zip(*(row.features for row in rows), strict=True))
    low, high = [min(column) for column in columns], [max(column) for column in columns]
    return {"range": [low, high], "log_seconds": log_seconds, **_FIXED_PARAMETERS}


def slowdowns(
    rows: list[Measured], model: dict[str, Any], tested_rows: list[Measured]
) -> list[float]:
    """Return for each case the time of the chosen engine and start over that of the fastest.

    Args:
        rows: all measurements; the cold solves of warm cases are found in them.
        model: the cost model.
        tested_rows: cases to choose for.
    """
    from teal.solvers import cost_model

    cold = {row.case: row for row in rows if row.case.start == "cold"}
    ratios = []
    for row in tested_rows:
        case = row.case
        candidates = [(row, "interior"), (row, "pdhg")]
        # A warm case may also be solved cold by interior points.
        cold_row = cold.get(case._replace(start="cold"))
        if case.start == "warm" and cold_row is not None:
            candidates.append((cold_row, "interior"))
        predicted = [
            cost_model.predict(
                model, engine, _KINDS[case.objective], measured.case.start, measured.features
            )
            for measured, engine in candidates
        ]
        seconds = [measured.seconds[engine] for measured, engine in candidates]
        ratios.append(seconds[predicted.index(min(predicted))] / min(seconds))
    return ratios


def fit(out: Path, *, write: bool) -> None:
    """Print how well held-out networks are predicted; write the model of all rows if asked.

    Args:
        out: folder of the table.
        write: whether to store the model in the package.
    """
    from teal.solvers import cost_model

    rows = read_table(out / "engine-choice.csv")
    names = sorted({row.case.network for row in rows})
    ratios: list[tuple[Case, float]] = []
    for fold in range(_FOLDS):
        held_out = set(names[fold::_FOLDS])
        model = fit_model([row for row in rows if row.case.network not in held_out])
        tested_rows = [row for row in rows if row.case.network in held_out]
        fold_ratios = slowdowns(rows, model, tested_rows)
        ratios += [(row.case, ratio) for row, ratio in zip(tested_rows, fold_ratios, strict=True)]
    print(f"{len(rows)} cases on {len(names)} networks; chosen over fastest, held out:")
    groups = {
        "all": ratios,
        "one matrix": [pair for pair in ratios if pair[0].batch == 1],
        "cold": [pair for pair in ratios if pair[0].start == "cold"],
        "warm": [pair for pair in ratios if pair[0].start == "warm"],
    }
    for name, group in groups.items():
        sorted_ratios = sorted(ratio for _, ratio in group)
        within_15 = sum(ratio <= 1.15 for ratio in sorted_ratios) / len(sorted_ratios)
        within_50 = sum(ratio <= 1.5 for ratio in sorted_ratios) / len(sorted_ratios)
        print(
            f"{name}: {len(sorted_ratios)} cases, within 1.15 {within_15:.1%}, within 1.5 {within_50:.1%}, "
            f"median {statistics.median(sorted_ratios):.3f}, worst {sorted_ratios[-1]:.1f}"
        )
    if write:
        cost_model.PATH.write_text(json.dumps(fit_model(rows), indent=1) + "\n")


def main() -> None:
    """Measure the engines, or fit the cost model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=("measure", "fit"))
    parser.add_argument(
        "--out", type=Path, default=Path("runs/engine-choice"), help="folder of the table"
    )
    parser.add_argument("--data", type=Path, help="folder of the published networks")
    parser.add_argument("--seconds", type=float, default=10.0, help="deadline of a call, s")
    parser.add_argument(
        "--write", action="store_true", help="store the fitted model in the package"
    )
    options = parser.parse_args()
    if options.step == "measure":
        measure(options.out, options.data, options.seconds)
    else:
        fit(options.out, write=options.write)


if __name__ == "__main__":
    main()
