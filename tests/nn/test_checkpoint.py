"""Damaged model folders: each is read as before, or refused in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from teal.errors import InputError
from teal.nn.checkpoint import (
    MODEL_CARD,
    MODEL_WEIGHTS,
    FlowGnnCard,
    PriceGnnCard,
    check_fits,
    load_flow_gnn,
    load_price_gnn,
    save_flow_gnn,
    save_price_gnn,
)
from teal.nn.flow_gnn import TealModel
from teal.nn.flow_gnn_config import FlowGnnConfig
from teal.nn.price_gnn import PriceGNN, PriceGnnConfig
from teal.objectives import Objective, ObjectiveName

KINDS = {"flow": load_flow_gnn, "price": load_price_gnn}
# A value of every kind that JSON has, and some that are too large.
VALUES: list[Any] = [
    None,
    True,
    "x",
    "",
    -1,
    0,
    1e400,
    10**30,
    1.5,
    [],
    [1],
    [[]],
    {},
    {"a": 1},
    "1",
    ["a", 1],
]


@pytest.fixture(params=list(KINDS))
def model(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    torch.manual_seed(0)
    folder = tmp_path / request.param
    folder.mkdir()
    if request.param == "flow":
        config = FlowGnnConfig(layers=2, width=4)
        save_flow_gnn(
            folder,
            TealModel(config),
            FlowGnnCard(config, "total_flow", 0.1, "b4", "key", "coma", 0),
        )
    else:
        price = PriceGnnConfig(hidden=4)
        save_price_gnn(folder, PriceGNN(price), PriceGnnCard(price, 4, 1, ("b4",), 0, 0, 0.0))
    return request.param, folder


def _is_refused(kind: str, folder: Path) -> bool:
    try:
        KINDS[kind](folder)
    except InputError as error:
        said = str(error)
    else:
        return False
    assert "\n" not in said
    return True


def test_every_value_of_the_card_is_checked(model: tuple[str, Path]) -> None:
    kind, folder = model
    card = json.loads((folder / MODEL_CARD).read_text())
    places = [(name,) for name in card] + [("model", name) for name in card["model"]]
    refused = 0
    for place in places:
        for value in VALUES:
            changed = json.loads(json.dumps(card))
            target = changed if len(place) == 1 else changed[place[0]]
            target[place[-1]] = value
            (folder / MODEL_CARD).write_text(json.dumps(changed))
            refused += _is_refused(kind, folder)
        changed = json.loads(json.dumps(card))
        (changed if len(place) == 1 else changed[place[0]]).pop(place[-1])
        (folder / MODEL_CARD).write_text(json.dumps(changed))
        _is_refused(kind, folder)
    assert refused > 0.7 * len(places) * len(VALUES)
    for text in (
        "[" * 100_000,
        '{"a":' * 5_000 + "1",
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    ):
        (folder / MODEL_CARD).write_text(text)
        assert _is_refused(kind, folder)
    (folder / MODEL_CARD).write_bytes(b"\xff\xfe{")
    assert _is_refused(kind, folder)


def test_damaged_weights_are_refused(model: tuple[str, Path], tmp_path: Path) -> None:
    kind, folder = model
    whole, rng = (folder / MODEL_WEIGHTS).read_bytes(), np.random.default_rng(0)
    for trial in range(120):
        damaged = bytearray(whole)
        if trial % 3 == 0:
            damaged = damaged[: int(rng.integers(0, len(whole)))]
        else:
            # Half of the damage is in the header, which says where the tensors are.
            most = 300 if trial % 3 == 1 else len(whole)
            for place in rng.integers(0, most, 3):
                damaged[place] ^= int(rng.integers(1, 256))
        (folder / MODEL_WEIGHTS).write_bytes(bytes(damaged))
        assert _is_refused(kind, folder)
    (folder / MODEL_WEIGHTS).unlink()
    assert _is_refused(kind, folder)
    (folder / MODEL_WEIGHTS).mkdir()
    assert _is_refused(kind, folder)
    shutil.rmtree(folder)
    assert _is_refused(kind, folder)


def test_a_model_serves_one_latency_penalty_alone() -> None:
    card = FlowGnnCard(
        FlowGnnConfig(layers=2, width=4), "latency_penalised_flow", 0.5, "b4", "key", "coma", 0
    )
    check_fits(card, Path(), Objective(ObjectiveName.LATENCY_PENALISED_FLOW, epsilon=0.5))
    for other in (0.4, 0.6):
        with pytest.raises(InputError, match="epsilon"):
            check_fits(card, Path(), Objective(ObjectiveName.LATENCY_PENALISED_FLOW, epsilon=other))
