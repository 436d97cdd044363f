"""Published networks and matrices by name: where the files are, their units and terms; downloads
that resume.
"""

from __future__ import annotations

import dataclasses
import hashlib
import http.client
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from teal.errors import InputError, SolverError, did_you_mean
from teal.runtime.progress import progress_bar

_SNDLIB = "https://sndlib.put.poznan.pl/download"
_TEAL = "https://raw.githubusercontent.com/harvard-cns/teal/main/topologies"
_CITE_SNDLIB = "SNDlib states no licence and asks to cite Orlowski et al., Networks 55 (2010)"
_TIMEOUT_S = 30.0  # seconds without a byte, after which a download ends
_CHUNK = 1 << 16  # bytes read at a time
# Largest size of a file; the largest archive of the catalogue has less than a twentieth.
_MAX_BYTES = 4 << 30


@dataclasses.dataclass(frozen=True)
class File:
    """One file of a publisher.

    Attributes:
        url: address; its last part is the name of the file.
        sha256: hexadecimal digits of its content; "" where its publisher states none and it may
            grow.
    """

    url: str
    sha256: str = ""

    @property
    def name(self) -> str:
        """Name of the file on disk."""
        return urlsplit(self.url).path.rpartition("/")[2]


@dataclasses.dataclass(frozen=True)
class Published:
    """A network and, if there is one, a series of its matrices.

    Attributes:
        topology: file of the network.
        traffic: archive of the matrices; None for none.
        unit: unit of capacities and rates in the files.
        terms: licence, or how to cite.
        series: what the matrices are, with their gaps; "" without.
    """

    topology: File
    traffic: File | None
    unit: str
    terms: str
    series: str = ""


def _sndlib(name: str, archive: str, sha256: str, series: str) -> Published:
    topology = File(f"{_SNDLIB}/sndlib-networks-xml/{name}.xml", sha256)
    return Published(topology, File(f"{_SNDLIB}/{archive}.tgz"), "Mbit/s", _CITE_SNDLIB, series)


def _release(name: str, sha256: str) -> Published:
    return Published(
        File(f"{_TEAL}/{name}.json", sha256), None, "Gbit/s", "MIT licence (harvard-cns/teal)"
    )


CATALOGUE = {
    "sndlib:abilene": _sndlib(
        "abilene",
        "directed-abilene-zhang-5min-over-6months-ALL",
        "a5793e17bb72ff13fed5e7d80e9a46c6af2041c4cc2e6381906bd06da8936fe3",
        "5-minute matrices over six months of 2004 (Yin Zhang)",
    ),
    "sndlib:geant": _sndlib(
        "geant",
        "directed-geant-uhlig-15min-over-4months-ALL",
        "a1f0d42abb70481bc2e31e77453a1de43bd71513515824a5daefb0529c480034",
        (
            "15-minute matrices over four months of 2005 (Uhlig et al.); some are empty, since the "
            "collection had gaps"
        ),
    ),
    "sndlib:germany50": _sndlib(
        "germany50",
        "directed-germany50-DFN-aggregated-5min-over-1day",
        "9dcb4fe4a213e7c2f993263d4f387468a68f83d9f723247cf606984e87f347e2",
        "5-minute matrices of a day (DFN)",
    ),
    "sndlib:germany50-days": _sndlib(
        "germany50",
        "directed-germany50-DFN-aggregated-1day-over-1month",
        "9dcb4fe4a213e7c2f993263d4f387468a68f83d9f723247cf606984e87f347e2",
        "daily matrices of a month (DFN)",
    ),
    "teal:B4": _release("B4", "d30dd2f2c29ece5b88b7b3302ebbcdc0b2e72792df5a6b45006ddb73c85485cf"),
    "teal:UsCarrier": _release(
        "UsCarrier", "e2d4d448640d123d9821651b03be74b4cdb00103633a3c924721aaaad7401cbb"
    ),
    "teal:Kdl": _release("Kdl", "03cf7cc55b87943e5173275542ffc14895cad6218ad43d200a26376136ac245c"),
    "teal:ASN2k": _release(
        "ASN2k", "9d6cdb72959950d256c96d9b86bebcaf2e5da4db9977b1b05524bd608ccd38e5"
    ),
}


def published(name: str, *, with_traffic: bool) -> Published:
    """The entry of a name.

    Raises:
        InputError: an unknown name, or a network without matrices where they are wanted.
    """
    if name not in CATALOGUE:
        known = [key for key, entry in CATALOGUE.items() if entry.traffic or not with_traffic]
        raise InputError(
            "--name", "", f"one of {', '.join(known)}{did_you_mean(name, known)}", repr(name)
        )
    entry = CATALOGUE[name]
    if with_traffic and entry.traffic is None:
        raise InputError(
            "--name",
            "",
            "a network with measured matrices (teal topology get has its links)",
            repr(name),
        )
    return entry


def download(file: File, folder: Path, *, mirror: str = "", expected: str = "") -> str:
    """Bring a file of a publisher into a folder; one that is there already is read and not fetched
    again.

    An interrupted download is kept as ``NAME.part``, and goes on from there where the server
    answers ranges.

    Args:
        file: entry of the catalogue.
        folder: folder of the file; made if it does not exist.
        mirror: address of a folder that has files of the same names, in the place of the
            publisher's.
        expected: SHA-256 that the file must have, in the place of the catalogue's.

    Returns:
        SHA-256 of the file, in hexadecimal digits.

    Raises:
        InputError: a file whose content is another one than the checksum says; an address that is
            not HTTP.
        SolverError: no connection, or an answer without the file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, wanted = folder / file.name, (expected or file.sha256).lower()
    if not path.exists():
        part = path.with_name(f"{path.name}.part")
        _fetch(f"{mirror.rstrip('/')}/{file.name}" if mirror else file.url, part)
        _check(part, wanted)
        part.replace(path)
    return _check(path, wanted)


def _check(path: Path, wanted: str) -> str:
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if wanted and found != wanted:
        raise InputError(
            str(path), "content", f"SHA-256 {wanted} (delete the file to fetch it again)", found
        )
    return found


def _fetch(url: str, part: Path) -> None:
    """Append what is missing of a file to ``part``.

    Raises:
        InputError: another kind of address, or a file that is too large.
        SolverError: no answer, or less than the whole file.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise InputError(
            "--mirror", "", "an address that begins with https:// or http://", repr(url)
        )
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            resumes = answer.status == http.HTTPStatus.PARTIAL_CONTENT
            done = done if resumes else 0
            length = int(answer.headers.get("Content-Length") or 0)
            with (
                part.open("ab" if resumes else "wb") as stream,
                progress_bar(
                    total=done + length or None,
                    initial=done,
                    desc=part.stem,
                    unit="B",
                    unit_scale=True,
                ) as bar,
            ):
                whole, arrived = done + length, done
                while chunk := answer.read(_CHUNK):
                    stream.write(chunk)
                    bar.update(len(chunk))
                    arrived += len(chunk)  # a bar that is not shown does not count
                    if arrived > _MAX_BYTES:
                        raise InputError(
                            url, "", f"a file of at most {_MAX_BYTES >> 30} GiB", "more"
                        )
            if length and arrived < whole:
                raise http.client.IncompleteRead(b"", whole - arrived)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and done:
            return  # the part is the whole file, which its checksum confirms
        answered = f"{error.code} {error.reason}"
        raise SolverError(
            f"{url}: the server answers {answered}; --mirror names another one"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise SolverError(
            f"{url}: no connection ({reason}); what has arrived is kept, and the same command goes "
            "on.  "
            f"Without a network, bring the file into {part.parent} by other means"
        ) from None
