"""Checkpoints of models: tensors as safetensors, everything else as JSON.  No pickle: a checkpoint
cannot run code.

A checkpoint is a folder with ``model.safetensors`` and ``model.json``, the card.  The card contains
a hash of the former, so that files of two different saves are never taken for one checkpoint.  Each
file is written whole or not at all.
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

FORMAT = 1  # of the folder; raised when older versions of Teal could not read it
# `kind` in the cards; that of a FlowGNN had none before, so that a card without one is of a
# FlowGNN.
FLOW_GNN_KIND, PRICE_GNN_KIND, HEDGE_GATE_KIND = KINDS = "flow-gnn", "price-gnn", "hedge-gate"
MODEL_CARD = "model.json"
MODEL_WEIGHTS = "model.safetensors"
MAX_SIZE = 4096  # of any dimension of a model that is read
ANY = "any"  # objective and topology in the card of a FlowGNN that serves all of them
_HASH = "weights_sha256"  # key of the weights' hash in the card


_Fields = TypeVar("_Fields")


@dataclasses.dataclass(frozen=True)
class FlowGnnCard:
    """The card of a FlowGNN.

    Attributes:
        model: shapes.
        objective: name of the objective that it was trained for; :data:`ANY` for a model of all.
        epsilon: penalty of that objective.
        topology: name of the network that it was trained on; :data:`ANY` for a model of any
            network.
        topology_key: content key of that network.
        learner: ``direct`` or ``coma``.
        seed: seed of the training run.
        step: optimiser steps of these weights.
        train_s: seconds of training of these weights.
        validation: mean share that these weights alone carry on the validation matrices, cut to
            fit (:func:`teal.solvers.projection.share_of_value`).
        validation_gap: mean certified gap of that.
        networks: number of networks that it was trained on.
        held_out: names of networks that it was not trained on, nor on others of their families; of
            a model for any network.
        entries: entries of the split tables that it was trained for; 0 for none.
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
    """The card of a PriceGNN, a model that serves every network and objective.

    Attributes:
        model: shapes.
        num_paths: K of the paths that it was trained on; it takes any K.
        networks: number of networks that it was trained on.
        held_out: names of networks that it was not trained on, nor on others of their families.
        seed: seed of the training run.
        step: optimiser steps of these weights.
        train_s: seconds of training of these weights.
        validation, validation_gap: the same as of a FlowGnnCard, on one network; infinite where
            there was no validation.
        topology: name of the network that it was trained on last; :data:`ANY` for many at once.
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
    """The card of a HedgeGate, a model that serves every network.

    Attributes:
        model: shapes.
        histories: number of random histories that it was trained on, every eighth of them for
            validation.
        held_out: names of networks that it was not trained on, nor on others of their families.
        seed: seed of the training run.
        step: optimiser steps of these weights.
        train_s: seconds of training of these weights.
        validation: mean largest utilisation over that of the mixture, on the histories that were
            held out.
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
    """Write the checkpoint of a FlowGNN."""
    _save(folder, model, card)


def save_price_gnn(folder: Path, model: PriceGNN, card: PriceGnnCard) -> None:
    """Write the checkpoint of a PriceGNN."""
    _save(folder, model, card)


def save_hedge_gate(folder: Path, model: HedgeGate, card: HedgeGateCard) -> None:
    """Write the checkpoint of a HedgeGate."""
    _save(folder, model, card)


def note_in_card(folder: Path, name: str, value: Any) -> None:
    """Add ``name`` to what the card of a checkpoint says of its training; numbers in ``value`` are
    finite or None.
    """
    fields = json.loads((folder / MODEL_CARD).read_text(encoding="utf-8"))
    fields["training"] = {**fields.get("training", {}), name: value}
    _write_card(folder, fields)


def _write_card(folder: Path, fields: dict[str, Any]) -> None:
    with atomic_file(folder / MODEL_CARD) as temporary:
        temporary.write_text(json.dumps(fields, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _save(folder: Path, model: nn.Module, card: FlowGnnCard | PriceGnnCard | HedgeGateCard) -> None:
    tensors = {
        name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()
    }
    with atomic_file(folder / MODEL_WEIGHTS) as temporary:
        save_file(tensors, temporary)
    fields = dataclasses.asdict(card) | {_HASH: file_key(folder / MODEL_WEIGHTS)}
    for name in ("validation", "validation_gap"):
        if not math.isfinite(fields.get(name, 0.0)):
            del fields[name]  # JSON has no word for it, and readers take its default
    _write_card(folder, fields)


def load_flow_gnn(
    folder: Path, device: torch.device | str = "cpu"
) -> tuple[FlowModel, FlowGnnCard]:
    """Read the checkpoint of a FlowGNN.

    Raises:
        InputError: no checkpoint there, a damaged one, or one of another format.
    """
    fields, weights_hash = _read_card(folder / MODEL_CARD, FLOW_GNN_KIND)
    with _one_line(folder / MODEL_CARD, "the description of a model"):
        held_out = tuple(fields.pop("held_out", ()))
        shapes = _checked(FlowGnnConfig(**fields["model"]))
        card = _checked(FlowGnnCard(**(fields | {"model": shapes, "held_out": held_out})))
        model = new_flow_model(card.model)
    _load_weights(model, folder, weights_hash)
    return model.to(device).eval(), card


def load_price_gnn(
    folder: Path, device: torch.device | str = "cpu"
) -> tuple[PriceGNN, PriceGnnCard]:
    """Read the checkpoint of a PriceGNN.

    Raises:
        InputError: no checkpoint there, a damaged one, one of another format or of another kind of
            model.
    """
    fields, weights_hash = _read_card(folder / MODEL_CARD, PRICE_GNN_KIND)
    with _one_line(folder / MODEL_CARD, "the description of a PriceGNN"):
        held_out = tuple(fields["held_out"])
        config = _checked(PriceGnnConfig(**fields["model"]))
        card = _checked(PriceGnnCard(**(fields | {"model": config, "held_out": held_out})))
        model = PriceGNN(card.model)
    _load_weights(model, folder, weights_hash)
    return model.to(device).eval(), card


def load_hedge_gate(folder: Path) -> tuple[HedgeGate, HedgeGateCard]:
    """Read the checkpoint of a HedgeGate.

    Raises:
        InputError: no checkpoint there, a damaged one, one of another format or of another kind of
            model.
    """
    fields, weights_hash = _read_card(folder / MODEL_CARD, HEDGE_GATE_KIND)
    with _one_line(folder / MODEL_CARD, "the description of a hedge (teal pretrain --model hedge)"):
        config = _checked(HedgeGateConfig(**fields["model"]))
        held_out = tuple(fields["held_out"])
        card = _checked(HedgeGateCard(**(fields | {"model": config, "held_out": held_out})))
        model = HedgeGate(card.model)
    _load_weights(model, folder, weights_hash)
    return model.eval(), card


@contextlib.contextmanager
def _one_line(file: Path, expected: str) -> Iterator[None]:
    """Whatever a damaged description brings about becomes an InputError of one line."""
    try:
        yield
    except Exception as error:
        raise InputError(
            str(file), "", expected, " ".join(str(error).split())[:200] or type(error).__name__
        ) from None


def _checked(fields: _Fields) -> _Fields:
    """The dataclass itself, if its values have the types that it says, and shapes are of models
    that fit in memory.

    Raises:
        ValueError: another type, or a number out of its range.
    """
    for name, kind in get_type_hints(type(fields)).items():
        value = getattr(fields, name)
        plain = get_origin(kind) or kind
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        good = (
            is_number
            if plain is float
            else isinstance(value, plain) and not isinstance(value, bool)
        )
        if plain is tuple:
            good = good and all(isinstance(item, str) for item in value)
        if not good:
            raise ValueError(f"{name}: {type(value).__name__} in place of {plain.__name__}")
        if (
            isinstance(fields, FlowGnnConfig | PriceGnnConfig | HedgeGateConfig)
            and isinstance(value, int)
            and not 0 < value <= MAX_SIZE
        ):
            raise ValueError(f"{name}: 1 to {MAX_SIZE}, not {value}")
    return fields


def kind_of(folder: Path) -> str:
    """Which kind of model the checkpoint in ``folder`` is of: one of :data:`KINDS`.

    Raises:
        InputError: no checkpoint there, or a damaged one.
    """
    kind = str(_read_card(folder / MODEL_CARD)[0].get("kind", FLOW_GNN_KIND))
    if kind not in KINDS:
        raise InputError(str(folder / MODEL_CARD), "kind", " or ".join(KINDS), repr(kind[:80]))
    return kind


def check_kind(folder: Path, kind: str, scheme: str) -> None:
    """Raise InputError unless the checkpoint in ``folder`` is of a kind that a scheme takes."""
    stored_kind = kind_of(folder)
    if stored_kind != kind:
        raise InputError(
            scheme,
            f"model {folder}",
            f"a model of the kind {kind} (or {scheme}:model=FOLDER)",
            stored_kind,
        )


def _load_weights(model: nn.Module, folder: Path, weights_hash: str) -> None:
    """Read the weights of ``folder``, which must have the hash that the card gives, into
    ``model``.
    """
    weights = folder / MODEL_WEIGHTS
    tensors, _ = read_tensors(weights)
    if file_key(weights) != weights_hash:
        raise InputError(
            str(weights), "", f"the weights that belong to {MODEL_CARD}", "those of another save"
        )
    with _one_line(weights, f"the weights of {MODEL_CARD}"):
        model.load_state_dict(tensors)
    if not all(bool(torch.isfinite(value).all()) for value in model.state_dict().values()):
        raise InputError(str(weights), "", "finite weights", "infinite or NaN ones")


def check_fits(card: FlowGnnCard, folder: Path, objective: Objective) -> None:
    """Raise InputError unless the model of ``card`` is for this objective."""
    location = str(folder / MODEL_CARD)
    if card.objective == ANY:
        return
    if card.objective != objective.name:
        raise InputError(
            location, "objective", f"a model for {objective.name}", f"one for {card.objective}"
        )
    if objective.name is ObjectiveName.LATENCY_PENALISED_FLOW and card.epsilon != objective.epsilon:
        raise InputError(
            location, "epsilon", f"a model for {objective.epsilon}", f"one for {card.epsilon}"
        )


def check_is_universal(card: FlowGnnCard, folder: Path) -> None:
    """Raise InputError unless the model of ``card`` serves any network, objective and number of
    paths.
    """
    if card.model.form != UNIVERSAL:
        expected = "the form universal, of a model that another run may start from"
        raise InputError(str(folder / MODEL_CARD), "form", expected, card.model.form)


def best_validation(folder: Path) -> tuple[float, float]:
    """Share that the model in ``folder`` carried on the validation matrices, and its gap; minus
    infinity and infinity if there is no readable checkpoint.
    """
    try:
        load = load_price_gnn if kind_of(folder) == PRICE_GNN_KIND else load_flow_gnn
        card = load(folder)[1]
    except InputError:
        return -math.inf, math.inf
    return card.validation, card.validation_gap


def _read_card(file: Path, kind: str = "") -> tuple[dict[str, Any], str]:
    """The card's fields and the hash of its weights; of a model of a kind, where one is asked
    for.
    """
    if not file.is_file():
        raise InputError(str(file.parent), file.name, "a checkpoint", "no such file")
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise InputError(str(file), "", "JSON", f"a damaged file: {str(error)[:200]}") from None
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
    try:
        return fields, fields.pop(_HASH)
    except KeyError as error:
        raise InputError(str(file), "", "the description of a model", str(error)) from None


def read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file.

    Raises:
        InputError: no such file, or a damaged one.
    """
    if not file.is_file():
        raise InputError(str(file.parent), file.name, "a checkpoint", "no such file")
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
        raise InputError(str(file), "", "a safetensors file", f"a damaged file: {error}") from None


def new_flow_model(config: FlowGnnConfig) -> FlowModel:
    """A model of these shapes with random weights."""
    if config.form not in FORMS:
        model: FlowModel = OTHER_FORMS[config.form](config)
        return model
    if config.takes_any_paths:
        from teal.nn.universal_flow_gnn import UniversalFlowGnn

        return UniversalFlowGnn(config)
    from teal.nn.flow_gnn import TealModel  # imports torch_geometric, for a second and a half

    return TealModel(config)
