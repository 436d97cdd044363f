"""deploy/serve.yaml on a cluster of two nodes, one of which ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray.serve", reason="needs the service's packages: pip install '.[serve]'")

import yaml

from teal.client import Client, ServiceFault
from tests.serving.service import TOKEN, free_port

pytestmark = pytest.mark.xdist_group("ray")

ROOT = Path(__file__).parents[2]
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


def _until_deployed(client: Client) -> None:
    end = time.monotonic() + 120
    while True:
        try:
            assert "default" in client.networks()
        except ServiceFault:
            assert time.monotonic() < end
            time.sleep(0.5)
        else:
            return


def test_the_serve_config_runs_on_two_nodes_and_outlives_one(tmp_path: Path) -> None:
    port = free_port()
    config = yaml.safe_load((ROOT / "deploy" / "serve.yaml").read_text())
    # What a machine that is all nodes at once cannot have: a proxy a node on one port, and an open address.
    config["proxy_location"] = "HeadOnly"
    config["http_options"] |= {"host": "127.0.0.1", "port": port}
    (application,) = config["applications"]
    application["args"] |= {"state": str(tmp_path / "state"), "topology": "b4", "model": "none"}
    (tmp_path / "serve.yaml").write_text(yaml.safe_dump(config))
    environment = {**os.environ, "TEAL_TOKEN": TOKEN, "PYTHONPATH": str(ROOT), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    environment |= {"TEAL_CACHE_DIR": str(tmp_path / "cache")}
    cluster = subprocess.Popen(
        [sys.executable, "-c", _CLUSTER], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert cluster.stdin is not None
    assert cluster.stdout is not None
    try:
        address = cluster.stdout.readline().strip()
        environment["RAY_ADDRESS"] = address
        serve = [sys.executable, "-m", "ray.serve.scripts", "run", "--non-blocking", "--address", address]
        ended = subprocess.run(
            [*serve, str(tmp_path / "serve.yaml")], env=environment, cwd=tmp_path, text=True, capture_output=True,
            timeout=180, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr[-3000:]
        found = Counter[str]()
        with Client(f"http://127.0.0.1:{port}", TOKEN) as client:
            _until_deployed(client)
            client.wait_ready("default")
            rates = np.full((1, 132), 10.0)
            assert client.allocate("default", rates).gap[0] <= 0.01
            done = threading.Event()

            def ask() -> None:
                with Client(f"http://127.0.0.1:{port}", TOKEN) as own:
                    while not done.is_set():
                        try:
                            found["answered" if own.allocate("default", rates).gap[0] <= 0.01 else "poor"] += 1
                        except ServiceFault as fault:
                            found[f"{fault.status} {fault.code}"] += 1
                        time.sleep(0.02)

            threads = [threading.Thread(target=ask) for _ in range(2)]
            for thread in threads:
                thread.start()
            time.sleep(2)
            before = found["answered"]
            assert before > 0
            cluster.stdin.write("\n")
            cluster.stdin.flush()
            assert cluster.stdout.readline().strip() == "removed"
            time.sleep(10)
            done.set()
            for thread in threads:
                thread.join()
            assert client.allocate("default", rates).gap[0] <= 0.01, found
        assert found["answered"] > before + 20, found
        assert "poor" not in found
        assert sum(found.values()) - found["answered"] <= 4, found  # those that the dead node was busy with
    finally:
        try:
            cluster.communicate(timeout=30)  # closes its input, at which it ends
        except subprocess.TimeoutExpired:
            cluster.kill()
            cluster.communicate()
