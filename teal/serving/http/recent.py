"""Answers that were given lately: for whoever looks on, for whoever lost one, and for requests that
are sent twice.
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
from teal.serving.engine.backend import Found, Sent
from teal.serving.engine.errors import ServiceError

MAX_KEPT = 1_000  # figures of allocations that are kept, of each network
# Whole answers that are kept, of all networks together; as many bytes again for those to requests
# with a key.
MAX_BODIES, MAX_BODY_BYTES = 1_000, 64 << 20
_DIGITS = 4  # of a utilisation, after the point


def _size(answer: Found) -> int:
    """Bytes of an answer with its proof."""
    return len(answer.body) + len(answer.proof)


@dataclasses.dataclass
class _KeptFigures:
    generation: str
    allocations: deque[dict[str, Any]] = dataclasses.field(
        default_factory=lambda: deque(maxlen=MAX_KEPT)
    )
    utilisation: FloatArray = dataclasses.field(default_factory=lambda: np.zeros(0))


@dataclasses.dataclass(eq=False)
class _Keyed:
    """A request that named itself, and its answer as soon as it is there."""

    digest: bytes
    answer: asyncio.Future[Found]


class Recent:
    """The requests that this process answered lately."""

    def __init__(self) -> None:
        self._figures: dict[str, _KeptFigures] = {}
        self._bodies: OrderedDict[tuple[str, str], Found] = OrderedDict()
        self._bytes = 0
        self._keyed_bytes = 0
        self._keyed: OrderedDict[tuple[str, str], _Keyed] = OrderedDict()

    async def once(
        self, network: str, key: str, sent: Sent, work: Callable[[], Awaitable[Found]]
    ) -> tuple[Found, bool]:
        """The answer of ``work``, or of the request before it that had the same key and body;
        whether it is new.

        Args:
            network: its name.
            key: key that the client gave to the request; "" if none, then ``work`` is always done.
            sent: the request.
            work: answers it.

        Raises:
            ServiceError: another request had this key; what ``work`` raises, after which the key is
                free again.
        """
        if not key:
            return await work(), True
        request = "\0".join(
            (
                sent.media_type,
                sent.accept,
                sent.client,
                sent.previous_id,
                *map(str, sorted(sent.query.items())),
            )
        )
        digest = hashlib.sha256(request.encode("utf-8", "replace") + b"\0" + sent.body).digest()
        place = network, f"{sent.client}\0{key}"
        known = self._keyed.get(place)
        if known is not None:
            if known.digest != digest:
                raise ServiceError(409, "key_used", "another request had this Idempotency-Key")
            # The first request may be cancelled with its client; this one then begins anew.
            await asyncio.wait({known.answer})
            if not known.answer.cancelled() and known.answer.exception() is None:
                return known.answer.result(), False
            return await self.once(network, key, sent, work)
        mine = self._keyed[place] = _Keyed(digest, asyncio.get_running_loop().create_future())
        try:
            result = await work()
        except BaseException:
            self._keyed.pop(place, None)
            mine.answer.cancel()
            raise
        mine.answer.set_result(result)
        self._keyed_bytes += _size(result)
        for oldest in list(self._keyed):
            if len(self._keyed) <= MAX_KEPT and self._keyed_bytes <= MAX_BODY_BYTES:
                break
            self._forget_key(oldest)
        return result, True

    def _forget_key(self, place: tuple[str, str]) -> None:
        """Forget a key whose answer is there."""
        answer = self._keyed[place].answer
        if answer.done():
            self._keyed_bytes -= _size(answer.result())
            del self._keyed[place]

    def add(self, network: str, number: str, answer: Found) -> bool:
        """Keep an answer; the oldest ones go.

        Args:
            network: its name; what is known of another registration of the name is forgotten.
            number: number of the request.
            result: the answer.

        Returns:
            whether the network was not known.
        """
        known = self._figures.get(network)
        new = known is None
        if known is None or known.generation != answer.generation:
            if not new:
                self._forget_bodies(network, but=answer.generation)
            known = self._figures[network] = _KeptFigures(answer.generation)
        last = known.allocations[-1]["time"] if known.allocations else 0.0
        # Distinct times, so that nobody who asks for later ones misses any.
        known.allocations.append(
            {"id": number, "time": max(time.time(), last + 1e-4), **answer.summary}
        )
        known.utilisation = answer.utilisation
        if _size(answer) <= MAX_BODY_BYTES // 4:
            self._bodies[network, number] = answer
            self._bytes += _size(answer)
        while len(self._bodies) > MAX_BODIES or self._bytes > MAX_BODY_BYTES:
            self._bytes -= _size(self._bodies.popitem(last=False)[1])
        return new

    def since(self, network: str, generation: str, after: float) -> dict[str, Any]:
        """Allocations answered after a moment, seconds since 1970, and the utilisation of links in
        the last of all.
        """
        known = self._figures.get(network)
        if known is None or known.generation != generation:
            return {"allocations": [], "utilisation": []}
        newer = [one for one in known.allocations if one["time"] > after]
        used = np.nan_to_num(known.utilisation, nan=0.0, posinf=0.0).round(_DIGITS).tolist()
        return {"allocations": newer, "utilisation": used}

    def answer(self, network: str, generation: str, number: str) -> Found:
        """A whole answer.

        Raises:
            ServiceError: it is not kept any more, or never was.
        """
        kept = self._bodies.get((network, number))
        if kept is None or kept.generation != generation:
            raise ServiceError(404, "unknown_allocation", f"no allocation {number[:80]!r} is kept")
        return kept

    def last_used(self) -> str:
        """The network that was allocated for last; "" if none was."""
        latest = {
            name: known.allocations[-1]["time"]
            for name, known in self._figures.items()
            if known.allocations
        }
        return max(latest, key=lambda name: float(latest[name]), default="")

    def forget_all_but(self, networks: Collection[str]) -> list[str]:
        """Forget the others; their names."""
        gone = [name for name in self._figures if name not in networks]
        for name in gone:
            del self._figures[name]
            self._forget_bodies(name)
        return gone

    def _forget_bodies(self, network: str, but: str = "") -> None:
        """Forget the answers of a network, but those of one registration of it: the first of them
        may have a key.
        """
        for place in [
            place
            for place, one in self._bodies.items()
            if place[0] == network and one.generation != but
        ]:
            self._bytes -= _size(self._bodies.pop(place))
        for place in [place for place in self._keyed if place[0] == network]:
            answer = self._keyed[place].answer
            if answer.done() and answer.result().generation != but:
                self._forget_key(place)
