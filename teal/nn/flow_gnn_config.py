"""Configuration of FlowGNN, in a separate module: the model imports torch_geometric, which takes
1.5 s.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from teal.errors import InputError
from teal.spec import Registry

# Forms of FlowGNN whose weights depend on K; each adds one thing to the form before.
PUBLISHED, SCALED, NONLINEAR, FEEDBACK = FORMS_OF_K = (
    "published",
    "scaled",
    "nonlinear",
    "feedback",
)
# Form of :mod:`teal.nn.universal_flow_gnn`, for any network and any K.
UNIVERSAL = "universal"
FORMS = (*FORMS_OF_K, UNIVERSAL)
# Registered forms: model classes by name.
OTHER_FORMS: Registry[Callable[[Any], Any]] = Registry("model", "teal.models")
# Widths of path states of the universal form: compiled code holds them in a few registers.
UNIVERSAL_WIDTHS = (4, 8, 16, 32)


@dataclasses.dataclass(frozen=True)
class FlowGnnConfig:
    """Settings that fix the shapes of the weights of FlowGNN and its heads.

    Attributes:
        num_paths: K, number of candidate paths of each demand; in the universal form, which takes
            any number, K of the training paths.
        layers: number of message-passing layers; 6 in the paper.
        width: F, features of each link and path in each layer.  The published form ignores it: its
            width grows by one per layer.  In the universal form a link has 2 F features.
        form: one of :data:`FORMS`, described in :class:`teal.nn.flow_gnn.FlowGNN` and
            :mod:`teal.nn.universal_flow_gnn`, or a registered one.
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
        """Whether the form is part of Teal: its results depend on problem and weights alone.

        A registered model may have other state, so that its passes cannot be recorded.
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
    """Register a model class for ``teal train --from none:form=NAME`` and for its checkpoints.

    A package can also declare its models as entry points in the group ``teal.models``; it is then
    imported on demand.

    Args:
        form: name of the form, stored in checkpoints.
        model: subclass of :class:`teal.nn.flow_models.FlowModel` that takes a
            :class:`FlowGnnConfig`; its attribute ``takes_any_paths`` says whether its weights serve
            any number of paths.
        replace: whether to replace a model with the same name.

    Raises:
        InputError: the name exists already, and ``replace`` is false.
    """
    OTHER_FORMS.add(form, model, replace=replace, reserved=FORMS)
