"""deploy/ against the schemas of Kubernetes, KubeRay and Ray Serve, and against the files of the
repository."""

from __future__ import annotations

import configparser
import dataclasses
import importlib.metadata
import importlib.util
import re
from pathlib import Path
from typing import Any, Literal

import pytest

# Ray is not imported to see whether it is there: that takes seconds, in every process that collects
# tests.
if not all(map(importlib.util.find_spec, ("ray", "fastapi"))):
    pytest.skip("needs the service's packages: pip install '.[serve]'", allow_module_level=True)
pytest.importorskip(
    "kubernetes_validate", reason="needs the packages of development: pip install '.[dev]'"
)

import yaml
from kubernetes_validate import validate
from pydantic import BaseModel, ConfigDict, Field

from teal_serve.engine.engine import AllocationEngine
from teal_serve.http.app import make_app
from teal_serve.process import _SHUTDOWN_TIMEOUT_S
from teal_serve.settings import ServeConfig

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = "1.31"  # version whose schemas are used


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Group(_Strict):
    """Fields shared by the head and worker groups of a RayCluster:
    https://ray-project.github.io/kuberay/reference/api/."""

    rayStartParams: dict[str, str]  # noqa: N815
    template: dict[str, Any]


class _Workers(_Group):
    groupName: str = Field(pattern="^[a-z0-9-]+$")  # noqa: N815
    replicas: int = Field(ge=0)
    minReplicas: int = Field(ge=0)  # noqa: N815
    maxReplicas: int = Field(ge=0)  # noqa: N815


class _Cluster(_Strict):
    rayVersion: str  # noqa: N815
    headGroupSpec: _Group  # noqa: N815
    workerGroupSpecs: list[_Workers] = Field(min_length=1)  # noqa: N815


class _Strategy(_Strict):
    type: Literal["NewCluster", "None"]


class _Spec(_Strict):
    serveConfigV2: str  # noqa: N815
    excludeHeadPodFromServeSvc: bool  # noqa: N815
    upgradeStrategy: _Strategy  # noqa: N815
    rayClusterDeletionDelaySeconds: int = Field(ge=0)  # noqa: N815
    rayClusterConfig: _Cluster  # noqa: N815


class _RayService(_Strict):
    apiVersion: Literal["ray.io/v1"]  # noqa: N815
    kind: Literal["RayService"]
    metadata: dict[str, Any]
    spec: _Spec


def _documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "rayservice.yaml").read_text()))


def _service() -> _RayService:
    (service,) = [document for document in _documents() if document["kind"] == "RayService"]
    return _RayService.model_validate(service)


def test_every_manifest_is_valid_for_kubernetes() -> None:
    """Pod templates are validated as pods, strictly: an unknown field is an error."""
    for document in _documents():
        if document["kind"] != "RayService":
            validate(document, KUBERNETES, strict=True)
    cluster = _service().spec.rayClusterConfig
    for group in (cluster.headGroupSpec, *cluster.workerGroupSpecs):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **group.template}
        validate(pod, KUBERNETES, strict=True)
        spec = group.template["spec"]
        volumes = {volume["name"] for volume in spec["volumes"]}
        (container,) = spec["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        assert spec["securityContext"]["runAsNonRoot"]
        assert (
            group.template["metadata"]["labels"].items()
            >= _policy()["podSelector"]["matchLabels"].items()
        )


def _policy() -> dict[str, Any]:
    (spec,) = [document["spec"] for document in _documents() if document["kind"] == "NetworkPolicy"]
    return dict(spec)


def test_pods_drain_longer_than_any_deadline_and_ray_ports_are_restricted() -> None:
    spec = _service().spec
    (workers,) = spec.rayClusterConfig.workerGroupSpecs
    pod = workers.template["spec"]
    variables = {
        variable["name"]: variable.get("value") for variable in pod["containers"][0]["env"]
    }
    drain_s, max_deadline_s = int(variables["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"]), 600
    assert max_deadline_s < drain_s < pod["terminationGracePeriodSeconds"]
    assert spec.rayClusterDeletionDelaySeconds > drain_s
    cpu = pod["containers"][0]["resources"]["requests"]["cpu"]
    assert variables["NUMBA_NUM_THREADS"] == cpu
    for rule in _policy()["ingress"]:
        assert rule.get("from") or rule["ports"] == [{"port": 8000}]


def test_strict_validation_refuses_an_unknown_field() -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pod"},
        "spec": {"containers": [], "volums": []},
    }
    with pytest.raises(Exception, match="volums"):
        validate(pod, KUBERNETES, strict=True)


def test_rayservice_manifest_agrees_with_serve_yaml() -> None:
    spec = _service().spec
    serve_config = yaml.safe_load((DEPLOY / "serve.yaml").read_text())
    assert yaml.safe_load(spec.serveConfigV2) == serve_config
    from ray.serve.schema import ServeDeploySchema

    config = ServeDeploySchema.model_validate(serve_config)
    (application,) = config.applications
    names = {field.name for field in dataclasses.fields(ServeConfig)}
    assert set(application.args) <= names
    cluster = spec.rayClusterConfig
    (workers,) = cluster.workerGroupSpecs
    (container,) = workers.template["spec"]["containers"]
    assert workers.replicas >= application.args["replicas"], "at least one node per engine"
    engine, ingress = application.deployments
    requested_cpus = engine.ray_actor_options.num_cpus + ingress.ray_actor_options.num_cpus
    assert float(container["resources"]["requests"]["cpu"]) >= requested_cpus
    assert application.args["state"] in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert cluster.headGroupSpec.rayStartParams["num-cpus"] == "0"
    ports = [port["containerPort"] for port in container["ports"]]
    assert config.http_options.port in ports
    assert cluster.rayVersion == importlib.metadata.version("ray")


def _options(words: list[str]) -> dict[str, str]:
    """The options of teal serve in a command, by the names of its settings."""
    given = dict(zip(words[::2], words[1::2], strict=True))
    return {name.removeprefix("--").replace("-", "_"): value for name, value in given.items()}


def test_the_deployment_of_one_process_is_valid_and_its_probes_are_routes(tmp_path: Path) -> None:
    documents = list(yaml.safe_load_all((DEPLOY / "deployment.yaml").read_text()))
    for document in documents:
        validate(document, KUBERNETES, strict=True)
    claim, service, deployment = documents
    pod = deployment["spec"]["template"]
    assert (
        service["spec"]["selector"]
        == pod["metadata"]["labels"]
        == deployment["spec"]["selector"]["matchLabels"]
    )
    (container,) = pod["spec"]["containers"]
    options = _options(container["args"])
    assert set(options) <= {field.name for field in dataclasses.fields(ServeConfig)}
    assert options["state"] in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert (
        pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    )
    paths = {
        kind: container[f"{kind}Probe"]["httpGet"]["path"]
        for kind in ("startup", "liveness", "readiness")
    }
    assert paths == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    assert set(paths.values()) <= set(make_app(AllocationEngine(tmp_path)).openapi()["paths"])
    assert pod["spec"]["terminationGracePeriodSeconds"] > _SHUTDOWN_TIMEOUT_S


def test_the_systemd_unit_answers_before_it_stops_and_lets_kernels_compile() -> None:
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "teal.service")
    service = unit["Service"]
    program, command, *words = service["ExecStart"].split()
    assert (program, command) == ("/opt/teal/bin/teal", "serve")
    options = _options(words)
    assert set(options) <= {field.name for field in dataclasses.fields(ServeConfig)}
    assert options["state"] == f"/var/lib/{service['StateDirectory']}"
    assert options["log_file"].startswith(f"/var/log/{service['LogsDirectory']}/")
    assert service["Environment"] == f"TEAL_CACHE_DIR=/var/cache/{service['CacheDirectory']}"
    assert int(service["TimeoutStopSec"]) > _SHUTDOWN_TIMEOUT_S
    assert service["KillMode"] == "mixed", (
        "the process for counters must not end before the service"
    )
    assert "MemoryDenyWriteExecute" not in service


def test_every_file_that_the_container_file_copies_exists() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    root = DEPLOY.parent
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (root / source).exists(), source
    assert "USER 1000" in text
    assert (
        "http://127.0.0.1:8000/healthz"
        in text.partition("HEALTHCHECK --")[2].partition("ENTRYPOINT")[0]
    )
    head = _service().spec.rayClusterConfig.headGroupSpec
    assert head.template["spec"]["securityContext"]["runAsUser"] == 1000
    assert not re.search(r"(?i)(token|password)=\S*[a-z0-9]{16}", text), (
        "the image must not contain a secret"
    )
