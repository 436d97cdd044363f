"""The shapes of FlowGNN; apart from the model, which imports torch_geometric, for a second and a half."""

from __future__ import annotations

import dataclasses

from teal.errors import InputError

# Names of the forms, which FlowGNN describes; each adds one thing to the form before.
PUBLISHED, SCALED, NONLINEAR, FEEDBACK = FORMS = ("published", "scaled", "nonlinear", "feedback")


@dataclasses.dataclass(frozen=True)
class FlowGnnConfig:
    """Settings that fix the shapes of the weights of FlowGNN and its heads.

    Attributes:
        num_paths: K, number of candidate paths of each demand.
        layers: number of message-passing layers of FlowGNN; 6 in the paper.
        width: features of each link and path in each layer; ignored by the published form, whose width grows by one
            in each layer.
        form: one of :data:`FORMS`, described in :class:`teal.nn.flow_gnn.FlowGNN`.
    """

    num_paths: int = 4
    layers: int = 6
    width: int = 8
    form: str = FEEDBACK

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise InputError("model", "form", " or ".join(FORMS), self.form)
        for field in ("num_paths", "layers", "width"):
            if not isinstance(getattr(self, field), int) or getattr(self, field) < 1:
                raise InputError("model", field, "a whole number of at least 1", getattr(self, field))
