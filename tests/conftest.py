"""Shared by all tests: checked array shapes, an empty cache folder for each test, public data, and
a browser."""

from __future__ import annotations

import ast
import collections
import importlib.util
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

if os.environ.get(
    "TEAL_WITHOUT"
):  # names of packages that these tests must not need, such as teal_ip,teal_next

    class _Blocked:
        """A finder that refuses modules of these packages."""

        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            """Raise ModuleNotFoundError for them."""
            if name.split(".")[0] in os.environ["TEAL_WITHOUT"].split(","):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, _Blocked())

if (
    not torch.cuda.is_available()
):  # CUDA kernels run in numba-cuda's simulator; it must be told before the first import
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

from teal.runtime.storage import cache_dir

# Kernels are kept where a user's are: each test has an empty cache folder, which must not be
# theirs.  Before the import of Numba: where one of its variables has changed since, it reads all of
# its settings again.
os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_dir("kernels").parent))

import numba

# Shapes at these borders are checked under test.  The hook must stand before the first import of
# Teal.
CHECKED = (
    "teal.problem.problem",
    "teal.problem.allocation",
    "teal.pathops.base",
    "teal.solvers.pipeline",
)
try:
    from jaxtyping import install_import_hook

    import tests.shape_checks  # the hook finds it only if it has been imported
except ImportError:  # not part of a plain installation; the tests then run without these checks
    pass
else:
    install_import_hook(list(CHECKED), f"{tests.shape_checks.__name__}.check")

hypothesis.settings.register_profile("teal", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.load_profile("teal")

# Test processes run side by side: a thread pool in each would fight for the cores.
numba.set_num_threads(1)
torch.set_num_threads(1)

# Packages that cannot be imported in this run.
WITHOUT = tuple(filter(None, os.environ.get("TEAL_WITHOUT", "").split(",")))
DATA = Path(os.environ.get("TEAL_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
# Seconds of the tests that take the longest, on two cores: `make durations` stores them.
DURATIONS = Path(__file__).parent / "durations.json"
LEAST_STORED_S = 0.5


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out files that import a package of ``TEAL_WITHOUT`` at their top."""
    if not WITHOUT or collection_path.suffix != ".py":
        return None
    imported = {
        name
        for node in ast.parse(collection_path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
    }
    return True if {name.split(".")[0] for name in imported} & set(WITHOUT) else None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--store-durations``."""
    parser.addoption(
        "--store-durations",
        action="store_true",
        help=f"write {DURATIONS.name}: how long each test took",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests by their stored durations, the longest first, so that no worker begins a long
    test when the others are done (longest processing time first: Graham 1969).

    The tests of a group run on one worker, one after the other: their durations count together.
    Tests without a stored duration keep their order, behind the others.
    """
    stored: dict[str, float] = json.loads(DURATIONS.read_text())
    total: dict[str, float] = collections.defaultdict(float)
    for item in items:
        total[_unit_of(item)] += stored.get(item.nodeid.partition("@")[0], 0.0)
    items.sort(key=lambda item: -total[_unit_of(item)])


def _unit_of(item: pytest.Item) -> str:
    """What runs on one worker: a group of tests by its name, or a single test."""
    group = item.get_closest_marker("xdist_group")
    return item.nodeid.partition("@")[0] if group is None else str(group.args or group.kwargs)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Store the durations, where that is asked for."""
    if not config.option.store_durations:
        return
    total: dict[str, float] = collections.defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                total[report.nodeid.partition("@")[0]] += report.duration
    stored = {test: round(s, 1) for test, s in sorted(total.items()) if s >= LEAST_STORED_S}
    DURATIONS.write_text(json.dumps(stored, indent=1) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Compile what a solve needs before the workers start: they would wait for each other's
    kernels.

    A shell starts background jobs with SIGINT ignored, and their children inherit that; tests send
    it to processes that must end by it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    from teal.app.warm_up import compile_first

    def notify(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    compile_first(notify)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[Any]:
    """Skip a test that fails because a package is not installed, such as cvxpy; in CI, where all
    are, it fails."""
    try:
        return (yield)
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ModuleNotFoundError):
            cause = cause.__cause__
        if (
            cause is None
            or "CI" in os.environ
            or str(cause.name).startswith(("teal", "baselines", "tests"))
        ) and str(getattr(cause, "name", "")).split(".")[0] not in WITHOUT:
            raise
        assert cause is not None
        pytest.skip(f"needs {cause.name}")


@pytest.fixture(scope="session")
def _path_sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where path sets are kept for all tests of a process: hundreds register B4, and each would
    choose its paths."""
    return tmp_path_factory.mktemp("paths")


@pytest.fixture(autouse=True)
def _empty_cache(
    tmp_path_factory: pytest.TempPathFactory, _path_sets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path_factory.mktemp("cache")
    (cache / "paths").symlink_to(_path_sets)
    monkeypatch.setenv("TEAL_CACHE_DIR", str(cache))


@pytest.fixture
def public_data() -> Path:
    """The folder of SNDlib and Topology Zoo files that data/README.md names."""
    if not DATA.is_dir():
        pytest.skip(
            f"needs the public data that data/README.md names, in {DATA} (or set TEAL_TEST_DATA)"
        )
    return DATA


@pytest.fixture(scope="module")
def quick_simulator() -> Iterator[None]:
    """Blocks of numba-cuda's simulator without threads of the operating system: many times as fast."""
    if torch.cuda.is_available():
        yield
        return
    from tests.simulator import greenlets_as_threads

    with greenlets_as_threads():
        yield


@pytest.fixture(scope="session")
def local_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Ray, connected as Teal connects to it, for tests that do not kill a whole run (a start takes
    12 s)."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs Ray: pip install '.[ray]'")
    from teal.cluster.cluster import connected

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEAL_CACHE_DIR", str(tmp_path_factory.mktemp("ray")))
        with connected() as ray:
            yield ray


@pytest.fixture(
    scope="module"
)  # not longer: while it runs, its thread has an event loop and no other may start
def browser() -> Iterator[Any]:
    """Chromium, through Playwright."""
    chromium = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if chromium is None:
        pytest.skip("needs a browser: Debian's chromium, say (apt-get install chromium)")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright: pip install '.[dev]'"
    )
    with playwright.sync_playwright() as running:
        chrome = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield chrome
        chrome.close()
