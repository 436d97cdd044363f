"""Interface between HTTP and allocation engine.

:class:`Backend` lists the calls of the API; :class:`teal_serve.engine.engine.AllocationEngine`
implements it in this process, :mod:`teal_serve.deployment` over Ray. Matrices travel undecoded:
:class:`EncodedRequest` and :class:`AllocationResponse`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Protocol

from teal.runtime.arrays import FloatArray


@dataclasses.dataclass(frozen=True)
class EncodedRequest:
    """Undecoded request with matrices.

    Attributes:
        body: request body.
        media_type: media type of the body.
        accept: Accept header.
        query: query parameters, by name.
        request_id: identifier of the request.
        client: client to which the request is charged.
        previous: earlier response with the installed splits, the reference of a churn limit; None
            if the request names none.
        previous_id: identifier of that response; "" for none.
    """

    body: bytes
    media_type: str
    accept: str = ""
    query: dict[str, str] = dataclasses.field(default_factory=dict)
    request_id: str = ""
    client: str = ""
    previous: AllocationResponse | None = None
    previous_id: str = ""


class AllocationResponse(NamedTuple):
    """Encoded response with an allocation.

    Attributes:
        body: response body.
        media_type: media type of the body.
        summary: figures of the answer for log, metrics and cache, fields of
            ``responses.Answered``.
        utilisation: (E,) link utilisation of the last matrix.
        generation: identifier of the network's registration.
        proof: zip file with the proof; b"" without one.
    """

    body: bytes
    media_type: str
    summary: dict[str, Any]
    utilisation: FloatArray
    generation: str
    proof: bytes = b""


class Backend(Protocol):
    """Calls of the API. Dictionaries are fields of models in ``responses`` or ``requests``."""

    async def names(self) -> list[str]:
        """Return the names of all networks."""
        ...

    async def warnings(self) -> dict[str, str]:
        """Return the warnings of networks, by name; networks without a warning are omitted."""
        ...

    async def queued(self) -> dict[str, int]:
        """Return the number of queued requests of each ready network."""
        ...

    async def check_ready(self) -> None:
        """Raise a ServiceError if no allocation is possible now."""
        ...

    async def model(self) -> dict[str, Any]:
        """Return the version of the loaded model, the error of its last reload, and the solver."""
        ...

    async def generation(self, name: str) -> str:
        """Return the identifier of a network's registration."""
        ...

    async def put(self, name: str, spec: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """Register a network; return its state, and whether the name is new."""
        ...

    async def info(self, name: str) -> dict[str, Any]:
        """Return state and description of a network."""
        ...

    async def delete(self, name: str) -> None:
        """Delete a network; its queued requests fail."""
        ...

    async def patch(self, name: str, changes: dict[str, Any]) -> dict[str, Any]:
        """Change link capacities, or take links down or up; return the state of the network."""
        ...

    async def paths(self, name: str) -> bytes:
        """Return the candidate paths of a network, as encoded JSON: node names by demand."""
        ...

    async def map(self, name: str) -> bytes:
        """Return the drawing of a network, as encoded JSON: node positions, links, capacities."""
        ...

    async def allocate(self, name: str, request: EncodedRequest) -> AllocationResponse:
        """Answer a request for an allocation of its matrices, or for the next interval."""
        ...

    async def measure(self, name: str, request: EncodedRequest) -> dict[str, Any]:
        """Store measured matrices; return number and times of all stored ones."""
        ...

    async def measured(self, name: str) -> dict[str, Any]:
        """Return number and times of the stored matrices, and their maximum number."""
        ...

    async def forget_measured(self, name: str) -> None:
        """Delete the measured matrices of a network, and all state learnt from them."""
        ...
