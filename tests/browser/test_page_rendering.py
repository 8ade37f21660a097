"""What the page makes of the text of a model."""

from __future__ import annotations

import threading

import pytest
from fake_engine import FakeEngine, RoleTemplate
from http_parts import serving
from page_parts import Page, until
from page_texts import HEAVY, HOSTILE, MARKDOWN

pytestmark = pytest.mark.browser


def test_nothing_that_a_model_writes_runs(page, engine):
    engine.say(HOSTILE)
    page.ask("<img src=x onerror=window.hacked=12>")
    for _ in range(2):  # as it streams, and from the storage
        page.one(".answer table")
        assert page.run("return window.hacked") is None
        tags = page.run("return [...new Set([...document.querySelectorAll('#messages *')].map((e) => e.tagName))]")
        assert not {"SCRIPT", "IMG", "IFRAME", "B", "OBJECT"} & set(tags)
        assert not page.run(
            "return [...document.querySelectorAll('#messages *')].flatMap((e) => e.getAttributeNames())"
            ".some((name) => name.startsWith('on'))"
        )
        links = page.run("return [...document.querySelectorAll('#messages a')].map((a) => [a.href, a.rel, a.target])")
        assert [href for href, _, _ in links] == [
            "https://example.com/a",
            "https://example.com/b.png",
            "https://example.com/c",
        ]
        assert {(rel, target) for _, rel, target in links} == {("noopener noreferrer nofollow", "_blank")}
        text = page.one(".answer > .markdown").text
        for shown in ("<script>window.hacked = 1</script>", "<svg onload", "(javascript:window.hacked=5)", "[v](vbscript:x)"):
            assert shown in text
        assert page.one(".answer td strong").text == "bold"
        page.reload()


def test_markdown_becomes_elements(page, engine):
    engine.say(MARKDOWN)
    page.ask("Show me")
    body = ".answer > .markdown"
    assert page.one(f"{body} .h1").text == "Title"
    assert [page.one(f"{body} > p {tag}").text for tag in ("strong", "em", "del", "code")] == [
        "bold",
        "slanted",
        "struck",
        "a*b*c",
    ]
    assert "snake_case_name, 2 * 3 * 4." in page.one(f"{body} > p").text
    assert page.texts(f"{body} > ol > li > ul > li") == ["inner"]
    assert page.one(f"{body} > ol").text.split() == ["first", "inner", "second"]
    assert page.texts(f"{body} pre code") == ['print("hello")  # as it is']
    assert page.texts(f"{body} .code-head span") == ["python"]
    assert page.texts(f"{body} blockquote p") == ["quoted"]
    assert page.texts(f"{body} td.right") == ["1"]
    assert page.texts(f"{body} > ul > li") == ["☑ done"]


def test_code_and_answers_can_be_copied(page, engine):
    page.browser.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]})
    engine.say(MARKDOWN)
    page.ask("Show me")
    page.click(".code button")
    until(lambda: page.one(".code button").text == "Copied")
    assert page.run("return navigator.clipboard.readText()") == 'print("hello")  # as it is'
    page.click(".answer [aria-label='Copy answer']")
    until(lambda: page.run("return navigator.clipboard.readText()") == MARKDOWN)


def test_no_text_holds_up_the_page(page):
    """Texts that cost careless parsers quadratic time or deep recursion, each of a hundred thousand characters."""
    page.browser.execute_async_script(
        """
        const [parts, done] = arguments;
        import("/page/markdown.js").then(({ MarkdownView }) => {
          for (const part of parts) {
            const text = part.repeat(100000 / part.length);
            for (const end of ["", "x", "`*_~)]"]) new MarkdownView(document.createElement("div")).update(text + end);
          }
          done();
        });
        """,
        HEAVY,
    )


def test_a_thought_is_shown_while_it_lasts_and_folded_then(browser):
    gate = threading.Semaphore(0)
    fake = FakeEngine(
        lambda *_: "I weigh *both* sides.</think>Both are fine.",
        gate=gate,
        chat_template=RoleTemplate(),
        reasoning_parser="qwen3",
    )
    with fake as engine, serving(engine) as running:
        page = Page(browser, running.url).fresh()
        page.send("Which?")
        gate.release(15)
        until(lambda: page.all(".thought > .markdown em"))
        assert page.one(".thought summary").text == "Thinking…"
        gate.release(100)
        assert page.answer() == "Both are fine."
        assert page.one(".thought summary").text == "Thought"
        assert page.texts(".thought > .markdown") == ["I weigh both sides."]
        assert not page.all(".thought > .markdown")
        page.click(".thought summary")
        assert page.one(".thought > .markdown").text == "I weigh both sides."
        assert page.errors() == []
