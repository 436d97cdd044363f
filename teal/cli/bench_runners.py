"""What `teal bench` prints."""

from __future__ import annotations

import math

from teal.cli.runners import EXIT_OK, Notify, print_json, print_tables
from teal.config.bench import BenchMakeConfig, BenchRankConfig, BenchRunConfig


def make(config: BenchMakeConfig, notify: Notify) -> int:
    """Write the set."""
    from teal.studies.bench import run_make

    bench = run_make(config, notify)
    print(f"{config.out}: {len(bench.cases)} cases on {', '.join(bench.networks)}")
    return EXIT_OK


def run(config: BenchRunConfig, notify: Notify) -> int:
    """Write a scheme's results."""
    from teal.studies.bench import run_bench

    print(f"{config.out}: results of {run_bench(config, notify)} cases")
    return EXIT_OK


def rank(config: BenchRankConfig, _: Notify) -> int:
    """Print the ranking."""
    from teal.evaluation.bench.ranking import means
    from teal.reports.bench import render_ranking
    from teal.studies.bench import PAGE, PROOFS, run_rank

    scores = run_rank(config)
    if config.json:
        faults = {f"{score.program}, {score.case}": score.fault for score in scores if score.fault}
        print_json({"means": means(scores), "not_valid": faults})
        return EXIT_OK
    print_tables([render_ranking(scores)])
    for score in [one for one in scores if one.fault][:5]:
        print(f"{score.program}, {score.case}: {score.fault}")
    if config.prove and config.out is not None:
        valid = [one for one in scores if not one.fault]
        unproved = [one for one in valid if math.isnan(one.proved_gap)]
        print(f"{config.out / PROOFS}: {len(valid) - len(unproved)} of {len(valid)} valid results have a proof")
        for score in unproved[:5]:
            print(f"{score.program}, {score.case}: {score.proof}")
    if config.out is not None:
        print(f"{config.out / PAGE}: open it in a browser")
    return EXIT_OK
