"""`teal certify`: anybody's allocation, as a proof that a file without Teal checks; and the proof
of a solve.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from teal.allocation.settings import CertifyConfig
from teal.allocation.solve import capacity_in_force, selected, traffic_up_to_index
from teal.app.command import Notify, Outcome
from teal.app.instance import load_instance
from teal.app.settings import seconds
from teal.app.warm_up import compile_first
from teal.errors import InputError
from teal.problem import Allocation, Problem
from teal.proofs.flows import read_flows, read_prices, splits_over
from teal.proofs.write import CHECKER, FILES, write_proof
from teal.runtime.interruptible import Deadline, complete
from teal.runtime.storage import check_out_folder, remove_files
from teal.solvers.columns import improving
from teal.solvers.pdhg.solver import solve
from teal.solvers.projection import project

# Maximum rounds of column generation for prices that prove a bound over all paths.
_MAX_ROUNDS = 30


@dataclasses.dataclass(frozen=True)
class Certified:
    """A proof that was written and checked.

    Attributes:
        folder: with the files.
        files: their names.
        sentences: sentences that the checker prints.
    """

    folder: Path
    files: tuple[str, ...]
    sentences: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command line, in the folder, that checks the proof."""
        return " ".join(["python", CHECKER, *(name for name in self.files if name != CHECKER)])


def run_certify(config: CertifyConfig, notify: Callable[[str], None]) -> Certified:
    """Read the allocation, find prices, write the proof and check it.

    Raises:
        InputError: invalid settings or files; a rule that the allocation breaks.
        SolverError: the checker refuses the proof.
    """
    if not config.allocation.is_file():
        raise InputError("--allocation", "", "a file", str(config.allocation))
    config = dataclasses.replace(config, traffic=traffic_up_to_index(config))
    deadline = seconds(config.deadline, "--deadline") if config.deadline else math.inf
    instance = load_instance(
        config, notify, partial(selected, config), lambda _: compile_first(notify), deadline
    )
    topology = instance.topology
    demand = instance.traffic.read([config.index])
    capacity = capacity_in_force(config, topology, notify)
    if capacity is not None:
        instance = instance.surviving([np.flatnonzero(capacity == 0).tolist()], notify)
    flows = read_flows(config.allocation, topology)
    classes = instance.traffic.classes
    where = str(config.allocation)
    paths, splits = splits_over(flows, topology, instance.paths, demand[0], classes, where)
    problem = dataclasses.replace(instance, paths=paths).problem(demand, capacity=capacity)
    shares = torch.from_numpy(splits)[None].to(problem.demand)
    if config.repair:
        shares = project(problem.to(torch.float64), shares, refill=0)
    allocation = _with_prices(config, problem, shares, notify, instance.end)
    return prove(
        config.out, problem, allocation, config.over_all_paths, config.compressed, config.overwrite
    )


def prove(
    folder: Path,
    problem: Problem,
    allocation: Allocation,
    over_all: bool,
    compressed: bool,
    overwrite: bool,
) -> Certified:
    """Write the proof of the allocation of one matrix to a folder; arguments and errors as in
    :func:`write_proof`.
    """
    check_out_folder(folder, FILES, overwrite=overwrite)
    remove_files(folder, FILES)
    sentences = write_proof(folder, problem, allocation, over_all=over_all, compressed=compressed)
    return Certified(
        folder, tuple(name for name in FILES if (folder / name).exists()), tuple(sentences)
    )


def _with_prices(
    config: CertifyConfig,
    problem: Problem,
    shares: Tensor,
    notify: Callable[[str], None],
    end: Deadline,
) -> Allocation:
    """The allocation with prices: those that were given, or PDHG's for the same matrix."""
    if config.prices is not None:
        prices = torch.from_numpy(read_prices(config.prices, problem.topology))[None].to(
            problem.demand
        )
        return Allocation.of_batch(shares, prices, 0.0)
    if config.over_all_paths:
        last = complete(
            improving(
                problem,
                target=config.gap,
                max_rounds=_MAX_ROUNDS,
                deadline=end,
            )
        )
        notify(f"prices over all paths: certified gap {100 * float(last.gap_all_paths[0]):.3g}%")
        return Allocation.of_batch(shares, last.result.prices, 0.0)
    result = solve(problem, gap=config.gap, deadline=end.remaining)
    reached = 100 * float(result.gap[0])
    notify(f"prices: the solver's own allocation has the certified gap {reached:.3g}%")
    return Allocation.of_batch(shares, result.prices, 0.0, result.program_prices)


def certify_outcome(config: CertifyConfig, notify: Notify) -> Outcome:
    """`teal certify`."""
    proof = run_certify(config, notify)
    return Outcome(
        text="\n".join(proof.sentences),
        written=f"{proof.folder}: check it without Teal: {proof.command}",
        data={"folder": str(proof.folder), "files": proof.files, "proved": proof.sentences},
    )
