"""A laboratory of routers on one machine: a network namespace and FRRouting for each, links as veth
pairs.

Router number n (from 1) has

    namespace          teal-lab-n, and teal-lab-nh for the host behind it
    locator            fc00:0:n::/64 on its loopback, announced by OSPFv3
    node segment       fc00:0:n::e     (SRv6 End)
    decapsulation      fc00:0:n::d6    (SRv6 End.DT6, into the main table)
    adjacency segment  fc00:0:n::xI    (SRv6 End.X to the neighbour at interface number I)
    hosts              2001:db8:n::/64, all addresses of which one host answers to

Whatever a host sends is first looked up in table 100, where splits are installed, and then in the
main table, which OSPFv3 fills.  Everything has the prefix teal-lab- or lies in /run/teal-lab, so
that nothing else is touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import teal

PREFIX = "teal-lab-"
STATE = Path("/run/teal-lab")
POLICY_TABLE = 100
DAEMONS = Path("/usr/lib/frr")
_QUEUE_MS = 200  # ms, that a packet waits at most at a shaped link
_MIN_BURST = 16_000  # bytes that a shaped link may send at once
_MTU = 9000  # bytes; encapsulated packets are longer than those of hosts
_NEEDED = ("ip", "tc", "vtysh")


class LabError(Exception):
    """What forbids the laboratory, in a sentence."""


def check_machine() -> None:
    """Raise LabError, naming what is missing: root, programs, namespaces, or the kernel's SRv6."""
    if os.geteuid() != 0:
        raise LabError("the laboratory needs root, for network namespaces: run it with sudo")
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    missing += [name for name in ("zebra", "ospf6d") if not (DAEMONS / name).is_file()]
    if missing:
        raise LabError(
            f"not installed: {', '.join(missing)}.  On Debian: apt-get install frr iproute2"
        )
    probe = f"{PREFIX}probe-{os.getpid()}"
    run(["ip", "netns", "del", probe], check=False)
    try:
        run(["ip", "netns", "add", probe])
        run(["ip", "-n", probe, "link", "set", "lo", "up"])
        for command in (
            f"ip -n {probe} -6 route add fc00::e/128 encap seg6local action End dev lo",
            f"ip -n {probe} link add va type veth peer name vb",
            f"tc -n {probe} qdisc add dev va root tbf rate 1mbit burst 16kb latency 50ms",
        ):
            run(command.split())
    except subprocess.CalledProcessError as error:
        text = f"{' '.join(error.cmd)}: {error.stderr.strip()}"
        raise LabError(f"this kernel or container forbids it: {text}") from None
    finally:
        run(["ip", "netns", "del", probe], check=False)


def run(command: list[str], *, check: bool = True, text: str | None = None) -> str:
    """The output of a command; raises CalledProcessError if it fails and ``check``."""
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, check=check, timeout=60
    )
    return done.stdout


def ip_batch(namespace: str, lines: Iterable[str]) -> None:
    """Several commands of ``ip -6`` in one namespace; raises LabError with what ``ip`` says of the
    first that fails.
    """
    try:
        run(["ip", "-n", namespace, "-6", "-batch", "-"], text="\n".join(lines) + "\n")
    except subprocess.CalledProcessError as error:
        raise LabError(f"{namespace}: {error.stderr.strip()}") from None


class Lab:
    """A running laboratory.

    Args:
        topology: the network that it shows.
        scale: bit/s of the laboratory for a bit/s of the network, such as 0.001.

    Attributes:
        interfaces: (E,) name of the interface at the start of each link.
    """

    def __init__(self, topology: teal.Topology, scale: float) -> None:
        self.topology = topology
        self.scale = scale
        self.interfaces: list[str] = []
        used: set[tuple[int, str]] = set()
        for s, t in zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True):
            name = f"to{t + 1}"
            copy = 1
            while (s, name) in used:
                copy += 1
                name = f"to{t + 1}.{copy}"
            used.add((s, name))
            self.interfaces.append(name)

    @classmethod
    def current(cls) -> Lab:
        """The laboratory that is up; raises LabError if none is."""
        try:
            state = json.loads((STATE / "lab.json").read_text())
        except FileNotFoundError:
            raise LabError("no laboratory is up: run `python -m deploy.lab up` first") from None
        return cls(teal.load_topology(STATE / "topology.json"), float(state["scale"]))

    @staticmethod
    def namespace(node: int) -> str:
        """Of a router, by its index from 0."""
        return f"{PREFIX}{node + 1}"

    def up(self) -> None:
        """Make everything; what an earlier run left behind is removed first."""
        down()
        STATE.mkdir(parents=True)
        teal.save_topology(STATE / "topology.json", self.topology)
        (STATE / "lab.json").write_text(json.dumps({"scale": self.scale}))
        for node in range(self.topology.num_nodes):
            self._make_router(node)
        self._make_links()
        for node in range(self.topology.num_nodes):
            self._make_segments(node)
            self._start_routing(node)

    def wait_for_routes(self, seconds: float = 60.0) -> float:
        """Wait until every router has a route to every host; the seconds that it took.

        Raises:
            LabError: it took longer.
        """
        begin = time.monotonic()
        wanted = self.topology.num_nodes - 1
        while True:
            counts = [
                sum(
                    line.startswith("2001:db8:")
                    for line in run(
                        ["ip", "-n", self.namespace(n), "-6", "route", "show", "proto", "ospf"]
                    ).splitlines()
                )
                for n in range(self.topology.num_nodes)
            ]
            if min(counts) >= wanted:
                return time.monotonic() - begin
            if time.monotonic() - begin > seconds:
                slow = self.topology.node_names[int(np.argmin(counts))]
                raise LabError(
                    f"{slow} has routes to {min(counts)} of {wanted} hosts after {seconds:g} s"
                )
            time.sleep(0.2)

    def _make_router(self, node: int) -> None:
        here = self.namespace(node)
        host = self.namespace(node) + "h"
        number = f"{node + 1:x}"
        for namespace in (here, host):
            run(["ip", "netns", "add", namespace])
            run(["ip", "-n", namespace, "link", "set", "lo", "up"])
        settings = (
            "net.ipv6.conf.all.forwarding=1",
            "net.ipv6.conf.all.seg6_enabled=1",
            "net.ipv6.conf.default.seg6_enabled=1",
            "net.ipv6.fib_multipath_hash_policy=1",
            "net.ipv6.seg6_flowlabel=1",
            "net.ipv6.conf.default.accept_dad=0",
            "net.ipv6.conf.all.accept_dad=0",
        )
        run(["ip", "netns", "exec", here, "sysctl", "-qw", *settings])
        # Routers that hash alike choose alike one after the other.  Kernels before 6.11 have one
        # seed for all.
        seed = f"net.ipv4.fib_multipath_hash_seed={1000 + 7919 * node}"
        run(["ip", "netns", "exec", here, "sysctl", "-qw", seed], check=False)
        run(
            [
                "ip",
                "netns",
                "exec",
                host,
                "sysctl",
                "-qw",
                "net.ipv6.conf.all.accept_dad=0",
                "net.ipv6.conf.default.accept_dad=0",
            ]
        )
        run(
            [
                "ip",
                "-n",
                here,
                "link",
                "add",
                "ext",
                "type",
                "veth",
                "peer",
                "name",
                "ext",
                "netns",
                host,
            ]
        )
        ip_batch(
            here,
            [
                f"addr add {self.loopback(node)}/64 dev lo",
                "addr add fe80::ffff/64 dev ext",
                f"link set ext mtu {_MTU} up",
            ],
        )
        ip_batch(
            host,
            [
                "addr add fe80::1/64 dev ext",
                f"link set ext mtu {_MTU} up",
                f"addr add 2001:db8:{number}::1/128 dev lo",
                f"route add local 2001:db8:{number}::/64 dev lo",
                "route add default via fe80::ffff dev ext",
            ],
        )
        ip_batch(
            here,
            [
                f"route add 2001:db8:{number}::/64 via fe80::1 dev ext",
                f"rule add iif ext lookup {POLICY_TABLE} pref 100",
            ],
        )

    def _make_links(self) -> None:
        topology = self.topology
        reverse = self._reverse()
        for link, other in enumerate(reverse):
            if other > link:
                s = int(topology.link_source[link])
                t = int(topology.link_target[link])
                run(
                    [
                        "ip",
                        "-n",
                        self.namespace(s),
                        "link",
                        "add",
                        self.interfaces[link],
                        "type",
                        "veth",
                        "peer",
                        "name",
                        self.interfaces[other],
                        "netns",
                        self.namespace(t),
                    ]
                )
        for link, name in enumerate(self.interfaces):
            here = self.namespace(int(topology.link_source[link]))
            ip_batch(
                here,
                [
                    f"link set {name} addrgenmode none",
                    f"addr add fe80::{int(topology.link_source[link]) + 1:x}/64 dev {name}",
                    f"addr add {self._address(link, reverse[link])}/64 dev {name}",
                    f"link set {name} mtu {_MTU} up",
                ],
            )
            rate = self.scale * float(topology.capacity[link]) * 1e9
            burst = max(_MIN_BURST, round(rate / 8 * 0.01))
            run(
                [
                    "tc",
                    "-n",
                    here,
                    "qdisc",
                    "add",
                    "dev",
                    name,
                    "root",
                    "tbf",
                    "rate",
                    f"{round(rate)}bit",
                    "burst",
                    str(burst),
                    "latency",
                    f"{_QUEUE_MS}ms",
                ]
            )

    @staticmethod
    def _address(link: int, other: int) -> str:
        """The address at the start of a link, in the subnet that it shares with the link in the
        other direction.
        """
        return f"fc01:0:{min(link, other) + 1:x}::{1 if link < other else 2}"

    def _reverse(self) -> list[int]:
        """(E,) the link in the other direction of each; raises LabError for one without."""
        topology = self.topology
        waiting = dict[tuple[int, int], list[int]]()
        reverse = [-1] * topology.num_links
        for link, (s, t) in enumerate(
            zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True)
        ):
            others = waiting.get((t, s), [])
            if others:
                other = others.pop(0)
                reverse[link] = other
                reverse[other] = link
            else:
                waiting.setdefault((s, t), []).append(link)
        if -1 in reverse:
            raise LabError(
                f"{topology.link_name(reverse.index(-1))} has no link in the other direction"
            )
        return reverse

    def _make_segments(self, node: int) -> None:
        number = f"{node + 1:x}"
        lines = [
            f"route add fc00:0:{number}::e/128 encap seg6local action End dev ext",
            f"route add fc00:0:{number}::d6/128 encap seg6local action End.DT6 table 254 dev ext",
        ]
        lines += self._adjacencies(node)
        ip_batch(self.namespace(node), lines)

    @staticmethod
    def loopback(node: int) -> str:
        """The address of a router."""
        return f"fc00:0:{node + 1:x}::1"

    @staticmethod
    def node_segment(node: int) -> str:
        """The SID that leads to a router."""
        return f"fc00:0:{node + 1:x}::e"

    @staticmethod
    def last_segment(node: int) -> str:
        """The SID at which a router takes the packet out."""
        return f"fc00:0:{node + 1:x}::d6"

    def adjacency_segment(self, link: int) -> str:
        """The SID that leads over a link."""
        return f"fc00:0:{int(self.topology.link_source[link]) + 1:x}::a:{link + 1:x}"

    @staticmethod
    def hosts(node: int) -> str:
        """The prefix behind a router."""
        return f"2001:db8:{node + 1:x}::/64"

    def _start_routing(self, node: int) -> None:
        folder = STATE / str(node + 1)
        here = self.namespace(node)
        folder.mkdir()
        interfaces = [
            name
            for link, name in enumerate(self.interfaces)
            if self.topology.link_source[link] == node
        ]
        metric = self.topology.metric
        lines = ["hostname " + here, "interface lo", " ipv6 ospf6 area 0", " ipv6 ospf6 passive"]
        for link, name in enumerate(self.interfaces):
            if self.topology.link_source[link] == node:
                cost = 1 if metric is None else int(metric[link])
                lines += [
                    f"interface {name}",
                    " ipv6 ospf6 area 0",
                    " ipv6 ospf6 network point-to-point",
                    f" ipv6 ospf6 cost {cost}",
                    " ipv6 ospf6 hello-interval 1",
                    " ipv6 ospf6 dead-interval 3",
                ]
        lines += [
            "router ospf6",
            f" ospf6 router-id 10.255.0.{node + 1}",
            " redistribute kernel",
            " timers throttle spf 10 100 1000",
            " timers lsa min-arrival 0",
            f" maximum-paths {max(2, len(interfaces))}",
        ]
        (folder / "ospf6d.conf").write_text("\n".join(lines) + "\n")
        (folder / "zebra.conf").write_text(f"hostname {here}\n")
        shutil.chown(folder, "frr", "frr")
        for file in folder.iterdir():
            shutil.chown(file, "frr", "frr")
        for daemon in ("zebra", "ospf6d"):
            run(
                [
                    "ip",
                    "netns",
                    "exec",
                    here,
                    str(DAEMONS / daemon),
                    "-d",
                    "-f",
                    str(folder / f"{daemon}.conf"),
                    "-z",
                    str(folder / "zserv.api"),
                    "-i",
                    str(folder / f"{daemon}.pid"),
                    "--vty_socket",
                    str(folder),
                    "-A",
                    "127.0.0.1",
                    "--log",
                    f"file:{folder / daemon}.log",
                ]
            )

    def show(self, node: int, command: str) -> Any:
        """What a router answers to ``show ...``, as JSON."""
        return json.loads(
            run(["vtysh", "--vty_socket", str(STATE / str(node + 1)), "-c", f"{command} json"])
            or "{}"
        )

    def set_cable(self, a: int, b: int, state: str) -> None:
        """Cut the cables between two routers (``down``), or mend them (``up``)."""
        reverse = self._reverse()
        for link, (s, t) in enumerate(
            zip(self.topology.link_source, self.topology.link_target, strict=True)
        ):
            if {int(s), int(t)} == {a, b}:
                run(
                    [
                        "ip",
                        "-n",
                        self.namespace(int(s)),
                        "link",
                        "set",
                        self.interfaces[link],
                        state,
                    ]
                )
                if state == "up":  # the kernel removed what hung on the interface
                    for address in (
                        f"fe80::{int(s) + 1:x}/64",
                        f"{self._address(link, reverse[link])}/64",
                    ):
                        run(
                            [
                                "ip",
                                "-n",
                                self.namespace(int(s)),
                                "-6",
                                "addr",
                                "replace",
                                address,
                                "dev",
                                self.interfaces[link],
                            ]
                        )
        if state == "up":
            for node in (a, b):
                ip_batch(self.namespace(node), self._adjacencies(node))

    def _adjacencies(self, node: int) -> list[str]:
        """Commands that install the adjacency segments of a router, which the kernel drops when an
        interface fails.
        """
        reverse = self._reverse()
        return [
            f"route replace {self.adjacency_segment(link)}/128 encap seg6local action End.X "
            f"nh6 {self._address(reverse[link], link)} dev {self.interfaces[link]}"
            for link in np.flatnonzero(self.topology.link_source == node).tolist()
        ]


def down() -> None:
    """Remove every namespace and process of the laboratory, of this run or of one that was
    killed.
    """
    for folder in STATE.glob("*.pid"):
        _kill(int(folder.read_text() or 0))
    listed = run(["ip", "netns", "list"], check=False).splitlines()
    namespaces = [line.split()[0] for line in listed if line.startswith(PREFIX)]
    for namespace in namespaces:
        for pid in run(["ip", "netns", "pids", namespace], check=False).split():
            _kill(int(pid))
    for namespace in namespaces:
        run(["ip", "netns", "del", namespace], check=False)
    shutil.rmtree(STATE, ignore_errors=True)


def _kill(pid: int) -> None:
    if pid > 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
