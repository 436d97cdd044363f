"""Connections to Ray: what Teal opened it closes, and what its user opened it leaves alone."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from teal.cluster.cluster import connected


class _FakeRay(ModuleType):
    """In place of the module ray: whether it is connected."""

    def __init__(self, is_open: bool) -> None:
        super().__init__("ray")
        self.is_open = is_open
        self.started = 0

    def is_initialized(self) -> bool:
        return self.is_open

    def init(self, **_: object) -> None:
        assert not self.is_open
        self.is_open, self.started = True, self.started + 1

    def shutdown(self) -> None:
        self.is_open = False


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("was_open", [False, True])
def test_a_session_of_the_user_stays_open_and_one_of_teal_is_closed(
    was_open: bool, fails: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ray = _FakeRay(was_open)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(
        "teal.cluster.cluster.guard", lambda: None
    )  # which sets variables of the environment
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    try:
        with connected() as found:
            assert found is ray
            assert ray.is_open
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert fails
    assert ray.is_open == was_open
    assert ray.started == (not was_open)
