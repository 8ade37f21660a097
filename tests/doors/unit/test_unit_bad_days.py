"""Setups that would cost the server much."""

from __future__ import annotations

import pytest
from engine_parts import make_engine
from unit_parts import serving_unit

SETTINGS = {"model": "fake", "response_format": "llm.utf-8", "enoutput": True, "prompt": ""}


@pytest.fixture(scope="module")
def door():
    with make_engine() as engine, serving_unit(engine) as door:
        yield door


def test_a_setup_has_so_many_inputs_at_most(door):
    """Each that is missing is a line in the log, and taskinfo lists them all."""
    with door.client() as client:
        reply = client.ask("s", "llm", "setup", data=SETTINGS | {"input": ["asr.1"] * 65})
        assert reply["error"]["code"] == -5
        assert "input must be a string or an array of at most 64 strings, got ['asr.1'," in reply["error"]["message"]
        task = client.set_up(input=["asr.1"] * 64)
        assert len(client.ask("t", task, "taskinfo")["data"]["inputs"]) == 64
        client.ask("e", task, "exit")


def test_null_is_no_input(door):
    with door.client() as client:
        task = client.set_up(input=None)
        assert client.ask("t", task, "taskinfo")["data"]["inputs"] == []
        client.ask("e", task, "exit")
