"""What is said of networks and traffic, and in which form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import teal
from teal.cli import main

START = 1_704_067_200  # 2024-01-01, seconds since 1970


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "net.json"
    path.write_text(
        json.dumps(
            {
                "directed": True,
                "nodes": [{"id": name} for name in ("a", "b", "c", "alone")],
                "links": [
                    {"source": "a", "target": "b", "capacity": 10},
                    {"source": "b", "target": "a", "capacity": 10},
                    {"source": "b", "target": "c", "capacity": 5},
                ],
            }
        )
    )
    return str(path)


def test_one_way_links_and_isolated_nodes_are_named(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topology", "info", "--topology", file]) == 0
    printed = capsys.readouterr().out
    assert "nodes without a link: alone" in printed
    assert "without one in the other direction: b->c" in printed
    assert main(["topology", "info", "--topology", file, "--bidirectional", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["links"] == 4
    assert found["one_way_links"] == []
    assert found["isolated_nodes"] == ["alone"]


def test_generated_traffic_gives_isolated_nodes_nothing(file: str) -> None:
    topology = teal.load_topology(file, bidirectional=True)
    traffic = teal.load_traffic("gravity:seed=0,count=2,load=1", topology)
    alone = (traffic.pairs == topology.node_names.index("alone")).any(1)
    rates = traffic.read(slice(None))
    assert (rates[:, alone] == 0).all()
    assert (rates[:, ~alone] > 0).all()


def test_the_total_demand_of_a_matrix_is_summed_over_its_demands(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three matrices of 3, 8 and 10 Gbit/s; each demand over time sums to 9 or 12."""
    table = tmp_path / "traffic.csv"
    rates = [(1, 2), (4, 4), (4, 6)]
    rows = [
        f"{START + 300 * t},a,b,{first}\n{START + 300 * t},b,a,{second}"
        for t, (first, second) in enumerate(rates)
    ]
    table.write_text("\n".join(["timestamp,source,target,rate", *rows]))
    assert main(["traffic", "info", "--topology", file, "--traffic", str(table)]) == 0
    assert "total demand of a matrix: 3 to 10 Gbit/s, median 8\n" in capsys.readouterr().out


def test_quiet_says_nothing_but_the_result_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", "--quiet", "--topology", "b4", "--traffic", "gravity"]) == 0
    said = capsys.readouterr()
    assert "total_flow" in said.out
    assert not said.err
    assert main(["solve", "--quiet", "--topology", "b5", "--traffic", "gravity"]) == 2
    assert "b5" in capsys.readouterr().err


def test_quiet_keeps_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network, traffic = tmp_path / "links.csv", tmp_path / "traffic.csv"
    network.write_text("source,target,capacity\na,b,10\nb,a,10\nb,c,10\n")
    traffic.write_text("source,target,rate\na,c,1\n")
    assert main(["simulate", "--quiet", "--topology", str(network), "--traffic", str(traffic)]) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line.startswith("Warning: ") for line in said] == [True]
    assert "line 4 (b -> c)" in said[0]


@pytest.mark.slow
def test_commands_that_compute_print_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = [
        "--topology",
        "b4",
        "--traffic",
        "gravity:seed=0,count=12,load=2",
        "--quiet",
        "--json",
    ]
    out = str(tmp_path)
    for command, key in (
        (["evaluate", "--scheme", "pdhg", "--limit", "1", "--out", f"{out}/evaluate"], "results"),
        (["train", "--max-steps", "1", "--out", f"{out}/train"], "best"),
        (
            ["audit", "--scheme", "shortest-path", "--time-budget", "1s", "--out", f"{out}/audit"],
            "loss",
        ),
    ):
        assert main([command[0], *network, *command[1:]]) == 0
        assert key in json.loads(capsys.readouterr().out)


NET = "source,target,capacity,latency,metric\na,b,10,1,1\nb,a,10,1,1\nb,c,10,1,1\nc,b,10,1,1\na,c,10,3,5\nc,a,10,3,5\n"
DEMANDS = "source,target,rate\na,c,3\nb,a,1\n"
_READINGS = (
    "a,b,out,4",
    "b,a,in,4",
    "b,c,out,3",
    "c,b,in,3",
    "a,outside,in,4",
    "b,outside,out,1",
    "c,outside,out,3",
)
COUNTERS = "time,router,neighbour,direction,rate\n" + "".join(
    f"2024-01-01T00:0{minute}:00,{reading}\n" for minute in (0, 5) for reading in _READINGS
)
GOOD = {
    "net.csv": NET,
    "demands.csv": DEMANDS,
    "counters.csv": COUNTERS,
    "prefixes.csv": "prefix,router\n10.0.0.0/8,a\n",
    "flows.csv": "source,target,links,flow\na,c,a->c,3\nb,a,b->a,1\n",
    "records.csv": "ts,te,sa,da,ibyt\n2024-01-01 00:00:00,2024-01-01 00:05:00,10.0.0.1,10.1.0.1,1000\n",
}
_BOTH = "--topology net.csv --traffic demands.csv"
_ESTIMATE = "estimate --topology net.csv --counters counters.csv"
READERS = {
    "topology": "topology info --topology FILE",
    "traffic": "traffic info --topology net.csv --traffic FILE",
    "routers": f"simulate {_BOTH} --routers FILE",
    "groups": f"simulate {_BOTH} --groups FILE",
    "policies": f"simulate {_BOTH} --policies FILE",
    "counters": f"check {_BOTH} --counters FILE",
    "interfaces": f"check {_BOTH} --counters counters.csv --interfaces FILE",
    "weights": f"solve {_BOTH} --objective weighted_flow --weights FILE",
    "functions": f"solve {_BOTH} --objective bandwidth_functions --functions FILE",
    "previous": f"solve {_BOTH} --previous FILE --max-churn 0.1",
    "paths": f"solve {_BOTH} --paths FILE",
    "allocation": f"certify {_BOTH} --allocation FILE --out proof",
    "prices": f"certify {_BOTH} --allocation flows.csv --prices FILE --out proof",
    "flows": f"{_ESTIMATE} --flows FILE --prefixes prefixes.csv",
    "prefixes": f"{_ESTIMATE} --flows records.csv --prefixes FILE",
}
WRONG: list[tuple[str, str, str | None, str]] = [
    ("topology", "empty.csv", "", "the file is empty"),
    ("topology", "text.csv", "not a table\nat all\n", "a column source"),
    ("topology", "headless.csv", "a,b,10\nb,a,10\n", "a column source"),
    ("topology", "rate.csv", NET.replace("c,b,10", "c,b,ten"), "line 5: capacity"),
    ("topology", "negative.csv", NET.replace("c,b,10", "c,b,-10"), "line 5: capacity"),
    ("topology", "metric.csv", NET.replace("b,c,10,1,1", "b,c,10,1,0"), "line 4: metric"),
    ("topology", "cut.json", '{"nodes": [{"id": "a"}], "links": [', "line 1 column 36"),
    ("topology", "list.json", "[1, 2]", "node-link"),
    (
        "topology",
        "ends.json",
        '{"nodes": [{"id": "a"}], "links": [{"source": "a", "target": "z", "capacity": 1}]}',
        "links[0] (a->z)",
    ),
    (
        "topology",
        "cap.json",
        '{"nodes": [{"id": "a"}, {"id": "b"}], "links": [{"source": "a", "target": "b", "capacity": "fast"}]}',
        "links[0]: capacity",
    ),
    ("topology", "broken.graphml", "<graphml><graph>", "GraphML"),
    ("topology", "broken.xml", "<network", "a network of SNDlib"),
    ("topology", "other.xml", "<html></html>", "a network of SNDlib"),
    ("topology", "broken.graph", "NODES 2\nlabel x y\n", "2 more entries"),
    ("topology", "net.pdf", "x", ".graphml, "),
    ("topology", "none.csv", None, "no such file"),
    ("traffic", "empty.csv", "", "timestamp, source, target, rate"),
    ("traffic", "node.csv", DEMANDS + "a,z,1\n", "line 4: target 'z'"),
    ("traffic", "rate.csv", DEMANDS + "c,a,much\n", "line 4: rate 'much'"),
    ("traffic", "minus.csv", DEMANDS + "c,a,-1\n", "line 4: rate '-1'"),
    ("traffic", "twice.csv", DEMANDS + "a,c,4\n", "two rows have the same source and target"),
    ("traffic", "stamp.csv", "timestamp,source,target,rate\nyesterday,a,b,1\n", "'yesterday'"),
    ("traffic", "columns.csv", "from,to,mbps\na,b,1\n", "from, to, mbps"),
    ("traffic", "broken.parquet", "PAR1", "Parquet"),
    ("traffic", "broken.npz", "PK", "not a zip"),
    ("traffic", "broken.tgz", "x", ".tgz"),
    ("traffic", "inf.csv", DEMANDS + "c,a,inf\n", "line 4: rate 'inf'"),
    ("traffic", "self.csv", DEMANDS + "a,a,1\n", "line 4: target 'a'"),
    ("routers", "sid.csv", "name,sid\na,16001\nb,16001\nc,3\n", "a and b"),
    ("routers", "columns.csv", "router\na\n", "a column name"),
    ("groups", "columns.csv", "group,x,y\ng,a,b\n", "group, source, target"),
    ("groups", "node.csv", "group,source,target\ng,a,z\n", "line 2"),
    ("groups", "link.csv", "group,source,target\ng,a\n", "line 2"),
    ("groups", "broken.json", "{", "line 1 column 2"),
    ("policies", "broken.json", "{", "line 1 column 2"),
    ("policies", "other.json", '{"a": 1}', "teal segments"),
    ("policies", "text.json", "[]", "teal segments"),
    ("counters", "empty.csv", "", "a table of counters"),
    ("counters", "columns.csv", "when,who,what\n1,a,b\n", "time, router"),
    ("counters", "direction.csv", COUNTERS.replace("a,b,out", "a,b,up", 1), "row 2: direction"),
    ("counters", "router.csv", COUNTERS + "2024-01-01T00:05:00,zz,b,out,1\n", "'zz'"),
    (
        "counters",
        "time.csv",
        COUNTERS.replace("2024-01-01T00:05:00,a,b", "soon,a,b"),
        "row 9: time",
    ),
    ("counters", "broken.json", "{", "line 1 column 2"),
    ("counters", "other.json", '{"data": {}}', "range query"),
    ("counters", "broken.npz", "x", ".npz"),
    ("interfaces", "columns.csv", "port,to\nx,b\n", "router, interface, neighbour"),
    ("interfaces", "router.csv", "router,interface,neighbour\nzz,b,b\n", "row 2: router"),
    ("interfaces", "neighbour.csv", "router,interface,neighbour\na,b,zz\n", "row 2: neighbour"),
    ("weights", "columns.csv", "a,c,2\n", "source, target, weight"),
    ("weights", "value.csv", "source,target,weight\na,c,heavy\n", "line 2"),
    ("weights", "node.csv", "source,target,weight\na,z,1\n", "line 2"),
    ("functions", "columns.csv", "a,c,2\n", "rate, share"),
    ("functions", "convex.csv", "source,target,rate,value\na,c,1,1\na,c,2,5\n", "line 2"),
    ("functions", "broken.json", "{", "line 1 column 2"),
    ("previous", "broken.json", "{", "teal solve --out"),
    ("previous", "other.json", '{"a": 1}', "teal solve --out"),
    ("paths", "broken.npz", "x", "teal paths improve"),
    ("paths", "none.npz", None, "teal paths improve"),
    ("allocation", "columns.csv", "x,y\n1,2\n", "source, target, flow"),
    ("allocation", "link.csv", "source,target,links,flow\na,c,a->z,1\n", "row 2: links"),
    ("allocation", "flow.csv", "source,target,links,flow\na,c,a->c,much\n", "row 2: flow"),
    ("allocation", "gap.csv", "source,target,links,flow\na,c,b->c,1\n", "row 2: links"),
    ("allocation", "broken.json", "{", "line 1 column 2"),
    ("prices", "columns.csv", "x,y\n1,2\n", "link, price"),
    ("prices", "link.csv", "link,price\na->z,1\n", "line 2: link"),
    ("prices", "value.csv", "link,price\na->c,dear\n", "line 2: price"),
    ("flows", "columns.csv", "x,y\n1,2\n", "nfdump"),
    ("prefixes", "columns.csv", "x,y\n1,2\n", "prefix, router"),
    ("prefixes", "address.csv", "prefix,router\n10.0.0/8,a\n", "line 2"),
    ("prefixes", "router.csv", "prefix,router\n10.0.0.0/8,zz\n", "line 2"),
]


@pytest.fixture
def good_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that every command takes, in the folder in which the test runs."""
    monkeypatch.chdir(tmp_path)
    for file, text in GOOD.items():
        Path(file).write_text(text)


@pytest.mark.usefixtures("good_files")
@pytest.mark.parametrize(
    ("reader", "name", "content", "words"), WRONG, ids=[f"{case[0]}-{case[1]}" for case in WRONG]
)
def test_a_wrong_file_gets_one_line_with_its_name_and_the_place(
    reader: str, name: str, content: str | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        Path(f"wrong-{name}").write_text(content)
    assert main(READERS[reader].replace("FILE", f"wrong-{name}").split()) == 2
    (line,) = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("teal: error")
    ]
    assert line.startswith(f"teal: error: wrong-{name}")
    assert words in line


@pytest.mark.usefixtures("good_files")
@pytest.mark.parametrize("reader", ["counters", "interfaces", "allocation", "policies"])
def test_the_files_beside_the_wrong_ones_are_right(reader: str) -> None:
    """Otherwise a command could refuse one of them, and not the file that is wrong."""
    interfaces = [
        f"{place},{'' if place.endswith('outside') else place[-1]}"
        for place in ("a,b", "b,a", "b,c", "c,b", "a,outside", "b,outside", "c,outside")
    ]
    counters = COUNTERS.replace("neighbour", "interface")
    Path("named.csv").write_text(counters)
    Path("interfaces.csv").write_text("\n".join(["router,interface,neighbour", *interfaces]))
    command = {
        "counters": READERS["counters"].replace("FILE", "counters.csv"),
        "interfaces": READERS["interfaces"]
        .replace("counters.csv", "named.csv")
        .replace("FILE", "interfaces.csv"),
        "allocation": READERS["allocation"].replace("FILE", "flows.csv"),
        "policies": f"segments {_BOTH} --objective max_link_utilisation --out policies.json",
    }[reader]
    assert main(command.split()) == 0


def test_what_a_node_sends_is_a_share_of_the_capacity_of_its_links(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """4 Gbit/s from a over links of 10 and 30: 10% of what they can carry."""
    (tmp_path / "net.csv").write_text("source,target,capacity\na,b,10\na,c,30\nb,c,100\n")
    (tmp_path / "demands.csv").write_text("source,target,rate\na,c,4\n")
    words = f"traffic info --topology {tmp_path}/net.csv --traffic {tmp_path}/demands.csv"
    assert main(words.split()) == 0
    assert (
        "a sends or receives 10% of the capacity of its links, the most of all nodes"
        in capsys.readouterr().out
    )
