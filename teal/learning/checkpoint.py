"""Checkpoints: tensors as safetensors, everything else as JSON.  No pickle, so that a checkpoint is data.

A model is ``model.safetensors`` and ``model.json``, which holds a hash of the former, so that files of
two saves are never taken for one.  The state of a run that can go on is ``trainer.safetensors`` alone,
its JSON in the file's metadata.  Every file is written whole or not at all.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from teal.errors import InputError
from teal.nn import ModelConfig, PriceGNN, PriceGnnConfig, TealModel
from teal.objectives import Objective, ObjectiveName
from teal.storage import atomic_file, file_key

FORMAT = 1
PRICE_KIND = "price-gnn"
MODEL_CARD, MODEL_WEIGHTS, RUN = "model.json", "model.safetensors", "trainer.safetensors"
_HASH, _TEXT = "weights_sha256", "teal"


@dataclasses.dataclass(frozen=True)
class ModelCard:
    """What goes with the weights.

    Attributes:
        model: shapes.
        objective, epsilon: what it was trained for.
        topology: name of the network it was trained on; topology_key: its content.
        learner: ``direct`` or ``coma``.
        seed: of the run.
        step: optimiser steps behind these weights.
        train_s: seconds behind these weights.
        validation: mean validation score of these weights (share of the demand's value, or minus theta).
        format: of the folder.
    """

    model: ModelConfig
    objective: str
    epsilon: float
    topology: str
    topology_key: str
    learner: str
    seed: int
    step: int = 0
    train_s: float = 0.0
    validation: float = float("-inf")
    format: int = FORMAT


@dataclasses.dataclass(frozen=True)
class PriceCard:
    """What goes with the weights of a PriceGNN, which knows no network and all objectives.

    Attributes:
        model: shapes.
        num_paths: K of the paths it learnt on; it takes any.
        networks: how many it learnt on.
        held_out: names of networks that it never saw, nor others of their families.
        seed, step, train_s: of the run: seed, optimiser steps, seconds.
        kind, format: of the folder.
    """

    model: PriceGnnConfig
    num_paths: int
    networks: int
    held_out: tuple[str, ...]
    seed: int
    step: int
    train_s: float
    kind: str = PRICE_KIND
    format: int = FORMAT


def save_model(folder: Path, model: TealModel, card: ModelCard) -> None:
    """Write ``model.safetensors`` and ``model.json``."""
    _write(folder, model, card)


def save_price_model(folder: Path, model: PriceGNN, card: PriceCard) -> None:
    """The same of a PriceGNN."""
    _write(folder, model, card)


def _write(folder: Path, model: nn.Module, card: ModelCard | PriceCard) -> None:
    tensors = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    with atomic_file(folder / MODEL_WEIGHTS) as temporary:
        save_file(tensors, temporary)
    text = dataclasses.asdict(card) | {_HASH: file_key(folder / MODEL_WEIGHTS)}
    with atomic_file(folder / MODEL_CARD) as temporary:
        temporary.write_text(json.dumps(text, indent=2) + "\n", encoding="utf-8")


def load_model(folder: Path, device: torch.device | str = "cpu") -> tuple[TealModel, ModelCard]:
    """Read a model.

    Raises:
        InputError: no checkpoint there, a damaged one, or one of another format.
    """
    text, expected = _read_card(folder / MODEL_CARD)
    try:
        card = ModelCard(**(text | {"model": ModelConfig(**text["model"])}))
    except (TypeError, KeyError, InputError) as error:
        raise InputError(str(folder / MODEL_CARD), "", "the description of a model", str(error)) from None
    model = TealModel(card.model)
    _fill(model, folder, expected)
    return model.to(device).eval(), card


def load_price_model(folder: Path, device: torch.device | str = "cpu") -> tuple[PriceGNN, PriceCard]:
    """Read a PriceGNN.

    Raises:
        InputError: no checkpoint there, a damaged one, one of another format or of another kind of network.
    """
    text, expected = _read_card(folder / MODEL_CARD)
    try:
        card = PriceCard(**(text | {"model": PriceGnnConfig(**text["model"]), "held_out": tuple(text["held_out"])}))
    except (TypeError, KeyError) as error:
        raise InputError(str(folder / MODEL_CARD), "", "the description of a PriceGNN", str(error)) from None
    model = PriceGNN(card.model)
    _fill(model, folder, expected)
    return model.to(device).eval(), card


def is_price_model(folder: Path) -> bool:
    """Whether the checkpoint in ``folder`` is of a PriceGNN.

    Raises:
        InputError: no checkpoint there, or a damaged one.
    """
    return _read_card(folder / MODEL_CARD)[0].get("kind") == PRICE_KIND


def _fill(model: nn.Module, folder: Path, expected: str) -> None:
    weights = folder / MODEL_WEIGHTS
    tensors, _ = _read_tensors(weights)
    if file_key(weights) != expected:
        raise InputError(str(weights), "", f"the weights that {MODEL_CARD} belongs to", "others")
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise InputError(str(weights), "", f"the weights of {MODEL_CARD}", error) from None
    if not all(bool(torch.isfinite(value).all()) for value in model.state_dict().values()):
        raise InputError(str(weights), "", "finite weights", "infinite or NaN ones")


def check_fits(card: ModelCard, folder: Path, num_paths: int, objective: Objective) -> None:
    """Raise InputError unless the model is for K paths and this objective."""
    where = str(folder / MODEL_CARD)
    if card.model.num_paths != num_paths:
        raise InputError(where, "K", f"a model for {num_paths} paths a demand", f"one for {card.model.num_paths}")
    if card.objective != objective.name.value:
        raise InputError(where, "objective", f"a model for {objective.name.value}", f"one for {card.objective}")
    if objective.name is ObjectiveName.LATENCY_PENALISED_FLOW and card.epsilon != objective.epsilon:
        raise InputError(where, "epsilon", f"a model for {objective.epsilon}", f"one for {card.epsilon}")


def best_validation(folder: Path) -> float:
    """Validation score of the model in ``folder``; minus infinity if there is none that can be read."""
    try:
        return load_model(folder)[1].validation
    except InputError:
        return -math.inf


def save_run(folder: Path, tensors: dict[str, Tensor], text: dict[str, Any]) -> None:
    """Write the state of a run, in one file."""
    with atomic_file(folder / RUN) as temporary:
        save_file(tensors, temporary, metadata={_TEXT: json.dumps(text)})


def load_run(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the state of a run.

    Raises:
        InputError: there is none, or a damaged one.
    """
    tensors, metadata = _read_tensors(folder / RUN)
    try:
        text = json.loads(metadata[_TEXT])
    except (KeyError, json.JSONDecodeError) as error:
        raise InputError(str(folder / RUN), "", "the state of a run", error) from None
    return tensors, text


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Its state by names that :func:`load_optimiser` reads."""
    state = optimiser.state_dict()["state"]
    return {f"adam.{number}.{slot}": value for number, slots in state.items() for slot, value in slots.items()}


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Take up the state that is among ``tensors``."""
    slots: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("adam."):
            _, number, slot = name.split(".")
            slots.setdefault(int(number), {})[slot] = value
    optimiser.load_state_dict({"state": slots, "param_groups": optimiser.state_dict()["param_groups"]})


def require_same(folder: Path, found: object, expected: object) -> None:
    """Raise InputError unless a run to resume has the shapes that are asked for."""
    if found != expected:
        raise InputError(str(folder / RUN), "config", f"the state of a run with {expected}", found)


def _read_card(file: Path) -> tuple[dict[str, Any], str]:
    """The card's fields and the hash of its weights."""
    if not file.is_file():
        raise InputError(str(file.parent), file.name, "a checkpoint", "no such file")
    try:
        text = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(str(file), "", "JSON", f"a damaged file: {error}") from None
    if not isinstance(text, dict):
        raise InputError(str(file), "", "a JSON object", type(text).__name__)
    if text.get("format") != FORMAT:
        raise InputError(str(file), "format", str(FORMAT), text.get("format"))
    try:
        return text, text.pop(_HASH)
    except KeyError as error:
        raise InputError(str(file), "", "the description of a model", str(error)) from None


def _read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file."""
    if not file.is_file():
        raise InputError(str(file.parent), file.name, "a checkpoint", "no such file")
    try:
        with safe_open(file, framework="pt") as stored:
            return {name: stored.get_tensor(name) for name in stored.keys()}, stored.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(str(file), "", "a safetensors file", f"a damaged file: {error}") from None
