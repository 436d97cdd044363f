"""The commands as a user types them."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from teal.app.command import Outcome
from teal.cli import main
from teal.cli.commands import COMMANDS
from teal.errors import InputError, SolverError, TealError
from teal.formats.rows import read_csv, write_csv
from teal_study.evaluation.rows import Row
from tests.gate import OPEN, PATIENCE_S, Gate
from tests.processes import running

ROOT = Path(__file__).parents[1]
B4 = ["--topology", "b4", "--traffic", "gravity:seed=0,count=30,load=3"]
QUICK = ["--max-steps", "6", "--validate-every", "3", "--validation-matrices", "2"]


def _train(out: Path, *more: str) -> int:
    return main(["train", *B4, "--out", str(out), *QUICK, *more])


@pytest.mark.slow
def test_train_evaluate_and_look(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = tmp_path / "model", tmp_path / "results"
    assert _train(model, "--calibrate", "0.9") == 0
    schemes = [
        "--scheme",
        "teal",
        "--scheme",
        "teal:repair=none",
        "--scheme",
        "lp-all:solver=highs",
    ]
    schemes += ["--scheme", "lp-all:solver=gurobi"]
    arguments = [
        "evaluate",
        *B4,
        "--calibrate",
        "0.9",
        "--model",
        str(model),
        *schemes,
        "--out",
        str(out),
    ]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "lp-all:solver=gurobi" in printed
    with (out / "results.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == list(Row.COLUMNS)
    write_csv(tmp_path / "again.csv", read_csv(out / "results.csv", Row))
    assert (tmp_path / "again.csv").read_text() == (out / "results.csv").read_text()
    assert len(rows) == 4 * 6, "four schemes, the last fifth of 30 matrices"
    assert {int(row["index"]) for row in rows} == set(range(24, 30))
    assert (out / "results.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / "manifest.json").read_text())["settings"]["calibrate"] == 0.9
    by = {(row["scheme"], row["index"]): row for row in rows}
    for index in range(24, 30):
        highs, gurobi = (by[f"lp-all:solver={s}", str(index)] for s in ("highs", "gurobi"))
        assert float(highs["value"]) == pytest.approx(float(gurobi["value"]), rel=1e-6)
        assert float(highs["gap"]) == pytest.approx(0, abs=1e-6)
        teal, plain = by["teal", str(index)], by["teal:repair=none", str(index)]
        assert float(plain["value"]) <= float(teal["value"]) * (1 + 1e-9)
        assert (
            float(teal["value"])
            <= float(highs["value"]) * (1 + 1e-6)
            <= float(teal["bound"]) * (1 + 2e-6)
        )
        assert float(teal["max_violation"]) <= 1e-6
    assert main(arguments) == 2, "results are not replaced unasked"
    assert main([*arguments, "--overwrite", "--limit", "2", "--split", "all", "--fail", "1,2"]) == 0
    assert len((out / "results.csv").read_text().splitlines()) == 1 + 4 * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "objective", ["weighted_flow", "latency_penalised_flow", "max_link_utilisation"]
)
def test_every_objective_trains_and_evaluates(tmp_path: Path, objective: str) -> None:
    assert _train(tmp_path / "m", "--objective", objective) == 0
    evaluate = [
        "evaluate",
        *B4,
        "--objective",
        objective,
        "--model",
        str(tmp_path / "m"),
        "--out",
        str(tmp_path / "r"),
    ]
    assert main([*evaluate, "--limit", "2"]) == 0
    with (tmp_path / "r" / "results.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row["scheme"] for row in rows} == {"teal", "price-gnn", "lp-all"}
    assert all(float(row["gap"]) >= -1e-6 for row in rows)


def test_resume_and_overwrite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _train(tmp_path) == 0
    assert _train(tmp_path) == 2
    assert "--resume or --overwrite" in capsys.readouterr().err
    assert main(["train", *B4, "--out", str(tmp_path), *QUICK, "--max-steps", "9", "--resume"]) == 0
    assert "9 steps" in capsys.readouterr().out
    assert _train(tmp_path, "--overwrite") == 0
    assert "6 steps" in capsys.readouterr().out
    assert _train(tmp_path / "none", "--resume") == 2
    (tmp_path / "trainer.safetensors").unlink()
    assert _train(tmp_path) == 2, "a model alone is not replaced unasked either"


def test_overwriting_results_leaves_other_files_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("mine")
    arguments = ["evaluate", *B4, "--scheme", "lp-all", "--limit", "1", "--out", str(tmp_path)]
    assert main(arguments) == 0
    assert main([*arguments, "--overwrite"]) == 0
    assert (tmp_path / "notes.md").read_text() == "mine"
    assert {p.name for p in tmp_path.iterdir()} == {
        "manifest.json",
        "networks.json",
        "notes.md",
        "report.html",
        "results.csv",
        "results.parquet",
        "results.png",
        "summary.csv",
        "utilisation.parquet",
    }


def test_an_evaluation_in_which_no_scheme_succeeds_fails(tmp_path: Path) -> None:
    instance = [
        "--topology",
        "topohub:sndlib/germany50",
        "--traffic",
        "gravity:count=3",
        "--out",
        str(tmp_path / "r"),
    ]
    assert main(["evaluate", *instance, "--scheme", "lp-all:solver=gurobi"]) == 1


def test_a_scheme_that_cannot_run_fails_its_rows_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    instance = [
        "--topology",
        "topohub:sndlib/germany50",
        "--traffic",
        "gravity:count=3",
        "--out",
        str(tmp_path / "r"),
    ]
    assert (
        main(["evaluate", *instance, "--scheme", "lp-all:solver=gurobi", "--scheme", "lp-all"]) == 0
    )
    assert "2,000 variables" in capsys.readouterr().err
    with (tmp_path / "r" / "results.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row["scheme"]: row["status"] for row in rows} == {
        "lp-all:solver=gurobi": "failed",
        "lp-all": "optimal",
    }
    assert rows[0]["value"] == "nan"


def _write_bad_files(folder: Path) -> None:
    (folder / "zero.json").write_text(
        '{"directed": true, "nodes": [{"id": 1}, {"id": 2}], "links": [{"source": 1, "target": 2, "capacity": 0}]}'
    )
    (folder / "none.json").write_text(
        '{"directed": true, "nodes": [{"id": 1}, {"id": 2}], "links": [{"source": 1, "target": 2}]}'
    )
    (folder / "cut.tgz").write_bytes(b"\x1f\x8b\x08\x00" + bytes(20))
    for name, row in [("mars", "1,mars,1"), ("negative", "1,2,-1"), ("nan", "1,2,nan")]:
        (folder / f"{name}.csv").write_text(f"timestamp,source,target,rate\n1767225600,{row}\n")
    np.savez(
        folder / "bad.npz",
        rates=np.array([[1.0], [np.nan]]),
        timestamps=np.array([0, 300]),
        sources=np.array(["1"]),
        targets=np.array(["2"]),
    )
    (folder / "taken.txt").write_text("mine")
    (folder / "locked.json").mkdir()
    (folder / "rubbish").mkdir()
    (folder / "rubbish" / "model.json").write_text("{}")
    (folder / "rubbish" / "model.safetensors").write_bytes(b"x")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "train --topology b4 --traffic gravity --batch-size -1",
            "--batch-size: expected an integer >= 0",
        ),
        ("train --topology b4 --traffic gravity --micro-batch -1", "--micro-batch"),
        (
            "train --topology b4 --traffic gravity --learner coma:std=0",
            "std: expected a number > 0",
        ),
        ("train --topology b4 --traffic bad.npz", "bad.npz: matrix 1, demand"),
        (
            "train --topology b4 --traffic gravity --out taken.txt",
            "taken.txt is a file, not a folder",
        ),
        (
            "evaluate --topology b4 --traffic gravity --scheme lp-all --out taken.txt/x",
            "is a file, not a folder",
        ),
        ("evaluate --topology b4 --traffic gravity --scheme lp-all --limit -1", "--limit"),
        ("evaluate --topology locked.json --traffic gravity --scheme lp-all", "locked.json"),
        (
            "train --topology zero.json --traffic gravity",
            "zero.json: links[0] (1->2): capacity: the capacity is 0",
        ),
        (
            "train --topology none.json --traffic gravity",
            "none.json: links[0] (1->2): capacity: the link has no",
        ),
        ("train --topology nowhere --traffic gravity", "nowhere: topology: no such file or name"),
        ("train --topology b4 --traffic nowhere.npz", "nowhere.npz: traffic: no such file or name"),
        ("train --topology b4 --traffic cut.tgz", "cut.tgz: the archive is truncated"),
        (
            "train --topology b4 --traffic mars.csv",
            "mars.csv: invalid row: line 2: target 'mars'; use a target that is a node of b4",
        ),
        ("train --topology b4 --traffic negative.csv", "invalid row: line 2: rate '-1'"),
        ("train --topology b4 --traffic nan.csv", "invalid row: line 2: rate 'nan'"),
        ("train --topology b4 --traffic gravity --calibrate 1.5", "--calibrate: expected a share"),
        ("train --topology b4 --traffic gravity --time-budget soon", "a duration"),
        (
            "train --topology b4 --traffic gravity --num-paths 0",
            "K: expected a number from 1 to 255",
        ),
        (
            "train --topology b4 --traffic gravity --objective latency_penalised_flow:epsilon=2",
            "epsilon",
        ),
        ("train --topology b4 --traffic gravity --device tpu", "--device"),
        (
            "train --topology b4 --traffic gravity --objective weighted_flow --weights no.csv",
            "no.csv: weights",
        ),
        (
            "evaluate --topology b4 --traffic gravity --scheme lp-none",
            "lp-none: scheme: expected one of",
        ),
        (
            "evaluate --topology b4 --traffic gravity --scheme teal --model hedge",
            "a model of the kind flow-gnn",
        ),
        (
            "train --topology b4 --traffic gravity --out m --from none:depth=2",
            "depth: expected one of: form, layers, width",
        ),
        ("train --topology b4 --traffic gravity --out m --from nowhere", "nowhere: model.json"),
        (
            "train --topology b4 --traffic gravity --out m --num-paths 3 --from b4",
            "the model takes 4 paths per demand, not 3",
        ),
        (
            "evaluate --topology b4 --traffic gravity --scheme teal --model rubbish",
            "model.json: format: expected 1",
        ),
        (
            "evaluate --topology b4 --traffic gravity --scheme teal --model nowhere",
            "nowhere: model.json",
        ),
        (
            "evaluate --topology b4 --traffic gravity --objective max_link_utilisation --scheme teal --model K4",
            "objective: the model was trained for total_flow, not for max_link",
        ),
        ("evaluate --topology b4 --traffic gravity --fail 1,99", "node: expected a node"),
        ("evaluate --topology b4 --traffic gravity --fail 1", "two node names"),
    ],
)
def test_bad_input_is_one_line_exit_code_two_and_nothing_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    _write_bad_files(tmp_path)
    if "K4" in command:
        assert _train(tmp_path / "K4") == 0
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    capsys.readouterr()
    out = [] if "--out" in command else ["--out", "out"]
    assert main([*command.split(), *out]) == 2
    errors = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("teal: error:")
    ]
    assert len(errors) == 1
    assert words in errors[0]
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before


def test_paths_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "paths.csv"
    assert main(["paths", "compute", "--topology", "b4", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "nodes of the path trie: 396" in said
    demands = {
        int(k): int(count) for k, count in re.findall(r"demands with (\d+) paths: (\d+)", said)
    }
    assert list(demands) == list(range(5))
    assert sum(demands.values()) == 132
    assert sum(k * count for k, count in demands.items()) == 310
    lines = out.read_text().splitlines()
    assert len(lines) == 1 + 310
    source, target, _, nodes = lines[1].split(",")
    assert nodes.split()[0] == source
    assert nodes.split()[-1] == target


def test_traffic_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "x.npz")
    generate = [
        "traffic",
        "generate",
        "--topology",
        "b4",
        "--traffic",
        "gravity:count=4",
        "--out",
        file,
    ]
    assert main(generate) == 0
    assert main(generate) == 2
    table = str(tmp_path / "x.parquet")
    assert main(["traffic", "convert", "--topology", "b4", "--traffic", file, "--out", table]) == 0
    assert (
        main(
            [
                "traffic",
                "convert",
                "--topology",
                "b4",
                "--traffic",
                file,
                "--out",
                str(tmp_path / "x.txt"),
            ]
        )
        == 2
    )
    capsys.readouterr()
    assert main(["traffic", "info", "--topology", "b4", "--traffic", table]) == 0
    printed = capsys.readouterr().out
    assert "4 matrices of 132 demands" in printed
    assert "largest tenth of the demands" in printed


def test_weights_from_a_file(tmp_path: Path) -> None:
    from teal.app.instance import load_weights
    from teal.formats import load_topology, load_traffic

    topology = load_topology("b4")
    traffic = load_traffic("gravity:count=1", topology)
    names = topology.node_names
    lines = [f"{names[s]},{names[t]},{1 + i % 3}" for i, (s, t) in enumerate(traffic.pairs)]
    file = tmp_path / "w.csv"
    file.write_text("\n".join(["source,target,weight", *lines]))
    np.testing.assert_array_equal(load_weights(str(file), topology, traffic)[:4], [1, 2, 3, 1])
    for change, words in [
        (lines[:-1], "no weight for the demand"),
        ([*lines[1:], "1,2,0"], "weight: expected a number above 0"),
        ([*lines, lines[0]], "each source and target may have one row only"),
        (["1,x,1"], "line 2"),
    ]:
        file.write_text("\n".join(["source,target,weight", *change]))
        with pytest.raises(InputError, match=words):
            load_weights(str(file), topology, traffic)


@pytest.mark.system
@pytest.mark.parametrize("launcher", [["-m", "teal", "train"], ["train.py"]])
def test_an_interrupted_training_names_resume(tmp_path: Path, launcher: list[str]) -> None:
    out = tmp_path / "run"
    command = [
        sys.executable,
        *launcher,
        *B4,
        "--out",
        str(out),
        "--time-budget",
        "5m",
        "--from",
        "none",
    ]
    gate = Gate(tmp_path / "gate", "teal_study.learning.train", "Trainer", "one_step", 3)
    with running(command, gate.environment, ROOT) as process:
        assert gate.wait_for(1, process) == {process.pid}
        process.send_signal(signal.SIGINT)
        gate.allow(OPEN)  # an interruption takes effect at the end of the step
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, errors
    assert "--resume" in errors
    assert (
        main(["train", *B4, "--out", str(out), "--from", "none", "--max-steps", "1", "--resume"])
        == 0
    )


def test_solve_writes_an_allocation_and_says_what_it_is_worth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, paths = tmp_path / "a.parquet", tmp_path / "paths.npz"
    instance = ["--topology", "b4", "--traffic", "gravity:seed=0,load=8"]
    assert (
        main(
            ["solve", *instance, "--gap", "0.001", "--deadline", "20s", "--json", "--out", str(out)]
        )
        == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert 0 <= said["gap"] <= 1e-3
    assert said["gap"] == pytest.approx((said["bound"] - said["value"]) / said["bound"])
    assert said["gap_all_paths"] >= said["gap"] - 1e-9
    assert said["max_violation"] < 1e-9
    assert {"satisfied_demand", "iterations", "build_s", "solve_s"} <= set(said)
    table = pq.read_table(out).to_pydict()
    assert sum(table["flow"]) == pytest.approx(said["value"])
    for source, target, nodes in zip(table["source"], table["target"], table["nodes"], strict=True):
        assert (nodes[0], nodes[-1]) == (source, target)
        assert len(set(nodes)) == len(nodes)
    assert main(["solve", *instance, "--out", str(out)]) == 2, "not over an earlier one"
    more = ["--out", str(paths), "--matrices", "1"]
    assert (
        main(["paths", "improve", "--topology", "b4", "--traffic", "gravity:count=3,load=8", *more])
        == 0
    )
    capsys.readouterr()
    again = [
        "--paths",
        str(paths),
        "--fail",
        "1,2",
        "--carrying",
        "--objective",
        "max_concurrent_flow",
    ]
    assert main(["solve", *instance, *again]) == 0
    assert "max_concurrent_flow: 0." in capsys.readouterr().out
    assert main(["solve", *instance, "--gap", "0", "--max-iterations", "3"]) == 3
    assert "was not reached: stopped by the iteration limit" in capsys.readouterr().err
    assert main(["solve", *instance, "--deadline", "5 s"]) == 2
    assert "--deadline" in capsys.readouterr().err
    assert main(["solve", *instance, "--index", "5", "--traffic", "gravity:count=2"]) == 2
    assert "--index" in capsys.readouterr().err


@pytest.mark.system
def test_help_teaches() -> None:
    commands = (
        "",
        "train",
        "evaluate",
        "solve",
        "paths compute",
        "paths improve",
        "traffic info",
        "traffic generate",
    )
    for command in map(str.split, commands):
        run = subprocess.run(
            [sys.executable, "-m", "teal", *command, "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert "usage: teal" in run.stdout
    evaluate = subprocess.run(
        [sys.executable, "evaluate.py", "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert "--scheme" in evaluate.stdout


def test_version_and_typing_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("teal 0.")
    for arguments, hint in (
        (["sovle"], "did you mean solve?"),
        (["topology", "lst"], "topology list"),
        (["solve", "--topolgy", "b4"], "did you mean --topology?"),
        (["solve", "--topology=b4", "--traffic", "gravity:", "--gapp=1"], "did you mean --gap?"),
        (
            ["solve", "--topology", "topohub:sndlib/gent", "--traffic", "gravity:"],
            "did you mean sndlib/geant?",
        ),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert hint in error
        assert error.count("\n") == 1 or "compiling" in error


def test_a_solver_that_fails_ends_otherwise_than_wrong_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for error, expected in (
        (SolverError("no licence"), 1),
        (InputError("net.csv", "", "a file", "none"), 2),
    ):

        def fail(*_: Any, raised: TealError = error) -> Outcome:
            raise raised

        monkeypatch.setitem(
            COMMANDS, "topology info", dataclasses.replace(COMMANDS["topology info"], run=fail)
        )
        assert main(["topology", "info", "--topology", "b4"]) == expected
        assert capsys.readouterr().err == f"teal: error: {error}\n"


def test_help_fits_80_columns_and_lists_every_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    overview = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert f"  {name} " in overview
        assert main([*name.split(), "--help"]) == 0
        text = capsys.readouterr().out
        assert main([*name.split(), "--help-all"]) == 0
        whole = capsys.readouterr().out
        for field in dataclasses.fields(command.settings):
            option = f"--{field.name.rstrip('_').replace('_', '-')}"
            assert f"\n  {option}" in whole
            assert f"\n  {option}" in text or option in text.partition("Options for experts")[2]
        too_long = [line for line in text.splitlines() if len(line) > 80 and "|" not in line]
        assert not too_long, f"{name}: {too_long}"
    assert main(["evaluate", "--help"]) == 0
    groups = [
        line
        for line in capsys.readouterr().out.splitlines()
        if line.endswith(":") and not line.startswith(" ")
    ]
    assert groups[0] == "network and traffic:"
    assert groups[-1] == "output:"
    assert main(["evaluate", "--help-all"]) == 0
    assert "\nfor experts:\n" in capsys.readouterr().out


def test_networks_are_listed_and_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "list", "--match", "SNDLIB"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["topohub:sndlib/geant", "22", "nodes"] for line in lines)
    assert main(["topology", "info", "--topology", "topohub:sndlib/geant"]) == 0
    said = capsys.readouterr().out
    assert "22 nodes" in said
    assert "every link has 100 Gbit/s" in said
    assert main(["topology", "list", "--match", "nowhere"]) == 2


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", [["--version"], ["solve", "--help"]])
def test_a_command_whose_output_nobody_reads_ends_without_a_message(
    command: list[str], unbuffered: str
) -> None:
    end, output = os.pipe()
    os.close(end)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with os.fdopen(output, "w") as stdout:
        run = subprocess.run(
            [sys.executable, "-m", "teal", *command],
            cwd=ROOT,
            env=environment,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )
    assert (run.returncode, run.stderr) == (1, b"")


@pytest.mark.slow
def test_evaluate_prints_tables_of_80_columns_unless_asked_for_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = [
        "evaluate",
        *B4,
        "--scheme",
        "pdhg",
        "--scheme",
        "lp-all:solver=highs",
        "--limit",
        "2",
    ]
    common += ["--failures", "1", "--noise", "2", "--out", str(tmp_path / "r")]
    assert main(common) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:-1])) <= 80
    assert any("certified gap" in line for line in lines)
    assert main([*common, "--overwrite", "--wide"]) == 0
    assert "violation" in capsys.readouterr().out
