"""``parallel_for``: a loop over independent parts on Numba's thread team, from inside a kernel.

The function of a part is compiled once, for one thread and for many.  Numba's own ``prange``
compiles the body of a loop twice, serial and parallel, which takes twice as long.
"""

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc"

from __future__ import annotations

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

# LLVM types: 64-bit and 32-bit integer, and untyped pointer.
_INT64 = ir.IntType(64)
_INT32 = ir.IntType(32)
_BYTE_POINTER = ir.IntType(8).as_pointer()
# Numba's function numba_parallel_for (``numba/np/ufunc/omppool.cpp``) splits 0 .. dims[0] - 1 into
# chunks, one per thread.  For each chunk it calls function(args, dims, steps, data), with args[i]
# advanced by (first index of the chunk) * steps[i], and dims[0] set to the length of the chunk.
_INT64_POINTER = _INT64.as_pointer()
_CHUNK_TYPE = ir.FunctionType(
    ir.VoidType(), [_BYTE_POINTER.as_pointer(), _INT64_POINTER, _INT64_POINTER, _BYTE_POINTER]
)
_PARALLEL_FOR_TYPE = ir.FunctionType(
    ir.VoidType(),
    [
        _BYTE_POINTER,
        _BYTE_POINTER.as_pointer(),
        _INT64_POINTER,
        _INT64_POINTER,
        _BYTE_POINTER,
        _INT64,
        _INT64,
        _INT32,
    ],
)
_GET_NUM_THREADS_TYPE = ir.FunctionType(_INT32, [])


def start_team() -> None:
    """Start Numba's threads, and register the symbols that compiled ``parallel_for`` refers to.

    Must be called before a kernel that uses it is compiled or loaded.
    """
    numba.get_num_threads()


@intrinsic
def parallel_for(typingctx, function, count, arguments):
    """Call ``function(part, *arguments)`` for all parts 0 .. count - 1, and wait for the last.

    Of T = ``min(numba.get_num_threads(), count)`` threads, thread t computes the parts
    t * count // T to (t + 1) * count // T - 1.  This function is a Numba intrinsic: it runs at
    compile time, and returns the signature and the emitter of LLVM code of a call.

    Args:
        typingctx: Numba's typing context.
        function: Numba type of the called inner kernel, which has no result and must not raise,
            since an exception would be lost.
        count: Numba type of the number of parts, int64.
        arguments: Numba type of the tuple of the kernel's further arguments.
    """
    # Compile the kernel for the types of these arguments.
    part_types = (types.int64, *arguments.types)
    part_signature = typingctx.resolve_function_type(function, part_types, {})
    compiled = function.dispatcher.overloads[part_signature.args]

    def codegen(context, builder, signature, values):
        """Emit the LLVM code of a call; Numba passes its context, builder, types and values."""
        # LLVM values of the number of parts, and of the tuple of arguments.
        _, count, argument_tuple = values
        context.active_code_library.add_linking_library(compiled.library)
        callee = context.declare_function(builder.module, compiled.fndesc)

        def emit_loop(builder, begin, end, argument_tuple):
            """Emit ``for part in range(begin, end): function(part, *arguments)``."""
            values = cgutils.unpack_tuple(builder, argument_tuple)
            step = ir.Constant(_INT64, 1)
            with cgutils.for_range_slice(builder, begin, end, step, inc=True) as (part, _):
                context.call_conv.call_function(
                    builder,
                    callee,
                    compiled.fndesc.restype,
                    compiled.fndesc.argtypes,
                    [part, *values],
                )

        # Struct that all threads read: arguments, number of parts, number of threads.
        loop_type = ir.LiteralStructType([argument_tuple.type, _INT64, _INT64])
        chunk = _chunk_function(builder.module, loop_type, emit_loop)
        # num_threads = min(numba.get_num_threads(), count)
        get_num_threads = cgutils.get_or_insert_function(
            builder.module, _GET_NUM_THREADS_TYPE, "get_num_threads"
        )
        max_threads = builder.sext(builder.call(get_num_threads, []), _INT64)
        has_few_parts = builder.icmp_signed("<", count, max_threads)
        num_threads = builder.select(has_few_parts, count, max_threads)
        # With one thread run the loop here, else on the thread team.
        is_serial = builder.icmp_signed("<=", num_threads, ir.Constant(_INT64, 1))
        with builder.if_else(is_serial) as (serial_block, parallel_block):
            with serial_block:
                emit_loop(builder, ir.Constant(_INT64, 0), count, argument_tuple)
            with parallel_block:
                loop_data = cgutils.pack_struct(builder, [argument_tuple, count, num_threads])
                _call_parallel_for(builder, chunk, loop_data, num_threads)
        return context.get_dummy_value()

    return types.void(function, types.int64, arguments), codegen


def _chunk_function(module, loop_type, emit_loop):
    """Return the LLVM function that a thread calls for a chunk of thread indices.

    For the thread indices ``first_thread`` .. ``end_thread - 1`` it computes the parts
    ``first_thread * count // T`` to ``end_thread * count // T - 1``, with T threads.

    Args:
        module: LLVM module that receives the function.
        loop_type: struct of the tuple of arguments, the number of parts and the number of threads.
        emit_loop: function that emits the loop over a range of parts.
    """
    function = ir.Function(module, _CHUNK_TYPE, module.get_unique_name("chunk"))
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block())
    args, dims, _, data = function.args
    # The only "array" has address 0 and a step of 1 byte, so that its advanced address is the first
    # thread index of the chunk.
    first_thread = builder.ptrtoint(builder.load(args), _INT64)
    end_thread = builder.add(first_thread, builder.load(dims))
    # Unpack the struct, and loop over the parts of these threads.
    loop_data = builder.load(builder.bitcast(data, loop_type.as_pointer()))
    argument_tuple = builder.extract_value(loop_data, 0)
    count = builder.extract_value(loop_data, 1)
    num_threads = builder.extract_value(loop_data, 2)
    first_part = builder.sdiv(builder.mul(count, first_thread), num_threads)
    end_part = builder.sdiv(builder.mul(count, end_thread), num_threads)
    emit_loop(builder, first_part, end_part, argument_tuple)
    builder.ret_void()
    return function


def _call_parallel_for(builder, chunk, loop_data, num_threads):
    """Emit a call of Numba's ``numba_parallel_for`` over the thread indices 0 .. num_threads - 1.

    Args:
        builder: LLVM builder at the place of the call.
        chunk: LLVM function that a thread calls for a chunk of thread indices.
        loop_data: LLVM value of the struct that the chunk function reads.
        num_threads: LLVM value of the number of threads.
    """
    parallel_for = cgutils.get_or_insert_function(
        builder.module, _PARALLEL_FOR_TYPE, "numba_parallel_for"
    )
    # One "array" at address 0 with a step of 1, over num_threads indices.
    address = cgutils.alloca_once_value(builder, ir.Constant(_BYTE_POINTER, None))
    step = cgutils.alloca_once_value(builder, ir.Constant(_INT64, 1))
    dims = cgutils.alloca_once(builder, _INT64)
    builder.store(num_threads, dims)
    data = cgutils.alloca_once(builder, loop_data.type)
    builder.store(loop_data, data)
    builder.call(
        parallel_for,
        [
            builder.bitcast(chunk, _BYTE_POINTER),
            address,
            dims,
            step,
            builder.bitcast(data, _BYTE_POINTER),
            # Number of inner dimensions, number of arrays, and number of threads.
            ir.Constant(_INT64, 0),
            ir.Constant(_INT64, 1),
            builder.trunc(num_threads, _INT32),
        ],
    )
