"""How threads wait, in processes of their own: the settings are read once, when a library is
loaded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def _printed(code: str, **settings: str) -> list[str]:
    environment = {
        name: value for name, value in os.environ.items() if name not in _SETTINGS
    } | settings
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


_SHOW = f"print(*[os.environ.get(name, '-') for name in {_SETTINGS!r}])"


def test_importing_teal_makes_threads_wait_briefly_here_and_in_processes_that_it_starts() -> None:
    assert _printed(f"import os, teal; {_SHOW}") == ["PASSIVE", "10000", "-"]
    child = f"import os, subprocess, sys, teal; subprocess.run([sys.executable, '-c', {f'import os; {_SHOW}'!r}])"
    assert _printed(child) == ["PASSIVE", "10000", "-"]


@pytest.mark.parametrize("name", _SETTINGS)
def test_a_setting_of_the_user_stays(name: str) -> None:
    expected = ["7" if own == name else "-" for own in _SETTINGS]
    assert _printed(f"import os, teal; {_SHOW}", **{name: "7"}) == expected


_THREADS = (
    "from teal.runtime.parallel import quiet_torch\n"
    "torch.set_num_threads(2)\n"
    "for numbers in (10, 10**7):\n"
    "    with quiet_torch(numbers):\n"
    "        print(torch.get_num_threads())\n"
    "print(torch.get_num_threads())\n"
)


@pytest.mark.slow
def test_small_work_runs_on_one_thread_of_torch() -> None:
    assert _printed(f"import torch\n{_THREADS}") == ["1", "2", "2"]


_LIBRARY = (
    "import numba, teal.runtime.parallel as parallel\n"
    "numba.np.ufunc.parallel._launch_threads()\n"
    "print(len({line.split()[-1] for line in open('/proc/self/maps') if 'libgomp' in line}))\n"
)


@pytest.mark.slow
def test_numba_has_a_library_of_its_own_where_torch_was_first() -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("needs /proc")
    assert _printed(f"import torch, teal\n{_LIBRARY}") == ["2"]
