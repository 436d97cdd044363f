"""Adam optimiser (Kingma & Ba, ICLR 2015) without :class:`torch.optim.Optimizer`.

The constructor of that class imports torch's compiler, which takes 4 s in every process.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

# Beta_1, beta_2 and epsilon, the defaults of torch.optim.Adam.
_MEAN_DECAY = 0.9
_SQUARE_DECAY = 0.999
_EPSILON = 1e-8
# State of a parameter, by its names in checkpoints: number of steps, first and second moments.
_STATE_NAMES = ("step", "exp_avg", "exp_avg_sq")


class Adam:
    """Adam, algorithm 1 of Kingma and Ba (ICLR 2015), with torch's functional implementation.

    On the CPU results equal those of :class:`torch.optim.Adam` bit by bit.  On a GPU the learning
    rate and the numbers of steps are in GPU memory, so that recorded launches read them; the last
    bits then differ.

    Args:
        parameters: parameters to learn.
        rate: learning rate.

    Attributes:
        rate: learning rate of the next step.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float) -> None:
        self.rate = rate
        self._parameters = list(parameters)
        self._is_on_gpu = self._parameters[0].is_cuda
        self._rate_tensor = torch.tensor(rate, device=self._parameters[0].device)
        # By index of the parameter, from its first gradient on.
        self._state: dict[int, dict[str, Tensor]] = {}

    def zero_grad(self) -> None:
        """Delete the gradients of all parameters."""
        for parameter in self._parameters:
            parameter.grad = None

    def step(self) -> None:
        """Update each parameter that has a gradient."""
        self.prepare()
        self.change()

    def prepare(self) -> None:
        """Set the learning rate on the GPU, and create the state of parameters with gradients.

        It must precede :meth:`change`, which may be recorded.
        """
        if self._is_on_gpu:
            self._rate_tensor.fill_(self.rate)
        for index in self._indices_with_gradient():
            if index in self._state:
                continue
            parameter = self._parameters[index]
            # First state of a parameter: no steps, and moments of 0.
            step_count = torch.zeros((), device=self._rate_tensor.device)
            zeros = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            slots = step_count, zeros, zeros.clone()
            self._state[index] = {
                name: slot.detach() for name, slot in zip(_STATE_NAMES, slots, strict=True)
            }

    @torch.no_grad()
    def change(self) -> None:
        """Update each parameter that has a gradient, without waiting for a GPU."""
        indices = self._indices_with_gradient()
        # No maxima of second moments (the empty list): they belong to the variant AMSGrad.
        steps, first_moments, second_moments = (
            [self._state[index][slot] for index in indices] for slot in _STATE_NAMES
        )
        adam(
            [self._parameters[index] for index in indices],
            [
                gradient
                for index in indices
                if (gradient := self._parameters[index].grad) is not None
            ],
            first_moments,
            second_moments,
            [],
            steps,
            capturable=self._is_on_gpu,
            amsgrad=False,
            beta1=_MEAN_DECAY,
            beta2=_SQUARE_DECAY,
            lr=self._rate_tensor if self._is_on_gpu else self.rate,
            weight_decay=0.0,
            eps=_EPSILON,
            maximize=False,
        )

    def _indices_with_gradient(self) -> list[int]:
        """Return the indices of the parameters that have a gradient."""
        return [
            index for index, parameter in enumerate(self._parameters) if parameter.grad is not None
        ]

    def tensors(self) -> dict[str, Tensor]:
        """Return the state of the parameters by name, ``INDEX.SLOT``, such as ``0.exp_avg``."""
        return {
            f"{index}.{slot}": value
            for index, slots in self._state.items()
            for slot, value in slots.items()
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Load the state of :meth:`tensors` to the devices of the parameters.

        Raises:
            ValueError: the state has more parameters, or lacks a tensor of one.
        """
        self._state = {}
        for name, value in tensors.items():
            index, slot = name.split(".")
            if int(index) >= len(self._parameters):
                raise ValueError(
                    f"Adam state: it has a parameter {index}, but the model only has "
                    f"{len(self._parameters)} parameters; load the state of this model"
                )
            parameter = self._parameters[int(index)]
            is_count = slot == "step"
            tensor = value.to(self._rate_tensor.device if is_count else parameter, copy=True)
            self._state.setdefault(int(index), {})[slot] = tensor
        if any(set(slots) != set(_STATE_NAMES) for slots in self._state.values()):
            raise ValueError(
                f"Adam state: a parameter lacks one of {', '.join(_STATE_NAMES)}; "
                "its file is damaged"
            )
