"""Proofs of allocations: `teal certify`, and `teal solve --prove`.

A proof certifies value and bound of an allocation.  Its checker is a single file that needs only
Python.  :func:`run_certify` reads the flows of any tool, computes link prices unless they are
given, and calls :func:`prove`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from teal.allocation.settings import CertifyConfig
from teal.allocation.solve import select_matrix, surviving_capacity, traffic_up_to_index
from teal.app.command import Notify, Outcome
from teal.app.instance import load_instance
from teal.app.settings import seconds
from teal.app.warm_up import compile_first
from teal.errors import InputError
from teal.problem import Allocation, Problem
from teal.problem.bounds import all_paths_bound, dual_bound
from teal.proofs.flows import read_flows, read_prices, splits_over
from teal.proofs.write import CHECKER, FILES, write_proof
from teal.runtime.arrays import FloatArray
from teal.runtime.interruptible import Deadline, complete
from teal.runtime.storage import check_out_folder, remove_files
from teal.solvers.columns import generating_columns
from teal.solvers.pipeline import solve
from teal.solvers.projection import project

# Maximum rounds of column generation for prices that prove a bound over all paths.
_MAX_ROUNDS = 30


@dataclasses.dataclass(frozen=True)
class Certified:
    """Files of a proof that the checker has accepted.

    Attributes:
        folder: folder of the files.
        files: names of the files.
        sentences: proved statements, as the checker prints them.
    """

    folder: Path
    files: tuple[str, ...]
    sentences: tuple[str, ...]

    @property
    def command(self) -> str:
        """Command line that checks the proof; it must be run in the folder of the proof."""
        return " ".join(["python", CHECKER, *(name for name in self.files if name != CHECKER)])


def run_certify(config: CertifyConfig, notify: Callable[[str], None]) -> Certified:
    """Read an allocation, compute its link prices, write the proof, and check it.

    Args:
        config: settings of `teal certify`.
        notify: prints one line of text.

    Raises:
        InputError: invalid settings or files, or a constraint that the allocation violates.
        SolverError: the checker rejects the proof.
    """
    # Load network, candidate paths and the demand (1, D) of the requested matrix.
    if not config.allocation.is_file():
        raise InputError.invalid("--allocation", "", f"no file {config.allocation}")
    config = dataclasses.replace(config, traffic=traffic_up_to_index(config))
    deadline = seconds(config.deadline, "--deadline") if config.deadline else math.inf
    instance = load_instance(
        config, notify, partial(select_matrix, config), lambda _: compile_first(notify), deadline
    )
    topology = instance.topology
    demand = instance.traffic.read([config.index])
    # Remove the failed links.
    capacity = surviving_capacity(config, topology, notify)
    if capacity is not None:
        instance = instance.surviving([np.flatnonzero(capacity == 0).tolist()], notify)
    # Read the flows as splits; their paths are added to the candidate paths.
    flows = read_flows(config.allocation, topology)
    classes = instance.traffic.classes
    location = str(config.allocation)
    paths, path_splits = splits_over(flows, topology, instance.paths, demand[0], classes, location)
    problem = dataclasses.replace(instance, paths=paths).problem(demand, capacity=capacity)
    splits = torch.from_numpy(path_splits)[None].to(problem.demand)
    # With --repair, scale infeasible flows down; refill=0: unused capacity is not given to unserved
    # demand.
    if config.repair:
        splits = project(problem.to(torch.float64), splits, refill=0)
    # Compute link prices, and write the proof.
    allocation = _with_prices(config, problem, splits, notify, instance.end)
    return prove(
        config.out, problem, allocation, config.over_all_paths, config.compressed, config.overwrite
    )


def prove(
    folder: Path,
    problem: Problem,
    allocation: Allocation,
    over_all_paths: bool,
    compressed: bool,
    overwrite: bool,
) -> Certified:
    """Write the proof of the allocation of one matrix to a folder, and check it.

    Args:
        folder: output folder.
        problem: problem of the matrix, B = 1.
        allocation: splits, and the link prices that prove the bound.
        over_all_paths: whether to prove a bound over all paths of the network, not only over the
            candidate paths.
        compressed: whether to write proof.txt.gz instead of proof.txt.
        overwrite: whether to replace the files of an earlier proof.

    Returns:
        written files, and the proved statements.

    Raises:
        InputError: the allocation violates a constraint, or the folder has a proof already.
        SolverError: the checker rejects the proof.
    """
    check_out_folder(folder, FILES, overwrite=overwrite)
    remove_files(folder, FILES)
    sentences = write_proof(
        folder, problem, allocation, over_all=over_all_paths, compressed=compressed
    )
    return Certified(
        folder, tuple(name for name in FILES if (folder / name).exists()), tuple(sentences)
    )


def _with_prices(
    config: CertifyConfig,
    problem: Problem,
    splits: Tensor,
    notify: Callable[[str], None],
    deadline: Deadline,
) -> Allocation:
    """Return the allocation with link prices that prove a bound.

    The prices are the tightest ones in the file of ``--prices``. Without it, column generation
    computes them with ``--over-all-paths``, else a solve over the candidate paths does.

    Args:
        config: settings of `teal certify`.
        problem: problem of the matrix, B = 1.
        splits: (1, D, K) splits to certify.
        notify: prints one line of text.
        deadline: deadline of the search for prices.
    """
    # Given prices: those of the tightest bound.
    if config.prices is not None:
        prices_by_matrix = read_prices(config.prices, problem.topology)
        matrix, prices = _tightest(problem, prices_by_matrix, over_all_paths=config.over_all_paths)
        if len(prices_by_matrix) > 1:
            notify(f"link prices of matrix {matrix}: the tightest of {len(prices_by_matrix)}")
        # The solve time of a given allocation is 0.
        return Allocation.of_batch(splits, prices, 0.0)
    # Prices of the last round of column generation.
    if config.over_all_paths:
        last_round = complete(
            generating_columns(
                problem,
                target=config.gap,
                max_rounds=_MAX_ROUNDS,
                deadline=deadline,
            )
        )
        notify(
            "link prices over all paths: the solver's allocation has a certified gap of "
            f"{100 * float(last_round.gap_all_paths[0]):.3g}%"
        )
        return Allocation.of_batch(splits, last_round.result.prices, 0.0)
    # Prices of a solve over the candidate paths.
    result = solve(problem, gap=config.gap, deadline=deadline.remaining)
    gap_percent = 100 * float(result.gap[0])
    notify(f"link prices: the solver's allocation has a certified gap of {gap_percent:.3g}%")
    # A sequence of programs has prices of each program.
    return Allocation.of_batch(splits, result.prices, 0.0, result.program_prices)


def _tightest(
    problem: Problem, prices_by_matrix: Mapping[str, FloatArray], *, over_all_paths: bool
) -> tuple[str, Tensor]:
    """Return the name and the prices (1, E) of the tightest bound on the optimum of a matrix.

    Args:
        problem: problem of the matrix, B = 1.
        prices_by_matrix: name -> prices (E,), at least one.
        over_all_paths: whether the bound is one over all paths of the network.
    """
    # The tightest bound is the smallest one on a maximum, and the largest one on a minimum, whose
    # sense is -1.
    bound_of = all_paths_bound if over_all_paths else dual_bound
    sense = problem.objective.rules.sense
    prices_by_name = {
        name: torch.from_numpy(prices)[None].to(problem.demand)
        for name, prices in prices_by_matrix.items()
    }
    if len(prices_by_name) == 1:
        return next(iter(prices_by_name.items()))
    return min(
        prices_by_name.items(), key=lambda vector: sense * float(bound_of(problem, vector[1])[0])
    )


def certify_outcome(config: CertifyConfig, notify: Notify) -> Outcome:
    """Run `teal certify`; return its result as text and as JSON data."""
    proof = run_certify(config, notify)
    return Outcome(
        text="\n".join(proof.sentences),
        written=f"{proof.folder}: check it without Teal: {proof.command}",
        data={"folder": str(proof.folder), "files": proof.files, "proved": proof.sentences},
    )
