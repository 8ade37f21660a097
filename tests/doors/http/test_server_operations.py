"""What operators ask for, and the port that only they reach."""

from __future__ import annotations

import time

import pytest
from bad_days_parts import Client, head, post, wait_for
from engine_parts import make_engine
from http_parts import can_connect, serving

import trivium

INFER = {"inputs": "hello", "parameters": {"max_new_tokens": 4}}


@pytest.fixture
def engine():
    with make_engine() as running:
        yield running


def ask(port, path, *lines, method="GET"):
    with Client(port) as client:
        return client.send(head(path, *lines, method=method)).answer(method)


def test_of_a_server_that_is_well(engine):
    with serving(engine) as server:
        assert ask(server.port, "/health").json() == {"status": "ok"}
        assert ask(server.port, "/ready").json() == {"status": "ready"}
        assert ask(server.port, "/version").json() == {"version": trivium.__version__}
        metrics = ask(server.port, "/metrics")
        assert metrics.headers["content-type"].startswith("text/plain; version=")
        assert b"trivium:num_requests_running" in metrics.body
        for path in ("/v2/health/live", "/v2/health/ready"):
            answer = ask(server.port, path)
            assert (answer.status, answer.body) == (200, b"")


def test_an_engine_that_hangs(engine, monkeypatch):
    monkeypatch.setattr("trivium.doors.http.operations._HANG_SECONDS", 0.1)
    with serving(engine) as server, Client(server.port) as client:
        time.sleep(0.15)
        assert ask(server.port, "/health").json() == {"status": "ok"}  # it has nothing to do
        engine.native.gate.clear()
        client.send(post("/infer", INFER))
        wait_for(lambda: engine.stats().running, "the request's start")
        assert ask(server.port, "/health").json() == {"status": "ok"}  # only just asked for
        time.sleep(0.15)
        answer = ask(server.port, "/health")
        assert (answer.status, answer.json()) == (503, {"status": "hanging"})
        assert ask(server.port, "/v2/health/live").status == 503
        engine.native.gate.set()
        assert client.answer().status == 200
        assert ask(server.port, "/health").status == 200


def test_stop_routes_are_not_on_the_business_port(engine):
    with serving(engine) as server:
        assert ask(server.port, "/stopService").status == 404
        assert ask(server.port, "/shutdown", method="POST").status == 404


def test_a_management_port_has_the_operators_routes_alone(engine):
    with serving(engine, management_port=0) as server:
        for path in ("/health", "/ready", "/v2/health/live", "/v2/health/ready", "/version", "/metrics"):
            assert ask(server.management_port, path).status == 200, path
            assert ask(server.port, path).status == 404, path
        for path in ("/", "/stats"):
            assert ask(server.management_port, path).status == 404, path
            assert ask(server.port, path).status == 200, path
        with Client(server.management_port) as client:
            assert client.send(post("/infer", INFER)).answer().status == 404


@pytest.mark.parametrize(("path", "method"), [("/stopService", "GET"), ("/shutdown", "POST")])
def test_stop_lets_running_work_finish(engine, path, method):
    with serving(engine, management_port=0) as server, Client(server.port) as client:
        engine.native.gate.clear()
        client.send(post("/infer", INFER))
        wait_for(lambda: engine.stats().running, "the request's start")
        assert ask(server.management_port, path, method=method).json() == {"status": "stopping"}
        again = ask(server.management_port, path, method=method)
        assert (again.status, again.json()["error"]["message"]) == (500, "the server is being stopped already")
        with Client(server.port) as late:
            assert late.send(post("/infer", INFER)).answer().status == 503
        engine.native.gate.set()
        assert client.answer().status == 200
        wait_for(lambda: not can_connect(server.port), "the end")


def test_a_forced_stop_waits_less(engine, monkeypatch):
    monkeypatch.setattr("trivium.doors.http.operations._FORCED_SECONDS", 0.1)
    with serving(engine, management_port=0, shutdown_timeout=1000) as server, Client(server.port) as client:
        engine.native.gate.clear()
        client.send(post("/infer", INFER))
        wait_for(lambda: engine.stats().running, "the request's start")
        assert ask(server.management_port, "/stopService?mode=force").status == 400
        assert ask(server.management_port, "/stopService?mode=Force").status == 200
        time.sleep(0.2)
        engine.native.gate.set()
        assert client.answer().status == 503


def test_no_page_of_another_site_can_stop_it(engine):
    with serving(engine, management_port=0) as server:
        for site in ("cross-site", "same-site"):
            assert ask(server.management_port, "/stopService", f"Sec-Fetch-Site: {site}").status == 403
        assert ask(server.management_port, "/shutdown", "Origin: https://evil.example", method="POST").status == 403
        assert ask(server.port, "/").status == 200


def test_an_engine_that_has_ended_is_told():
    with make_engine() as engine, serving(engine) as server:
        engine.shutdown()
        for path, state in (("/health", "dead"), ("/ready", "dead")):
            answer = ask(server.port, path)
            assert (answer.status, answer.json()) == (503, {"status": state})
        assert ask(server.port, "/v2/health/live").status == 503
