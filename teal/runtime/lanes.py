"""SIMD lanes for Numba kernels: one source text serves a single matrix and L matrices side by side.

Arrays are flat, (n * L,): row i has the L lanes of entry i, one for each matrix.
``load(array, i, lanes)`` reads row i, where L is the length of the tuple ``lanes``.  For L = 1 the
result is a plain float; otherwise it is a ``Lanes`` value, which LLVM keeps in vector registers and
which supports +, -, *, / with another value of its type.  Plain Numba loops over L elements stay
scalar, because LLVM cannot prove that the arrays do not overlap.

The functions are Numba intrinsics: their arguments are Numba types, and they return the signature
of a call and ``codegen``, which emits its LLVM code.
"""

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc"

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models
from numba.extending import intrinsic, overload, register_model


class Lanes(types.Type):
    """Numba type of ``width`` floats of one type, computed together."""

    def __init__(self, dtype: types.Float, width: int) -> None:
        self.dtype = dtype
        self.width = width
        super().__init__(name=f"Lanes({dtype}, {width})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        element = manager.lookup(lanes.dtype).get_value_type()
        super().__init__(manager, lanes, ir.VectorType(element, lanes.width))


def _type_of(dtype: types.Float, width: int) -> types.Type:
    """Return the Numba type of ``width`` floats: the float type itself for one."""
    return dtype if width == 1 else Lanes(dtype, width)


def _row_address(context, builder, array_type, array, index, width):
    """Emit the address of row ``index`` of a flat array, a pointer to a scalar or to a vector.

    Args:
        context: Numba's target context.
        builder: LLVM builder.
        array_type: Numba type of the array.
        array: LLVM value of the array.
        index: LLVM value of the index of the row.
        width: number of lanes, L.
    """
    data = context.make_array(array_type)(context, builder, array).data
    start = builder.mul(index, ir.Constant(index.type, width))
    pointer = builder.gep(data, [start], inbounds=True)
    if width == 1:
        return pointer
    element = context.get_data_type(array_type.dtype)
    return builder.bitcast(pointer, ir.VectorType(element, width).as_pointer())


@intrinsic
def load(typingctx, array, index, lanes):
    """Load row ``index``, an int64, of a flat C-contiguous array (n * L,); L is ``len(lanes)``."""
    width = len(lanes)

    def codegen(context, builder, signature, arguments):
        pointer = _row_address(
            context, builder, signature.args[0], arguments[0], arguments[1], width
        )
        return builder.load(pointer, align=array.dtype.bitwidth // 8)

    return _type_of(array.dtype, width)(array, types.int64, lanes), codegen


@intrinsic
def store(typingctx, array, index, value):
    """Store a value of L lanes to row ``index``, an int64, of a flat C-contiguous array (n * L,) of
    the same float type.
    """
    width = value.width if isinstance(value, Lanes) else 1

    def codegen(context, builder, signature, arguments):
        pointer = _row_address(
            context, builder, signature.args[0], arguments[0], arguments[1], width
        )
        builder.store(arguments[2], pointer, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.int64, _type_of(array.dtype, width)), codegen


def _broadcast_vector(builder, scalar, width):
    """Emit a vector with ``scalar`` in each of ``width`` lanes; the scalar itself for one lane."""
    if width == 1:
        return scalar
    vector = ir.VectorType(scalar.type, width)
    first_lane = builder.insert_element(
        ir.Constant(vector, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0)
    )
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), width), [0] * width)
    return builder.shuffle_vector(first_lane, ir.Constant(vector, ir.Undefined), zeros)


@intrinsic
def broadcast(typingctx, value, lanes):
    """Broadcast the float ``value`` to ``len(lanes)`` lanes."""
    width = len(lanes)

    def codegen(context, builder, signature, arguments):
        return _broadcast_vector(builder, arguments[0], width)

    return _type_of(value, width)(value, lanes), codegen


@intrinsic
def load_broadcast(typingctx, array, index, lanes):
    """Broadcast element ``index``, an int64, of a flat C-contiguous array (n,) to ``len(lanes)``
    lanes.
    """
    width = len(lanes)

    def codegen(context, builder, signature, arguments):
        pointer = _row_address(context, builder, signature.args[0], arguments[0], arguments[1], 1)
        return _broadcast_vector(builder, builder.load(pointer), width)

    return _type_of(array.dtype, width)(array, types.int64, lanes), codegen


@intrinsic
def multiply_accumulate(typingctx, a, b, c):
    """Compute a + b c, lane by lane, as a fused multiply-add if the processor has one."""

    def codegen(context, builder, signature, arguments):
        contract = ("contract",)
        product = builder.fmul(arguments[1], arguments[2], flags=contract)
        return builder.fadd(arguments[0], product, flags=contract)

    return a(a, a, a), codegen


# Coefficients c of the polynomial 2^f = sum of c[i] f^i on [0, 1], with an error below 1e-7.
_POWER_OF_TWO = (1.0, 6.931472e-1, 2.402264e-1, 5.54802e-2, 9.6843e-3, 1.2382e-3, 2.1884e-4)
_LOG2_E = 1.44269504
_MIN_EXPONENT = -80.0


@intrinsic
def exponential(typingctx, value):
    """Compute exp(x) for x <= 0 in float32, lane by lane, with a relative error of about 1e-7;
    exp(-80) below -80.

    With y = max(x, -80) log2(e) = n + f, n an integer and 0 <= f <= 1: exp(x) = 2^n 2^f, a
    polynomial in f times the float whose exponent bits are n + 127.
    """
    width = value.width if isinstance(value, Lanes) else 1

    def codegen(context, builder, signature, arguments):
        real = arguments[0].type
        int_type = ir.IntType(32) if width == 1 else ir.VectorType(ir.IntType(32), width)

        def constant(kind, number):
            return ir.Constant(kind, number if width == 1 else [number] * width)

        # y = max(x, -80) log2(e)
        minimum = constant(real, _MIN_EXPONENT)
        x = builder.select(builder.fcmp_ordered(">", arguments[0], minimum), arguments[0], minimum)
        y = builder.fmul(x, constant(real, _LOG2_E))
        # y = n + f; the conversion to an integer rounds towards 0, and y <= 0.
        n = builder.sub(builder.fptosi(y, int_type), constant(int_type, 1))
        f = builder.fsub(y, builder.sitofp(n, real))
        # 2^f by Horner's scheme
        power_of_two = constant(real, _POWER_OF_TWO[-1])
        for coefficient in _POWER_OF_TWO[-2::-1]:
            product = builder.fmul(power_of_two, f, flags=("contract",))
            power_of_two = builder.fadd(product, constant(real, coefficient), flags=("contract",))
        # 2^n as a float32: exponent bits n + 127, shifted over the 23 bits of the mantissa
        exponent_bits = builder.shl(builder.add(n, constant(int_type, 127)), constant(int_type, 23))
        return builder.fmul(power_of_two, builder.bitcast(exponent_bits, real))

    return value(value), codegen


@intrinsic
def where_above(typingctx, a, b, if_above, otherwise):
    """Select ``if_above`` where a > b, else ``otherwise``, lane by lane."""

    def codegen(context, builder, signature, arguments):
        above = builder.fcmp_ordered(">", arguments[0], arguments[1])
        return builder.select(above, arguments[2], arguments[3])

    return if_above(a, a, if_above, if_above), codegen


@intrinsic
def maximum(typingctx, a, b):
    """Return the maximum of two values, lane by lane; ``b`` if either is NaN."""

    def codegen(context, builder, signature, arguments):
        return builder.select(
            builder.fcmp_ordered(">", arguments[0], arguments[1]), arguments[0], arguments[1]
        )

    return a(a, a), codegen


def _define_operator(operation: Any, instruction: str) -> None:
    """Define a binary Python operator of ``Lanes`` by an LLVM instruction."""

    @intrinsic
    def apply(typingctx, a, b):
        def codegen(context, builder, signature, arguments):
            return getattr(builder, instruction)(*arguments)

        return a(a, a), codegen

    @overload(operation)
    def overloaded(a, b):
        if isinstance(a, Lanes) and a == b:
            return lambda a, b: apply(a, b)
        return None


for _operation, _instruction in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _define_operator(_operation, _instruction)


@intrinsic
def widen(typingctx, value):
    """Convert a float or lanes to float64."""
    width = value.width if isinstance(value, Lanes) else 1
    dtype = value.dtype if isinstance(value, Lanes) else value

    def codegen(context, builder, signature, arguments):
        if dtype == types.float64:
            return arguments[0]
        return builder.fpext(arguments[0], context.get_data_type(signature.return_type))

    return _type_of(types.float64, width)(value), codegen


@intrinsic
def narrow(typingctx, value, array):
    """Convert a float or lanes to the float type of ``array``."""
    width = value.width if isinstance(value, Lanes) else 1
    dtype = value.dtype if isinstance(value, Lanes) else value

    def codegen(context, builder, signature, arguments):
        if dtype == array.dtype:
            return arguments[0]
        return builder.fptrunc(arguments[0], context.get_data_type(signature.return_type))

    return _type_of(array.dtype, width)(value, array), codegen


@intrinsic
def lane_sum(typingctx, value):
    """Return the sum of all lanes: halves of the vector are added until one lane remains, in the
    same order on every machine.
    """
    width = value.width if isinstance(value, Lanes) else 1
    dtype = value.dtype if isinstance(value, Lanes) else value

    def codegen(context, builder, signature, arguments):
        # Add the upper half of the lanes to the lower half until one lane remains.
        vector = arguments[0]
        count = width
        if count == 1:
            return vector
        while count > 1:
            half_indices = ir.VectorType(ir.IntType(32), count // 2)
            parts = [
                builder.shuffle_vector(
                    vector,
                    vector,
                    ir.Constant(half_indices, list(range(first, first + count // 2))),
                )
                for first in (0, count // 2)
            ]
            vector = builder.fadd(*parts)
            count = count // 2
        return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))

    return dtype(value), codegen
