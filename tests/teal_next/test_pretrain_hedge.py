"""The training of a hedge for any network: what is recorded, resumed runs, and that it learns what
it can."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from teal.errors import InputError
from teal.nn.checkpoint import load_hedge_gate
from teal.schemes.hedges import make_hedge
from teal.schemes.past import Past
from teal.solvers import pipeline
from teal_next import pretrain as hedge_samples
from teal_next.pretrain import (
    HISTORIES,
    HedgeTrainer,
    HistorySettings,
    HistorySource,
    load_recording,
    record,
)
from teal_study.learning.network_pool import NetworkPool
from teal_study.learning.settings import PretrainConfig

POOL = NetworkPool(("topozoo/Abilene",), ("topozoo/Geant2012",))
# One worker of pytest-xdist runs both tests over the histories: each would record them anew.
of_histories = pytest.mark.xdist_group("histories")


@contextmanager
def _short_histories() -> Iterator[None]:
    """Three recorded intervals after four others, and few matrices before them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hedge_samples, "INTERVALS", 3)
        patch.setattr(hedge_samples, "_WARM_UP_INTERVALS", 4)
        patch.setattr(hedge_samples, "_MAX_PAST", 14)
        yield


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose eight histories are there."""
    out = tmp_path_factory.mktemp("run")
    (out / HISTORIES).mkdir()
    with _short_histories():
        for number in range(8):
            record(HistorySource(POOL, 0, number, 2), out / HISTORIES / f"{number:05}.npz")
    return out


def _trainer(out: Path, **settings: Any) -> HedgeTrainer:
    trainer = HedgeTrainer(
        PretrainConfig(out=out, num_paths=2, **settings), HistorySettings(8), POOL
    )
    with _short_histories():
        trainer.prepare(out, lambda done, count: None)
    return trainer


@pytest.mark.system
@of_histories
def test_a_recording_is_what_the_mixture_decides(recorded: Path) -> None:
    with _short_histories():
        recording = load_recording(HistorySource(POOL, 0, 1, 2), recorded / HISTORIES / "00001.npz")
        warm_up = hedge_samples._WARM_UP_INTERVALS
    assert recording.decisions.shape[0] == len(recording.rows) == 3
    np.testing.assert_allclose(recording.weights.sum(1), 1)
    row = int(recording.rows[0])
    last = make_hedge("last")
    for known in range(row - warm_up, row + 1):  # it goes on from its splits before
        splits = last.allocate(Past(recording.problem, recording.traffic.part(0, known)))
    np.testing.assert_allclose(recording.decisions[0, 0], splits.numpy(), atol=1e-6)
    came = recording.problem.with_demand(torch.from_numpy(recording.traffic.read([row])))
    assert recording.optimum[0] == pytest.approx(
        float(pipeline.solve(came, gap=1e-4).value), rel=2e-3
    )


@pytest.mark.system
@of_histories
def test_training_lowers_the_loss_and_a_resumed_run_equals_an_uninterrupted_one(
    recorded: Path, tmp_path: Path
) -> None:
    uninterrupted = _trainer(recorded, max_steps=30)
    uninterrupted._validation_histories = (
        uninterrupted._training_histories
    )  # what it has learnt from
    assert uninterrupted.validate() == pytest.approx(1, abs=1e-5), "it begins as the mixture"
    uninterrupted.train(tmp_path / "whole", progress=False)
    assert uninterrupted.best < 1 - 1e-4
    _, card = load_hedge_gate(tmp_path / "whole")
    assert card.validation == pytest.approx(uninterrupted.best)
    assert card.held_out == POOL.held_out
    part = _trainer(recorded, max_steps=30)
    part._validation_histories = part._training_histories
    part.config = dataclasses.replace(part.config, max_steps=30)
    for _ in range(11):
        part.one_step()
    part._save(tmp_path / "part")
    resumed = _trainer(recorded, max_steps=30)
    resumed._validation_histories = resumed._training_histories
    resumed.resume(tmp_path / "part")
    resumed.train(tmp_path / "part", progress=False)
    for name, value in resumed.model.state_dict().items():
        torch.testing.assert_close(value, uninterrupted.model.state_dict()[name])
    with pytest.raises(InputError, match="config"):
        _trainer(recorded, hidden=8).resume(tmp_path / "part")
