"""SNMP agents on all routers, snmp_exporter and Prometheus beside the first: counters as an
operator has them.

Each router runs net-snmp's snmpd on its loopback address; snmp_exporter asks all of them for
``ifHCInOctets`` and ``ifHCOutOctets``, and Prometheus, which scrapes it, answers range queries.
What `teal estimate` needs is written to a folder: ``counters.json`` (the answers),
``interfaces.csv`` (where interfaces lead) and ``topology.json`` (the network with the rates of the
laboratory).
"""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from urllib.parse import urlencode

import teal
from deploy.lab.network import STATE, Lab, LabError, run

COUNTERS = ("ifHCInOctets", "ifHCOutOctets")
# The package of each program.
_PROGRAMS = {
    "snmpd": "snmpd",
    "prometheus-snmp-exporter": "prometheus-snmp-exporter",
    "prometheus": "prometheus",
    "snmpset": "snmp",
    "curl": "curl",
}
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"  # snmpd is not where users' programs are
_SCRAPE_S = 2  # seconds between two readings; operators use 30 to 300
_FOLDER = STATE / "monitoring"
# The columns of IF-MIB, as the generator of snmp_exporter writes them, for the counters that are
# asked for.
_IF_X_ENTRY = "1.3.6.1.2.1.31.1.1.1"
_COLUMNS = {"ifName": 1, "ifHCInOctets": 6, "ifHCOutOctets": 10}
# nsCacheTimeout of the tables of interfaces: snmpd answers from a cache of 15 s, which is long
# beside _SCRAPE_S.
_CACHE_TIMEOUTS = (
    "1.3.6.1.4.1.8072.1.5.3.1.2.1.3.6.1.2.1.2.2",
    "1.3.6.1.4.1.8072.1.5.3.1.2.1.3.6.1.2.1.31.1.1",
)


def check_programs() -> None:
    """Raise LabError for a program that is not installed."""
    for program, package in _PROGRAMS.items():
        if shutil.which(program, path=_PATH) is None:
            raise LabError(f"{program} is not installed: apt-get install {package}")


class Monitoring:
    """Agents, exporter and Prometheus of a laboratory that is up.

    Args:
        lab: the routers.
    """

    def __init__(self, lab: Lab) -> None:
        check_programs()
        self._lab = lab
        self._first = lab.namespace(0)
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, seconds: float = 60.0) -> None:
        """Start everything, and wait until every router has been read.

        Raises:
            LabError: it took longer.
        """
        shutil.rmtree(_FOLDER, ignore_errors=True)
        _FOLDER.mkdir()
        nodes = range(self._lab.topology.num_nodes)
        for node in nodes:
            self._start_agent(node)
        (_FOLDER / "snmp.yml").write_text(json.dumps(_exporter_settings()))  # JSON is YAML
        (_FOLDER / "prometheus.yml").write_text(json.dumps(self._prometheus_settings()))
        self._start(
            self._first,
            "prometheus-snmp-exporter",
            f"--config.file={_FOLDER / 'snmp.yml'}",
            "--web.listen-address=127.0.0.1:9116",
            "--log.level=warn",
        )
        self._start(
            self._first,
            "prometheus",
            f"--config.file={_FOLDER / 'prometheus.yml'}",
            f"--storage.tsdb.path={_FOLDER / 'data'}",
            "--web.listen-address=127.0.0.1:9090",
            "--log.level=warn",
        )
        end = time.monotonic() + seconds
        while (seen := self._routers_seen()) < len(nodes):
            if time.monotonic() > end:
                raise LabError(
                    f"Prometheus has {seen} of {len(nodes)} routers after {seconds:g} s: "
                    f"{_FOLDER}/*.log"
                )
            time.sleep(0.5)

    def stop(self) -> None:
        """Stop everything."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def write(self, out: Path, begin: float, end: float, step: int) -> None:
        """Write the three files of the module, with the counters between two times (seconds since
        1970).

        Raises:
            LabError: Prometheus does not answer, or a router is not read again after ``end``.
        """
        out.mkdir(parents=True, exist_ok=True)
        self._wait_for_readings(end)
        answers = [
            self._query("query_range", query=name, start=begin, end=end, step=step)
            for name in COUNTERS
        ]
        if not all(answers):
            raise LabError(f"Prometheus does not answer range queries: {_FOLDER}/prometheus-*.log")
        (out / "counters.json").write_text(json.dumps(answers))
        topology = self._lab.topology
        here = dataclasses.replace(topology, capacity=topology.capacity * self._lab.scale)
        teal.save_topology(out / "topology.json", here)
        with (out / "interfaces.csv").open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(("router", "interface", "neighbour", "number", "ignore"))
            names = topology.node_names
            of_pair = dict[tuple[int, int], int]()
            ends = zip(
                topology.link_source.tolist(),
                topology.link_target.tolist(),
                self._lab.interfaces,
                strict=True,
            )
            for source, target, interface in ends:
                number = of_pair[source, target] = of_pair.get((source, target), 0) + 1
                writer.writerow((names[source], interface, names[target], number, ""))
            for node, name in enumerate(names):
                writer.writerow((name, "ext", "", "", ""))
                linked = {
                    i
                    for i, s in zip(self._lab.interfaces, topology.link_source, strict=True)
                    if s == node
                }
                for one in json.loads(run(["ip", "-n", self._lab.namespace(node), "-j", "link"])):
                    if one["ifname"] not in {*linked, "ext"}:
                        writer.writerow((name, one["ifname"], "", "", "yes"))

    def _start_agent(self, node: int) -> None:
        here = self._lab.namespace(node)
        address = f"udp6:[{self._lab.loopback(node)}]:161"
        settings = _FOLDER / f"snmpd-{node + 1}.conf"
        settings.write_text(
            "rocommunity6 public\nrwcommunity6 private ::1\nrwcommunity6 private fc00:0::/32\n"
        )
        self._start(here, "snmpd", "-f", "-Lo", "-C", "-c", str(settings), "-I", "-smux", address)
        target = address.removesuffix(":161")
        for oid in _CACHE_TIMEOUTS:
            for _ in range(20):
                command = [
                    "ip",
                    "netns",
                    "exec",
                    here,
                    "snmpset",
                    "-v2c",
                    "-cprivate",
                    "-t1",
                    "-r0",
                    "-On",
                ]
                if run([*command, target, oid, "i", "1"], check=False):
                    break
                time.sleep(0.1)

    def _start(self, namespace: str, program: str, *arguments: str) -> None:
        environment = {
            **os.environ,
            "PATH": _PATH,
            "SNMP_PERSISTENT_DIR": str(_FOLDER / namespace),
            "MIBS": "",
        }
        command = ["ip", "netns", "exec", namespace, program, *arguments]
        with (_FOLDER / f"{program}-{namespace}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            )

    def _prometheus_settings(self) -> object:
        names = self._lab.topology.node_names
        return {
            "global": {"scrape_interval": f"{_SCRAPE_S}s", "scrape_timeout": f"{_SCRAPE_S}s"},
            "scrape_configs": [
                {
                    "job_name": "snmp",
                    "metrics_path": "/snmp",
                    "params": {"module": ["if_mib"]},
                    "static_configs": [
                        {
                            "targets": [f"[{self._lab.loopback(node)}]:161"],
                            "labels": {"router": name},
                        }
                        for node, name in enumerate(names)
                    ],
                    "relabel_configs": [
                        {"source_labels": ["__address__"], "target_label": "__param_target"},
                        {"source_labels": ["__param_target"], "target_label": "instance"},
                        {"target_label": "__address__", "replacement": "127.0.0.1:9116"},
                    ],
                }
            ],
        }

    def _routers_seen(self) -> int:
        answer = self._query("query", query="count by (router) (ifHCInOctets)")
        return len(answer["data"]["result"]) if answer else 0

    def _wait_for_readings(self, after: float, seconds: float = 60.0) -> None:
        """Wait until every router has been read after a time, so that no reading before it is still
        on its way.
        """
        late = f"count(timestamp({COUNTERS[-1]}) < {after:.3f})"
        give_up = time.monotonic() + seconds
        while not (answer := self._query("query", query=late)) or answer["data"]["result"]:
            if time.monotonic() > give_up:
                raise LabError(f"a router was not read for {seconds:g} s: {_FOLDER}/*.log")
            time.sleep(0.2)

    def _query(self, kind: str, **parameters: object) -> dict[str, dict[str, list[object]]]:
        """The answer of Prometheus, empty while there is none or an error."""
        address = f"http://127.0.0.1:9090/api/v1/{kind}?{urlencode(parameters)}"
        text = run(
            ["ip", "netns", "exec", self._first, "curl", "-s", "--max-time", "10", address],
            check=False,
        )
        answer = json.loads(text) if text.startswith("{") else {}
        return answer if answer.get("status") == "success" else {}


def _exporter_settings() -> object:
    """The module if_mib of snmp_exporter 0.21 for :data:`COUNTERS`."""
    by_name = {
        "labels": ["ifIndex"],
        "labelname": "ifName",
        "oid": f"{_IF_X_ENTRY}.{_COLUMNS['ifName']}",
        "type": "DisplayString",
    }
    metrics = [
        {
            "name": name,
            "oid": f"{_IF_X_ENTRY}.{_COLUMNS[name]}",
            "type": "counter",
            "help": name,
            "indexes": [{"labelname": "ifIndex", "type": "gauge"}],
            "lookups": [by_name],
        }
        for name in COUNTERS
    ]
    walk = [f"{_IF_X_ENTRY}.{column}" for column in _COLUMNS.values()]
    return {
        "if_mib": {"walk": walk, "metrics": metrics, "version": 2, "auth": {"community": "public"}}
    }
