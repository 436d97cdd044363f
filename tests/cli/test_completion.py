"""Completion as a shell runs it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from teal.cli import main


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["teal", "so"], {"solve"}),
        (["teal", "plan", "--fa"], {"--failures"}),
        (["teal", "paths", "im"], {"improve"}),
        (["teal", "paths", "improve", "--ov"], {"--overwrite"}),
    ],
)
def test_words_are_completed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: set[str]
) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    assert main(["--completion", "bash"]) == 0
    (tmp_path / "completion.sh").write_text(capsys.readouterr().out)
    line = (
        f"source completion.sh; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _teal"
    )
    run = subprocess.run(
        [bash, "-c", f'{line}; echo "${{COMPREPLY[@]}}"'],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not run.stderr
    assert set(run.stdout.split()) >= expected
    assert all(word.startswith(words[-1]) for word in run.stdout.split())


def test_zsh_loads_the_completion_of_bash_first(capsys: pytest.CaptureFixture[str]) -> None:
    """The script calls what bashcompinit defines, after it."""
    assert main(["--completion", "bash"]) == 0
    bash = capsys.readouterr().out
    assert main(["--completion", "zsh"]) == 0
    zsh = capsys.readouterr().out
    assert "bashcompinit" not in bash
    assert 0 < zsh.index("&& bashcompinit\n") < zsh.index("\ncomplete ")
    assert [line for line in zsh.splitlines() if "compinit" not in line][1:] == bash.splitlines()[
        1:
    ]


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--completion", "fish"]) == 2
    assert "bash or zsh" in capsys.readouterr().err
