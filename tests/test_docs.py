"""The documentation against the program: its options exist, its example runs, and the site builds
without a warning."""

from __future__ import annotations

import ast
import contextlib
import csv
import importlib
import importlib.util
import io
import os
import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from teal.cli import main
from teal.cli.commands import COMMANDS
from teal.formats.rows import column_names
from tests.house import PACKAGES

ROOT = Path(__file__).parents[1]
figures: Any = importlib.import_module(
    "benchmarks.figures"
)  # no package, since its files are scripts
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@cache
def _help(command: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main([*command.split(), "--help"]) == 0
    return printed.getvalue()


def _commands(text: str) -> list[str]:
    """The ``teal ...`` lines of the code blocks; lines that end in a backslash are joined with the
    next."""
    blocks = re.findall(r"^```(?:bash|text)?\n(.*?)^```", text, flags=re.M | re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip().startswith("teal ")]


def _check_options(where: str, command: str) -> None:
    """Assert that a command knows each option of a line that calls it."""
    words = command.split()
    name = " ".join(words[1:3]) if words[1] in ("paths", "traffic", "topology") else words[1]
    if name.startswith("-"):
        return
    for option in re.findall(r"(?<=\s)--[a-z-]+", command):
        if option != "--help":
            assert re.search(rf"{option}\b", _help(name)), (
                f"{where}: {command}: there is no {option}"
            )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_that_a_page_uses_exists(page: Path) -> None:
    for line in _commands(page.read_text(encoding="utf-8")):
        _check_options(page.name, line.partition("#")[0])


ANSWERING = [ROOT / "docs" / name for name in ("which.md", "what-now.md")]


@pytest.mark.parametrize("page", ANSWERING, ids=lambda page: page.name)
def test_commands_and_sections_that_answers_name_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for code in re.findall(r"`(teal [^`]+)`", text):
        _check_options(page.name, code)
    for target, anchor in re.findall(r"\]\(([\w/-]+\.md)(?:#([\w-]+))?\)", text):
        headings = re.findall(
            r"^#+ (.*)$", (ROOT / "docs" / target).read_text(encoding="utf-8"), flags=re.M
        )
        slugs = {
            re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")
            for heading in headings
        }
        assert not anchor or anchor in slugs, f"{target}#{anchor}"


@pytest.mark.parametrize(
    ("question", "page", "answer"),
    [
        ("my LP takes a minute, what do I run", "which.md", "`teal solve --gap 0.001 --prove`"),
        ("is it faster than an LP on my network", "which.md", "`teal evaluate --race`"),
        (
            "which links fill in six months",
            "which.md",
            "`teal simulate --growth-per-year 0.3 --horizon 6m`",
        ),
        ("I have SNMP counters and no matrix", "which.md", "`teal estimate`"),
        ("how do I add a scheme", "which.md", "(schemes.md)"),
        ("I have one hour and the network's files", "which.md", "`teal survey`"),
        (
            "a link failed, what does the service do",
            "what-now.md",
            "`PATCH /v1/networks/{name}/links`",
        ),
        ("the deadline passed", "what-now.md", "it: the gap that is printed is certified"),
        ("the service says 503", "what-now.md", "`Retry-After`"),
        ("it does not fit into memory", "what-now.md", "`--shards`"),
    ],
)
def test_the_questions_of_a_stranger_have_an_answer(question: str, page: str, answer: str) -> None:
    assert answer in (ROOT / "docs" / page).read_text(encoding="utf-8"), question


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_are_included_by_lines_that_the_site_understands(page: Path) -> None:
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("--8"):
            found = re.fullmatch(r'--8<-- "([\w./]+)(:\w+)?"', line)
            assert found, f"{page.name}: {line}"
            assert (ROOT / found[1]).is_file(), line


def test_the_page_of_commands_has_each_command_once() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    shown = re.findall(r"<!-- help: ([a-z -]+) -->", page)
    assert sorted(shown) == sorted(COMMANDS)


def _prose(text: str) -> str:
    return re.sub(
        r"<!--.*?-->", "", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), flags=re.S
    )


# of the pages in the menu, with tables and code, without help texts and the reference of columns
MOST_WORDS = 39_000


def test_the_pages_of_the_menu_are_not_too_many_words() -> None:
    menu = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.M)
    outside = [ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "data/README.md")]
    texts = [
        page.read_text(encoding="utf-8")
        for page in [*(ROOT / "docs" / name for name in menu), *outside]
    ]
    words = [word for text in texts for word in re.sub(r"<!--.*?-->", "", text, flags=re.S).split()]
    assert sum(bool(re.search(r"\w", word)) for word in words) <= MOST_WORDS


TEXTS = [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_no_sentence_opens_with_a_pronoun_in_place_of_its_subject(page: Path) -> None:
    verb = r"(?:is|are|was|were|has|have|does|do|can|may|must|will|would|[a-z]+s)\b"
    opening = rf"(?:[.!?:] |\n\n)((?:It|They|This|These|Those|That|What) {verb}[^.]*)"
    assert not re.findall(opening, _prose(page.read_text()))


def test_every_column_of_every_file_has_a_sentence_and_every_file_its_name() -> None:
    columns = runpy.run_path(str(ROOT / "docs" / "site" / "columns.py"))
    sources = "".join(
        file.read_text() for package in PACKAGES for file in (ROOT / package).rglob("*.py")
    )
    for command, file, kind in columns["TABLES"]:
        names, texts = column_names(kind), columns["sentences"](kind)
        assert [name for name in names if not texts.get(name)] == [], f"{file} of teal {command}"
        assert len(set(names)) == len(names)
        assert file == "OUT.csv" or f'"{file}"' in sources, f"teal {command} writes no {file}"
        assert command.split(" --")[0] in COMMANDS
    text = columns["reference"]()
    assert "| `gap_known` | gap by the best bound" in text
    assert ":class:" not in text


@pytest.mark.slow
def test_the_example_scheme_of_the_documentation_is_in_table_and_report(tmp_path: Path) -> None:
    example = ROOT / "docs" / "examples" / "own_scheme.py"
    # The command that docs/schemes.md shows, with the example file that it shows.
    (command,) = {
        line
        for line in (ROOT / "docs" / "schemes.md").read_text().replace("\\\n", "").splitlines()
        if "--scheme even" in line
    }
    words = command.split()[2:]
    words[words.index("--out") + 1] = str(tmp_path / "mine")
    run = subprocess.run(
        [sys.executable, str(example), *words], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    with (tmp_path / "mine" / "results.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    even = [row for row in rows if row["scheme"] == "even"]
    assert {row["protocol"] for row in even} == {"offline", "failures"}
    assert all(row["status"] == "feasible" for row in even)
    page = (tmp_path / "mine" / "report.html").read_text(encoding="utf-8")
    assert '<th scope="row">even</th>' in page
    code = example.read_text().split('"""')
    assert len([line for line in "".join(code[::2]).splitlines() if line.strip()]) <= 16, (
        "at most 16 lines of code, imports included"
    )


@pytest.mark.system
def test_the_documentation_site_builds_without_a_warning(tmp_path: Path) -> None:
    for package in ("mkdocs", "material", "latex2mathml"):
        if importlib.util.find_spec(package) is None:
            pytest.skip("needs mkdocs: pip install '.[docs]'")
    site = Path(os.environ.get("TEAL_SITE") or tmp_path / "site")
    if not site.is_dir():  # `make docs` has built it in CI, where it fails for a warning
        build = [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--quiet",
            "--site-dir",
            str(site),
        ]
        run = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr
    pages = {
        page.relative_to(site).parent.as_posix(): page.read_text(encoding="utf-8")
        for page in site.rglob("index.html")
    }
    assert {
        "concepts",
        "commands",
        "evaluation",
        "schemes",
        "formats",
        "results",
        "architecture",
    } <= set(pages)
    assert pages["concepts"].count("<math") > 20
    for name, text in pages.items():
        assert "arithmatex" not in text, f"{name}: a formula was not converted to MathML"
        assert "&lt;!-- help" not in text
        assert not re.search(r'(?:src|href)="https?://(?!squidfunk)', text.partition("<main")[0]), (
            f"{name} loads a file from another host"
        )
    assert "--failures" in pages["commands"]
    assert "price-gnn" in pages["schemes"]
    assert "register_scheme" in pages["schemes"]
    assert "SNDlib" in pages["formats"]


def test_every_public_name_is_in_the_reference() -> None:
    reference = (ROOT / "docs" / "api.md").read_text()
    assert "::: teal_serve.client" in reference
    for package in set(PACKAGES) - {"teal_serve"}:
        stub = ast.parse((ROOT / package / "__init__.pyi").read_text())
        names = [
            alias.name
            for node in stub.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        ]
        is_there = {
            name: re.search(rf"^::: {package}\.(\S*\.)?{name}$", reference, flags=re.M)
            for name in names
        }
        assert [
            name for name, found in is_there.items() if not found and not name.endswith("Error")
        ] == []
