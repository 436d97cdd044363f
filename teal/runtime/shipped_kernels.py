"""Access to the compiled kernels that come with the package, one set for each processor level.

A level is a common instruction set: x86-64-v3 (AVX2, FMA) and x86-64-v4 (AVX-512) of the System V
ABI for AMD64, table 3.1; aarch64 has one level with its baseline.  The files are those of
:mod:`teal.runtime.kernel_cache`, with the fingerprints of a level, in :data:`FOLDER`;
``manifest.json`` there holds the SHA-256 of each.

``TEAL_SHIPPED_KERNELS=0`` disables them.
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

from teal.runtime.kernel_fingerprint import Processor, processor

# Path in checkouts and wheels.
FOLDER = Path(__file__).parents[1] / "_shipped" / "kernels"
MANIFEST = "manifest.json"
_ENVIRONMENT_VARIABLE = "TEAL_SHIPPED_KERNELS"
_V3 = frozenset(("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"))
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
# Levels of each architecture, the best first, by their LLVM names, and the features each requires.
_LEVELS: dict[str, dict[str, frozenset[str]]] = {
    "x86_64": {"x86-64-v4": _V4, "x86-64-v3": _V3},
    "aarch64": {"generic": frozenset()},
}


def levels() -> list[str]:
    """Return the names of the processor levels that this machine supports, the best first."""
    features = {name for name, is_present in llvm.get_host_cpu_features().items() if is_present}
    machine_levels = _LEVELS.get(platform.machine(), {})
    return [level for level, required in machine_levels.items() if required <= features]


def settings_of(level: str) -> dict[str, str]:
    """Return the environment variables with which Numba compiles for a level."""
    return {"NUMBA_CPU_NAME": level, "NUMBA_CPU_FEATURES": ""}


@functools.cache
def processors() -> tuple[Processor, ...]:
    """Return the processors whose machine code may be loaded from the package, the best first: the
    levels that this machine supports, or only ``NUMBA_CPU_NAME`` if that is set.  () if the package
    has no machine code, or ``TEAL_SHIPPED_KERNELS`` is 0.
    """
    if os.environ.get(_ENVIRONMENT_VARIABLE) == "0" or not _hashes():
        return ()
    if numba.config.CPU_NAME:
        return (processor(),)
    return tuple(Processor(processor().triple, level, "") for level in levels())


def has(name: str) -> bool:
    """Return whether the manifest of the package's compiled kernels names a file."""
    return name in _hashes()


def read(name: str) -> bytes | None:
    """Return the content of a file of the package's compiled kernels; None if it is missing, or
    differs from the SHA-256 in the manifest.
    """
    try:
        content = (FOLDER / name).read_bytes()
    except OSError:
        return None
    return content if hashlib.sha256(content).hexdigest() == _hashes().get(name) else None


def write_manifest(folder: Path) -> None:
    """Write ``manifest.json`` of a folder: the SHA-256 of every other file in it, by name."""
    files = (file for file in sorted(folder.iterdir()) if file.name != MANIFEST)
    hashes = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    (folder / MANIFEST).write_text(json.dumps(hashes, indent=0))


@functools.cache
def _hashes() -> dict[str, str]:
    """Return the manifest of the package's compiled kernels: the hexadecimal SHA-256 of each file,
    by its name; {} if no machine code comes with the package.
    """
    try:
        hashes = json.loads((FOLDER / MANIFEST).read_text())
    except (OSError, ValueError):
        return {}
    return hashes if isinstance(hashes, dict) else {}
