"""Catalogue of published networks and traffic matrices: addresses, units, terms, resumable
downloads.

Entry points: :func:`published`, :func:`download`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import http.client
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from teal.errors import InputError, SolverError, did_you_mean
from teal.runtime.progress import progress_bar

_SNDLIB = "https://sndlib.put.poznan.pl/download"
_TEAL = "https://raw.githubusercontent.com/harvard-cns/teal/main/topologies"
_CITE_SNDLIB = "SNDlib states no licence and asks to cite Orlowski et al., Networks 55 (2010)"
# A download fails after so many seconds without a byte.
_TIMEOUT_S = 30.0
# Bytes of one read.
_CHUNK_BYTES = 1 << 16
# Maximum size of a file; the largest archive of the catalogue has less than a twentieth.
_MAX_BYTES = 4 << 30


@dataclasses.dataclass(frozen=True)
class File:
    """File at a publisher's address, with its checksum.

    Attributes:
        url: address; its last part is the name of the file.
        sha256: hexadecimal SHA-256; "" where the publisher states none and the file may grow.
    """

    url: str
    sha256: str = ""

    @property
    def name(self) -> str:
        """Name of the downloaded file: the last part of the address."""
        return urlsplit(self.url).path.rpartition("/")[2]


@dataclasses.dataclass(frozen=True)
class Published:
    """Published network and, if available, a series of its matrices.

    Attributes:
        topology: file of the network.
        traffic: archive of the matrices; None for none.
        unit: unit of capacities and rates in the files.
        terms: licence, or citation request.
        series: description of the matrices, with their gaps; "" without.
    """

    topology: File
    traffic: File | None
    unit: str
    terms: str
    series: str = ""


def _sndlib_entry(name: str, archive: str, sha256: str, series: str) -> Published:
    """Return the catalogue entry of a network of SNDlib and its traffic archive.

    Args:
        name: name of the network at SNDlib.
        archive: name of the archive, without suffix.
        sha256: hexadecimal SHA-256 of the network's file.
        series: description of the matrices.
    """
    topology = File(f"{_SNDLIB}/sndlib-networks-xml/{name}.xml", sha256)
    return Published(topology, File(f"{_SNDLIB}/{archive}.tgz"), "Mbit/s", _CITE_SNDLIB, series)


def _teal_entry(name: str, sha256: str) -> Published:
    """Return the catalogue entry of a network of Teal's repository, by its name and the SHA-256 of
    its file.
    """
    return Published(
        File(f"{_TEAL}/{name}.json", sha256), None, "Gbit/s", "MIT licence (harvard-cns/teal)"
    )


CATALOGUE = {
    "sndlib:abilene": _sndlib_entry(
        "abilene",
        "directed-abilene-zhang-5min-over-6months-ALL",
        "a5793e17bb72ff13fed5e7d80e9a46c6af2041c4cc2e6381906bd06da8936fe3",
        "5-minute matrices over six months of 2004 (Yin Zhang)",
    ),
    "sndlib:geant": _sndlib_entry(
        "geant",
        "directed-geant-uhlig-15min-over-4months-ALL",
        "a1f0d42abb70481bc2e31e77453a1de43bd71513515824a5daefb0529c480034",
        (
            "15-minute matrices over four months of 2005 (Uhlig et al.); some are empty, since the "
            "collection had gaps"
        ),
    ),
    "sndlib:germany50": _sndlib_entry(
        "germany50",
        "directed-germany50-DFN-aggregated-5min-over-1day",
        "9dcb4fe4a213e7c2f993263d4f387468a68f83d9f723247cf606984e87f347e2",
        "5-minute matrices of a day (DFN)",
    ),
    "sndlib:germany50-days": _sndlib_entry(
        "germany50",
        "directed-germany50-DFN-aggregated-1day-over-1month",
        "9dcb4fe4a213e7c2f993263d4f387468a68f83d9f723247cf606984e87f347e2",
        "daily matrices of a month (DFN)",
    ),
    "teal:B4": _teal_entry(
        "B4", "d30dd2f2c29ece5b88b7b3302ebbcdc0b2e72792df5a6b45006ddb73c85485cf"
    ),
    "teal:UsCarrier": _teal_entry(
        "UsCarrier", "e2d4d448640d123d9821651b03be74b4cdb00103633a3c924721aaaad7401cbb"
    ),
    "teal:Kdl": _teal_entry(
        "Kdl", "03cf7cc55b87943e5173275542ffc14895cad6218ad43d200a26376136ac245c"
    ),
    "teal:ASN2k": _teal_entry(
        "ASN2k", "9d6cdb72959950d256c96d9b86bebcaf2e5da4db9977b1b05524bd608ccd38e5"
    ),
}


def published(name: str, *, with_traffic: bool) -> Published:
    """Return the catalogue entry of a name such as ``sndlib:geant``.

    Args:
        name: name in the catalogue.
        with_traffic: whether the entry must have traffic matrices.

    Raises:
        InputError: an unknown name, or a network without the requested matrices.
    """
    if name not in CATALOGUE:
        names = [key for key, entry in CATALOGUE.items() if entry.traffic or not with_traffic]
        suggestion = did_you_mean(name, names)
        raise InputError("--name", "", f"one of {', '.join(names)}", repr(name) + suggestion)
    entry = CATALOGUE[name]
    if with_traffic and entry.traffic is None:
        raise InputError.invalid(
            "--name",
            "",
            f"the catalogue has no traffic matrices of {name}",
            "download its links by teal topology get",
        )
    return entry


def download(file: File, folder: Path, *, mirror: str = "", expected: str = "") -> str:
    """Download a file into a folder, unless it exists there already; verify its checksum.

    An interrupted download stays as ``NAME.part`` and is resumed if the server supports ranges.

    Args:
        file: entry of the catalogue.
        folder: target folder; created if missing.
        mirror: address of a folder with the same file, instead of the publisher's; "" for none.
        expected: expected SHA-256, instead of the catalogue's; "" for the latter.

    Returns:
        Hexadecimal SHA-256 of the file.

    Raises:
        InputError: a checksum mismatch, or an address that is not HTTP.
        SolverError: no connection, or an incomplete response.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file.name
    expected_hash = (expected or file.sha256).lower()
    if not path.exists():
        part = path.with_name(f"{path.name}.part")
        _fetch(f"{mirror.rstrip('/')}/{file.name}" if mirror else file.url, part)
        _verify_checksum(part, expected_hash)
        part.replace(path)
    return _verify_checksum(path, expected_hash)


def _verify_checksum(path: Path, expected_hash: str) -> str:
    """Return the SHA-256 of a file; raise InputError if it differs from the expected one, unless
    that is "".
    """
    with path.open("rb") as stream:
        actual_hash = hashlib.file_digest(stream, "sha256").hexdigest()
    if expected_hash and actual_hash != expected_hash:
        raise InputError.invalid(
            str(path),
            "content",
            f"the SHA-256 is {actual_hash}, not {expected_hash}",
            "delete the file and download it again",
        )
    return actual_hash


def _fetch(url: str, part: Path) -> None:
    """Download a file into ``part``, or the missing bytes of an interrupted download.

    Args:
        url: address of the file.
        part: path of the partial file, which may exist.

    Raises:
        InputError: an unsupported address, or a file that is too large.
        SolverError: no response, or an incomplete file.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise InputError(
            "--mirror", "", "an address that begins with https:// or http://", repr(url)
        )
    # Request only the missing bytes.
    num_kept_bytes = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(
        url, headers={"Range": f"bytes={num_kept_bytes}-"} if num_kept_bytes else {}
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            # A server without support for ranges sends the whole file.
            is_resumed = response.status == http.HTTPStatus.PARTIAL_CONTENT
            num_kept_bytes = num_kept_bytes if is_resumed else 0
            _append(response, part, num_kept_bytes, url)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and num_kept_bytes:
            # The part is the complete file, as its checksum confirms.
            return
        status_text = f"{error.code} {error.reason}"
        raise SolverError(
            f"{url}: the server responded with {status_text}; select another server with --mirror"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise SolverError(
            f"{url}: no connection ({reason}); run the command again to resume the download, or "
            f"copy the file into {part.parent}"
        ) from None


def _append(response: Any, part: Path, num_kept_bytes: int, url: str) -> None:
    """Write the body of a response to ``part``, with a progress bar.

    Args:
        response: response of ``urllib``, positioned after ``num_kept_bytes`` bytes of the file.
        part: path of the partial file.
        num_kept_bytes: number of its bytes to keep; 0 replaces it.
        url: address of the file, for messages.

    Raises:
        InputError: a file that is too large.
        IncompleteRead: the connection ended too early.
    """
    # Number of bytes in this response; 0 if the server does not state it.
    length = int(response.headers.get("Content-Length") or 0)
    with (
        part.open("ab" if num_kept_bytes else "wb") as stream,
        progress_bar(
            total=num_kept_bytes + length or None,
            initial=num_kept_bytes,
            desc=part.stem,
            unit="B",
            unit_scale=True,
        ) as bar,
    ):
        total_bytes = num_kept_bytes + length
        num_file_bytes = num_kept_bytes
        while chunk := response.read(_CHUNK_BYTES):
            stream.write(chunk)
            bar.update(len(chunk))
            # Count the bytes here, since a disabled progress bar does not.
            num_file_bytes += len(chunk)
            if num_file_bytes > _MAX_BYTES:
                raise InputError.invalid(
                    url,
                    "",
                    f"the file has more than {_MAX_BYTES >> 30} GiB, the limit",
                    "select another server with --mirror",
                )
    if length and num_file_bytes < total_bytes:
        raise http.client.IncompleteRead(b"", total_bytes - num_file_bytes)
