"""What must stand in the environment before Ray is imported, which reads it then and never again."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from teal.storage import cache_dir


def guard() -> Path | None:
    """Keep Ray on the loopback address, and let its processes ask each other for a token of this user's own.

    Returns:
        the file of the token, which its owner alone may read; None where ``RAY_ADDRESS`` names a cluster.
    """
    if os.environ.get("RAY_ADDRESS"):  # a cluster of the user's, and under rules of its own
        return None
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    file = cache_dir("serve") / "ray-token"
    with (
        contextlib.suppress(FileExistsError),
        os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream,
    ):
        stream.write(secrets.token_hex(32))
    os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN_PATH"] = "token", str(file)
    return file
