"""`teal update` on the files of two allocations."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

import teal
from teal.cli import main


def _rates(file: Path) -> Counter[tuple[str, str, tuple[str, ...]]]:
    found: Counter[tuple[str, str, tuple[str, ...]]] = Counter()
    for router, demands in json.loads(file.read_text())["routers"].items():
        for demand in demands:
            for path in demand["paths"]:
                found[router, demand["target"], tuple(path["links"])] += path["rate"]
    return found


def test_the_steps_lead_from_one_file_to_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = ["--topology", "b4", "--traffic", "gravity:seed=0,load=8,count=3"]
    for index in (0, 1):
        out = str(tmp_path / f"{index}.json")
        assert main(["solve", *network, "--index", str(index), "--gap", "0.001", "--out", out]) == 0
    command = [
        "update",
        "--topology",
        "b4",
        "--before",
        str(tmp_path / "0.json"),
        "--after",
        str(tmp_path / "1.json"),
    ]
    command += ["--out", str(tmp_path / "steps")]
    capsys.readouterr()
    assert main(command) == 0
    said = capsys.readouterr().out
    files = sorted((tmp_path / "steps").iterdir())
    assert f"{len(files)} steps, no link above its capacity" in said
    topology = teal.load_topology("b4")
    capacity = dict(zip(topology.link_names(), topology.capacity.tolist(), strict=True))
    states = [_rates(file) for file in (tmp_path / "0.json", *files)]
    for now, then in itertools.pairwise(states):
        load: Counter[str] = Counter()
        for key in now.keys() | then.keys():
            load.update(dict.fromkeys(key[2], max(now[key], then[key])))
        assert all(load[link] <= capacity[link] * (1 + 1e-6) for link in load)
    last, after = states[-1], _rates(tmp_path / "1.json")
    assert all(
        last[key] == pytest.approx(after[key], abs=1e-6) for key in last.keys() | after.keys()
    )
    assert main(command) == 2, "the steps are not replaced without --overwrite"
    assert main([*command, "--overwrite", "--max-steps", "0"]) == 2
    (tmp_path / "1.json").write_text("{}")
    assert main([*command, "--overwrite"]) == 2
