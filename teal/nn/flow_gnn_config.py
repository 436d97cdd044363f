"""The shapes of FlowGNN; apart from the model, which imports torch_geometric, for a second and a half."""

from __future__ import annotations

import dataclasses

from teal.errors import InputError

# Names of the forms that FlowGNN describes; each adds one thing to the form before.
PUBLISHED, SCALED, NONLINEAR, FEEDBACK = FORMS_OF_K = ("published", "scaled", "nonlinear", "feedback")
UNIVERSAL = "universal"  # the form of :mod:`teal.nn.universal_flow_gnn`, which serves any network and any K
FORMS = (*FORMS_OF_K, UNIVERSAL)
UNIVERSAL_WIDTHS = (4, 8, 16, 32)  # features of a path that compiled code holds in a few registers


@dataclasses.dataclass(frozen=True)
class FlowGnnConfig:
    """Settings that fix the shapes of the weights of FlowGNN and its heads.

    Attributes:
        num_paths: K, number of candidate paths of each demand; the form ``universal`` takes any number, and this is
            what it was trained with.
        layers: number of message-passing layers of FlowGNN; 6 in the paper.
        width: F, features of each link and path in each layer; ignored by the published form, whose width grows by one
            in each layer; in the universal form of a path, where a link has twice as many.
        form: one of :data:`FORMS`, described in :class:`teal.nn.flow_gnn.FlowGNN` and
            :mod:`teal.nn.universal_flow_gnn`.
    """

    num_paths: int = 4
    layers: int = 6
    width: int = 8
    form: str = UNIVERSAL

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise InputError("model", "form", " or ".join(FORMS), self.form)
        for field in ("num_paths", "layers", "width"):
            if not isinstance(getattr(self, field), int) or getattr(self, field) < 1:
                raise InputError("model", field, "a whole number of at least 1", getattr(self, field))
        if self.form == UNIVERSAL and self.width not in UNIVERSAL_WIDTHS:
            raise InputError("model", "width", f"one of {UNIVERSAL_WIDTHS} in the form universal", self.width)

    @property
    def takes_any_paths(self) -> bool:
        """Whether the model takes any number of paths a demand."""
        return self.form == UNIVERSAL
