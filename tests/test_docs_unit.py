"""docs/unit.md: its conversations take place, its programs run, its tables are complete."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import fields
from pathlib import Path

import pytest
from unit_parts import serving_unit, wait_until

from trivium.config import EngineConfig
from trivium.doors.unit.config import UnitConfig
from trivium.doors.unit.errors import Code
from trivium.engine.native_engine import NativeEngine

PAGE = (Path(__file__).parents[1] / "docs" / "unit.md").read_text()


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.S | re.M)


CONVERSATIONS = [block for block in blocks("text") if block.startswith("> ")]
CLIENT, UNIT = blocks("python")


@pytest.fixture(scope="module")
def engine(smollm2):
    with NativeEngine.load(EngineConfig(model=smollm2, served_model_name="smollm2", max_model_len=2048)) as engine:
        yield engine


@pytest.fixture
def door(engine):
    folder = tempfile.mkdtemp(prefix="bus")
    with serving_unit(engine, unit_bus=folder) as door:
        door.folder = folder
        yield door
    shutil.rmtree(folder)


def hold(client, conversation):
    """Send what stands there, and see that what comes back is of the same form: the text of answers is the model's."""
    for line in conversation.splitlines():
        message = json.loads(line[2:])
        if line.startswith("> "):
            client.send_bytes(json.dumps(message).encode())
            continue
        if is_piece(message):
            continue
        frames = [client.receive()]
        while is_piece(frames[-1]):
            frames.append(client.receive())
        last = frames[-1]
        assert list(last) == list(message)
        for name in ("error", "object", "request_id", "work_id"):
            assert last[name] == message[name]
        if is_stream(message):
            assert last["data"] == {"delta": "", "finish": True, "index": len(frames) - 1}
        else:
            assert last["data"] == message["data"]


def is_stream(frame):
    return isinstance(frame["data"], dict) and "finish" in frame["data"]


def is_piece(frame):
    return is_stream(frame) and not frame["data"]["finish"]


def test_the_conversation(door):
    with door.client() as client:
        hold(client, CONVERSATIONS[0])


def test_the_client(door, capsys):
    code = CLIENT.replace("10001", str(door.port))
    assert code != CLIENT
    exec(compile(code, "unit.md", "exec"), {"__name__": "__main__"})
    assert len(capsys.readouterr().out) > 20
    assert door.num_tasks == 0


def test_the_unit(door, tmp_path):
    code = UNIT.replace("/tmp/trivium", door.folder)
    assert code != UNIT
    assert len([line for line in code.splitlines() if line]) <= 42
    program = tmp_path / "loud.py"
    program.write_text(code)
    process = subprocess.Popen([sys.executable, program])
    try:
        wait_until(lambda: Path(door.folder, "rpc.loud").exists())
        with door.client() as client, door.client() as owner:
            client.set_up("llm", model="smollm2", max_token_len=12, enoutput=False)
            hold(owner, CONVERSATIONS[1])
            owner.close()
            client.ask("x", "llm.1000", "exit")
    finally:
        process.kill()
        process.wait()


def test_the_table_of_options_is_complete():
    told = dict(re.findall(r"^\| `(--unit[a-z-]*)[^`]*` \| (\S*?) \|", PAGE, re.M))
    names = [field.name for field in fields(UnitConfig)]
    assert list(told) == [f"--{name.replace('_', '-')}" for name in names]
    assert told.pop("--unit") == "on"
    for default, name in zip(told.values(), names[1:], strict=True):
        assert default == (f"`{UnitConfig.default(name)}`" if UnitConfig.default(name) else "")


def test_the_table_of_codes_is_complete():
    told = {int(code) for code in re.findall(r"^\| (-?[0-9]+) \|", PAGE, re.M)}
    assert told == {0, *map(int, Code)}
