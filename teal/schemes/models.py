"""Models by name: the folder of a checkpoint says which kind of model it is, and commands take
every kind.

A model is what PDHG starts from (:meth:`start`), and a scheme (:meth:`solve`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from teal.errors import InputError
from teal.network import PathSet
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
from teal.schemes.price_gnn import DEFAULT_CHECKPOINT, PriceGnnScheme, saves_time
from teal.solvers import pdhg
from teal.spec import parse_spec

Model = FlowGnnScheme | PriceGnnScheme
_TAKES = {"teal": FLOW_GNN_KIND, "price-gnn": PRICE_GNN_KIND}  # kinds of model, by scheme


def load_model(name: Path | str, objective: Objective | str | None = None) -> Model:
    """A model as PDHG starts from it: a FlowGNN or a PriceGNN.

    Args:
        name: folder of a checkpoint, or the name of one that comes with Teal.
        objective: objective that it is wanted for; None for any.

    Raises:
        InputError: no checkpoint there, a damaged one, a model of another kind, or one for another
            objective.

    Example:
        >>> model = teal.load_model("runs/abilene")
        >>> teal.solve(problem, starter=model)
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
    raise InputError(
        str(folder), "model", f"{FLOW_GNN_KIND} or {PRICE_GNN_KIND}, which allocate", kind
    )


def named_model(name: str, objective: Objective | str | None = None) -> Model | None:
    """The model that a setting names; None for ``auto`` and ``none``.  Arguments and faults of
    :func:`load_model`.
    """
    return None if name in ("auto", "none") else load_model(name, objective)


def starter_for(name: str, named: Model | None, paths: PathSet) -> Model | None:
    """The model that PDHG starts from: the named one, or for ``auto`` the one that comes with Teal
    where it saves time.

    Args:
        name: name of the setting.
        named: result of :func:`named_model`, which is asked before anything is computed.
        paths: paths of the problem.
    """
    return load_model(DEFAULT_CHECKPOINT) if name == "auto" and saves_time(paths) else named


def model_of_each(
    schemes: Sequence[str], model: Path | None, notify: Callable[[str], None] = lambda _: None
) -> dict[str, Path | None]:
    """The model that each scheme gets of one that is named for all: those of its kind get it.

    The others get none, which is said, so that schemes of several kinds are compared with one of
    them trained.  If no scheme takes the model, each gets it, and refuses it.

    Args:
        schemes: their specifications.
        model: folder of a checkpoint, or the name of one that comes with Teal; None for none.
        notify: told which schemes do not get it.

    Raises:
        InputError: no checkpoint there, or a damaged one.
    """
    if model is None:
        return dict.fromkeys(schemes)
    takes = {text: _TAKES.get(parse_spec(text).name, "") for text in schemes}
    stored_kind = kind_of(model_folder(model))
    if stored_kind not in takes.values():
        return dict.fromkeys(schemes, model)
    for text, kind in takes.items():
        if kind not in ("", stored_kind) and "model=" not in text:
            notify(f"{text}: the model that comes with Teal, since {model} is a {stored_kind}")
    return {text: model if kind in ("", stored_kind) else None for text, kind in takes.items()}


def serves(model: object, objective: Objective) -> bool:
    """Whether a model is for an objective: a FlowGNN is for the one that it was trained for, or for
    all.
    """
    return not isinstance(model, FlowGnnScheme) or model.serves(objective)


def helps(model: object, problem: Problem) -> bool:
    """Whether to give PDHG a model that somebody named: a FlowGNN for its objective, a PriceGNN
    where it can save time.

    A PriceGNN can on large networks, and where PDHG itself decides whether to ask it.
    """
    if not pdhg.takes_starter(problem):
        return False
    of_any_size = isinstance(model, FlowGnnScheme) or pdhg.foretells_work(problem, "auto")
    return serves(model, problem.objective) and (of_any_size or saves_time(problem.paths))
