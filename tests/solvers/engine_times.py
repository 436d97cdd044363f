"""Predicted times of the engines for tests: the engine that a test is about is the faster one."""

from __future__ import annotations

import pytest

from teal.solvers import cost_model

_SHORT_S = 1e-6
_LONG_S = 1e9


def prefer(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    """Let the cost model predict that an engine, "interior" or "pdhg", is by far the fastest."""

    def seconds(name: str, *_: object, **__: object) -> float:
        return _SHORT_S if name == engine else _LONG_S

    monkeypatch.setattr(cost_model, "seconds", seconds)
