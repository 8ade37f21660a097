"""How long the soak tests run."""

from __future__ import annotations

import pytest


def pytest_addoption(parser):
    parser.addoption("--soak-short", action="store_true", help="run the soak tests for about a minute")


@pytest.fixture(scope="session")
def is_short(request):
    """Whether the short form is wanted."""
    return request.config.getoption("--soak-short", default=False)
