"""List the stored figures that are older than the code they measure, and make them anew.

    python benchmarks/remake.py --check [--older 0]              # exit code 1 for a missing commit
    python benchmarks/remake.py --data FOLDER [--minutes 60]     # the stale ones, shortest first
    python benchmarks/remake.py --data FOLDER --only engine.csv  # the recipe of this file

Each recipe of ``benchmarks/recipes.toml`` is a command, the files that it makes, and the sources
that they measure.  A file is stale where the code of its sources has changed since its commit;
names, docstrings and comments do not count (``benchmarks/same_code.py``).  FOLDER holds the files
that data/README.md names.  Nothing else should run on the machine; name other programs with
``--beside``. Pages are filled at the end.  A command that fails leaves its figures as they are.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import figures
import same_code

RECIPES = figures.ROOT / "benchmarks" / "recipes.toml"
_DATA = "FOLDER"  # in the place of the folder of published files, in headers


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A command of recipes.toml and the stored files that it makes.

    Attributes:
        command: command line, with ``{data}`` for the published files and ``{out}`` for its
            results.
        files: path below ``{out}`` of each stored file, by the file's name in docs/figures.
        sources: files and folders of the code that the files measure.
        minutes: time of the command on two cores.
        pictures: path below ``{out}`` of each picture, by its path below docs.
        needs: hardware that the command needs, such as ``gpu``; empty for none.
    """

    command: str
    files: dict[str, str]
    sources: list[str]
    minutes: float
    pictures: dict[str, str] = dataclasses.field(default_factory=dict)
    needs: str = ""

    @property
    def shown_command(self) -> str:
        """The command as headers and pages show it, with FOLDER for the published files."""
        words = shlex.split(self.command.format(data=_DATA, out="runs/figures"))
        return shlex.join(words)


@dataclasses.dataclass(frozen=True)
class Age:
    """The age of a stored file, in commits to the code that it measures.

    Attributes:
        name: name of the file in docs/figures.
        commit: commit in its header; empty if the file is not stored.
        num_commits: number of later commits to its sources, 0 if they did not change the code; -1
            if the file is not stored, or its commit is not in the repository.
    """

    name: str
    commit: str
    num_commits: int

    def __str__(self) -> str:
        if not self.commit:
            return f"{self.name}: not stored"
        if self.num_commits < 0:
            return f"{self.name}: commit {self.commit} is not in this repository"
        return f"{self.name}: {self.num_commits} commits to its sources since {self.commit}"


def recipes() -> list[Recipe]:
    """Return all recipes of benchmarks/recipes.toml, in their order."""
    with RECIPES.open("rb") as stream:
        loaded: dict[str, Any] = tomllib.load(stream)
    return [Recipe(**fields) for fields in loaded["recipe"]]


def is_in_repository(commit: str) -> bool:
    """Return whether the repository has a commit of this name."""
    command = ["git", "-C", str(figures.ROOT), "cat-file", "-e", f"{commit}^{{commit}}"]
    return not subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode


def age(name: str, sources: Sequence[str]) -> Age:
    """Return the age of a stored file.

    Args:
        name: name of the file in docs/figures.
        sources: files and folders of the code that it measures.
    """
    if not (figures.FOLDER / name).is_file():
        return Age(name, "", -1)
    commit = figures.read(name)[0]["commit"]
    if not is_in_repository(commit):
        return Age(name, commit, -1)
    later = figures.git("log", "--format=%h", f"{commit}..HEAD", "--", *sources).split()
    # A file is fresh if its sources differ in names, docstrings and comments only.
    if all(renamed is not None for _, renamed in same_code.changed_files(commit, sources)):
        return Age(name, commit, 0)
    return Age(name, commit, len(later))


def ages() -> list[Age]:
    """Return the age of every stored file that a recipe makes."""
    return [age(name, recipe.sources) for recipe in recipes() for name in recipe.files]


def check(older: int) -> int:
    """Print the stored files that are stale by more than ``older`` commits.

    Returns:
        exit code: 1 if a file is not stored or its commit is missing, else 0.
    """
    if figures.git("rev-parse", "--is-shallow-repository").strip() == "true":
        print("a shallow clone lacks the commits of figures: nothing is checked")
        return 0
    states = ages()
    for state in states:
        if state.num_commits < 0 or state.num_commits > older:
            print(state)
    stale = sum(not 0 <= state.num_commits <= older for state in states)
    print(f"{stale} of {len(states)} stored files are stale by more than {older} commits")
    return int(any(state.num_commits < 0 for state in states))


def remake(recipe: Recipe, data: Path, out: Path, beside: str) -> bool:
    """Run the command of a recipe, and store its files and pictures if it succeeds.

    Args:
        recipe: the recipe.
        data: folder of the published files.
        out: folder of the command's results.
        beside: other programs that run on the machine, or "nothing", for the headers.

    Returns:
        whether the command succeeded and made all files.
    """
    out.mkdir(parents=True, exist_ok=True)
    words = shlex.split(recipe.command.format(data=shlex.quote(str(data)), out=out))
    # Find the interpreter and the commands of this environment first.
    folder = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    begin = time.monotonic()
    print(shlex.join(words), flush=True)
    code = subprocess.run(words, cwd=figures.ROOT, env=environment, check=False).returncode
    print(f"{(time.monotonic() - begin) / 60:.1f} minutes, exit code {code}", flush=True)
    missing = [path for path in recipe.files.values() if not (out / path).is_file()]
    if code or missing:
        print(f"not stored: {', '.join(recipe.files)}{' (no file)' if missing else ''}")
        return False
    for name, path in recipe.files.items():
        print(figures.store(out / path, name, recipe.shown_command, beside, recipe.sources))
    for picture, path in recipe.pictures.items():
        shutil.copyfile(out / path, figures.ROOT / "docs" / picture)
    return True


def chosen_recipes(only: Sequence[str], minutes: float) -> list[Recipe]:
    """Return the recipes to run, the shortest first; print those that are skipped.

    Args:
        only: names of stored files to make, stale or not; empty for all stale files.
        minutes: limit of the time of all commands together; ``only`` has no limit.
    """
    chosen: list[Recipe] = []
    remaining_minutes = minutes
    for recipe in sorted(recipes(), key=lambda recipe: recipe.minutes):
        names = list(recipe.files)
        if only:
            is_due = bool(set(names) & set(only))
        else:
            is_due = any(age(name, recipe.sources).num_commits for name in names)
        if not is_due:
            continue
        if recipe.needs:
            print(f"skipped: {', '.join(names)}, which needs a machine with {recipe.needs}")
        elif not only and recipe.minutes > remaining_minutes:
            print(f"skipped: {', '.join(names)}, {recipe.minutes:g} minutes")
        else:
            remaining_minutes -= recipe.minutes
            chosen.append(recipe)
    return chosen


def main() -> int:
    """Check the stored figures, or make the stale ones anew and fill the pages; return the exit
    code, 1 for a failure.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="make nothing; list stale figures")
    parser.add_argument("--older", type=int, default=0, help="commits that are accepted")
    parser.add_argument("--data", help="folder of the files that data/README.md names")
    parser.add_argument("--minutes", type=float, default=60.0, help="of all commands together")
    parser.add_argument("--only", nargs="+", default=[], help="stored files, stale or not")
    parser.add_argument("--beside", default="nothing", help="what else runs on the machine")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/figures"), help="folder of the commands' files"
    )
    options = parser.parse_args()
    if options.check:
        return check(options.older)
    if not options.data or not Path(options.data).is_dir():
        parser.error("--data: expected the folder of the files that data/README.md names")
    # Make the chosen figures, then fill the pages.
    stored_names = {name for recipe in recipes() for name in recipe.files}
    unknown = sorted(set(options.only) - stored_names)
    if unknown:
        parser.error(f"--only: no recipe makes {', '.join(unknown)}")
    has_failed = False
    for recipe in chosen_recipes(options.only, options.minutes):
        out = options.out.absolute() / Path(next(iter(recipe.files))).stem
        has_failed |= not remake(recipe, Path(options.data).absolute(), out, options.beside)
    figures.fill_pages()
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
