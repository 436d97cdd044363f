"""Lists of segments against what the head end pushes, by hand."""

from __future__ import annotations

import numpy as np

from teal.network.segment_lists import SegmentList, SegmentPolicies


def test_the_depth_of_a_label_stack_counts_nodes_and_adjacencies() -> None:
    """In a chain of four nodes: 0 to the start of a link, the link itself, and from its end to
    3."""
    link_start = np.array([0, 1, 2])
    by_link = SegmentList(0.5, (2,), (1,))
    assert list(by_link.segments(0, 3, link_start)) == [(0, 1), (2, 3)]
    assert by_link.num_segments(0, 3, link_start) == 3
    straight = SegmentList(0.5, ())
    assert straight.num_segments(0, 3, link_start) == 1
    assert SegmentPolicies({(0, 3): (straight, by_link)}).depth(link_start) == 3
    assert SegmentPolicies.none().depth(link_start) == 1
