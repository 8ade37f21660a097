"""The page in a real Chromium, and an engine that says what a test wants."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trivium.engine.native_engine import NativeEngine
from trivium.engine.outputs import OutputSink
from trivium.engine.request import GenerationRequest
from trivium.engine.sampling import GuidedOptions, SamplingOptions

if TYPE_CHECKING:
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

CONTROL, SHIFT, ALT = "\ue009", "\ue008", "\ue00a"
ENTER, ESCAPE, TAB, UP, DOWN = "\ue007", "\ue00c", "\ue004", "\ue013", "\ue015"
PATIENCE = 30.0  # seconds until something that must happen has not


class SteeredEngine:
    """A real engine whose requests are changed on their way in; `seen` keeps what the door asked for."""

    def __init__(self, engine: NativeEngine) -> None:
        self._engine = engine
        self.seen: list[GenerationRequest] = []
        self.change: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, requests: Sequence[GenerationRequest], sink: OutputSink) -> None:
        self.seen += requests
        self._engine.submit([replace(r, sampling=replace(r.sampling, **self.change)) for r in requests], sink)

    @property
    def last(self) -> SamplingOptions:
        return self.seen[-1].sampling

    @property
    def last_prompt(self) -> str:
        return self.tokenizer.decode(self.seen[-1].prompt_token_ids, skip_special_tokens=False)

    def say(self, text: str) -> None:
        """From now on every answer is this text, token by token."""
        self.change = {"guided": GuidedOptions(choice=(text,)), "stop": (), "max_tokens": None}

    def never_end(self) -> None:
        """From now on answers go on until they are stopped."""
        self.change = {"ignore_eos": True, "max_tokens": None}

    def speak_freely(self) -> None:
        self.change = {}
        self.seen.clear()

    def idle(self) -> bool:
        stats = self.stats()
        return (stats.running, stats.waiting, stats.used_blocks) == (0, 0, 0)


@contextlib.contextmanager
def chromium() -> Iterator[Chrome]:
    """A headless Chromium with a profile of its own."""
    from selenium import webdriver  # only where browser tests run is it installed

    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--window-size=1280,800"):
        options.add_argument(argument)
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert binary is not None, "chromium is not installed"
    assert driver is not None, "chromedriver is not installed (Debian: chromium-driver)"
    options.binary_location = binary
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(driver))
    try:
        browser.set_script_timeout(PATIENCE)
        browser.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
        yield browser
    finally:
        browser.quit()


def until(what: Callable[[], Any], told: str = "") -> Any:
    """What is awaited, once it is true."""
    deadline = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < deadline, told or "it did not happen"
        time.sleep(0.02)
    return found


class Page:
    """What a user sees and does."""

    def __init__(self, browser: Chrome, url: str) -> None:
        self.browser = browser
        self.url = url

    def open(self) -> Page:
        self.browser.get(self.url + "/")
        return self

    def fresh(self) -> Page:
        """Opened without anything that it kept."""
        self.open()
        self.run("localStorage.clear(); sessionStorage.clear()")
        self.reload()
        return self

    def reload(self) -> None:
        self.browser.refresh()

    def run(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def all(self, selector: str) -> list[WebElement]:
        """Elements that are shown."""
        return [element for element in self.browser.find_elements("css selector", selector) if element.is_displayed()]

    def one(self, selector: str) -> WebElement:
        found: WebElement = until(lambda: self.all(selector), f"no {selector}")[0]
        return found

    def texts(self, selector: str) -> list[str]:
        return self.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)  # type: ignore[no-any-return]

    def click(self, selector: str) -> None:
        self.one(selector).click()

    def press(self, *keys: str) -> None:
        """Keys to what has the focus; the last with the others held down."""
        self.browser.switch_to.active_element.send_keys("".join(keys))

    def focused(self) -> str:
        """The id of what has the focus."""
        return self.run("return document.activeElement.id")  # type: ignore[no-any-return]

    def send(self, text: str) -> None:
        self.one("#input").send_keys(text + ENTER)

    def ask(self, text: str) -> str:
        """Send, and wait for the end of the answer."""
        before = len(self.texts(".answer"))
        self.send(text)
        until(lambda: len(self.texts(".answer")) > before)
        return self.answer()

    def answer(self) -> str:
        """The last answer, once it has ended."""
        until(lambda: not self.answering(), "the answer does not end")
        return self.texts(".answer > .markdown")[-1]

    def answering(self) -> bool:
        return self.run("return document.body.classList.contains('answering')")  # type: ignore[no-any-return]

    def answered_so_far(self) -> str:
        return (self.texts(".answer > .markdown") or [""])[-1]

    def facts(self) -> list[str]:
        return self.texts(".answer:last-child .facts span")

    def field(self, name: str, value: str) -> None:
        """Fill in a setting."""
        element = self.one(f"#setting-{name}")
        element.clear()
        element.send_keys(value)

    def conversations(self) -> list[str]:
        return self.texts("#conversations button > span")

    def kept(self) -> list[dict[str, Any]]:
        """The conversations in the browser's storage."""
        script = "return Object.keys(localStorage).filter((k) => k.startsWith('trivium.chat.')).map((k) => localStorage[k])"
        return [json.loads(text) for text in self.run(script)]

    def emulate(self, method: str, **parameters: Any) -> None:
        self.browser.execute_cdp_cmd(f"Emulation.{method}", parameters)

    def scheme(self, name: str) -> None:
        """Light or dark."""
        self.emulate("setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def errors(self) -> list[dict[str, Any]]:
        """Errors on the console since the last call."""
        return [entry for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE"]
