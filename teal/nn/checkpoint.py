"""Checkpoints of models: weights as safetensors, metadata (the card) as JSON.

A checkpoint is a folder with ``model.safetensors`` and ``model.json``, the card.  The card contains
a hash of the weights, so that files of two different saves are detected.  Files are written
atomically.  There is no pickle: a checkpoint cannot run code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, get_origin, get_type_hints

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from teal.errors import InputError
from teal.nn.flow_gnn_config import FORMS, OTHER_FORMS, UNIVERSAL, FlowGnnConfig
from teal.nn.flow_models import FlowModel
from teal.nn.hedge_gate import HedgeGate, HedgeGateConfig
from teal.nn.price_gnn import PriceGNN, PriceGnnConfig
from teal.objectives import Objective, ObjectiveName
from teal.runtime.storage import atomic_file, file_key

# Version of the folder's format; raised when older versions of Teal cannot read it.
FORMAT = 1
# Kinds of models in the cards; a card without a kind is that of a FlowGNN.
FLOW_GNN_KIND, PRICE_GNN_KIND, HEDGE_GATE_KIND = KINDS = "flow-gnn", "price-gnn", "hedge-gate"
MODEL_CARD = "model.json"
MODEL_WEIGHTS = "model.safetensors"
# Largest dimension of a model that is read.
MAX_SIZE = 4096
# Objective and topology in the card of a FlowGNN for all objectives and networks.
ANY = "any"
# Key of the weights' hash in the card.
_HASH = "weights_sha256"


_Fields = TypeVar("_Fields")


@dataclasses.dataclass(frozen=True)
class FlowGnnCard:
    """Metadata of a FlowGNN checkpoint.

    Attributes:
        model: shapes of the weights.
        objective: name of the objective of the training run; :data:`ANY` for a model of all
            objectives.
        epsilon: latency penalty of that objective.
        topology: name of the training network; :data:`ANY` for a model of any network.
        topology_key: content key of the training network.
        learner: ``direct`` or ``coma``.
        seed: seed of the training run.
        step: number of optimiser steps of these weights.
        train_s: seconds of training of these weights.
        validation: mean share of the objective that the weights alone reach on the validation
            matrices, with flows scaled down to the capacities
            (:func:`teal.solvers.projection.share_of_value`).
        validation_gap: mean certified gap of these allocations.
        networks: number of training networks.
        held_out: names of networks excluded from training with all others of their families; for a
            model of any network.
        entries: entries of the split tables of the training run; 0 for none.
        training: for one network's model, traffic, settings and versions of the run; {} if unknown.
        kind: always ``flow-gnn``.
        format: version of the folder's format.
    """

    model: FlowGnnConfig
    objective: str
    epsilon: float
    topology: str
    topology_key: str
    learner: str
    seed: int
    step: int = 0
    train_s: float = 0.0
    validation: float = -math.inf
    validation_gap: float = math.inf
    networks: int = 1
    held_out: tuple[str, ...] = ()
    entries: int = 0
    training: dict[str, Any] = dataclasses.field(default_factory=dict)
    kind: str = FLOW_GNN_KIND
    format: int = FORMAT


@dataclasses.dataclass(frozen=True)
class PriceGnnCard:
    """Metadata of a PriceGNN checkpoint, a model for every network and objective.

    Attributes:
        model: shapes of the weights.
        num_paths: K of the training paths; the model takes any K.
        networks: number of training networks.
        held_out: names of networks excluded from training with all others of their families.
        seed: seed of the training run.
        step: number of optimiser steps of these weights.
        train_s: seconds of training of these weights.
        validation: mean share of the objective that the weights alone reach on the validation
            matrices of one network; minus infinity without validation.
        validation_gap: mean certified gap of these allocations; infinite without validation.
        topology: name of the last training network; :data:`ANY` for many at once.
        topology_key: content key of that network.
        training: for one network's model, traffic, settings and versions of the run; {} if unknown.
        kind: always ``price-gnn``.
        format: version of the folder's format.
    """

    model: PriceGnnConfig
    num_paths: int
    networks: int
    held_out: tuple[str, ...]
    seed: int
    step: int
    train_s: float
    validation: float = -math.inf
    validation_gap: float = math.inf
    topology: str = ANY
    topology_key: str = ""
    training: dict[str, Any] = dataclasses.field(default_factory=dict)
    kind: str = PRICE_GNN_KIND
    format: int = FORMAT


@dataclasses.dataclass(frozen=True)
class HedgeGateCard:
    """Metadata of a HedgeGate checkpoint, a model for every network.

    Attributes:
        model: shapes of the weights.
        histories: number of random histories of traffic, every eighth of them for validation.
        held_out: names of networks excluded from training with all others of their families.
        seed: seed of the training run.
        step: number of optimiser steps of these weights.
        train_s: seconds of training of these weights.
        validation: mean over the validation histories of the largest utilisation under the model's
            splits, over that under the uncorrected mixture of hedges.
        kind: always ``hedge-gate``.
        format: version of the folder's format.
    """

    model: HedgeGateConfig
    histories: int
    held_out: tuple[str, ...]
    seed: int
    step: int
    train_s: float
    validation: float
    kind: str = HEDGE_GATE_KIND
    format: int = FORMAT


def save_flow_gnn(folder: Path, model: nn.Module, card: FlowGnnCard) -> None:
    """Write the checkpoint of a FlowGNN, weights and card, to ``folder``."""
    _save(folder, model, card)


def save_price_gnn(folder: Path, model: PriceGNN, card: PriceGnnCard) -> None:
    """Write the checkpoint of a PriceGNN, weights and card, to ``folder``."""
    _save(folder, model, card)


def save_hedge_gate(folder: Path, model: HedgeGate, card: HedgeGateCard) -> None:
    """Write the checkpoint of a HedgeGate, weights and card, to ``folder``."""
    _save(folder, model, card)


def note_in_card(folder: Path, name: str, value: Any) -> None:
    """Add an entry to ``training`` in the card of a checkpoint.

    Args:
        folder: folder of the checkpoint.
        name: key of the entry.
        value: JSON value with finite numbers.
    """
    fields = json.loads((folder / MODEL_CARD).read_text(encoding="utf-8"))
    fields["training"] = {**fields.get("training", {}), name: value}
    _write_card(folder, fields)


def _write_card(folder: Path, fields: dict[str, Any]) -> None:
    """Write the card of a checkpoint atomically."""
    with atomic_file(folder / MODEL_CARD) as temporary:
        temporary.write_text(json.dumps(fields, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _save(folder: Path, model: nn.Module, card: FlowGnnCard | PriceGnnCard | HedgeGateCard) -> None:
    """Write weights and card of a checkpoint, with the hash of the weights in the card."""
    # Write the weights first: the card has the hash of their file.
    tensors = {
        name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()
    }
    with atomic_file(folder / MODEL_WEIGHTS) as temporary:
        save_file(tensors, temporary)
    fields = dataclasses.asdict(card) | {_HASH: file_key(folder / MODEL_WEIGHTS)}
    for name in ("validation", "validation_gap"):
        if not math.isfinite(fields.get(name, 0.0)):
            # JSON has no infinity; readers use the default.
            del fields[name]
    _write_card(folder, fields)


def load_flow_gnn(
    folder: Path, device: torch.device | str = "cpu"
) -> tuple[FlowModel, FlowGnnCard]:
    """Read the checkpoint of a FlowGNN; return the model, ready for inference, and its card.

    Args:
        folder: folder of the checkpoint.
        device: device of the weights.

    Raises:
        InputError: the checkpoint is missing, damaged, or has another format.
    """
    fields, weights_hash = _read_card(folder / MODEL_CARD, FLOW_GNN_KIND)
    with _input_errors(folder / MODEL_CARD, "not the description of a FlowGNN"):
        held_out = tuple(fields.pop("held_out", ()))
        shapes = _checked(FlowGnnConfig(**fields["model"]))
        card = _checked(FlowGnnCard(**(fields | {"model": shapes, "held_out": held_out})))
        model = new_flow_model(card.model)
    _load_weights(model, folder, weights_hash)
    return model.to(device).eval(), card


def load_price_gnn(
    folder: Path, device: torch.device | str = "cpu"
) -> tuple[PriceGNN, PriceGnnCard]:
    """Read the checkpoint of a PriceGNN; return the model, ready for inference, and its card.

    Args:
        folder: folder of the checkpoint.
        device: device of the weights.

    Raises:
        InputError: the checkpoint is missing, damaged, or has another format or kind of model.
    """
    fields, weights_hash = _read_card(folder / MODEL_CARD, PRICE_GNN_KIND)
    with _input_errors(folder / MODEL_CARD, "not the description of a PriceGNN"):
        held_out = tuple(fields["held_out"])
        shapes = _checked(PriceGnnConfig(**fields["model"]))
        card = _checked(PriceGnnCard(**(fields | {"model": shapes, "held_out": held_out})))
        model = PriceGNN(card.model)
    _load_weights(model, folder, weights_hash)
    return model.to(device).eval(), card


def load_hedge_gate(folder: Path) -> tuple[HedgeGate, HedgeGateCard]:
    """Read the checkpoint of a HedgeGate; return the model, ready for inference, and its card.

    Raises:
        InputError: the checkpoint is missing, damaged, or has another format or kind of model.
    """
    fields, weights_hash = _read_card(folder / MODEL_CARD, HEDGE_GATE_KIND)
    with _input_errors(folder / MODEL_CARD, "not the description of a HedgeGate"):
        shapes = _checked(HedgeGateConfig(**fields["model"]))
        held_out = tuple(fields["held_out"])
        card = _checked(HedgeGateCard(**(fields | {"model": shapes, "held_out": held_out})))
        model = HedgeGate(card.model)
    _load_weights(model, folder, weights_hash)
    return model.eval(), card


@contextlib.contextmanager
def _input_errors(file: Path, fault: str) -> Iterator[None]:
    """Convert every exception of the block to an InputError of one line: ``PROBLEM (reason)``.

    Args:
        file: file that is read.
        fault: what is wrong with it, as a clause.
    """
    try:
        yield
    except Exception as error:
        # On one line, and cut: libraries may quote a whole file.
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError.invalid(str(file), "", f"{fault} ({reason})") from None


def _checked(record: _Fields) -> _Fields:
    """Check the values of a card or configuration against its field types; return it.

    Dimensions of models are limited to :data:`MAX_SIZE`, so that the weights fit in memory.

    Raises:
        ValueError: a value has another type, or a dimension is out of range.
    """
    for name, field_type in get_type_hints(type(record)).items():
        value = getattr(record, name)
        base_type = get_origin(field_type) or field_type
        # An integer is also valid as a float; a truth value is no number.
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_valid = (
            is_number
            if base_type is float
            else isinstance(value, base_type) and not isinstance(value, bool)
        )
        if base_type is tuple:
            is_valid = is_valid and all(isinstance(item, str) for item in value)
        if not is_valid:
            raise ValueError(f"{name}: type {type(value).__name__} instead of {base_type.__name__}")
        if (
            isinstance(record, FlowGnnConfig | PriceGnnConfig | HedgeGateConfig)
            and isinstance(value, int)
            and not 0 < value <= MAX_SIZE
        ):
            raise ValueError(f"{name}: {value} is not between 1 and {MAX_SIZE}")
    return record


def kind_of(folder: Path) -> str:
    """Return the kind of model of a checkpoint, one of :data:`KINDS`.

    Raises:
        InputError: the checkpoint is missing or damaged.
    """
    kind = str(_read_card(folder / MODEL_CARD)[0].get("kind", FLOW_GNN_KIND))
    if kind not in KINDS:
        raise InputError(str(folder / MODEL_CARD), "kind", " or ".join(KINDS), repr(kind[:80]))
    return kind


def check_kind(folder: Path, kind: str, scheme: str) -> None:
    """Check that a checkpoint has the kind of model that a scheme needs.

    Args:
        folder: folder of the checkpoint.
        kind: kind of model, one of :data:`KINDS`.
        scheme: name of the scheme.

    Raises:
        InputError: the checkpoint has another kind, is missing, or is damaged.
    """
    stored_kind = kind_of(folder)
    if stored_kind != kind:
        raise InputError(
            scheme,
            f"model {folder}",
            f"a model of the kind {kind} (or {scheme}:model=FOLDER)",
            stored_kind,
        )


def _load_weights(model: nn.Module, folder: Path, weights_hash: str) -> None:
    """Load the weights of a checkpoint into a model, after a check of their hash.

    Args:
        model: model with the shapes of the card.
        folder: folder of the checkpoint.
        weights_hash: hash of the weights in the card.

    Raises:
        InputError: the weights are missing, damaged, of another save, or not finite.
    """
    weights_file = folder / MODEL_WEIGHTS
    tensors, _ = read_tensors(weights_file)
    if file_key(weights_file) != weights_hash:
        raise InputError.invalid(
            str(weights_file),
            "",
            f"the weights are not those of {MODEL_CARD}",
            "copy both files of one checkpoint",
        )
    with _input_errors(weights_file, f"the weights do not fit {MODEL_CARD}"):
        model.load_state_dict(tensors)
    if not all(bool(torch.isfinite(value).all()) for value in model.state_dict().values()):
        raise InputError.invalid(
            str(weights_file), "", "infinite or NaN weights; train the model again"
        )


def check_fits(card: FlowGnnCard, folder: Path, objective: Objective) -> None:
    """Check that a FlowGNN was trained for an objective.

    Args:
        card: card of the model.
        folder: folder of its checkpoint, for messages.
        objective: objective to be solved.

    Raises:
        InputError: the model was trained for another objective or latency penalty.
    """
    location = str(folder / MODEL_CARD)
    if card.objective == ANY:
        return
    if card.objective != objective.name:
        raise InputError.invalid(
            location,
            "objective",
            f"the model was trained for {card.objective}, not for {objective.name}; use a model "
            "of this objective",
        )
    if objective.name is ObjectiveName.LATENCY_PENALISED_FLOW and card.epsilon != objective.epsilon:
        raise InputError.invalid(
            location,
            "epsilon",
            f"the model was trained for {card.epsilon}, not for {objective.epsilon}; use a "
            "model of this epsilon",
        )


def check_is_universal(card: FlowGnnCard, folder: Path) -> None:
    """Check that a FlowGNN serves any network, objective and number of paths.

    Raises:
        InputError: the model has another form than universal.
    """
    if card.model.form != UNIVERSAL:
        problem = f"a run cannot start from a model of the form {card.model.form}"
        raise InputError.invalid(
            str(folder / MODEL_CARD), "form", problem, f"use a model of the form {UNIVERSAL}"
        )


def best_validation(folder: Path) -> tuple[float, float]:
    """Return the validation score and the validation gap in the card of a checkpoint.

    Without a readable checkpoint they are minus infinity and infinity.
    """
    try:
        load = load_price_gnn if kind_of(folder) == PRICE_GNN_KIND else load_flow_gnn
        card = load(folder)[1]
    except InputError:
        return -math.inf, math.inf
    return card.validation, card.validation_gap


def _read_card(file: Path, kind: str = "") -> tuple[dict[str, Any], str]:
    """Read the fields of a card, and the hash of the weights.

    Args:
        file: the card.
        kind: required kind of model; ``""`` for any.

    Raises:
        InputError: the card is missing, damaged, or has another format or kind.
    """
    if not file.is_file():
        raise InputError.invalid(
            str(file.parent), file.name, "no such file", "give the folder of a checkpoint"
        )
    # Quoted texts are cut in messages: the file may hold anything.
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise InputError.invalid(str(file), "", f"damaged JSON ({str(error)[:200]})") from None
    if not isinstance(fields, dict):
        raise InputError(str(file), "", "a JSON object", type(fields).__name__)
    if fields.get("format") != FORMAT:
        raise InputError(str(file), "format", str(FORMAT), fields.get("format"))
    if kind and fields.get("kind", FLOW_GNN_KIND) != kind:
        raise InputError(
            str(file),
            "kind",
            f"a model of the kind {kind}",
            str(fields.get("kind", FLOW_GNN_KIND))[:80],
        )
    # The hash is no field of a card's class.
    try:
        return fields, fields.pop(_HASH)
    except KeyError as error:
        raise InputError.invalid(str(file), "", f"the key {error} is missing") from None


def read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors and metadata of a safetensors file.

    Raises:
        InputError: the file is missing or damaged.
    """
    if not file.is_file():
        raise InputError.invalid(
            str(file.parent), file.name, "no such file", "give the folder of a checkpoint"
        )
    try:
        with safe_open(file, framework="pt") as stored:
            return {
                name: stored.get_tensor(name)
                for name in stored.keys()  # noqa: SIM118
            }, stored.metadata() or {}
    except (
        SafetensorError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
        KeyError,
        MemoryError,
    ) as error:
        raise InputError.invalid(
            str(file), "", f"damaged safetensors file ({error}); copy it again"
        ) from None


def new_flow_model(config: FlowGnnConfig) -> FlowModel:
    """Create a FlowGNN of the form and shapes of ``config``, with random weights."""
    # A form that a package has added.
    if config.form not in FORMS:
        model: FlowModel = OTHER_FORMS[config.form](config)
        return model
    if config.takes_any_paths:
        from teal.nn.universal_flow_gnn import UniversalFlowGnn

        return UniversalFlowGnn(config)
    # It imports torch_geometric, which takes 1.5 s.
    from teal.nn.flow_gnn import TealModel

    return TealModel(config)
