"""Advice on converting unsupported network formats."""

from __future__ import annotations

from pathlib import Path

# Bytes at the start of a file by which its format is recognised.
_SNIFFED_BYTES = 2048
_NETWORKX_READERS = {
    ".gml": "read_gml",
    ".gexf": "read_gexf",
    ".net": "read_pajek",
    ".paj": "read_pajek",
    ".gv": "nx_pydot.read_dot",
    ".dot": "nx_pydot.read_dot",
    ".edgelist": "read_edgelist",
    ".adjlist": "read_adjlist",
    ".g6": "read_graph6",
    ".s6": "read_sparse6",
}
_TABLE_TEXT = "a table of links, .csv: source,target,capacity and a line for each cable"


def advice(path: Path) -> str:
    """Return an instruction to convert an unsupported file of another program, such as a GML file;
    "" for an unknown format.
    """
    # Formats that networkx reads, by suffix; then others, by their first bytes.
    reader = _NETWORKX_READERS.get(path.suffix.lower())
    if reader is not None:
        call = (
            f"networkx.write_graphml(networkx.{reader}({path.name!r}), {path.stem + '.graphml'!r})"
        )
        return f"convert it by {call}"
    try:
        with path.open("rb") as stream:
            head = stream.read(_SNIFFED_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ""
    # Marks of SNDlib's native format, plans of WAE or MATE, DIMACS graphs, and tables.
    if "SNDlib" in head or ("NODES (" in head and "LINKS (" in head):
        return "download the network from SNDlib as XML (.xml)"
    lines = [line.strip() for line in head.splitlines() if line.strip()]
    if any(
        line.startswith(("<Nodes>", "<Circuits>", "<Interfaces>", "<Network>")) for line in lines
    ):
        return f"export the circuits of the WAE or MATE plan as {_TABLE_TEXT}"
    if any(line.startswith(("p min ", "p max ", "p mcf ")) for line in lines):
        return f"write the arcs of the DIMACS file as {_TABLE_TEXT}"
    if lines and len(lines[0].split()) >= 3:
        return f"write it as {_TABLE_TEXT}"
    return ""
