"""The structure of the package: imports against the tiers below, files against ARCHITECTURE.md and
against tests/."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import teal
from teal.extension_api import EXTENSION_API
from tests.house import PACKAGES, circles, measures, modules, parsed

ROOT = Path(__file__).parents[1]
# Imports point up this list: a room imports from earlier tiers, or from itself.
TIERS = (
    # The core.
    ("errors", "deprecated"),
    ("spec", "runtime", "option"),
    ("network",),
    ("pathops", "objectives"),
    ("formats",),
    ("problem",),
    ("solvers", "nn", "proofs"),
    ("schemes",),
    ("cluster", "app"),
    # What Teal does: settings, computation, results and commands.
    ("allocation",),
    ("testing",),
    # The ways in.
    ("api", "inputs", "extension_api"),
    ("cli",),
    ("command", "extend", "kernels"),
)
# All imports between packages over the core.
DRAWN: dict[str, set[str]] = {
    "teal_availability": set(),
    "teal_ip": {"teal_serve"},
    "teal_next": {"teal_serve", "teal_study"},
    "teal_serve": set(),
    "teal_study": set(),
}
# All imports between rooms of a package.
DRAWN_IN: dict[str, dict[str, set[str]]] = {}
DRAWN_IN["teal_study"] = {
    "learning": set(),
    "evaluation": {"learning"},
    "planning": set(),
    "api": {"evaluation", "learning", "planning"},
    "commands": {"evaluation", "learning", "planning"},
}
DRAWN_IN["teal_serve"] = {
    "client": set(),
    "settings": set(),
    "start": {"engine", "settings"},
    "engine": set(),
    "http": {"engine"},
    "process": {"engine", "http", "settings", "start"},
    "deployment": {"engine", "http", "settings", "start"},
    "command": {"deployment", "process", "settings"},
    "commands": {"engine", "settings"},
}
DRAWN_IN["teal_ip"] = {
    "readings": set(),
    "routing": {"readings"},
    "segments": {"routing"},
    "configuration": {"readings", "routing", "metrics"},
    "counters": {"readings", "routing"},
    "metrics": {"routing", "segments"},
    "purchases": {"routing"},
    "surveys": {"counters", "metrics", "purchases", "routing", "segments"},
    "api": {"counters", "purchases", "routing", "surveys"},
    "commands": {
        "configuration",
        "counters",
        "metrics",
        "purchases",
        "routing",
        "segments",
        "surveys",
    },
}
# Rooms whose modules have an order of their own: each imports only from those before it.
ORDERS = {
    "problem": (
        "steps",
        "prox",
        "sets",
        "curves",
        "program",
        "condition",
        "churn",
        "protection",
        "offers",
        "problem",
        "fixed",
        "small",
        "allocation",
        "feasibility",
        "bounds",
        "price_library",
        "part_certificates",
        "priority",
        "fair_levels",
        "assessment",
    ),
}
MAX_TOP_LEVEL_ENTRIES = 32  # one more for each capability that gets a room, and for nothing else
MAX_DRAWING_LINES = 50


def _imports(file: Path) -> set[str]:
    imported = set()
    for node in ast.walk(parsed(file)[1]):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            imported.add(node.module or "")
            imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    return imported


def _defined(file: Path) -> set[str]:
    """The functions and classes of a module, in lower case with underscores."""
    kinds = ast.FunctionDef | ast.ClassDef
    names = {node.name for node in parsed(file)[1].body if isinstance(node, kinds)}
    return {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().strip("_") for name in names}


def _module(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _room(module: str) -> str:
    return module.split(".")[1]


TIER = {room: number for number, tier in enumerate(TIERS) for room in tier}
FILES = sorted((ROOT / "teal").rglob("*.py"))


def test_every_import_points_up_the_tiers() -> None:
    for file in FILES:
        module = _module(file)
        if module in ("teal", "teal.__main__"):
            continue
        room = _room(module)
        assert room in TIER, (
            f"{room} has no place in TIERS: give it one, and draw it in ARCHITECTURE.md"
        )
        for imported in _imports(file):
            if imported == "teal":
                pytest.fail(f"{module} imports the public API")
            if imported.startswith("teal.") and _room(imported) != room:
                assert TIER[_room(imported)] < TIER[room], f"{module} imports {imported}"


def test_the_core_imports_no_package_and_packages_import_each_other_as_they_are_drawn() -> None:
    for file in FILES:
        packages = {name.split(".")[0] for name in _imports(file)} & set(PACKAGES)
        assert packages <= {"teal"}, file
    found: dict[str, set[str]] = {}
    for package in PACKAGES[1:]:
        files = sorted((ROOT / package).rglob("*.py"))
        imported = {name.split(".")[0] for file in files for name in _imports(file)}
        found[package] = imported & set(PACKAGES) - {"teal", package}
    assert found == DRAWN


@pytest.mark.parametrize("package", DRAWN_IN)
def test_the_rooms_of_a_package_import_each_other_as_they_are_drawn(package: str) -> None:
    found: dict[str, set[str]] = {}
    for file in sorted((ROOT / package).rglob("*.py")):
        if file == ROOT / package / "__init__.py":
            continue
        room = _room(_module(file))
        rooms = {_room(name) for name in _imports(file) if name.startswith(f"{package}.")}
        found.setdefault(room, set()).update(rooms - {room})
    assert found == DRAWN_IN[package]


def test_the_modules_of_a_room_with_an_order_import_only_earlier_ones() -> None:
    for room, order in ORDERS.items():
        modules = {file.stem for file in (ROOT / "teal" / room).glob("*.py")} - {"__init__"}
        assert modules == set(order)
        for number, name in enumerate(order):
            for imported in _imports(ROOT / "teal" / room / f"{name}.py"):
                parts = imported.split(".")
                if parts[:2] == ["teal", room]:
                    assert len(parts) > 2, f"{room}/{name}.py imports its own package"
                    assert parts[2] in order[:number], f"{room}/{name}.py imports {imported}"


def test_the_engines_side_of_the_service_knows_no_http_and_sequences_know_no_engine() -> None:
    for room, hidden in (
        ("teal_serve/engine", "teal_serve.http"),
        ("teal/solvers/sequences", "teal.solvers.pdhg"),
    ):
        files = sorted((ROOT / room).glob("*.py"))
        assert files
        for file in files:
            assert not any(name.startswith(hidden) for name in _imports(file)), file


# Modules of the core for packages of others, beside `import teal`.
PUBLIC_MODULES = ("teal.command", "teal.extend", "teal.kernels", "teal.testing")
# Names; fewer are better.
MAX_PUBLIC_NAMES = 65
MAX_EXTENSION_API = 189
MAX_FURTHER_NAMES_OF_SERVICE_AND_STUDIES = 141


def _names_used(packages: tuple[str, ...]) -> dict[str, set[str]]:
    """Names that packages import from the core and from other packages, by module, without those of
    ``import teal`` and of the public modules."""
    used = dict[str, set[str]]()
    public = set(teal.__all__).union(
        *(getattr(importlib.import_module(name), "__all__", ()) for name in PUBLIC_MODULES)
    )
    for package in packages:
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(parsed(file)[1]):
                module = getattr(node, "module", None) or ""
                home = module.split(".")[0]
                if isinstance(node, ast.ImportFrom) and home in set(PACKAGES) - {package}:
                    names = {alias.name for alias in node.names} - public
                    used.setdefault(module, set()).update(names)
    return {module: names for module, names in used.items() if names}


def test_packages_use_what_the_core_declares() -> None:
    """Every name is of ``import teal`` or of the extension API, which has no name that nobody
    uses."""
    declared = {module: set(names) for module, names in EXTENSION_API.items()}
    assert _names_used(("teal_availability", "teal_ip", "teal_next")) == declared
    for module, names in declared.items():
        home = importlib.import_module(module)
        for name in names:
            is_module = (
                importlib.util.find_spec(f"{module}.{name}") if hasattr(home, "__path__") else None
            )
            assert is_module or hasattr(home, name), f"{module}.{name}"
    assert sum(map(len, declared.values())) <= MAX_EXTENSION_API


def test_the_service_and_the_studies_use_few_names_beside_the_declared_ones() -> None:
    """They are developed with the core and may use more of it, but not much more."""
    used = _names_used(("teal_serve", "teal_study"))
    further = [
        f"{module}.{name}"
        for module, names in used.items()
        for name in names - set(EXTENSION_API.get(module, ()))
    ]
    assert len(further) <= MAX_FURTHER_NAMES_OF_SERVICE_AND_STUDIES


def _imports_from_teal(code: str) -> set[str]:
    """Modules of the core that Python code imports names from."""
    nodes = ast.walk(ast.parse(code))
    modules = {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    return {module for module in modules if module.startswith("teal.")}


def test_the_toy_package_and_the_examples_use_the_public_modules_alone() -> None:
    """They are what a stranger reads: one needs a name of another module only if it is missing."""
    folders = ("tests/toy_package", "docs/examples")
    files = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]
    codes = [file.read_text(encoding="utf-8") for file in files]
    for page in sorted((ROOT / "docs").rglob("*.md")):
        fences = re.findall(
            r"^```\{?\.?python\}?\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE
        )
        codes += fences
    used = set[str]().union(*map(_imports_from_teal, codes))
    assert used <= set(PUBLIC_MODULES)
    assert used >= {"teal.command", "teal.extend", "teal.testing"}


def test_the_public_modules_have_few_names_and_each_is_that_of_its_home() -> None:
    num_names = len(_defined(ROOT / "teal" / "testing.py"))
    for name in set(PUBLIC_MODULES) - {"teal.testing"}:
        module = importlib.import_module(name)
        stub = ast.parse((ROOT / f"{name.replace('.', '/')}.pyi").read_text(encoding="utf-8"))
        for node in (node for node in stub.body if isinstance(node, ast.ImportFrom)):
            home = importlib.import_module(str(node.module))
            for alias in node.names:
                assert getattr(module, alias.name) is getattr(home, alias.name)
        num_names += len(module.__all__)
        with pytest.raises(AttributeError):
            _ = module.no_such_name
    assert num_names <= MAX_PUBLIC_NAMES


def test_the_top_of_the_package_is_small() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "teal"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("needs git")
    assert len({line.split("/")[1] for line in listed.stdout.splitlines()}) <= MAX_TOP_LEVEL_ENTRIES


def test_every_test_file_is_named_after_what_it_tests() -> None:
    """tests/ROOM/test_NAME.py tests the module NAME of the room, or a function or class of one of
    its modules."""
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        room = file.parent.relative_to(ROOT / "tests")
        if room.parts in ((), ("baselines",), ("deploy",), ("mutants",), ("teal_serve",)):
            continue
        name = file.stem.removeprefix("test_")
        package = ROOT if room.parts[0] in PACKAGES else ROOT / "teal"
        modules = sorted((package / room).glob("*.py"))
        subjects = {module.stem for module in modules} | {
            name for module in modules for name in _defined(module)
        }
        assert any(name in subject for subject in subjects), (
            f"{file.relative_to(ROOT)} is named after nothing in {room}"
        )


@pytest.mark.parametrize("room", ["solvers", "problem", "schemes", "nn"])
def test_batches_in_tests_of_solvers_have_three_matrices(room: str) -> None:
    """With two, a fault that takes the first matrix for all others may pass, and so may one that
    takes the last one."""
    for file in (ROOT / "tests" / room).rglob("*.py"):
        assert not re.search(r"\bbatch=2\b", file.read_text(encoding="utf-8")), file


def test_every_test_file_says_what_it_compares() -> None:
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        assert ast.get_docstring(parsed(file)[1]), file


def test_teal_imports_no_baseline_and_ray_only_where_its_name_says_so() -> None:
    for file in (file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))):
        imported = {name.split(".")[0] for name in _imports(file)}
        assert "baselines" not in imported, file
        if not (
            file.stem.endswith("_workers")
            or file.parent.name == "cluster"
            or file.stem == "deployment"
        ):
            assert "ray" not in imported, file


def test_optional_packages_are_imported_where_they_are_used() -> None:
    """The library runs without them: no file imports one at its top, but the one room that needs
    it."""
    homes = {
        "cvxpy": (),
        "gurobipy": (),
        "tyro": ("teal/cli/",),
        "topohub": (),
        "torch_geometric": ("teal/nn/",),
    }
    homes |= {"jaxtyping": (), "beartype": ()}
    homes |= dict.fromkeys(("plotly", "jinja2", "ortools"), ())
    homes |= {
        "ray": ("teal_serve/deployment.py",),
        "fastapi": ("teal_serve/http/",),
        "pydantic": ("teal_serve/engine/", "teal_serve/http/"),
        "prometheus_client": ("teal_serve/http/",),
    }
    homes |= {"httpx": ("teal_serve/client/",), "pyarrow": ("teal_serve/client/",)}
    for file in (
        file
        for package in (*PACKAGES, "baselines")
        for file in sorted((ROOT / package).rglob("*.py"))
    ):
        top = {
            alias.name.split(".")[0]
            if isinstance(node, ast.Import)
            else (node.module or "").split(".")[0]
            for node in parsed(file)[1].body
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        for package, rooms in homes.items():
            if package in top:
                path = file.relative_to(ROOT).as_posix()
                assert any(path.startswith(room) for room in rooms), f"{path} imports {package}"


def test_the_drawing_shows_every_room_on_one_screen() -> None:
    drawing = re.search(r"```\n(.*?)```", (ROOT / "ARCHITECTURE.md").read_text(), re.DOTALL)
    assert drawing is not None
    assert len(drawing[1].splitlines()) <= MAX_DRAWING_LINES
    for room in TIER:
        assert re.search(rf"\b{room}\b", drawing[1]), room


def _last_line_of(code: str) -> str:
    """The last line that Python code prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return done.stdout.splitlines()[-1]


def test_a_look_at_a_network_loads_no_large_package() -> None:
    """Each costs from a third of a second to two seconds at every call of a command."""
    code = (
        "import sys; from teal.cli import main; main(['topology', 'info', '--topology', 'b4']); "
        "print([name for name in ('torch', 'pandas', 'networkx', 'matplotlib') if name in sys.modules])"
    )
    assert _last_line_of(code) == "[]"


def test_the_overview_of_commands_reads_settings_alone() -> None:
    """`teal --help` starts in half a second: readers, path search and kernels are imported by the
    commands."""
    code = (
        "import sys; from teal.cli import main; main(['--help']); "
        "print([name for name in ('teal.formats', 'teal.network.topology', 'numba', 'torch') if name in sys.modules])"
    )
    assert _last_line_of(code) == "[]"


def test_the_hint_after_an_interruption_loads_no_torch() -> None:
    """Ctrl-C may come while torch is being imported, which must not begin anew then."""
    code = "import sys, teal.app.run_files; print('torch' in sys.modules)"
    assert _last_line_of(code) == "False"


def test_the_client_alone_loads_neither_solvers_nor_readers() -> None:
    """A controller that only talks to the service needs httpx, NumPy and Arrow."""
    code = (
        "import sys, teal_serve.client; print(sorted(name for name in sys.modules if name.startswith('teal') and "
        "not name.startswith(('teal_serve.client', 'teal.runtime')) or name in ('torch', 'numba', 'pandas', 'fastapi', 'pydantic', 'ray')))"
    )
    assert _last_line_of(code) == "['teal', 'teal.deprecated', 'teal.errors', 'teal_serve']"


# The most that each measure of tests/house.py may be.  A change that needs more says why, here.
BUDGET = {
    "modules imported by exactly one other": 80,  # packages: `commands` and `api` of each
    "circles of modules": 0,
    "classes with three or more figures of a result": 13,
    "modules that call HiGHS": 1,
    "docstrings that open without a subject": 0,
    "arguments described without a noun": 0,
}


def test_the_house_keeps_its_budget(capsys: pytest.CaptureFixture[str]) -> None:
    house = modules(ROOT)
    found = measures(house)
    with capsys.disabled():
        sys.stdout.write(
            "\n"
            + "".join(f"  {name}: {count:,} of {BUDGET[name]:,}\n" for name, count in found.items())
        )
    assert set(found) == set(BUDGET)
    assert not {name: count for name, count in found.items() if count > BUDGET[name]}, circles(
        house
    )


def test_the_measures_of_the_house_count_what_they_say(tmp_path: Path) -> None:
    (tmp_path / "teal" / "room").mkdir(parents=True)
    (tmp_path / "teal" / "__init__.py").write_text("")
    (tmp_path / "teal" / "room" / "__init__.py").write_text("")
    (tmp_path / "teal" / "room" / "one.py").write_text(
        'from teal.room import two\nfrom scipy.optimize import linprog\n\n\nclass A:\n    """What it is.\n\n'
        '    Attributes:\n        value: of it.\n    """\n\n    value: float\n    bound: float\n    gap: float\n'
    )
    (tmp_path / "teal" / "room" / "two.py").write_text(
        "def f() -> None:\n    from teal.room.one import A\n"
    )
    house = modules(tmp_path)
    assert circles(house) == [["teal.room.one", "teal.room.two"]]
    assert measures(house) == {
        "modules imported by exactly one other": 2,
        "circles of modules": 1,
        "classes with three or more figures of a result": 1,
        "modules that call HiGHS": 1,
        "docstrings that open without a subject": 1,
        "arguments described without a noun": 1,
    }
