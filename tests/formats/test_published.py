"""Downloads from a local server: checksums, resumption, and errors; the catalogue against the
published files."""

from __future__ import annotations

import hashlib
import http.server
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from teal.cli import main
from teal.errors import InputError, SolverError
from teal.formats.published import CATALOGUE, File, Published, download, published

CONTENT = bytes(range(256)) * 700  # several chunks of a download
SUM = hashlib.sha256(CONTENT).hexdigest()


class _Server(http.server.ThreadingHTTPServer):
    """Serves one file under any name; may know no ranges, and may end a connection early."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.knows_ranges, self.stops_at, self.sent, self.ranges = True, len(CONTENT), 0, [""]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        if self.path.endswith("missing.xml"):
            self.send_error(404)
            return
        asked = (
            re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            if self.server.knows_ranges
            else None
        )
        first = int(asked[1]) if asked else 0
        self.server.ranges.append(self.headers.get("Range", ""))
        if asked and first >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(CONTENT) - first))
        self.end_headers()
        part = CONTENT[first : self.server.stops_at]
        self.server.sent += len(part)  # before the client has it, and goes on
        self.wfile.write(part)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_an_interrupted_download_goes_on_and_the_file_is_whole(
    tmp_path: Path, server: _Server, knows_ranges: bool
) -> None:
    file = File("https://elsewhere.example/a.xml", SUM)
    server.stops_at = 100_000
    with pytest.raises(SolverError, match="run the command again to resume"):
        download(file, tmp_path, mirror=server.address)
    assert not (tmp_path / "a.xml").exists()
    assert (tmp_path / "a.xml.part").stat().st_size == 100_000
    server.stops_at, server.knows_ranges, server.sent = len(CONTENT), knows_ranges, 0
    assert download(file, tmp_path, mirror=server.address) == SUM
    assert (tmp_path / "a.xml").read_bytes() == CONTENT
    assert server.sent == len(CONTENT) - (100_000 if knows_ranges else 0)
    assert not (tmp_path / "a.xml.part").exists()
    assert download(file, tmp_path, mirror="http://127.0.0.1:1") == SUM, (
        "a file that is there is not fetched again"
    )


def test_a_part_that_is_the_whole_file_is_accepted(tmp_path: Path, server: _Server) -> None:
    (tmp_path / "a.xml.part").write_bytes(CONTENT)
    assert (
        download(File("https://elsewhere.example/a.xml", SUM), tmp_path, mirror=server.address)
        == SUM
    )


def test_other_content_is_refused_and_stays_a_part(tmp_path: Path, server: _Server) -> None:
    with pytest.raises(InputError, match=f"not {'0' * 64}"):
        download(
            File("https://elsewhere.example/a.xml"),
            tmp_path,
            mirror=server.address,
            expected="0" * 64,
        )
    assert not (tmp_path / "a.xml").exists()
    (tmp_path / "b.xml").write_text("another")
    with pytest.raises(InputError, match="delete the file"):
        download(File("https://elsewhere.example/b.xml", SUM), tmp_path, mirror=server.address)


def test_faults_of_servers_and_addresses_are_one_line_with_a_way_out(
    tmp_path: Path, server: _Server
) -> None:
    with pytest.raises(SolverError, match=r"404 .*--mirror"):
        download(File("https://elsewhere.example/missing.xml"), tmp_path, mirror=server.address)
    with pytest.raises(SolverError, match=r"no connection .*or copy the file"):
        download(File("https://elsewhere.example/a.xml"), tmp_path, mirror="http://127.0.0.1:1")
    with pytest.raises(InputError, match="https://"):
        download(File("https://elsewhere.example/a.xml"), tmp_path, mirror="file:///etc")


def test_the_command_fetches_network_and_matrices_and_says_units_terms_and_checksums(
    tmp_path: Path,
    server: _Server,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topology, traffic = File("https://x.example/abilene.xml", SUM), File("https://x.example/m.tgz")
    entry = Published(topology, traffic, "Mbit/s", "cite somebody", "5-minute matrices")
    monkeypatch.setitem(CATALOGUE, "sndlib:abilene", entry)
    words = ["traffic", "get", "sndlib:abilene", "--out", str(tmp_path), "--mirror", server.address]
    assert main(words) == 0
    text = capsys.readouterr().out
    command = (
        f"teal traffic info --topology {tmp_path / 'abilene.xml'} --traffic {tmp_path / 'm.tgz'}"
    )
    for part in (
        f"xml: SHA-256 {SUM}",
        "m.tgz: the publisher states no checksum",
        "Mbit/s",
        "cite somebody",
        command,
    ):
        assert part in text
    assert main([*words, "--sha256", "1" * 64]) == 2
    assert "not 1111" in capsys.readouterr().err
    assert main(["topology", "get"]) == 0
    assert "teal:Kdl" in capsys.readouterr().out
    assert main(["traffic", "get", "sndlib:abilen"]) == 2
    assert "did you mean sndlib:abilene?" in capsys.readouterr().err
    assert main(["traffic", "get", "--name", "teal:Kdl"]) == 2
    assert "teal topology get" in capsys.readouterr().err


def test_checksums_of_the_catalogue_are_those_of_the_published_files(public_data: Path) -> None:
    for name, entry in CATALOGUE.items():
        folder = public_data / ("sndlib" if name.startswith("sndlib") else "topologies")
        assert download(entry.topology, folder) == entry.topology.sha256
        assert published(name, with_traffic=False) is entry
        assert (entry.traffic is None) == (entry.series == "")
