"""Packages over the core: an installed one adds something of each kind, and the core works without
any."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import PACKAGES

ROOT = Path(__file__).parents[1]
# As if these packages were not installed: their modules cannot be imported.
_BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in %s:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
"""
_WITHOUT_ALL = _BLOCKED % (
    ("teal_availability", "teal_ip", "teal_next", "teal_serve", "teal_study"),
)
_SERVICE_ALONE = _BLOCKED % (("teal_availability", "teal_ip", "teal_next", "teal_study"),)
_TWO = {
    "nodes": [{"id": "a"}, {"id": "b"}],
    "directed": True,
    "links": [
        {"source": "a", "target": "b", "capacity": 2},
        {"source": "b", "target": "a", "capacity": 2},
    ],
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the toy package as an installer leaves it: modules, and metadata with its entry
    points."""
    folder = tmp_path_factory.mktemp("installed")
    source = ROOT / "tests" / "toy_package"
    shutil.copytree(source / "toy", folder / "toy")
    project = (source / "pyproject.toml").read_text()
    info = folder / "toy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    points = project.partition("[project.entry-points")[2].replace('"', "")
    (info / "entry_points.txt").write_text(
        "\n".join(
            line.replace("[project.entry-points.", "[")
            for line in f"[project.entry-points{points}".splitlines()
        )
    )
    return folder


def _teal(folder: Path, *words: str, code: str = "") -> subprocess.CompletedProcess[str]:
    program = f"{code}\nimport sys\nfrom teal.__main__ import main\nsys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        check=False,
    )


def test_the_toy_package_announces_what_its_project_file_says(installed: Path) -> None:
    (package,) = importlib.metadata.distributions(name="toy", path=[str(installed)])
    assert {point.group for point in package.entry_points} == {
        "teal.commands",
        "teal.traffic_formats",
        "teal.engines",
        "teal.service_routes",
        "teal.objectives",
        "teal.learners",
    }


@pytest.mark.slow
def test_an_installed_package_adds_a_command_a_traffic_format_an_objective_and_an_engine(
    installed: Path, tmp_path: Path
) -> None:
    assert "  degree " in _teal(installed, "--help").stdout
    assert json.loads(_teal(installed, "degree", "--topology", "b4", "--json").stdout) == {
        "degree": 4
    }
    (tmp_path / "net.json").write_text(json.dumps(_TWO))
    (tmp_path / "demands.toy").write_text("a b 6\nb a 1\n")
    files = ["--topology", str(tmp_path / "net.json"), "--traffic", str(tmp_path / "demands.toy")]
    found = json.loads(
        _teal(installed, "solve", *files, "--objective", "half_flow", "--json").stdout
    )
    assert found["value"] == pytest.approx(1.5, rel=1e-2)  # of 2 and 1 Gbit/s
    assert _teal(installed, "solve", *files, "--traffic-unit", "Mbit/s").returncode == 2
    greedy = json.loads(
        _teal(installed, "solve", *files, "--engine", "toy-greedy", "--json").stdout
    )
    assert greedy["value"] == pytest.approx(3.0)
    assert greedy["gap"] == pytest.approx(0.0)
    refused = _teal(
        installed, "solve", *files, "--engine", "toy-greedy", "--objective", "max_link_utilisation"
    )
    assert refused.returncode == 2
    assert "toy-greedy does not support this program" in " ".join(refused.stderr.split())
    unknown = _teal(installed, "solve", *files, "--engine", "toy")
    assert (unknown.returncode, "toy-greedy" in unknown.stderr) == (2, True)


@pytest.mark.slow
def test_an_installed_package_adds_a_learner_with_an_option(
    installed: Path, tmp_path: Path
) -> None:
    words = [
        "train",
        "--topology",
        "b4",
        "--traffic",
        "gravity:seed=0,count=20,load=6",
        "--max-steps",
        "1",
    ]
    done = _teal(installed, *words, "--learner", "toy:scale=2", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    refused = _teal(installed, *words, "--learner", "toy:speed=2", "--out", str(tmp_path / "other"))
    assert (refused.returncode, "one of: scale" in refused.stderr) == (2, True)


@pytest.mark.slow
def test_an_installed_package_adds_a_route_and_its_objective_is_served(
    installed: Path, tmp_path: Path
) -> None:
    pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")
    program = f"""
import asyncio, json, pathlib
import httpx
from teal_serve.engine.engine import AllocationEngine
from teal_serve.http.app import make_app

async def ask():
    transport = httpx.ASGITransport(make_app(AllocationEngine(pathlib.Path({str(tmp_path)!r})), ["a-token-of-some-length"]))
    head = {{"Authorization": "Bearer a-token-of-some-length"}}
    async with httpx.AsyncClient(transport=transport, base_url="http://x", headers=head) as client:
        refused = (await client.get("/v1/toy", headers={{"Authorization": "Bearer wrong-token-of-length"}})).status_code
        put = {{"topology": {_TWO!r}, "objective": "half_flow"}}
        await client.put("/v1/networks/net", json=put)
        while (await client.get("/v1/networks/net")).json()["state"] == "computing":
            await asyncio.sleep(0.05)
        names = (await client.get("/v1/toy")).json()
        demands = {{"demands": [{{"source": "a", "target": "b", "rate": 6}}]}}
        answer = (await client.post("/v1/networks/net/allocations", json=demands)).json()
        described = "half_flow" in (await client.get("/openapi.json")).text
        print(json.dumps([refused, names, answer["allocations"][0]["value"], described]))

asyncio.run(ask())
"""
    environment = {**os.environ, "PYTHONPATH": f"{installed}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    refused, names, value, described = json.loads(done.stdout.splitlines()[-1])
    assert (refused, names, described) == (401, {"names": ["ten"]}, True)
    assert value == pytest.approx(1.0, rel=1e-2)


@pytest.mark.slow
def test_the_core_solves_and_serves_where_no_package_can_be_imported(tmp_path: Path) -> None:
    files = ["--topology", "b4", "--traffic", "gravity:seed=0,count=2,load=4"]
    done = _teal(tmp_path, "solve", *files, "--json", code=_WITHOUT_ALL)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["gap"] <= 0.01
    missing = _teal(tmp_path, "simulate", *files, code=_WITHOUT_ALL)
    assert missing.returncode == 2
    assert "commands of ip are missing: No module named 'teal_ip" in " ".join(
        missing.stderr.split()
    )
    assert "simulate" not in _teal(tmp_path, "--help", code=_WITHOUT_ALL).stdout


@pytest.mark.slow
def test_the_service_without_packages_refuses_counters_with_advice(tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")
    program = f"""{_SERVICE_ALONE}
import asyncio, json, pathlib
import httpx, numpy
from teal_serve.client import AsyncClient
from teal_serve.engine.engine import AllocationEngine
from teal_serve.http.app import make_app

async def ask():
    transport = httpx.ASGITransport(make_app(AllocationEngine(pathlib.Path({str(tmp_path)!r}))))
    async with AsyncClient("http://x", transport=transport) as client:
        await client.put_network("net", {_TWO!r})
        await client.wait_ready("net")
        measured = await client.measure("net", numpy.ones((1, 2)), numpy.datetime64("2026-01-01T00:00:00"))
        path, faults = "/v1/networks/net", []
        counters = {{"links": [], "nodes": [{{"node": "a", "ingress": 1, "egress": 1}}]}}
        sent = {{"time": "2026-01-01T00:05:00Z", "counters": counters}}
        for where, body in (("measurements", sent), ("allocations", {{"for": "next"}})):
            answer = await client._http.post(f"{{path}}/{{where}}", json=body)
            faults.append((answer.status_code, answer.json()["message"]))
        print(json.dumps([measured.matrices, faults]))

asyncio.run(ask())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    matrices, faults = json.loads(done.stdout.splitlines()[-1])
    assert matrices == 1
    assert [status for status, _ in faults] == [422, 422]
    assert all("install a package" in message for _, message in faults), faults


def test_the_stub_of_teal_names_what_packages_add() -> None:
    """Type checkers know `teal.plan` and the others, and report a name that no package has."""
    stub = ast.parse((ROOT / "teal" / "__init__.pyi").read_text(encoding="utf-8"))
    declared = {
        target.id
        for node in stub.body
        for target in (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        if isinstance(target, ast.Name)
    }
    packages = [importlib.import_module(name) for name in PACKAGES[1:]]
    added = {name for package in packages for name in getattr(package, "__all__", ())}
    assert declared - {"__all__", "__version__"} == added
