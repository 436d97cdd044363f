"""CUDA kernels of the path operations: level-synchronous scans of one source's trie per block.

The trie is a :class:`teal.network.path_set.LevelTrie`.  A block holds a value for each node and
lane (a lane is one feature of one matrix) and the index that the scan follows, in shared memory if
they fit, else in the block's part of a scratch array in global memory.  There are no atomics: a
node sums its children and a link sums its nodes in a fixed order, so that results are bitwise
reproducible.

All arrays are flat.
"""

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc"

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numba import cuda, float64

from teal.runtime.cuda import THREADS, cuda_kernel, device_function

# First row of a thread without rows: larger than any number of rows.
_NO_ROW = 1 << 30
# Places of the node values: Numba tells the tuples apart by their length, at compile time.
IN_SHARED_MEMORY = (0,)
IN_GLOBAL_MEMORY = (0, 0)


class TrieArrays(NamedTuple):
    """Arrays of a :class:`teal.network.path_set.LevelTrie` on the GPU.

    S sources, T trie nodes, D demands, K path slots per demand.  The nodes of a source are numbered
    1, 2, ... level by level, siblings adjacent; 0 is the source itself.

    Attributes:
        link: (T,) link into each node.
        parent: (T,) parent of each node, numbered within the source.
        child_end: (T,) number after the last child of each node; the children of node i are
            ``child_end[i - 1]`` to ``child_end[i] - 1``, those of node 1 begin where level 1 ends.
        is_path_end: (T,) 1 where a path ends.
        end_node: (D, K) node where each path ends, numbered within the source; 0 without a path.
        path_count: (D,) number of paths of each demand.
        node_ptr: (S + 1,) the nodes of source s are ``node_ptr[s]:node_ptr[s + 1]``.
        demand_ptr: (S + 1,) the demands of source s are ``demand_ptr[s]:demand_ptr[s + 1]``.
        level_ptr: (S + 1,) the levels of source s are ``level_ptr[s]:level_ptr[s + 1]``.
        level_end: (levels of all sources,) number after the last node of each level.
    """

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
    """Memory for the node values of a block.

    Attributes:
        space: IN_SHARED_MEMORY or IN_GLOBAL_MEMORY.
        scratch: (blocks * max_trie_nodes * lanes,) global memory; used only for IN_GLOBAL_MEMORY.
        max_trie_nodes: maximum number of nodes of a source, including the source itself.
    """

    space: Any
    scratch: Any
    max_trie_nodes: int


@device_function
def first_row(lanes):
    """Return the first row of this thread, where ``lanes`` threads share a row.

    If THREADS is not a multiple of ``lanes``, the threads that are left over get ``_NO_ROW``, which
    is larger than any number of rows.
    """
    row = cuda.threadIdx.x // lanes
    return row if row < THREADS // lanes else _NO_ROW


@device_function
def work_item(item, items_per_source, num_chunks, lanes, features):
    """Return source, matrix, first feature and number of features of a work item.

    Items are ordered by source, then matrix, then chunk of at most ``lanes`` features.

    Args:
        item: index of the item.
        items_per_source: number of items of a source, matrices times chunks.
        num_chunks: number of chunks of features.
        lanes: number of features of a chunk; the last one may have fewer.
        features: number of all features.
    """
    source = item // items_per_source
    matrix = (item - source * items_per_source) // num_chunks
    feature = (item - source * items_per_source - matrix * num_chunks) * lanes
    return source, matrix, feature, min(lanes, features - feature)


@device_function
def node_memory(memory, tree_index, num_entries, lanes, first_node, num_nodes):
    """Return memory for a block's node values, and access to the tree index of a source's nodes.

    The index of node n (1, 2, ... within the source) is ``index[offset + n]`` in the result (value,
    index, offset).  In shared memory, the index is a copy; the caller must synchronise before
    reading it.

    Args:
        memory: a NodeMemory.
        tree_index: (T,) index of the nodes of all sources: ``parent`` or ``child_end`` of
            TrieArrays.
        num_entries: number of node values per lane.
        lanes: number of values per node.
        first_node: first node of the source, in ``tree_index``.
        num_nodes: number of nodes of the source.

    Returns:
        ``num_entries * lanes`` uninitialised node values, the index, and the offset.
    """
    if len(memory.space) == 1:
        # Shared memory holds the values, then the copy of the index.
        value = cuda.shared.array(0, memory.scratch.dtype)
        index = cuda.shared.array(0, tree_index.dtype)[
            num_entries * lanes * memory.scratch.itemsize // tree_index.itemsize :
        ]
        for n in range(cuda.threadIdx.x, num_nodes, THREADS):
            index[n + 1] = tree_index[first_node + n]
        return value, index, 0
    first_entry = cuda.blockIdx.x * num_entries * lanes
    return (
        memory.scratch[first_entry : first_entry + num_entries * lanes],
        tree_index,
        first_node - 1,
    )


@device_function
def scan_down(value, index, offset, level_end, level, end_level, row, lane, lanes, rows):
    """Add each parent's value to its children, level by level from the root (sums along paths).

    value[n] <- value[n] + value[parent of n].  The threads form a grid of rows and lanes: a thread
    processes every ``rows``-th node of a level, in one lane.  All threads must call it.

    Args:
        value: (max_trie_nodes, lanes) value of each node, row 0 the source (written).
        index: parents; that of node n is ``index[offset + n]``.
        offset: offset of the source's nodes in ``index``.
        level_end: number after the last node of each level, of all sources.
        level: first level of the source, in ``level_end``.
        end_level: level after the source's last one.
        row: row of this thread.
        lane: lane of this thread.
        lanes: number of values per node.
        rows: number of rows of threads.
    """
    # Start at level 2: the parent of a node of level 1 is the source, which adds nothing.
    begin = level_end[level] if level < end_level else 0
    deeper_level = level + 1
    stop = level_end[deeper_level] if deeper_level < end_level else 0
    while deeper_level < end_level:
        deeper_level += 1
        # Prefetched while this level is added.
        next_stop = level_end[deeper_level] if deeper_level < end_level else 0
        n = begin + row
        while n < stop:
            value[n * lanes + lane] += value[index[offset + n] * lanes + lane]
            n += rows
        begin = stop
        stop = next_stop
        cuda.syncthreads()


@device_function
def scan_up(value, index, offset, level_end, level, end_level, row, lane, lanes, rows):
    """Add the children's values to each node, level by level from the deepest (sums over paths).

    value[n] <- value[n] + sum of value over the children of n.  The threads form a grid of rows and
    lanes: a thread processes every ``rows``-th node of a level, in one lane.  All threads must call
    it.

    Args:
        value: (max_trie_nodes, lanes) value of each node, row 0 the source (written, except row 0).
        index: ends of the children; those of node n are ``index[offset + n - 1]`` to
            ``index[offset + n] - 1``, those of node 1 begin where level 1 ends.
        offset: offset of the source's nodes in ``index``.
        level_end: number after the last node of each level, of all sources.
        level: first level of the source, in ``level_end``.
        end_level: level after the source's last one.
        row: row of this thread.
        lane: lane of this thread.
        lanes: number of values per node.
        rows: number of rows of threads.
    """
    # The nodes of the deepest level have no children.
    current_level = end_level - 2
    first_child = level_end[level] if level < end_level else 0
    stop = level_end[current_level] if current_level >= level else 0
    while current_level >= level:
        current_level -= 1
        begin = level_end[current_level] if current_level >= level else 1
        n = begin + row
        while n < stop:
            child = index[offset + n - 1] if n > 1 else first_child
            end_child = index[offset + n]
            total = value[n * lanes + lane]
            while child < end_child:
                total += value[child * lanes + lane]
                child += 1
            value[n * lanes + lane] = total
            n += rows
        stop = begin
        cuda.syncthreads()


@cuda_kernel
def path_sum(link_values, out, trie, memory, num_links, num_paths, features, lanes):
    """Sum link values along every path: (B, E, F) -> (B, D, K, F).

    A block processes one source of one matrix and at most ``lanes`` features at a time, by a
    top-down scan of the source's trie.

    Args:
        link_values: (B, E, F), flat.
        out: (B, D, K, F), flat (written); 0 where a demand has no k-th path.
        trie: TrieArrays of D demands.
        memory: NodeMemory of the blocks.
        num_links: E.
        num_paths: K.
        features: F.
        lanes: number of features per work item.
    """
    num_sources = len(trie.node_ptr) - 1
    num_demands = len(trie.end_node) // num_paths
    num_chunks = (features + lanes - 1) // lanes
    items_per_source = len(link_values) // (num_links * features) * num_chunks
    for item in range(cuda.blockIdx.x, num_sources * items_per_source, cuda.gridDim.x):
        # Work item: a source, a matrix, and ``width`` features from ``feature``.
        s, b, feature, width = work_item(item, items_per_source, num_chunks, lanes, features)
        row = first_row(width)
        rows = THREADS // width
        lane = cuda.threadIdx.x % width
        first_node = trie.node_ptr[s]
        num_nodes = trie.node_ptr[s + 1] - trie.node_ptr[s]
        value, index, offset = node_memory(
            memory, trie.parent, memory.max_trie_nodes, lanes, first_node, num_nodes
        )
        # Values of the links into the nodes; 0 at the source.
        position = b * num_links * features + feature + lane
        for n in range(row, num_nodes, rows):
            value[(n + 1) * width + lane] = link_values[
                position + trie.link[first_node + n] * features
            ]
        if cuda.threadIdx.x < width:
            value[cuda.threadIdx.x] = 0
        cuda.syncthreads()
        # Sums from the source to each node.
        level = trie.level_ptr[s]
        end_level = trie.level_ptr[s + 1]
        scan_down(value, index, offset, trie.level_end, level, end_level, row, lane, width, rows)
        # Sums of the paths, from their end nodes.
        begin = trie.demand_ptr[s] * num_paths
        stop = trie.demand_ptr[s + 1] * num_paths
        position = b * num_demands * num_paths * features + feature + lane
        for path in range(begin + row, stop, rows):
            # Without a path the end node is 0, the source, with the value 0.
            out[position + path * features] = value[trie.end_node[path] * width + lane]
        cuda.syncthreads()


@cuda_kernel
def path_max(link_values, out, out_link, trie, memory, num_links, num_paths):
    """Compute the largest link value along every path, and the link: (B, E) -> 2 times (B, D, K).

    A block processes one source of one matrix at a time.  Of links with equal values the one
    nearest the source is returned.

    Args:
        link_values: (B, E), flat.
        out: (B, D, K) largest value, flat (written); 0 where a demand has no k-th path.
        out_link: (B, D, K) link, flat (written); -1 where a demand has no k-th path.
        trie: TrieArrays of D demands.
        memory: NodeMemory of the blocks, with two values per node.
        num_links: E.
        num_paths: K.
    """
    num_sources = len(trie.node_ptr) - 1
    num_demands = len(trie.end_node) // num_paths
    batch = len(link_values) // num_links
    for item in range(cuda.blockIdx.x, num_sources * batch, cuda.gridDim.x):
        # Source s of matrix b.
        s = item // batch
        b = item - s * batch
        first_node = trie.node_ptr[s]
        num_nodes = trie.node_ptr[s + 1] - trie.node_ptr[s]
        value, index, offset = node_memory(
            memory, trie.parent, 2 * memory.max_trie_nodes, 1, first_node, num_nodes
        )
        # The second half holds, for each node, the node with the largest value on the path to it;
        # even a float32 holds node numbers exactly: no source has 2^24 nodes.
        max_node = value[memory.max_trie_nodes :]
        for n in range(cuda.threadIdx.x, num_nodes, THREADS):
            value[n + 1] = link_values[b * num_links + trie.link[first_node + n]]
            max_node[n + 1] = n + 1
        cuda.syncthreads()
        # Maxima from the source to each node, level by level.
        level = trie.level_ptr[s]
        end_level = trie.level_ptr[s + 1]
        begin = trie.level_end[level] if level < end_level else 0
        for deeper_level in range(level + 1, end_level):
            deeper_end = trie.level_end[deeper_level]
            for n in range(begin + cuda.threadIdx.x, deeper_end, THREADS):
                parent = index[offset + n]
                if value[parent] >= value[n]:
                    value[n] = value[parent]
                    max_node[n] = max_node[parent]
            begin = deeper_end
            cuda.syncthreads()
        # Maxima of the paths, from their end nodes.
        path = trie.demand_ptr[s] * num_paths + cuda.threadIdx.x
        stop = trie.demand_ptr[s + 1] * num_paths
        while path < stop:
            slot = b * num_demands * num_paths + path
            n = trie.end_node[path]
            if n > 0:
                out[slot] = value[n]
                out_link[slot] = trie.link[first_node + int(max_node[n]) - 1]
            else:
                out[slot] = 0
                out_link[slot] = -1
            path += THREADS
        cuda.syncthreads()


@cuda_kernel
def node_flows(path_values, out, trie, memory, num_paths, features, lanes):
    """Sum path values over the paths through every trie node: (B, D, K, F) -> (B, T, F).

    A block processes one source of one matrix and at most ``lanes`` features at a time, by a
    bottom-up scan of the source's trie.

    Args:
        path_values: (B, D, K, F), flat; slots without a path are ignored.
        out: (B, T, F), flat, nodes of all sources (written).
        trie: TrieArrays of D demands.
        memory: NodeMemory of the blocks.
        num_paths: K.
        features: F.
        lanes: number of features per work item.
    """
    num_sources = len(trie.node_ptr) - 1
    num_demands = len(trie.end_node) // num_paths
    all_nodes = len(trie.child_end)
    num_chunks = (features + lanes - 1) // lanes
    items_per_source = len(path_values) // (num_demands * num_paths * features) * num_chunks
    for item in range(cuda.blockIdx.x, num_sources * items_per_source, cuda.gridDim.x):
        # Work item: a source, a matrix, and ``width`` features from ``feature``.
        s, b, feature, width = work_item(item, items_per_source, num_chunks, lanes, features)
        row = first_row(width)
        rows = THREADS // width
        lane = cuda.threadIdx.x % width
        first_node = trie.node_ptr[s]
        num_nodes = trie.node_ptr[s + 1] - trie.node_ptr[s]
        value, index, offset = node_memory(
            memory, trie.child_end, memory.max_trie_nodes, lanes, first_node, num_nodes
        )
        for n in range(cuda.threadIdx.x, (num_nodes + 1) * width, THREADS):
            value[n] = 0
        cuda.syncthreads()
        # Path values at the end nodes.
        begin = trie.demand_ptr[s] * num_paths
        stop = trie.demand_ptr[s + 1] * num_paths
        position = b * num_demands * num_paths * features + feature + lane
        for path in range(begin + row, stop, rows):
            if trie.end_node[path] > 0:
                # At most one path ends at a node.
                value[trie.end_node[path] * width + lane] = path_values[position + path * features]
        cuda.syncthreads()
        # Sums over the subtrees.
        level = trie.level_ptr[s]
        end_level = trie.level_ptr[s + 1]
        scan_up(value, index, offset, trie.level_end, level, end_level, row, lane, width, rows)
        position = (b * all_nodes + first_node) * features + feature + lane
        for n in range(row, num_nodes, rows):
            out[position + n * features] = value[(n + 1) * width + lane]
        cuda.syncthreads()


@device_function
def sum_over_link(node_values, first_position, features, link_ptr, link_node, e, row, rows):
    """Return this thread's part of the sum over the trie nodes of link ``e``, in float64.

    Args:
        node_values: (B, T, F) node values, flat.
        first_position: position of matrix and feature in ``node_values``.
        features: F.
        link_ptr, link_node: CSR: nodes into which link e leads are
            ``link_node[link_ptr[e]:link_ptr[e + 1]]``.
        e: link.
        row: index of this thread in its team.
        rows: number of threads in the team; each sums every ``rows``-th node.
    """
    total = 0.0
    for i in range(link_ptr[e] + row, link_ptr[e + 1], rows):
        total += node_values[first_position + link_node[i] * features]
    return total


@device_function
def fold(sums, row, rows, stride):
    """Add up ``rows`` entries of a shared array, ``stride`` apart, into row 0 (tree reduction).

    All threads must call it.

    Args:
        sums: (THREADS,) shared array, one entry per thread (overwritten).
        row: row of this thread; at least ``rows`` for a thread without a part.
        rows: number of rows.
        stride: distance of two rows in ``sums``.
    """
    thread = cuda.threadIdx.x
    while rows > 1:
        cuda.syncthreads()
        half = (rows + 1) // 2
        if row + half < rows:
            sums[thread] += sums[thread + half * stride]
        rows = half
    cuda.syncthreads()


@cuda_kernel
def link_totals(node_values, out, link_ptr, link_node, features, lanes, rows):
    """Sum node values over the trie nodes of every link: (B, T, F) -> (B, E, F).

    A team of ``rows`` threads for each of at most ``lanes`` features sums one link.

    Args:
        node_values: (B, T, F), flat.
        out: (B, E, F), flat (written).
        link_ptr, link_node: CSR: nodes into which link e leads are
            ``link_node[link_ptr[e]:link_ptr[e + 1]]``; (E + 1,) and (T,).
        features: F.
        lanes: number of features of a chunk; the last chunk may have fewer.
        rows: number of threads per link and feature.
    """
    num_links = len(link_ptr) - 1
    num_nodes = len(link_node)
    # Chunks of features, and teams of a block; a team of ``lanes * rows`` threads sums one link.
    num_chunks = (features + lanes - 1) // lanes
    num_teams = THREADS // (lanes * rows)
    # Blocks for each chunk of each matrix.
    blocks_per_chunk = (num_links + num_teams - 1) // num_teams
    # Index of the matrix and of the chunk of its features.
    chunk_index = cuda.blockIdx.x // blocks_per_chunk
    b = chunk_index // num_chunks
    feature = (chunk_index - b * num_chunks) * lanes
    # The last chunk is narrower: some teams have nothing to do.
    width = min(lanes, features - feature)
    team = cuda.threadIdx.x // (width * rows)
    row = cuda.threadIdx.x // width - team * rows
    lane = cuda.threadIdx.x % width
    e = (cuda.blockIdx.x - chunk_index * blocks_per_chunk) * num_teams + team
    # Part of each thread, then the tree reduction over each team.
    sums = cuda.shared.array(THREADS, float64)
    has_link = team < num_teams and e < num_links
    total = 0.0
    if has_link:
        first_position = b * num_nodes * features + feature + lane
        total = sum_over_link(
            node_values, first_position, features, link_ptr, link_node, e, row, rows
        )
    sums[cuda.threadIdx.x] = total
    # At row ``rows`` a thread adds nothing.
    fold(sums, row if has_link else rows, rows, width)
    if has_link and row == 0:
        out[(b * num_links + e) * features + feature + lane] = sums[cuda.threadIdx.x]


@device_function
def _reduce_chunk(values, begin, end, thread_results):
    """Compute minimum, maximum, sum and minimum positive value of a thread's part of
    ``values[begin:end]``.

    Args:
        values: flat array.
        begin, end: range of the chunk; a thread reads every THREADS-th entry.
        thread_results: (4, THREADS) the four results of each thread (column of this thread is
            written); an infinite minimum positive value if there is none.
    """
    thread = cuda.threadIdx.x
    minimum = math.inf
    maximum = -math.inf
    value_sum = 0.0
    min_positive = math.inf
    for i in range(begin + thread, end, THREADS):
        value = float64(values[i])
        minimum = min(minimum, value)
        maximum = max(maximum, value)
        value_sum += value
        if value > 0:
            min_positive = min(min_positive, value)
    thread_results[0, thread] = minimum
    thread_results[1, thread] = maximum
    thread_results[2, thread] = value_sum
    thread_results[3, thread] = min_positive


@cuda_kernel
def extremes(first, second, third, fourth, first_chunk, width, chunk_size, out):
    """Compute minimum, maximum, sum and minimum positive value of each chunk of four arrays' rows.

    Every row is divided into chunks of at most ``chunk_size`` entries; a block reduces one chunk at
    a time.  The chunks of the four arrays are numbered consecutively.

    Args:
        first, second, third, fourth: arrays (B, n), flat.
        first_chunk: (5,) index of the first chunk of each array, and number of all chunks.
        width: (4,) n of each array.
        chunk_size: maximum number of entries of a chunk.
        out: (chunks, 4) results of each chunk, flat, the chunks of a row adjacent (written).
    """
    # (4, THREADS) results of the threads.
    thread_results = cuda.shared.array((4, THREADS), float64)
    thread = cuda.threadIdx.x
    for item in range(cuda.blockIdx.x, first_chunk[4], cuda.gridDim.x):
        # Array, row and range of the chunk.
        array_index = 0
        while item >= first_chunk[array_index + 1]:
            array_index += 1
        chunks_per_row = (width[array_index] + chunk_size - 1) // chunk_size
        row = (item - first_chunk[array_index]) // chunks_per_row
        chunk = (item - first_chunk[array_index]) % chunks_per_row
        chunk_begin = row * width[array_index] + chunk * chunk_size
        chunk_end = row * width[array_index] + min(width[array_index], (chunk + 1) * chunk_size)
        if array_index == 0:
            _reduce_chunk(first, chunk_begin, chunk_end, thread_results)
        elif array_index == 1:
            _reduce_chunk(second, chunk_begin, chunk_end, thread_results)
        elif array_index == 2:
            _reduce_chunk(third, chunk_begin, chunk_end, thread_results)
        else:
            _reduce_chunk(fourth, chunk_begin, chunk_end, thread_results)
        cuda.syncthreads()
        # Tree reduction over the threads.
        step = THREADS // 2
        while step > 0:
            if thread < step:
                partner = thread + step
                thread_results[0, thread] = min(
                    thread_results[0, thread], thread_results[0, partner]
                )
                thread_results[1, thread] = max(
                    thread_results[1, thread], thread_results[1, partner]
                )
                thread_results[2, thread] += thread_results[2, partner]
                thread_results[3, thread] = min(
                    thread_results[3, thread], thread_results[3, partner]
                )
            cuda.syncthreads()
            step //= 2
        if thread < 4:
            out[4 * item + thread] = thread_results[thread, 0]
        cuda.syncthreads()
