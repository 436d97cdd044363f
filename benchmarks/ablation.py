"""Ablation of FlowGNN: the published form, + input scaling, + nonlinearity, + feedback, the
learners, and PDHG in place of ADMM; beside controls (untrained weights, no splits at all, shortest
paths) and models never trained on the network.

    python benchmarks/ablation.py --out runs/ablation [--data FOLDER] [--networks NAME ...] [--seeds 0 1 2]

Gravity traffic (``--load``), 100 matrices (Kdl: 12): 70% for training, 20% for measuring.  Every
variant makes ``--steps`` steps of the optimiser, so that a result does not depend on the machine's
load.  Values are shares of the optimum of PDHG, certified to 1e-4: of what the model alone carries
(``cut``: its splits are cut to fit, not refilled and not repaired; the gap is that by its own
prices), and with each repair.  An interrupted run continues where it stopped; ablation.csv has a
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
from teal.learning.settings import TrainConfig
from teal.learning.train import Trainer
from teal.network.traffic import spread
from teal.nn.checkpoint import load_flow_gnn
from teal.schemes.flow_gnn import FlowGnnScheme, FlowGnnSchemeConfig
from teal.solvers.projection import cut_only

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
REPAIRED = ("cut", "cut_gap", "refill", "admm", "pdhg")  # columns of the summary
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


def measured(scheme: Any, problems: list[Any], optima: list[float]) -> tuple[float, float, float]:
    """Mean and worst share of the optimum, and mean certified gap, of a scheme on some problems."""
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


def alone(scheme: Any, problems: list[Any], optima: list[float]) -> tuple[float, float, float]:
    """Mean and worst share of the optimum, and mean certified gap, of what a scheme's model carries
    without repair: its splits are cut to fit and not refilled; under total_flow.
    """
    parts = [cut_only(problem, *scheme.start(problem)) for problem in problems]
    shares = [
        float(part.satisfied_demand[0] * problem.demand.sum()) / optimum
        for part, problem, optimum in zip(parts, problems, optima, strict=True)
    ]
    return (
        statistics.mean(shares),
        min(shares),
        statistics.mean(float(part.gap[0]) for part in parts),
    )


def summarised(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """For each network and variant, % of the optimum: mean over the seeds, and the half width of
    its 95% interval.
    """
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for key in dict.fromkeys((row["network"], row["variant"], row["repair"]) for row in rows):
        group = [row for row in rows if (row["network"], row["variant"], row["repair"]) == key]
        shares = [100 * float(row["of_optimum"]) for row in group]
        count = len(group)
        line = lines.setdefault(key[:2], {"network": key[0], "variant": key[1]})
        half = (
            f" ± {stats.t.ppf(0.975, count - 1) * statistics.stdev(shares) / count**0.5:.1f}"
            if count > 1
            else ""
        )
        line[key[2]] = f"{statistics.mean(shares):.1f}{half}"
        if key[2] == "cut":
            line["cut_gap"] = (
                f"{100 * statistics.mean(float(row['certified_gap']) for row in group):.1f}%"
            )
    return list(lines.values())


class Results:
    """Rows of ablation.csv, with those of an interrupted run; each new row is stored at once.

    Args:
        file: ablation.csv.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.rows = list(csv.DictReader(file.open())) if file.exists() else []
        self._earlier = {(row["network"], row["variant"], row["seed"]) for row in self.rows}

    def has(self, network: str, variant: str, seed: int) -> bool:
        """Return whether the interrupted run has measured a variant."""
        return (network, variant, str(seed)) in self._earlier

    def record(self, *values: object) -> None:
        """Print and store one row of :data:`COLUMNS`."""
        self.rows.append(dict(zip(COLUMNS, map(str, values), strict=True)))
        print(*(f"{v:.4f}" if isinstance(v, float) else v for v in values), sep="  ", flush=True)
        with self._file.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, COLUMNS)
            writer.writeheader()
            writer.writerows(self.rows)


class Network:
    """A network with traffic, test problems, and the optimum of each.

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
        # Midpoint of value and certified bound.
        solutions = [
            teal.solve(problem, gap=1e-4, max_iterations=5000) for problem in self.problems
        ]
        self.optima = [float((solution.value + solution.bound)[0]) / 2 for solution in solutions]

    def measured(self, scheme: Any) -> tuple[float, float, float]:
        """Return the figures of a scheme (:func:`measured`)."""
        return measured(scheme, self.problems, self.optima)

    def cut_only(self, scheme: Any) -> tuple[float, float, float]:
        """Return the figures of a scheme's model without repair (:func:`alone`)."""
        return alone(scheme, self.problems, self.optima)


def measure_untrained(network: Network, results: Results) -> None:
    """Measure shipped models and controls, which are not trained on the network."""
    for variant, scheme_name in {**SHIPPED, **CONTROLS}.items():
        if results.has(network.name, variant, 0):
            continue
        scheme = teal.make_scheme(scheme_name)
        key = network.name, network.load, variant, 0, 0
        if variant in SHIPPED:
            results.record(*key, "cut", *network.cut_only(scheme))
        results.record(*key, "refill", *network.measured(scheme))


def train_and_measure(
    network: Network, variant: str, seed: int, num_steps: int, results: Results
) -> None:
    """Measure a variant of FlowGNN before and after its training, with each repair."""
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
        results.record(*untrained_key, "admm", *network.measured(untrained))
        trainer.model.train()
        trainer.train(Path(folder), progress=False)
        model, _ = load_flow_gnn(Path(folder))
    # After the training.
    key = network.name, network.load, variant, seed, trainer.state.step
    results.record(*key, "cut", *network.cut_only(FlowGnnScheme(model, FlowGnnSchemeConfig())))
    for repair, repair_config in REPAIRS.items():
        results.record(*key, repair, *network.measured(FlowGnnScheme(model, repair_config)))


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
        writer = csv.DictWriter(stream, ("network", "variant", *REPAIRED))
        writer.writeheader()
        writer.writerows(summarised(results.rows))
    print(file, summary_file)


if __name__ == "__main__":
    main()
