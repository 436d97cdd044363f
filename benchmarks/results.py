"""All schemes on seven networks: the tables of docs/results.md.

    python benchmarks/results.py --data FOLDER --out runs/results [b4-geant abilene germany50 uscarrier kdl asn]

FOLDER holds the topologies and archives that data/README.md names, in ``sndlib/`` and ``topologies/``.  Each study is
one ``teal evaluate``, whose command is printed; complete studies are not repeated, interrupted ones continue.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from teal.app.text import percent, time_text
from teal.cli import main as teal
from teal.evaluation.cases import Protocol
from teal.evaluation.rows import Row, by_level, by_network
from teal.evaluation.table import summarise
from teal.formats.rows import read_csv

MODELS = ("price-gnn", "price-gnn:rounds=4,bound_rounds=4", "price-gnn:repair=pdhg,gap=0.01")
ENGINE = ("pdhg:gap=0.01", "pdhg:gap=0.01,warm=true", "pdhg:gap=0.0002")
ROUTERS = ("cspf", "ecmp:over=candidates", "shortest-path")
SMALL = (
    *MODELS, *ENGINE, "lp-all", "lp-all:solver=gurobi", "pdlp:accuracy=0.001", "lp-top", "demand-pinning", "pop",
    "ncflow", "ncflow:method=spectral", "teavar", *ROUTERS,
)  # fmt: skip
MIDDLE = (
    *MODELS,
    *ENGINE,
    "lp-all",
    "pdlp:accuracy=0.001",
    "lp-top",
    "demand-pinning",
    "pop:replicas=16",
    "ncflow",
    *ROUTERS,
)
# Schemes that need a time limit on large networks.
LIMITED = ("pdlp:accuracy=0.001", "demand-pinning", "lp-top", "ncflow", "pop:replicas={}")
GEANT = "sndlib/geant.xml", "sndlib/directed-geant-uhlig-15min-over-4months-ALL.tgz"
GENERATED = "gravity:seed=0,count=100,load=4"
FEW_GENERATED = "gravity:seed=0,count=20,load=4"


def large(replicas: int) -> tuple[str, ...]:
    """Schemes for large networks; slow ones are limited to 10 minutes per matrix, POP uses ``replicas``."""
    slow = [scheme.format(replicas) for scheme in LIMITED]
    return (*MODELS, *ENGINE, *ROUTERS, *(f"{s}{',' if ':' in s else ':'}time_limit=600" for s in slow))


SHOCKS = [
    "--failures",
    "1,2,5%",
    "--noise",
    "2,10",
    "--spatial",
    "60,20%",
    "--scale",
    "2",
    "--online",
    "--interval",
    "5m",
]
STUDIES: dict[str, tuple[tuple[tuple[str, str], ...], tuple[str, ...], list[str]]] = {
    "b4-geant": (
        (("b4", GENERATED), GEANT),
        ("teal", *SMALL),
        ["--limit", "20", "--model", "b4", "--model", "none", *SHOCKS],
    ),
    "abilene": (
        (("sndlib/abilene.xml", "sndlib/directed-abilene-zhang-5min-over-6months-ALL.tgz"),),
        SMALL,
        ["--limit", "50"],
    ),
    "germany50": (
        (("sndlib/germany50.xml", "sndlib/directed-germany50-DFN-aggregated-1day-over-1month.tgz"),),
        SMALL,
        ["--failures", "1,2,5%"],
    ),
    "uscarrier": ((("topologies/UsCarrier.json", GENERATED),), MIDDLE, ["--limit", "5", "--failures", "2%"]),
    "kdl": ((("topologies/Kdl.json", FEW_GENERATED),), large(64), ["--limit", "3", "--online", "--interval", "5m"]),
    "asn": ((("topologies/ASN2k.json", FEW_GENERATED),), large(128), ["--limit", "1"]),
}
# Teal in two rows, as it comes and after training on the network (benchmarks/training.py), beside others.
TEAL = ("teal:model=flow", "teal", "price-gnn", "pdhg:gap=0.01")
OPTIMUM = dict.fromkeys(("kdl", "asn"), "pdhg:gap=0.0002")  # in the place of LP-all
STUDIES |= {
    f"teal-{name}": (
        (STUDIES["b4-geant"][0][name == "geant"],) if name in ("b4", "geant") else STUDIES[name][0],
        (*TEAL, OPTIMUM.get(name, "lp-all")),
        ["--limit", "1", "--failures", "2%"] if name in OPTIMUM else ["--limit", "10", *SHOCKS],
    )
    for name in ("b4", "abilene", "geant", "germany50", "uscarrier", "kdl", "asn")
}


def command(study: str, data: Path, out: Path, models: Path | None = None) -> list[str]:
    """The arguments of the ``teal`` command of a study; ``models`` is the folder of benchmarks/training.py."""
    instances, schemes, options = STUDIES[study]
    if study.startswith("teal-"):
        folder = models / f"{study.removeprefix('teal-')}-total_flow-direct-model" if models else None
        is_trained = folder is not None and (folder / "model.json").exists()
        options = [*options, "--model", str(folder)] if is_trained else options
        schemes = schemes if is_trained else tuple(scheme for scheme in schemes if scheme != "teal")
    arguments = ["evaluate"]
    for topology, traffic in instances:
        arguments += ["--topology", str(data / topology) if "/" in topology else topology]
        arguments += ["--traffic", str(data / traffic) if "/" in traffic else traffic]
    arguments += ["--num-paths", "4", "--calibrate", "0.9", *options]
    return [*arguments, *(word for scheme in schemes for word in ("--scheme", scheme)), "--out", str(out / study)]


def print_tables(rows: list[Row]) -> None:
    """Print, per network, a table of the unchanged matrices and a table of the disturbed ones."""
    for (topology, traffic), network_rows in by_network(rows).items():
        levels = by_level(network_rows)
        offline = levels.pop((Protocol.OFFLINE.value, ""))
        print(f"\n**{topology}**, `{Path(traffic).name}`, {len({row.index for row in offline})} matrices\n")
        print("| scheme | satisfied | of LP-all | worst | own gap | by the best bound | time | if parallel | |")
        print("|---|---|---|---|---|---|---|---|---|")
        for s in summarise(offline):
            shares = " | ".join(map(percent, (s.satisfied_demand, s.of_optimum, s.worst, s.gap, s.gap_known)))
            unusual = "" if s.status.split(" ", 1)[1] in ("feasible", "optimal") else s.status
            print(f"| `{s.scheme}` | {shares} | {time_text(s.total_s)} | {time_text(s.parallel_s)} | {unusual} |")
        if levels:
            print("\n| satisfied | " + " | ".join(f"{kind} {level}" for kind, level in levels) + " |")
            print("|---|" + "---|" * len(levels))
            satisfied = [{s.scheme: s.satisfied_demand for s in summarise(rows)} for rows in levels.values()]
            for scheme in satisfied[0]:
                print(f"| `{scheme}` | " + " | ".join(percent(level[scheme]) for level in satisfied) + " |")


def main() -> int:
    """Run the given studies, unless they are complete, and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of topologies and traffic")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--models", type=Path, help="folder of benchmarks/training.py, for the studies teal-...")
    parser.add_argument("studies", nargs="*", default=list(STUDIES), metavar="STUDY", help=" ".join(STUDIES))
    options = parser.parse_args()
    for study in options.studies:
        folder, arguments = options.out / study, command(study, options.data, options.out, options.models)
        print("\nteal", shlex.join(arguments), flush=True)
        if not (folder / "report.html").exists():
            code = teal([*arguments, "--resume"] if (folder / "journal.jsonl").exists() else arguments)
            if code:
                return code
        print_tables(read_csv(folder / "results.csv", Row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
