"""Writing the files of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from teal.evaluation.instance import Instance
from teal.runtime.storage import atomic_file, content_key

RESUME_HINT = "--resume or --overwrite"  # what a message suggests where OUT contains an earlier run


def write_files(folder: Path, writers: Mapping[str, Callable[[Path], None]]) -> None:
    """Write files into ``folder``, each whole or not at all.

    Args:
        folder: where to.
        writers: name of each file, and the function that writes it to the path that it is given.
    """
    for name, write in writers.items():
        with atomic_file(folder / name) as temporary:
            write(temporary)


def instance_key(instance: Instance) -> str:
    """Content key of network, traffic, paths, and what demands are worth."""
    of_network = instance.topology.content_key(), instance.traffic.content_key(), instance.paths.key
    return content_key(*of_network, *instance.worth)
