"""Checkpoints: tensors as safetensors, everything else as JSON.  No pickle, so that a checkpoint is data.

A folder holds ``model.safetensors`` and ``model.json``; a run that can go on adds ``trainer.safetensors``
and ``trainer.json``.  A folder is written whole or not at all.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from teal.errors import InputError
from teal.nn import ModelConfig, TealModel
from teal.objectives import Objective
from teal.storage import atomic_file

FORMAT = 1
MODEL, TRAINER = "model", "trainer"


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


def save_model(folder: Path, model: TealModel, card: ModelCard) -> None:
    """Write ``model.safetensors`` and ``model.json``."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    write_pair(folder, MODEL, tensors, dataclasses.asdict(card))


def load_model(folder: Path, device: torch.device | str = "cpu") -> tuple[TealModel, ModelCard]:
    """Read a model.

    Raises:
        InputError: no checkpoint there, a damaged one, or one of another format.
    """
    tensors, text = read_pair(folder, MODEL)
    where = str(folder / f"{MODEL}.json")
    if text.get("format") != FORMAT:
        raise InputError(where, "format", str(FORMAT), text.get("format"))
    try:
        card = ModelCard(**(text | {"model": ModelConfig(**text["model"])}))
        model = TealModel(card.model)
    except (TypeError, KeyError, ValueError) as error:
        raise InputError(where, "", "the description of a model", str(error)) from None
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise InputError(str(folder / f"{MODEL}.safetensors"), "", "the weights of model.json", error) from None
    return model.to(device).eval(), card


def check_fits(card: ModelCard, folder: Path, num_paths: int, objective: Objective) -> None:
    """Raise InputError unless the model is for K paths and this objective."""
    where = str(folder / f"{MODEL}.json")
    if card.model.num_paths != num_paths:
        raise InputError(where, "K", f"a model for {num_paths} paths a demand", f"one for {card.model.num_paths}")
    if card.objective != objective.name.value:
        raise InputError(where, "objective", f"a model for {objective.name.value}", f"one for {card.objective}")


def write_pair(folder: Path, name: str, tensors: dict[str, Tensor], text: dict[str, Any]) -> None:
    """Write tensors and JSON, each all or nothing; the JSON, which readers look for, last."""
    with atomic_file(folder / f"{name}.safetensors") as temporary:
        save_file(tensors, temporary)
    with atomic_file(folder / f"{name}.json") as temporary:
        temporary.write_text(json.dumps(text, indent=2) + "\n", encoding="utf-8")


def read_pair(folder: Path, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what :func:`write_pair` wrote.

    Raises:
        InputError: a file missing or damaged.
    """
    values, text = folder / f"{name}.safetensors", folder / f"{name}.json"
    for file in (text, values):
        if not file.is_file():
            raise InputError(str(folder), file.name, "a checkpoint", "no such file")
    try:
        description = json.loads(text.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(str(text), "", "JSON", f"a damaged file: {error}") from None
    if not isinstance(description, dict):
        raise InputError(str(text), "", "a JSON object", type(description).__name__)
    try:
        return load_file(values), description
    except (SafetensorError, OSError) as error:
        raise InputError(str(values), "", "a safetensors file", f"a damaged file: {error}") from None
