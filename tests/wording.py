"""Measures of wording, and samples to read: ``python -m tests.wording [--seed 7]``.

    python -m tests.wording              # identifiers, comments, assignments, functions: how many
    python -m tests.wording --seed 7     # and forty functions weighted by length, thirty docstrings and messages

A sample is read as an engineer from elsewhere would: each function, docstring and message is either
understood at once or not.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import subprocess
import sys
import textwrap
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.house import PACKAGES, ROOT

FOLDERS = (*PACKAGES, "baselines", "benchmarks")
# Participles and other common words that say nothing about what a variable holds.
PLAIN_WORDS = frozenset(
    [
        "found",
        "wanted",
        "worth",
        "served",
        "rest",
        "rests",
        "room",
        "way",
        "ways",
        "given",
        "kept",
        "told",
        "said",
        "sent",
        "asked",
        "own",
        "left",
        "made",
        "taken",
        "seen",
        "done",
        "held",
        "known",
        "most",
        "least",
        "place",
        "whole",
        "begun",
        "bend",
        "moves",
        "right",
        "wrong",
        "thing",
        "things",
        "one",
        "other",
        "others",
        "some",
        "many",
        "further",
    ]
)
_LONG_FUNCTION = 40  # lines of code in the body
_SHORT_PIECE = 3  # words of a piece of a string that was cut
_MESSAGES = frozenset({"InputError", "invalid", "SolverError", "warning", "info", "error", "warn"})


def sources() -> dict[Path, str]:
    """Text of each Python file of the packages."""
    listed = subprocess.run(
        ["git", "ls-files", "--", *(f"{folder}/*.py" for folder in FOLDERS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    files = [ROOT / file for file in listed.split()]
    return {file: file.read_text(encoding="utf-8") for file in files if file.is_file()}


def names(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Every name that a module binds, and whether it is in a public signature."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                is_public = not node.name.startswith("_")
                yield node.name, is_public
                arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                for argument in arguments:
                    yield argument.arg, is_public
            case ast.ClassDef(name=name):
                yield name.lower(), not name.startswith("_")
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, False


def code_lines(text: str) -> set[int]:
    """Numbers of the lines that hold code: neither blank nor a comment alone."""
    layout = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in layout:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef, code: set[int]) -> int:
    """Lines of code in the body of a function, without its docstring.

    Args:
        function: the function.
        code: :func:`code_lines` of its file.
    """
    statements = function.body
    first = statements[0]
    is_docstring = (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    )
    if is_docstring:
        statements = statements[1:]
    if not statements:
        return 0
    end = function.end_lineno
    assert end is not None
    return sum(statements[0].lineno <= line <= end for line in code)


def functions(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions and methods of a module."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def cut_strings(text: str) -> int:
    """Strings of several pieces of which one, other than the last, has few words."""
    count = 0
    pieces: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.STRING:
            pieces.append(token.string)
        elif token.type not in (tokenize.NL, tokenize.COMMENT):
            is_cut = len(pieces) > 1
            count += is_cut and min(len(piece.split()) for piece in pieces[:-1]) <= _SHORT_PIECE
            pieces = []
    return count


def measures(texts: dict[Path, str]) -> dict[str, float]:
    """The measures by name."""
    counts: Counter[str] = Counter()
    lines = 0
    for text in texts.values():
        tree = ast.parse(text)
        lines += text.count("\n")
        for name, is_public in names(tree):
            if name.strip("_") in PLAIN_WORDS:
                counts["names of one plain word"] += 1
                counts["names of one plain word in public signatures"] += is_public
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
                counts["parallel"] += isinstance(node.targets[0], ast.Tuple)
        counts["comments behind closing brackets"] += len(
            re.findall(r"^[ \t]*[)\]}]+,?[ \t]+#", text, flags=re.M)
        )
        counts["full"] += len(re.findall(r"^\s*#", text, flags=re.M))
        counts["strings cut in pieces"] += cut_strings(text)
        code = code_lines(text)
        long = [each for each in functions(tree) if body_lines(each, code) > _LONG_FUNCTION]
        counts["functions over 40 lines of code"] += len(long)
    comments = counts.pop("full")
    parallel = counts.pop("parallel")
    return {
        **counts,
        "full-line comments in a thousand lines": 1000 * comments / lines,
        "parallel assignments in a thousand lines": 1000 * parallel / lines,
    }


def messages(tree: ast.Module) -> Iterator[ast.Call]:
    """Calls that make a message for people."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in _MESSAGES:
                yield node


def sample(texts: dict[Path, str], seed: int) -> Iterator[str]:
    """Forty functions weighted by length, and ten docstrings, messages and commit subjects each."""
    rng = random.Random(seed)
    trees = {file: ast.parse(text) for file, text in texts.items()}
    all_functions = [(file, each) for file, tree in trees.items() for each in functions(tree)]
    code = {file: code_lines(text) for file, text in texts.items()}
    weights = [body_lines(each, code[file]) for file, each in all_functions]
    for file, function in rng.choices(all_functions, weights, k=40):
        source = ast.get_source_segment(texts[file], function) or ""
        yield f"{file.relative_to(ROOT)}:{function.lineno}\n{textwrap.indent(source, '    ')}"
    documented = [
        (file, text)
        for file, tree in trees.items()
        for node in (tree, *functions(tree))
        if (text := ast.get_docstring(node))
    ]
    for file, text in rng.sample(documented, 10):
        yield f"{file.relative_to(ROOT)}\n{textwrap.indent(text, '    ')}"
    calls = [(file, call) for file, tree in trees.items() for call in messages(tree)]
    for file, call in rng.sample(calls, 10):
        source = ast.get_source_segment(texts[file], call) or ""
        yield f"{file.relative_to(ROOT)}:{call.lineno}\n{textwrap.indent(source, '    ')}"
    log = subprocess.run(
        ["git", "log", "-100", "--no-merges", "--format=%s"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    yield from rng.sample(log.splitlines(), min(10, len(log.splitlines())))


def main() -> None:
    """Print the measures, and a sample if a seed is given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="of the sample to read; none without it")
    options = parser.parse_args()
    texts = sources()
    if options.seed is not None:
        for part in sample(texts, options.seed):
            sys.stdout.write(f"{part}\n\n")
    for name, value in measures(texts).items():
        sys.stdout.write(f"{name:<50}{value:>10.1f}\n")


if __name__ == "__main__":
    main()
