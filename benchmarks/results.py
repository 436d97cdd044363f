"""Evaluate all schemes on seven networks, for the figures of docs/results.md.

    python benchmarks/results.py --data FOLDER --out runs/results [b4 geant abilene germany50 uscarrier kdl asn]

FOLDER holds the files that data/README.md names.  Each study is one ``teal evaluate``, whose
command is printed; complete studies are not repeated, interrupted ones continue.  OUT/results.csv
has a row for each network and scheme, OUT/results-changed.csv the satisfied demand of changed
matrices and networks.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import sys
from pathlib import Path

from public_data import published

from teal.cli import main as teal
from teal.formats.rows import read_csv
from teal_study.evaluation.cases import Protocol
from teal_study.evaluation.rows import Row, by_network
from teal_study.evaluation.table import summaries_of

LEARNED = ("teal", "price-gnn")
ENGINE = ("pdhg:gap=0.01", "pdhg:gap=0.01,warm=true", "pdhg:gap=0.0002")
ROUTERS = ("cspf", "ecmp:over=candidates", "shortest-path")
# Linear programs of a part of the demands or of the network.
REDUCED_SCHEMES = (
    "lp-top",
    "demand-pinning",
    "ncflow",
)
SMALL_NETWORK_SCHEMES = (
    *LEARNED,
    *ENGINE,
    "lp-all",
    "lp-all:warm=true",
    "lp-all:solver=gurobi",
    "pdlp:accuracy=0.001",
    *REDUCED_SCHEMES,
    "pop",
    "teavar",
    *ROUTERS,
)
MEDIUM_NETWORK_SCHEMES = (
    *LEARNED,
    *ENGINE,
    "lp-all",
    "lp-all:warm=true",
    "pdlp:accuracy=0.001",
    *REDUCED_SCHEMES,
    "pop:replicas=16",
    *ROUTERS,
)
GENERATED = "gravity:seed=0,count=100,load=4"
FEW_GENERATED = "gravity:seed=0,count=20,load=4"
ABILENE = "directed-abilene-zhang-5min-over-6months-ALL.tgz"
GEANT = "directed-geant-uhlig-15min-over-4months-ALL.tgz"
GERMANY50 = "directed-germany50-DFN-aggregated-1day-over-1month.tgz"
SHOCKS = shlex.split(
    "--failures 1,2,5% --noise 2,10 --spatial 60,20% --scale 2 --online --interval 5m"
)


def large(replicas: int, *other_schemes: str) -> tuple[str, ...]:
    """Return the schemes for large networks, whose linear programs may take 120 s for a matrix.

    Args:
        replicas: number of POP's subproblems.
        other_schemes: further schemes.
    """
    return (
        *LEARNED,
        *ENGINE,
        *ROUTERS,
        *(f"{s}:time_limit=120" for s in REDUCED_SCHEMES),
        f"pop:replicas={replicas},time_limit=120",
        *other_schemes,
    )


# Study: topology, traffic, schemes, options of `teal evaluate`.
STUDIES: dict[str, tuple[str, str, tuple[str, ...], list[str]]] = {
    "b4": ("b4", GENERATED, SMALL_NETWORK_SCHEMES, ["--limit", "20", *SHOCKS]),
    "abilene": (
        "sndlib/abilene.xml",
        f"sndlib/{ABILENE}",
        SMALL_NETWORK_SCHEMES,
        ["--limit", "50"],
    ),
    "geant": (
        "sndlib/geant.xml",
        f"sndlib/{GEANT}",
        SMALL_NETWORK_SCHEMES,
        ["--limit", "20", *SHOCKS],
    ),
    "germany50": (
        "sndlib/germany50.xml",
        f"sndlib/{GERMANY50}",
        SMALL_NETWORK_SCHEMES,
        ["--failures", "1,2,5%"],
    ),
    "uscarrier": (
        "topologies/UsCarrier.json",
        GENERATED,
        MEDIUM_NETWORK_SCHEMES,
        ["--limit", "5", "--failures", "2%"],
    ),
    "kdl": (
        "topologies/Kdl.json",
        FEW_GENERATED,
        large(64, "lp-all:time_limit=120", "pdlp:accuracy=0.001,time_limit=120"),
        ["--limit", "1"],
    ),
    "asn": ("topologies/ASN2k.json", FEW_GENERATED, large(128), ["--limit", "1"]),
}
COLUMNS = (
    "scheme",
    "satisfied_demand",
    "of_optimum",
    "worst",
    "gap",
    "gap_known",
    "cut_demand",
    "build_s",
    "total_s",
    "parallel_s",
    "status",
)


def command(study: str, data: Path, out: Path) -> list[str]:
    """Return the arguments of the ``teal`` command of a study.

    Args:
        study: key of :data:`STUDIES`.
        data: folder of the published files.
        out: folder of the results.
    """
    topology, traffic, schemes, options = STUDIES[study]
    arguments = [
        "evaluate",
        "--topology",
        str(published(data, topology)) if "/" in topology else topology,
    ]
    arguments += ["--traffic", str(published(data, traffic)) if "/" in traffic else traffic]
    arguments += ["--num-paths", "4", "--calibrate", "0.9", *options]
    return [
        *arguments,
        *(word for scheme in schemes for word in ("--scheme", scheme)),
        "--out",
        str(out / study),
    ]


def main() -> int:
    """Run the given studies unless they are complete, and write both tables of all complete
    studies.

    Returns:
        exit code of the first study that fails; 0 if none does.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of the files that data/README.md names"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument(
        "studies", nargs="*", default=list(STUDIES), metavar="STUDY", help=" ".join(STUDIES)
    )
    options = parser.parse_args()
    for study in options.studies:
        folder = options.out / study
        arguments = command(study, options.data, options.out)
        print("\nteal", shlex.join(arguments), flush=True)
        if not (folder / "report.html").exists():
            code = teal(
                [*arguments, "--resume"] if (folder / "journal.jsonl").exists() else arguments
            )
            if code:
                return code
    write_tables(options.out)
    return 0


def write_tables(out: Path) -> None:
    """Write results.csv, of unchanged matrices and networks, and results-changed.csv, of changed
    ones, from all complete studies in a folder.
    """
    nominal_rows: list[tuple[object, ...]] = [("network", "matrices", *COLUMNS)]
    changed_rows: list[tuple[object, ...]] = [("network", "scheme", "measure", "value")]
    for study in STUDIES:
        if not (out / study / "report.html").exists():
            continue
        for rows in by_network(read_csv(out / study / "results.csv", Row)).values():
            matrices = len({row.index for row in rows})
            for summary in summaries_of(rows):
                if summary["protocol"] == Protocol.OFFLINE.value:
                    nominal_rows.append((study, matrices, *(summary[column] for column in COLUMNS)))
                else:
                    level = f"{summary['protocol']} {summary['level']}"
                    changed_rows.append(
                        (study, summary["scheme"], level, summary["satisfied_demand"])
                    )
    for name, table in (("results.csv", nominal_rows), ("results-changed.csv", changed_rows)):
        with (out / name).open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows(table)
        print(out / name)


if __name__ == "__main__":
    sys.exit(main())
