"""The evaluation of the paper (Xu et al., "Teal", SIGCOMM 2023), experiment by experiment: the
tables of docs/paper.md.

    python benchmarks/paper.py EXPERIMENT [...] --data FOLDER --out runs/paper [--networks b4 UsCarrier Kdl ASN2k]

FOLDER holds the topologies that data/README.md names.  Experiments: %(names)s.  What is complete in
OUT is not computed again; an interrupted experiment continues.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from paper_models import ABLATIONS, SENSITIVITIES, trained
from public_data import published

import teal
from teal.cli import main as run_teal
from teal.network.traffic import spread
from teal.schemes.flow_gnn import FlowGnnScheme, FlowGnnSchemeConfig

B4 = ("b4", "gravity:seed=0,count=100,load=4")
US = ("topologies/UsCarrier.json", "gravity:seed=0,count=20,load=4")
KDL, ASN = (
    (f"topologies/{name}.json", "gravity:seed=0,count=20,load=4") for name in ("Kdl", "ASN2k")
)
FAST_SCHEMES = ("teal", "price-gnn", "pdhg:gap=0.01")
PEER_SCHEMES = ("lp-all", "lp-top", "ncflow")
# Experiment: (networks, schemes, options of `teal evaluate`), for each run.
RUNS: dict[str, list[tuple[list[tuple[str, str]], tuple[str, ...], str]]] = {
    "schemes": [
        ([B4], (*FAST_SCHEMES, *PEER_SCHEMES, "pop", "teavar"), "--limit 20 --calibrate 0.9"),
        ([US], (*FAST_SCHEMES, *PEER_SCHEMES, "pop:replicas=16"), "--limit 4 --calibrate 0.9"),
        ([KDL], (*FAST_SCHEMES, "pdhg:gap=0.0002"), "--limit 2 --calibrate 0.9"),
        ([ASN], (*FAST_SCHEMES, "pdhg:gap=0.0002"), "--limit 1 --calibrate 0.9"),
    ],
    "online": [
        (
            [B4, US],
            (*FAST_SCHEMES, *PEER_SCHEMES, "pop"),
            "--limit 4 --calibrate 0.9 --online --interval 5m",
        )
    ],
    "failures": [
        (
            [B4],
            (*FAST_SCHEMES, *PEER_SCHEMES, "pop", "teavar"),
            "--limit 20 --calibrate 0.9 --failures 1,2",
        ),
        (
            [ASN],
            (*FAST_SCHEMES, "pdhg:gap=0.0002"),
            "--limit 1 --calibrate 0.9 --failures 50,100,200",
        ),
    ],
    "temporal": [
        (
            [B4, US],
            (*FAST_SCHEMES, "lp-all", "lp-top"),
            "--limit 4 --calibrate 0.9 --noise 2,5,10,20",
        )
    ],
    "spatial": [
        (
            [B4, US],
            (*FAST_SCHEMES, "lp-all", "lp-top"),
            "--limit 4 --calibrate 0.9 --spatial 80,60,40,20%",
        )
    ],
    "objectives": [
        (
            [B4, US],
            (*FAST_SCHEMES, "lp-all", "lp-top", "pop"),
            "--limit 4 --calibrate 0.9 --objective max_link_utilisation",
        ),
        (
            [B4, US],
            (*FAST_SCHEMES, "lp-all", "lp-top", "pop"),
            "--limit 4 --calibrate 0.9 --objective latency_penalised_flow",
        ),
    ],
    "time": [([B4, US], ("teal", "price-gnn", "pdhg"), "--limit 4 --calibrate 0.9 --race")],
}
TRAINED = {"ablation": ABLATIONS, "sensitivity": SENSITIVITIES}
EMBEDDING = "embedding"
NETWORKS = [Path(topology).stem for topology, _ in (B4, US, KDL, ASN)]
NAMES = (*RUNS, *TRAINED, EMBEDDING)
_TRAIN_S = 20.0  # seconds of training of every variant
_TEST_MATRICES = 8
_SEED = 0


def evaluate(name: str, data: Path, out: Path, selected: Sequence[str]) -> int:
    """Run ``teal evaluate`` for each part of an experiment, unless it is complete; print its
    command.

    Args:
        name: name of the experiment.
        data: folder of the published files.
        out: folder of the results.
        selected: names of networks; the experiment's other networks are skipped.

    Returns:
        exit code of the first command that fails; 0 if none does.
    """
    for number, (all_networks, schemes, options) in enumerate(RUNS[name]):
        networks = [
            (topology, traffic)
            for topology, traffic in all_networks
            if Path(topology).stem in selected
        ]
        if not networks:
            continue
        # The folder names the networks if they are not all those of the experiment.
        suffix = (
            ""
            if networks == all_networks
            else "-" + "-".join(Path(topology).stem for topology, _ in networks)
        )
        # Arguments of `teal evaluate`.
        folder = out / f"{name}-{number}{suffix}"
        arguments = ["evaluate", "--num-paths", "4"]
        for topology, traffic in networks:
            source = str(published(data, topology)) if "/" in topology else topology
            arguments += ["--topology", source, "--traffic", traffic]
        arguments += [word for scheme in schemes for word in ("--scheme", scheme)]
        arguments += [*shlex.split(options), "--out", str(folder)]
        print("\nteal", shlex.join(arguments), flush=True)
        # Run it unless its last file exists; continue an interrupted run.
        if not (folder / "report.html").exists() and not (folder / "race.csv").exists():
            code = run_teal(
                [*arguments, "--resume"] if (folder / "journal.jsonl").exists() else arguments
            )
            if code:
                return code
    return 0


def compare_variants(name: str, out: Path) -> int:
    """Train every variant of an experiment for 20 s on B4, and print a table of its share of the
    optimum without and with the repair, and its time.

    Args:
        name: key of :data:`TRAINED`.
        out: folder of NAME.json, which stores the figures of each variant once it is measured.

    Returns:
        exit code, 0.
    """
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{name}.json"
    stored: dict[str, list[float]] = json.loads(file.read_text()) if file.exists() else {}
    topology = teal.load_topology(B4[0])
    traffic = teal.load_traffic(B4[1], topology)
    paths = teal.compute_paths(topology, traffic.pairs)
    split = traffic.split()
    # Problems of eight test matrices.
    problems = [
        teal.Problem.create(topology, paths, teal.Objective(), traffic.read([row]))
        for row in spread(split.test, _TEST_MATRICES)
    ]
    # Variants that differ in the repair alone share a trained model.
    models: dict[Any, Any] = {}
    optima = [float(teal.solve(problem, gap=1e-4).bound[0]) for problem in problems]
    print(f"\n**{name}**, B4, {_TRAIN_S:g} s of training each\n")
    print(
        "| variant | steps | splits of the model alone | with the repair | time |\n|---|---|---|---|---|"
    )
    for variant in TRAINED[name]:
        if variant.name not in stored:
            training_settings = dataclasses.replace(variant, name="", admm_iterations=-1)
            if training_settings not in models:
                models[training_settings] = trained(
                    variant, problems[0], traffic, split, _TRAIN_S, _SEED
                )
            model, steps = models[training_settings]
            # Share of the optimum without repair; then share and time with it.
            scheme = FlowGnnScheme(model, FlowGnnSchemeConfig(iterations=variant.admm_iterations))
            raw_share = [
                measure_scheme(
                    FlowGnnScheme(model, FlowGnnSchemeConfig(repair="none")), problems, optima
                )[0]
            ]
            stored[variant.name] = [steps, *raw_share, *measure_scheme(scheme, problems, optima)]
            file.write_text(json.dumps(stored))
        num_steps, raw, repaired, seconds = stored[variant.name]
        print(
            f"| {variant.name} | {num_steps:.0f} | {raw:.2%} | {repaired:.2%} | {1e3 * seconds:.1f} ms |",
            flush=True,
        )
    return 0


def measure_scheme(scheme: Any, problems: list[Any], optima: list[float]) -> tuple[float, float]:
    """Return a scheme's mean share of the optimum, and its median time for a matrix, s.

    Args:
        scheme: allocator with a method ``solve``.
        problems: problems of one matrix each.
        optima: bound on the value of each problem.
    """
    shares = []
    times = []
    # The first call may compile.
    scheme.solve(problems[0])
    for problem, optimum in zip(problems, optima, strict=True):
        begin = time.perf_counter()
        allocation = scheme.solve(problem)
        times.append(time.perf_counter() - begin)
        shares.append(float(teal.assess(problem, allocation).value[0]) / optimum)
    return statistics.mean(shares), statistics.median(times)


def draw_embedding(_: str, out: Path) -> int:
    """Draw the final path states of the packaged FlowGNN on B4, projected onto their first two
    principal components and coloured by the splits of LP-all.

    Args:
        _: name of the experiment, which is not used.
        out: folder of embedding.png.

    Returns:
        exit code, 0.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    from teal.nn.checkpoint import load_flow_gnn
    from teal.nn.flow_passes import TorchPasses
    from teal.nn.universal_flow_gnn import UniversalFlowGnn
    from teal.runtime.storage import model_folder

    out.mkdir(parents=True, exist_ok=True)
    topology = teal.load_topology(B4[0])
    traffic = teal.load_traffic("gravity:seed=0,count=10,load=8", topology)
    problem = teal.Problem.create(
        topology, teal.compute_paths(topology, traffic.pairs), teal.Objective(), traffic.read([9])
    )
    splits = teal.make_scheme("lp-all").solve(problem).splits[problem.path_mask]
    # Run the model, and take the states of the existing paths.
    model, _card = load_flow_gnn(model_folder(Path("flow")))
    assert isinstance(model, UniversalFlowGnn)
    passes = TorchPasses(problem.to(torch.float32), model.clamp)
    with torch.no_grad():
        model.run(problem.to(torch.float32), passes)
    states = passes.state[problem.path_mask]
    # Principal components of the standardised states.
    centred = (states - states.mean(0)) / states.std(0).clamp(min=1e-6)
    _, _, axes = torch.linalg.svd(centred, full_matrices=False)
    projected = centred @ axes[:2].T
    figure, axis = plt.subplots(figsize=(6, 4.5))
    points = axis.scatter(projected[:, 0], projected[:, 1], c=splits, s=14, cmap="viridis")
    figure.colorbar(points, label="share of the demand in LP-all")
    axis.set(xlabel="first principal component", ylabel="second principal component")
    figure.tight_layout()
    figure.savefig(out / "embedding.png", dpi=120)
    # How well a line in the states tells a used path from an unused one: area under the curve (Mann
    # & Whitney 1947).
    used = splits > 0.5
    weights = torch.linalg.lstsq(
        torch.cat([centred, torch.ones(len(centred), 1)], 1), used.float()[:, None]
    ).solution
    score = (torch.cat([centred, torch.ones(len(centred), 1)], 1) @ weights)[:, 0]
    area_under_curve = (score[used][:, None] > score[~used][None]).float().mean()
    print(
        f"{out / 'embedding.png'}; more than half of the demand in LP-all, or less: area under the curve {area_under_curve:.3f}"
    )
    return 0


def main() -> int:
    """Run the named experiments, all by default; return the first exit code other than 0."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "") % {"names": ", ".join(NAMES)},
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("experiments", nargs="*", default=list(NAMES), metavar="EXPERIMENT")
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of the files that data/README.md names"
    )
    parser.add_argument(
        "--networks",
        nargs="+",
        default=NETWORKS,
        choices=NETWORKS,
        metavar="NETWORK",
        help=f"networks of the experiments by `teal evaluate`: some of {', '.join(NETWORKS)}",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/paper"), help="folder of the results"
    )
    options = parser.parse_args()
    for name in options.experiments:
        if name not in NAMES:
            parser.error(f"{name}: one of {', '.join(NAMES)}")
        if name in RUNS:
            code = evaluate(name, options.data, options.out, options.networks)
        else:
            code = (compare_variants if name in TRAINED else draw_embedding)(name, options.out)
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
