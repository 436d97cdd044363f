"""Topologies against faulty descriptions, and failed links against the network without failures."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from teal.errors import InputError
from teal.testing import make_topology


def test_failed_links_have_capacity_zero_and_paths_do_not_change() -> None:
    topology = make_topology([(0, 1, 5.0), (1, 2, 7.0)], both=True)
    failed = topology.with_failed_links(topology.find_links("n0", "n1"))
    assert failed.capacity.tolist() == [0.0, 7.0, 0.0, 7.0]
    assert failed.graph_key() == topology.graph_key()
    assert failed.content_key() != topology.content_key()


@pytest.mark.parametrize(
    ("field", "values", "words"),
    [
        (
            "capacity",
            [1.0, -1.0],
            "link n1->n2: capacity: expected a finite capacity >= 0, found -1.0",
        ),
        ("capacity", [1.0, np.nan], "found nan"),
        ("latency", [1.0, 0.0], "link n1->n2: latency: expected a finite latency > 0"),
        ("link_target", [1, 9], "node indices in 0..2"),
        ("link_target", [0, 2], "a node other than the source"),
    ],
)
def test_faults_of_a_topology_are_named(field: str, values: list[float], words: str) -> None:
    topology = make_topology([(0, 1, 5.0), (1, 2, 7.0)])
    wrong = np.array(values, dtype=getattr(topology, field).dtype)
    with pytest.raises(InputError) as caught:
        dataclasses.replace(topology, **{field: wrong})  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_find_links_names_the_unknown_node() -> None:
    topology = make_topology([(0, 1, 5.0), (1, 2, 7.0)])
    with pytest.raises(InputError, match="n9"):
        topology.find_links("n0", "n9")
    with pytest.raises(InputError, match="between n0 and n2"):
        topology.find_links("n0", "n2")


@pytest.mark.parametrize(
    ("names", "links", "expected"),
    [
        (("a", "b", "b#1"), [(0, 1), (0, 1)], ["a->b##1", "a->b#2"]),
        (("a", "b", "b#1"), [(0, 1), (0, 2), (0, 1)], ["a->b##1", "a->b#1", "a->b#2"]),
        (("a", "b", "b#1"), [(0, 2), (0, 1), (0, 2)], ["a->b#1#1", "a->b", "a->b#1#2"]),
        (
            ("a", "b", "b#", "b#1"),
            [(0, 1), (0, 1), (0, 2), (0, 2)],
            ["a->b##1", "a->b#2", "a->b###1", "a->b##2"],
        ),
        (("a", "b->c", "a->b", "c"), [(0, 1), (2, 3)], ["a->b->c#1", "a->b->c#2"]),
    ],
)
def test_every_link_is_found_by_its_own_name(
    names: tuple[str, ...], links: list[tuple[int, int]], expected: list[str]
) -> None:
    plain = make_topology([(*ends, 1.0) for ends in links] + [(len(names) - 1, 0, 1.0)])
    topology = dataclasses.replace(plain, node_names=names)
    found = topology.link_names()
    assert found[:-1] == expected
    assert len(set(found)) == len(found)
    for link, name in enumerate(found):
        source = names[topology.link_source[link]]
        parallel = topology.find_links(source, name.removeprefix(f"{source}->"))
        assert [e for e in parallel if topology.link_source[e] == topology.link_source[link]] == [
            link
        ]
    with pytest.raises(InputError, match="node: expected a node of the topology, found 'b#0'"):
        topology.find_links("a", "b#0")


def test_parallel_and_one_way_links_as_pytorch_geometric_takes_them() -> None:
    topology = make_topology([(0, 1, 5.0), (0, 1, 7.0), (1, 0, 5.0), (1, 2, 9.0)])
    assert topology.edge_index.tolist() == [[0, 0, 1, 1], [1, 1, 0, 2]]
    data = topology.to_hetero_data()
    assert data["node"].num_nodes == 3
    assert data["node", "link", "node"].edge_attr[:, 0].tolist() == [5, 7, 5, 9]
    assert data.validate()
