"""Measure proofs: time and size of writing and checking, and how many faults a checker lets pass.

python benchmarks/proofs.py --out DIR [--large UsCarrier.json Kdl.json]   # B4, GEANT and more
python benchmarks/proofs.py --out DIR --mutations 10000                   # faults in proofs
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
from teal.solvers.pipeline import solve
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
PROOF_COLUMNS = (
    "network",
    "objective",
    "demands",
    "gap",
    "proved_gap",
    "write_s",
    "check_s",
    "check_mib",
    "mb",
)
_LOAD = 6  # of the gravity model, at which GEANT, UsCarrier and Kdl carry 85 to 90%


def run_checker(folder: Path) -> tuple[str, float, float]:
    """Run the checker in a new process, and measure its time and memory.

    Args:
        folder: folder of the network, the matrix and the proof.

    Returns:
        the checker's output, its CPU time (s), and its peak resident memory (MiB).
    """
    command = [sys.executable, "-S", "-E", "-c", _RUN, CHECKER, NETWORK, MATRIX, PROOF]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    completed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    memory_mib = int(completed.stdout.rpartition("VmHWM:")[2].split()[0]) / 1024
    return completed.stdout, cpu_s, memory_mib


def proof_row(problem: Problem) -> tuple[object, ...]:
    """Solve a problem of one matrix to 0.1%, write and check its proof, and return a row of
    :data:`PROOF_COLUMNS`.
    """
    result = solve(problem, gap=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        write_proof(Path(folder), problem, result.allocation)
        write_s = time.perf_counter() - begin
        output, check_s, memory_mib = run_checker(Path(folder))
        size_mb = (Path(folder) / PROOF).stat().st_size / 1e6
    proved_gap = float(output.partition("gap ")[2].partition("%")[0]) / 100
    return (
        problem.topology.name,
        problem.objective.name,
        problem.demand.shape[1],
        f"{float(result.gap[0]):.3g}",
        f"{proved_gap:.3g}",
        f"{write_s:.2f}",
        f"{check_s:.2f}",
        f"{memory_mib:.0f}",
        f"{size_mb:.2f}",
    )


def measure(names: list[str], out: Path) -> None:
    """Write proofs.csv: time, memory and size of a proof for each network and two objectives.

    Args:
        names: sources of the topologies.
        out: folder of the table.
    """
    with (out / "proofs.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(PROOF_COLUMNS)
        for name in names:
            topology = load_topology(name)
            matrix = load_traffic(f"gravity:seed=0,load={_LOAD},count=1", topology).read([0])
            paths = compute_paths(topology)
            for objective in ("total_flow", "max_link_utilisation"):
                row = proof_row(Problem.create(topology, paths, objective, matrix))
                writer.writerow(row)
                print(*row, flush=True)


def accepts(checker: ModuleType, files: list[Path]) -> bool:
    """Return whether a checker accepts a proof; every exception counts as a refusal.

    Args:
        checker: module with a function ``check``.
        files: network, matrix and proof, and the groups of links if the case has them.
    """
    try:
        checker.check(*map(str, files))
    except Exception:
        return False
    return True


def _statements_hold(files: list[Path]) -> bool:
    """Return whether every statement of the checker about a program holds for the program's
    optimum, which a linear program gives.

    Args:
        files: files of an accepted proof.
    """
    truth = Truth(*files)
    return all(
        truth.holds(statement, number)
        for number, statement in enumerate(check.check(*map(str, files)))
    )


def write_cases(folder: Path, seed: int) -> list[tuple[Path, str]]:
    """Write the network, matrix and proof of each test case.

    Args:
        folder: parent of the cases' folders.
        seed: seed of the random networks.

    Returns:
        the folder of each case, and the text of its proof.
    """
    written: list[tuple[Path, str]] = []
    for number, case in enumerate(CASES):
        case_folder = folder / str(number)
        write_case(case, case_folder, seed=seed)
        written.append((case_folder, (case_folder / PROOF).read_text(encoding="utf-8")))
    return written


def proof_files(folder: Path, proof: str) -> list[Path]:
    """Write a changed proof into the folder of a case; return the files that a checker reads.

    Args:
        folder: folder of the case.
        proof: text of the changed proof.
    """
    changed_proof = folder / "fault.txt"
    changed_proof.write_text(proof, encoding="utf-8", newline="\n")
    groups = folder / GROUPS
    files = [folder / NETWORK, folder / MATRIX, changed_proof]
    return [*files, groups] if groups.exists() else files


def mutate(count: int, seed: int, out: Path) -> None:
    """Write mutations.csv: the number of randomly changed proofs that are accepted wrongly, by the
    checker and by each weakened checker, which lacks one of its checks.

    Args:
        count: number of changes to try.
        seed: seed of the networks and the changes.
        out: folder of the table.
    """
    weak_checkers = {name: checker_without(name) for name in REMOVED_CHECKS}
    num_wrong = dict.fromkeys(["none", *REMOVED_CHECKS], 0)
    num_changed = 0
    num_accepted = 0
    num_refused_true = 0
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        cases = write_cases(Path(name), seed)
        for number in range(count):
            case_folder, proof = cases[number % len(cases)]
            changed_proof = mutated(proof, rng)
            if changed_proof == proof:
                continue
            num_changed += 1
            files = proof_files(case_folder, changed_proof)
            # The statement may still be true, since a change may loosen it.
            is_statement_true = is_true(*files)
            is_accepted = accepts(check, files)
            num_accepted += is_accepted
            num_refused_true += is_statement_true and not is_accepted
            num_wrong["none"] += is_accepted and not (is_statement_true and _statements_hold(files))
            # Every checker must refuse a false statement; a weakened one shows what its check is
            # for.
            if not is_statement_true:
                for removed, checker in weak_checkers.items():
                    num_wrong[removed] += accepts(checker, files)
            if number % 1000 == 999:
                print(
                    f"{number + 1}: {num_changed} changed, {num_accepted} accepted, {num_wrong}",
                    flush=True,
                )
    with (out / "mutations.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["check_removed", "changed_files", "accepted_wrongly"])
        writer.writerows([removed, num_changed, count] for removed, count in num_wrong.items())
    print(
        f"{num_changed} files changed, {num_accepted} accepted, {num_refused_true} true ones refused"
    )
    for removed, num_wrongly_accepted in num_wrong.items():
        print(f"without the check {removed}: {num_wrongly_accepted} accepted wrongly")


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
