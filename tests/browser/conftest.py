"""One browser and one server for all tests of the page."""

from __future__ import annotations

import pytest
from http_parts import serving
from page_parts import Page, SteeredEngine, chromium

from trivium.config import EngineConfig
from trivium.engine.native_engine import NativeEngine


@pytest.fixture(scope="session")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def model(smollm2):
    with NativeEngine.load(EngineConfig(model=smollm2, max_model_len=2048)) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def shared_server(model):
    with serving(SteeredEngine(model)) as running:
        yield running


@pytest.fixture
def engine(shared_server):
    shared_server.engine.speak_freely()
    return shared_server.engine


@pytest.fixture
def page(browser, shared_server):
    """A fresh page; at the end the console must hold no error that the test did not take."""
    opened = Page(browser, shared_server.url).fresh()
    opened.errors()
    yield opened
    assert opened.errors() == []
    opened.emulate("clearDeviceMetricsOverride")
    opened.scheme("light")
