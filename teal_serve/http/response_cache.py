"""Response cache of one HTTP process: recent figures, whole responses, idempotent requests.

:class:`ResponseCache` keeps the figures of recent allocations for monitoring, and whole responses
within a byte limit. Requests with the same Idempotency-Key are solved once and get the same
response.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import numpy as np

from teal.runtime.arrays import FloatArray
from teal_serve.engine.backend import AllocationResponse, EncodedRequest
from teal_serve.engine.errors import ServiceError

# Maximum number of recent figures of a network, and of idempotency keys of all networks.
MAX_ENTRIES = 1_000
# Limits of the whole responses of all networks; as many bytes again for idempotent requests.
MAX_BODIES = 1_000
MAX_BODY_BYTES = 64 << 20
# Decimals to which link utilisations are rounded.
_UTILISATION_DIGITS = 4


def _stored_bytes(answer: AllocationResponse) -> int:
    """Return the size of a response with its proof, bytes."""
    return len(answer.body) + len(answer.proof)


def _digest(request: EncodedRequest) -> bytes:
    """Return a hash of everything in a request that determines its response."""
    identity = "\0".join(
        (
            request.media_type,
            request.accept,
            request.client,
            request.previous_id,
            *map(str, sorted(request.query.items())),
        )
    )
    return hashlib.sha256(identity.encode("utf-8", "replace") + b"\0" + request.body).digest()


@dataclasses.dataclass
class _NetworkHistory:
    """Recent allocations of one registration of a network.

    Attributes:
        generation: identifier of the registration.
        allocations: figures of each answer, oldest first: id, time (seconds since 1970) and the
            fields of its summary.
        utilisation: (E,) link utilisation of the last matrix of the last answer.
    """

    generation: str
    allocations: deque[dict[str, Any]] = dataclasses.field(
        default_factory=lambda: deque(maxlen=MAX_ENTRIES)
    )
    utilisation: FloatArray = dataclasses.field(default_factory=lambda: np.zeros(0))


@dataclasses.dataclass(eq=False)
class _KeyedRequest:
    """Request with an Idempotency-Key.

    Attributes:
        digest: hash of the request.
        answer: response, once it is computed; cancelled if the computation fails.
    """

    digest: bytes
    answer: asyncio.Future[AllocationResponse]


class ResponseCache:
    """Recent responses of this process. Call methods on one event loop."""

    def __init__(self) -> None:
        # Recent figures, by network.
        self._histories: dict[str, _NetworkHistory] = {}
        # Whole responses by network and request id, oldest first, and their total size.
        self._responses: OrderedDict[tuple[str, str], AllocationResponse] = OrderedDict()
        self._response_bytes = 0
        # Idempotent requests by network and "client\0key", oldest first, and the total size of
        # their responses.
        self._keyed_response_bytes = 0
        self._keyed_requests: OrderedDict[tuple[str, str], _KeyedRequest] = OrderedDict()

    async def answer_once(
        self,
        network: str,
        key: str,
        request: EncodedRequest,
        compute: Callable[[], Awaitable[AllocationResponse]],
    ) -> tuple[AllocationResponse, bool]:
        """Answer a request; a repeated request with the same key gets the first response.

        A repeated request that arrives during the computation waits for it. If the computation
        fails or its client disconnects, the error is raised, the key is freed, and waiting requests
        compute again.

        Args:
            network: name of the network.
            key: idempotency key; "" to always compute.
            request: request to answer.
            compute: computes the response.

        Returns:
            response, and whether it was computed by this call.

        Raises:
            ServiceError: a different request of this client used this key.
        """
        if not key:
            return await compute(), True
        # The hash detects a different request under the same key; keys of clients are separate.
        digest = _digest(request)
        cache_key = network, f"{request.client}\0{key}"
        # Return the response of an earlier request with this key; wait for it if necessary.
        earlier_request = self._keyed_requests.get(cache_key)
        if earlier_request is not None:
            if earlier_request.digest != digest:
                raise ServiceError(
                    409,
                    "key_used",
                    "this Idempotency-Key was used by another request; use a new key",
                )
            # If the first request failed or was cancelled, this one computes again.
            await asyncio.wait({earlier_request.answer})
            if (
                not earlier_request.answer.cancelled()
                and earlier_request.answer.exception() is None
            ):
                return earlier_request.answer.result(), False
            return await self.answer_once(network, key, request, compute)
        # Compute the response, and share it with repeated requests.
        pending_request = self._keyed_requests[cache_key] = _KeyedRequest(
            digest, asyncio.get_running_loop().create_future()
        )
        try:
            result = await compute()
        except BaseException:
            self._keyed_requests.pop(cache_key, None)
            pending_request.answer.cancel()
            raise
        pending_request.answer.set_result(result)
        self._keyed_response_bytes += _stored_bytes(result)
        self._evict_keys()
        return result, True

    def _evict_keys(self) -> None:
        """Evict the oldest completed keys until their number and response bytes fit the limits."""
        for oldest_key in list(self._keyed_requests):
            if (
                len(self._keyed_requests) <= MAX_ENTRIES
                and self._keyed_response_bytes <= MAX_BODY_BYTES
            ):
                break
            self._drop_key(oldest_key)

    def _drop_key(self, cache_key: tuple[str, str]) -> None:
        """Remove a keyed request with its response, unless that is still being computed.

        Args:
            cache_key: name of the network; client and idempotency key.
        """
        response_future = self._keyed_requests[cache_key].answer
        if response_future.done():
            self._keyed_response_bytes -= _stored_bytes(response_future.result())
            del self._keyed_requests[cache_key]

    def add(self, network: str, request_id: str, answer: AllocationResponse) -> bool:
        """Cache a response and its figures; evict the oldest responses beyond the limits.

        Responses of earlier registrations of the network are dropped. Very large responses are not
        cached, only their figures.

        Args:
            network: name of the network.
            request_id: identifier of the request.
            answer: response to cache.

        Returns:
            whether the network is new to the cache.
        """
        history = self._histories.get(network)
        is_new = history is None
        if history is None or history.generation != answer.generation:
            if not is_new:
                self._drop_responses(network, kept_generation=answer.generation)
            history = self._histories[network] = _NetworkHistory(answer.generation)
        # Record the figures. Times are at least 0.1 ms apart, so that a client that polls by time
        # misses none.
        last_time = history.allocations[-1]["time"] if history.allocations else 0.0
        history.allocations.append(
            {"id": request_id, "time": max(time.time(), last_time + 1e-4), **answer.summary}
        )
        history.utilisation = answer.utilisation
        # Cache the whole response unless it is larger than a quarter of the limit, and evict the
        # oldest ones.
        if _stored_bytes(answer) <= MAX_BODY_BYTES // 4:
            self._responses[network, request_id] = answer
            self._response_bytes += _stored_bytes(answer)
        while len(self._responses) > MAX_BODIES or self._response_bytes > MAX_BODY_BYTES:
            self._response_bytes -= _stored_bytes(self._responses.popitem(last=False)[1])
        return is_new

    def since(self, network: str, generation: str, after: float) -> dict[str, Any]:
        """Return the figures of the answers after a time, and the link utilisation of the last.

        Args:
            network: name of the network.
            generation: current registration of the network.
            after: seconds since 1970.

        Returns:
            fields of ``responses.RecentAllocations``.
        """
        history = self._histories.get(network)
        if history is None or history.generation != generation:
            return {"allocations": [], "utilisation": []}
        allocations = [
            allocation for allocation in history.allocations if allocation["time"] > after
        ]
        # JSON has no NaN and no infinity: report 0 in their place.
        utilisation = (
            np.nan_to_num(history.utilisation, nan=0.0, posinf=0.0)
            .round(_UTILISATION_DIGITS)
            .tolist()
        )
        return {"allocations": allocations, "utilisation": utilisation}

    def answer(self, network: str, generation: str, request_id: str) -> AllocationResponse:
        """Return a cached response.

        Args:
            network: name of the network.
            generation: current registration of the network.
            request_id: identifier of the request.

        Raises:
            ServiceError: the response is not cached, or is from an earlier registration.
        """
        response = self._responses.get((network, request_id))
        if response is None or response.generation != generation:
            raise ServiceError(
                404,
                "unknown_allocation",
                f"no allocation {request_id[:80]!r} is stored; only recent answers are kept",
            )
        return response

    def last_used(self) -> str:
        """Return the name of the network of the last allocation; "" without one."""
        last_times = {
            name: history.allocations[-1]["time"]
            for name, history in self._histories.items()
            if history.allocations
        }
        return max(last_times, key=lambda name: float(last_times[name]), default="")

    def retain_only(self, networks: Collection[str]) -> list[str]:
        """Drop the responses of all networks except these; return the names of the dropped ones."""
        removed = [name for name in self._histories if name not in networks]
        for name in removed:
            del self._histories[name]
            self._drop_responses(name)
        return removed

    def _drop_responses(self, network: str, kept_generation: str = "") -> None:
        """Drop the responses of a network, except those of one registration.

        Args:
            network: name of the network.
            kept_generation: registration whose responses stay; "" for none.
        """
        # Whole responses, then completed idempotent requests.
        for cache_key in [
            cache_key
            for cache_key, response in self._responses.items()
            if cache_key[0] == network and response.generation != kept_generation
        ]:
            self._response_bytes -= _stored_bytes(self._responses.pop(cache_key))
        for cache_key in [
            cache_key for cache_key in self._keyed_requests if cache_key[0] == network
        ]:
            response_future = self._keyed_requests[cache_key].answer
            if response_future.done() and response_future.result().generation != kept_generation:
                self._drop_key(cache_key)
