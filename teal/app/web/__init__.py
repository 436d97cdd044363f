"""JavaScript and layout that the report and the page of the service share."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent


def network_map_js() -> str:
    """Return the JavaScript that draws a network with Plotly, with links coloured by
    utilisation.
    """
    return (_FOLDER / "network_map.js").read_text(encoding="utf-8")


def plotly_js() -> str:
    """Return Plotly's JavaScript, 4.5 MB, which pages include so that they load nothing from
    elsewhere.
    """
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())
