"""The backend of requests: a :class:`teal.serving.engine.solver.Solver`, in this process or in
another one.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Protocol

from teal.runtime.arrays import FloatArray


@dataclasses.dataclass(frozen=True)
class Sent:
    """A request with matrices.

    Attributes:
        body: body of the request.
        media_type: type of the body.
        accept: media types that the client takes.
        query: parameters of the address.
        number: number of the request.
        client: whom the request counts for, where clients have fair shares.
        previous: the answer in force that a limit on what moves counts from; None if the request
            names none.
        previous_id: identifier of the answer whose splits are in force; "" for none.
    """

    body: bytes
    media_type: str
    accept: str = ""
    query: dict[str, str] = dataclasses.field(default_factory=dict)
    number: str = ""
    client: str = ""
    previous: Found | None = None
    previous_id: str = ""


class Found(NamedTuple):
    """An answer.

    Attributes:
        body: body of the response.
        media_type: type of the body.
        summary: fields of :class:`teal.serving.engine.responses.Answered` that the answer decides.
        utilisation: (E,) of the links in its last matrix.
        generation: registration of the network.
        proof: a zip file; b"" where none was asked for.
    """

    body: bytes
    media_type: str
    summary: dict[str, Any]
    utilisation: FloatArray
    generation: str
    proof: bytes = b""


class Backend(Protocol):
    """Networks, and an engine that allocates.  Dictionaries are bodies of
    :mod:`teal.serving.engine.responses`.
    """

    async def names(self) -> list[str]:
        """All networks."""
        ...

    async def warnings(self) -> dict[str, str]:
        """Warnings about networks, by name; networks without any are left out."""
        ...

    async def queued(self) -> dict[str, int]:
        """How many requests wait for the engine, of each network that is ready."""
        ...

    async def check_ready(self) -> None:
        """Raise a ServiceError if no allocation could be made now."""
        ...

    async def model(self) -> dict[str, Any]:
        """Which model is in use."""
        ...

    async def generation(self, name: str) -> str:
        """Which registration of its name a network is."""
        ...

    async def put(self, name: str, spec: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """Register a network; its state, and whether its name is new."""
        ...

    async def info(self, name: str) -> dict[str, Any]:
        """Its state."""
        ...

    async def delete(self, name: str) -> None:
        """Forget it."""
        ...

    async def patch(self, name: str, changes: dict[str, Any]) -> dict[str, Any]:
        """Change links."""
        ...

    async def paths(self, name: str) -> bytes:
        """Its candidate paths, as JSON."""
        ...

    async def map(self, name: str) -> bytes:
        """Where to draw it, as JSON."""
        ...

    async def allocate(self, name: str, sent: Sent) -> Found:
        """Allocate matrices, or for the next interval."""
        ...

    async def measure(self, name: str, sent: Sent) -> dict[str, Any]:
        """Keep measured matrices."""
        ...

    async def measured(self, name: str) -> dict[str, Any]:
        """Which measured matrices are kept."""
        ...

    async def forget_measured(self, name: str) -> None:
        """Delete them."""
        ...
