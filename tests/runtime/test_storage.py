"""Atomic files against writers that fail half way, output checks against unusable paths, keys
against equal content."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from teal.errors import InputError
from teal.runtime.storage import (
    ScratchFolder,
    atomic_file,
    atomic_files,
    check_out_file,
    check_out_folder,
    content_key,
    file_key,
)
from tests.processes import running


def test_atomic_file_writes_the_whole_file_or_nothing(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "x.txt"
    with atomic_file(target) as temporary:
        temporary.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new"
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~mask

    def fail() -> None:
        with atomic_file(target) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert target.read_text() == "new"
    assert [p.name for p in target.parent.iterdir()] == ["x.txt"], "no temporary file remains"


def test_a_private_file_is_private_while_it_is_written_and_the_umask_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The umask belongs to the process: a thread that changed it for a moment could make it 0 for
    good."""
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", lambda mask: pytest.fail("the umask is changed"))
            for mode, expected in ((0o666, 0o640), (0o600, 0o600)):
                with atomic_file(tmp_path / "x", mode) as temporary:
                    assert stat.S_IMODE(temporary.stat().st_mode) == expected
                    temporary.unlink()  # as writers do that replace the file by a new one
                    temporary.write_text("new")
                assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == expected
    finally:
        os.umask(before)


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match="No space left") as caught,
        atomic_file(tmp_path / "results.csv"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.filename == str(tmp_path / "results.csv")
    assert not list(tmp_path.iterdir())


def test_output_checks_refuse_unusable_and_existing_paths(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="a folder"):
            check_out_folder(path, ("x",), overwrite=True)
    check_out_folder(tmp_path / "new" / "er", ("x",), overwrite=False)
    with pytest.raises(InputError, match="--overwrite"):
        check_out_folder(tmp_path, ("file",), overwrite=False)
    check_out_folder(tmp_path, ("file",), overwrite=True)
    with pytest.raises(InputError, match=r"\*\.csv"):
        check_out_file(tmp_path / "x.txt", (".csv",), overwrite=False)
    with pytest.raises(InputError, match="a folder"):
        check_out_file(tmp_path, ("",), overwrite=True)


def test_content_and_file_keys_depend_on_the_content_alone(tmp_path: Path) -> None:
    assert content_key(np.array([1, 2]), "a") == content_key(np.array([1, 2]), "a")
    assert content_key(np.array([1, 2])) != content_key(np.array([1.0, 2.0]))
    assert content_key("a", "b") != content_key("ab")
    (tmp_path / "one").write_text("x")
    (tmp_path / "two").write_text("x")
    assert file_key(tmp_path / "one") == file_key(tmp_path / "two"), (
        "the key does not depend on the name of the file"
    )


def test_scratch_folders_of_killed_processes_are_deleted_and_others_stay() -> None:
    script = (
        "import sys, time; from teal.runtime.storage import ScratchFolder; f = ScratchFolder('s'); "
    )
    script += "print(f.path, flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", script]
    with (
        running(command, stdin=subprocess.PIPE) as alive,
        running(command, stdin=subprocess.PIPE) as killed,
    ):
        folders = [
            Path(process.stdout.readline().strip()) for process in (alive, killed) if process.stdout
        ]
        assert all(folder.is_dir() for folder in folders)
        killed.kill()
        killed.wait()
        own = ScratchFolder("s")
        assert [folder.is_dir() for folder in folders] == [True, False]
        own.close()
        assert not own.path.exists()


def test_several_files_are_written_together_or_not_at_all(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a", "b", "c")]
    files[0].write_text("before")

    def fail() -> None:
        with atomic_files(files) as temporaries:
            temporaries[0].write_text("after")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
    assert files[0].read_text() == "before"
    with atomic_files(files) as temporaries:
        for temporary in temporaries:
            temporary.write_text("after")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "b", "c"]
    assert {file.read_text() for file in files} == {"after"}
