"""Ablation of FlowGNN: the published form, with input scaling, nonlinearity and feedback added one
by one, the learners, and PDHG in place of ADMM; compared with controls (untrained weights, no
splits at all, shortest paths) and models never trained on the network.

    python benchmarks/ablation.py --out runs/ablation [--data FOLDER] [--networks NAME ...] [--seeds 0 1 2]

Gravity traffic (``--load``), 100 matrices (Kdl: 12): 70% for training, 20% for measuring.  Every
variant makes ``--steps`` steps of the optimiser, so that a result does not depend on the machine's
load.  Values are shares of the optimum, which PDHG certifies to 1e-4: of the model alone (``cut``:
its splits are reduced to the capacities and neither refilled nor repaired; the gap is certified by
the model's prices), and after each repair.  "Refilled" means that free capacity is filled with
unserved demand.  An interrupted run continues where it stopped; ablation.csv has a
row per network, variant, seed and repair, ablation-summary.csv means over the seeds.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
from pathlib import Path
from typing import Any

from public_data import published
from scipy import stats

import teal
from teal.network.traffic import spread
from teal.nn.checkpoint import load_flow_gnn
from teal.schemes.flow_gnn import FlowGnnScheme, FlowGnnSchemeConfig
from teal.solvers.projection import cut_only
from teal_study.learning.settings import TrainConfig
from teal_study.learning.train import Trainer

FILES = {"UsCarrier": "UsCarrier.json", "Kdl": "Kdl.json"}
NETWORKS = ("topohub:sndlib/geant", "topohub:sndlib/germany50")
BATCH = {"UsCarrier": 4, "Kdl": 1}  # matrices per training step; 20 on other networks
PAPER = {"learner": "coma:std=1,episodes=1"}
MODELS: dict[str, dict[str, Any]] = {
    "published form, coma as published": {"from_": "none:form=published", **PAPER},
    "+ scaling": {"from_": "none:form=scaled", **PAPER},
    "+ nonlinearity": {"from_": "none:form=nonlinear", **PAPER},
    "+ feedback": {"from_": "none:form=feedback", **PAPER},
    "+ coma with std 0.2, 4 episodes": {"from_": "none:form=feedback", "learner": "coma"},
    "direct in place of coma": {"from_": "none:form=feedback", "learner": "direct"},
}
SHIPPED = {
    "PriceGNN, never trained here": "price-gnn",
    "universal FlowGNN, never trained here": "teal",
}
CONTROLS = {"no splits, refilled": "null", "shortest paths, refilled": "shortest-path:refill=4"}
REPAIRS = {
    "refill": FlowGnnSchemeConfig(repair="none"),
    "admm": FlowGnnSchemeConfig(),
    "pdhg": FlowGnnSchemeConfig(repair="pdhg", gap=0.0, iterations=5),
}
SUMMARY_REPAIRS = ("cut", "cut_gap", "refill", "admm", "pdhg")  # columns of the summary
COLUMNS = (
    "network",
    "load",
    "variant",
    "seed",
    "steps",
    "repair",
    "of_optimum",
    "worst",
    "certified_gap",
)


def scores_with_repair(
    scheme: Any, problems: list[Any], optima: list[float]
) -> tuple[float, float, float]:
    """Return mean and worst share of the optimum, and the mean certified gap, of a scheme.

    Args:
        scheme: allocator with a method ``solve``.
        problems: problems of one matrix each.
        optima: optimum of each problem.
    """
    assessments = [teal.assess(problem, scheme.solve(problem)) for problem in problems]
    shares = [
        float(assessment.value[0]) / optimum
        for assessment, optimum in zip(assessments, optima, strict=True)
    ]
    return (
        statistics.mean(shares),
        min(shares),
        statistics.mean(float(assessment.gap[0]) for assessment in assessments),
    )


def scores_without_repair(
    scheme: Any, problems: list[Any], optima: list[float]
) -> tuple[float, float, float]:
    """Return mean and worst share of the optimum, and the mean certified gap, of a scheme's model
    without repair: its splits are reduced to the capacities and not refilled.

    Args:
        scheme: scheme with a model, whose ``start`` gives splits and prices.
        problems: problems of one matrix each, under total_flow.
        optima: optimum of each problem, Gbit/s.
    """
    assessments = [cut_only(problem, *scheme.start(problem)) for problem in problems]
    shares = [
        float(assessment.satisfied_demand[0] * problem.demand.sum()) / optimum
        for assessment, problem, optimum in zip(assessments, problems, optima, strict=True)
    ]
    return (
        statistics.mean(shares),
        min(shares),
        statistics.mean(float(assessment.gap[0]) for assessment in assessments),
    )


def summarise(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return a row for each network and variant: % of the optimum after each repair, the mean over
    the seeds with the half width of its 95% confidence interval.

    Args:
        rows: rows of ablation.csv.
    """
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for case_key in dict.fromkeys((row["network"], row["variant"], row["repair"]) for row in rows):
        group = [row for row in rows if (row["network"], row["variant"], row["repair"]) == case_key]
        shares = [100 * float(row["of_optimum"]) for row in group]
        count = len(group)
        line = lines.setdefault(case_key[:2], {"network": case_key[0], "variant": case_key[1]})
        # Student's t interval of the mean.
        half_width = (
            f" ± {stats.t.ppf(0.975, count - 1) * statistics.stdev(shares) / count**0.5:.1f}"
            if count > 1
            else ""
        )
        line[case_key[2]] = f"{statistics.mean(shares):.1f}{half_width}"
        if case_key[2] == "cut":
            line["cut_gap"] = (
                f"{100 * statistics.mean(float(row['certified_gap']) for row in group):.1f}%"
            )
    return list(lines.values())


class Results:
    """The rows of ablation.csv, including those of an interrupted run; each new row is stored at
    once.

    Args:
        file: path of ablation.csv, which need not exist.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.rows = list(csv.DictReader(file.open())) if file.exists() else []
        self._earlier = {(row["network"], row["variant"], row["seed"]) for row in self.rows}

    def has(self, network: str, variant: str, seed: int) -> bool:
        """Return whether the interrupted run has measured a variant with a seed."""
        return (network, variant, str(seed)) in self._earlier

    def record(self, *values: object) -> None:
        """Print one row, the values of :data:`COLUMNS` in order, and write ablation.csv again."""
        self.rows.append(dict(zip(COLUMNS, map(str, values), strict=True)))
        print(*(f"{v:.4f}" if isinstance(v, float) else v for v in values), sep="  ", flush=True)
        with self._file.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, COLUMNS)
            writer.writeheader()
            writer.writerows(self.rows)


class Network:
    """A network with generated traffic, its split into training and test matrices, up to 8 problems
    of test matrices, and the optimum of each (Gbit/s).

    Args:
        name: name in the table.
        source: name or file of the topology.
        load: largest utilisation if all demand takes shortest paths.
    """

    def __init__(self, name: str, source: str, load: float) -> None:
        self.name = name
        self.load = load
        topology = teal.load_topology(source)
        self.is_large = topology.num_nodes > 500
        count = 12 if self.is_large else 100
        self.traffic = teal.load_traffic(f"gravity:seed=0,count={count},load={load:g}", topology)
        self.split = self.traffic.split()
        paths = teal.compute_paths(topology, self.traffic.pairs)
        self.problems = [
            teal.Problem.create(topology, paths, teal.Objective(), self.traffic.read([row]))
            for row in spread(self.split.test, 8)
        ]
        # The optimum is estimated by the midpoint of value and certified bound.
        solutions = [
            teal.solve(problem, gap=1e-4, max_iterations=5000) for problem in self.problems
        ]
        self.optima = [float((solution.value + solution.bound)[0]) / 2 for solution in solutions]

    def scores_with_repair(self, scheme: Any) -> tuple[float, float, float]:
        """Return a scheme's mean and worst share of the optimum, and its mean certified gap."""
        return scores_with_repair(scheme, self.problems, self.optima)

    def cut_only(self, scheme: Any) -> tuple[float, float, float]:
        """Return mean and worst share of the optimum, and mean certified gap, of a scheme's model
        without repair.
        """
        return scores_without_repair(scheme, self.problems, self.optima)


def measure_untrained(network: Network, results: Results) -> None:
    """Measure the shipped models and the controls on a network, and record their rows.

    Args:
        network: network on which none of them was trained.
        results: receives the rows.
    """
    for variant, scheme_name in {**SHIPPED, **CONTROLS}.items():
        if results.has(network.name, variant, 0):
            continue
        scheme = teal.make_scheme(scheme_name)
        key = network.name, network.load, variant, 0, 0
        if variant in SHIPPED:
            results.record(*key, "cut", *network.cut_only(scheme))
        results.record(*key, "refill", *network.scores_with_repair(scheme))


def train_and_measure(
    network: Network, variant: str, seed: int, num_steps: int, results: Results
) -> None:
    """Measure a variant of FlowGNN before and after its training, with each repair.

    Args:
        network: network and traffic of the training.
        variant: key of :data:`MODELS`.
        seed: seed of the training.
        num_steps: number of optimiser steps.
        results: receives the rows.
    """
    print(f"{network.name}, {variant}, seed {seed}: training", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            topology=network.name,
            traffic="",
            out=Path(folder),
            seed=seed,
            max_steps=num_steps,
            batch_size=BATCH.get(network.name, 20),
            validation_matrices=1 if network.is_large else 8,
            validate_every=10 if network.is_large else 50,
            **MODELS[variant],
        )
        trainer = Trainer(network.problems[0], network.traffic, network.split, config)
        # Before the training.
        untrained = FlowGnnScheme(trainer.model.eval(), FlowGnnSchemeConfig())  # type: ignore[arg-type]
        untrained_key = network.name, network.load, f"untrained: {variant}", seed, 0
        results.record(*untrained_key, "cut", *network.cut_only(untrained))
        results.record(*untrained_key, "admm", *network.scores_with_repair(untrained))
        trainer.model.train()
        trainer.train(Path(folder), progress=False)
        model, _ = load_flow_gnn(Path(folder))
    # After the training.
    key = network.name, network.load, variant, seed, trainer.state.step
    results.record(*key, "cut", *network.cut_only(FlowGnnScheme(model, FlowGnnSchemeConfig())))
    for repair, repair_config in REPAIRS.items():
        results.record(
            *key, repair, *network.scores_with_repair(FlowGnnScheme(model, repair_config))
        )


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of the files that data/README.md names")
    parser.add_argument(
        "--networks", nargs="*", default=list(NETWORKS), help="networks to train on"
    )
    parser.add_argument("--seeds", nargs="*", type=int, default=(0, 1, 2), help="seeds of training")
    parser.add_argument("--steps", type=int, default=300, help="steps of training of each variant")
    parser.add_argument(
        "--load",
        type=float,
        default=6,
        help="largest utilisation if all demand takes shortest paths",
    )
    parser.add_argument(
        "--variants", nargs="*", default=list(MODELS), help="first words of the variants to train"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/ablation"), help="folder of ablation.csv"
    )
    return parser.parse_args()


def main() -> None:
    """Train and measure every variant; print the results and write them to ablation.csv."""
    options = parse_options()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "ablation.csv"
    results = Results(file)
    # Each network: models and controls without training, then each variant with each seed.
    for name in options.networks:
        if name in FILES and options.data is None:
            print(f"{name}: skipped, it needs --data")
            continue
        source = str(published(options.data, FILES[name])) if name in FILES else name
        network = Network(name, source, options.load)
        measure_untrained(network, results)
        for variant in MODELS:
            if not any(variant.startswith(prefix) for prefix in options.variants):
                continue
            for seed in options.seeds:
                if not results.has(name, variant, seed):
                    train_and_measure(network, variant, seed, options.steps, results)
    summary_file = options.out / "ablation-summary.csv"
    with summary_file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, ("network", "variant", *SUMMARY_REPAIRS))
        writer.writeheader()
        writer.writerows(summarise(results.rows))
    print(file, summary_file)


if __name__ == "__main__":
    main()
