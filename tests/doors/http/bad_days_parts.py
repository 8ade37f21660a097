"""What tests of bad days build on: a raw client that believes nothing, a slow engine, and the check that all is well again."""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from engine_parts import EOS, VOCAB_SIZE, byte_tokenizer, make_engine
from fake_native import FakeModel
from http_parts import RunningServer, serving

from trivium.models.chat_template import ChatTemplate
from trivium.parsing.structured import GuidedCompiler

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"

# One small request to each API: path -> body.
REQUESTS: dict[str, dict[str, Any]] = {
    "/infer": {"inputs": "hello", "parameters": {"max_new_tokens": 8}},
    "/infer_token": {"input_id": [104, 105], "parameters": {"max_new_tokens": 8}},
    "/v1/completions": {"model": "fake", "prompt": "hello", "max_tokens": 8},
    "/v1/chat/completions": {"model": "fake", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8},
    "/v1/responses": {"model": "fake", "input": "hello", "max_output_tokens": 16},
    "/v1/messages": {"model": "fake", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8},
}


class SlowModel(FakeModel):
    """Its steps take a moment, so that there is time to go away in."""

    pause = 0.002

    def step(self, *args: Any, **options: Any) -> Any:
        time.sleep(self.pause)
        return super().step(*args, **options)


@contextmanager
def bad_day(
    native: FakeModel | None = None, options: dict[str, Any] | None = None, check: bool = True, **config: Any
) -> Iterator[RunningServer]:
    """A server over the real engine on a fake model with a chat template, that must be well in the end unless `check` is false.

    `options` are the server's, `config` the engine's.
    """
    config = {"num_blocks": 256, "max_waiting": 512, **config}
    native = native or FakeModel(config["num_blocks"], config.get("block_size", 16), VOCAB_SIZE)
    tokenizer = byte_tokenizer()
    compiler = GuidedCompiler(tokenizer, VOCAB_SIZE, frozenset([EOS]))
    with make_engine(native, compile_guided=compiler.compile, **config) as engine:
        engine.chat_template = ChatTemplate(TEMPLATE, tokenizer)
        with serving(engine, **(options or {})) as server:
            yield server
            if check:
                check_well(server)


class Answer:
    """One answer, read strictly."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/json", (self.status, self.headers, self.body)
        content = json.loads(self.body)
        assert isinstance(content, dict)
        return content

    @property
    def events(self) -> list[str]:
        """What follows `data: ` of every event of a stream."""
        assert self.headers["content-type"].startswith("text/event-stream")
        frames = self.body.decode().split("\n\n")
        assert frames.pop() == ""
        return [line[6:] for frame in frames for line in frame.split("\n") if line.startswith("data: ")]

    def __repr__(self) -> str:
        return f"<{self.status} {self.headers} {self.body[:300]!r}>"


class Client:
    """A socket to the server. Answers end where their framing says, and nothing may follow that was not asked for."""

    def __init__(self, port: int, *, timeout: float = 20.0, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout)
        self.socket.connect(("127.0.0.1", port))
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()
        self.socket.close()

    def send(self, data: bytes) -> Client:
        self.socket.sendall(data)
        return self

    def answer(self, method: str = "POST") -> Answer:
        """The next answer; ConnectionError if the server closes the connection instead."""
        version, _, rest = self._line().partition(b" ")
        assert version == b"HTTP/1.1", (version, rest)
        status = int(rest[:3])
        headers: dict[str, str] = {}
        while line := self._line():
            name, colon, value = line.decode("latin-1").partition(":")
            assert colon
            assert name.lower() not in headers
            headers[name.lower()] = value.strip()
        if method == "HEAD" or status in (204, 304):
            return Answer(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            return Answer(status, headers, b"".join(self._chunks()))
        if "content-length" in headers:
            return Answer(status, headers, self._exactly(int(headers["content-length"])))
        assert headers.get("connection") == "close"
        return Answer(status, headers, self._file.read())

    def readable(self, seconds: float) -> bool:
        """Whether something of a next answer is there, or comes in time."""
        return bool(select.select([self.socket], [], [], seconds)[0])

    def closed(self) -> bool:
        """Whether the server closes the connection, and sends nothing before that."""
        try:
            return self._file.read(1) == b""
        except ConnectionError:
            return True

    def vanish(self) -> None:
        """Close with a reset: nothing that is still under way arrives."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._file.close()
        self.socket.close()

    def _line(self) -> bytes:
        line = self._file.readline(65536)
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError(f"the connection ended after {line!r}")
        return line[:-2]

    def _exactly(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) != count:
            raise ConnectionResetError("the connection ended within a body")
        return data

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self._line(), 16):
            yield self._exactly(size)
            assert self._line() == b""
        assert self._line() == b""


def head(path: str, *lines: str, method: str = "POST", version: str = "HTTP/1.1") -> bytes:
    """A request line and headers, with the blank line."""
    return "\r\n".join([f"{method} {path} {version}", "Host: localhost", *lines, "", ""]).encode("latin-1")


def post(path: str, body: bytes | dict[str, Any], *lines: str) -> bytes:
    """A whole request with a JSON content type."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(path, "Content-Type: application/json", f"Content-Length: {len(data)}", *lines) + data


def ask(server: RunningServer | int, data: bytes, method: str = "POST") -> Answer:
    """Send bytes, on a connection of their own to a server or a port, and read one answer."""
    with Client(server if isinstance(server, int) else server.port) as client:
        return client.send(data).answer(method)


def ask_json(server: RunningServer, path: str, body: bytes | dict[str, Any]) -> Answer:
    """One POST on a connection of its own."""
    return ask(server, post(path, body))


def error_of(path: str, answer: Answer) -> str:
    """The message of an error, whose form must be the one of the API that the path belongs to."""
    content = answer.json()
    if path in ("/infer", "/infer_token", "/v1/tokenizer"):
        assert set(content) - {"message"} == {"error", "error_type"}, content
        assert isinstance(content["error_type"], str)
        message = content["error"]
    elif path.startswith("/v1/messages"):
        assert content["type"] == "error"
        assert {"type", "message"} <= set(content["error"])
        message = content["error"]["message"]
    else:
        assert set(content) == {"error"}, content
        assert set(content["error"]) == {"message", "type", "param", "code"}
        message = content["error"]["message"]
    assert isinstance(message, str)
    assert message
    return message


def stream_error(path: str, answer: Answer) -> str:
    """The message of the error that a stream ends with: its last event, or the last before `[DONE]`."""
    assert answer.status == 200
    events = [json.loads(event) for event in answer.events if event != "[DONE]"]
    errors = [event for event in events if event.get("error") or (event.get("response") or {}).get("error")]
    assert len(errors) == 1, events[-3:]
    assert errors[0] is events[-1]
    error = errors[0].get("error") or errors[0]["response"]["error"]
    message = error if path.startswith("/infer") else error["message"]
    assert isinstance(message, str)
    return message


def wait_for(condition: Any, what: str, seconds: float = 10.0) -> None:
    """Until `condition()` holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} has not happened"
        time.sleep(0.005)


def is_idle(server: RunningServer) -> bool:
    """Whether engine and dispatcher have nothing left of any request."""
    stats = server.engine.stats()
    return (stats.running, stats.waiting, stats.used_blocks, server.server.door.dispatcher.num_open) == (0, 0, 0, 0)


def num_connections(server: RunningServer) -> int:
    """Connections that are open now."""
    return sum(listener.num_connections for listener in server.server._listeners)


def metrics_of(server: RunningServer) -> dict[str, float]:
    """Every sample that `/metrics` tells, by its name and labels as the text has them."""
    answer = ask(server, head("/metrics", *key_line(server), method="GET"))
    assert answer.status == 200, answer
    lines = [line for line in answer.body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def key_line(server: RunningServer) -> list[str]:
    """The header that a server with a key wants."""
    return [f"Authorization: Bearer {key}" for key in server.server.config.api_key[:1]]


def check_well(server: RunningServer) -> None:
    """The server answers health and real requests, every block is free, and its metrics add up."""
    wait_for(lambda: is_idle(server), "the end of all requests")
    answer = ask(server, head("/health", method="GET"))
    assert answer.status == 200, answer
    for path in ("/infer", "/v1/chat/completions"):
        answer = ask(server, post(path, REQUESTS[path], *key_line(server)))
        assert answer.status == 200, answer
    wait_for(lambda: is_idle(server), "the end of the last requests")
    check_metrics(server)


def check_metrics(server: RunningServer) -> None:
    """Of an idle server: what came in went out, once, and every histogram knows of it."""
    metrics = metrics_of(server)

    def total(name: str) -> int:
        return int(sum(value for key, value in metrics.items() if key.partition("{")[0] == f"trivium:{name}"))

    stats = server.engine.stats()
    finished = sum(stats.finished.values())
    assert total("num_requests_running") == total("num_requests_waiting") == total("kv_cache_usage_perc") == 0
    assert total("request_success_total") == finished
    assert total("requests_received_total") == finished + total("requests_rejected_total")
    assert total("e2e_request_latency_seconds_count") == total("request_generation_tokens_count") == finished
    assert total("time_to_first_token_seconds_count") <= finished
    assert total("request_generation_tokens_sum") == stats.generated_tokens
    assert total("http_requests_total") == total("http_request_duration_seconds_count") > 0
