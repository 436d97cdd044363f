"""Machine code that comes with the package: forms of kernels, compiled for levels of processors.

A level is a set of instructions that many processors have: x86-64-v3 (AVX2, FMA) and x86-64-v4
(AVX-512) are those of the System V ABI for AMD64, table 3.1; aarch64 has one here, what every such
processor has.  The files are those of :mod:`teal.runtime.kernel_cache`, with the stamps of a
level, in :data:`FOLDER`; ``manifest.json`` there holds the SHA-256 of each.

``TEAL_SHIPPED_KERNELS=0`` leaves them all aside.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
from pathlib import Path

import llvmlite.binding as llvm
import numba

from teal.runtime.kernel_stamp import Processor, processor

FOLDER = Path(__file__).parents[1] / "_shipped" / "kernels"  # of checkouts and wheels
MANIFEST = "manifest.json"
_SWITCH = "TEAL_SHIPPED_KERNELS"
_V3 = frozenset(("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"))
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
# Of each architecture: its levels, the best first, as LLVM names them, and the features each needs.
_LEVELS: dict[str, dict[str, frozenset[str]]] = {
    "x86_64": {"x86-64-v4": _V4, "x86-64-v3": _V3},
    "aarch64": {"generic": frozenset()},
}


def levels() -> list[str]:
    """Levels whose machine code this machine can run, the best first."""
    has = {name for name, is_there in llvm.get_host_cpu_features().items() if is_there}
    of_machine = _LEVELS.get(platform.machine(), {})
    return [level for level, needs in of_machine.items() if needs <= has]


def settings_of(level: str) -> dict[str, str]:
    """Environment in which Numba compiles for a level."""
    return {"NUMBA_CPU_NAME": level, "NUMBA_CPU_FEATURES": ""}


@functools.cache
def processors() -> tuple[Processor, ...]:
    """Processors whose machine code may be loaded from the package, the best first; the one that
    ``NUMBA_CPU_NAME`` names alone, if it names one.
    """
    if os.environ.get(_SWITCH) == "0" or not _hashes():
        return ()
    if numba.config.CPU_NAME:
        return (processor(),)
    return tuple(Processor(processor().triple, level, "") for level in levels())


def has(name: str) -> bool:
    """Whether a file of that name comes with the package."""
    return name in _hashes()


def read(name: str) -> bytes | None:
    """Content of a file of the package; None unless it is the one that the manifest names."""
    try:
        content = (FOLDER / name).read_bytes()
    except OSError:
        return None
    return content if hashlib.sha256(content).hexdigest() == _hashes().get(name) else None


def write_manifest(folder: Path) -> None:
    """Write the SHA-256 of every other file of a folder into its manifest."""
    files = (file for file in sorted(folder.iterdir()) if file.name != MANIFEST)
    hashes = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    (folder / MANIFEST).write_text(json.dumps(hashes, indent=0))


@functools.cache
def _hashes() -> dict[str, str]:
    """Hexadecimal SHA-256 by name of file; empty where no machine code comes with the package."""
    try:
        found = json.loads((FOLDER / MANIFEST).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
