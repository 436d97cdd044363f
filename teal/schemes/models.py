"""Models by name or folder, for commands that start PDHG from a model or allocate by one.

The card of a checkpoint names its kind (FlowGNN or PriceGNN).  A model gives PDHG a start
(:meth:`start`), and is a scheme (:meth:`solve`).  Entry point: :func:`load_model`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from teal.errors import InputError
from teal.nn.checkpoint import (
    FLOW_GNN_KIND,
    PRICE_GNN_KIND,
    check_fits,
    kind_of,
    load_flow_gnn,
    load_price_gnn,
)
from teal.objectives import Objective
from teal.problem import Problem
from teal.runtime.storage import model_folder
from teal.schemes.flow_gnn import FlowGnnScheme
from teal.schemes.price_gnn import PriceGnnScheme, saves_time
from teal.solvers import pdhg, pipeline
from teal.spec import parse_spec

# A model that can start PDHG, and that allocates as a scheme.
Model = FlowGnnScheme | PriceGnnScheme
_MODEL_KINDS = {"teal": FLOW_GNN_KIND, "price-gnn": PRICE_GNN_KIND}  # kind of model, by scheme


def load_model(name: Path | str, objective: Objective | str | None = None) -> Model:
    """Load a FlowGNN or PriceGNN that can start PDHG.

    Args:
        name: folder of a checkpoint, or the name of a model that comes with Teal.
        objective: objective that the model must support; None for no check.

    Raises:
        InputError: no checkpoint there, a damaged one, a model of another kind, or one for another
            objective.

    Example:
        >>> model = teal.load_model("runs/abilene")
        >>> teal.solve(problem, model=model)
    """
    folder = model_folder(Path(name))
    kind = kind_of(folder)
    if kind == PRICE_GNN_KIND:
        return PriceGnnScheme(load_price_gnn(folder)[0])
    if kind == FLOW_GNN_KIND:
        model, card = load_flow_gnn(folder)
        if objective is not None:
            check_fits(card, folder, Objective.of(objective))
        return FlowGnnScheme(model, None, card, folder)
    raise InputError(str(folder), "model", f"{FLOW_GNN_KIND} or {PRICE_GNN_KIND}", kind)


def named_model(name: str, objective: Objective | str | None = None) -> Model | None:
    """Return the model that the value of a setting names; None for ``auto`` and ``none``.

    Args:
        name: folder of a checkpoint, name of a model that comes with Teal, ``auto`` or ``none``.
        objective: objective that the model must support; None for no check.

    Raises:
        InputError: no usable checkpoint, or one for another objective.
    """
    return None if name in ("auto", "none") else load_model(name, objective)


def model_of_each(
    schemes: Sequence[str], model: Path | None, notify: Callable[[str], None] = lambda _: None
) -> dict[str, Path | None]:
    """Return the model of each scheme, where one model is given for several schemes.

    Schemes with this kind of model get it, and so do schemes without a model of Teal's kinds.  The
    others get None, and ``notify`` says so; they then use the model that comes with Teal.  If no
    scheme has this kind of model, each gets the model and rejects it.

    Args:
        schemes: specifications of the schemes.
        model: folder of a checkpoint, or the name of a model that comes with Teal; None for none.
        notify: receives a message for each scheme that does not use the model.

    Raises:
        InputError: no checkpoint there, or a damaged one.
    """
    if model is None:
        return dict.fromkeys(schemes)
    # Kind of model of each scheme, "" for schemes without a built-in model.
    scheme_kinds = {text: _MODEL_KINDS.get(parse_spec(text).name, "") for text in schemes}
    stored_kind = kind_of(model_folder(model))
    if stored_kind not in scheme_kinds.values():
        return dict.fromkeys(schemes, model)
    for text, kind in scheme_kinds.items():
        if kind not in ("", stored_kind) and "model=" not in text:
            notify(f"{text}: uses the model that comes with Teal, since {model} is a {stored_kind}")
    return {
        text: model if kind in ("", stored_kind) else None for text, kind in scheme_kinds.items()
    }


def serves(model: object, objective: Objective) -> bool:
    """Return whether a model supports an objective; a PriceGNN supports all objectives."""
    return not isinstance(model, FlowGnnScheme) or model.serves(objective)


def helps(model: object, problem: Problem) -> bool:
    """Return whether PDHG should start from a model that a user named.

    It should if the program can start from a model, the model supports the objective, and a
    PriceGNN can save time: on large networks, and where PDHG itself predicts whether it does.

    Args:
        model: FlowGNN, PriceGNN or another starter.
        problem: B matrices.
    """
    if not pipeline.takes_starter(problem):
        return False
    is_useful_at_any_size = isinstance(model, FlowGnnScheme) or pdhg.may_start_from_model(
        problem, "auto"
    )
    return serves(model, problem.objective) and (is_useful_at_any_size or saves_time(problem.paths))
