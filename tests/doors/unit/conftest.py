"""Fixtures for tests of the bus."""

from __future__ import annotations

import shutil
import tempfile

import pytest
import zmq
from bus_parts import SPEECH, Caller, remote
from engine_parts import make_engine
from unit_parts import serving_unit


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
    with make_engine() as engine, serving_unit(engine, unit_bus=bus, unit_without=SPEECH) as door:
        yield door


@pytest.fixture
def caller(door):
    with Caller(remote(door).url) as caller:
        yield caller
