"""Teal as it comes and after training on a network's own traffic: the tables of docs/training.md.

    python benchmarks/training.py --data FOLDER --out runs/training [abilene geant germany50 uscarrier kdl asn]

FOLDER holds the files that data/README.md names.  For each network the model for any network is
measured as it comes, then after training on the first 70% of the matrices, on the last 20%.  Models
and results that are in OUT are not computed again, so that an interrupted run continues; delete OUT
to start over.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from public_data import published

from teal.cli import main as teal
from teal.evaluation.rows import Row
from teal.evaluation.table import Summary, summarise
from teal.formats.rows import read_csv

MODELS = ("teal", "teal:repair=none", "price-gnn", "pdhg:gap=0.01")
SMALL = (*MODELS, "teal:repair=pdhg", "lp-all")
LARGE = (*MODELS, "pdhg:gap=0.0002")  # in the place of LP-all, which takes minutes or hours


@dataclasses.dataclass(frozen=True)
class Case:
    """A network and what is measured on it.

    Attributes:
        topology: file in the folder of data.
        traffic: file there, or generated.
        options: of all commands.
        budget: time of training.
        schemes: that are measured.
        limit: test matrices.
        learners: to train with.
        objectives: to train for.
    """

    topology: str
    traffic: str
    options: tuple[str, ...] = ("--calibrate", "0.9")
    budget: str = "4m"
    schemes: tuple[str, ...] = SMALL
    limit: int = 100
    learners: tuple[str, ...] = ("direct",)
    objectives: tuple[str, ...] = ("total_flow", "max_link_utilisation")


CASES = {
    "abilene": Case(
        "sndlib/abilene.xml", "sndlib/directed-abilene-zhang-5min-over-6months-ALL.tgz"
    ),
    "geant": Case(
        "sndlib/geant.xml",
        "sndlib/directed-geant-uhlig-15min-over-4months-ALL.tgz",
        learners=("direct", "coma"),
    ),
    "germany50": Case(
        "sndlib/germany50.xml", "sndlib/directed-germany50-DFN-aggregated-1day-over-1month.tgz"
    ),
    "uscarrier": Case(
        "topologies/UsCarrier.json",
        "gravity:seed=0,count=60,load=6",
        (),
        "4m",
        (*LARGE, "lp-all"),
        5,
        objectives=("total_flow",),
    ),
    "kdl": Case(
        "topologies/Kdl.json",
        "gravity:seed=0,count=20,load=6",
        (),
        "6m",
        LARGE,
        3,
        objectives=("total_flow",),
    ),
    "asn": Case(
        "topologies/ASN2k.json",
        "gravity:seed=0,count=20,load=6",
        (),
        "8m",
        LARGE,
        1,
        objectives=("total_flow",),
    ),
}


def main() -> int:
    """Train and evaluate what is missing in the folder of results; print a markdown table per
    run.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=list(CASES), help=", ".join(CASES))
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of the files that data/README.md names"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/training"), help="folder of models and results"
    )
    options = parser.parse_args()
    for name in options.cases:
        case = CASES[name]
        traffic = (
            case.traffic if ":" in case.traffic else str(published(options.data, case.traffic))
        )
        for objective in case.objectives:
            instance = [
                "--topology",
                str(published(options.data, case.topology)),
                "--traffic",
                traffic,
                *case.options,
            ]
            instance += ["--num-paths", "4", "--objective", objective]
            schemes = [word for scheme in case.schemes for word in ("--scheme", scheme)]
            schemes += ["--limit", str(case.limit)]
            for learner in ("none", *case.learners):
                if learner != "none" and objective != "total_flow":
                    # as it comes, PDHG's iterations after the model leave nothing to gain there
                    continue
                results, chosen = options.out / f"{name}-{objective}-{learner}", []
                if learner != "none":
                    model = options.out / f"{name}-{objective}-{learner}-model"
                    train = ["train", *instance, "--learner", learner, "--time-budget", case.budget]
                    if not (model / "model.json").exists() and (
                        code := teal([*train, "--out", str(model)])
                    ):
                        return code
                    chosen = ["--model", str(model)]
                evaluate = ["evaluate", *instance, *chosen, *schemes, "--out", str(results)]
                if not (results / "results.csv").exists() and (code := teal(evaluate)):
                    return code
                title = "as it comes" if learner == "none" else f"after {case.budget} of {learner}"
                print(f"\n**{name}, {objective}, {title}**\n")
                print_markdown(summarise(read_csv(results / "results.csv", Row)))
    return 0


def print_markdown(summaries: list[Summary]) -> None:
    """Print the summaries of the schemes as a markdown table."""
    print(
        "| scheme | of LP-all, mean | worst | satisfied | certified gap | max violation | build | solve |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for summary in summaries:
        shares = " | ".join(
            f"{100 * share:.2f}%"
            for share in (
                summary.of_optimum,
                summary.worst,
                summary.satisfied_demand,
                abs(summary.gap),
            )
        )
        print(
            f"| `{summary.scheme}` | {shares} | {summary.max_violation:.0e} "
            f"| {1e3 * summary.build_s:.1f} ms | {1e3 * summary.solve_s:.1f} ms |"
        )


if __name__ == "__main__":
    sys.exit(main())
