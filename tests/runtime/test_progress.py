"""Progress in a log: lines now and then, none for what ends soon."""

from __future__ import annotations

import pytest

from teal.runtime import progress


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_log_gets_a_line_every_half_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six steps of 10 s."""
    clock = _Clock()
    monkeypatch.setattr("time.monotonic", clock)
    monkeypatch.setattr("tqdm.std.tqdm._time", staticmethod(clock), raising=False)
    with progress.progress_bar(total=6, desc="training") as bar:
        for _ in range(6):
            clock.now += 10
            bar.update()
            bar.refresh()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("|")[-1].split()[0] for line in lines] == ["3/6", "6/6", "6/6"]
    assert all(line.startswith("training") for line in lines)


def test_a_log_gets_nothing_of_work_that_ends_soon(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in progress.progress_bar(range(3), desc="quick"):
        pass
    assert capsys.readouterr().err == ""
