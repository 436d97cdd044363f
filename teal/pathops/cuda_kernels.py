"""CUDA kernels of the path operations: a block takes one source and scans its trie level by level.

The trie is that of :class:`teal.network.levels.LevelTrie`.  A block holds a value for each node and lane (a lane is
one feature of one matrix), and the index that the scan follows, in shared memory where they fit (``mode`` of length
1), else in its part of ``scratch`` (length 2); the branch is taken by the compiler.  Nothing is added up by atomics:
a node sums what hangs below it, and a link the nodes that lead over it, both in a fixed order, so that results
repeat bit by bit.

``starts`` is node_ptr, demand_ptr and level_ptr one after another; arrays are flat.
"""

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc"

from __future__ import annotations

from numba import cuda, float64

from teal.cuda import THREADS, cuda_kernel, device_function

_NEVER = 1 << 30  # a first row past every last one


@device_function
def first_row(lanes):
    """The row, of those that all threads take in turn, with which this thread begins; a thread left over has none."""
    row = cuda.threadIdx.x // lanes
    return row if row < THREADS // lanes else _NEVER


@device_function
def part_of(item, per_source, chunks, lanes, features):
    """Source, matrix, first feature and number of features of an item of work."""
    s = item // per_source
    b = (item - s * per_source) // chunks
    feature = (item - s * per_source - b * chunks) * lanes
    return s, b, feature, min(lanes, features - feature)


@device_function
def hold(mode, scratch, numbers, widest, lanes, first, nodes):
    """A block's values, the index of a source's nodes, and what to add to a node's number to find it there.

    ``numbers`` is copied to shared memory; the caller synchronises before it reads.
    """
    if len(mode) == 1:
        value = cuda.shared.array(0, scratch.dtype)
        index = cuda.shared.array(0, numbers.dtype)[widest * lanes * scratch.itemsize // numbers.itemsize :]
        for n in range(cuda.threadIdx.x, nodes, THREADS):
            index[n + 1] = numbers[first + n]
        return value, index, 0
    return scratch[cuda.blockIdx.x * widest * lanes : (cuda.blockIdx.x + 1) * widest * lanes], numbers, first - 1


@device_function
def scan_down(value, index, shift, level_end, level, last_level, row, lane, lanes, rows):
    """Add to each node's value that of the node above, level by level: sums along paths."""
    begin = level_end[level] if level < last_level else 0
    deeper = level + 1
    stop = level_end[deeper] if deeper < last_level else 0
    while deeper < last_level:
        deeper += 1
        after = level_end[deeper] if deeper < last_level else 0  # on its way while this level is added
        n = begin + row
        while n < stop:
            value[n * lanes + lane] += value[index[shift + n] * lanes + lane]
            n += rows
        begin, stop = stop, after
        cuda.syncthreads()


@device_function
def scan_up(value, index, shift, level_end, level, last_level, row, lane, lanes, rows):
    """Add to each node's value those of the nodes below, from the deepest level up: sums over what passes."""
    here = last_level - 2  # the deepest level has nothing below
    top = level_end[level] if level < last_level else 0
    stop = level_end[here] if here >= level else 0
    while here >= level:
        here -= 1
        begin = level_end[here] if here >= level else 1
        n = begin + row
        while n < stop:
            child = index[shift + n - 1] if n > 1 else top
            last = index[shift + n]
            total = value[n * lanes + lane]
            while child < last:
                total += value[child * lanes + lane]
                child += 1
            value[n * lanes + lane] = total
            n += rows
        stop = begin
        cuda.syncthreads()


@cuda_kernel
def path_sum(
    link_values, out, scratch, link, above, end, starts, level_end, widest, links, places, features, lanes, mode
):
    """(B, E, F) link values into (B, D, K, F) sums along paths, ``lanes`` features at a time."""
    sources = len(starts) // 3 - 1
    demands, chunks = len(end) // places, (features + lanes - 1) // lanes
    per_source = len(link_values) // (links * features) * chunks
    for item in range(cuda.blockIdx.x, sources * per_source, cuda.gridDim.x):
        s, b, feature, width = part_of(item, per_source, chunks, lanes, features)
        row, rows = first_row(width), THREADS // width
        lane = cuda.threadIdx.x % width
        first, nodes = starts[s], starts[s + 1] - starts[s]
        value, index, shift = hold(mode, scratch, above, widest, lanes, first, nodes)
        base = b * links * features + feature + lane
        for n in range(row, nodes, rows):
            value[(n + 1) * width + lane] = link_values[base + link[first + n] * features]
        if cuda.threadIdx.x < width:
            value[cuda.threadIdx.x] = 0
        cuda.syncthreads()
        level, last_level = starts[2 * sources + 2 + s], starts[2 * sources + 3 + s]
        scan_down(value, index, shift, level_end, level, last_level, row, lane, width, rows)
        begin, stop = starts[sources + 1 + s] * places, starts[sources + 2 + s] * places
        base = b * demands * places * features + feature + lane
        for path in range(begin + row, stop, rows):
            out[base + path * features] = value[end[path] * width + lane]  # 0 where there is no path
        cuda.syncthreads()


@cuda_kernel
def path_max(link_values, out, where, scratch, link, above, end, starts, level_end, widest, links, places, mode):
    """(B, E) link values into (B, D, K) maxima along paths and the links that attain them, -1 without a path."""
    sources, demands = len(starts) // 3 - 1, len(end) // places
    batch = len(link_values) // links
    for item in range(cuda.blockIdx.x, sources * batch, cuda.gridDim.x):
        s = item // batch
        b = item - s * batch
        first, nodes = starts[s], starts[s + 1] - starts[s]
        value, index, shift = hold(mode, scratch, above, 2 * widest, 1, first, nodes)
        # The second half holds numbers of nodes, which even a float32 holds exactly: no source has 2^24.
        at = value[widest:]
        for n in range(cuda.threadIdx.x, nodes, THREADS):
            value[n + 1], at[n + 1] = link_values[b * links + link[first + n]], n + 1
        cuda.syncthreads()
        level, last_level = starts[2 * sources + 2 + s], starts[2 * sources + 3 + s]
        begin = level_end[level] if level < last_level else 0
        for deeper in range(level + 1, last_level):
            deeper_end = level_end[deeper]
            for n in range(begin + cuda.threadIdx.x, deeper_end, THREADS):
                top = index[shift + n]
                if value[top] >= value[n]:
                    value[n], at[n] = value[top], at[top]
            begin = deeper_end
            cuda.syncthreads()
        path, stop = starts[sources + 1 + s] * places + cuda.threadIdx.x, starts[sources + 2 + s] * places
        while path < stop:
            to, n = b * demands * places + path, end[path]
            if n > 0:
                out[to], where[to] = value[n], link[first + int(at[n]) - 1]
            else:
                out[to], where[to] = 0, -1
            path += THREADS
        cuda.syncthreads()


@cuda_kernel
def node_flows(path_values, out, scratch, below, end, starts, level_end, widest, places, features, lanes, mode):
    """(B, D, K, F) path values into (B, T, F) sums over the paths through each node."""
    sources = len(starts) // 3 - 1
    demands, nodes_in_all, chunks = len(end) // places, len(below), (features + lanes - 1) // lanes
    per_source = len(path_values) // (demands * places * features) * chunks
    for item in range(cuda.blockIdx.x, sources * per_source, cuda.gridDim.x):
        s, b, feature, width = part_of(item, per_source, chunks, lanes, features)
        row, rows = first_row(width), THREADS // width
        lane = cuda.threadIdx.x % width
        first, nodes = starts[s], starts[s + 1] - starts[s]
        value, index, shift = hold(mode, scratch, below, widest, lanes, first, nodes)
        for n in range(cuda.threadIdx.x, (nodes + 1) * width, THREADS):
            value[n] = 0
        cuda.syncthreads()
        begin, stop = starts[sources + 1 + s] * places, starts[sources + 2 + s] * places
        base = b * demands * places * features + feature + lane
        for path in range(begin + row, stop, rows):
            if end[path] > 0:
                value[end[path] * width + lane] = path_values[base + path * features]  # no two end at one node
        cuda.syncthreads()
        level, last_level = starts[2 * sources + 2 + s], starts[2 * sources + 3 + s]
        scan_up(value, index, shift, level_end, level, last_level, row, lane, width, rows)
        base = (b * nodes_in_all + first) * features + feature + lane
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
def fold(sums, row, rows, step):
    """Add up ``rows`` entries of a shared array, ``step`` apart, into that of row 0; all threads call it."""
    me = cuda.threadIdx.x
    while rows > 1:
        cuda.syncthreads()
        half = (rows + 1) // 2
        if row + half < rows:
            sums[me] += sums[me + half * step]
        rows = half
    cuda.syncthreads()


@cuda_kernel
def link_totals(node_values, out, link_ptr, link_node, features, lanes, rows):
    """(B, T, F) node values into (B, E, F) sums over the nodes of each link, ``rows`` threads a link and lane."""
    links, nodes = len(link_ptr) - 1, len(link_node)
    chunks, teams = (features + lanes - 1) // lanes, THREADS // (lanes * rows)
    blocks = (links + teams - 1) // teams  # for each chunk of each matrix
    part = cuda.blockIdx.x // blocks
    b = part // chunks
    feature = (part - b * chunks) * lanes
    width = min(lanes, features - feature)
    team = cuda.threadIdx.x // (width * rows)
    row, lane = cuda.threadIdx.x // width - team * rows, cuda.threadIdx.x % width
    e = (cuda.blockIdx.x - part * blocks) * teams + team
    sums = cuda.shared.array(THREADS, float64)
    mine = team < teams and e < links
    total = 0.0
    if mine:
        base = b * nodes * features + feature + lane
        total = sum_over_link(node_values, base, features, link_ptr, link_node, e, row, rows)
    sums[cuda.threadIdx.x] = total
    fold(sums, row if mine else rows, rows, width)
    if mine and row == 0:
        out[(b * links + e) * features + feature + lane] = sums[cuda.threadIdx.x]
