"""The page at / in a real browser against the state of the service: network, failed links,
allocations, errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

import teal
from teal.formats.node_link import topology_to_node_link
from teal_serve.client import Client
from tests.teal_serve.service import TOKEN, listening, rates_of

# A name that would change the title if the page ran it as markup.
HOSTILE = "</script><script>document.title='taken'</script><b>"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with listening(tmp_path_factory.mktemp("networks"), token=TOKEN) as url:
        with Client(url, TOKEN) as client:
            node_link = topology_to_node_link(teal.load_topology("b4"))
            for node in node_link["nodes"]:
                node["id"] = HOSTILE if str(node["id"]) == "3" else str(node["id"])
                node.pop("pos", None)  # so that a layout is needed
            for link in node_link["links"]:
                for end in ("source", "target"):
                    link[end] = HOSTILE if str(link[end]) == "3" else str(link[end])
            client.put_network("b4", node_link)
            client.put_network("other", "b4")
            client.wait_ready("b4")
            client.wait_ready("other")
        yield url


def _open(browser: Any, address: str, **options: Any) -> tuple[Any, list[str]]:
    """A signed-in page, and the list of its errors and of its requests to other hosts."""
    view = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options}).new_page()
    errors: list[str] = []
    view.on("pageerror", lambda error: errors.append(str(error)))
    view.on(
        "console",
        lambda message: (
            errors.append(message.text)
            if message.type == "error" and "401" not in message.text
            else None
        ),
    )
    view.on(
        "request",
        lambda request: None if request.url.startswith(address) else errors.append(request.url),
    )
    view.goto(address)
    view.get_by_label("Token").wait_for()
    view.get_by_label("Token").fill(TOKEN)
    view.keyboard.press("Enter")
    view.get_by_text("12 nodes, 38 links").wait_for()
    return view, errors


@pytest.mark.system
def test_a_link_failed_on_the_page_is_shown_with_the_next_allocation(
    browser: Any, address: str
) -> None:
    with Client(address, TOKEN) as client:
        view, errors = _open(browser, address)
        client.allocate("b4", rates_of(size=20_000))
        satisfied = view.locator("[data-figure=satisfied]")
        satisfied.filter(has_text="%").wait_for()
        before = satisfied.text_content()
        assert view.locator("#time .scatterlayer .trace").count() == 2
        names = view.locator("#map .legendtext").all_text_contents()
        assert "full" in names

        cable = view.locator("#cable")  # with the keyboard alone
        cable.focus()
        view.keyboard.type("1 - 2")
        view.keyboard.press("Tab")
        view.keyboard.press("Enter")
        view.locator("#said").get_by_text("in force from the next allocation on").wait_for()
        info = client.network("b4")
        down = {(link.source, link.target) for link in info.links if link.in_force == 0}
        assert down == {("1", "2"), ("2", "1")}
        assert view.locator("#links td.down").count() == 2
        client.allocate("b4", rates_of(size=20_000))
        view.wait_for_function(
            "text => document.querySelector('[data-figure=satisfied]').textContent !== text",
            arg=before,
        )
        assert float(satisfied.text_content().rstrip("%")) < float(before.rstrip("%")) + 1e-9

        for _ in range(2):  # one button for each direction
            count = view.locator("#links button").count()
            view.locator("#links button").first.focus()
            view.keyboard.press("Enter")
            view.wait_for_function(
                "n => document.querySelectorAll('#links button').length < n", arg=count
            )
        assert all(link.in_force == link.capacity for link in client.network("b4").links)

        cable.fill("1 - 2")
        view.get_by_label("Gbit/s").fill("7")
        view.get_by_role("button", name="Set capacity").click()
        view.wait_for_function("() => document.querySelectorAll('#links button').length === 2")
        assert sum(link.in_force == 7 for link in client.network("b4").links) == 2

        view.locator("#network").select_option("other")
        view.wait_for_function("() => document.querySelectorAll('#links button').length === 0")
        assert satisfied.text_content() == "\u2013", "the other network has no allocation"
        assert view.title() == "Teal", "names are shown as text, never run as markup"
        assert errors == []
        view.context.close()


@pytest.mark.system
def test_the_page_shows_errors(browser: Any, address: str) -> None:
    view, errors = _open(browser, address)
    view.locator("#cable").fill("nowhere")
    view.get_by_role("button", name="Take down").click()
    assert (
        view.locator("#cable").evaluate("e => e.validationMessage")
        == "Choose one of the links of this network."
    )
    view.route("**/v1/**", lambda route: route.abort())
    view.get_by_text("asking again").wait_for()
    view.unroute("**/v1/**")
    view.get_by_text("12 nodes, 38 links").wait_for()
    assert [text for text in errors if "ERR_FAILED" not in text] == []
    view.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.system
def test_the_page_fits_in_light_and_dark(
    browser: Any, address: str, width: int, scheme: str
) -> None:
    view, errors = _open(
        browser, address, viewport={"width": width, "height": 800}, color_scheme=scheme
    )
    view.locator("#map .main-svg").first.wait_for()
    assert view.evaluate("document.documentElement.scrollWidth") <= width, (
        "no element is wider than the page"
    )
    colours = (
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    background, text = (
        np.mean([int(x) for x in colour[4:-1].split(", ")]) for colour in view.evaluate(colours)
    )
    assert (background < 50 < 200 < text) if scheme == "dark" else (background > 200 > 50 > text)
    map_background = view.locator("#map .main-svg").first.evaluate(
        "e => getComputedStyle(e).backgroundColor"
    )
    assert map_background == view.evaluate("getComputedStyle(document.body).backgroundColor"), (
        "the map has the page's colours"
    )
    assert errors == []
    view.context.close()


def test_the_page_needs_no_token_and_its_data_does(address: str) -> None:
    for path in (
        "/",
        "/assets/page.js",
        "/assets/page.css",
        "/assets/network_map.js",
        "/assets/plotly.js",
    ):
        response = httpx.get(address + path)
        assert response.status_code == 200
        assert response.headers["x-content-type-options"] == "nosniff"
        uncompressed = httpx.get(address + path, headers={"Accept-Encoding": "identity"})
        assert uncompressed.content == response.content
    assert "script-src 'self'" in httpx.get(address).headers["content-security-policy"]
    for path in ("/v1/networks", "/v1/networks/b4/allocations", "/v1/networks/b4/map"):
        assert httpx.get(address + path).status_code == 401
    assert httpx.get(address + "/assets/..%2Fpage.py").status_code == 404


@pytest.mark.system
def test_classes_and_what_moved_are_shown_where_a_request_has_them(
    browser: Any, address: str
) -> None:
    with Client(address, TOKEN) as client:
        view, errors = _open(browser, address)
        rates = rates_of(size=30_000)
        client.allocate("b4", {"gold": 0.01 * rates, "bronze": 0.99 * rates})
        shown = view.locator("[data-figure=classes]")
        view.get_by_text(re.compile(r"^gold \d+\.\d\d%, bronze \d")).wait_for()
        assert view.locator("[data-figure=moved]").is_hidden()
        before = client.allocate("b4", rates)
        shown.wait_for(state="hidden")
        client.allocate("b4", rates_of(seed=1, size=30_000), max_churn=0.05, previous=before.id)
        view.locator("[data-figure=moved]").wait_for(state="visible")
        assert float(view.locator("[data-figure=moved]").text_content().rstrip("%")) <= 5
        assert not errors


@pytest.mark.system
def test_names_that_are_long_or_turn_text_leave_a_narrow_page_as_it_is(
    browser: Any, address: str
) -> None:
    turned, name = "evil\u202emoc.knab", "n" * 64
    nodes = ["a", "x" * 150, turned]
    ends = [(nodes[i], nodes[j]) for i in range(3) for j in range(i)]
    links = [{"source": source, "target": target, "capacity": 10} for source, target in ends]
    with Client(address, TOKEN) as client:
        client.put_network(
            name, {"nodes": [{"id": node} for node in nodes], "links": links}, num_paths=2
        )
        client.wait_ready(name)
        client.change_link(name, nodes[1], turned, up=False)
        view, errors = _open(browser, address, viewport={"width": 390, "height": 844})
        view.locator("#network").select_option(name)
        view.get_by_text("3 nodes, 6 links").wait_for()
        view.get_by_role("button", name="Restore").first.click()
        view.get_by_text("in force from the next allocation on").wait_for()
        assert view.evaluate("document.documentElement.scrollWidth") == 390
        assert (
            "\u202e" not in view.locator("#links").inner_text() + view.locator("#said").inner_text()
        )
        assert errors == []
        client.delete_network(name)
