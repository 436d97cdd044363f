"""Clients of the service, synchronous and asynchronous: networks, links, measurements and
allocations.

Allocations travel as Arrow IPC streams; every error of the service is raised as an exception of its
own type.

>>> from teal_serve.client import Client
>>> with Client("http://127.0.0.1:8000") as service:
...     service.put_network("geant", "topohub:sndlib/geant")
...     service.wait_ready("geant")
...     allocation = service.allocate("geant", rates, gap=0.01, deadline_ms=500)
...     allocation.splits  # (B, D, K)
"""

from teal_serve.client.calls import ARROW, AllocationOptions, LinkOptions
from teal_serve.client.clients import AsyncClient, Client
from teal_serve.client.faults import (
    InvalidRequest,
    LateMeasurement,
    NotReady,
    Overloaded,
    ServiceFault,
    Unauthorised,
    UnknownNetwork,
    Unreachable,
)
from teal_serve.client.results import (
    ClassResult,
    LevelResult,
    Link,
    Measured,
    Network,
    Node,
    Paths,
    ServedAllocation,
)

__all__ = [
    "ARROW",
    "AllocationOptions",
    "AsyncClient",
    "ClassResult",
    "Client",
    "InvalidRequest",
    "LateMeasurement",
    "LevelResult",
    "Link",
    "LinkOptions",
    "Measured",
    "Network",
    "Node",
    "NotReady",
    "Overloaded",
    "Paths",
    "ServedAllocation",
    "ServiceFault",
    "Unauthorised",
    "UnknownNetwork",
    "Unreachable",
]
