"""The columns of a program over all paths: the paths that column generation has found so far, as a
:class:`teal.network.path_links.PathLinks` whose slots are numbered through.
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

_LEAST_GAIN = 1e-9  # of the price of its path, by which a demand's new path must be cheaper


def columns_of(paths: PathSet) -> PathLinks:
    """The paths of a path set as columns, links from source to target."""
    layout = _forward(paths)
    return layout._replace(slot=np.arange(len(layout.slot)))


def _forward(paths: PathSet) -> PathLinks:
    """The layout of a path set, which has the links of a path from its end on, the other way
    round.
    """
    layout = path_links_of(paths)
    ptr = layout.link_ptr
    ends = np.repeat(ptr[:-1] + ptr[1:] - 1, np.diff(ptr))
    return layout._replace(link=layout.link[ends - np.arange(len(layout.link))])


@kernel
def path_sums(columns: PathLinks, weight: FloatArray) -> FloatArray:
    """(P,) sum of the weights (E,) of the links of each column."""
    out = np.zeros(len(columns.slot))
    for p in range(len(out)):
        for i in range(columns.link_ptr[p], columns.link_ptr[p + 1]):
            out[p] += weight[columns.link[i]]
    return out


@kernel
def column_loads(columns: PathLinks, rate: FloatArray, share: FloatArray, links: int) -> FloatArray:
    """(E,) Gbit/s on each link, of shares (P,) of demands (D,)."""
    out = np.zeros(links)
    for d in range(len(rate)):
        for p in range(columns.path_ptr[d], columns.path_ptr[d + 1]):
            flow = rate[d] * share[p]
            for i in range(columns.link_ptr[p], columns.link_ptr[p + 1]):
                out[columns.link[i]] += flow
    return out


@kernel
def tree_loads(
    pairs: IntArray,
    source_row: Int64Array,
    into: IntArray,
    tail: IntArray,
    rate: FloatArray,
    links: int,
) -> FloatArray:
    """(E,) Gbit/s on each link if every demand takes the path of a tree.

    Args:
        pairs: (D, 2) source and target of each demand.
        source_row: (D,) row of each demand's source in ``into``.
        into: (S, N) link into each node on a path from each source, -1 for none.
        tail: (E,) node where each link starts.
        rate: (D,) Gbit/s.
        links: E.
    """
    out = np.zeros(links)
    for d in range(len(pairs)):
        node, of_source = pairs[d, 1], into[source_row[d]]
        while node != pairs[d, 0] and of_source[node] >= 0:
            link = of_source[node]
            out[link] += rate[d]
            node = tail[link]
    return out


@kernel
def cheaper_paths(
    columns: PathLinks,
    pairs: IntArray,
    source_row: Int64Array,
    distance: FloatArray,
    into: IntArray,
    tail: IntArray,
    weight: FloatArray,
    limit: FloatArray,
) -> tuple[Int64Array, IntArray]:
    """The path of each demand that is cheaper than its columns and its limit.

    Args:
        columns: columns so far.
        pairs, source_row, into, tail: as in :func:`tree_loads`.
        distance: (S, N) price of the cheapest path from each source to each node.
        weight: (E,) price and cost of each link, infinite where it has failed.
        limit: (D,) price that a path may have; -inf for a demand that needs none.

    Returns:
        Pointers (D + 1,) into an array of links, and that array.
    """
    ptr, path = np.zeros(len(pairs) + 1, np.int64), np.empty(into.shape[1], np.int32)
    for d in range(len(pairs)):
        least = distance[source_row[d], pairs[d, 1]]
        best = limit[d]
        for p in range(columns.path_ptr[d], columns.path_ptr[d + 1]):
            price = 0.0
            for i in range(columns.link_ptr[p], columns.link_ptr[p + 1]):
                price += weight[columns.link[i]]
            best = min(best, price)
        if least < best - _LEAST_GAIN * least:
            ptr[d + 1] = walk_back(pairs[d, 0], pairs[d, 1], into[source_row[d]], tail, path)
    for d in range(len(pairs)):
        ptr[d + 1] += ptr[d]
    links = np.empty(ptr[-1], np.int32)
    for d in range(len(pairs)):
        if ptr[d + 1] > ptr[d]:
            walk_back(pairs[d, 0], pairs[d, 1], into[source_row[d]], tail, links[ptr[d] :])
    return ptr, links


@kernel
def changed(
    columns: PathLinks, share: FloatArray, keep: BoolArray, ptr: Int64Array, links: IntArray
) -> tuple[PathLinks, FloatArray]:
    """Columns without some and with a further one of some demands, and their shares.

    Args:
        columns: columns so far.
        share: (P,) of each.
        keep: (P,) columns that stay.
        ptr: (D + 1,) of the further columns, whose share is 0.
        links: links of these.
    """
    demands, count, entries = len(ptr) - 1, 0, len(links)
    for p in range(len(keep)):
        if keep[p]:
            count += 1
            entries += columns.link_ptr[p + 1] - columns.link_ptr[p]
    for d in range(demands):
        count += ptr[d + 1] > ptr[d]
    path_ptr, link_ptr = np.zeros(demands + 1, np.int64), np.zeros(count + 1, np.int64)
    link, new_share, slot = np.empty(entries, np.int32), np.zeros(count), np.arange(count)
    q = entry = 0
    for d in range(demands):
        for p in range(columns.path_ptr[d], columns.path_ptr[d + 1]):
            if not keep[p]:
                continue
            for i in range(columns.link_ptr[p], columns.link_ptr[p + 1]):
                link[entry] = columns.link[i]
                entry += 1
            new_share[q] = share[p]
            q += 1
            link_ptr[q] = entry
        if ptr[d + 1] > ptr[d]:
            for i in range(ptr[d], ptr[d + 1]):
                link[entry] = links[i]
                entry += 1
            q += 1
            link_ptr[q] = entry
        path_ptr[d + 1] = q
    return PathLinks(path_ptr, slot, link_ptr, link), new_share


@kernel
def _listed(columns: PathLinks, place: int) -> tuple[Int64Array, IntArray]:
    """The column of each demand at a place: pointers (D + 1,) into an array of links, and that
    array.
    """
    demands = len(columns.path_ptr) - 1
    ptr = np.zeros(demands + 1, np.int64)
    for d in range(demands):
        p, length = columns.path_ptr[d] + place, 0
        if p < columns.path_ptr[d + 1]:
            length = columns.link_ptr[p + 1] - columns.link_ptr[p]
        ptr[d + 1] = ptr[d] + length
    links = np.empty(ptr[-1], np.int32)
    for d in range(demands):
        if ptr[d + 1] > ptr[d]:
            first = columns.link_ptr[columns.path_ptr[d] + place]
            for i in range(ptr[d + 1] - ptr[d]):
                links[ptr[d] + i] = columns.link[first + i]
    return ptr, links


def with_columns_of(
    paths: PathSet, columns: PathLinks, share: FloatArray
) -> tuple[PathSet, FloatArray]:
    """``paths`` with the columns that carry a share, and the splits (D, K) of all.

    Args:
        paths: paths of D demands, none of which has more than MAX_PATHS in the end.
        columns: columns of the demands.
        share: (P,) of each column.
    """
    nothing = np.zeros(paths.num_demands + 1, np.int64), np.zeros(0, np.int32)
    used, shares = changed(columns, share, share > 0, *nothing)
    for place in range(int(np.diff(used.path_ptr).max(initial=0))):
        if paths.num_paths >= MAX_PATHS:
            break
        paths = with_more_paths(paths, *_listed(used, place))
    splits = np.zeros(paths.mask.size)
    _place(used, shares, _forward(paths), splits)
    return paths, splits.reshape(paths.mask.shape)


@kernel
def _place(columns: PathLinks, share: FloatArray, layout: PathLinks, splits: FloatArray) -> None:
    """Put the share of each column at the slot of the same path."""
    for d in range(len(columns.path_ptr) - 1):
        for p in range(columns.path_ptr[d], columns.path_ptr[d + 1]):
            first, length = columns.link_ptr[p], columns.link_ptr[p + 1] - columns.link_ptr[p]
            for q in range(layout.path_ptr[d], layout.path_ptr[d + 1]):
                begin = layout.link_ptr[q]
                is_same = layout.link_ptr[q + 1] - begin == length
                for i in range(length):
                    is_same = is_same and layout.link[begin + i] == columns.link[first + i]
                    if not is_same:
                        break
                if is_same:
                    splits[layout.slot[q]] = share[p]
                    break
