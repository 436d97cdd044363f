"""Train and evaluate on Abilene and GEANT as measured; the tables of docs/training.md.

    python benchmarks/real_traffic.py path/to/sndlib OUT [time budget, 4m]

The folder holds the topologies and archives that data/README.md names.  What OUT already has is not
done again, so a broken-off run continues; delete OUT to start over.
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
RUNS = {
    "direct": ("total_flow", "direct"),
    "coma": ("total_flow", "coma"),
    "mlu": ("max_link_utilisation", "direct"),
}
SCHEMES = ("teal", "teal:repair=none", "teal:iterations=20", "teal:repair=pdhg", "pdhg:gap=0.01", "lp-all:solver=highs")


def main(data: Path, out: Path, budget: str = "4m") -> int:
    """Run what is missing, then print one markdown table a run."""
    for network, (topology, traffic) in NETWORKS.items():
        for run, (objective, learner) in RUNS.items():
            name = f"{network}-{run}"
            model, results = out / "runs" / name, out / "results" / name
            instance = ["--topology", str(data / topology), "--traffic", str(data / traffic), "--calibrate", "0.9"]
            instance += ["--objective", objective]
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
    """A table for the documentation."""
    print("| scheme | of LP-all, mean | worst | satisfied | certified gap | max violation | build | solve |")
    print("|---|---|---|---|---|---|---|---|")
    for s in summaries:
        shares = " | ".join(f"{100 * x:.2f}%" for x in (s.of_optimum, s.worst, s.satisfied_demand, abs(s.gap)))
        print(
            f"| `{s.scheme}` | {shares} | {s.max_violation:.0e} | {1e3 * s.build_s:.1f} ms | {1e3 * s.solve_s:.1f} ms |"
        )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:4]))
