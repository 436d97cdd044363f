"""Proof of value and bound of an answer, as a zip file with a checker that needs only Python."""

from __future__ import annotations

import io
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import torch

from teal.errors import TealError
from teal.objectives import Objective
from teal.problem import Allocation
from teal.proofs.write import write_proof
from teal.runtime.arrays import FloatArray
from teal_serve.engine.allocation_task import AllocationTask
from teal_serve.engine.answer import Answer
from teal_serve.engine.errors import ServiceError, invalid_request
from teal_serve.engine.network_state import NetworkState


def check_provable(task: AllocationTask, num_matrices: int) -> None:
    """Raise ServiceError, before the solve, if the answer to a request cannot be proved.

    Args:
        task: requested program.
        num_matrices: number of matrices of the request.
    """
    rules = Objective(task.objective).rules
    if num_matrices != 1:
        raise invalid_request(f"prove: {num_matrices} matrices; send a request with one matrix")
    if task.limits or rules.is_sequence or not (rules.is_linear or rules.needs_functions):
        raise invalid_request(
            f"prove: {task.objective} cannot be proved; use an objective that is a single program, "
            "linear or piecewise linear in flow, without classes"
        )


def build_proof(
    answer: Answer, network_state: NetworkState, task: AllocationTask, rates: FloatArray
) -> bytes:
    """Return a zip file that proves an answer: network, matrix, flows, link prices and checker.

    Args:
        answer: answer to one matrix.
        network_state: network of the request.
        task: requested program.
        rates: (1, D) requested rates, Gbit/s.

    Raises:
        ServiceError: the allocation violates the current capacities, for example after a link
            failure during the solve.
    """
    # Allocation (1, D, K) of the answer, with the link prices (1, E) that prove its bound.
    splits = torch.from_numpy(answer.splits.astype(np.float64))
    prices = torch.from_numpy(answer.prices)
    allocation = Allocation.of_batch(splits, prices, 0.0)
    # Write the proof to a temporary folder, and pack its files into a zip file in memory.
    buffer = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        try:
            # Copy the rates, since those of an Arrow body are read-only.
            write_proof(folder, network_state.problem(task, rates.copy()), allocation)
        except TealError as error:
            raise ServiceError(409, "not_proved", str(error)) from None
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(folder.iterdir()):
                archive.write(file, file.name)
    return buffer.getvalue()
