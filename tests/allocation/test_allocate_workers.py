"""Where the processes of ``teal allocate --workers`` compute."""

from __future__ import annotations

from pathlib import Path

import pytest

import teal
from teal.allocation.allocate_workers import _is_on_gpu
from teal.allocation.settings import AllocateConfig
from teal.network import all_pairs, compute_paths

_THREADS = 16  # of a process, on a machine with GPUs


@pytest.mark.parametrize(
    ("device", "gpus", "entries", "expected"),
    [
        ("auto", 0, 10_000_000, False),
        ("auto", 8, 10_000_000, True),
        ("auto", 8, 1_000, False),  # a small network, for which a GPU would wait for the host
        ("cpu", 8, 10_000_000, False),
        ("cuda", 0, 1_000, True),  # which is then missed
        ("cuda:1", 8, 1_000, True),
    ],
)
def test_processes_have_gpus_where_a_solve_is_faster_there(
    monkeypatch: pytest.MonkeyPatch, device: str, gpus: int, entries: int, expected: bool
) -> None:
    topology = teal.load_topology("b4")
    paths = compute_paths(topology, all_pairs(topology), cache=False)
    monkeypatch.setattr(type(paths), "scan_size", entries)
    config = AllocateConfig(topology="b4", traffic="-", out=Path("never-written"), device=device)
    assert _is_on_gpu(config, paths, gpus, _THREADS) is expected
