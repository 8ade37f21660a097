"""The page's frame: the strip of the engine, the keyboard, screens, colours."""

from __future__ import annotations

import pytest
from fake_engine import FakeEngine, RoleTemplate
from http_parts import serving
from page_parts import ENTER, ESCAPE, SHIFT, TAB, Page, until
from page_texts import HOSTILE, MARKDOWN

from trivium.doors.http import stats

pytestmark = pytest.mark.browser


def test_the_strip_tells_what_the_engine_does(page, engine):
    until(lambda: page.texts("#strip-model") == [engine.model_info.name])
    until(lambda: page.texts("#strip-running, #strip-waiting, #strip-rate") == ["0", "0", "0"])
    engine.never_end()
    page.send("Go on")
    until(lambda: page.texts("#strip-running") == ["1"] and float(page.texts("#strip-rate")[0]) > 0)
    assert page.texts("#strip-kv") != ["0 %"]
    assert page.run("return document.getElementById('strip-kv-bar').value") > 0
    page.press(ESCAPE)
    until(lambda: page.texts("#strip-running, #strip-kv") == ["0", "0 %"])


def test_a_server_without_statistics_has_no_strip(browser, monkeypatch):
    monkeypatch.setattr(stats, "routes", list)
    with FakeEngine(lambda *_: "Fine.", chat_template=RoleTemplate()) as fake, serving(fake) as running:
        page = Page(browser, running.url).fresh()
        assert page.ask("How are you?") == "Fine."
        until(lambda: not page.all("#strip"))
        assert [entry["source"] for entry in page.errors() if "/stats" not in entry["message"]] == []


def test_the_keyboard_is_enough(page, engine):
    engine.say("Yes.")
    assert page.focused() == "input"
    page.press("one", SHIFT, ENTER)
    page.press("two", ENTER)
    assert page.answer() == "Yes."
    assert page.texts(".bubble") == ["one\ntwo"]
    page.press(TAB)
    assert page.focused() == "submit"
    outline = page.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.press("/")
    assert page.focused() == "input"
    page.press("/")
    assert page.one("#input").get_property("value") == "/"
    reached = set()
    for _ in range(40):
        page.press(TAB)
        reached.add(page.run("return document.activeElement.textContent.trim() || document.activeElement.id"))
    assert {"New chat", "one", "rename", "delete", "settings-open", "Edit", "Regenerate"} <= reached


def test_everything_has_a_name(page, engine):
    engine.say(MARKDOWN)
    page.ask("Show me")
    page.click("#settings-open")
    unnamed = page.run(
        "return [...document.querySelectorAll('button, input, textarea, meter, [role=region]')].filter((e) =>"
        " e.checkVisibility() && !e.getAttribute('aria-label') && !e.textContent.trim() && !e.labels?.length)"
        ".map((e) => e.outerHTML)"
    )
    assert unnamed == []
    ids = page.run("return [...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))


def test_a_phone_shows_one_column(page, engine):
    page.emulate("setDeviceMetricsOverride", width=390, height=780, deviceScaleFactor=2, mobile=True)
    engine.say(MARKDOWN.replace("# as it is", "# as it is, " * 20) + "\n" + "unbroken" * 30)
    page.ask("Show me something wide, and " + "long" * 50)
    assert page.run("return [document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]") == [390, 390, 390]
    assert page.run("return document.getElementById('scroller').scrollWidth <= 390")
    assert page.run("return document.getElementById('strip').scrollWidth <= 390")
    assert not page.all("#sidebar")
    page.click("#sidebar-open")
    page.click("#new-chat")
    assert not page.all("#sidebar")
    assert page.texts(".bubble") == []
    page.click("#settings-open")
    assert page.one("#settings").rect["width"] == 390
    page.field("seed", "1")
    page.press(ESCAPE)
    assert not page.all("#settings")
    page.click("#sidebar-open")
    page.click("#conversations button")
    assert len(page.texts(".bubble")) == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_can_be_read(page, engine, scheme):
    page.scheme(scheme)
    engine.say(MARKDOWN)
    page.ask("Show me")
    page.click("#settings-open")
    dark, worst, where = page.run(
        """
        const parse = (text) => text.match(/[\\d.]+/g).map(Number);
        const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
        const paper = (element) => {
          for (; element; element = element.parentElement) {
            const color = parse(getComputedStyle(element).backgroundColor);
            if (color.length === 3 || color[3] === 1) return color;
          }
        };
        let worst = [99, ""];
        for (const element of document.querySelectorAll("body *")) {
          if (!element.checkVisibility() || ![...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
          const [one, other] = [light(parse(getComputedStyle(element).color)), light(paper(element))].sort((a, b) => b - a);
          const contrast = (one + 0.05) / (other + 0.05);
          if (contrast < worst[0]) worst = [contrast, element.outerHTML.slice(0, 80)];
        }
        return [light(paper(document.body)) < 0.1, ...worst];
        """
    )
    assert dark == (scheme == "dark")
    assert worst >= 4.5, where


def test_nothing_comes_from_elsewhere(page, engine):
    engine.say(HOSTILE)
    page.ask("Hello")
    addresses = page.run("return performance.getEntriesByType('resource').map((e) => e.name)")
    assert len(addresses) > 10
    assert [address for address in addresses if not address.startswith(page.url + "/")] == []
