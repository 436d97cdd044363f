"""Train and evaluate on the measured traffic of Abilene and GEANT: the tables of docs/training.md.

    python benchmarks/real_traffic.py path/to/sndlib OUT [time budget, 4m]

The folder holds the topologies and archives that data/README.md names.  Models and results that are in OUT are not
computed again, so an interrupted run continues; delete OUT to start over.
"""

from __future__ import annotations

import sys
from pathlib import Path

from teal.cli import main as teal
from teal.evaluation import Row
from teal.formats.rows import read_csv
from teal.reports.table import Summary, summarise

NETWORKS = {
    "abilene": ("abilene.xml", "directed-abilene-zhang-5min-over-6months-ALL.tgz"),
    "geant": ("geant.xml", "directed-geant-uhlig-15min-over-4months-ALL.tgz"),
}
RUNS = {  # name: (objective, learner)
    "direct": ("total_flow", "direct"),
    "coma": ("total_flow", "coma"),
    "mlu": ("max_link_utilisation", "direct"),
}
SCHEMES = ("teal", "teal:repair=none", "teal:iterations=20", "teal:repair=pdhg", "pdhg:gap=0.01", "lp-all:solver=highs")


def main(data: Path, out: Path, budget: str = "4m") -> int:
    """Train and evaluate what is missing in ``out``; print a markdown table per run."""
    for network, (topology, traffic) in NETWORKS.items():
        for run, (objective, learner) in RUNS.items():
            name = f"{network}-{run}"
            model, results = out / "runs" / name, out / "results" / name
            instance = ["--topology", str(data / topology), "--traffic", str(data / traffic), "--calibrate", "0.9"]
            instance += ["--num-paths", "4", "--objective", objective]
            schemes = [word for scheme in SCHEMES for word in ("--scheme", scheme)]
            train = ["train", *instance, "--learner", learner, "--time-budget", budget, "--out", str(model)]
            evaluate = ["evaluate", *instance, "--model", str(model), *schemes, "--out", str(results)]
            code = 0
            if not (model / "model.json").exists():
                code = teal(train)
            if not code and not (results / "results.csv").exists():
                code = teal(evaluate)
            if code:
                return code
            print(f"\n**{network}, {objective}, {learner}**\n")
            print_markdown(summarise(read_csv(results / "results.csv", Row)))
    return 0


def print_markdown(summaries: list[Summary]) -> None:
    """Print the summaries of the schemes as a markdown table."""
    print("| scheme | of LP-all, mean | worst | satisfied | certified gap | max violation | build | solve |")
    print("|---|---|---|---|---|---|---|---|")
    for summary in summaries:
        shares = " | ".join(
            f"{100 * share:.2f}%"
            for share in (summary.of_optimum, summary.worst, summary.satisfied_demand, abs(summary.gap))
        )
        print(
            f"| `{summary.scheme}` | {shares} | {summary.max_violation:.0e} "
            f"| {1e3 * summary.build_s:.1f} ms | {1e3 * summary.solve_s:.1f} ms |"
        )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:4]))
