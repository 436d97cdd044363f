"""A history in bulk: parts against their figures and paths, and killed runs against one that was
not."""

from __future__ import annotations

import csv
import json
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

import teal
from teal.allocation.allocate_command import run_allocate
from teal.allocation.allocate_files import PartFiles
from teal.allocation.settings import AllocateConfig
from teal.cli import main
from teal.errors import InputError
from teal.proofs.check import check
from tests.gate import Gate
from tests.processes import descendants, kill, running

_MOVING = "gravity:seed=0,count=12,load=8"  # so much that optima of successive matrices differ
SETTINGS = ["--topology", "b4", "--traffic", "gravity:seed=0,count=150,load=4", "--part", "20"]


def _config(out: Path, **settings: Any) -> AllocateConfig:
    given: dict[str, Any] = {
        "topology": "b4",
        "traffic": "gravity:seed=0,count=50,load=4",
        "part": 20,
        "workers": 0,
    }
    return AllocateConfig(out=out, **(given | settings))


def _splits(out: Path, name: str = "splits") -> np.ndarray:
    columns = [
        pq.read_table(file, columns=[name])[name].combine_chunks()
        for file in sorted(out.glob("part-*"))
    ]
    return np.concatenate(
        [column.flatten().to_numpy().reshape(len(column), -1) for column in columns]
    )


def _figures(out: Path) -> list[dict[str, str]]:
    with (out / "figures.csv").open() as stream:
        return [{k: v for k, v in row.items() if k != "solve_s"} for row in csv.DictReader(stream)]


@pytest.mark.system
def test_parts_hold_what_the_figures_say(tmp_path: Path) -> None:
    """Loads summed over the nodes that paths.parquet names, against capacities and the figures."""
    found = run_allocate(_config(tmp_path), print)
    topology = teal.load_topology("b4")
    demand = teal.load_traffic("gravity:seed=0,count=50,load=4", topology).read(slice(None))
    splits = _splits(tmp_path)
    assert [len(pq.read_table(file)) for file in sorted(tmp_path.glob("part-*"))] == [20, 20, 10]
    assert [one.index for one in found] == list(range(50))
    place = {
        (topology.node_names[s], topology.node_names[t]): link
        for link, (s, t) in enumerate(zip(topology.link_source, topology.link_target, strict=True))
    }
    load, flow = np.zeros((50, topology.num_links)), np.zeros(50)
    for path in pq.read_table(tmp_path / "paths.parquet").to_pylist():
        carried = demand[:, path["demand"]] * splits[:, path["demand"] * 4 + path["k"]]
        assert (path["nodes"][0], path["nodes"][-1]) == (path["source"], path["target"])
        flow += carried
        for link in zip(path["nodes"], path["nodes"][1:], strict=False):
            load[:, place[link]] += carried
    assert (load <= topology.capacity * (1 + 1e-5)).all()
    for row, one in enumerate(found):
        assert one.value == pytest.approx(flow[row], rel=1e-5)
        assert one.satisfied_demand == pytest.approx(flow[row] / demand[row].sum(), rel=1e-5)
        assert one.max_link_utilisation == pytest.approx(
            (load[row] / topology.capacity).max(), rel=1e-5
        )
        assert one.gap <= 0.01
        assert one.value <= one.bound
    assert json.loads((tmp_path / "manifest.json").read_text())["settings"]["part"] == 20
    assert not (tmp_path / "journal.jsonl").exists()


def test_no_matrix_moves_more_than_it_may_against_the_one_before(tmp_path: Path) -> None:
    """Recomputed from the files; the first matrix of each part moves freely."""
    found = run_allocate(
        _config(tmp_path, limit=12, part=6, max_churn=0.02, traffic=_MOVING), print
    )
    demand = teal.load_traffic(_MOVING, teal.load_topology("b4")).read(slice(0, 12))
    splits = _splits(tmp_path).reshape(12, demand.shape[1], -1).astype(np.float64)
    for row, one in enumerate(found):
        assert one.status == "feasible"
        assert one.gap <= 0.01
        if row % 6 == 0:
            assert np.isnan(one.moved)
            continue
        moved = (
            demand[row][:, None] * np.maximum(0, splits[row] - splits[row - 1])
        ).sum() / demand[row].sum()
        assert moved == pytest.approx(one.moved, abs=1e-6)
        assert moved <= 0.02 + 1e-6
    free = run_allocate(_config(tmp_path / "free", limit=12, part=6, traffic=_MOVING), print)
    assert all(np.isnan(one.moved) for one in free)
    assert sum(one.value for one in free) >= sum(one.value for one in found) * 0.99
    with pytest.raises(InputError, match="rounding moves traffic"):
        _config(tmp_path, max_churn=0.02, entries=16)


@pytest.mark.slow
def test_weights_and_figures_alone(tmp_path: Path) -> None:
    weighed = run_allocate(_config(tmp_path / "w", entries=16, limit=30), print)
    weights = _splits(tmp_path / "w", "weights").reshape(30, 132, -1)
    assert weights.dtype == np.uint8
    assert set(np.unique(weights.sum(-1))) <= set(range(17))
    alone = run_allocate(_config(tmp_path / "f", figures_only=True, limit=30), print)
    assert "splits" not in pq.read_table(tmp_path / "f" / "part-00000.parquet").column_names
    for coarse, fine in zip(weighed, alone, strict=True):
        assert coarse.value <= fine.bound * (
            1 + 1e-12
        )  # the best tables may reach the optimum itself
        assert fine.gap <= 0.01


@pytest.mark.system
def test_each_matrix_has_a_file_of_its_own_with_what_routers_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["allocate", *SETTINGS, "--workers", "0", "--limit", "22"]
    command += ["--out", str(tmp_path / "out")]
    # What it costs is in the gap.
    assert main([*command, "--each", "json", "--min-split", "0.1", "--gap", "1e-3"]) == 3
    assert "--min-split and --entries changed the sum of all values by -" in capsys.readouterr().out
    files = sorted((tmp_path / "out" / "matrices").iterdir())
    assert [file.name for file in files] == [f"{index:06d}.json" for index in range(22)]
    for figures, file in zip(_figures(tmp_path / "out"), files, strict=True):
        written = json.loads(file.read_text())
        demands = [demand for router in written["routers"].values() for demand in router]
        assert sum(demand["admitted"] for demand in demands) == pytest.approx(
            float(figures["value"]), rel=1e-9
        )
        # What is left out makes room that other demands are given.
        assert float(figures["value"]) <= float(figures["bound"]) * (1 + 1e-6)
        for demand in demands:
            assert all(path["split"] >= 0.1 for path in demand["paths"])
    export = ["export", "--allocation", str(files[3]), "--topology", "b4", "--format", "sr-policy"]
    assert main([*export, "--out", str(tmp_path / "sr.json")]) == 0
    assert main([*command, "--limit", "2", "--each", "csv", "--entries", "16", "--overwrite"]) == 0
    assert [file.name for file in sorted((tmp_path / "out" / "matrices").iterdir())] == [
        "000000.csv",
        "000001.csv",
    ]
    with (tmp_path / "out" / "matrices" / "000001.csv").open() as stream:
        weights: dict[tuple[str, str], int] = {}
        for row in csv.DictReader(stream):
            weights[row["source"], row["target"]] = weights.get(
                (row["source"], row["target"]), 0
            ) + int(row["weight"])
    assert set(weights.values()) <= {0, 16}, "0 of a demand that is not carried"
    assert 16 in weights.values()


def test_a_part_does_not_depend_on_what_came_before(tmp_path: Path) -> None:
    run_allocate(_config(tmp_path / "all"), print)
    (tmp_path / "one").mkdir()
    PartFiles(_config(tmp_path / "one")).write_part(2)
    first, second = (
        pq.read_table(tmp_path / n / "part-00002.parquet").drop(["solve_s", "moved"])
        for n in ("all", "one")
    )
    assert first.equals(second)


def test_existing_parts_are_not_replaced_without_overwrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []
    work = PartFiles.write_part

    def breaking(self: PartFiles, part: int) -> Any:
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append(part)
        return work(self, part)

    monkeypatch.setattr(PartFiles, "write_part", breaking)
    with pytest.raises(KeyboardInterrupt):
        run_allocate(_config(tmp_path), print)

    def watched(self: PartFiles, part: int) -> Any:
        done.append(part)
        return work(self, part)

    monkeypatch.setattr(PartFiles, "write_part", watched)
    with pytest.raises(InputError, match="--resume or --overwrite"):
        run_allocate(_config(tmp_path), print)
    with pytest.raises(InputError, match="--gap"):
        run_allocate(_config(tmp_path, resume=True, gap=0.02), print)
    (tmp_path / "part-00000.parquet").unlink()  # a part that somebody took away is made again
    assert len(run_allocate(_config(tmp_path, resume=True), print)) == 50
    assert done == [0, 0, 1, 2]
    with pytest.raises(InputError, match="--overwrite"):
        run_allocate(_config(tmp_path), print)
    with pytest.raises(InputError, match="no such"):
        run_allocate(_config(tmp_path, topology="nowhere.json", overwrite=True), print)
    assert len(_figures(tmp_path)) == 50, "a wrong setting deletes nothing"


def test_every_matrix_has_a_proof(tmp_path: Path) -> None:
    results = run_allocate(_config(tmp_path, prove=True, limit=3, part=2), print)
    folders = sorted((tmp_path / "proofs").iterdir())
    assert [folder.name for folder in folders] == ["000000", "000001", "000002"]
    for folder, matrix in zip(folders, results, strict=True):
        (sentence,) = check(
            *(str(folder / name) for name in ("network.csv", "matrix.csv", "proof.txt.gz"))
        )
        proven = float(sentence.partition("from ")[2].partition(" ")[0])
        assert proven == pytest.approx(matrix.value, rel=1e-9)
    run_allocate(_config(tmp_path, limit=1, overwrite=True), print)
    assert not any((tmp_path / "proofs").glob("*/*"))


@pytest.mark.system
@pytest.mark.xdist_group("ray-a")
def test_a_killed_worker_and_a_killed_run_change_nothing(
    tmp_path: Path,
    local_ray: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    assert main(["traffic", "generate", *SETTINGS[:4], "--out", str(tmp_path / "t.parquet")]) == 0
    settings = [
        "--topology",
        "b4",
        "--traffic",
        "t.parquet",
        *SETTINGS[4:],
        "--gap",
        "1e-4",
    ]  # a relative file
    monkeypatch.chdir(tmp_path)
    assert main(["allocate", *settings, "--out", str(alone), "--workers", "0"]) == 0
    command = [
        sys.executable,
        "-m",
        "teal",
        "allocate",
        *settings,
        "--out",
        str(killed),
        "--workers",
        "1",
    ]
    gate = Gate(tmp_path / "gate", "teal.allocation.allocate_files", "PartFiles", "write_part", 1)
    with running(command, gate.environment) as process:
        first = gate.wait_for(1, process)
        psutil.Process(min(first)).kill()
        gate.wait_for(1, process, earlier=first)
        family = descendants(process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kill(family)
    done = len(list(killed.glob("part-*")))
    assert done == 2
    capsys.readouterr()
    assert main([*command[3:], "--resume"]) == 0
    assert "150 matrices" in capsys.readouterr().out
    assert _figures(killed) == _figures(alone)
    assert np.array_equal(_splits(killed), _splits(alone))


def test_wrong_settings_of_allocate_are_refused(tmp_path: Path) -> None:
    for wrong in ({"part": 0}, {"entries": 256}, {"gap": 1.0}, {"workers": -1}):
        with pytest.raises(InputError, match=f"--{next(iter(wrong))}"):
            _config(tmp_path, **wrong)
