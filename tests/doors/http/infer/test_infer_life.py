"""The life of a request to `/infer`: events, ends, deadlines, priorities, clients that go away."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import httpx
import pytest
from http_parts import serving
from infer_parts import EOS, events_of, read_stream, script_engine, slow_engine, wait_until

from trivium.doors.http.infer.request import InferRequest
from trivium.doors.http.infer.response import EventWriter, write_events
from trivium.engine import GenerationRequest, SamplingOptions
from trivium.engine.outputs import OutputDelta

LONG = {"inputs": "hello", "parameters": {"max_new_tokens": 200}}


@contextmanager
def running(engine, **options):
    """A client of a server of this engine."""
    try:
        with serving(engine, **options) as server, httpx.Client(base_url=server.url, timeout=30) as client:
            client.server = server
            yield client
    finally:
        engine.native.gate.set()
        engine.shutdown()


def counts(engine) -> tuple[int, int, int]:
    stats = engine.stats()
    return stats.running, stats.waiting, stats.used_blocks


# Events


@pytest.mark.parametrize("full", [False, True])
def test_characters_of_several_tokens(full: bool) -> None:
    """An incomplete character has no text; cumulative text stays as it was."""
    with running(script_engine("a\u00e9\u4f60!"), infer_full_text=full) as client:
        events = events_of(client, {"inputs": "x", "parameters": {"details": True}})
    *before, last = events
    new = ["a", "", "\u00e9", "", "", "\u4f60", "!"]
    assert [event["token"]["text"] for event in before] == (["".join(new[: i + 1]) for i in range(7)] if full else new)
    assert [event["token"]["id"] for event in before] == [[byte] for byte in "a\u00e9\u4f60!".encode()]
    assert last["token"] == {"id": [EOS], "text": None}
    assert last["generated_text"] == "a\u00e9\u4f60!"
    assert last["details"]["finish_reason"] == "eos_token"
    assert last["details"]["generated_tokens"] == 8  # the end token counts


@pytest.mark.parametrize(("full", "sizes"), [(False, [3]), (True, [1, 1, 1])])
def test_waiting_events_are_sent_one_by_one_if_each_holds_all_the_text(full: bool, sizes: list[int]) -> None:
    """Joined they would take quadratic memory."""

    batches = [[OutputDelta("r", 0, [97], "a") for _ in range(3)], []]

    async def take():
        return batches.pop(0)

    async def main():
        request = GenerationRequest("r", [1], SamplingOptions())
        writer = EventWriter(InferRequest(request, True, False, 0.0), full)
        return [written.count(b"data:") async for written in write_events(SimpleNamespace(take=take), writer)]

    assert asyncio.run(main()) == sizes


@pytest.mark.parametrize(("most", "reason", "text"), [(2, "length", "ab"), (3, "length", "abc"), (4, "eos_token", "abc")])
def test_ends(most: int, reason: str, text: str) -> None:
    body = {"inputs": "x", "parameters": {"max_new_tokens": most, "details": True, "seed": 9}}
    expected = {"finish_reason": reason, "generated_tokens": most, "seed": 9}
    with running(script_engine("abc")) as client:
        assert client.post("/infer", json=body).json() == {"generated_text": text, "details": expected}
        last = events_of(client, body)[-1]
    assert (last["generated_text"], last["details"]) == (text, expected)


def test_a_request_that_ends_on_its_first_token_has_one_event() -> None:
    with running(script_engine("abc")) as client:
        (event,) = events_of(client, {"inputs": "x", "parameters": {"max_new_tokens": 1}})
    assert list(event) == ["prefill_time", "decode_time", "generated_text", "details", "token"]
    assert event["prefill_time"] > 0
    assert (event["decode_time"], event["generated_text"], event["details"]) == (None, "a", None)
    assert event["token"] == {"id": [97], "text": None}


def test_an_answer_that_is_only_an_end() -> None:
    with running(script_engine("")) as client:
        assert client.post("/infer", json={"inputs": "x"}).json() == {"generated_text": ""}
        (event,) = events_of(client, {"inputs": "x", "parameters": {"details": True}})
    assert (event["generated_text"], event["token"]) == ("", {"id": [EOS], "text": None})
    assert event["details"]["generated_tokens"] == 1


def test_limits_of_the_server_and_of_the_context() -> None:
    body = {"parameters": {"max_new_tokens": 2**31 - 1, "details": True}}
    with running(script_engine("a" * 300), max_output_len=12) as client:
        details = client.post("/infer", json={"inputs": "x", **body}).json()["details"]
        assert (details["finish_reason"], details["generated_tokens"]) == ("length", 12)
        details = client.post("/infer", json={"inputs": "x" * 250, **body}).json()["details"]
        assert (details["finish_reason"], details["generated_tokens"]) == ("length", 6)


def test_text_that_json_must_escape() -> None:
    text = 'a"b\\c\n\r\t\x01\u2028data: x\n\ny'
    with running(script_engine(text)) as client:
        events = events_of(client, {"inputs": "x", "parameters": {"max_new_tokens": 100}})
    assert "".join(event["token"]["text"] or "" for event in events) == text
    assert events[-1]["generated_text"] == text


def test_events_are_bytes_like_the_originals() -> None:
    with running(script_engine("am")) as client:
        response = client.post(
            "/infer", json={"inputs": "x", "stream": True, "parameters": {"seed": 846930886, "details": True}}
        )
    assert "content-length" not in response.headers
    assert re.fullmatch(
        rb'data: \{"prefill_time":\d+\.\d\d,"decode_time":null,"token":\{"id":\[97\],"text":"a"\}\}\n\n'
        rb'data: \{"prefill_time":null,"decode_time":\d+\.\d\d,"token":\{"id":\[109\],"text":"m"\}\}\n\n'
        rb'data: \{"prefill_time":null,"decode_time":\d+\.\d\d,"generated_text":"am",'
        rb'"details":\{"finish_reason":"eos_token","generated_tokens":3,"seed":846930886\},'
        rb'"token":\{"id":\[256\],"text":null\}\}\n\n',
        response.content,
    )


def test_times_are_those_of_the_steps() -> None:
    with running(slow_engine()) as client:
        events = events_of(client, {"inputs": "hello", "parameters": {"max_new_tokens": 5}})
    assert events[0]["prefill_time"] >= 10
    assert all(event["prefill_time"] is None and event["decode_time"] >= 10 for event in events[1:])


# Both paths


@pytest.mark.parametrize("path", ["/infer", "/infer_token"])
def test_text_and_token_ids_on_both_paths(path: str) -> None:
    engine = script_engine("ok")
    with running(engine) as client:
        for body in ({"inputs": "hello"}, {"input_id": list(b"hello")}, {"inputs": [{"text": "hel"}, {"text": "lo"}]}):
            assert client.post(path, json=body).json() == {"generated_text": "ok"}
            assert events_of(client, body, path)[-1]["generated_text"] == "ok"
    assert engine.sampler_type.prompts == [b"hello"] * 6


def test_every_reply_has_an_id_of_its_own() -> None:
    with running(script_engine("ok")) as client:
        replies = [client.post("/infer", json={"inputs": "x", "stream": stream}) for stream in (False, True, False)]
    assert len({reply.headers["RequestUUID"] for reply in replies}) == 3


def test_the_content_type_does_not_matter() -> None:
    with running(script_engine("ok")) as client:
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            response = client.post("/infer", content=b'{"inputs": "x"}', headers={"content-type": kind})
            assert response.json() == {"generated_text": "ok"}


# Errors


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("content", "status", "kind"),
    [
        (b"", 422, "Input Validation Error"),
        (b"{", 422, "Input Validation Error"),
        (b"[]", 422, "Input Validation Error"),
        (b'{"inputs": "\xff"}', 422, "Input Validation Error"),
        (b'{"inputs": "\\ud800"}', 422, "Input Validation Error"),
        (b'{"inputs": [{"type": "image_url", "image_url": "/a.png"}], "stream": STREAM}', 422, "Input Validation Error"),
        (b'{"inputs": "' + b"x" * 256 + b'", "stream": STREAM}', 424, "Generation Error"),
        (b'{"input_id": [299, 300], "stream": STREAM}', 424, "Generation Error"),
    ],
)
def test_errors_are_plain_json(content: bytes, status: int, kind: str, stream: bool) -> None:
    with running(script_engine("ok")) as client:
        response = client.post("/infer", content=content.replace(b"STREAM", json.dumps(stream).encode()))
    assert (response.status_code, response.headers["content-type"]) == (status, "application/json")
    assert list(response.json()) == ["error", "error_type"]
    assert response.json()["error_type"] == kind


def test_a_full_queue() -> None:
    engine = script_engine("ok", max_waiting=1, max_num_seqs=1)
    with running(engine) as client:
        engine.native.gate.clear()
        threads = [threading.Thread(target=client.post, args=("/infer",), kwargs={"json": {"inputs": "x"}}) for _ in range(2)]
        threads[0].start()
        wait_until(lambda: engine.stats().running == 1)
        threads[1].start()
        wait_until(lambda: engine.stats().waiting == 1)
        response = client.post("/infer", json={"inputs": "x", "stream": True})
        engine.native.gate.set()
        for thread in threads:
            thread.join()
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["error_type"] == "Too Many Requests"


def test_a_server_that_is_stopping() -> None:
    with running(script_engine("ok")) as client:
        client.server.server.door.draining = True
        response = client.post("/infer", json={"inputs": "x", "stream": True})
        client.server.server.door.draining = False
    assert (response.status_code, response.json()["error_type"]) == (503, "Service Unavailable")


def test_a_fault_of_the_engine() -> None:
    engine = script_engine("ok")
    with running(engine) as client:
        engine.native.fault = ValueError("broken")
        response = client.post("/infer", json={"inputs": "x"})
        assert (response.status_code, response.json()["error_type"]) == (500, "Incomplete Generation")
        engine.native.fault = ValueError("broken")
        (event,) = events_of(client, {"inputs": "x"})
        assert event["error_type"] == "Incomplete Generation"
        assert client.post("/infer", json={"inputs": "x"}).json() == {"generated_text": "ok"}


# Deadlines


def test_the_requests_own_timeout() -> None:
    engine = slow_engine()
    with running(engine) as client:
        response = client.post("/infer", json={**LONG, "parameters": {"max_new_tokens": 200, "timeout": 1}})
        assert (response.status_code, list(response.json())) == (500, ["error", "error_type"])
        assert "1 seconds" in response.json()["error"]
        assert response.json()["error_type"] == "Incomplete Generation"
        assert engine.stats().finished == {"timeout": 1}
        wait_until(lambda: counts(engine) == (0, 0, 0))


def test_the_servers_timeout_ends_a_stream_with_an_event() -> None:
    engine = slow_engine()
    with running(engine, request_timeout=0.3) as client:
        *before, last = events_of(client, LONG)
        assert len(before) < 100
        assert all("token" in event for event in before)
        assert list(last) == ["error", "error_type"]
        assert "0.3 seconds" in last["error"]
        assert last["error_type"] == "Incomplete Generation"
        wait_until(lambda: counts(engine) == (0, 0, 0))


def test_time_in_the_queue_counts() -> None:
    engine = slow_engine(max_num_seqs=1)
    with running(engine, request_timeout=0.3) as client:
        other = threading.Thread(target=client.post, args=("/infer",), kwargs={"json": LONG})
        other.start()
        wait_until(lambda: engine.stats().running == 1)
        assert events_of(client, LONG)[-1]["error_type"] == "Incomplete Generation"
        other.join()
    assert engine.stats().finished == {"timeout": 2}


# Priorities


def test_priorities_order_what_waits() -> None:
    engine = script_engine("ok", max_num_seqs=1)
    with running(engine) as client:
        engine.native.gate.clear()

        def ask(name: str, priority: int | None) -> None:
            client.post("/infer", json={"inputs": name, "parameters": {"priority": priority}})

        asked = [("first", 1), ("five", 5), ("three", 3), ("default", None), ("one", 1), ("another three", 3)]
        threads = [threading.Thread(target=ask, args=one) for one in asked]
        for i, thread in enumerate(threads):
            thread.start()
            wait_until(lambda i=i: engine.stats().running + engine.stats().waiting == i + 1)
            wait_until(lambda: engine.stats().running == 1)
        engine.native.gate.set()
        for thread in threads:
            thread.join()
    assert engine.sampler_type.prompts == [b"first", b"one", b"three", b"another three", b"five", b"default"]


def test_an_urgent_request_takes_a_running_ones_place() -> None:
    engine = script_engine("a" * 200, max_num_seqs=1)
    with running(engine) as client:
        engine.native.gate.clear()
        urgent = {"inputs": "now", "parameters": {"priority": 1, "max_new_tokens": 2}}
        threads = [threading.Thread(target=client.post, args=("/infer",), kwargs={"json": body}) for body in (LONG, urgent)]
        threads[0].start()
        wait_until(lambda: engine.stats().running == 1)
        threads[1].start()
        wait_until(lambda: engine.stats().waiting == 1)
        engine.native.gate.set()
        for thread in threads:
            thread.join()
    assert engine.stats().preemptions == 1
    assert engine.stats().finished == {"length": 2}


# Clients that go away


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_place(stream: bool) -> None:
    engine = slow_engine()
    with running(engine) as client:
        content = json.dumps({**LONG, "stream": stream}).encode()
        head = f"POST /infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(content)}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", client.server.port)) as connection:
            connection.sendall(head + content)
            if stream:
                assert connection.recv(100).startswith(b"HTTP/1.1 200")
            wait_until(lambda: engine.stats().running == 1)
        wait_until(lambda: engine.stats().finished == {"abort": 1})
        wait_until(lambda: counts(engine) == (0, 0, 0))
        assert client.post("/infer", json={"inputs": "x", "parameters": {"max_new_tokens": 2}}).json() == {
            "generated_text": "aa"
        }


def test_many_streams_at_once() -> None:
    with running(script_engine("0123456789" * 10, max_num_seqs=4)) as client:
        answers = {}

        def ask(number: int) -> None:
            answers[number] = events_of(client, {"inputs": "x", "parameters": {"max_new_tokens": number}})

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(1, 17)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for number, events in answers.items():
        assert len(events) == number
        assert events[-1]["generated_text"] == ("0123456789" * 2)[:number]


def test_the_reader_of_the_tests_fails_on_lines_that_are_not_json() -> None:
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, text="data: timeout\n\n")
    with pytest.raises(json.JSONDecodeError):
        read_stream(response)
