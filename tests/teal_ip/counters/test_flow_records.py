"""Flow records of nfdump and pmacct -> demands, by a table of prefixes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from teal.errors import InputError
from teal.testing import make_topology
from teal_ip.counters.flow_records import Prefixes, load_flows

TOPOLOGY = make_topology([(0, 1, 10), (1, 2, 10)], both=True)  # n0 - n1 - n2
GBYTE = 10**9


@pytest.fixture
def prefixes(tmp_path: Path) -> Prefixes:
    """10/8 at n0, but 10.1/16 at n1; a prefix of IPv6 at n2."""
    path = tmp_path / "prefixes.csv"
    path.write_text(
        "prefix,router\n10.0.0.0/8,n0\n10.1.0.0/16,n1\n2001:db8::/32,n2\n10.2.0.0/16,n2\n"
    )
    return Prefixes.load(path, TOPOLOGY)


def test_the_longest_prefix_counts(prefixes: Prefixes) -> None:
    found = [
        prefixes.router(one)
        for one in ("10.9.1.1", "10.1.2.3", "2001:db8::1", "192.0.2.1", "no address")
    ]
    assert found == [0, 1, 2, -1, -1]


def test_nfdump_csv_of_both_versions_until_its_summary(tmp_path: Path, prefixes: Prefixes) -> None:
    old = tmp_path / "old.csv"
    old.write_text(
        "ts,te,td,sa,da,sp,dp,pr,ibyt\n"
        f"2026-01-01 00:00:00,2026-01-01 00:09:59.999,600,10.9.0.1,10.1.0.1,1,2,TCP,{600 * GBYTE}\n"
        f"2026-01-01 00:01:00,2026-01-01 00:01:00,0,10.9.0.1,192.0.2.9,1,2,TCP,{GBYTE}\n"
        "Summary\nflows,bytes\n2,3\n"
    )
    flows = load_flows(old, TOPOLOGY, prefixes, interval_s=300, sampling=2)
    assert flows.traffic.pairs.tolist() == [[0, 1], [0, 2]]
    np.testing.assert_allclose(
        flows.traffic.read(slice(None)), [[16.0, 0.0], [16.0, 0.0]], rtol=1e-4
    )
    assert str(flows.traffic.timestamps[0]) == "2026-01-01T00:05:00"
    assert any("no prefix" in note for note in flows.notes)
    new = tmp_path / "new.csv"
    new.write_text(
        f"firstSeen,duration,proto,srcAddr,dstAddr,bytes\n1767225600,0,TCP,10.1.0.1,10.2.0.1,{300 * GBYTE}\n"
    )
    flows = load_flows(new, TOPOLOGY, prefixes, interval_s=300, exporters=("n1",))
    assert flows.traffic.pairs.tolist() == [[1, 0], [1, 2]]
    np.testing.assert_allclose(flows.traffic.read([0]), [[0.0, 8.0]])


def test_blank_lines_of_nfdump_end_no_records(tmp_path: Path, prefixes: Prefixes) -> None:
    """Before the heading, after it, and between records."""
    file = tmp_path / "blank.csv"
    record = f"1767225600,0,TCP,10.1.0.1,10.2.0.1,{300 * GBYTE}\n"
    heading = "firstSeen,duration,proto,srcAddr,dstAddr,bytes\n"
    file.write_text(f"\n{heading}\n{record}\n{record}\n")
    flows = load_flows(file, TOPOLOGY, prefixes, interval_s=300, exporters=("n1",))
    np.testing.assert_allclose(flows.traffic.read([0]), [[0.0, 16.0]])


def test_json_of_nfdump_and_of_pmacct(tmp_path: Path, prefixes: Prefixes) -> None:
    nfdump, pmacct = tmp_path / "nfdump.json", tmp_path / "pmacct.json"
    times = {"t_first": "2026-01-01T00:01:00", "t_last": "2026-01-01T00:02:00"}
    one = {
        "type": "FLOW",
        "src6_addr": "2001:db8::5",
        "dst4_addr": "10.9.0.1",
        "in_bytes": 300 * GBYTE,
        **times,
    }
    nfdump.write_text(json.dumps([one, {"type": "STAT"}]))
    found = load_flows(nfdump, TOPOLOGY, prefixes, interval_s=300).traffic
    np.testing.assert_allclose(found.read([0]), [[8.0, 0.0]])
    line = {
        "ip_src": "10.9.0.1",
        "ip_dst": "10.2.0.1",
        "bytes": 3 * GBYTE,
        "sampling_rate": 100,
        "stamp_inserted": "2026-01-01 00:00:00",
        "stamp_updated": "2026-01-01 00:04:59",
    }
    pmacct.write_text(json.dumps(line) + "\n" + json.dumps({**line, "ip_dst": "10.8.0.1"}) + "\n")
    found = load_flows(pmacct, TOPOLOGY, prefixes, interval_s=300).traffic
    np.testing.assert_allclose(found.read([0]), [[0.0, 8.0]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "an object"),
        ('{"ip_src": "10.9.0.1"}', "ip_dst"),
        (
            '{"ip_src": "10.9.0.1", "ip_dst": "10.1.0.1", "bytes": "x", "stamp_inserted": 1704067200}',
            "bytes",
        ),
        (
            '{"ip_src": "10.9.0.1", "ip_dst": "10.1.0.1", "bytes": 1, "stamp_inserted": "now"}',
            "a time",
        ),
        (
            '{"ip_src": "192.0.2.1", "ip_dst": "10.1.0.1", "bytes": 1, "stamp_inserted": 1704067200}',
            "1 have an address outside all prefixes",
        ),
        ("{", "nfdump or pmacct"),
    ],
)
def test_wrong_records_are_named(
    tmp_path: Path, prefixes: Prefixes, text: str, message: str
) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_flows(path, TOPOLOGY, prefixes, interval_s=300)
    for line, what in (("10.0.0.0/99,n0", "prefix"), ("10.0.0.0/8,n9", "node")):
        (tmp_path / "p.csv").write_text(f"prefix,router\n{line}\n")
        with pytest.raises(InputError, match=what):
            Prefixes.load(tmp_path / "p.csv", TOPOLOGY)


def test_addresses_of_both_families_are_found_in_one_table(tmp_path: Path) -> None:
    """A prefix of IPv6 that is longer than any address of IPv4."""
    path = tmp_path / "prefixes.csv"
    path.write_text("prefix,router\n10.0.0.0/8,n0\n2001:db8::/48,n1\n::a00:0/104,n2\n")
    prefixes = Prefixes.load(path, TOPOLOGY)
    found = [prefixes.router(one) for one in ("10.1.2.3", "2001:db8::1", "::10.1.2.3", "192.0.2.1")]
    assert found == [0, 1, 2, -1]


def test_records_of_routers_that_are_not_named_are_left_out_and_counted(
    tmp_path: Path, prefixes: Prefixes
) -> None:
    path = tmp_path / "two.json"
    times = {"stamp_inserted": "2026-01-01 00:00:00", "stamp_updated": "2026-01-01 00:04:59"}
    lines = [
        {"ip_src": "10.1.0.1", "ip_dst": "10.2.0.1", "bytes": 300 * GBYTE, **times},
        {"ip_src": "10.9.0.1", "ip_dst": "10.2.0.1", "bytes": 600 * GBYTE, **times},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    flows = load_flows(path, TOPOLOGY, prefixes, interval_s=300, exporters=("n1",))
    assert flows.traffic.pairs.tolist() == [[1, 0], [1, 2]]
    np.testing.assert_allclose(flows.traffic.read([0]), [[0.0, 8.0]])
    assert flows.notes == (
        "1 records excluded: within a router, or from a router that is no exporter",
    )
