"""Sends a matrix as many small flows: a process of its own with a socket in the namespace of every
host.

Every packet of a demand goes to another address behind its target, so that routers, which divide
flows by a hash, divide the demand as finely as packets are.  The rates stand in rates.json, which
is read again when it changes; what was sent stands in sent.json.  Packets are never read at the
other end: the kernel counts and drops them.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import socket
import time
from pathlib import Path

from deploy.lab.network import STATE, Lab

PACKET_BYTES = 1200  # of IPv6 with its headers; interface counters have 14 bytes of Ethernet more
ETHERNET_BYTES = 14
RATES = STATE / "rates.json"
SENT = STATE / "sent.json"
PID = STATE / "traffic.pid"
_PORT = 9000
_ADDRESSES = 8192  # behind each router, to which packets go in turn
_TICK_S = 0.002  # seconds between two rounds of sending
# seconds of a demand that are sent at once after a pause of this process; the rest is not sent
_MAX_BURST_S = 0.05
_HEADERS = 48  # bytes of IPv6 and UDP
_CLONE_NEWNET = 0x40000000
_ANSWER_EVERY_S = 0.5  # seconds between two writes of sent.json


def _socket_in(namespace: str) -> socket.socket:
    """A UDP socket in a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/self/ns/net").open() as here, Path(f"/run/netns/{namespace}").open() as there:
        if libc.setns(there.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
        try:
            return socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        finally:
            libc.setns(here.fileno(), _CLONE_NEWNET)


def main() -> None:
    """Send until killed."""
    lab = Lab.current()
    nodes = lab.topology.num_nodes
    senders = []
    receivers = []
    for node in range(nodes):
        host = lab.namespace(node) + "h"
        receiver = _socket_in(host)
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        receiver.bind(("::", _PORT))
        sender = _socket_in(host)
        sender.bind((f"2001:db8:{node + 1:x}::1", 0))
        sender.setblocking(False)
        senders.append(sender)
        receivers.append(receiver)
    chosen = random.Random(0)
    targets = [
        [
            (
                f"2001:db8:{node + 1:x}::{chosen.randrange(1, 65536):x}:{chosen.randrange(1, 65536):x}",
                _PORT,
            )
            for _ in range(_ADDRESSES)
        ]
        for node in range(nodes)
    ]
    payload = bytes(PACKET_BYTES - _HEADERS)
    PID.write_text(str(os.getpid()))
    changed = 0.0
    demands = list[list[float]]()
    sent: dict[str, int] = {}
    last = answered = time.monotonic()
    turn = 0
    while True:
        stamp = RATES.stat().st_mtime if RATES.exists() else 0.0
        if stamp != changed:  # [source, target, packets a second, packets owed]
            try:
                rates = json.loads(RATES.read_text())
            except ValueError:  # being written
                continue
            changed = stamp
            demands = [[s, t, bit_s / 8 / PACKET_BYTES, random.random()] for s, t, bit_s in rates]
            last = time.monotonic()
        now = time.monotonic()
        for one in demands:
            one[3] = min(one[3] + one[2] * (now - last), 2.0 + _MAX_BURST_S * one[2])
            if one[3] >= 1:
                count = int(one[3])
                one[3] -= count
                s = int(one[0])
                t = int(one[1])
                done = 0
                for _ in range(min(count, 1000)):
                    turn = (turn + 1) % _ADDRESSES
                    try:
                        senders[s].sendto(payload, targets[t][turn])
                        done += 1
                    except OSError:  # no route, or a full queue: not sent
                        pass
                key = f"{s} {t}"
                sent[key] = sent.get(key, 0) + done
        last = now
        if now - answered > _ANSWER_EVERY_S:
            answered = now
            temporary = SENT.with_suffix(".tmp")
            temporary.write_text(json.dumps(sent))
            temporary.replace(SENT)
        time.sleep(_TICK_S)


if __name__ == "__main__":
    main()
