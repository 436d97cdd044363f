"""Measure the gain by training: trained models against their starting models and controls, on
unseen matrices.

    python benchmarks/training.py --data FOLDER --out runs/training [NETWORK ...]

FOLDER holds the files that data/README.md names.  On each network both kinds of models are trained
for ten minutes, each from the model for any network.  training-gain.csv has the table that `teal train`
prints at its end.  A training that is in OUT is not repeated, so that an interrupted run continues.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pandas as pd
from public_data import published

from teal.cli import main as teal

MEASURED = ("abilene", "geant", "germany50")
MODELS = ("flow", "price")
BUDGET = "10m"
# Topology and traffic of each network.
INPUTS = {
    "abilene": (
        "sndlib/abilene.xml",
        "sndlib/directed-abilene-zhang-5min-over-6months-ALL.tgz",
    ),
    "geant": ("sndlib/geant.xml", "sndlib/directed-geant-uhlig-15min-over-4months-ALL.tgz"),
    "germany50": (
        "sndlib/germany50.xml",
        "sndlib/directed-germany50-DFN-aggregated-1day-over-1month.tgz",
    ),
    "uscarrier": ("topologies/UsCarrier.json", "gravity:seed=0,count=60,load=6"),
    "kdl": ("topologies/Kdl.json", "gravity:seed=0,count=20,load=6"),
}


def main() -> int:
    """Run the trainings that OUT lacks, and write training-gain.csv; return the exit code of the
    first training that fails, or 0.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", default=MEASURED, help=", ".join(INPUTS))
    parser.add_argument("--data", type=Path, required=True, help="folder of the published files")
    parser.add_argument("--out", type=Path, default=Path("runs/training"))
    parser.add_argument("--budget", default=BUDGET, help="time of each training")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    for network in options.networks:
        for model in MODELS:
            # Train for the budget unless an earlier run has.
            folder = options.out / f"{network}-{model}"
            if not (folder / "run.json").exists():
                code = teal(
                    [
                        "train",
                        *_input_options(network, options.data),
                        *("--model", model, "--time-budget", options.budget),
                        *("--out", str(folder), "--overwrite"),
                    ]
                )
                if code:
                    return code
            rows += _gain_rows(network, model, json.loads((folder / "run.json").read_text()))
    table = pd.DataFrame(rows)
    table.to_csv(options.out / "training-gain.csv", index=False)
    print(table.to_string(index=False))
    return 0


def _input_options(network: str, data: Path) -> list[str]:
    """Return the options of `teal train` for a network and its traffic; published traffic is scaled
    so that the optimum carries 90%.

    Args:
        network: key of :data:`INPUTS`.
        data: folder of the published files.
    """
    topology, traffic = INPUTS[network]
    is_file = ":" not in traffic
    return [
        *("--topology", str(published(data, topology))),
        *("--traffic", str(published(data, traffic)) if is_file else traffic),
        *(("--calibrate", "0.9") if is_file else ()),
        *("--num-paths", "4"),
    ]


def _gain_rows(network: str, model: str, run: dict[str, object]) -> list[dict[str, object]]:
    """Return the rows of a training's table; the row of the trained model also has its differences
    from the starting model.

    Args:
        network: name of the network.
        model: "flow" or "price".
        run: contents of run.json, which the training has written.
    """
    gain = run["gain"]
    assert isinstance(gain, dict)
    differences: dict[str, object] = {
        f"{measure}_{end}": value
        for measure, interval in gain["differences"].items()
        for end, value in zip(("more", "low", "high"), interval, strict=False)
    }
    common = {
        "network": network,
        "model": model,
        "matrices": gain["matrices"],
        "steps": run["step"],
        "best_step": run["best_step"],
    }
    # Difference of the carried share, in percentage points, with its confidence interval.
    mean, low, high = (100 * number for number in gain["differences"]["cut"][:3])
    differences["difference"] = f"{mean:+.2f} ({low:.2f}, {high:.2f})"
    return [
        common | row | (differences if row["name"] == "trained" else {}) for row in gain["rows"]
    ]


if __name__ == "__main__":
    sys.exit(main())
