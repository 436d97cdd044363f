"""A stand-in for a GPU that torch sees: its tensors say ``cuda:0``, and are computed on the CPU.

Like a GPU it refuses what mixes tensors of both devices, and NumPy's view of its tensors, which
would be copies in silence.  Kernels of torch run on it, and those of numba-cuda in its simulator.

A recorded graph is replayed as on a GPU: the same kernels over the same memory, whatever Python's
objects have become since; waiting for the GPU and copies between the devices cannot be recorded.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

import teal.runtime.cuda as cuda

_DEVICE = torch.device("cuda", 0)
# A GPU takes copies from the CPU, and indices that are there.
_COPIES = {
    torch.ops.aten._to_copy.default,
    torch.ops.aten.copy_.default,
    torch.ops.aten.index.Tensor,
    torch.ops.aten.index_put_.default,
    torch.ops.aten.where.self,
}
_READ = torch.ops.aten._local_scalar_dense.default  # item(), float(), int(), bool()
# Functions whose results have a size that the host waits for.
_SIZED_BY_NUMBERS = ("nonzero", "unique", "masked_select", "repeat_interleave")


class RecordedGraph:
    """In the place of :class:`teal.runtime.cuda.LaunchGraph`: the kernels that a work starts.

    Attributes:
        recording: the graph that is being recorded.
        is_replaying: whether one is being replayed.
        refused: names of work that is not recorded.
    """

    recording: ClassVar[RecordedGraph | None] = None
    is_replaying: ClassVar[bool] = False
    refused: ClassVar[tuple[str, ...]] = ()

    def __init__(self, device: Any, pool: Any = None) -> None:
        self._kernels: list[Callable[[], object]] | None = None
        self._has_run = False

    def run(self, work: Callable[[], None]) -> None:
        """Do the work, record what it starts while it is done, or start that again."""
        is_first, self._has_run = not self._has_run, True
        if is_first or getattr(work, "__name__", "") in RecordedGraph.refused:
            work()
        elif self._kernels is None:
            self._kernels = []
            RecordedGraph.recording = self
            try:
                work()
            finally:
                RecordedGraph.recording = None
        else:
            self._replay(self._kernels)

    def _replay(self, kernels: list[Callable[[], object]]) -> None:
        StandInTensor.counts["replayed"] += 1
        RecordedGraph.is_replaying = True
        try:
            for kernel in kernels:
                kernel()
        finally:
            RecordedGraph.is_replaying = False

    def add(self, function: Any, arguments: Any, options: Any, found: Any) -> None:
        """Record a function of torch over tensors on the CPU, and its result."""
        given = _storages((arguments, options))
        is_change = getattr(getattr(function, "_schema", None), "is_mutable", True)
        if _storages(found) & given:
            if is_change:  # else it is a view
                self.start(lambda: function(*arguments, **options))
            return

        def run() -> None:
            again = function(*arguments, **options)
            for own, new in zip(pytree.tree_leaves(found), pytree.tree_leaves(again), strict=True):
                if isinstance(own, torch.Tensor):
                    own.copy_(new)

        self.start(run)

    def start(self, kernel: Callable[[], object]) -> None:
        """Record a kernel."""
        assert self._kernels is not None
        self._kernels.append(kernel)


def _storages(values: Any) -> set[int]:
    tensors = [one for one in pytree.tree_leaves(values) if isinstance(one, torch.Tensor)]
    return {one.untyped_storage().data_ptr() for one in tensors if one.numel()}


def _started(kernel: Callable[[], object] | None = None) -> None:
    """Count a kernel that is started alone, or record it."""
    if RecordedGraph.recording is None:
        StandInTensor.counts["launched"] += not RecordedGraph.is_replaying
    elif kernel is not None:
        RecordedGraph.recording.start(kernel)


def _waited(kind: str) -> None:
    if RecordedGraph.recording is not None:
        raise RuntimeError(f"a tensor is {kind} while a graph is recorded")
    StandInTensor.counts[kind] += 1


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
        _waited("read")
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
        StandInTensor.counts["uploaded"] += sum(one not in _Pinned.tensors for one in on_cpu)
    if function is _READ:
        to_gpu = False
        _waited("read")
    is_masked = "aten::index" in str(function._schema.name) and any(
        one.dtype is torch.bool for one in flat[1:] if isinstance(one, torch.Tensor)
    )
    if on_gpu and (is_masked or any(name in str(function) for name in _SIZED_BY_NUMBERS)):
        _waited("read")
    held = pytree.tree_map_only(StandInTensor, lambda one: one.held, (arguments, options))
    found = function(*held[0], **held[1])
    if to_gpu and RecordedGraph.recording:
        number = any(
            isinstance(one, torch.Tensor) and not isinstance(one, StandInTensor) for one in flat
        )
        if on_cpu or (number and function in _COPIES):  # also indices
            raise RuntimeError("a tensor is copied to the GPU while a graph is recorded")
    if to_gpu and (_storages(found) - _storages(held) or function._schema.is_mutable):
        _started()
        if RecordedGraph.recording is not None:
            RecordedGraph.recording.add(function, held[0], held[1], found)
    if not to_gpu:
        return found
    known = {id(one.held): one for one in on_gpu}  # what was changed in place is itself

    return pytree.tree_map_only(
        torch.Tensor, lambda one: known[id(one)] if id(one) in known else StandInTensor(one), found
    )


def _is_gpu(value: Any) -> bool:
    is_device = isinstance(value, torch.device | str)
    return is_device and str(value).partition(":")[0] in ("cuda", "meta")  # the stand-in is there


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
        if name in ("tensor", "as_tensor") and _is_gpu(options.get("device")):
            return _moved(function(*arguments, **{**options, "device": "cpu"}), to_gpu=True)
        return function(*arguments, **options)


class _Made(TorchDispatchMode):
    """Tensors that are made on the GPU, also by torch's own code, of numbers or in a backward
    pass.
    """

    def __torch_dispatch__(self, function, types, arguments=(), options=None):  # type: ignore[no-untyped-def]
        options = options or {}
        wanted = options.get("device")
        if wanted is not None and torch.device(wanted).type in ("cuda", "meta"):
            return _run(function, arguments, options)
        return function(*arguments, **options)


def _set(tensor: StandInTensor, index: Any, value: Any) -> None:
    """``tensor[index] = value``: an index may be on the CPU, as on a GPU, and a value is not."""
    if isinstance(value, torch.Tensor) and not isinstance(value, StandInTensor) and value.dim():
        raise RuntimeError("tensor[index] = value: a value on the CPU")
    index, value = pytree.tree_map_only(StandInTensor, lambda one: one.held, (index, value))
    tensor.held[index] = value
    _started(lambda: tensor.held.__setitem__(index, value))


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
            if RecordedGraph.recording is not None:
                raise RuntimeError("a tensor is copied to the GPU while a graph is recorded")
            return StandInTensor(tensor.detach().clone())
        assert isinstance(tensor, StandInTensor)
        _waited("copied")
        return tensor.held.detach().clone()

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return _moved(gradients[0], to_gpu=not context.to_gpu), None


class _Pinned:
    """Memory of the CPU from which a GPU copies while the host goes on.

    Attributes:
        tensors: tensors in such memory.
    """

    tensors: ClassVar[WeakTensorKeyDictionary] = WeakTensorKeyDictionary()

    @staticmethod
    def of(tensor: torch.Tensor) -> torch.Tensor:
        """In the place of :meth:`torch.Tensor.pin_memory`."""
        found = tensor.clone()
        _Pinned.tensors[found] = None
        return found


class _Generator(torch.Generator):
    def __new__(cls, device: Any = "cpu") -> _Generator:
        return super().__new__(cls, "cpu")  # type: ignore[call-arg]


class _Stream:
    def wait_stream(self, _: Any) -> None:
        """Nothing runs beside."""


@contextmanager
def stand_in_gpu(*, has_kernels: bool = False) -> Iterator[Counter[str]]:
    """A GPU that torch sees; counts what the host waits for: ``read``, numbers that it reads,
    ``copied``, tensors that it copies to the CPU, and ``uploaded``, those that it copies into
    others from memory that is not pinned; kernels that are ``launched`` alone, and graphs that are
    ``replayed``.

    Args:
        has_kernels: whether kernels of numba-cuda run there, in its simulator.
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
        "current_stream": lambda *_: _Stream(),
    }
    missing = None if has_kernels else "one of CUDA: this is a stand-in"
    array, launch = cuda.array, cuda.launch

    def held_array(tensor: torch.Tensor, unsigned: bool = False) -> Any:
        return array(tensor.held if isinstance(tensor, StandInTensor) else tensor, unsigned)

    def counted_launch(*arguments: Any, **options: Any) -> None:
        launch(*arguments, **options)
        _started(lambda: launch(*arguments, **options))

    of_cuda = {
        "missing": lambda: missing,
        "array": held_array,
        "launch": counted_launch,
        "LaunchGraph": RecordedGraph,
    }
    with (
        patch.object(torch, "Generator", _Generator),
        patch.object(torch.Tensor, "pin_memory", _Pinned.of),
        patch.multiple(torch.cuda, **seen),  # type: ignore[call-overload]
        patch.multiple(cuda, **of_cuda),  # type: ignore[call-overload]
        warnings.catch_warnings(action="ignore", category=UserWarning),
        patch.object(StandInTensor, "counts", counts),
        _Mode(),
        _Made(),
    ):
        yield counts


# Where kernels run launch by launch, to compare with: in the simulator, or on the machine's GPU.
PLAIN = "cpu" if cuda.SIMULATED else "cuda"


@contextmanager
def any_gpu() -> Iterator[Counter[str]]:
    """The stand-in with kernels; on a machine with a GPU that, of which nothing is counted."""
    if cuda.SIMULATED:
        with stand_in_gpu(has_kernels=True) as counts:
            yield counts
    else:
        yield Counter()


@contextmanager
def without_recordings() -> Iterator[None]:
    """Kernels are launched one by one."""
    with patch.object(cuda, "_can_record", new=False):
        yield
