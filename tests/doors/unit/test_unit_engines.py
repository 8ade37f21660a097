"""Models by the names that devices use."""

from __future__ import annotations

import gc
import logging
import threading
import weakref

import pytest
from engine_parts import make_engine, start_engine
from unit_parts import serving_unit, wait_until

from trivium.errors import ModelNotFoundError


class Loader:
    """Makes fake engines, and keeps what it made."""

    def __init__(self):
        self.configs = []
        self.engines = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, config):
        self.configs.append(config)
        if config.model == "broken":
            raise ModelNotFoundError("the file of 'broken' is not there")
        assert self.gate.wait(20)
        engine = start_engine()
        self.engines.append(engine)
        return engine

    def running(self):
        return [engine for engine in self.engines if engine._loop._thread.is_alive()]


@pytest.fixture
def loader():
    return Loader()


@pytest.fixture
def door(loader):
    names = ["qwen2.5-0.5B-prefill-20e=fake", "qwen2.5-0.5b=smollm2", "other=smollm2", "bad=broken", "file=/models/x.gguf"]
    with make_engine() as engine, serving_unit(engine, load=loader, unit_models=names) as door:
        yield door


def test_the_servers_own_model_is_never_loaded_again(door, loader):
    with door.client() as client:
        for name in ("fake", "qwen2.5-0.5B-prefill-20e"):
            task = client.set_up(model=name)
            assert client.ask("t", task, "taskinfo")["data"]["model"] == name
            client.ask("e", task, "exit")
    assert loader.configs == []


def test_other_models_are_loaded_once_shared_and_freed_with_the_last_task(door, loader):
    with door.client() as client:
        # smollm2 is the model of the fake engine's configuration, too: by that name it is the server's own.
        tasks = [client.set_up(model="file"), client.set_up(model="file")]
        assert [config.model for config in loader.configs] == ["/models/x.gguf"]
        assert len(loader.running()) == 1
        client.infer(tasks[1], "hello")
        assert client.answer()[1][-1]["error"]["code"] == 0
        client.ask("e", tasks[0], "exit")
        client.infer(tasks[1], "hello")
        client.answer()
        client.ask("e", tasks[1], "exit")
        wait_until(lambda: not loader.running())
        task = client.set_up(model="file")
        assert len(loader.configs) == 2
        client.infer(task, "x" * 200)
        client.ask("r", "sys", "reset")  # while it answers, or has answered
        wait_until(lambda: not loader.running())


def test_two_setups_at_once_load_once(door, loader):
    with door.client() as first, door.client() as second:
        data = {"model": "file", "response_format": "f", "enoutput": True, "prompt": ""}
        for client in (first, second):
            client.send("s", "llm", "setup", data=data)
        assert {client.receive()["error"]["code"] for client in (first, second)} == {0}
    assert len(loader.configs) == 1


def test_the_server_frees_what_tasks_still_hold_at_its_end(loader):
    with make_engine() as engine, serving_unit(engine, load=loader, unit_models=["file=/x"]) as door, door.client() as client:
        client.set_up(model="file")
    assert loader.running() == []


def test_a_model_that_cannot_be_loaded_is_an_error_and_may_be_tried_again(door, loader, caplog):
    with door.client() as client, caplog.at_level(logging.WARNING, "trivium.unit"):
        for _ in range(2):
            reply = client.ask(
                "s", "llm", "setup", data={"model": "bad", "response_format": "f", "enoutput": True, "prompt": ""}
            )
            assert reply["error"] == {"code": -5, "message": "Model loading failed. the file of 'broken' is not there"}
        assert client.ask("t", "llm", "taskinfo")["data"] == []
    assert len(loader.configs) == 2
    assert "broken" in caplog.text


def test_names_are_listed_with_what_the_configuration_adds(door):
    with door.client() as client:
        models = [model["mode"] for model in client.ask("1", "sys", "lsmode")["data"] if model["type"] == "llm"]
    assert models == ["fake", "smollm2", "qwen2.5-0.5B-prefill-20e", "qwen2.5-0.5b", "other", "bad", "file"]


def test_a_default_stands_for_all_unknown_names(loader):
    with make_engine() as engine, serving_unit(engine, load=loader, unit_default_model="fake") as door, door.client() as client:
        task = client.set_up(model="whatever the device asks for")
        assert client.ask("t", task, "taskinfo")["data"]["model"] == "whatever the device asks for"
    assert loader.configs == []


def test_a_setup_under_way_when_the_server_ends_is_answered_and_its_model_freed(loader):
    with make_engine() as engine, serving_unit(engine, load=loader, unit_models=["file=/models/x.gguf"]) as door:
        client = door.client()
        loader.gate.clear()
        settings = {"model": "file", "response_format": "llm.utf-8", "enoutput": True, "prompt": ""}
        client.send("s", "llm", "setup", data=settings)
        wait_until(lambda: loader.configs)
        door.loop.call_soon_threadsafe(threading.Timer(0.2, loader.gate.set).start)
    reply = client.receive()
    assert (reply["request_id"], reply["error"]["code"]) == ("s", -5)
    client.close()
    assert len(loader.engines) == 1
    assert not loader.running()


def test_a_setup_after_an_engine_has_died_loads_a_fresh_one(door, loader, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    with door.client() as client:
        tasks = [client.set_up(model="file") for _ in range(2)]
        kill(loader.engines[0], client, tasks)
        client.infer(tasks[1], "hello")
        assert_failed(client)

        fresh = [client.set_up(model="file") for _ in range(2)]
        assert len(loader.engines) == 2
        for task in fresh:
            client.infer(task, "hello")
            assert client.answer()[1][-1]["error"]["code"] == 0
        client.infer(tasks[0], "hello")  # still on the dead one
        assert_failed(client)

        freed = weakref.ref(loader.engines.pop(0))
        for task in tasks:
            assert freed() is not None
            client.ask("e", task, "exit")
        wait_until(lambda: gc.collect() >= 0 and freed() is None)
        client.infer(fresh[0], "hello")
        assert client.answer()[1][-1]["error"]["code"] == 0
        assert client.set_up(model="file")
    assert len(loader.configs) == 2


def kill(engine, client, tasks):
    """Have an engine's thread die while two tasks are answered, and a text waits behind the first."""
    engine.native.gate.clear()
    for i, task in enumerate([tasks[0], tasks[0], tasks[1]]):
        client.infer(task, "hello", str(i))
    wait_until(lambda: engine.stats().running + engine.stats().waiting == 2)
    engine.native.fault = SystemExit()  # what no step survives
    engine.native.gate.set()
    for _ in range(3):
        assert_failed(client)
    wait_until(lambda: not engine._loop._thread.is_alive())


def assert_failed(client):
    """The next frames are an answer that ended with an error."""
    error = client.answer()[1][-1]["error"]
    assert error["code"] == -11
    assert error["message"].startswith("Model run failed. ")


def test_a_setup_of_a_dead_engine_that_is_the_servers_own_is_refused(loader):
    with make_engine() as engine, serving_unit(engine, load=loader) as door, door.client() as client:
        engine.shutdown()
        settings = {"model": "fake", "response_format": "llm.utf-8", "enoutput": True, "prompt": ""}
        reply = client.ask("s", "llm", "setup", data=settings)
        assert reply["error"] == {"code": -5, "message": "Model loading failed. The engine has been shut down."}
