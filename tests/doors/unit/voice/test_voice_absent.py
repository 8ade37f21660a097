"""The unit door without the extra `voice`."""

from __future__ import annotations

import logging
import sys

import pytest
from engine_parts import make_engine
from unit_parts import serving_unit


@pytest.mark.parametrize("package", ["pocketsphinx", "faster_whisper"])
def test_the_voice_units_are_not_there_and_the_log_says_what_to_install(monkeypatch, caplog, package):
    monkeypatch.setitem(sys.modules, package, None)
    with make_engine() as engine, serving_unit(engine) as door, door.client() as client:
        with caplog.at_level(logging.WARNING, "trivium.unit"):
            for unit in ("kws", "asr", "whisper", "tts", "melotts"):
                for _ in range(2):
                    reply = client.ask("1", unit, "setup", data={})
                    assert reply["error"] == {"code": -9, "message": "unit call false"}
                assert client.ask("1", f"{unit}.1000", "inference", data="x")["error"]["code"] == -4
        assert {model["type"] for model in client.ask("1", "sys", "lsmode")["data"]} == {"llm"}
    assert caplog.text.count("pip install 'trivium[voice]'") == 5
