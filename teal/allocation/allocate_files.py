"""Output files of `teal allocate`: one for each part, and optional ones for each matrix.

:class:`PartFiles` loads the instance and writes the files of a part, in any process.  The file of a
part is written atomically.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from teal.allocation.allocate import AllocatedBatch, AllocatedMatrix, HistoryAllocator, part_file
from teal.allocation.settings import AllocateConfig
from teal.app.instance import load_instance
from teal.formats.allocations import MatrixFile, write_allocation
from teal.objectives import Objective
from teal.proofs.write import write_proof
from teal.runtime.arrays import AnyArray
from teal.runtime.storage import atomic_file, json_value
from teal.schemes.models import named_model
from teal.solvers.split_table import table_weights

# Subfolder of OUT with the files of single matrices.
MATRICES = "matrices"
# Subfolder of OUT with a folder for the proof of each matrix.
PROOFS = "proofs"


class PartFiles:
    """Allocator of the parts of a history that writes their files.

    Args:
        config: settings of `teal allocate`.
        notify: prints one line of text while the instance is loaded.

    Raises:
        InputError: invalid user input.
    """

    def __init__(
        self, config: AllocateConfig, notify: Callable[[str], None] = lambda _: None
    ) -> None:
        self.config = config
        # Reject an invalid model before the slow load of the instance.
        named_model(config.model, Objective(config.objective))
        self.instance = load_instance(config, notify)
        self.allocator = HistoryAllocator(self.instance, config)

    def file(self, part: int) -> Path:
        """Return the path of the file with the splits of a part."""
        return self.config.out / part_file(part)

    def write_part(self, part: int) -> list[AllocatedMatrix]:
        """Allocate the matrices of a part, write its files, and return the figures of each matrix.

        Args:
            part: index of the part, from 0.
        """
        config = self.config
        results = list[AllocatedMatrix]()
        with atomic_file(self.file(part)) as temporary:
            file = MatrixFile(temporary, "weights" if config.entries else "splits")
            for batch in self.allocator.batches(part):
                splits = batch.allocation.splits
                file.add(batch.matrices, None if config.figures_only else self._stored_form(splits))
                if config.each != "none":
                    self._write_matrices(batch)
                if config.prove:
                    self._write_proofs(batch)
                results += batch.matrices
            file.close()
        return results

    def _write_matrices(self, batch: AllocatedBatch) -> None:
        """Write the allocation of each matrix to a separate file (--each)."""
        instance = self.instance
        entries = self.config.entries
        # (B, D, K) splits, and with --entries the integer weights of their split tables.
        splits = batch.allocation.splits
        weights = table_weights(splits, entries).cpu().numpy() if entries else None
        for index, matrix in enumerate(batch.matrices):
            figures = {"objective": str(instance.objective.spec), **json_value(matrix)}
            write_allocation(
                self.config.out / MATRICES / f"{matrix.index:06d}.{self.config.each}",
                instance.topology,
                instance.paths,
                instance.traffic.read([matrix.index])[0],
                splits[index].double().cpu().numpy(),
                None if weights is None else weights[index],
                figures,
                instance.traffic.classes,
            )

    def _write_proofs(self, batch: AllocatedBatch) -> None:
        """Write the proof of each matrix to a separate folder (--prove)."""
        for index, matrix in enumerate(batch.matrices):
            write_proof(
                self.config.out / PROOFS / f"{matrix.index:06d}",
                batch.problem.row(index),
                batch.allocation.rows(slice(index, index + 1)),
                compressed=True,
            )

    def _stored_form(self, splits: torch.Tensor) -> AnyArray:
        """Return splits (B, D, K) as float32, or with --entries their table weights as uint8."""
        entries = self.config.entries
        stored = table_weights(splits, entries).to(torch.uint8) if entries else splits.float()
        return stored.cpu().numpy()
