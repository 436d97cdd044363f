"""The parts of a history through Ray Data: streamed to processes that each hold the network once."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from teal.bulk import Allocated, Bulk
from teal.config import AllocateConfig
from teal.distributed.cluster import cause, connected
from teal.parallel import limit_threads

_CPUS = 0.5  # of a process: with whole ones none would be left for what Ray Data does beside them


class _Worker:
    """One process: the network is loaded once, then part after part is worked on."""

    def __init__(self, config: AllocateConfig, threads: int) -> None:
        limit_threads(threads)
        self._bulk = Bulk(config)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        part = int(row["part"])
        found = self._bulk.work(part)
        return {"part": part, "found": json.dumps([dataclasses.asdict(one) for one in found])}


def allocate(config: AllocateConfig, parts: Sequence[int]) -> Iterator[tuple[int, list[Allocated]]]:
    """Work on some parts, in as many processes as ``config.workers`` says; each as it is done, in any order.

    Raises:
        SolverError: a process died again and again; InputError: what one of them met.
    """
    with connected() as ray:
        import ray.data as data

        logging.getLogger("ray.data").setLevel(logging.ERROR)
        context = data.DataContext.get_current()
        context.enable_progress_bars = False
        cpus = int(ray.cluster_resources().get("CPU", 1))
        workers = min(config.workers or cpus, len(parts))
        settings = dataclasses.replace(config, out=config.out.resolve())
        # One block a part: blocks are what Ray Data hands out, and makes again when a process dies.
        asked = data.from_items([{"part": part} for part in parts], override_num_blocks=len(parts))
        worked = asked.map(
            _Worker,
            fn_constructor_args=(settings, max(1, cpus // workers)),
            compute=data.ActorPoolStrategy(size=workers),
            num_cpus=_CPUS,
        )
        try:
            for row in worked.iter_rows():
                yield int(row["part"]), [Allocated(**one) for one in json.loads(row["found"])]
        except ray.exceptions.RayError as error:
            raise cause(error, "allocating on Ray") from None
