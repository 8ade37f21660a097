"""What a running server tells of itself: `/stats`, and `/metrics` beside it."""

from __future__ import annotations

import threading
import time

import httpx
import pytest
from engine_parts import make_engine, request
from http_parts import serving
from prometheus_client.parser import text_string_to_metric_families


@pytest.fixture
def server():
    with make_engine(enable_prefix_caching=True) as engine, serving(engine) as running:
        yield running


def scrape(url):
    text = httpx.get(f"{url}/metrics").raise_for_status().text
    return {
        (sample.name.removeprefix("trivium:"), *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(page, name):
    return sum(value for (key, *_), value in page.items() if key == name)


def submit(server, *requests, sink=lambda outputs: None):
    server.engine.submit(requests, sink)


def test_an_idle_engine(server):
    answer = httpx.get(f"{server.url}/stats")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    stats = answer.json()
    assert 0 < stats.pop("uptime") < 60
    assert stats == {
        "model": "fake",
        "max_model_len": 256,
        "running": 0,
        "waiting": 0,
        "kv_used": 0,
        "kv_total": 64,
        "prompt_tokens": 0,
        "generated_tokens": 0,
        "prefix_queries": 0,
        "prefix_hits": 0,
    }


def test_a_working_engine(server):
    native = server.engine.native
    ended = threading.Event()
    native.gate.clear()
    submit(server, request("a", "x" * 20, max_tokens=3), sink=lambda outputs: outputs[-1].finished and ended.set())
    assert native.entered.wait(10)
    stats = httpx.get(f"{server.url}/stats").json()
    assert (stats["running"], stats["waiting"], stats["kv_used"]) == (1, 0, 2)
    native.gate.set()
    assert ended.wait(10)
    end = time.monotonic() + 10
    while (stats := httpx.get(f"{server.url}/stats").json())["kv_used"] and time.monotonic() < end:
        pass
    assert (stats["prompt_tokens"], stats["generated_tokens"], stats["prefix_queries"]) == (20, 3, 20)
    assert httpx.get(f"{server.url}/stats").json()["uptime"] >= stats["uptime"]


def test_only_get(server):
    assert httpx.post(f"{server.url}/stats").status_code == 405


def test_metrics_of_a_server(server):
    url = server.url
    wrong = httpx.post(f"{url}/v1/completions", json={"model": "fake", "prompt": "hi", "temperature": -1})
    right = httpx.post(f"{url}/v1/completions", json={"model": "fake", "prompt": "hello", "max_tokens": 4, "n": 2})
    assert (wrong.status_code, right.status_code) == (400, 200)
    assert httpx.post(f"{url}/v1/chat/completions", content=b"{").status_code == 400
    assert httpx.get(f"{url}/nowhere").status_code == 404
    page = scrape(url)
    assert page["request_success_total", ("finished_reason", "length"), ("model_name", "fake")] == 2
    assert page["requests_rejected_total", ("model_name", "fake"), ("reason", "invalid")] == 2
    assert total(page, "requests_received_total") == 4
    assert total(page, "generation_tokens_total") == 8
    for status in ("200", "400"):
        assert page["http_requests_total", ("method", "POST"), ("route", "/v1/completions"), ("status", status)] == 1
    assert page["http_requests_total", ("method", "GET"), ("route", "other"), ("status", "404")] == 1


def test_ids_of_a_server(server):
    answer = httpx.get(f"{server.url}/stats", headers={"X-Request-Id": "mine:1"})
    assert answer.headers.get_list("x-request-id") == ["mine:1"]
    answer = httpx.get(f"{server.url}/nowhere", headers={"X-Request-Id": "not mine"})
    assert len(answer.headers["x-request-id"]) == 32
