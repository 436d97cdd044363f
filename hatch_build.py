"""Machine code for the wheel: compiled as the wheel is built, where the build can import Teal.

That is where ``pip install --no-build-isolation .`` or ``python -m build --no-isolation`` runs in
an environment that has Teal's dependencies.  An isolated build has none, and torch alone would be
gigabytes: it makes the wheel without machine code, whose kernels are compiled at first use.  The
service's kernels are in it if Teal itself is installed there, with its entry points.

``TEAL_MACHINE_CODE`` holds the arguments of ``python -m teal.app.machine_code``, and ``none`` for
a wheel without machine code.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_REQUIRED_PACKAGES = ("numba", "torch", "scipy", "networkx")


class MachineCode(BuildHookInterface[Any]):
    """Compiles the kernels, and marks the wheel as one of this platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the kernels into the wheel; hatchling calls this before it builds one."""
        if version == "editable":
            return
        extra_arguments = os.environ.get("TEAL_MACHINE_CODE", "")
        missing = [name for name in _REQUIRED_PACKAGES if importlib.util.find_spec(name) is None]
        if missing and extra_arguments != "none":
            self.app.display_warning(
                f"no machine code in this wheel: the build has no {missing[0]} (pip install "
                "--no-build-isolation . in an environment with Teal's dependencies)"
            )
        if missing or extra_arguments == "none":
            return
        # The kernels of the service are found by Teal's entry points.
        if not entry_points(group="teal.warm_up"):
            self.app.display_warning(
                "no machine code for the service in this wheel: install Teal before it is built "
                "(pip install --no-build-isolation -e .)"
            )
        # Compile the kernels into a folder of the build.
        kernel_folder = Path(self.root) / "build" / "kernels_of_wheel"
        command = [sys.executable, "-m", "teal.app.machine_code", "--out", str(kernel_folder)]
        subprocess.run([*command, *shlex.split(extra_arguments)], cwd=self.root, check=True)
        if not (kernel_folder / "manifest.json").exists():  # no level for this processor
            return
        # Add them to the wheel, which is then for this platform only.
        build_data["force_include"][str(kernel_folder)] = "teal/_shipped/kernels"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
