"""Fixtures of the command line's tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def source(tmp_path):
    """Where a batch is read from."""
    return tmp_path / "in.jsonl"


@pytest.fixture
def target(tmp_path):
    """Where its results go."""
    return tmp_path / "out.jsonl"
