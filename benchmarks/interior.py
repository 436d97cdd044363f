"""Compare interior points with PDHG: times to certified gaps, on networks of 4 to 2,000 nodes.

    python benchmarks/interior.py --out OUT [--data FOLDER] [--most 150]

FOLDER holds UsCarrier.json, Kdl.json and ASN2k.json, which are left out without it.  OUT/interior.csv
has a row for each network, objective, load and gap: the size of the program, and seconds and
iterations of both engines, medians of repeated calls of `teal.solve`.  Networks of more than --most
nodes are left out.  The column ``asked`` names the engine that `teal.solve` selects.

    python benchmarks/interior.py --columns --out OUT [--data FOLDER] [--most 150]

OUT/interior-columns.csv has the times of column generation over all paths, to 0.1%, with the
interior-point master program and with rounds of PDHG.

    python benchmarks/interior.py --programs --out OUT [--data FOLDER]

OUT/interior-programs.csv has the times and gaps of programs with fair shares, max-min fairness,
limits on churn and protection, by the engine that `teal.solve` selects and by PDHG.
"""

from __future__ import annotations

import argparse
import csv
import itertools
from pathlib import Path
from typing import Any

from public_data import published
from timing import median_s

# Source of each topology, and load of its gravity traffic.
NETWORKS = (
    ("b4", 6),
    ("b4", 2),
    ("topohub:sndlib/abilene", 4),
    ("topohub:sndlib/geant", 4),
    ("topohub:sndlib/geant", 2),
    ("topohub:sndlib/nobel-eu", 4),
    ("topohub:sndlib/germany50", 2),
    ("topohub:sndlib/germany50", 6),
    ("topohub:sndlib/cost266", 4),
    ("topohub:sndlib/janos-us", 4),
    ("topohub:sndlib/pioro40", 4),
    ("topohub:sndlib/norway", 4),
    ("topohub:sndlib/ta2", 4),
    ("topohub:sndlib/zib54", 4),
    ("topohub:topozoo/Basnet", 4),
    ("topohub:topozoo/Netrail", 4),
    ("topohub:topozoo/Globalcenter", 4),
    ("topohub:topozoo/Cesnet1999", 4),
    ("topohub:topozoo/Nsfnet", 4),
    ("topohub:topozoo/Spiralight", 4),
    ("topohub:topozoo/Belnet2005", 4),
    ("topohub:topozoo/Highwinds", 4),
    ("topohub:topozoo/Uran", 4),
    ("topohub:topozoo/Garr200109", 4),
    ("topohub:topozoo/Quest", 4),
    ("topohub:topozoo/VisionNet", 4),
    ("topohub:topozoo/Funet", 4),
    ("topohub:topozoo/Sunet", 4),
    ("topohub:topozoo/Bbnplanet", 4),
    ("topohub:topozoo/Darkstrand", 4),
    ("topohub:topozoo/CrlNetworkServices", 4),
    ("topohub:topozoo/Xspedius", 4),
    ("topohub:topozoo/Renater2010", 4),
    ("topohub:topozoo/Garr201104", 4),
    ("topohub:gabriel/25/1", 4),
    ("topohub:gabriel/35/4", 4),
    ("topohub:gabriel/60/8", 4),
    ("topohub:gabriel/90/7", 4),
    ("topohub:gabriel/90/7", 8),
    ("topohub:gabriel/100/2", 4),
    ("topohub:gabriel/150/9", 4),
)
PUBLISHED = (("UsCarrier.json", 6), ("Kdl.json", 6))
OBJECTIVES = ("total_flow", "max_link_utilisation")
GAPS = (1e-2, 1e-3, 1e-4)
_LIMIT_S = 20.0  # deadline of a solve
COLUMNS = (
    "network",
    "nodes",
    "objective",
    "load",
    "gap",
    "rows",
    "paths",
    "updates",
    "scan",
    "interior_s",
    "interior_iterations",
    "interior_gap",
    "pdhg_s",
    "pdhg_iterations",
    "pdhg_gap",
    "asked",
)


def measure_solve(problem: Any, gap: float, engine: str) -> tuple[float, int, float]:
    """Return the median seconds, the iterations and the certified gap of a solve.

    Args:
        problem: problem of one matrix.
        gap: relative gap to reach.
        engine: engine of `teal.solve`.
    """
    import teal

    def solve() -> Any:
        return teal.solve(problem, gap=gap, engine=engine, deadline=_LIMIT_S, model=None)

    # The first solve may compile kernels; a long one is not repeated.
    result = solve()
    seconds = result.solve_s if result.solve_s > 2 else median_s(solve, 5)
    return seconds, result.iterations, float(result.gap[0])


def chosen_engine(result: Any) -> str:
    """Return the name of the engine that had the first turn of a solve."""
    turns = [stage.name for stage in result.trace if stage.name.startswith("iterate: ")]
    return turns[0].removeprefix("iterate: ")


COLUMN_NETWORKS = (
    ("topohub:sndlib/cost266", 4),
    ("topohub:sndlib/germany50", 6),
    ("topohub:sndlib/ta2", 4),
    ("topohub:sndlib/zib54", 4),
    ("topohub:gabriel/60/8", 4),
    ("topohub:gabriel/90/7", 4),
)
COLUMN_GAP = 1e-3


def measure_columns(networks: list[tuple[str, int]], max_nodes: int, out: Path) -> None:
    """Write interior-columns.csv: median seconds of column generation to 0.1% by both engines.

    Args:
        networks: source of each topology, and load of its gravity traffic.
        max_nodes: number of nodes above which a network is left out.
        out: folder of the table.
    """
    import teal
    from teal.solvers.columns import generate_columns
    from teal.solvers.interior.all_paths import is_faster

    with (out / "interior-columns.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        names = ("network", "objective", "load", "paths", "master_s", "rounds_s", "asked")
        writer.writerow(names)
        for name, load in networks:
            topology = teal.load_topology(name)
            if topology.num_nodes > max_nodes:
                continue
            traffic = teal.load_traffic(f"gravity:seed=0,count=1,load={load}", topology)
            paths = teal.compute_paths(topology, traffic.pairs)
            for objective in OBJECTIVES:
                # Times of the interior-point master program and of rounds of PDHG.
                problem = teal.Problem.create(topology, paths, objective, traffic.read([0]))
                row = [topology.name, objective, load, int(paths.mask.sum())]
                for engine in ("interior", "pdhg"):

                    def solve(engine: str = engine, problem: Any = problem) -> Any:
                        return generate_columns(problem, target=COLUMN_GAP, engine=engine)

                    solve()
                    row.append(median_s(solve, 5))
                row.append("master" if is_faster(problem) else "rounds")
                writer.writerow(row)
                stream.flush()
                print(*row, flush=True)


PROGRAM_NETWORKS = (("b4", 6), ("topohub:sndlib/geant", 4), ("topohub:sndlib/germany50", 6))
PROGRAMS = ("proportional_fair", "alpha_fair:alpha=2", "max_min", "churn of 30%", "promises")


def program_of(name: str, topology: Any, traffic: Any) -> Any:
    """Return the problem of one of :data:`PROGRAMS` for the first matrix of a network's traffic.

    Args:
        name: one of :data:`PROGRAMS`.
        topology: network.
        traffic: matrices, of which the first is used.
    """
    import teal

    paths = teal.compute_paths(topology, traffic.pairs)
    objective = name if name in PROGRAMS[:3] else "total_flow"
    problem = teal.Problem.create(topology, paths, objective, traffic.read([0]))
    if name == "promises":
        return problem.with_protection()
    if name == "churn of 30%":
        return problem.with_churn_limit(problem.first_path_splits[0], 0.3)
    return problem


def measure_programs(networks: list[tuple[str, int]], out: Path) -> None:
    """Write interior-programs.csv: seconds, iterations and gap of each program of each network, by
    the engine that `teal.solve` selects and by PDHG.

    Args:
        networks: source of each topology, and load of its gravity traffic.
        out: folder of the table.
    """
    import teal

    with (out / "interior-programs.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        engine_columns = (
            f"{engine}_{figure}"
            for engine in ("asked", "pdhg")
            for figure in ("s", "iterations", "gap")
        )
        writer.writerow(("network", "program", "load", "target", *engine_columns))
        for name, load in networks:
            topology = teal.load_topology(name)
            traffic = teal.load_traffic(f"gravity:seed=0,count=1,load={load}", topology)
            for program in PROGRAMS:
                problem = program_of(program, topology, traffic)
                # The fused engine does not support protection.
                pdhg = "plain" if program == "promises" else "fused"
                for gap in (1e-2, 1e-4):
                    row = [topology.name, program, load, gap]
                    for engine in ("auto", pdhg):
                        row += measure_solve(problem, gap, engine)
                    writer.writerow(row)
                    stream.flush()
                    print(*row, flush=True)


def measure_engines(networks: list[tuple[str, int]], max_nodes: int, out: Path) -> None:
    """Write interior.csv: size, seconds, iterations and gap of both engines on each network,
    objective and gap.

    Args:
        networks: source of each topology, and load of its gravity traffic.
        max_nodes: number of nodes above which a network is left out.
        out: folder of the table.
    """
    import teal
    from teal.solvers.interior.engine import FirstMatrixProgram

    with (out / "interior.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(COLUMNS)
        for name, load in networks:
            topology = teal.load_topology(name)
            if topology.num_nodes > max_nodes:
                continue
            traffic = teal.load_traffic(f"gravity:seed=0,count=1,load={load}", topology)
            paths = teal.compute_paths(topology, traffic.pairs)
            for objective, gap in itertools.product(OBJECTIVES, GAPS):
                problem = teal.Problem.create(topology, paths, objective, traffic.read([0]))
                row: list[object] = [topology.name, topology.num_nodes, objective, load, gap]
                # Rows, paths and Schur complement updates after presolve; entries of a path scan.
                row += [*map(int, FirstMatrixProgram(problem).size), paths.scan_size]
                # Interior points and PDHG, then the engine that teal.solve selects by itself.
                for engine in ("interior", "fused"):
                    row += measure_solve(problem, gap, engine)
                row.append(chosen_engine(teal.solve(problem, gap=gap, deadline=_LIMIT_S)))
                writer.writerow(row)
                stream.flush()
                # All columns but the sizes.
                print(*row[:5], *row[9:], flush=True)


def main() -> None:
    """Write interior.csv and its summary, or the table that --columns or --programs asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/interior"), help="folder of interior.csv"
    )
    parser.add_argument("--data", type=Path, help="folder of the published networks")
    parser.add_argument("--most", type=int, default=10_000, help="largest number of nodes")
    parser.add_argument(
        "--columns", action="store_true", help="column generation over all paths instead"
    )
    parser.add_argument(
        "--programs", action="store_true", help="fair shares and side conditions instead"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    usual = PROGRAM_NETWORKS if options.programs else NETWORKS
    networks = [*(COLUMN_NETWORKS if options.columns else usual)]
    if options.data is not None:
        files = PUBLISHED[:1] if options.programs else PUBLISHED
        networks += [(str(published(options.data, file)), load) for file, load in files]
    if options.programs:
        measure_programs(networks, options.out)
        return
    if options.columns:
        measure_columns(networks, options.most, options.out)
        return
    measure_engines(networks, options.most, options.out)
    summarise(options.out)


def summarise(out: Path) -> None:
    """Write interior-summary.csv: the share of cases in which the selected engine takes at most 1.2
    times the time of the faster one, and the mean of this ratio.

    Args:
        out: folder of interior.csv.
    """
    with (out / "interior.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    ratios = [
        float(row[f"{row['asked']}_s"]) / min(float(row["interior_s"]), float(row["pdhg_s"]))
        for row in rows
    ]
    names = ("networks", "cases", "within 1.2", "mean ratio")
    figures = (
        len({row["network"] for row in rows}),
        len(rows),
        sum(ratio <= 1.2 for ratio in ratios) / len(rows),
        sum(ratios) / len(rows),
    )
    with (out / "interior-summary.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(names)
        writer.writerow(figures)


if __name__ == "__main__":
    main()
