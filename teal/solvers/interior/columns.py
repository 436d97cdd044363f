"""Columns of the restricted master: the paths that column generation has found so far.

Columns are a :class:`teal.network.path_links.PathLinks` whose slots are numbered consecutively.
Kernels price them, replace them, and convert them from and to path sets.
"""

from __future__ import annotations

import numpy as np

from teal.network import PathSet
from teal.network.packed import MAX_PATHS
from teal.network.path_changes import with_more_paths
from teal.network.path_links import PathLinks, path_links_of
from teal.network.shortest import walk_back
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array, IntArray
from teal.runtime.parallel import kernel

# A new path must be cheaper than the present ones by this part of its price.
_MIN_RELATIVE_SAVING = 1e-9


def path_columns(paths: PathSet) -> PathLinks:
    """Return the paths of a path set as columns, each with its links from source to target."""
    layout = _source_to_target(paths)
    return layout._replace(slot=np.arange(len(layout.slot)))


def column_shares(paths: PathSet, splits: FloatArray) -> FloatArray:
    """Return the share (P,) on each column of :func:`path_columns`, from splits (D, K)."""
    return splits.reshape(-1)[path_links_of(paths).slot]


def _source_to_target(paths: PathSet) -> PathLinks:
    """Return the paths of a path set in CSR form, the links of each in the order of travel."""
    layout = path_links_of(paths)
    # The layout stores the last link first: mirror each path's range of entries.
    ptr = layout.link_ptr
    first_plus_last = np.repeat(ptr[:-1] + ptr[1:] - 1, np.diff(ptr))
    return layout._replace(link=layout.link[first_plus_last - np.arange(len(layout.link))])


@kernel
def path_maxima(columns: PathLinks, values: FloatArray) -> FloatArray:
    """Return (P,) the largest value of a link of each column.

    Args:
        columns: P columns in CSR form: links of column p are link[link_ptr[p]:link_ptr[p + 1]].
        values: (E,) value of each link, at least 0.
    """
    max_value = np.zeros(len(columns.slot))
    for p in range(len(max_value)):
        for i in range(columns.link_ptr[p], columns.link_ptr[p + 1]):
            max_value[p] = max(max_value[p], values[columns.link[i]])
    return max_value


@kernel
def path_sums(columns: PathLinks, weight: FloatArray) -> FloatArray:
    """Return (P,) the sum of link weights along each column.

    Args:
        columns: P columns in CSR form: links of column p are link[link_ptr[p]:link_ptr[p + 1]].
        weight: (E,) weight of each link.
    """
    weight_sum = np.zeros(len(columns.slot))
    for p in range(len(weight_sum)):
        for i in range(columns.link_ptr[p], columns.link_ptr[p + 1]):
            weight_sum[p] += weight[columns.link[i]]
    return weight_sum


@kernel
def column_loads(
    columns: PathLinks, rate: FloatArray, share: FloatArray, num_links: int
) -> FloatArray:
    """Return the load (E,) of each link, Gbit/s.

    Args:
        columns: P columns of D demands in CSR form.
        rate: (D,) Gbit/s.
        share: (P,) share of its demand on each column.
        num_links: number of links, E.
    """
    load = np.zeros(num_links)
    for d in range(len(rate)):
        for p in range(columns.path_ptr[d], columns.path_ptr[d + 1]):
            flow = rate[d] * share[p]
            for i in range(columns.link_ptr[p], columns.link_ptr[p + 1]):
                load[columns.link[i]] += flow
    return load


@kernel
def tree_loads(
    pairs: IntArray,
    source_row: Int64Array,
    pred_link: IntArray,
    tail: IntArray,
    rate: FloatArray,
    num_links: int,
) -> FloatArray:
    """Return the load (E,), Gbit/s, with every demand on its path in a shortest-path tree.

    Args:
        pairs: (D, 2) source and target of each demand.
        source_row: (D,) row of each demand's source in ``pred_link``.
        pred_link: (sources, N) last link of the shortest path from each source to each node, -1 for
            none.
        tail: (E,) node where each link starts.
        rate: (D,) Gbit/s.
        num_links: number of links, E.
    """
    load = np.zeros(num_links)
    for d in range(len(pairs)):
        # Walk back from the target to the source.
        node = pairs[d, 1]
        node_pred_link = pred_link[source_row[d]]
        while node != pairs[d, 0] and node_pred_link[node] >= 0:
            link = node_pred_link[node]
            load[link] += rate[d]
            node = tail[link]
    return load


@kernel
def cheaper_paths(
    columns: PathLinks,
    pairs: IntArray,
    source_row: Int64Array,
    distance: FloatArray,
    pred_link: IntArray,
    tail: IntArray,
    weight: FloatArray,
    max_length: FloatArray,
) -> tuple[Int64Array, IntArray]:
    """Return the shortest path of each demand that is cheaper than its columns and short enough.

    Args:
        columns: P present columns of D demands in CSR form: columns of demand d are
            path_ptr[d]:path_ptr[d + 1], links of column p are link[link_ptr[p]:link_ptr[p + 1]].
        pairs: (D, 2) source and target of each demand.
        source_row: (D,) row of each demand's source in ``distance`` and ``pred_link``.
        distance: (sources, N) length of the shortest path from each source to each node.
        pred_link: (sources, N) last link of that path, -1 for none.
        tail: (E,) node where each link starts.
        weight: (E,) dual price and cost of each link, infinite where it has failed.
        max_length: (D,) largest length of a new path; -inf for a demand that needs none.

    Returns:
        pointers (D + 1,) and links: the new path of demand d is links[pointers[d]:pointers[d + 1]],
        empty for none.
    """
    ptr = np.zeros(len(pairs) + 1, np.int64)
    # (N,) links of one path.
    scratch = np.empty(pred_link.shape[1], np.int32)
    for d in range(len(pairs)):
        shortest = distance[source_row[d], pairs[d, 1]]
        # Price to beat: the cheapest present column, at most the largest length.
        max_price = max_length[d]
        for p in range(columns.path_ptr[d], columns.path_ptr[d + 1]):
            column_price = 0.0
            for i in range(columns.link_ptr[p], columns.link_ptr[p + 1]):
                column_price += weight[columns.link[i]]
            max_price = min(max_price, column_price)
        if shortest < max_price - _MIN_RELATIVE_SAVING * shortest:
            # Number of links of the shortest path; its links are written below.
            ptr[d + 1] = walk_back(
                pairs[d, 0], pairs[d, 1], pred_link[source_row[d]], tail, scratch
            )
    # Counts become pointers; then write the paths.
    for d in range(len(pairs)):
        ptr[d + 1] += ptr[d]
    links = np.empty(ptr[-1], np.int32)
    for d in range(len(pairs)):
        if ptr[d + 1] > ptr[d]:
            walk_back(pairs[d, 0], pairs[d, 1], pred_link[source_row[d]], tail, links[ptr[d] :])
    return ptr, links


@kernel
def replace_columns(
    columns: PathLinks, share: FloatArray, keep: BoolArray, new_ptr: Int64Array, new_links: IntArray
) -> tuple[PathLinks, FloatArray]:
    """Return the columns to keep and the new ones, by demand, and the share of each.

    Args:
        columns: P present columns of D demands in CSR form: columns of demand d are
            path_ptr[d]:path_ptr[d + 1], links of column p are link[link_ptr[p]:link_ptr[p + 1]].
        share: (P,) share of its demand on each.
        keep: (P,) columns that stay.
        new_ptr: (D + 1,) pointers into ``new_links``: the new column of demand d has the links
            new_links[new_ptr[d]:new_ptr[d + 1]], empty for none; its share is 0.
        new_links: links of all new columns.
    """
    demands = len(new_ptr) - 1
    # Sizes of the result.
    num_columns = 0
    num_entries = len(new_links)
    for p in range(len(keep)):
        if keep[p]:
            num_columns += 1
            num_entries += columns.link_ptr[p + 1] - columns.link_ptr[p]
    for d in range(demands):
        num_columns += new_ptr[d + 1] > new_ptr[d]
    # CSR arrays of the result; slots are numbered consecutively.
    path_ptr = np.zeros(demands + 1, np.int64)
    link_ptr = np.zeros(num_columns + 1, np.int64)
    link = np.empty(num_entries, np.int32)
    new_share = np.zeros(num_columns)
    slot = np.arange(num_columns)
    # Copy the columns that stay, then append the new one of each demand.
    next_column = next_entry = 0
    for d in range(demands):
        for p in range(columns.path_ptr[d], columns.path_ptr[d + 1]):
            if not keep[p]:
                continue
            for i in range(columns.link_ptr[p], columns.link_ptr[p + 1]):
                link[next_entry] = columns.link[i]
                next_entry += 1
            new_share[next_column] = share[p]
            next_column += 1
            link_ptr[next_column] = next_entry
        # The new column has the share 0.
        if new_ptr[d + 1] > new_ptr[d]:
            for i in range(new_ptr[d], new_ptr[d + 1]):
                link[next_entry] = new_links[i]
                next_entry += 1
            next_column += 1
            link_ptr[next_column] = next_entry
        path_ptr[d + 1] = next_column
    return PathLinks(path_ptr, slot, link_ptr, link), new_share


@kernel
def _nth_columns(columns: PathLinks, n: int) -> tuple[Int64Array, IntArray]:
    """Return the n-th column of each demand in CSR form.

    Args:
        columns: P columns of D demands in CSR form.
        n: position of the column in its demand, from 0.

    Returns:
        pointers (D + 1,) and links: the column of demand d is links[pointers[d]:pointers[d + 1]],
        empty for a demand with fewer columns.
    """
    demands = len(columns.path_ptr) - 1
    # Pointers from the lengths of the columns, then their links.
    ptr = np.zeros(demands + 1, np.int64)
    for d in range(demands):
        p = columns.path_ptr[d] + n
        length = 0
        if p < columns.path_ptr[d + 1]:
            length = columns.link_ptr[p + 1] - columns.link_ptr[p]
        ptr[d + 1] = ptr[d] + length
    links = np.empty(ptr[-1], np.int32)
    for d in range(demands):
        if ptr[d + 1] > ptr[d]:
            first = columns.link_ptr[columns.path_ptr[d] + n]
            for i in range(ptr[d + 1] - ptr[d]):
                links[ptr[d] + i] = columns.link[first + i]
    return ptr, links


def add_columns(
    paths: PathSet, columns: PathLinks, share: FloatArray
) -> tuple[PathSet, FloatArray]:
    """Return ``paths`` with the columns that carry traffic added, and the splits (D, K) over all.

    Args:
        paths: paths of D demands; columns are added up to MAX_PATHS paths of a demand.
        columns: P columns of the demands.
        share: (P,) share of its demand on each column.
    """
    # Columns that carry traffic.
    no_columns = np.zeros(paths.num_demands + 1, np.int64), np.zeros(0, np.int32)
    carrying_columns, carrying_share = replace_columns(columns, share, share > 0, *no_columns)
    # Add the first column of each demand to the path set, then the second one, and so on.
    for n in range(int(np.diff(carrying_columns.path_ptr).max(initial=0))):
        if paths.num_paths >= MAX_PATHS:
            break
        paths = with_more_paths(paths, *_nth_columns(carrying_columns, n))
    return paths, splits_over(paths, carrying_columns, carrying_share)


def splits_over(paths: PathSet, columns: PathLinks, share: FloatArray) -> FloatArray:
    """Return the splits (D, K) over a path set, from the shares of columns.

    Columns that the path set does not have are left out.

    Args:
        paths: paths of D demands.
        columns: P columns of the demands.
        share: (P,) share of its demand on each column.
    """
    splits = np.zeros(paths.mask.size)
    _write_splits(columns, share, _source_to_target(paths), splits)
    return splits.reshape(paths.mask.shape)


@kernel
def _write_splits(
    columns: PathLinks, share: FloatArray, path_links: PathLinks, splits: FloatArray
) -> None:
    """Write the share of each column to the slot of the same path.

    Args:
        columns: P columns of D demands in CSR form, links from source to target.
        share: (P,) share of its demand on each column.
        path_links: paths of a path set in CSR form, links from source to target.
        splits: (D K,) share on each path, at its slot d K + k (written).
    """
    for d in range(len(columns.path_ptr) - 1):
        for p in range(columns.path_ptr[d], columns.path_ptr[d + 1]):
            # First link entry and number of links of the column.
            column_begin = columns.link_ptr[p]
            length = columns.link_ptr[p + 1] - columns.link_ptr[p]
            # Find the path with the same links.
            for q in range(path_links.path_ptr[d], path_links.path_ptr[d + 1]):
                path_begin = path_links.link_ptr[q]
                is_same = path_links.link_ptr[q + 1] - path_begin == length
                for i in range(length):
                    is_same = (
                        is_same
                        and path_links.link[path_begin + i] == columns.link[column_begin + i]
                    )
                    if not is_same:
                        break
                if is_same:
                    splits[path_links.slot[q]] = share[p]
                    break
