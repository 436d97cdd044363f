"""The shapes of FlowGNN; apart from the model, which imports torch_geometric, for a second and a
half.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from teal.errors import InputError
from teal.spec import Registry

# Names of the forms that FlowGNN describes; each adds one thing to the form before.
PUBLISHED, SCALED, NONLINEAR, FEEDBACK = FORMS_OF_K = (
    "published",
    "scaled",
    "nonlinear",
    "feedback",
)
UNIVERSAL = (
    "universal"  # the form of :mod:`teal.nn.universal_flow_gnn`, which serves any network and any K
)
FORMS = (*FORMS_OF_K, UNIVERSAL)
# Further forms: classes of models, see :func:`register_model`.
OTHER_FORMS: Registry[Callable[[Any], Any]] = Registry("model", "teal.models")
UNIVERSAL_WIDTHS = (4, 8, 16, 32)  # features of a path that compiled code holds in a few registers


@dataclasses.dataclass(frozen=True)
class FlowGnnConfig:
    """Settings that fix the shapes of the weights of FlowGNN and its heads.

    Attributes:
        num_paths: K, number of candidate paths of each demand; the form ``universal`` takes any
            number, and this is what it was trained with.
        layers: number of message-passing layers of FlowGNN; 6 in the paper.
        width: F, features of each link and path in each layer; ignored by the published form, whose
            width grows by one in each layer; in the universal form of a path, where a link has
            twice as many.
        form: one of :data:`FORMS`, described in :class:`teal.nn.flow_gnn.FlowGNN` and
            :mod:`teal.nn.universal_flow_gnn`; or one that was registered.
    """

    num_paths: int = 4
    layers: int = 6
    width: int = 8
    form: str = UNIVERSAL

    def __post_init__(self) -> None:
        if self.form not in FORMS and self.form not in OTHER_FORMS:
            raise InputError(
                "model", "form", " or ".join([*FORMS, *OTHER_FORMS.names()]), self.form
            )
        for field in ("num_paths", "layers", "width"):
            if not isinstance(getattr(self, field), int) or getattr(self, field) < 1:
                raise InputError("model", field, "an integer >= 1", getattr(self, field))
        if self.form == UNIVERSAL and self.width not in UNIVERSAL_WIDTHS:
            raise InputError(
                "model", "width", f"one of {UNIVERSAL_WIDTHS} in the form universal", self.width
            )

    @property
    def is_built_in(self) -> bool:
        """Whether the form is one of Teal's, whose results depend on program and weights alone: a
        registered model may count its calls, of which no recording knows.
        """
        return self.form in FORMS

    @property
    def takes_any_paths(self) -> bool:
        """Whether the model takes any number of paths a demand."""
        if self.is_built_in:
            return self.form == UNIVERSAL
        return bool(getattr(OTHER_FORMS[self.form], "takes_any_paths", False))


def register_model(
    form: str, model: Callable[[FlowGnnConfig], Any], *, replace: bool = False
) -> None:
    """Make a model available as ``teal train --from none:form=NAME`` and wherever its checkpoint is
    named.

    A package announces its models without being imported, by entry points in the group
    ``teal.models``.

    Args:
        form: its name, which checkpoints hold.
        model: subclass of :class:`teal.nn.flow_models.FlowModel` that is made from a
            :class:`FlowGnnConfig`; its attribute ``takes_any_paths`` says whether its weights serve
            any number of paths.
        replace: whether it may take the place of another one.

    Raises:
        InputError: the name is taken, and ``replace`` is false.
    """
    OTHER_FORMS.add(form, model, replace=replace, reserved=FORMS)
