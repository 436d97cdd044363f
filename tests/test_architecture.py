"""Imports point one way: each room imports from rooms above it in this list, never from below."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
TIERS = (
    ("teal.errors",),
    (
        "teal.spec",
        "teal.storage",
        "teal.parallel",
        "teal.lanes",
        "teal.cuda",
        "teal.device",
        "teal.memory",
        "teal.interrupts",
    ),
    ("teal.network",),
    ("teal.pathops", "teal.objectives", "teal.protocols", "teal.web"),
    ("teal.formats", "teal.config"),
    ("teal.problem",),
    ("teal.allocation",),
    ("teal.feasibility", "teal.bounds"),
    ("teal.assessment", "teal.schemes"),
    ("teal.solvers", "teal.nn"),
    ("teal.testing", "teal.calibration", "teal.client"),
    (
        "teal.learning.losses",
        "teal.learning.noise",
        "teal.learning.peers",
        "teal.learning.direct",
        "teal.learning.coma",
        "teal.learning.checkpoint",
    ),
    ("teal.learning.universe",),
    ("teal.allocator", "teal.price_allocator", "teal.successive"),
    ("teal.learning.trainer", "teal.learning.universal", "teal.instance"),
    ("teal.online",),
    ("teal.evaluation", "teal.race", "teal.solving", "teal.planning", "teal.bulk"),
    ("teal.reports",),
    ("teal.distributed",),
    ("teal.studies", "teal.serving"),
    ("teal.cli",),
)
LONGEST = 400


def _imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _module(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _tier(module: str) -> int | None:
    for number, tier in enumerate(TIERS):
        for name in tier:
            if module == name or module.startswith(name + "."):
                return number
    return None


FILES = sorted((ROOT / "teal").rglob("*.py"))


def test_imports_point_one_way() -> None:
    outside = {"teal", "teal.__main__", "teal.learning"}
    for file in FILES:
        module = _module(file)
        own = _tier(module)
        if module in outside:
            continue
        assert own is not None, f"{module} has no place in TIERS: give it one, and draw it in ARCHITECTURE.md"
        for imported in _imports(file):
            other = _tier(imported)
            if other is None:
                assert imported not in ("teal",), f"{module} imports the public API"
                continue
            same_room = module.split(".")[:2] == imported.split(".")[:2]
            assert other < own or (other == own and same_room), f"{module} imports {imported}, which is below it"


def test_teal_never_imports_baselines_and_ray_has_two_rooms() -> None:
    for file in FILES:
        imported = {name.split(".")[0] for name in _imports(file)}
        assert "baselines" not in imported, file
        if file.relative_to(ROOT / "teal").parts[0] not in ("distributed", "serving"):
            assert "ray" not in imported, file


def test_optional_packages_are_imported_where_they_are_used() -> None:
    """The library runs without them: no file imports one at its top, but the one room that needs it."""
    homes = {"cvxpy": (), "gurobipy": (), "tyro": ("cli.py",), "topohub": (), "torch_geometric": ("nn",)}
    homes |= dict.fromkeys(("plotly", "jinja2", "ortools"), ())
    homes |= {"ray": ("serving",), "fastapi": ("serving",), "pydantic": ("serving",), "prometheus_client": ("serving",)}
    homes |= {"httpx": ("client.py",), "pyarrow": ("client.py",)}
    for file in [*FILES, *sorted((ROOT / "baselines").glob("*.py"))]:
        top = {
            alias.name.split(".")[0] if isinstance(node, ast.Import) else (node.module or "").split(".")[0]
            for node in ast.parse(file.read_text()).body
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        for package, rooms in homes.items():
            if package in top:
                assert file.relative_to(ROOT / "teal").parts[0] in rooms, f"{file} imports {package}"


def test_no_file_is_too_long_to_hold_in_the_head() -> None:
    for folder in ("teal", "baselines", "tests", "benchmarks"):
        for file in (ROOT / folder).rglob("*.py"):
            assert len(file.read_text().splitlines()) <= LONGEST, file


def test_every_room_is_drawn() -> None:
    drawing = (ROOT / "ARCHITECTURE.md").read_text()
    for tier in TIERS:
        for name in tier:
            assert name.removeprefix("teal.").split(".")[0] in drawing, name
