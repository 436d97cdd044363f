"""Adam without :class:`torch.optim.Optimizer`, whose constructor imports torch's compiler: 4 s of
every process.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

# Beta_1, beta_2 and epsilon, as torch.optim.Adam has them.
_MEAN_DECAY = 0.9
_SQUARE_DECAY = 0.999
_EPSILON = 1e-8
_SLOTS = ("step", "exp_avg", "exp_avg_sq")  # names that a checkpoint has


class Adam:
    """Algorithm 1 of Kingma and Ba (ICLR 2015), by torch's function; the same bits as
    :class:`torch.optim.Adam`.

    Args:
        parameters: parameters that are learnt.
        rate: learning rate.

    Attributes:
        rate: learning rate of the next step.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float) -> None:
        self.rate = rate
        self._parameters = list(parameters)
        self._state: dict[
            int, dict[str, Tensor]
        ] = {}  # by number of the parameter, once it had a gradient

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Change each parameter that has a gradient."""
        numbers = [
            number
            for number, parameter in enumerate(self._parameters)
            if parameter.grad is not None
        ]
        for number in numbers:
            if number not in self._state:
                nothing = torch.zeros_like(
                    self._parameters[number], memory_format=torch.preserve_format
                )
                self._state[number] = dict(
                    zip(_SLOTS, (torch.tensor(0.0), nothing, nothing.clone()), strict=True)
                )
        steps, means, squares = (
            [self._state[number][slot] for number in numbers] for slot in _SLOTS
        )
        adam(
            [self._parameters[number] for number in numbers],
            [
                gradient
                for number in numbers
                if (gradient := self._parameters[number].grad) is not None
            ],
            means,
            squares,
            [],
            steps,
            amsgrad=False,
            beta1=_MEAN_DECAY,
            beta2=_SQUARE_DECAY,
            lr=self.rate,
            weight_decay=0.0,
            eps=_EPSILON,
            maximize=False,
        )

    def tensors(self) -> dict[str, Tensor]:
        """The state, under names that :meth:`load` reads: ``NUMBER.SLOT``."""
        return {
            f"{number}.{slot}": value
            for number, slots in self._state.items()
            for slot, value in slots.items()
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Set the state to what :meth:`tensors` returned, on the devices of the parameters.

        Raises:
            ValueError: the state of other parameters, or a part of one.
        """
        self._state = {}
        for name, value in tensors.items():
            number, slot = name.split(".")
            if int(number) >= len(self._parameters):
                raise ValueError(
                    f"a state of {len(self._parameters)} parameters, not of number {number}"
                )
            parameter = self._parameters[int(number)]
            own = value.clone() if slot == "step" else value.to(parameter, copy=True)
            self._state.setdefault(int(number), {})[slot] = own
        if any(set(slots) != set(_SLOTS) for slots in self._state.values()):
            raise ValueError(f"each of {', '.join(_SLOTS)} for each parameter")
