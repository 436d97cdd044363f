"""Find the published files of ``--data FOLDER``, in FOLDER itself or in the folders that
data/README.md names.
"""

from __future__ import annotations

from pathlib import Path

_FOLDERS = "topologies", "sndlib", "repetita"


def published(folder: Path, name: str) -> Path:
    """Return the path of a published file below FOLDER; end the program if it is missing.

    Args:
        folder: argument of --data.
        name: name with or without one of the folders, such as ``topologies/Kdl.json`` or
            ``Kdl.json``.
    """
    bare = Path(name).name
    for path in (folder / name, folder / bare, *(folder / below / bare for below in _FOLDERS)):
        if path.exists():
            return path
    raise SystemExit(
        f"--data {folder}: no {bare} in it or its folders {', '.join(_FOLDERS)}; data/README.md "
        "says where to get it"
    )
