"""Proof of an answer as a zip file, which its receiver checks without Teal (:mod:`teal.proofs`)."""

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
from teal.serving.engine.allocation_task import AllocationTask
from teal.serving.engine.answer import Answer
from teal.serving.engine.errors import ServiceError, wrong
from teal.serving.engine.network_state import NetworkState


def check_provable(task: AllocationTask, num_matrices: int) -> None:
    """Raise ServiceError for a request whose answer has no proof in one file, before solving it."""
    rules = Objective(task.objective).rules
    if num_matrices != 1:
        raise wrong(f"prove: expected a request with one matrix, not {num_matrices}")
    if task.limits or rules.is_sequence or not (rules.is_linear or rules.needs_functions):
        raise wrong(
            "prove: expected a single program that is linear or piecewise linear in flow, without "
            "classes"
        )


def build_proof(
    answer: Answer, network_state: NetworkState, task: AllocationTask, rates: FloatArray
) -> bytes:
    """Zip file with network, matrix, flows, dual prices and checker.

    Args:
        answer: answer to one matrix.
        network_state: network of the request.
        task: requested program.
        rates: (1, D) Gbit/s.

    Raises:
        ServiceError: the allocation violates the network as it is now, for instance after a link
            failure.
    """
    splits = torch.from_numpy(answer.splits.astype(np.float64))
    prices = torch.from_numpy(answer.prices)
    allocation = Allocation.of_batch(splits, prices, 0.0)
    buffer = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        try:
            # Copy, since Arrow's rates are read-only.
            write_proof(folder, network_state.problem(task, rates.copy()), allocation)
        except TealError as error:
            raise ServiceError(409, "not_proved", str(error)) from None
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(folder.iterdir()):
                archive.write(file, file.name)
    return buffer.getvalue()
