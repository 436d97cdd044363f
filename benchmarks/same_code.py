"""Compare the Python code of two commits; names, docstrings and comments do not count.

    python benchmarks/same_code.py COMMIT [PATH ...]   # files whose code changed, and renamed names

Two files have the same code if their syntax trees are equal after three steps: docstrings,
``__all__`` and decorators for deprecated names are dropped, ``a, b = x, y`` becomes two assignments where the second does not read the first, and texts
of several words (messages, help) and of exceptions are dropped.  Identifiers may differ by one-to-one renamings: of
variables in their function or class, of the attributes of one expression and of keywords in a
top-level definition, of other names in the file.  The project must define every new name, so that
``np.max`` does not become ``np.min``.  A text may differ where it repeats such a name, as in
``getattr(x, "name")``.

Limits: imports from the project's own modules are not compared, since modules are renamed, too; an
attribute of another library's object that got a name of the project's is not noticed (mypy and the
tests find it).
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import figures

# Old folder of a package -> its folder now.
_MOVED_FOLDERS = {
    "teal/client": "teal_serve/client",
    "teal/evaluation": "teal_study/evaluation",
    "teal/learning": "teal_study/learning",
    "teal/planning": "teal_study/planning",
    "teal/serving": "teal_serve",
}
PACKAGES = (
    "teal",
    "teal_availability",
    "teal_ip",
    "teal_next",
    "teal_serve",
    "teal_study",
    "baselines",
    "benchmarks",
)
# Decorators that add deprecated names.
_OLD_NAMES = ("with_old_attributes", "with_old_keywords")
# A text of two words or more is for people: help, a message, a heading.
_PROSE = re.compile(r"[A-Za-z]{2,},? [A-Za-z]{2,}")
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
    """A one-to-one map from old to new identifiers of one scope, which grows while two syntax trees
    are compared.

    Args:
        defined: names that the project defines now; None allows every new name.
    """

    def __init__(self, defined: frozenset[str] | None = None) -> None:
        self._defined = defined
        self._new: dict[str, str] = {}
        self._old: dict[str, str] = {}

    def admits(self, old: str | None, new: str | None) -> bool:
        """Return whether ``old`` may have been renamed to ``new``; if so, record the pair.

        Both are None for an identifier that is missing in both trees.
        """
        if old is None or new is None:
            return old is new
        if self._new.setdefault(old, new) != new or self._old.setdefault(new, old) != old:
            return False
        return old == new or self._defined is None or new in self._defined


class _Scopes:
    """The scopes around the nodes that are compared, each with its renaming: the file, a top-level
    definition, and the functions and classes in it.

    Args:
        defined: names that the project defines now; None allows every new name.
    """

    def __init__(self, defined: frozenset[str] | None) -> None:
        self._defined = defined
        self._file = Renaming(defined)
        # Of a top-level definition: keywords, and the attributes of each expression.
        self._members: dict[str, Renaming] = {}
        # Names that are local to each function or class around the present node, and their renaming.
        self._local: list[tuple[set[str], Renaming]] = []
        self.changed: set[tuple[str, str]] = set()
        # Texts that are identifiers and differ, such as the name in getattr(x, "name").
        self.changed_texts: set[tuple[str, str]] = set()

    def begin_definition(self) -> None:
        """Enter a top-level statement, which gets new renamings of attributes and keywords."""
        self._members = {}

    def begin_scope(self, node: ast.AST) -> None:
        """Enter a function or class, which gets a new renaming of the names it binds."""
        self._local.append((names_bound(node), Renaming(self._defined)))

    def end_scope(self) -> None:
        """Discard the renaming of the innermost function or class, whose end is reached."""
        self._local.pop()

    def admits(self, node: ast.AST, old: str | None, new: str | None) -> bool:
        """Return whether an identifier may have been renamed in the scope it belongs to, and record
        the names if they differ.

        Args:
            node: node of the old tree that holds the identifier.
            old: identifier in the old tree.
            new: identifier at this place in the new tree.
        """
        if old is not None and new is not None and old != new:
            self.changed.add((old, new))
        return self._renaming(node, old).admits(old, new)

    def _renaming(self, node: ast.AST, name: str | None) -> Renaming:
        """Return the renaming of the scope to which a name of a node belongs.

        Attributes and keywords belong to the top-level definition, by the expression before the
        dot; functions and classes to the file; other names to the innermost function or class that
        binds them, or to the file.
        """
        if isinstance(node, ast.Attribute | ast.keyword):
            owner = ast.unparse(node.value) if isinstance(node, ast.Attribute) else ""
            return self._members.setdefault(owner, Renaming(self._defined))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return self._file
        for bound, renaming in reversed(self._local):
            if name in bound:
                return renaming
        return self._file


# Stored figures share sources and commits.
@cache
def renamed_names(
    old: str, new: str, defined: frozenset[str] | None = None
) -> frozenset[tuple[str, str]] | None:
    """Compare two source texts; return the identifiers that were renamed if their code is the same.

    The code is the same if the syntax trees are equal up to docstrings, texts for people, parallel
    assignments, imports from the project, and one-to-one renamings.

    Args:
        old: source text of the older version.
        new: source text of the newer version.
        defined: names that the project defines now; None allows every new name.

    Returns:
        pairs of old and new name; None if the code differs.
    """
    old_tree = _canonical(ast.parse(old))
    new_tree = _canonical(ast.parse(new))
    if _imports(old_tree) != _imports(new_tree):
        return None
    old_statements = _without_imports(old_tree.body)
    new_statements = _without_imports(new_tree.body)
    if len(old_statements) != len(new_statements):
        return None
    scopes = _Scopes(defined)
    for old_statement, new_statement in zip(old_statements, new_statements, strict=True):
        scopes.begin_definition()
        if not _is_same(old_statement, new_statement, scopes):
            return None
    # A text may only repeat the renaming of a name.
    if not scopes.changed_texts <= scopes.changed:
        return None
    return frozenset(scopes.changed)


def _canonical(tree: ast.Module) -> ast.Module:
    """Normalise a tree in place, and return it: drop docstrings and decorators for deprecated
    names, split parallel assignments, drop texts of exceptions, and replace messages by empty
    strings.
    """
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list):
                setattr(node, field, list(_plain_statements(statements)))
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            node.decorator_list = [
                part for part in node.decorator_list if ast.unparse(part) not in _OLD_NAMES
            ]
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            node.exc.args = [part for part in node.exc.args if not _is_text(part)]
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = "" if _PROSE.search(node.value) else node.value
    return tree


def _is_text(node: ast.expr) -> bool:
    """Return whether an expression is a text, with or without formatted values."""
    is_constant = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_constant or isinstance(node, ast.JoinedStr)


def _plain_statements(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements without docstrings and ``__all__``, which repeats names, each parallel
    assignment split into several.
    """
    for statement in statements:
        is_text = (
            isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
            and isinstance(statement.value.value, str)
        )
        is_export_list = (
            isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__"
        )
        if is_text or is_export_list:
            continue
        yield from _assignments(statement)


def _assignments(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yield the single assignments of a parallel assignment ``a, b = x, y``.

    A parallel assignment with a value that reads an earlier target, and every other statement, is
    yielded unchanged.
    """
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
    """Return (module, name) of every import, except those from the project's own packages."""
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {(alias.name, alias.asname or "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            imported |= {(module, alias.name) for alias in node.names}
    return {names for names in imported if names[0].split(".")[0] not in ("", *PACKAGES)}


def _is_same(old: Any, new: Any, scopes: _Scopes) -> bool:
    """Return whether two parts of syntax trees are equal up to admissible renamings.

    Args:
        old: node, list of nodes or value of a field, of the old tree.
        new: part at this place in the new tree.
        scopes: scopes around the two parts; their renamings grow.
    """
    if type(old) is not type(new):
        return False
    if isinstance(old, list):
        old_nodes = _without_imports(old)
        new_nodes = _without_imports(new)
        return len(old_nodes) == len(new_nodes) and all(
            _is_same(*nodes, scopes) for nodes in zip(old_nodes, new_nodes, strict=True)
        )
    if isinstance(old, str) and old != new and old.isidentifier() and new.isidentifier():
        scopes.changed_texts.add((old, new))
        return True
    if not isinstance(old, ast.AST):
        return bool(old == new)
    if not _is_same_name(old, new, scopes):
        return False
    is_scope = isinstance(old, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef)
    if is_scope:
        scopes.begin_scope(old)
    ignored = (*_IDENTIFIERS.get(type(old), ()), "type_comment", "kind")
    is_same = all(
        _is_same(getattr(old, field, None), getattr(new, field, None), scopes)
        for field in old._fields
        if field not in ignored
    )
    if is_scope:
        scopes.end_scope()
    return is_same


def _is_same_name(old: ast.AST, new: ast.AST, scopes: _Scopes) -> bool:
    """Return whether the identifiers of two nodes of one type are equal or may have
    been renamed.
    """
    for field in _IDENTIFIERS.get(type(old), ()):
        old_value = getattr(old, field)
        new_value = getattr(new, field)
        old_names = old_value if isinstance(old_value, list) else [old_value]
        new_names = new_value if isinstance(new_value, list) else [new_value]
        if len(old_names) != len(new_names):
            return False
        for old_name, new_name in zip(old_names, new_names, strict=True):
            if not scopes.admits(old, old_name, new_name):
                return False
    return True


def _without_imports(nodes: list[Any]) -> list[Any]:
    """Return the nodes of a list without its import statements."""
    return [node for node in nodes if not isinstance(node, ast.Import | ast.ImportFrom)]


def names_bound(tree: ast.AST) -> set[str]:
    """Return the parameters and variables that a definition, and the functions in it, bind."""
    bound = set()
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                bound.add(name)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                bound.add(name)
    return bound


def names_defined(source: str) -> set[str]:
    """Return the names of functions, classes, parameters, variables and attributes that a source
    text defines.
    """
    tree = ast.parse(source)
    defined = names_bound(tree)
    for node in ast.walk(tree):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.Attribute(attr=name, ctx=ast.Store())
            ):
                defined.add(name)
    return defined


@cache
def defined_by_project() -> frozenset[str]:
    """Return the names that the project's packages define in the working tree."""
    files = figures.git("ls-files", "--", *(f"{package}/*.py" for package in PACKAGES))
    defined: set[str] = set()
    for file in files.split():
        path = figures.ROOT / file
        if path.is_file():
            defined |= names_defined(path.read_text(encoding="utf-8"))
    return frozenset(defined)


def _present_folder(file: str) -> str:
    """Return the folder of a file, or the one to which its package has moved."""
    folder = file.rpartition("/")[0]
    for old, new in _MOVED_FOLDERS.items():
        if folder == old or folder.startswith(f"{old}/"):
            return new + folder.removeprefix(old)
    return folder


def changed_files(
    commit: str, paths: Sequence[str]
) -> Iterator[tuple[str, frozenset[tuple[str, str]] | None]]:
    """Yield the files below some paths that differ between a commit and HEAD.

    Args:
        commit: an older commit.
        paths: files and folders.

    Yields:
        name of the file, and pairs of old and new identifier; None in their place if the code
        differs.
    """
    # Folders of packages that moved are compared with their old places.
    old_paths = [
        old + path.removeprefix(new)
        for path in paths
        for old, new in _MOVED_FOLDERS.items()
        if path == new or path.startswith(f"{new}/")
    ]
    diff = figures.git(
        "diff", "--name-status", "--no-renames", commit, "HEAD", "--", *paths, *old_paths
    )
    files: dict[str, list[str]] = {"M": [], "D": [], "A": []}
    for line in diff.splitlines():
        status, file = line.split("\t")
        files[status[0]].append(file)
    for new_file in files["A"]:
        # A module may have been renamed: look for a deleted file of the folder with the same code.
        folder = new_file.rpartition("/")[0]
        gone = [file for file in files["D"] if _present_folder(file) == folder]
        matches = ((file, _compared(commit, file, new_file)) for file in gone)
        old_file, renamed = next((match for match in matches if match[1] is not None), ("", None))
        if old_file:
            files["D"].remove(old_file)
        yield new_file, renamed
    for file in files["D"]:
        yield file, None
    for file in files["M"]:
        yield file, _compared(commit, file, file)


def _compared(commit: str, old_file: str, new_file: str) -> frozenset[tuple[str, str]] | None:
    """Compare a file of an older commit with a file of HEAD.

    Args:
        commit: older commit.
        old_file: path of the file in the older commit.
        new_file: path of the file in HEAD.

    Returns:
        pairs of old and new identifier; None if the code differs or is no Python code.
    """
    if old_file.endswith(".pyi"):
        # A stub declares names only.
        return frozenset()
    if not (old_file.endswith(".py") and new_file.endswith(".py")):
        return None
    old = figures.git("show", f"{commit}:{old_file}")
    new = figures.git("show", f"HEAD:{new_file}")
    return renamed_names(old, new, defined_by_project())


def main() -> int:
    """Print files whose code changed since a commit, and renamed identifiers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", help="an older commit")
    parser.add_argument("paths", nargs="*", default=list(PACKAGES), help="of files and folders")
    options = parser.parse_args()
    changed = dict(changed_files(options.commit, options.paths))
    for file, renamed in changed.items():
        if renamed is None:
            print(f"{file}: changed code")
    for file, renamed in changed.items():
        for old, new in sorted(renamed or ()):
            print(f"{file}: {old} -> {new}")
    num_changed = sum(renamed is None for renamed in changed.values())
    print(f"{len(changed)} files differ, {num_changed} of them in their code")
    return int(num_changed > 0)


if __name__ == "__main__":
    sys.exit(main())
