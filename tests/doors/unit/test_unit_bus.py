"""Units in other processes that join over ZeroMQ."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq
from engine_parts import make_engine
from fake_native import continuation
from unit_parts import serving_unit, wait_until

UNIT = Path(__file__).with_name("joining_unit.py")


@pytest.fixture
def folder():
    """A folder whose path is short enough for sockets."""
    path = tempfile.mkdtemp(prefix="bus")
    yield path
    shutil.rmtree(path)


@pytest.fixture(params=["folder", "tcp"])
def bus(request):
    if request.param == "folder":
        return request.getfixturevalue("folder")
    with zmq.Context() as context, context.socket(zmq.REP) as probe:
        port = probe.bind_to_random_port("tcp://127.0.0.1")
    return f"tcp://127.0.0.1:{port}"


@pytest.fixture
def door(bus):
    with make_engine() as engine, serving_unit(engine, unit_bus=bus) as door:
        yield door


@contextmanager
def unit(bus, name):
    """A unit that has joined."""
    process = subprocess.Popen([sys.executable, UNIT, bus, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
        if process.poll() is None:
            process.stdin.close()
            assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_a_unit_is_set_up_asked_and_ends(bus, door):
    with unit(bus, "echo"), door.client() as client:
        work_id = client.set_up("echo", response_format="echo.utf-8.stream")
        assert work_id == "echo.1000"
        client.infer(work_id, "hello {world}")
        assert client.answer()[0] == "hello {world}"
        assert client.ask("t", "echo", "taskinfo")["data"] == [work_id]
        assert client.ask("x", work_id, "exit")["error"]["code"] == 0
        assert client.ask("y", work_id, "exit")["error"]["code"] == -6
        client.infer(work_id, "anyone?")
        assert client.receive()["error"]["code"] == -4
