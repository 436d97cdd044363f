"""Response cache of this process: recent figures for monitoring, whole answers, and idempotent
requests.

:class:`ResponseCache` keeps the figures of recent allocations and whole responses within a byte
limit, and answers repeated requests with an Idempotency-Key once.
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
from teal.serving.engine.backend import AllocationResponse, EncodedRequest
from teal.serving.engine.errors import ServiceError

# Figures per network, and idempotency keys.
MAX_ENTRIES = 1_000
# Whole responses of all networks; as many bytes again for idempotent requests.
MAX_BODIES = 1_000
MAX_BODY_BYTES = 64 << 20
# Decimals of a utilisation.
_UTILISATION_DIGITS = 4


def _size(answer: AllocationResponse) -> int:
    """Bytes of a response with its proof."""
    return len(answer.body) + len(answer.proof)


def _digest(request: EncodedRequest) -> bytes:
    """Fingerprint of everything that shapes the response."""
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
    """Recent figures of one registration, and the link utilisation of its last matrix."""

    generation: str
    allocations: deque[dict[str, Any]] = dataclasses.field(
        default_factory=lambda: deque(maxlen=MAX_ENTRIES)
    )
    utilisation: FloatArray = dataclasses.field(default_factory=lambda: np.zeros(0))


@dataclasses.dataclass(eq=False)
class _KeyedRequest:
    """Request with an Idempotency-Key, and its response as a future."""

    digest: bytes
    answer: asyncio.Future[AllocationResponse]


class ResponseCache:
    """Recent responses of this process."""

    def __init__(self) -> None:
        self._histories: dict[str, _NetworkHistory] = {}
        self._bodies: OrderedDict[tuple[str, str], AllocationResponse] = OrderedDict()
        self._body_bytes = 0
        self._keyed_body_bytes = 0
        self._keyed_requests: OrderedDict[tuple[str, str], _KeyedRequest] = OrderedDict()

    async def answer_once(
        self,
        network: str,
        key: str,
        request: EncodedRequest,
        compute: Callable[[], Awaitable[AllocationResponse]],
    ) -> tuple[AllocationResponse, bool]:
        """Response of ``compute``, or that of an earlier request with the same key and body; and
        whether it is new.

        Args:
            network: name of the network.
            key: idempotency key; "" to always compute.
            request: request to answer.
            compute: answers the request.

        Raises:
            ServiceError: another request used this key. An error of ``compute`` is raised and frees
                the key.
        """
        if not key:
            return await compute(), True
        digest = _digest(request)
        cache_key = network, f"{request.client}\0{key}"
        # Repeat the response of an earlier request.
        earlier = self._keyed_requests.get(cache_key)
        if earlier is not None:
            if earlier.digest != digest:
                raise ServiceError(
                    409, "key_used", "this Idempotency-Key was used by another request"
                )
            # The first request may be cancelled with its client; then this one computes again.
            await asyncio.wait({earlier.answer})
            if not earlier.answer.cancelled() and earlier.answer.exception() is None:
                return earlier.answer.result(), False
            return await self.answer_once(network, key, request, compute)
        # Compute, and share the response with repeated requests.
        pending = self._keyed_requests[cache_key] = _KeyedRequest(
            digest, asyncio.get_running_loop().create_future()
        )
        try:
            result = await compute()
        except BaseException:
            self._keyed_requests.pop(cache_key, None)
            pending.answer.cancel()
            raise
        pending.answer.set_result(result)
        self._keyed_body_bytes += _size(result)
        self._evict_keys()
        return result, True

    def _evict_keys(self) -> None:
        """Evict the oldest keys until number and bytes are within their limits."""
        for oldest_key in list(self._keyed_requests):
            if (
                len(self._keyed_requests) <= MAX_ENTRIES
                and self._keyed_body_bytes <= MAX_BODY_BYTES
            ):
                break
            self._drop_key(oldest_key)

    def _drop_key(self, cache_key: tuple[str, str]) -> None:
        """Remove a key whose response is complete."""
        answer = self._keyed_requests[cache_key].answer
        if answer.done():
            self._keyed_body_bytes -= _size(answer.result())
            del self._keyed_requests[cache_key]

    def add(self, network: str, request_id: str, answer: AllocationResponse) -> bool:
        """Cache a response; evict the oldest ones.

        Args:
            network: name of the network; data of its other registrations is dropped.
            request_id: identifier of the request.
            answer: response to cache.

        Returns:
            whether the network is new to the cache.
        """
        history = self._histories.get(network)
        is_new = history is None
        if history is None or history.generation != answer.generation:
            if not is_new:
                self._drop_bodies(network, kept_generation=answer.generation)
            history = self._histories[network] = _NetworkHistory(answer.generation)
        last_time = history.allocations[-1]["time"] if history.allocations else 0.0
        # Distinct times, so that polling by time misses none.
        history.allocations.append(
            {"id": request_id, "time": max(time.time(), last_time + 1e-4), **answer.summary}
        )
        history.utilisation = answer.utilisation
        if _size(answer) <= MAX_BODY_BYTES // 4:
            self._bodies[network, request_id] = answer
            self._body_bytes += _size(answer)
        while len(self._bodies) > MAX_BODIES or self._body_bytes > MAX_BODY_BYTES:
            self._body_bytes -= _size(self._bodies.popitem(last=False)[1])
        return is_new

    def since(self, network: str, generation: str, after: float) -> dict[str, Any]:
        """Figures of answers after a time, seconds since 1970, and the link utilisation of the last
        one.
        """
        history = self._histories.get(network)
        if history is None or history.generation != generation:
            return {"allocations": [], "utilisation": []}
        allocations = [
            allocation for allocation in history.allocations if allocation["time"] > after
        ]
        utilisation = (
            np.nan_to_num(history.utilisation, nan=0.0, posinf=0.0)
            .round(_UTILISATION_DIGITS)
            .tolist()
        )
        return {"allocations": allocations, "utilisation": utilisation}

    def answer(self, network: str, generation: str, request_id: str) -> AllocationResponse:
        """Cached response.

        Raises:
            ServiceError: it is not cached.
        """
        response = self._bodies.get((network, request_id))
        if response is None or response.generation != generation:
            raise ServiceError(
                404, "unknown_allocation", f"no allocation {request_id[:80]!r} is stored"
            )
        return response

    def last_used(self) -> str:
        """Network of the last allocation; "" without one."""
        latest = {
            name: history.allocations[-1]["time"]
            for name, history in self._histories.items()
            if history.allocations
        }
        return max(latest, key=lambda name: float(latest[name]), default="")

    def retain_only(self, networks: Collection[str]) -> list[str]:
        """Drop all other networks; return their names."""
        removed = [name for name in self._histories if name not in networks]
        for name in removed:
            del self._histories[name]
            self._drop_bodies(name)
        return removed

    def _drop_bodies(self, network: str, kept_generation: str = "") -> None:
        """Drop the responses of a network, except those of one generation, whose first may be
        idempotent.
        """
        for cache_key in [
            cache_key
            for cache_key, response in self._bodies.items()
            if cache_key[0] == network and response.generation != kept_generation
        ]:
            self._body_bytes -= _size(self._bodies.pop(cache_key))
        for cache_key in [
            cache_key for cache_key in self._keyed_requests if cache_key[0] == network
        ]:
            answer = self._keyed_requests[cache_key].answer
            if answer.done() and answer.result().generation != kept_generation:
                self._drop_key(cache_key)
