"""Readers of traffic against files spelled out here, faulty files, generated series, and published
archives."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from teal.errors import InputError
from teal.formats import load_topology, load_traffic, rate_store, save_traffic, tables
from teal.formats.gravity import shortest_path_load
from teal.formats.numerals import Decimal
from teal.network import Topology, TrafficMatrices
from teal.testing import make_topology

MATRIX = """<?xml version="1.0"?>
<network xmlns="http://sndlib.zib.de/network" version="1.0">
 <meta><granularity>5min</granularity><time>{time}</time><unit>MBITPERSEC</unit></meta>
 <networkStructure><nodes/><links/></networkStructure>
 <demands>{demands}</demands>
</network>"""
DEMAND = (
    '<demand id="d"><source>{}</source><target>{}</target><demandValue> {} </demandValue></demand>'
)


def _topology() -> Topology:
    return make_topology([(0, 1, 1.0), (1, 2, 1.0)], both=True)


def _archive(path: Path, files: dict[str, str], name: str = "a.tgz") -> Path:
    for file, text in files.items():
        (path / file).write_text(text)
    with tarfile.open(path / name, "w:gz") as archive:
        for file in files:
            archive.add(path / file, arcname=f"folder/{file}")
    return path / name


def _matrix(time: str, *demands: tuple[str, str, object]) -> str:
    return MATRIX.format(time=time, demands="".join(DEMAND.format(*d) for d in demands))


def test_sndlib_archive_with_an_empty_matrix_and_a_gap_is_read(tmp_path: Path) -> None:
    files = {
        "m0.xml": _matrix("20240101-0000", ("n0", "n1", 1000), ("n0", "n2", 500)),
        "m1.xml": _matrix("20240101-0005"),
        "m2.xml": _matrix("20240101-0010", ("n2", "n0", 250), ("n1", "n1", 9)),
    }
    for source in (_archive(tmp_path, files), tmp_path):
        if source.is_dir():
            (tmp_path / "a.tgz").unlink()
        traffic = load_traffic(str(source), _topology())
        assert traffic.pairs.tolist() == [[0, 1], [0, 2], [2, 0]]
        assert traffic.read(slice(None)).tolist() == [[1.0, 0.5, 0.0], [0.0, 0.0, 0.25]], (
            "Mbit/s to Gbit/s"
        )
        assert traffic.skipped == ("m1.xml: no demands in the file",)
        assert [gap.missing for gap in traffic.gaps] == [1]
        assert traffic.interval_s == 300


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (_matrix("20240101-0000", ("n0", "mars", 1)), "a node of test, found 'mars'"),
        (
            _matrix("20240101-0000", ("n0", "n1", -1)),
            "demandValue: expected a finite rate >= 0, found -1",
        ),
        (
            _matrix("20240101-0000", ("n0", "n1", "nan")),
            "demandValue: expected a finite rate >= 0, found nan",
        ),
        (_matrix("20240101-0000", ("n0", "n1", "lots")), "found 'lots'"),
        (_matrix("yesterday", ("n0", "n1", 1)), "time: expected YYYYMMDD"),
        (_matrix("20249901-0000", ("n0", "n1", 1)), "a date and time"),
        ("<network", "not valid XML"),
        ("<html/>", "<network>"),
    ],
)
def test_faults_of_sndlib_traffic_name_archive_and_file(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(InputError) as caught:
        load_traffic(str(_archive(tmp_path, {"bad.xml": text})), _topology())
    assert "a.tgz: bad.xml" in str(caught.value)
    assert words in str(caught.value)


def test_truncated_empty_and_duplicate_sndlib_archives_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    many = {
        f"m{i}.xml": _matrix(
            f"20240101-00{i:02d}", *[("n0", "n1", rng.random()) for _ in range(99)]
        )
        for i in range(60)
    }
    archive = _archive(tmp_path, many)
    content = archive.read_bytes()
    for length in (len(content) // 2, 100, 5):
        archive.write_bytes(content[:length])
        with pytest.raises(InputError, match=r"a\.tgz: the archive is truncated"):
            load_traffic(str(archive), _topology())
    empty = _archive(tmp_path, {"m.xml": _matrix("20240101-0000")}, "b.tgz")
    with pytest.raises(InputError, match="no XML file with demands"):
        load_traffic(str(empty), _topology())
    same = _matrix("20240101-0000", ("n0", "n1", 1))
    with pytest.raises(InputError, match="an earlier file has the time"):
        load_traffic(str(_archive(tmp_path, {"x.xml": same, "y.xml": same}, "c.tgz")), _topology())


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where rates are stored: in memory or on disk."""
    if request.param == "disk":
        monkeypatch.setattr(rate_store, "IN_MEMORY_BYTES", 0)
    return str(request.param)


def _equal(a: TrafficMatrices, b: TrafficMatrices) -> None:
    np.testing.assert_array_equal(a.pairs, b.pairs)
    np.testing.assert_array_equal(a.timestamps, b.timestamps)
    np.testing.assert_allclose(a.read(slice(None)), b.read(slice(None)), rtol=1e-6)
    assert a.interval_s == b.interval_s


@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet"])
def test_traffic_written_to_a_file_is_read_back(tmp_path: Path, suffix: str, store: str) -> None:
    topology = load_topology("b4")
    traffic = load_traffic("gravity:seed=3,count=7,load=2", topology)
    file = tmp_path / f"x.{suffix}"
    save_traffic(file, traffic, topology)
    _equal(load_traffic(str(file), topology), traffic)


def test_npz_traffic_in_any_order_of_pairs_and_compressed_is_read(tmp_path: Path) -> None:
    topology, rates = _topology(), np.array([[1.0, 2.0], [3.0, 4.0]])
    fields: dict[str, Any] = {
        "timestamps": np.array([0, 300]),
        "sources": np.array(["n2", "n0"]),
        "targets": np.array(["n0", "n1"]),
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "x.npz", rates=rates, **fields)
        traffic = load_traffic(str(tmp_path / "x.npz"), topology)
        assert traffic.pairs.tolist() == [[0, 1], [2, 0]]
        assert traffic.read([1, 0]).tolist() == [[4.0, 3.0], [2.0, 1.0]]


def test_compressed_npz_traffic_is_unpacked_in_memory_or_on_disk(
    tmp_path: Path, store: str
) -> None:
    topology, rates = _topology(), np.random.default_rng(0).random((20, 1))
    np.savez_compressed(
        tmp_path / "x.npz",
        rates=rates,
        timestamps=60 * np.arange(20),
        sources=np.array(["n0"]),
        targets=np.array(["n1"]),
    )
    traffic = load_traffic(str(tmp_path / "x.npz"), topology)
    np.testing.assert_allclose(traffic.read(slice(None)), rates, rtol=1e-6)
    assert traffic.interval_s == 60, (
        "the interval comes from the timestamps where the file has none"
    )


def test_faults_of_npz_traffic_are_named(tmp_path: Path) -> None:
    topology, file = load_topology("b4"), tmp_path / "x.npz"
    save_traffic(file, load_traffic("gravity:count=5", topology), topology)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"x\.npz"):
        load_traffic(str(file), topology)
    np.savez(file, rates=np.ones((2, 2)))
    with pytest.raises(InputError, match="timestamps: expected the arrays"):
        load_traffic(str(file), topology)
    np.savez(
        file,
        rates=np.ones((2, 2)),
        timestamps=np.array([0, 1]),
        sources=np.array(["1", "x"]),
        targets=np.array(["2"] * 2),
    )
    with pytest.raises(InputError, match="a node of b4, found 'x'"):
        load_traffic(str(file), topology)
    np.savez(file, rates=np.array([None]), timestamps=0, sources=0, targets=0)
    with pytest.raises(InputError, match="cannot be read"):
        load_traffic(str(file), topology)


def test_traffic_tables_in_any_order_are_read_and_missing_rates_are_zero(
    tmp_path: Path, store: str
) -> None:
    (tmp_path / "x.csv").write_text(
        "timestamp,source,target,rate\n"
        "2024-01-01T00:05:00,n0,n1,3\n2024-01-01T00:00:00,n2,n0,1.5\n2024-01-01T00:05:00,n2,n0,4\n"
    )
    traffic = load_traffic(str(tmp_path / "x.csv"), _topology())
    assert traffic.pairs.tolist() == [[0, 1], [2, 0]]
    assert traffic.read(slice(None)).tolist() == [[0.0, 1.5], [3.0, 4.0]]
    assert str(traffic.timestamps[0]) == "2024-01-01T00:00:00"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("1704067200,n0,n1,-1", "invalid row: line 2: rate '-1'"),
        ("1704067200,n0,n1,nan", "invalid row: line 2: rate 'nan'"),
        ("1704067200,n0,n1,", "rate"),
        ("1704067200,n0,n1,1\n1704067200,n1,n0,x", "invalid row: line 3: rate 'x'"),
        ("1704067200,n0,mars,1", "line 2: target 'mars'; use a target that is a node of test"),
        ("1704067200,n0,n0,1", "line 2: target 'n0'; use a target other than the source"),
        ("1704067200,n0,n1,1\n1704067200,n0,n1,2", "two rows have the same source and target"),
        ("soon,n0,n1,1", "timestamp"),
        (",n0,n1,1\n1704067500,n0,n1,2", "timestamp: rows without a time"),
        ("", "the table has no rows"),
    ],
)
def test_faults_of_traffic_tables_are_named(tmp_path: Path, rows: str, words: str) -> None:
    (tmp_path / "x.csv").write_text(f"timestamp,source,target,rate\n{rows}\n".rstrip("\n") + "\n")
    with pytest.raises(InputError) as caught:
        load_traffic(str(tmp_path / "x.csv"), _topology())
    assert "x.csv" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_demands_of_endpoints_of_one_pair_of_nodes_add_up(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 endpoints a pair and interval, in batches that cut the intervals, against sums made
    here."""
    monkeypatch.setattr(tables, "_BATCH_ROWS", 700)
    rng = np.random.default_rng(0)
    pairs, count = [("n0", "n1"), ("n2", "n0")], 1000
    rates = rng.random((2, len(pairs), count))
    columns = {
        "timestamp": np.repeat([1704067200, 1704067500], len(pairs) * count),
        "source": np.tile(np.repeat([pair[0] for pair in pairs], count), 2),
        "target": np.tile(np.repeat([pair[1] for pair in pairs], count), 2),
        "rate": rates.reshape(-1),
        "endpoint": np.tile(np.arange(count), 2 * len(pairs)),
    }
    order = rng.permutation(rates.size)
    table, path = (
        pa.table({name: column[order] for name, column in columns.items()}),
        tmp_path / f"traffic{suffix}",
    )
    if suffix == ".csv":
        csv.write_csv(table, path)
    else:
        parquet.write_table(table, path)
    traffic = load_traffic(str(path), _topology())
    assert traffic.pairs.tolist() == [[0, 1], [2, 0]]
    np.testing.assert_allclose(traffic.read(slice(None)), rates.sum(2), rtol=1e-12)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), "categories"])
@pytest.mark.parametrize(
    ("texts", "expected"), [(["2,5", "1,25"], [2.5, 1.25]), (["10.000"], None)]
)
def test_texts_of_every_arrow_type_are_read_alike(
    tmp_path: Path, kind: Any, texts: list[str], expected: list[float] | None
) -> None:
    """Polars writes large strings, pandas dictionaries for categories."""
    columns = {
        "source": ["n0", "n2"][: len(texts)],
        "target": ["n1", "n0"][: len(texts)],
        "rate": texts,
    }
    arrays = {
        name: pa.array(values).dictionary_encode()
        if kind == "categories"
        else pa.array(values, kind)
        for name, values in columns.items()
    }
    parquet.write_table(pa.table(arrays), tmp_path / "x.parquet")
    if expected is None:
        with pytest.raises(InputError, match="ambiguous: 10 or 10000"):
            load_traffic(str(tmp_path / "x.parquet"), _topology())
    else:
        traffic = load_traffic(str(tmp_path / "x.parquet"), _topology())
        assert sorted(traffic.read([0])[0].tolist(), reverse=True) == expected


def test_a_byte_order_mark_does_not_change_the_names_of_the_first_column(tmp_path: Path) -> None:
    """Node names such as 007 stay texts."""
    (tmp_path / "net.csv").write_text("source,target,capacity\n007,8,10\n8,007,10\n")
    topology = load_topology(str(tmp_path / "net.csv"))
    text = "source,target,rate\n007,8,2.5\n8,007,1\n"
    (tmp_path / "x.csv").write_text(text, encoding="utf-8-sig")
    traffic = load_traffic(str(tmp_path / "x.csv"), topology)
    assert sorted(traffic.read([0])[0].tolist()) == [1.0, 2.5]


def test_a_traffic_table_without_a_column_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("timestamp,source,target\n1704067200,n0,n1\n")
    with pytest.raises(InputError, match=r"rate: expected columns timestamp, source, target, rate"):
        load_traffic(str(tmp_path / "x.csv"), _topology())
    (tmp_path / "x.parquet").write_bytes(b"PAR1 not")
    with pytest.raises(InputError, match=r"x\.parquet"):
        load_traffic(str(tmp_path / "x.parquet"), _topology())


@pytest.mark.parametrize("name", ["b4", "topohub:sndlib/geant", "topohub:sndlib/germany50"])
def test_gravity_traffic_has_the_documented_statistics(name: str) -> None:
    topology = load_topology(name)
    traffic = load_traffic("gravity:seed=1,count=2016,load=4,interval=3600", topology)
    assert traffic.num_demands == topology.num_nodes * (topology.num_nodes - 1)
    rates = traffic.read(slice(None))
    mean = np.sort(rates.mean(0))[::-1]
    share = mean[: max(1, round(len(mean) / 10))].sum() / mean.sum()
    assert share == pytest.approx(0.88, abs=0.02), "the largest tenth of the demands"
    assert shortest_path_load(topology, traffic, rates.mean(0)) == pytest.approx(4, rel=0.1)
    hours = rates.reshape(12, 7, 24, -1)  # weeks, days, hours
    assert hours[:, 5:].mean() / hours[:, :5].mean() == pytest.approx(0.75, abs=0.03), (
        "weekends carry three quarters of weekdays"
    )
    daily = hours.mean((0, 1))
    assert (daily.max(0) / daily.min(0)).mean() > 2, "every demand varies over the day"


def test_noise_of_gravity_traffic_is_ar1() -> None:
    topology = load_topology("b4")
    noisy = load_traffic("gravity:count=3000,interval=1,noise=0.3,correlation=0.9", topology).read(
        slice(None)
    )
    noise = np.log(
        noisy / load_traffic("gravity:count=3000,interval=1,noise=0", topology).read(slice(None))
    )
    noise -= noise.mean(0)
    assert noise.std() == pytest.approx(0.3, rel=0.05)
    assert (noise[1:] * noise[:-1]).mean() / noise.var() == pytest.approx(0.9, abs=0.02)


def test_gravity_traffic_repeats_by_seed_and_scales_with_load(store: str) -> None:
    topology = load_topology("b4")
    reference = load_traffic("gravity:seed=5,count=4,load=1", topology)
    _equal(reference, load_traffic("gravity:seed=5,count=4,load=1", topology))
    _equal(reference.scaled(3), load_traffic("gravity:seed=5,count=4,load=3", topology))
    assert not np.allclose(
        reference.read([0]), load_traffic("gravity:seed=6,count=4", topology).read([0])
    )
    for wrong in (
        "gravity:load=0",
        "gravity:speed=1",
        "gravity:count=x",
        "gravity:correlation=1",
        "gravity:load",
    ):
        with pytest.raises(InputError, match="gravity"):
            load_traffic(wrong, topology)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "archive", "matrices", "demands", "skipped"),
    [
        ("abilene", "directed-abilene-zhang-5min-over-6months-ALL.tgz", 3456, 132, 0),
        ("geant", "directed-geant-uhlig-15min-over-4months-ALL.tgz", 226, 454, 2),
        ("germany50", "directed-germany50-DFN-aggregated-1day-over-1month.tgz", 21, 2111, 0),
    ],
)
def test_published_sndlib_archives_have_their_published_sizes(
    public_data: Path, name: str, archive: str, matrices: int, demands: int, skipped: int
) -> None:
    topology = load_topology(str(public_data / "sndlib" / f"{name}.xml"))
    traffic = load_traffic(str(public_data / "sndlib" / archive), topology)
    assert (traffic.num_matrices, traffic.num_demands, len(traffic.skipped)) == (
        matrices,
        demands,
        skipped,
    )


def test_the_first_ten_faults_of_a_table_are_listed_with_their_lines_and_counted(
    tmp_path: Path,
) -> None:
    rows = [
        f"{1704067200 + 300 * i},n0,{'mars' if i % 3 == 0 else 'n1'},{-1 if i % 3 == 1 else 2}"
        for i in range(40)
    ]
    (tmp_path / "x.csv").write_text("timestamp,source,target,rate\n" + "\n".join(rows) + "\n")
    with pytest.raises(InputError) as caught:
        load_traffic(str(tmp_path / "x.csv"), _topology())
    message = str(caught.value)
    assert message.count("line ") == 10
    assert "line 2: target 'mars'" in message
    assert f"and {14 + 13 - 10} more" in message


@pytest.mark.parametrize(
    ("header", "row"),
    [
        (" Timestamp ,SOURCE,target, Rate", "1704067200, n0 ,n1, 1.5"),
        ("timestamp;source;target;rate", "1704067200;n0;n1;1,5"),
        ("timestamp\tsource\ttarget\trate", "1704067200\tn0\tn1\t1.5"),
        ('"timestamp","source","target","rate"', '1704067200,"n0","n1","1.5"'),
    ],
)
def test_csv_of_other_countries_and_spreadsheets_is_read(
    tmp_path: Path, header: str, row: str
) -> None:
    (tmp_path / "x.csv").write_text(f"{header}\n{row}\n")
    traffic = load_traffic(str(tmp_path / "x.csv"), _topology())
    assert traffic.read([0]).tolist() == [[1.5]]


def test_rates_in_another_unit_are_converted(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("timestamp,source,target,rate\n1704067200,n0,n1,1500\n")
    assert load_traffic(str(tmp_path / "x.csv"), _topology(), unit="Mbit/s").read([0]).tolist() == [
        [1.5]
    ]
    with pytest.raises(InputError, match="states its unit"):
        load_traffic("gravity:", _topology(), unit="Mbit/s")
    with pytest.raises(InputError, match="bytes"):
        load_traffic(str(tmp_path / "x.csv"), _topology(), unit="MB/s")


def test_npz_in_fortran_order_is_read(tmp_path: Path) -> None:
    rates = np.asfortranarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    sources, targets = np.array(["n0", "n1"]), np.array(["n1", "n0"])
    stamps = np.array([0, 300, 600])
    np.savez(tmp_path / "x.npz", rates=rates, timestamps=stamps, sources=sources, targets=targets)
    np.testing.assert_array_equal(
        load_traffic(str(tmp_path / "x.npz"), _topology()).read(slice(None)), rates
    )


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_classes_are_read_in_order_and_written_back(tmp_path: Path, suffix: str) -> None:
    topology = load_topology("b4")
    rows = [
        "timestamp;source;target;class;rate",
        "1704067200;1;2;silver;3",
        "1704067200;1;2;gold;1",
        "1704067200;3;1;gold;2",
        "1704067500;1;2;gold;5",
    ]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    by_name = load_traffic(tmp_path / "t.csv", topology)
    assert by_name.classes is not None
    assert by_name.classes.names == ("gold", "silver")
    given = load_traffic(tmp_path / "t.csv", topology, class_order=["silver", "gold"])
    assert given.classes is not None
    assert given.classes.names == ("silver", "gold")
    names = [[topology.node_names[n] for n in pair] for pair in given.pairs]
    assert names == [["1", "2"], ["1", "2"], ["3", "1"]]
    np.testing.assert_array_equal(given.read([0, 1]), [[3, 1, 2], [0, 5, 0]])
    save_traffic(tmp_path / f"copy{suffix}", by_name, topology)
    again = load_traffic(tmp_path / f"copy{suffix}", topology)
    np.testing.assert_array_equal(again.read([0, 1]), by_name.read([0, 1]))
    np.testing.assert_array_equal(again.pairs, by_name.pairs)
    with pytest.raises(InputError, match="the classes of the traffic"):
        load_traffic(tmp_path / "t.csv", topology, class_order=["gold"])
    with pytest.raises(InputError, match=r"\.csv or \.parquet"):
        save_traffic(tmp_path / "copy.npz", by_name, topology)
    numbered = [row.replace("silver", "2").replace("gold", "10") for row in rows]
    (tmp_path / "n.csv").write_text("\n".join(numbered) + "\n")
    classes = load_traffic(tmp_path / "n.csv", topology).classes
    assert classes is not None
    assert classes.names == ("2", "10")


@pytest.mark.parametrize(("unit", "expected"), [("", 1.5), ("kbit/s", 0.0015), ("Gbit/s", 1500.0)])
def test_a_unit_that_is_given_counts_in_the_place_of_that_of_the_heading(
    unit: str, expected: float, tmp_path: Path
) -> None:
    file = tmp_path / "x.csv"
    file.write_text("source,target,rate (Mbit/s)\nn0,n1,1500\n")
    topology = make_topology([(0, 1, 10.0)], both=True)
    assert load_traffic(file, topology, unit=unit).read([0])[0, 0] == pytest.approx(expected)


def test_a_rate_that_contradicts_the_decimal_sign_of_the_others_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the sign was decided by the first rows of a large file: 2.5 must not become 25."""
    file = tmp_path / "x.csv"
    file.write_text("timestamp;source;target;rate\n1704067200;n0;n1;1,5\n1704067500;n0;n1;2.5\n")
    monkeypatch.setattr(tables, "decimal_of", lambda *_: Decimal.COMMA)
    with pytest.raises(InputError, match=r"line 3: rate '2\.5"):
        load_traffic(file, make_topology([(0, 1, 10.0)], both=True))
