"""Stored figures: the pages that they fill, the recipes that make them, and their age."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from teal.problem import Problem
from teal.problem.allocation import Allocation, Status
from teal.testing import random_problem

ROOT = Path(__file__).parents[1]
# Scripts, which import each other by their bare names.
sys.path.insert(0, str(ROOT / "benchmarks"))
figures: Any = importlib.import_module("figures")
remake: Any = importlib.import_module("remake")
timing: Any = importlib.import_module("timing")

FIGURES = sorted((ROOT / "docs" / "figures").glob("*.csv"))


@pytest.mark.parametrize("page", figures.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_and_numbers_of_a_page_are_those_of_the_stored_figures(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert figures.fill(text) == text, "python -m benchmarks.figures"


@pytest.mark.parametrize("file", FIGURES, ids=lambda file: file.name)
def test_a_stored_figure_says_command_machine_load_commit_and_the_code_that_it_measures(
    file: Path,
) -> None:
    header, rows = figures.read(file.name)
    assert tuple(header) == figures.KEYS
    assert all(header.values())
    assert rows
    for source in header["sources"].split():
        assert (ROOT / source).exists(), source
    if "teal bench " in header["command"]:  # whose set is frozen
        return
    script = re.search(r"benchmarks[/.](\w+)", header["command"])
    assert script, header["command"]
    assert (ROOT / "benchmarks" / f"{script[1]}.py").is_file(), script[0]


def test_each_stored_figure_has_one_recipe_whose_command_and_sources_its_header_has() -> None:
    recipes = {name: recipe for recipe in remake.recipes() for name in recipe.files}
    stored = [file.name for file in FIGURES]
    assert sorted(recipes) == sorted(stored)
    assert sum(len(recipe.files) for recipe in remake.recipes()) == len(stored)
    for name, recipe in recipes.items():
        header, _ = figures.read(name)
        assert header["command"] == recipe.shown_command, name
        assert header["sources"].split() == recipe.sources, name


def _commit(folder: Path, words: str) -> str:
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", words], check=True)
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, check=True)
    return head.stdout.decode().strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a benchmark that copies a number, and nothing stored."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "docs" / "figures").mkdir(parents=True)
    (tmp_path / "code.txt").write_text("1")
    (tmp_path / "copy_number.py").write_text(
        "import pathlib, sys\n"
        "number = pathlib.Path(sys.argv[1]).read_text()\n"
        "pathlib.Path(sys.argv[2]).write_text('a\\n' + number)\n"
    )
    (tmp_path / "recipes.toml").write_text(
        "[[recipe]]\n"
        'command = "python copy_number.py {data} {out}/raw.csv"\n'
        'files = { "a.csv" = "raw.csv" }\n'
        'sources = ["code.txt"]\n'
        "minutes = 1\n"
    )
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "FOLDER", tmp_path / "docs" / "figures")
    monkeypatch.setattr(remake, "RECIPES", tmp_path / "recipes.toml")
    _commit(tmp_path, "begin")
    return tmp_path


def test_a_stored_figure_is_stale_after_a_commit_to_its_sources(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = checkout / "code.txt"
    (recipe,) = remake.recipes()
    assert remake.check(0) == 1, "it is not stored"
    assert remake.remake(recipe, data, checkout / "out", "nothing")
    header, rows = figures.read("a.csv")
    assert rows == [{"a": "1"}]
    assert header["beside"] == "nothing"
    assert "FOLDER" in header["command"]
    assert str(checkout) not in header["command"]
    assert remake.check(0) == 0
    # A commit to something else leaves it as it is.
    _commit(checkout, "store")
    assert remake.age("a.csv", ["code.txt"]).num_commits == 0
    # Two commits to its source make it stale.
    for number in (2, 3):
        data.write_text(str(number))
        _commit(checkout, "change")
    assert remake.age("a.csv", ["code.txt"]).num_commits == 2
    capsys.readouterr()
    assert remake.check(1) == 0
    assert "a.csv: 2 commits" in capsys.readouterr().out
    assert remake.check(2) == 0
    assert "a.csv" not in capsys.readouterr().out
    # A commit that the repository lacks.
    stored = checkout / "docs" / "figures" / "a.csv"
    stored.write_text(re.sub("commit: .*", "commit: abcdef1", stored.read_text()))
    assert remake.check(0) == 1
    assert "abcdef1 is not in this repository" in capsys.readouterr().out


def test_commits_that_rename_and_comment_leave_a_figure_fresh(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = checkout / "code.py"
    source.write_text("def largest(found):\n    return max(found)\n")
    _commit(checkout, "add code")
    (recipe,) = remake.recipes()
    assert remake.remake(recipe, checkout / "code.txt", checkout / "out", "nothing")
    defined = frozenset({"maximum", "values"})
    monkeypatch.setattr(remake.same_code, "defined_by_project", lambda: defined)
    source.write_text('def maximum(values):\n    """Return it."""\n    return max(values)\n')
    _commit(checkout, "rename")
    assert remake.age("a.csv", ["code.py"]).num_commits == 0
    source.rename(checkout / "largest.py")
    _commit(checkout, "rename the module")
    sources = ["code.py", "largest.py"]
    assert remake.age("a.csv", sources).num_commits == 0
    (checkout / "largest.py").write_text("def maximum(values):\n    return min(values)\n")
    _commit(checkout, "change")
    assert remake.age("a.csv", sources).num_commits == 3


def test_a_command_that_fails_leaves_the_stored_figure(checkout: Path) -> None:
    (recipe,) = remake.recipes()
    data = checkout / "code.txt"
    assert remake.remake(recipe, data, checkout / "out", "nothing")
    before = (checkout / "docs" / "figures" / "a.csv").read_text()
    assert not remake.remake(recipe, checkout / "absent", checkout / "other", "nothing")
    assert (checkout / "docs" / "figures" / "a.csv").read_text() == before


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_the_commit_of_each_stored_figure_is_in_the_repository() -> None:
    shallow = figures.git("rev-parse", "--is-shallow-repository").strip()
    if shallow == "true":
        pytest.skip("a shallow clone lacks older commits")
    commits = {file.name: figures.read(file.name)[0]["commit"] for file in FIGURES}
    assert [name for name in commits if not remake.is_in_repository(commits[name])] == []


def test_tables_are_filled_by_conditions_and_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "FOLDER", tmp_path)
    (tmp_path / "a.csv").write_text(
        '# command: x\n# machine: 2 cores\nnetwork,measure,value\nk,"to 1%, x",0.0123\nk,share,0.98765\nu,share,1\n'
    )
    page = '<!-- table: a.csv | network=k/u | network "", share:percent1, "to 1%, x":time "to 1%" -->old<!-- end -->'
    assert figures.fill(page).splitlines()[1:-1] == [
        "|  | share | to 1% |",
        "| --- | --- | --- |",
        "| k | 98.8% | 12.3 ms |",
        "| u | 100.0% | - |",
    ]
    across = figures.fill(page.replace("table:", "table transposed:")).splitlines()
    assert across[1:3] == ["|  | k | u |", "| --- | --- | --- |"]
    value = "<!-- value: a.csv | network=k | share:g2 --><!-- end -->, <!-- header: a.csv | machine --><!-- end -->"
    assert re.sub(r"<!--.*?-->", "", figures.fill(value)) == "0.99, 2 cores"
    for wrong, message in (("share=2", "no row"), ("x=1", "no column x"), ("", "2 rows")):
        with pytest.raises(ValueError, match=message):
            figures.fill(value.replace("network=k", wrong))


def test_cells_that_are_no_numbers_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "FOLDER", tmp_path)
    (tmp_path / "a.csv").write_text("network,s\na,0.5\nb,>60\nc,not run\n")
    filled = figures.fill("<!-- table: a.csv | | s:time --><!-- end -->")
    assert filled.splitlines()[3:-1] == ["| 500 ms |", "| > 60 s |", "| not run |"]


class _Clock:
    """A clock that a solver of known durations moves."""

    def __init__(self, durations: list[float], statuses: list[Status], build_s: float) -> None:
        self.now = 0.0
        self.calls = 0
        self._durations = durations
        self._statuses = statuses
        self._build_s = build_s

    def __call__(self) -> float:
        return self.now

    def solve(self, problem: Problem) -> Allocation:
        seconds = self._durations[self.calls]
        status = self._statuses[self.calls]
        self.calls += 1
        self.now += seconds
        splits = torch.zeros(1, *problem.ops.mask.shape, dtype=torch.float64)
        prices = torch.zeros(1, problem.topology.num_links, dtype=torch.float64)
        solver_s = seconds - self._build_s
        return Allocation(splits, prices, (status,), (self._build_s,), (solver_s,))


def _time(
    durations: list[float], statuses: list[Status] | None = None, build_s: float = 0.0
) -> tuple[Any, _Clock]:
    problem = random_problem(0, batch=len(durations))
    rows = [problem.row(number) for number in range(problem.batch)]
    clock = _Clock(durations, statuses or [Status.FEASIBLE] * len(durations), build_s)
    return timing.time_series(clock.solve, rows, clock=clock), clock


def test_a_slow_first_call_is_a_warm_up() -> None:
    measured, _ = _time([1.0, 0.001, 0.003, 0.002])
    assert measured.seconds == pytest.approx(0.002)
    assert measured.solver_s == pytest.approx(0.002)
    assert measured.calls == 3
    assert measured.state == timing.State.SOLVED
    assert measured.gap == pytest.approx(1.0), "certified from the splits, which carry nothing"


def test_the_building_of_a_model_is_not_a_part_of_the_solver() -> None:
    measured, _ = _time([1.0, 0.003, 0.003, 0.003], build_s=0.001)
    assert measured.seconds == pytest.approx(0.003)
    assert measured.solver_s == pytest.approx(0.002)


def test_a_long_call_is_timed_once_and_a_stopped_one_has_no_time() -> None:
    measured, clock = _time([6.0, 7.0, 8.0, 9.0])
    assert measured.seconds == pytest.approx(7.0)
    assert clock.calls == 2
    stopped, clock = _time([6.0, 7.0], [Status.TIME_LIMIT, Status.FEASIBLE])
    assert stopped.state == timing.State.STOPPED
    assert stopped.seconds == float("inf")
    assert clock.calls == 1
    late, _ = _time([1.0, 7.0], [Status.FEASIBLE, Status.TIME_LIMIT])
    assert late.state == timing.State.STOPPED
