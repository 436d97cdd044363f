"""The manifest of a run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from teal.app.run_files import write_manifest


def test_a_manifest_has_the_hash_of_every_file_that_a_setting_names(tmp_path: Path) -> None:
    """SHA-256 of 'abc' is that of FIPS 180-2, appendix B.1."""
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    names = ["net.csv", "m.1.demands", "m.2.demands"]
    for name in names:
        (tmp_path / name).write_bytes(b"abc")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old.csv").write_bytes(b"abc")

    @dataclasses.dataclass
    class Settings:
        topology: str = str(tmp_path / "net.csv")
        traffic: str = str(tmp_path / "m.*.demands")
        schemes: tuple[str, ...] = ("pdhg", "gravity:seed=0", "x" * 5000)
        groups: Path | None = None
        out: Path = tmp_path / "out"

    write_manifest(tmp_path / "manifest.json", Settings())
    found = json.loads((tmp_path / "manifest.json").read_text())["inputs"]
    assert found == {str(tmp_path / name): abc for name in names}
