"""Compare two commits by what their Python code does: names, docstrings, comments do not count.

    python benchmarks/same_code.py COMMIT [PATH ...]   # files of PATHs whose code changed since, and renamed names

Two files have the same code where their syntax trees are equal after three steps: docstrings are
dropped, ``a, b = x, y`` becomes two assignments where the second does not read the first, and
texts of exceptions are dropped.  Identifiers may differ by a one-to-one renaming of the file, in
which every new name is defined by the project (so ``np.max`` does not become ``np.min``).  Imports
from the project's own modules are not compared, since modules are renamed, too.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import figures

PACKAGES = ("teal", "teal_availability", "teal_ip", "teal_next", "baselines", "benchmarks")
# Fields of syntax nodes that hold an identifier.
_IDENTIFIERS = {
    ast.Name: ("id",),
    ast.Attribute: ("attr",),
    ast.arg: ("arg",),
    ast.keyword: ("arg",),
    ast.FunctionDef: ("name",),
    ast.AsyncFunctionDef: ("name",),
    ast.ClassDef: ("name",),
    ast.ExceptHandler: ("name",),
    ast.MatchAs: ("name",),
    ast.MatchStar: ("name",),
    ast.MatchMapping: ("rest",),
    ast.MatchClass: ("kwd_attrs",),
    ast.Global: ("names",),
    ast.Nonlocal: ("names",),
}


class Renaming:
    """A one-to-one map of old to new identifiers, which grows as trees are compared.

    Args:
        defined: names that the project defines now; None allows every new name.
    """

    def __init__(self, defined: frozenset[str] | None = None) -> None:
        self._defined = defined
        self._new: dict[str, str] = {}
        self._old: dict[str, str] = {}

    def admits(self, old: str | None, new: str | None) -> bool:
        """Whether ``old`` may have become ``new``; both None is a missing identifier."""
        if old is None or new is None:
            return old is new
        if self._new.setdefault(old, new) != new or self._old.setdefault(new, old) != old:
            return False
        return old == new or self._defined is None or new in self._defined

    @property
    def changed(self) -> dict[str, str]:
        """Old and new name of every identifier that is not the same."""
        return {old: new for old, new in self._new.items() if old != new}


def is_same_code(old: str, new: str, renaming: Renaming | None = None) -> bool:
    """Whether two sources have the same code (module docstring), up to a renaming.

    Args:
        old: source text.
        new: source text.
        renaming: is extended by the identifiers of both; None for a new one.
    """
    renaming = Renaming() if renaming is None else renaming
    old_tree = _canonical(ast.parse(old))
    new_tree = _canonical(ast.parse(new))
    if _imports(old_tree) != _imports(new_tree):
        return False
    return _is_same(old_tree, new_tree, renaming)


def _canonical(tree: ast.Module) -> ast.Module:
    """The tree without docstrings, parallel assignments and texts of exceptions."""
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list):
                setattr(node, field, list(_plain_statements(statements)))
        if isinstance(node, ast.Raise):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    part.value = ""
    return tree


def _plain_statements(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements without docstrings, each parallel assignment as several."""
    for statement in statements:
        is_text = (
            isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
            and isinstance(statement.value.value, str)
        )
        if is_text:
            continue
        yield from _assignments(statement)


def _assignments(statement: ast.stmt) -> Iterator[ast.stmt]:
    """A parallel assignment as several, where no value reads an earlier target."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        yield statement
        return
    (targets,) = statement.targets
    values = statement.value
    is_parallel = (
        isinstance(targets, ast.Tuple)
        and isinstance(values, ast.Tuple)
        and len(targets.elts) == len(values.elts)
        and not any(isinstance(part, ast.Starred) for part in (*targets.elts, *values.elts))
    )
    if not is_parallel:
        yield statement
        return
    assert isinstance(targets, ast.Tuple)
    assert isinstance(values, ast.Tuple)
    written: set[str] = set()
    for target, value in zip(targets.elts, values.elts, strict=True):
        read = {ast.unparse(part) for part in ast.walk(value) if isinstance(part, ast.expr)}
        if written & read:
            yield statement
            return
        written.add(ast.unparse(target))
    for target, value in zip(targets.elts, values.elts, strict=True):
        yield ast.Assign([target], value)


def _imports(tree: ast.Module) -> set[tuple[str, str]]:
    """(module, name) of every import that is not from the project."""
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {(alias.name, alias.asname or "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            imported |= {(module, alias.name) for alias in node.names}
    return {names for names in imported if names[0].split(".")[0] not in ("", *PACKAGES)}


def _is_same(old: Any, new: Any, renaming: Renaming) -> bool:
    """Whether two parts of trees are the same, up to names."""
    if type(old) is not type(new):
        return False
    if isinstance(old, list):
        old, new = _without_imports(old), _without_imports(new)
        return len(old) == len(new) and all(
            _is_same(one, other, renaming) for one, other in zip(old, new, strict=True)
        )
    if not isinstance(old, ast.AST):
        return bool(old == new)
    identifiers = _IDENTIFIERS.get(type(old), ())
    for field in old._fields:
        old_value, new_value = getattr(old, field, None), getattr(new, field, None)
        if field in ("type_comment", "kind"):
            continue
        if field not in identifiers:
            if not _is_same(old_value, new_value, renaming):
                return False
            continue
        old_names = old_value if isinstance(old_value, list) else [old_value]
        new_names = new_value if isinstance(new_value, list) else [new_value]
        if len(old_names) != len(new_names):
            return False
        if not all(map(renaming.admits, old_names, new_names)):
            return False
    return True


def _without_imports(nodes: list[Any]) -> list[Any]:
    return [node for node in nodes if not isinstance(node, ast.Import | ast.ImportFrom)]


def names_defined(source: str) -> set[str]:
    """Names that a source defines: functions, classes, parameters, variables, attributes."""
    defined = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                defined.add(name)
            case ast.ClassDef(name=name):
                defined.add(name)
            case ast.arg(arg=name):
                defined.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                defined.add(name)
    return defined


@cache
def defined_by_project() -> frozenset[str]:
    """Names that the project's packages define in the working tree."""
    files = figures.git("ls-files", "--", *(f"{package}/*.py" for package in PACKAGES))
    defined: set[str] = set()
    for file in files.split():
        path = figures.ROOT / file
        if path.is_file():
            defined |= names_defined(path.read_text(encoding="utf-8"))
    return frozenset(defined)


def changed_files(commit: str, paths: Sequence[str]) -> dict[str, dict[str, str] | None]:
    """Files of the paths that HEAD changed since a commit.

    Returns:
        for each file renamed identifiers, old to new; None where its code is not the same.
    """
    diff = figures.git("diff", "--name-status", "-M40", commit, "HEAD", "--", *paths)
    changed: dict[str, dict[str, str] | None] = {}
    for line in diff.splitlines():
        status, *files = line.split("\t")
        old_file, new_file = files[0], files[-1]
        if status[0] not in "MR" or not new_file.endswith(".py"):
            changed[new_file] = None
            continue
        renaming = Renaming(defined_by_project())
        old = figures.git("show", f"{commit}:{old_file}")
        new = figures.git("show", f"HEAD:{new_file}")
        is_same = is_same_code(old, new, renaming)
        changed[new_file] = renaming.changed if is_same else None
    return changed


def main() -> int:
    """Print files whose code changed since a commit, and renamed identifiers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", help="an older commit")
    parser.add_argument("paths", nargs="*", default=list(PACKAGES), help="of files and folders")
    options = parser.parse_args()
    changed = changed_files(options.commit, options.paths)
    for file, renamed in changed.items():
        if renamed is None:
            print(f"{file}: changed code")
    for file, renamed in changed.items():
        for old, new in sorted((renamed or {}).items()):
            print(f"{file}: {old} -> {new}")
    num_changed = sum(renamed is None for renamed in changed.values())
    print(f"{len(changed)} files differ, {num_changed} of them in their code")
    return int(num_changed > 0)


if __name__ == "__main__":
    sys.exit(main())
