"""Archives that are larger, or of another kind, than they look: refused before they are
unpacked."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.lib import format as npy

import teal
from teal.errors import InputError
from teal.runtime.archives import check_npz


def _header(shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    npy.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return stream.getvalue()


def _archive(file: Path, arrays: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in arrays.items():
            archive.writestr(f"{name}.npy", content)
    return file


def test_ordinary_archives_pass(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz",
        x=np.ones((3, 4)),
        y=np.array("text"),
        z=np.asfortranarray(np.ones((2, 3))),
    )
    np.savez_compressed(tmp_path / "b.npz", zeros=np.zeros((1000, 1000)))
    check_npz(tmp_path / "a.npz")
    check_npz(tmp_path / "b.npz")


def test_headers_that_promise_more_than_there_is_are_refused(tmp_path: Path) -> None:
    for shape in ((1 << 40,), (1 << 20, 1 << 20), (10,), (-1,)):
        with pytest.raises(ValueError, match=r"not the size of an array|shape"):
            check_npz(_archive(tmp_path / "x.npz", {"x": _header(shape) + bytes(8 * 9)}))
    np.savez(tmp_path / "o.npz", x=np.array([{}], object))
    with pytest.raises(ValueError, match="pickled"):
        check_npz(tmp_path / "o.npz")


@pytest.mark.slow
def test_small_files_that_unpack_to_gigabytes_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "bomb.npz"
    with (
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w") as stream,
    ):
        stream.write(_header((131, 1 << 20)))
        for _ in range(131):
            stream.write(bytes(8 << 20))
    assert file.stat().st_size < 3 << 20
    with pytest.raises(ValueError, match=r"numpy\.savez"):
        check_npz(file)


def test_traffic_in_such_an_archive_is_an_input_error(tmp_path: Path) -> None:
    topology = teal.load_topology("b4")
    fields = {name: _header((1 << 50,)) for name in ("rates", "timestamps", "sources", "targets")}
    with pytest.raises(InputError, match="not the size of an array"):
        teal.load_traffic(str(_archive(tmp_path / "hdr.npz", fields)), topology)
