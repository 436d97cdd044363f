"""CUDA kernels of the path operations: a block takes one source and scans its trie level by level.

The trie is a :class:`teal.network.path_set.LevelTrie`.  A block holds a value for each node and
lane (a lane is one feature of one matrix) and the index that the scan follows, in shared memory
where they fit, else in the block's part of a scratch array in global memory.  Nothing is added by
atomics: a node sums its children and a link sums the nodes that lead over it, both in a fixed
order, so that results repeat bit by bit.

All arrays are flat.
"""

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc"

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numba import cuda, float64

from teal.runtime.cuda import THREADS, cuda_kernel, device_function

_PAST_THE_END = 1 << 30  # a first row that is larger than any last one: the thread has no rows
# Told apart by their length when kernels are compiled.
IN_SHARED_MEMORY = (0,)
IN_GLOBAL_MEMORY = (0, 0)


class TrieArrays(NamedTuple):
    """The arrays of a :class:`teal.network.path_set.LevelTrie` on the GPU; see there."""

    link: Any
    parent: Any
    child_end: Any
    is_path_end: Any
    end_node: Any
    path_count: Any
    node_ptr: Any
    demand_ptr: Any
    level_ptr: Any
    level_end: Any


class NodeMemory(NamedTuple):
    """Where a block keeps the values of its nodes.

    Attributes:
        place: IN_SHARED_MEMORY or IN_GLOBAL_MEMORY.
        scratch: (blocks * max_slots * lanes,) global memory; read only under IN_GLOBAL_MEMORY.
        max_slots: node numbers that the source with most nodes needs, 0 included.
    """

    place: Any
    scratch: Any
    max_slots: int


@device_function
def first_row(lanes):
    """The first of the rows that this thread handles, when THREADS threads divide rows of ``lanes``
    entries.
    """
    row = cuda.threadIdx.x // lanes
    return row if row < THREADS // lanes else _PAST_THE_END


@device_function
def work_item(item, per_source, chunks, lanes, features):
    """Source, matrix, first feature and number of features of work item number ``item``."""
    s = item // per_source
    b = (item - s * per_source) // chunks
    feature = (item - s * per_source - b * chunks) * lanes
    return s, b, feature, min(lanes, features - feature)


@device_function
def node_memory(memory, numbers, slots, lanes, first, nodes):
    """A block's node values, the index ``numbers`` of a source's nodes, and the offset of a node in
    that index.

    In shared memory, the index is a copy; the caller must synchronise before it is read.

    Args:
        memory: a NodeMemory.
        numbers: (T,) the index, of all sources.
        slots: entries of node values a lane.
        lanes: values a node.
        first: first node of the source.
        nodes: number of nodes of the source.
    """
    if len(memory.place) == 1:
        value = cuda.shared.array(0, memory.scratch.dtype)
        index = cuda.shared.array(0, numbers.dtype)[
            slots * lanes * memory.scratch.itemsize // numbers.itemsize :
        ]
        for n in range(cuda.threadIdx.x, nodes, THREADS):
            index[n + 1] = numbers[first + n]
        return value, index, 0
    begin = cuda.blockIdx.x * slots * lanes
    return memory.scratch[begin : begin + slots * lanes], numbers, first - 1


@device_function
def scan_down(value, index, offset, level_end, level, last_level, row, lane, lanes, rows):
    """Add each parent's value to its children, level by level: sums along paths."""
    begin = level_end[level] if level < last_level else 0
    deeper = level + 1
    stop = level_end[deeper] if deeper < last_level else 0
    while deeper < last_level:
        deeper += 1
        next_stop = (
            level_end[deeper] if deeper < last_level else 0
        )  # loaded while this level is added
        n = begin + row
        while n < stop:
            value[n * lanes + lane] += value[index[offset + n] * lanes + lane]
            n += rows
        begin, stop = stop, next_stop
        cuda.syncthreads()


@device_function
def scan_up(value, index, offset, level_end, level, last_level, row, lane, lanes, rows):
    """Add the children's values to each node, from the deepest level up: sums over the paths
    through each node.
    """
    here = last_level - 2  # the nodes of the deepest level have no children
    first_child = level_end[level] if level < last_level else 0
    stop = level_end[here] if here >= level else 0
    while here >= level:
        here -= 1
        begin = level_end[here] if here >= level else 1
        n = begin + row
        while n < stop:
            child = index[offset + n - 1] if n > 1 else first_child
            last = index[offset + n]
            total = value[n * lanes + lane]
            while child < last:
                total += value[child * lanes + lane]
                child += 1
            value[n * lanes + lane] = total
            n += rows
        stop = begin
        cuda.syncthreads()


@cuda_kernel
def path_sum(link_values, out, trie, memory, num_links, num_paths, features, lanes):
    """(B, E, F) link values into (B, D, K, F) sums along paths, ``lanes`` features at a time."""
    sources = len(trie.node_ptr) - 1
    demands, chunks = len(trie.end_node) // num_paths, (features + lanes - 1) // lanes
    per_source = len(link_values) // (num_links * features) * chunks
    for item in range(cuda.blockIdx.x, sources * per_source, cuda.gridDim.x):
        s, b, feature, width = work_item(item, per_source, chunks, lanes, features)
        row, rows = first_row(width), THREADS // width
        lane = cuda.threadIdx.x % width
        first, nodes = trie.node_ptr[s], trie.node_ptr[s + 1] - trie.node_ptr[s]
        value, index, offset = node_memory(
            memory, trie.parent, memory.max_slots, lanes, first, nodes
        )
        base = b * num_links * features + feature + lane
        for n in range(row, nodes, rows):
            value[(n + 1) * width + lane] = link_values[base + trie.link[first + n] * features]
        if cuda.threadIdx.x < width:
            value[cuda.threadIdx.x] = 0
        cuda.syncthreads()
        level, last_level = trie.level_ptr[s], trie.level_ptr[s + 1]
        scan_down(value, index, offset, trie.level_end, level, last_level, row, lane, width, rows)
        begin, stop = trie.demand_ptr[s] * num_paths, trie.demand_ptr[s + 1] * num_paths
        base = b * demands * num_paths * features + feature + lane
        for path in range(begin + row, stop, rows):
            out[base + path * features] = value[
                trie.end_node[path] * width + lane
            ]  # 0 where there is no path
        cuda.syncthreads()


@cuda_kernel
def path_max(link_values, out, out_link, trie, memory, num_links, num_paths):
    """(B, E) link values into (B, D, K) maxima along paths and the links that attain them, -1
    without a path.
    """
    sources, demands = len(trie.node_ptr) - 1, len(trie.end_node) // num_paths
    batch = len(link_values) // num_links
    for item in range(cuda.blockIdx.x, sources * batch, cuda.gridDim.x):
        s = item // batch
        b = item - s * batch
        first, nodes = trie.node_ptr[s], trie.node_ptr[s + 1] - trie.node_ptr[s]
        value, index, offset = node_memory(
            memory, trie.parent, 2 * memory.max_slots, 1, first, nodes
        )
        # The second half holds node numbers, which even a float32 holds exactly: no source has 2^24
        # nodes.
        at_node = value[memory.max_slots :]
        for n in range(cuda.threadIdx.x, nodes, THREADS):
            value[n + 1], at_node[n + 1] = link_values[b * num_links + trie.link[first + n]], n + 1
        cuda.syncthreads()
        level, last_level = trie.level_ptr[s], trie.level_ptr[s + 1]
        begin = trie.level_end[level] if level < last_level else 0
        for deeper in range(level + 1, last_level):
            deeper_end = trie.level_end[deeper]
            for n in range(begin + cuda.threadIdx.x, deeper_end, THREADS):
                above = index[offset + n]
                if value[above] >= value[n]:
                    value[n], at_node[n] = value[above], at_node[above]
            begin = deeper_end
            cuda.syncthreads()
        path, stop = (
            trie.demand_ptr[s] * num_paths + cuda.threadIdx.x,
            trie.demand_ptr[s + 1] * num_paths,
        )
        while path < stop:
            to, n = b * demands * num_paths + path, trie.end_node[path]
            if n > 0:
                out[to], out_link[to] = value[n], trie.link[first + int(at_node[n]) - 1]
            else:
                out[to], out_link[to] = 0, -1
            path += THREADS
        cuda.syncthreads()


@cuda_kernel
def node_flows(path_values, out, trie, memory, num_paths, features, lanes):
    """(B, D, K, F) path values into (B, T, F) sums over the paths through each node."""
    sources = len(trie.node_ptr) - 1
    demands, all_nodes = len(trie.end_node) // num_paths, len(trie.child_end)
    chunks = (features + lanes - 1) // lanes
    per_source = len(path_values) // (demands * num_paths * features) * chunks
    for item in range(cuda.blockIdx.x, sources * per_source, cuda.gridDim.x):
        s, b, feature, width = work_item(item, per_source, chunks, lanes, features)
        row, rows = first_row(width), THREADS // width
        lane = cuda.threadIdx.x % width
        first, nodes = trie.node_ptr[s], trie.node_ptr[s + 1] - trie.node_ptr[s]
        value, index, offset = node_memory(
            memory, trie.child_end, memory.max_slots, lanes, first, nodes
        )
        for n in range(cuda.threadIdx.x, (nodes + 1) * width, THREADS):
            value[n] = 0
        cuda.syncthreads()
        begin, stop = trie.demand_ptr[s] * num_paths, trie.demand_ptr[s + 1] * num_paths
        base = b * demands * num_paths * features + feature + lane
        for path in range(begin + row, stop, rows):
            if trie.end_node[path] > 0:
                value[trie.end_node[path] * width + lane] = path_values[
                    base + path * features
                ]  # one path a node
        cuda.syncthreads()
        level, last_level = trie.level_ptr[s], trie.level_ptr[s + 1]
        scan_up(value, index, offset, trie.level_end, level, last_level, row, lane, width, rows)
        base = (b * all_nodes + first) * features + feature + lane
        for n in range(row, nodes, rows):
            out[base + n * features] = value[(n + 1) * width + lane]
        cuda.syncthreads()


@device_function
def sum_over_link(node_values, base, features, link_ptr, link_node, e, row, rows):
    """This thread's share of the sum over the nodes that lead over link ``e``, float64."""
    total = 0.0
    for i in range(link_ptr[e] + row, link_ptr[e + 1], rows):
        total += node_values[base + link_node[i] * features]
    return total


@device_function
def fold(sums, row, rows, stride):
    """Sum ``rows`` entries of a shared array, ``stride`` apart, into that of row 0; all threads
    must call it.
    """
    me = cuda.threadIdx.x
    while rows > 1:
        cuda.syncthreads()
        half = (rows + 1) // 2
        if row + half < rows:
            sums[me] += sums[me + half * stride]
        rows = half
    cuda.syncthreads()


@cuda_kernel
def link_totals(node_values, out, link_ptr, link_node, features, lanes, rows):
    """(B, T, F) node values into (B, E, F) sums over the nodes of each link, ``rows`` threads a
    link and lane.
    """
    links, nodes = len(link_ptr) - 1, len(link_node)
    chunks, teams = (
        (features + lanes - 1) // lanes,
        THREADS // (lanes * rows),
    )  # a team of threads takes one link
    blocks = (links + teams - 1) // teams  # for each chunk of each matrix
    part = cuda.blockIdx.x // blocks  # number of the matrix and of the chunk of its features
    b = part // chunks
    feature = (part - b * chunks) * lanes
    width = min(lanes, features - feature)  # of the last chunk less: some teams have nothing to do
    team = cuda.threadIdx.x // (width * rows)
    row, lane = cuda.threadIdx.x // width - team * rows, cuda.threadIdx.x % width
    e = (cuda.blockIdx.x - part * blocks) * teams + team
    sums = cuda.shared.array(THREADS, float64)
    has_link = team < teams and e < links
    total = 0.0
    if has_link:
        base = b * nodes * features + feature + lane
        total = sum_over_link(node_values, base, features, link_ptr, link_node, e, row, rows)
    sums[cuda.threadIdx.x] = total
    fold(sums, row if has_link else rows, rows, width)  # at row ``rows`` a thread adds nothing
    if has_link and row == 0:
        out[(b * links + e) * features + feature + lane] = sums[cuda.threadIdx.x]


@device_function
def _add_piece(values, begin, end, partial):
    """Least, largest, sum and least above 0 of what a thread takes of ``values[begin:end]``."""
    thread = cuda.threadIdx.x
    least = math.inf
    most = -math.inf
    total = 0.0
    positive = math.inf
    for i in range(begin + thread, end, THREADS):
        number = float64(values[i])
        least = min(least, number)
        most = max(most, number)
        total += number
        if number > 0:
            positive = min(positive, number)
    partial[0, thread] = least
    partial[1, thread] = most
    partial[2, thread] = total
    partial[3, thread] = positive


@cuda_kernel
def extremes(first, second, third, fourth, begin, width, piece, out):
    """Least, largest, sum and least above 0 of each piece of the rows of four arrays.

    Args:
        first, second, third, fourth: flat arrays.
        begin: (5,) number of the first piece of each array, and number of all pieces.
        width: (4,) length of the rows of each array.
        piece: numbers of a piece, at most.
        out: (4 pieces,) the numbers of each piece, those of a row side by side.
    """
    partial = cuda.shared.array((4, THREADS), float64)
    thread = cuda.threadIdx.x
    for item in range(cuda.blockIdx.x, begin[4], cuda.gridDim.x):
        array = 0
        while item >= begin[array + 1]:
            array += 1
        of_row = (width[array] + piece - 1) // piece
        row = (item - begin[array]) // of_row
        part = (item - begin[array]) % of_row
        low = row * width[array] + part * piece
        high = row * width[array] + min(width[array], (part + 1) * piece)
        if array == 0:
            _add_piece(first, low, high, partial)
        elif array == 1:
            _add_piece(second, low, high, partial)
        elif array == 2:
            _add_piece(third, low, high, partial)
        else:
            _add_piece(fourth, low, high, partial)
        cuda.syncthreads()
        step = THREADS // 2
        while step > 0:
            if thread < step:
                other = thread + step
                partial[0, thread] = min(partial[0, thread], partial[0, other])
                partial[1, thread] = max(partial[1, thread], partial[1, other])
                partial[2, thread] += partial[2, other]
                partial[3, thread] = min(partial[3, thread], partial[3, other])
            cuda.syncthreads()
            step //= 2
        if thread < 4:
            out[4 * item + thread] = partial[thread, 0]
        cuda.syncthreads()
