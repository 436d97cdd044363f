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

    On a GPU the learning rate and the numbers of steps are there too, so that recorded launches
    read them, and the last bits are others.

    Args:
        parameters: parameters that are learnt.
        rate: learning rate.

    Attributes:
        rate: learning rate of the next step.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float) -> None:
        self.rate = rate
        self._parameters = list(parameters)
        self._is_on_gpu = self._parameters[0].is_cuda
        self._rate = torch.tensor(rate, device=self._parameters[0].device)
        self._state: dict[
            int, dict[str, Tensor]
        ] = {}  # by number of the parameter, once it had a gradient

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def step(self) -> None:
        """Change each parameter that has a gradient."""
        self.prepare()
        self.change()

    def prepare(self) -> None:
        """Have all that :meth:`change` reads in its place."""
        if self._is_on_gpu:
            self._rate.fill_(self.rate)
        for number in self._with_gradients():
            if number in self._state:
                continue
            parameter = self._parameters[number]
            count = torch.zeros((), device=self._rate.device)
            nothing = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            slots = count, nothing, nothing.clone()
            self._state[number] = {
                name: slot.detach() for name, slot in zip(_SLOTS, slots, strict=True)
            }

    @torch.no_grad()
    def change(self) -> None:
        """Change each parameter that has a gradient, without waiting for a GPU."""
        numbers = self._with_gradients()
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
            capturable=self._is_on_gpu,
            amsgrad=False,
            beta1=_MEAN_DECAY,
            beta2=_SQUARE_DECAY,
            lr=self._rate if self._is_on_gpu else self.rate,
            weight_decay=0.0,
            eps=_EPSILON,
            maximize=False,
        )

    def _with_gradients(self) -> list[int]:
        """Numbers of the parameters that have a gradient."""
        return [
            number
            for number, parameter in enumerate(self._parameters)
            if parameter.grad is not None
        ]

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
            is_count = slot == "step"
            tensor = value.to(self._rate.device if is_count else parameter, copy=True)
            self._state.setdefault(int(number), {})[slot] = tensor
        if any(set(slots) != set(_SLOTS) for slots in self._state.values()):
            raise ValueError(f"each of {', '.join(_SLOTS)} for each parameter")
