"""``parallel_for``: a loop over independent parts on Numba's thread team, from inside a kernel.

The function of a part is compiled once, for one thread and for many.  Numba's own ``prange``
compiles a loop a second time, which takes twice as long as its serial form.
"""

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc"

from __future__ import annotations

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

_WORD = ir.IntType(64)
_INT = ir.IntType(32)
_BYTES = ir.IntType(8).as_pointer()
# Numba's function of a thread team (``numba/np/ufunc/omppool.cpp``): for chunks of 0 .. dims[0] - 1
# it calls function(args, dims, steps, data), with args[i] moved by the chunk's first index times
# steps[i], and dims[0] the length of the chunk.
_WORDS = _WORD.as_pointer()
_CHUNK = ir.FunctionType(ir.VoidType(), [_BYTES.as_pointer(), _WORDS, _WORDS, _BYTES])
_PARALLEL_FOR = ir.FunctionType(
    ir.VoidType(), [_BYTES, _BYTES.as_pointer(), _WORDS, _WORDS, _BYTES, _WORD, _WORD, _INT]
)
_GET_NUM_THREADS = ir.FunctionType(_INT, [])


def start_team() -> None:
    """Start Numba's threads, and register the symbols that compiled ``parallel_for`` refers to.

    Must be called before a kernel that uses it is compiled or loaded.
    """
    numba.get_num_threads()


@intrinsic
def parallel_for(typingctx, function, count, arguments):
    """Call ``function(part, *arguments)`` for all parts 0 .. count - 1, and wait for the last.

    Each of ``min(numba.get_num_threads(), count)`` threads computes an equal share of consecutive
    parts.

    Args:
        function: an inner kernel without result.  It must not raise: an exception is lost.
        count: int64.
        arguments: tuple of its further arguments.
    """
    part_types = (types.int64, *arguments.types)
    part_signature = typingctx.resolve_function_type(function, part_types, {})
    compiled = function.dispatcher.overloads[part_signature.args]

    def codegen(context, builder, signature, values):
        _, count, packed = values
        context.active_code_library.add_linking_library(compiled.library)
        callee = context.declare_function(builder.module, compiled.fndesc)

        def loop(builder, begin, end, packed):
            values = cgutils.unpack_tuple(builder, packed)
            step = ir.Constant(_WORD, 1)
            with cgutils.for_range_slice(builder, begin, end, step, inc=True) as (part, _):
                context.call_conv.call_function(
                    builder,
                    callee,
                    compiled.fndesc.restype,
                    compiled.fndesc.argtypes,
                    [part, *values],
                )

        share_type = ir.LiteralStructType([packed.type, _WORD, _WORD])
        chunk = _chunk_function(builder.module, share_type, loop)
        get_num_threads = cgutils.get_or_insert_function(
            builder.module, _GET_NUM_THREADS, "get_num_threads"
        )
        limit = builder.sext(builder.call(get_num_threads, []), _WORD)
        is_below = builder.icmp_signed("<", count, limit)
        num_threads = builder.select(is_below, count, limit)
        is_serial = builder.icmp_signed("<=", num_threads, ir.Constant(_WORD, 1))
        with builder.if_else(is_serial) as (serial, parallel):
            with serial:
                loop(builder, ir.Constant(_WORD, 0), count, packed)
            with parallel:
                share = cgutils.pack_struct(builder, [packed, count, num_threads])
                _call_parallel_for(builder, chunk, share, num_threads)
        return context.get_dummy_value()

    return types.void(function, types.int64, arguments), codegen


def _chunk_function(module, share_type, loop):
    """Return the LLVM function that a thread calls for a chunk of shares.

    Args:
        module: receives the function.
        share_type: struct of the packed arguments, the count and the number of threads.
        loop: emits the loop over a range of parts.
    """
    function = ir.Function(module, _CHUNK, module.get_unique_name("chunk"))
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block())
    args, dims, _, data = function.args
    # The base of the only "array" is 0, and its step 1: its address is the first index.
    first = builder.ptrtoint(builder.load(args), _WORD)
    after = builder.add(first, builder.load(dims))
    share = builder.load(builder.bitcast(data, share_type.as_pointer()))
    packed = builder.extract_value(share, 0)
    count = builder.extract_value(share, 1)
    num_threads = builder.extract_value(share, 2)
    begin = builder.sdiv(builder.mul(count, first), num_threads)
    end = builder.sdiv(builder.mul(count, after), num_threads)
    loop(builder, begin, end, packed)
    builder.ret_void()
    return function


def _call_parallel_for(builder, chunk, share, num_threads):
    """Emit a call of Numba's function of the thread team, with one index per thread."""
    parallel_for = cgutils.get_or_insert_function(
        builder.module, _PARALLEL_FOR, "numba_parallel_for"
    )
    base = cgutils.alloca_once_value(builder, ir.Constant(_BYTES, None))
    step = cgutils.alloca_once_value(builder, ir.Constant(_WORD, 1))
    dims = cgutils.alloca_once(builder, _WORD)
    builder.store(num_threads, dims)
    data = cgutils.alloca_once(builder, share.type)
    builder.store(share, data)
    builder.call(
        parallel_for,
        [
            builder.bitcast(chunk, _BYTES),
            base,
            dims,
            step,
            builder.bitcast(data, _BYTES),
            # Further dimensions of the chunk, and number of arrays.
            ir.Constant(_WORD, 0),
            ir.Constant(_WORD, 1),
            builder.trunc(num_threads, _INT),
        ],
    )
