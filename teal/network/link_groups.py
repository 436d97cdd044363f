"""Groups of links that fail together, as Numba kernels take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from teal.runtime.arrays import Int64Array, IntArray
from teal.runtime.parallel import inner_kernel


class Groups(NamedTuple):
    """G groups of links that fail together; a link may be in several, or in none.

    Attributes:
        group_ptr: (G + 1,) the links of group g are ``group_link[group_ptr[g]:group_ptr[g + 1]]``.
        group_link: link numbers.
        link_ptr: (E + 1,) the groups of link e are ``link_group[link_ptr[e]:link_ptr[e + 1]]``.
        link_group: group numbers.
    """

    group_ptr: Int64Array
    group_link: Int64Array
    link_ptr: Int64Array
    link_group: Int64Array


def make_groups(groups: Sequence[Sequence[int]], num_links: int) -> Groups:
    """Groups of links (numbers, each once a group) among E links."""
    size = [len(group) for group in groups]
    group_link = np.array([link for group in groups for link in group], np.int64)
    of_entry = np.repeat(np.arange(len(groups), dtype=np.int64), size)
    group_ptr = np.concatenate([[0], np.cumsum(size)]).astype(np.int64)
    link_ptr = np.concatenate([[0], np.cumsum(np.bincount(group_link, minlength=num_links))]).astype(np.int64)
    return Groups(group_ptr, group_link, link_ptr, of_entry[np.argsort(group_link, kind="stable")])


@inner_kernel
def ban_group(group: int, groups: Groups, stamp: int, banned: IntArray) -> None:
    """Stamp the links of a group in ``banned`` (E,)."""
    for i in range(groups.group_ptr[group], groups.group_ptr[group + 1]):
        banned[groups.group_link[i]] = stamp


@inner_kernel
def ban_groups_of(link: int, groups: Groups, stamp: int, banned: IntArray) -> None:
    """Stamp a link, and those of all groups that it is in."""
    banned[link] = stamp
    for i in range(groups.link_ptr[link], groups.link_ptr[link + 1]):
        ban_group(groups.link_group[i], groups, stamp, banned)
