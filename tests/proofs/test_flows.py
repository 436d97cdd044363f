"""Flows of others: over paths, over links, and files that are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from teal.errors import InputError
from teal.formats.allocations import Demand
from teal.network import all_pairs, compute_paths
from teal.proofs.flows import PathFlows, read_flows, read_prices, splits_over
from teal.testing import make_topology, random_topology

# a -> b -> d and a -> c -> d, two parallel links b -> d, and the way back d -> a.
_DIAMOND = make_topology(
    [(0, 1, 4.0), (1, 3, 1.0), (1, 3, 2.0), (0, 2, 4.0), (2, 3, 4.0), (3, 0, 9.0)]
)


def _write(file: Path, text: str) -> Path:
    file.write_text(text, encoding="utf-8")
    return file


def test_paths_by_name_by_number_and_as_a_list(tmp_path: Path) -> None:
    rows = [
        "source,target,links,flow",
        "n0,n3,n0->n1;n1->n3#2,1.5",
        'n0,n3,"[""n0->n2"", ""n2->n3""]",2',
        "n0,n1,0,1",
        "n0,n1,0,0.5",
    ]
    flows = read_flows(_write(tmp_path / "x.csv", "\n".join(rows)), _DIAMOND)
    assert flows == {(0, 3, ""): {(0, 2): 1.5, (3, 4): 2.0}, (0, 1, ""): {(0,): 1.5}}


def test_flows_on_links_are_decomposed_and_cycles_dropped(tmp_path: Path) -> None:
    rows = [
        "source,target,link,flow",
        "n0,n3,0,3",
        "n0,n3,1,1",
        "n0,n3,2,2",
        "n0,n3,3,1",
        "n0,n3,4,2",
        "n0,n3,5,1",
    ]
    # 3 + 1 leave n0 and 1 comes back: 3 Gbit/s are carried, 1 goes around.
    rows[4] = "n0,n3,3,1"
    rows[5] = "n0,n3,4,1"
    rows[6] = "n0,n3,5,1"
    (paths,) = read_flows(_write(tmp_path / "x.csv", "\n".join(rows)), _DIAMOND).values()
    load = np.zeros(6)
    for links, flow in paths.items():
        load[list(links)] += flow
        assert 5 not in links
    assert sum(paths.values()) == pytest.approx(4.0)
    np.testing.assert_allclose(load, [3, 1, 2, 1, 1, 0])


@pytest.mark.parametrize("seed", range(5))
def test_a_decomposition_has_the_loads_that_it_was_made_of(seed: int, tmp_path: Path) -> None:
    topology, rng = random_topology(seed, nodes=8, density=0.5), np.random.default_rng(seed)
    paths = compute_paths(topology, all_pairs(topology), num_paths=3, cache=False)
    d = int(paths.mask.sum(1).argmax())
    load = np.zeros(topology.num_links)
    for k in range(paths.num_paths):
        if paths.mask[d, k]:
            load[list(paths.links_of(d, k))] += rng.uniform(0.1, 5)
    source, target = (topology.node_names[node] for node in paths.pairs[d])
    rows = [f"{source},{target},{link},{flow!r}" for link, flow in enumerate(load.tolist()) if flow]
    flows = read_flows(
        _write(tmp_path / "x.csv", "\n".join(["source,target,link,flow", *rows])), topology
    )
    found = np.zeros_like(load)
    for links, flow in next(iter(flows.values())).items():
        found[list(links)] += flow
    np.testing.assert_allclose(found, load, rtol=1e-8)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("n0,n9,0,1", "row 2: source and target: expected nodes of"),
        ("n0,n3,0;9,1", "row 2: links: expected links of test, found 9"),
        ("n0,n3,0;4,1", "row 2: links: expected a path from n0 to n3, found n0->n1, n2->n3"),
        ("n0,n3,0,1", "a path from n0 to n3, found n0->n1"),
        ("n0,n3,0;1,-1", "row 2: flow: expected a number >= 0"),
        ("n0,n3,0;1,many", "row 2: flow"),
        ("n0,n3,,1", "row 2: links: expected links of .*none"),
        ("n0,n3,[0,1", "a JSON list|table of flows"),
    ],
)
def test_wrong_rows_are_named(row: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        read_flows(_write(tmp_path / "x.csv", f"source,target,links,flow\n{row}\n"), _DIAMOND)


def test_flow_that_is_not_conserved_is_named_with_its_node(tmp_path: Path) -> None:
    text = "source,target,link,flow\nn0,n3,0,3\nn0,n3,1,1\n"
    with pytest.raises(InputError, match=r"conserved at n1: .* -2 Gbit/s"):
        read_flows(_write(tmp_path / "x.csv", text), _DIAMOND)


def test_flow_that_runs_from_target_to_source_is_refused(tmp_path: Path) -> None:
    """Links 0 and 1 lead from n0 to n3, so that the demand from n3 to n0 has no flow there."""
    text = "source,target,link,flow\nn3,n0,0,2\nn3,n0,1,2\n"
    with pytest.raises(InputError, match="from n3 to n0 runs from n0 to n3: 2 Gbit/s"):
        read_flows(_write(tmp_path / "x.csv", text), _DIAMOND)


def test_a_link_with_two_prices_is_refused(tmp_path: Path) -> None:
    """Two matrices may each have a price of one link."""
    links = [f"{_DIAMOND.node_names[0]}->{_DIAMOND.node_names[1]}"]
    twice = _write(tmp_path / "p.csv", f"link,price\n{links[0]},1\n{links[0]},2\n")
    with pytest.raises(InputError, match=f"line 3: link: the price of {links[0]} is stated twice"):
        read_prices(twice, _DIAMOND)
    once = f"matrix,link,price\na,{links[0]},1\nb,{links[0]},2\n"
    assert set(read_prices(_write(tmp_path / "q.csv", once), _DIAMOND)) == {"a", "b"}


@pytest.mark.parametrize(("missing", "is_taken"), [(1e-7, False), (1e-8, False), (1e-10, True)])
def test_conservation_is_kept_to_a_billionth_of_the_flow(
    missing: float, is_taken: bool, tmp_path: Path
) -> None:
    text = f"source,target,link,flow\nn0,n3,0,1\nn0,n3,1,{1 - missing!r}\n"
    file = _write(tmp_path / "x.csv", text)
    if is_taken:
        assert read_flows(file, _DIAMOND) == {(0, 3, ""): {(0, 1): 1 - missing}}
    else:
        with pytest.raises(InputError, match="conserved at n1"):
            read_flows(file, _DIAMOND)


def test_another_file_is_refused(tmp_path: Path) -> None:
    for name, text, words in (
        ("x.txt", "", "a file that ends with .json, .csv, .parquet"),
        (
            "x.csv",
            "source,target,flow\nn0,n3,1\n",
            "columns: expected source, target, flow, and links or link",
        ),
        ("x.csv", "", "a table of flows"),
        (
            "x.csv",
            "source,target,links,flow,flow\nn0,n1,0,4,1\n",
            "columns: a column occurs twice",
        ),
        ("x.csv", "source,target,link,flow\nn0,n1,0;1,1\n", "row 2: link: expected one link"),
        (
            "x.json",
            json.dumps({"routers": {"n0": [{"target": "n3", "paths": [{"links": ["?"]}]}]}}),
            "links",
        ),
    ):
        with pytest.raises(InputError, match=words):
            read_flows(_write(tmp_path / name, text), _DIAMOND)


def test_paths_that_are_no_candidates_are_added(tmp_path: Path) -> None:
    paths = compute_paths(_DIAMOND, all_pairs(_DIAMOND), num_paths=1, cache=False)
    demand = np.full(paths.num_demands, 4.0)
    flows: dict[Demand, PathFlows] = {(0, 3, ""): {(0, 1): 1.0, (0, 2): 1.0, (3, 4): 2.0}}
    more, splits = splits_over(flows, _DIAMOND, paths, demand, None, "x.csv")
    d = next(d for d, pair in enumerate(more.pairs.tolist()) if pair == [0, 3])
    found = {
        tuple(more.links_of(d, k)): splits[d, k]
        for k in range(more.num_paths)
        if more.leaf[d, k] >= 0
    }
    assert {links: share for links, share in found.items() if share} == {
        (0, 1): 0.25,
        (0, 2): 0.25,
        (3, 4): 0.5,
    }
    with pytest.raises(
        InputError, match="the matrix has no demand for the flow from n0 to n3 of class gold"
    ):
        splits_over({(0, 3, "gold"): {(0, 1): 1.0}}, _DIAMOND, paths, demand, None, "x.csv")
