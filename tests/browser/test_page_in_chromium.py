"""The page as its users meet it: a real Chromium, a real server, the real model."""

from __future__ import annotations

import pytest
from http_parts import serving
from page_parts import ALT, CONTROL, DOWN, ENTER, ESCAPE, UP, Page, SteeredEngine, until
from page_texts import LONG

pytestmark = pytest.mark.browser

# Answers


def test_an_answer_appears_while_it_is_made(page, engine):
    engine.say(LONG)
    page.run(
        "window.lengths = new Set();"
        "new MutationObserver(() => lengths.add(document.querySelector('.answer > .markdown')?.textContent.length ?? 0))"
        ".observe(document.getElementById('messages'), {subtree: true, childList: true, characterData: true})"
    )
    assert page.ask("Tell me words") == LONG
    assert page.run("return lengths.size") > 5
    assert page.texts(".question .bubble") == ["Tell me words"]
    rate, first, tokens, prompt = page.facts()
    assert float(rate.removesuffix(" tokens/s")) > 0
    assert first.startswith("first token after ")
    assert int(tokens.removesuffix(" tokens")) > 60
    assert prompt.startswith("prompt ")
    assert "Answer complete" in page.texts("#status")[0]


def test_the_model_itself_answers_and_is_told_what_was_said(page, engine):
    page.click("#settings-open")
    page.field("temperature", "0")
    page.field("max_tokens", "24")
    first = page.ask("What is the capital of France?")
    assert len(first) > 20
    page.ask("And of Italy?")
    for said in ("capital of France", first.strip()[:20], "And of Italy"):
        assert said in engine.last_prompt


@pytest.mark.parametrize("way", ["button", "escape"])
def test_stopping_ends_the_answer_and_frees_its_place(page, engine, way):
    engine.never_end()
    page.send("Go on for ever")
    until(lambda: len(page.answered_so_far()) > 20)
    assert engine.stats().running == 1
    page.click("#submit") if way == "button" else page.press(ESCAPE)
    so_far = page.answer()
    until(engine.idle, "the engine still works for a reader who has gone")
    assert page.facts()[0] == "stopped"
    assert page.facts()[1].startswith("about ")
    assert page.answer() == so_far
    engine.say("Here I am.")
    assert page.ask("And now?") == "Here I am."


def test_asking_again_and_asking_otherwise(page, engine):
    engine.say("One.")
    page.ask("first")
    engine.say("Two.")
    page.click(".answer:last-child .tools button:last-child")
    until(lambda: page.answer() == "Two.")
    engine.say("Three.")
    page.press(UP)
    page.press(" changed", ENTER)
    until(lambda: page.answer() == "Three.")
    assert page.texts(".bubble") == ["first changed"]
    assert "first changed" in engine.last_prompt
    assert "One." not in engine.last_prompt
    page.press(UP)
    page.press("dropped", ESCAPE)
    assert page.texts(".bubble") == ["first changed"]


def test_a_cut_answer_says_so(page, engine):
    page.click("#settings-open")
    page.field("max_tokens", "3")
    engine.change = {"ignore_eos": True}
    page.ask("Hello")
    assert "cut at the token limit" in page.facts()
    assert "3 tokens" in page.facts()


# What goes wrong


def test_a_server_that_has_gone_is_told_and_can_be_tried_again(browser, model):
    engine = SteeredEngine(model)
    with serving(engine) as running:
        port = running.port
        page = Page(browser, running.url).fresh()
    page.send("Anyone?")
    assert "cannot be reached" in page.one(".failure").text
    until(lambda: page.texts("#strip-model") == ["no server"])
    assert page.errors()
    engine.say("Back again.")
    with serving(engine, port=port):
        page.click(".failure button")
        until(lambda: page.answered_so_far() == "Back again.")
        page.answer()
        assert not page.all(".failure")
        assert page.texts(".bubble") == ["Anyone?"]
        page.errors()


def test_a_refusal_is_shown_in_the_servers_words(page, engine):
    page.run("arguments[0].value = 'much '.repeat(5000)", page.one("#input"))
    page.press(ENTER)
    assert "2048" in page.one(".failure").text
    assert [entry["source"] for entry in page.errors()] == ["network"]
    engine.say("Short is fine.")
    page.press(UP)
    page.run("document.activeElement.value = ''")
    page.press("short", ENTER)
    until(lambda: page.answered_so_far() == "Short is fine.")


def test_an_answer_that_fails_halfway_keeps_what_came(page, engine):
    engine.never_end()
    page.send("Go on")
    until(lambda: len(page.answered_so_far()) > 20)
    engine.abort([engine.seen[-1].request_id])
    assert page.one(".failure").text
    assert len(page.answer()) > 20
    engine.say("Whole.")
    page.click(".failure button")
    until(lambda: page.answer() == "Whole.")


def test_a_full_storage_is_told_and_the_chat_goes_on(page, engine):
    page.run(
        "const put = (text) => { for (let i = 0; ; i++) localStorage.setItem(`full.${text.length}.${i}`, text) };"
        "for (const size of [100000, 1000, 1]) try { put('x'.repeat(size)) } catch {}"
    )
    engine.say("Still here.")
    assert page.ask("Hello?") == "Still here."
    assert "storage is full" in page.one("#notice").text
    page.run("localStorage.clear()")
    assert page.ask("And again?") == "Still here."
    assert [len(conversation["messages"]) for conversation in page.kept()] == [4]


# Conversations


def test_a_reload_keeps_what_was_said(page, engine):
    engine.say("Remember **this**.")
    page.ask("Hello")
    facts = page.facts()
    page.reload()
    assert page.one(".answer strong").text == "this"
    assert page.texts(".bubble") == ["Hello"]
    assert page.facts() == facts
    engine.say("More.")
    page.ask("Go on")
    assert "Remember **this**." in engine.last_prompt


def test_a_reload_in_the_middle_keeps_half_and_frees_the_engine(page, engine):
    engine.never_end()
    page.send("For ever")
    until(lambda: len(page.answered_so_far()) > 20)
    page.reload()
    until(engine.idle)
    assert len(page.one(".answer > .markdown").text) > 20
    assert page.facts()[0] == "stopped"


def test_several_conversations(page, engine):
    engine.say("To the first.")
    page.ask("First question")
    page.press(CONTROL, "k")
    until(lambda: page.texts(".bubble") == [])
    engine.say("To the second.")
    page.ask("Second question")
    assert page.conversations() == ["Second question", "First question"]
    assert "First" not in engine.last_prompt
    page.press(ALT, DOWN)
    assert page.answer() == "To the first."
    page.click("#conversations li:first-child button")
    assert page.answer() == "To the second."
    page.click("#rename")
    page.press(CONTROL, "a")
    page.press("Another name", ENTER)
    page.reload()
    assert page.one("#title").text == "Another name"
    assert page.conversations() == ["Another name", "First question"]
    page.click("#delete")
    assert page.conversations() == ["First question"]
    assert [conversation["title"] for conversation in page.kept()] == ["First question"]
    page.click("#notice-action")
    assert page.answer() == "To the second."
    assert len(page.kept()) == 2


def test_an_answer_goes_on_while_another_conversation_is_shown(page, engine):
    engine.never_end()
    page.send("For ever")
    until(lambda: len(page.answered_so_far()) > 20)
    page.press(CONTROL, "k")
    engine.say("Beside it.")
    assert page.ask("Quick one") == "Beside it."
    assert engine.stats().running == 1
    assert len(page.all("#conversations .dot")) == 1
    page.click("#conversations li:last-child button")
    before = len(page.answered_so_far())
    until(lambda: len(page.answered_so_far()) > before)
    page.click("#delete")
    until(engine.idle)
    assert page.conversations() == ["Quick one"]


def test_two_tabs_see_the_same_conversations(page, engine):
    first = page.browser.current_window_handle
    page.browser.switch_to.new_window("tab")
    page.open()
    engine.say("In the other tab.")
    page.ask("From here")
    page.browser.close()
    page.browser.switch_to.window(first)
    until(lambda: page.conversations() == ["From here"])
    page.click("#conversations button")
    assert page.answered_so_far() == "In the other tab."


# Settings


def test_settings_reach_the_engine_and_stay(page, engine):
    page.click("#settings-open")
    numbers = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.05,
        "max_tokens": 5,
        "seed": 42,
        "repetition_penalty": 1.1,
        "presence_penalty": -0.5,
        "frequency_penalty": 0.25,
    }
    for name, value in numbers.items():
        page.field(name, str(value))
    page.field("system", "You are a parrot.")
    page.field("stop", "END\nSTOP")
    page.ask("Hello")
    assert {name: getattr(engine.last, name) for name in numbers} == numbers
    assert engine.last.stop == ("END", "STOP")
    assert "You are a parrot." in engine.last_prompt
    page.reload()
    page.click("#settings-open")
    assert page.one("#setting-temperature").get_property("value") == "0.5"
    page.click("#new-chat")
    page.ask("Hello again")
    assert engine.last.seed == 42
    page.click("#settings-reset")
    page.ask("And again")
    assert engine.last.seed is None
    assert "You are a parrot." in engine.last_prompt


def test_a_wrong_setting_is_told_before_anything_is_sent(page, engine):
    page.click("#settings-open")
    page.field("temperature", "7")
    assert "2" in page.one("#setting-temperature-problem").text
    assert page.one("#setting-temperature").get_attribute("aria-invalid") == "true"
    page.click("#settings-close")
    page.send("Hello")
    until(lambda: page.focused() == "setting-temperature")
    assert engine.seen == []
    page.field("temperature", "1.5")
    engine.say("Hello.")
    page.one("#input").send_keys(ENTER)
    page.answer()
    assert engine.last.temperature == 1.5


# The key


def test_a_guarded_server_asks_for_its_key(browser, model):
    engine = SteeredEngine(model)
    engine.say("Come in.")
    with serving(engine, api_key=["open sesame"]) as running:
        page = Page(browser, running.url).fresh()
        page.one("#key-dialog")
        assert page.texts("#strip-model") == ["key needed"]
        page.press("wrong", ENTER)
        assert page.one("#key-problem").text == "That key was not accepted."
        page.press("open sesame", ENTER)
        until(lambda: not page.all("#key-dialog"))
        assert page.ask("Hello") == "Come in."
        until(lambda: page.texts("#strip-model") == [engine.model_info.name])
        assert page.run("return [sessionStorage['trivium.key'], localStorage['trivium.key']]") == ["open sesame", None]

        page.click("#key-forget")
        page.send("Still there?")
        page.one("#key-dialog")
        page.press(ESCAPE)
        assert "API key" in page.one(".failure").text
        page.click(".failure button")
        page.one("#key-dialog")
        page.click("#key-remember")
        page.one("#key-input").send_keys("open sesame" + ENTER)
        until(lambda: page.answer() == "Come in." and not page.all(".failure"))
        assert page.run("return [sessionStorage['trivium.key'], localStorage['trivium.key']]") == [None, "open sesame"]
        page.reload()
        assert page.ask("After a reload") == "Come in."
        assert {entry["source"] for entry in page.errors()} == {"network"}  # the browser notes each 401
