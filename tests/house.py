"""Measures of the package's structure: ``python -m tests.house`` prints them, with their change
against a commit.

python -m tests.house          # against main
python -m tests.house HEAD~10
"""

from __future__ import annotations

import ast
import dataclasses
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
_RESULT_FIELDS = {"value", "bound", "gap", "solve_s", "stopped_by", "iterations"}
_OPENING = re.compile(r"(What|See|Of|Those|The same)\b")  # of a docstring that names no subject
_ARGUMENT = re.compile(
    r"\s+[a-z_0-9]+(, [a-z_0-9]+)*: (of|that|which|by which|in which|on which|where|whose|with which)\b"
)


PACKAGES = (
    "teal",  # the core
    "teal_availability",
    "teal_ip",
    "teal_next",
    "teal_serve",
    "teal_study",
)


@dataclasses.dataclass(frozen=True)
class Module:
    """One module of the package.

    Attributes:
        name: dotted.
        text: its source.
        tree: the same, parsed.
        imports: modules of the package that it imports anywhere.
    """

    name: str
    text: str
    tree: ast.Module
    imports: frozenset[str]

    @property
    def room(self) -> str:
        """First part of the name below the package."""
        return self.name.split(".")[1] if "." in self.name else "teal"


@cache
def parsed(file: Path) -> tuple[str, ast.Module]:
    """Text and syntax tree of a file."""
    text = file.read_text(encoding="utf-8")
    return text, ast.parse(text)


def modules(root: Path) -> dict[str, Module]:
    """The modules of the package in a tree, by name."""
    files = {}
    for file in sorted(file for package in PACKAGES for file in (root / package).rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    found = {}
    for name, file in files.items():
        text, tree = parsed(file)
        imports = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imports |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imports |= {
                    full if (full := f"{node.module}.{alias.name}") in files else node.module
                    for alias in node.names
                }
        found[name] = Module(name, text, tree, frozenset(imports & set(files) - {name}))
    return found


def circles(house: dict[str, Module]) -> list[list[str]]:
    """Modules that import each other, directly or through others, at any time."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(house[name].imports):
            if other not in index:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == index[name]:
            circle = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(circle) > 1:
                found.append(sorted(circle))

    for name in house:
        if name not in index:
            visit(name)
    return found


def lines_by_room(house: dict[str, Module]) -> Counter[str]:
    """Lines of each room."""
    lines: Counter[str] = Counter()
    for module in house.values():
        lines[module.room] += len(module.text.splitlines())
    return lines


def docstrings(house: dict[str, Module]) -> list[str]:
    """All docstrings."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = (
        node
        for module in house.values()
        for node in ast.walk(module.tree)
        if isinstance(node, kinds)
    )
    return [text for node in nodes if (text := ast.get_docstring(node))]


def measures(house: dict[str, Module]) -> dict[str, int]:
    """The measures by name."""
    importers: dict[str, set[str]] = defaultdict(set)
    for module in house.values():
        for other in module.imports:
            importers[other].add(module.name)
    classes = [
        node
        for module in house.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    ]
    texts = docstrings(house)
    return {
        "modules imported by exactly one other": sum(
            len(names) == 1 for names in importers.values()
        ),
        "circles of modules": len(circles(house)),
        "classes with three or more figures of a result": sum(
            len(
                _RESULT_FIELDS
                & {
                    node.target.id
                    for node in one.body
                    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
                }
            )
            >= 3
            for one in classes
        ),
        "modules that call HiGHS": sum(
            bool(
                re.search(
                    r"scipy\.optimize import .*\b(linprog|milp)\b|import highspy", module.text
                )
            )
            for module in house.values()
        ),
        "docstrings that open without a subject": sum(bool(_OPENING.match(text)) for text in texts),
        "arguments described without a noun": sum(
            bool(_ARGUMENT.match(f" {line}")) for text in texts for line in text.splitlines()
        ),
    }


def house_of(commit: str) -> dict[str, Module]:
    """The modules of a commit."""
    packed = subprocess.run(
        ["git", "archive", commit, "teal"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with (
        tempfile.TemporaryDirectory() as folder,
        tarfile.open(fileobj=io.BytesIO(packed)) as archive,
    ):
        archive.extractall(folder, filter="data")
        return modules(Path(folder))


def main() -> None:
    """Print the measures of this tree and their change against a commit."""
    commit = sys.argv[1] if len(sys.argv) > 1 else "main"
    now, before = modules(ROOT), house_of(commit)
    rooms = [(f"  {room}/", count) for room, count in sorted(lines_by_room(now).items())]
    earlier = measures(before) | {
        f"  {room}/": count for room, count in lines_by_room(before).items()
    }
    for name, count in [*measures(now).items(), ("lines by room:", -1), *rooms]:
        change = "" if count < 0 else f"{count:>8,} {count - earlier.get(name, 0):>+8,}"
        sys.stdout.write(f"{name:<50}{change}\n")


if __name__ == "__main__":
    main()
