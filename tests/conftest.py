"""Fixtures that several folders share."""

from __future__ import annotations

import signal

import pytest

from trivium.errors import ModelLoadError
from trivium.models.catalogue import resolve_model

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell starts a script's background jobs like that, and programs that the tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def smollm2() -> str:
    """Path of the real model; `make test` has fetched it before, the tests themselves use no network."""
    try:
        return str(resolve_model("smollm2", download=False))
    except ModelLoadError as error:
        pytest.fail(f"{error}\nRun `trivium pull smollm2` (or `make test`) once: the tests fetch nothing themselves.")
