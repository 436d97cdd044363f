"""A stand-in for a GPU that torch sees: its tensors say ``cuda:0``, and are computed on the CPU.

Like a GPU it refuses what mixes tensors of both devices, and NumPy's view of its tensors, which
would be copies in silence.  Only kernels of torch run on it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

_DEVICE = torch.device("cuda", 0)
# A GPU takes copies from the CPU, and indices that are there.
_COPIES = {
    torch.ops.aten._to_copy.default,
    torch.ops.aten.copy_.default,
    torch.ops.aten.index.Tensor,
    torch.ops.aten.index_put_.default,
}
_READ = torch.ops.aten._local_scalar_dense.default  # item(), float(), int(), bool()


class StandInTensor(torch.Tensor):
    """A tensor that says it is on the GPU.

    Attributes:
        held: the numbers, on the CPU.
    """

    held: torch.Tensor
    counts: ClassVar[Counter[str]] = Counter()

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> StandInTensor:
        made: StandInTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device("meta"),  # whose guards do nothing
            requires_grad=held.requires_grad,
        )
        assert held.device.type == "cpu"
        made.held = held
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The GPU."""
        return _DEVICE

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """True."""
        return True

    def numpy(self, *_: Any, **__: Any) -> Any:
        """Refused, as on a GPU."""
        raise TypeError("a tensor on cuda:0 is no array of NumPy: call cpu() first")

    __array__ = numpy

    def tolist(self) -> Any:
        """The numbers, which the host waits for."""
        StandInTensor.counts["read"] += 1
        return self.held.tolist()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"StandInTensor({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):  # type: ignore[no-untyped-def,override]
        return _run(function, arguments, options or {})


def _run(function: Any, arguments: Any, options: dict[str, Any]) -> Any:
    flat, _ = pytree.tree_flatten((arguments, options))
    on_gpu = [one for one in flat if isinstance(one, StandInTensor)]
    on_cpu = [
        one
        for one in flat
        if isinstance(one, torch.Tensor) and not isinstance(one, StandInTensor) and one.dim() > 0
    ]
    if on_gpu and on_cpu and function not in _COPIES:
        raise RuntimeError(f"{function}: tensors on cuda:0 and on the CPU")
    wanted = options.get("device")
    if wanted is not None:
        to_gpu = torch.device(wanted).type in ("cuda", "meta")
        options = {**options, "device": torch.device("cpu")}
    else:
        to_gpu = bool(on_gpu)
    if function is torch.ops.aten.copy_.default:
        to_gpu = isinstance(arguments[0], StandInTensor)
    if function is _READ:
        to_gpu = False
        StandInTensor.counts["read"] += 1
    held = pytree.tree_map_only(StandInTensor, lambda one: one.held, (arguments, options))
    found = function(*held[0], **held[1])
    if not to_gpu:
        return found
    known = {id(one.held): one for one in on_gpu}  # what was changed in place is itself

    return pytree.tree_map_only(
        torch.Tensor, lambda one: known[id(one)] if id(one) in known else StandInTensor(one), found
    )


def _is_gpu(value: Any) -> bool:
    is_device = isinstance(value, torch.device | str)
    return is_device and str(value).partition(":")[0] == "cuda"


class _Mode(TorchFunctionMode):
    """Calls with a device, which torch would pass on to CUDA."""

    def __torch_function__(self, function, types, arguments=(), options=None):  # type: ignore[no-untyped-def]
        options = options or {}
        name = getattr(function, "__name__", "")
        if name == "cuda":
            return _moved(arguments[0], to_gpu=True)
        if name == "cpu" and isinstance(arguments[0], StandInTensor):
            return _moved(arguments[0], to_gpu=False)
        if name == "new_tensor" and isinstance(arguments[0], StandInTensor):
            made = function(arguments[0].held, *arguments[1:], **options)
            return _moved(made, to_gpu=True)
        if name == "to":
            return _converted(function, arguments, options)
        if name == "__setitem__" and isinstance(arguments[0], StandInTensor):
            _set(*arguments)
            return None
        if name == "where":  # which makes tensors of numbers, without their values on "meta"
            kinds = [one.dtype for one in arguments[1:] if isinstance(one, torch.Tensor)]
            kind = kinds[0] if kinds else torch.get_default_dtype()
            arguments = tuple(
                torch.tensor(one, dtype=kind) if isinstance(one, int | float) else one
                for one in arguments
            )
        if _is_gpu(options.get("device")):
            cpu = {**options, "device": torch.device("cpu")}
            tensors = pytree.tree_map_only(StandInTensor, lambda one: one.held, (arguments, cpu))
            return StandInTensor(function(*tensors[0], **tensors[1]))
        return function(*arguments, **options)


def _set(tensor: StandInTensor, index: Any, value: Any) -> None:
    """``tensor[index] = value``: an index may be on the CPU, as on a GPU, and a value is not."""
    if isinstance(value, torch.Tensor) and not isinstance(value, StandInTensor) and value.dim():
        raise RuntimeError("tensor[index] = value: a value on the CPU")
    index, value = pytree.tree_map_only(StandInTensor, lambda one: one.held, (index, value))
    tensor.held[index] = value


def _converted(function: Any, arguments: Any, options: dict[str, Any]) -> torch.Tensor:
    """``tensor.to`` with a device, type or tensor in any place."""
    tensor, *rest = arguments
    given = [*rest, *options.values()]
    devices = [one for one in given if isinstance(one, torch.device | str)]
    devices += [one.device for one in given if isinstance(one, torch.Tensor)]
    kinds = [one for one in given if isinstance(one, torch.dtype)]
    kinds += [one.dtype for one in given if isinstance(one, torch.Tensor)]
    found = tensor
    if kinds and kinds[0] != tensor.dtype:
        found = function(tensor, kinds[0])
    return _moved(found, to_gpu=_is_gpu(devices[0])) if devices else found


def _moved(tensor: torch.Tensor, *, to_gpu: bool) -> torch.Tensor:
    is_there = isinstance(tensor, StandInTensor)
    if is_there == to_gpu:
        return tensor
    return _Move.apply(tensor, to_gpu)


class _Move(torch.autograd.Function):
    """A copy to the other device, which gradients take back."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, to_gpu: bool) -> torch.Tensor:
        context.to_gpu = to_gpu
        if to_gpu:
            return StandInTensor(tensor.detach().clone())
        assert isinstance(tensor, StandInTensor)
        StandInTensor.counts["copied"] += 1
        return tensor.held.detach().clone()

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return _moved(gradients[0], to_gpu=not context.to_gpu), None


class _Generator(torch.Generator):
    def __new__(cls, device: Any = "cpu") -> _Generator:
        return super().__new__(cls, "cpu")  # type: ignore[call-arg]


@contextmanager
def stand_in_gpu() -> Iterator[Counter[str]]:
    """A GPU that torch sees; counts what the host waits for: ``read``, numbers that it reads, and
    ``copied``, tensors that it copies.
    """
    counts: Counter[str] = Counter()
    seen = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "synchronize": lambda *_: None,
        "get_device_name": lambda *_: "stand-in",
        "mem_get_info": lambda *_: (8 << 30, 8 << 30),
        "empty_cache": lambda: None,
    }
    with (
        patch.object(torch, "Generator", _Generator),
        patch.multiple(torch.cuda, **seen),  # type: ignore[call-overload]
        patch("teal.runtime.cuda.missing", lambda: "one of CUDA: this is a stand-in"),
        warnings.catch_warnings(action="ignore", category=UserWarning),
        patch.object(StandInTensor, "counts", counts),
        _Mode(),
    ):
        yield counts
