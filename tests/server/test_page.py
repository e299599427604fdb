"""The page: nothing from elsewhere, and in a real browser a chat that shows where every token came from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.server.serving import Running, running, slow, until
from tests.tiny_zoo import TinyZoo

CHROMIUM = Path("/usr/bin/chromium")
WORDS = "w5 w17 w3 w44 w9 w17 w3 w44"


def test_the_page_comes_with_the_server_and_asks_nobody_else(server: Running) -> None:
    for path, kind, name in (
        ("/", "text/html", "index.html"),
        ("/page/style.css", "text/css", "style.css"),
        ("/page/app.js", "text/javascript", "app.js"),
    ):
        answer = server.get(path)
        assert answer.status_code == 200 and answer.headers["content-type"].startswith(kind)
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        assert answer.content == (files("runtime.server.page") / name).read_bytes()
        assert not re.search(r"(?:https?:)?//[a-z]", re.sub(r"^\s*//.*$", "", answer.text, flags=re.M))


@pytest.fixture
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="the extra 'dev' is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"no browser at {CHROMIUM}: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield one
        one.close()


def opened(browser: Any, server: Running, **context: Any) -> Any:
    """The page, with what it asked for and complained about."""
    page = browser.new_context(**context).new_page()
    page.set_default_timeout(60_000)
    page.asked, page.complaints = [], []
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("console", lambda message: page.complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.goto(server.url)
    page.wait_for_function("document.querySelector('#served').textContent.startsWith('tiny')")
    return page


@pytest.mark.slow
def test_a_chat_shows_where_tokens_came_from(browser: Any, steady: Running) -> None:
    page = opened(browser, steady)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the first thing to reach: on to the message field
    page.keyboard.type(WORDS)
    page.keyboard.press("Enter")
    page.wait_for_selector(".model .after")
    assert page.locator(".model .said").inner_text().startswith("w")
    assert page.locator(".model .t").count() > 100
    assert page.locator(".model .t.accepted").first.get_attribute("title") == "accepted, draft lookup"
    assert re.fullmatch(r"\d+\.\d\d× plain", page.locator("#times").inner_text())
    assert re.fullmatch(r"(keep|drop) the KV of this text\.", page.locator("#decision").inner_text())
    assert page.locator("#drafts li").count() == 3
    assert "Answer complete" in page.locator("#status").inner_text()
    page.fill("#prompt", "w9")
    page.click("#send")
    page.wait_for_selector(".model >> nth=1 >> .after")
    page.click("#new")
    assert page.locator(".model").count() == 0
    assert page.complaints == []
    assert all(url.startswith((steady.url, "data:")) for url in page.asked)


@pytest.mark.slow
def test_a_phone_in_the_dark_can_stop_an_answer(browser: Any, tiny_zoo: TinyZoo) -> None:
    with running(tiny_zoo.bundle, "plain", slow(0.05)) as server:
        page = opened(browser, server, viewport={"width": 360, "height": 640}, color_scheme="dark", has_touch=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 26)"
        page.fill("#prompt", WORDS)
        page.tap("#send")
        page.wait_for_selector(".model .t")
        page.tap("#stop")
        page.wait_for_selector("#send:visible")
        until(lambda: bool(server.state()["idle"]))
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.complaints == []


@pytest.mark.slow
def test_a_missing_key_is_told_and_can_be_given(browser: Any, tiny_zoo: TinyZoo) -> None:
    with running(tiny_zoo.bundle, "plain", api_keys=("secret",)) as server:
        page = browser.new_page()
        page.goto(server.url)
        page.wait_for_selector("#problem:visible")
        assert "API key" in page.locator("#problem").inner_text()
        page.click("summary")
        page.fill("#key", "secret")
        page.keyboard.press("Tab")
        page.wait_for_function("document.querySelector('#served').textContent.startsWith('tiny')")
        assert page.locator("#problem").is_hidden()
