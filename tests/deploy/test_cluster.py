"""deploy/serve.yaml on a cluster of two nodes, one of which ends."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml

from teal.app.warm_up import compile_all_first
from teal_serve.client import Client, ServiceFault
from tests.gate import PATIENCE_S, wait_until
from tests.processes import running
from tests.teal_serve.service import TOKEN, free_port

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("ray-a")]

ROOT = Path(__file__).parents[2]
_LATER_MS = 60_000  # a deadline that even a busy machine keeps
# A head without engines and two nodes for them; a line on its input ends one of them.
_CLUSTER = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
nodes = [cluster.add_node(num_cpus=4) for _ in range(2)]
print(cluster.address, flush=True)
sys.stdin.readline()
cluster.remove_node(nodes[0], allow_graceful=False)
print("removed", flush=True)
sys.stdin.readline()
cluster.shutdown()
"""


def _deployed(client: Client) -> bool:
    try:
        return "default" in client.networks()
    except ServiceFault:
        return False


def test_the_serve_config_runs_on_two_nodes_and_survives_the_end_of_one(tmp_path: Path) -> None:
    if not all(map(importlib.util.find_spec, ("ray", "fastapi"))):
        pytest.skip("needs the service's packages: pip install '.[serve]'")
    compile_all_first(
        print
    )  # as the image does: each engine would compile all kernels before it answers
    port = free_port()
    config = yaml.safe_load((ROOT / "deploy" / "serve.yaml").read_text())
    # What a machine that is all nodes at once cannot have: a proxy a node on one port, and an open
    # address.
    config["proxy_location"] = "HeadOnly"
    config["http_options"] |= {"host": "127.0.0.1", "port": port}
    (application,) = config["applications"]
    application["args"] |= {"state": str(tmp_path / "state"), "topology": "b4", "model": "none"}
    (tmp_path / "serve.yaml").write_text(yaml.safe_dump(config))
    # Without what a connection to Ray in this process has set.
    without_ray = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment = {
        **without_ray,
        "TEAL_TOKEN": TOKEN,
        "PYTHONPATH": str(ROOT),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }
    environment |= {"TEAL_CACHE_DIR": str(tmp_path / "cache")}
    # Of Ray's HTTP proxy: 5 and 10 s are too short on a busy machine.
    environment |= {
        f"RAY_SERVE_PROXY_{which}_CHECK_TIMEOUT_S": "60" for which in ("READY", "HEALTH")
    }
    with (
        (tmp_path / "cluster.log").open("w") as errors,
        running(
            [sys.executable, "-c", _CLUSTER], environment, stdin=subprocess.PIPE, errors=errors
        ) as cluster,
    ):
        assert cluster.stdin is not None
        assert cluster.stdout is not None
        address = cluster.stdout.readline().strip()
        environment["RAY_ADDRESS"] = address
        serve = [
            sys.executable,
            "-m",
            "ray.serve.scripts",
            "run",
            "--non-blocking",
            "--address",
            address,
        ]
        ended = subprocess.run(
            [*serve, str(tmp_path / "serve.yaml")],
            env=environment,
            cwd=tmp_path,
            text=True,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr[-3000:]
        answers = Counter[str]()
        with Client(f"http://127.0.0.1:{port}", TOKEN) as client:
            wait_until(lambda: _deployed(client), "the service on the cluster")
            client.wait_ready("default")
            rates = np.full((1, 132), 10.0)
            assert client.allocate("default", rates, deadline_ms=_LATER_MS).gap[0] <= 0.01
            done = threading.Event()

            def ask() -> None:
                with Client(f"http://127.0.0.1:{port}", TOKEN) as mine:
                    while not done.is_set():
                        try:
                            answer = mine.allocate("default", rates, deadline_ms=_LATER_MS)
                            answers["answered" if answer.gap[0] <= 0.01 else "poor"] += 1
                        except ServiceFault as fault:
                            answers[f"{fault.status} {fault.code}"] += 1
                        time.sleep(0.02)

            threads = [threading.Thread(target=ask) for _ in range(2)]
            for thread in threads:
                thread.start()
            try:
                wait_until(lambda: answers["answered"] >= 20, "answers of two nodes")
                cluster.stdin.write("\n")
                cluster.stdin.flush()
                assert cluster.stdout.readline().strip() == "removed"
                before = answers["answered"]
                wait_until(
                    lambda: answers["answered"] >= before + 100, "answers of the node that is left"
                )
            finally:
                done.set()
                for thread in threads:
                    thread.join()
            assert client.allocate("default", rates, deadline_ms=_LATER_MS).gap[0] <= 0.01, answers
        assert "poor" not in answers
        assert sum(answers.values()) - answers["answered"] <= 4, (
            answers
        )  # those that the dead node was busy with
        cluster.stdin.close()  # at which it ends
        cluster.wait(timeout=PATIENCE_S)
