"""A state folder that cannot be written, is gone, or holds what no service has put there."""

from __future__ import annotations

import asyncio
import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

from teal_serve.client import ServiceFault
from teal_serve.engine import measured, store
from teal_serve.engine.engine import AllocationEngine
from teal_serve.engine.errors import ServiceError
from teal_serve.engine.measured import MeasuredMatrices
from teal_serve.engine.store import Store
from tests.teal_serve.service import b4_service, rates_of, run, service

NOON = np.datetime64("2026-01-01T12:00:00", "s")


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (errno.ENOSPC, 507),
        (errno.EDQUOT, 507),
        (errno.EROFS, 507),
        (errno.EACCES, 507),
        (errno.EMFILE, 503),
        (errno.ENFILE, 503),
        (errno.EIO, 503),
        (errno.ESTALE, 503),
    ],
)
def test_what_cannot_be_stored_is_no_internal_error(
    number: int, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number), "x")

    async def work() -> None:
        async with b4_service(tmp_path) as client:
            monkeypatch.setattr(store, "atomic_files", refuse)
            monkeypatch.setattr(measured, "atomic_files", refuse)
            for ask in (client.put_network("new", "b4"), client.measure("b4", rates_of(), NOON)):
                with pytest.raises(ServiceFault) as raised:
                    await ask
                assert raised.value.status == status

    run(work)


def test_files_that_run_out_are_no_fault_of_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "x")

    async def work() -> None:
        async with b4_service(tmp_path) as client:
            with monkeypatch.context() as patch:
                patch.setattr(store, "_fingerprint", none)
                with pytest.raises(ServiceFault) as raised:
                    await client.network("b4")
            assert (raised.value.status, raised.value.retry_after_s > 0) == (503, True)
            assert (await client.network("b4")).state == "ready"

    run(work)


def test_a_folder_that_is_gone_is_not_an_empty_one_and_networks_come_back_with_it(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        folder, away = tmp_path / "state", tmp_path / "away"
        solver = AllocationEngine(folder)
        async with b4_service(folder, solver=solver) as client:
            folder.rename(away)
            with pytest.raises(ServiceError):
                await solver.sync_with_store()
            assert (await client._http.get("/readyz")).status_code == 503
            asks: list[Callable[[], Any]] = [
                client.networks,
                lambda: client.network("b4"),
                lambda: client.put_network("b4", "b4"),
                lambda: client.allocate("b4", rates_of()),
            ]
            for ask in asks:
                with pytest.raises(ServiceFault) as raised:
                    await ask()
                assert raised.value.status == 503
            away.rename(folder)
            await solver.sync_with_store()
            assert (
                await client.network("b4")
            ).state == "ready"  # at once: its paths were not forgotten

    run(work)


def _nested(file: Path) -> None:
    file.write_text("[" * 200_000)


@pytest.mark.parametrize(
    "make", [_nested, os.mkfifo, Path.mkdir, lambda file: file.symlink_to("/dev/zero")]
)
def test_a_file_that_is_none_stops_neither_start_nor_other_networks(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    Store(tmp_path).put("good", {"topology": "b4"})
    make(tmp_path / "bad.json")

    async def work() -> None:
        async with service(tmp_path) as client:
            await client.wait_ready("good")
            with pytest.raises(ServiceFault) as raised:
                await client.network("bad")
            assert (raised.value.status, raised.value.code) == (409, "failed")

    asyncio.run(asyncio.wait_for(_as_coroutine(work), 60))


async def _as_coroutine(work: Callable[[], Any]) -> None:
    await work()


def _claims(numbers: int) -> bytes:
    stream = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (numbers,)}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()


def test_files_that_are_no_matrices_are_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "measured"
    matrices = MeasuredMatrices(folder, 2)
    matrices.add([NOON], np.array([[1.0, 2.0]]))
    (folder / "20260101T130000.npy").write_bytes(_claims(10**13))
    (folder / "20260101T140000.npy").write_bytes(_claims(2))  # without the numbers
    np.savez(folder / "archive.npz", a=np.ones(2))
    (folder / "archive.npz").rename(folder / "20260101T150000.npy")
    os.mkfifo(folder / "20260101T160000.npy")
    (folder / "20260101T170000.npy").mkdir()
    again = MeasuredMatrices(folder, 2)
    again.refresh()
    assert again.times == [NOON]
    np.testing.assert_array_equal(again.rates(), [[1.0, 2.0]])
    again.clear()
    assert (again.times, list(folder.iterdir())) == ([], [])


def test_a_clock_that_was_set_back_leaves_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A matrix of the future would refuse all that are measured until then."""
    matrices, now = MeasuredMatrices(tmp_path / "measured", 2), np.datetime64("now", "s")
    for hours in (-2, -1):
        matrices.add([now + np.timedelta64(hours, "h")], np.ones((1, 2)))
    with monkeypatch.context() as patch:
        patch.setattr(measured, "_MAX_FUTURE", np.timedelta64(1, "D"))  # a clock that is ahead
        matrices.add([now + np.timedelta64(12, "h")], np.ones((1, 2)))
    matrices.add([now], np.ones((1, 2)))
    assert matrices.times == [
        now - np.timedelta64(2, "h"),
        now - np.timedelta64(1, "h"),
        now,
    ]
    with pytest.raises(ServiceError) as late:
        matrices.add([now - np.timedelta64(1, "h")], np.ones((1, 2)))
    assert late.value.code == "not_later"
    with pytest.raises(ServiceError) as early:
        matrices.add([now + np.timedelta64(12, "h")], np.ones((1, 2)))
    assert (early.value.status, len(matrices.times)) == (422, 3)
