"""The proof of an answer, as a zip file that its receiver checks without Teal
(:mod:`teal.proofs`).
"""

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
from teal.serving.engine.answer import Answer
from teal.serving.engine.errors import ServiceError, wrong
from teal.serving.engine.served import Served
from teal.serving.engine.wanted import Wanted


def check_provable(wanted: Wanted, matrices: int) -> None:
    """Raise ServiceError for what has no proof in one file, before it is solved."""
    rules = Objective(wanted.objective).rules
    if matrices != 1:
        raise wrong(f"prove: one matrix a request, not {matrices}")
    if wanted.limits or rules.is_sequence or not (rules.is_linear or rules.needs_functions):
        raise wrong(
            "prove: an objective that is one program and linear in flow, or in pieces of it, "
            "without classes"
        )


def proof_of(answer: Answer, served: Served, wanted: Wanted, rates: FloatArray) -> bytes:
    """A zip file with network, matrix, flows, prices and checker.

    Args:
        answer: to one matrix.
        served: the network.
        wanted: by the request.
        rates: (1, D) Gbit/s.

    Raises:
        ServiceError: the allocation breaks a rule of the network as it is now: a link went down
            meanwhile, say.
    """
    splits, prices = (
        torch.from_numpy(answer.splits.astype(np.float64)),
        torch.from_numpy(answer.prices),
    )
    allocation, packed = Allocation.of_batch(splits, prices, 0.0), io.BytesIO()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            write_proof(
                folder, served.problem(wanted, rates.copy()), allocation
            )  # Arrow's rates are read-only
        except TealError as error:
            raise ServiceError(409, "not_proved", str(error)) from None
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(folder.iterdir()):
                archive.write(file, file.name)
    return packed.getvalue()
