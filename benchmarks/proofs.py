"""Proofs: time and size of writing and checking, and how many faults a checker lets pass.

python benchmarks/proofs.py --out DIR                      # GEANT, UsCarrier; --large Kdl.json for
more python benchmarks/proofs.py --out DIR --mutations 10000    # faults in proofs of random
networks
"""

from __future__ import annotations

import argparse
import csv
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

import torch

from teal.formats import load_topology, load_traffic
from teal.network import compute_paths
from teal.problem import Problem
from teal.proofs import check
from teal.proofs.write import CHECKER, GROUPS, MATRIX, NETWORK, PROOF, write_proof
from teal.solvers.pdhg.solver import solve
from tests.proofs.cases import CASES, write_case
from tests.proofs.exact import is_true
from tests.proofs.mutations import REMOVED_CHECKS, checker_without, mutated
from tests.proofs.truth import Truth

# Runs the checker and prints the most memory that it had; the figure of getrusage would begin with
# the parent's.
_RUN = (
    "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__'); "
    "print(open('/proc/self/status').read())"
)
_LOAD = 6  # of the gravity model, at which GEANT, UsCarrier and Kdl carry 85 to 90%


def measure(names: list[str], out: Path) -> None:
    """Time and memory of each network; the checker runs in a process of its own."""
    with (out / "proofs.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(
            [
                "network",
                "objective",
                "demands",
                "gap",
                "proved_gap",
                "write_s",
                "check_s",
                "check_mib",
                "mb",
            ]
        )
        for name in names:
            topology = load_topology(name)
            matrix = load_traffic(f"gravity:seed=0,load={_LOAD},count=1", topology).read([0])
            paths = compute_paths(topology)
            for objective in ("total_flow", "max_link_utilisation"):
                problem = Problem.create(topology, paths, objective, matrix)
                result = solve(problem, gap=1e-3)
                with tempfile.TemporaryDirectory() as folder:
                    begin = time.perf_counter()
                    write_proof(Path(folder), problem, result.allocation)
                    write_s = time.perf_counter() - begin
                    before = resource.getrusage(resource.RUSAGE_CHILDREN)
                    command = [
                        sys.executable,
                        "-S",
                        "-E",
                        "-c",
                        _RUN,
                        CHECKER,
                        NETWORK,
                        MATRIX,
                        PROOF,
                    ]
                    completed = subprocess.run(
                        command, cwd=folder, capture_output=True, text=True, check=True
                    )
                    after = resource.getrusage(resource.RUSAGE_CHILDREN)
                    mib = int(completed.stdout.rpartition("VmHWM:")[2].split()[0]) / 1024
                    check_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                    size = (Path(folder) / PROOF).stat().st_size / 1e6
                proved = float(completed.stdout.partition("gap ")[2].partition("%")[0]) / 100
                row = [
                    topology.name,
                    objective,
                    problem.demand.shape[1],
                    f"{float(result.gap[0]):.3g}",
                    f"{proved:.3g}",
                    f"{write_s:.2f}",
                    f"{check_s:.2f}",
                    f"{mib:.0f}",
                    f"{size:.2f}",
                ]
                writer.writerow(row)
                print(*row, flush=True)


def accepts(checker: ModuleType, files: list[Path]) -> bool:
    """Whether a checker accepts the files; what it raises by mistake counts as a refusal."""
    try:
        checker.check(*map(str, files))
    except Exception:
        return False
    return True


def _optimum_is_there(files: list[Path]) -> bool:
    """Whether the optimum of every program, by a linear program, lies where the checker's sentence
    says.
    """
    truth = Truth(*files)
    return all(
        truth.holds(statement, number)
        for number, statement in enumerate(check.check(*map(str, files)))
    )


def mutate(count: int, seed: int, out: Path) -> None:
    """Faults in proofs: what the checker accepts wrongly, and what each checker without one check
    does.
    """
    broken = {name: checker_without(name) for name in REMOVED_CHECKS}
    num_wrong = dict.fromkeys(["none", *REMOVED_CHECKS], 0)
    changed = accepted = refused_true = 0
    pick = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = []
        for number, case in enumerate(CASES):
            case_folder = folder / str(number)
            write_case(case, case_folder, seed=seed)
            texts.append((case_folder, (case_folder / PROOF).read_text(encoding="utf-8")))
        for number in range(count):
            case_folder, text = texts[number % len(texts)]
            fault = mutated(text, pick)
            if fault == text:
                continue
            changed += 1
            files = [
                case_folder / NETWORK,
                case_folder / MATRIX,
                case_folder / "fault.txt",
                *([case_folder / GROUPS] if (case_folder / GROUPS).exists() else []),
            ]
            files[2].write_text(fault, encoding="utf-8", newline="\n")
            truth = is_true(*files)
            is_accepted = accepts(check, files)
            accepted += is_accepted
            refused_true += truth and not is_accepted
            num_wrong["none"] += is_accepted and not (truth and _optimum_is_there(files))
            if not truth:
                for which, checker in broken.items():
                    num_wrong[which] += accepts(checker, files)
            if number % 1000 == 999:
                print(
                    f"{number + 1}: {changed} changed, {accepted} accepted, {num_wrong}", flush=True
                )
    with (out / "mutations.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["check_removed", "changed_files", "accepted_wrongly"])
        writer.writerows([which, changed, number] for which, number in num_wrong.items())
    print(f"{changed} files changed, {accepted} accepted, {refused_true} true ones refused")
    for which, number in num_wrong.items():
        print(f"without the check {which}: {number} accepted wrongly")


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mutations", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--large", nargs="*", default=[], help="files of further networks, such as UsCarrier.json"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.mutations:
        mutate(options.mutations, options.seed, options.out)
    else:
        measure(["b4", "topohub:sndlib/geant", *options.large], options.out)
