from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from engine_parts import make_engine, request
from http_parts import serving
from starlette.routing import Route

from trivium.doors.dispatcher import ClientGoneError, Dispatcher
from trivium.doors.http.app import create_app
from trivium.doors.http.bodies import JsonResponse
from trivium.doors.http.config import ServerConfig
from trivium.doors.http.door import HttpDoor, door_of
from trivium.doors.http.errors import HttpError
from trivium.doors.http.metrics import Metrics
from trivium.doors.http.request_log import RequestLogMiddleware, configure_logging
from trivium.doors.http.streaming import EventStream

SECRET = "a prompt that nobody may read"


@pytest.fixture
def lines(capsys):
    """For tests that configure logging: gives what was written since the last call, as lines."""
    root, uvicorn = logging.getLogger(), logging.getLogger("uvicorn")
    handlers, level, uvicorn_level = list(root.handlers), root.level, uvicorn.level
    yield lambda: capsys.readouterr().err.split("\n")[:-1]
    root.handlers[:] = handlers
    root.setLevel(level)
    uvicorn.setLevel(uvicorn_level)


class Exchange:
    """One exchange with an application: what came back, and how."""

    def __init__(self, path="/", method="POST", headers=(), client=("10.0.0.1", 5555)):
        self.scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode("utf-8", "replace"),
            "query_string": b"api_key=hidden",
            "root_path": "",
            "headers": list(headers),
            "client": client,
        }
        self.gone = asyncio.Event()
        self.status = None
        self.headers = {}
        self.body = b""

    async def run(self, app):
        bodies = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive():
            if bodies:
                return bodies.pop()
            await self.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            if message["type"] == "http.response.start":
                self.status = message["status"]
                self.headers = {key.decode(): value.decode() for key, value in message["headers"]}
            else:
                self.body += message["body"]

        await app(self.scope, receive, send)
        return self


async def hello(request):
    logging.getLogger("trivium.http").warning("hello\nfrom %s", "within")
    return JsonResponse({"id": request.state.request_id})


async def fail(request):
    raise HttpError(422, "no such thing")


async def explode(request):
    raise RuntimeError("boom\n2026-01-01 00:00:00.000 INFO trivium.http forged")


def answering(n=1, max_tokens=5, stream=False):
    async def endpoint(http_request):
        generation = await door_of(http_request).generate(
            http_request, lambda: [request("a", SECRET, n=n, max_tokens=max_tokens, stop=("zz",))]
        )
        if stream:
            return EventStream(generation, events(generation))
        with generation:
            await generation.all()
        return JsonResponse({})

    async def events(generation):
        while deltas := await generation.take():
            for delta in deltas:
                yield delta.text.encode()

    return endpoint


def application(engine=None, metrics=None, **routes):
    """A logged application. `routes` are endpoints by the name of their path."""
    door = HttpDoor(ServerConfig(allowed_host=["*"]))
    door.metrics = metrics or door.metrics
    if engine is not None:
        door.attach(Dispatcher(engine, metrics))
    methods = ["GET", "POST"]
    paths = [Route(f"/{name.replace('__', '/')}", endpoint, methods=methods) for name, endpoint in routes.items()]
    return create_app(door, paths)


def run(make_exchanges, engine=None, metrics=None, **routes):
    """Run exchanges one after the other on a loop of their own; `make_exchanges()` is called on it."""

    async def main():
        app = application(engine, metrics, **routes)
        return [await exchange.run(app) for exchange in make_exchanges()]

    return asyncio.run(main())


def header(value):
    return [(b"x-request-id", value)]


@pytest.mark.parametrize("given", [b"a", b"req_1.2:3-4", b"x" * 128])
def test_a_sane_id_is_kept(given):
    (exchange,) = run(lambda: [Exchange("/hello", headers=header(given))], hello=hello)
    assert exchange.headers["x-request-id"] == given.decode()
    assert json.loads(exchange.body) == {"id": given.decode()}


@pytest.mark.parametrize("given", [b"", b"x" * 129, b"a b", b"a\nb", b"a\n", b"\xff", "ä".encode(), b"a/b", b'"'])
def test_another_id_is_replaced(given):
    first, second = run(lambda: [Exchange("/hello", headers=header(given)) for _ in range(2)], hello=hello)
    assert re.fullmatch("[0-9a-f]{32}", first.headers["x-request-id"])
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


def test_two_ids_are_none():
    (exchange,) = run(lambda: [Exchange("/hello", headers=header(b"a") + header(b"b"))], hello=hello)
    assert re.fullmatch("[0-9a-f]{32}", exchange.headers["x-request-id"])


def test_errors_have_the_id_too():
    exchanges = run(
        lambda: [Exchange(path, headers=header(b"mine")) for path in ("/fail", "/nowhere", "/explode")],
        fail=fail,
        explode=explode,
    )
    assert [exchange.status for exchange in exchanges] == [422, 404, 500]
    assert {exchange.headers["x-request-id"] for exchange in exchanges} == {"mine"}


def test_text_lines(lines):
    configure_logging("text")
    run(lambda: [Exchange("/hello", headers=header(b"mine")), Exchange("/nowhere", client=None)], hello=hello)
    inner, first, second = lines()
    moment = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d"
    assert re.fullmatch(rf"{moment} WARNING trivium\.http hello\\nfrom within request_id=mine", inner)
    assert re.fullmatch(
        rf"{moment} INFO trivium\.http\.requests POST /hello 200 duration_ms=\d+\.\d+ client=10\.0\.0\.1:5555 request_id=mine",
        first,
    )
    assert re.fullmatch(rf"{moment} INFO \S+ POST /nowhere 404 duration_ms=\d+\.\d+ request_id=[0-9a-f]{{32}}", second)


def test_json_lines(lines):
    configure_logging("json")
    run(
        lambda: [Exchange("/hello", headers=header(b"mine"), client=("::1", 1)), Exchange("/explode")],
        hello=hello,
        explode=explode,
    )
    inner, first, error, second = map(json.loads, lines())
    assert inner["message"] == "hello\nfrom within"
    assert inner["request_id"] == first["request_id"] == "mine"
    assert (first["level"], first["logger"], first["status"], first["client"]) == (
        "INFO",
        "trivium.http.requests",
        200,
        "[::1]:1",
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", first["time"])
    assert first["duration_ms"] > 0
    assert (error["level"], error["request_id"]) == ("ERROR", second["request_id"])
    assert "RuntimeError: boom\n" in error["exception"]
    assert (second["path"], second["status"]) == ("/explode", 500)
    configure_logging("json")
    logging.getLogger("trivium").info("outside")
    (last,) = map(json.loads, lines())
    assert last.keys() == {"time", "level", "logger", "message"}


def test_nothing_forges_a_line(lines):
    configure_logging("text")
    paths = ["/a\n2026-01-01 00:00:00.000 INFO x", "/b\r\x1b[2J\x00", "/c\u2028d\x85e"]
    run(lambda: [*map(Exchange, paths), Exchange("/explode")], explode=explode)
    logging.getLogger("trivium").info("half \ud800 a character")
    found = lines()
    assert "POST /a\\n2026-01-01 00:00:00.000 INFO x 404" in found[0]
    assert "POST /b\\r\\x1b[2J\\x00 404" in found[1]
    assert "POST /c\\u2028d\\x85e 404" in found[2]
    assert found[-1].endswith("half \\ud800 a character")
    assert all(ord(char) >= 32 for line in found for char in line)
    starts = [line for line in found if not line.startswith("    ")]
    assert len(starts) == 6
    assert not any("forged" in line for line in starts)


def test_long_paths_are_cut(lines):
    configure_logging("json")
    run(lambda: [Exchange("/" + "x" * 5000)])
    (entry,) = map(json.loads, lines())
    assert entry["path"] == "/" + "x" * 255 + "…"


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/stats", "/v2/health/live"])
def test_probes_are_quiet(path, lines):
    configure_logging("text")
    run(lambda: [Exchange(path)])
    assert lines() == []
    configure_logging("text", logging.DEBUG)
    run(lambda: [Exchange(path)])
    assert [line for line in lines() if f"DEBUG trivium.http.requests POST {path} 404" in line]


def test_answers_are_told_in_numbers_only(lines):
    configure_logging("json")
    with make_engine() as engine:
        run(
            lambda: [Exchange("/v1/completions", headers=[(b"authorization", b"Bearer key")])],
            engine,
            v1__completions=answering(n=2),
        )
    (entry,) = map(json.loads, lines())
    assert entry["id"] == "a"
    assert entry["prompt_tokens"] == len(SECRET)
    assert entry["output_tokens"] == 10
    assert entry["cached_tokens"] == 0
    assert entry["finish"] == "length"
    assert 0 <= entry["queue_ms"] <= entry["ttft_ms"] <= entry["duration_ms"]
    text = json.dumps(entry)
    for hidden in (SECRET, "hidden", "Bearer", "zz"):
        assert hidden not in text


def test_the_log_leads_from_a_request_to_its_answer(lines):
    """By the id that the client set, which also stands with what a worker thread says, and by the answer's own."""
    configure_logging("json")
    infer, completion = {"inputs": "hi", "wibble": 1}, {"prompt": "hi", "wobble": 1}
    with make_engine() as engine, serving(engine) as server, httpx.Client(base_url=server.url) as client:
        first = client.post("/infer", json=infer, headers={"X-Request-Id": "my-1"}).headers["RequestUUID"]
        second = client.post("/v1/completions", json=completion, headers={"X-Request-Id": "my-2"}).json()["id"]
    told = [entry for entry in map(json.loads, lines()) if entry["logger"].startswith("trivium.http") and "request_id" in entry]
    assert [entry["request_id"] for entry in told] == ["my-1", "my-1", "my-2", "my-2"]
    assert (told[1]["id"], told[3]["id"]) == (first, second.removeprefix("cmpl-") + "-0")
    assert ["ignored" in entry["message"] for entry in told] == [True, False, True, False]


def test_a_stream_is_logged_at_its_end(lines):
    configure_logging("json")
    with make_engine() as engine:
        (exchange,) = run(lambda: [Exchange("/s")], engine, s=answering(stream=True))
    (entry,) = map(json.loads, lines())
    assert (entry["status"], entry["output_tokens"], entry["finish"]) == (200, 5, "length")
    assert len(exchange.body) == 5


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_is_499(lines, stream):
    configure_logging("json")
    metrics = Metrics()

    async def main():
        app = application(engine, metrics, infer=answering(max_tokens=200, stream=stream))
        exchange = Exchange("/infer")
        task = asyncio.create_task(exchange.run(app))
        while not engine.native.entered.is_set():
            await asyncio.sleep(0.001)
        exchange.gone.set()
        await asyncio.sleep(0.05)
        engine.native.gate.set()
        await task
        assert exchange.status == (200 if stream else None)

    with make_engine() as engine:
        metrics.attach(engine)
        engine.native.gate.clear()
        asyncio.run(main())
    (entry,) = map(json.loads, lines())
    assert (entry["status"], entry["finish"], entry["prompt_tokens"]) == (499, "abort", len(SECRET))
    page = metrics.render()[0].decode()
    assert 'trivium:http_requests_total{method="POST",route="/infer",status="499"} 1.0' in page
    assert 'trivium:requests_rejected_total{model_name="fake",reason="disconnected"} 0.0' in page


@pytest.mark.parametrize("begun", [False, True])
def test_nothing_is_done_for_a_client_that_is_gone_before_its_request_is_submitted(lines, begun):
    """`begun`: its request is being read; else it waits for a worker thread."""
    configure_logging("json")
    metrics = Metrics()
    blocked, go_on, made = threading.Event(), threading.Event(), []

    def block():
        blocked.set()
        assert go_on.wait(30)

    def make():
        made.append(1)
        if begun:
            block()
        return [request("a")]

    async def endpoint(http_request):
        generation = await door_of(http_request).generate(http_request, make)
        raise AssertionError(generation)

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        if not begun:
            loop.run_in_executor(None, block)
        exchange = Exchange("/infer")
        task = asyncio.create_task(exchange.run(application(engine, metrics, infer=endpoint)))
        while not blocked.is_set():
            await asyncio.sleep(0.001)
        exchange.gone.set()
        for _ in range(10):  # turns of the loop in which it is told
            await asyncio.sleep(0)
        go_on.set()
        await task

    with make_engine() as engine:
        metrics.attach(engine)
        asyncio.run(main())
        assert len(made) == begun
        assert not engine.stats().finished
    (entry,) = map(json.loads, lines())
    assert entry["status"] == 499
    page = metrics.render()[0].decode()
    assert 'trivium:requests_rejected_total{model_name="fake",reason="disconnected"} 1.0' in page


def test_an_exception_above_the_errors_is_500(lines):
    configure_logging("json")

    async def broken(scope, receive, send):
        raise RuntimeError("no")

    async def main():
        with contextlib.suppress(RuntimeError):
            await Exchange("/x").run(RequestLogMiddleware(broken))

    asyncio.run(main())
    (entry,) = map(json.loads, lines())
    assert entry["status"] == 500


def test_metrics_get_routes_and_rejections():
    metrics = Metrics()

    async def gone(request):
        raise ClientGoneError

    with make_engine() as engine:
        metrics.attach(engine)
        exchanges = [
            ("/infer", 1),
            ("/v1/completions", 1),
            ("/v1/responses", 2),
            ("/tokenize", 1),
            ("/models/a", 1),
            ("/x/y", 3),
        ]
        run(
            lambda: [Exchange(path) for path, count in exchanges for _ in range(count)],
            engine,
            metrics,
            infer=fail,
            v1__completions=answering(),
            v1__responses=gone,
            tokenize=fail,
            **{"models__{id}": hello},
        )
    page = metrics.render()[0].decode()
    for labels in (
        'method="POST",route="/infer",status="422"} 1.0',
        'method="POST",route="/v1/completions",status="200"} 1.0',
        'method="POST",route="/v1/responses",status="499"} 2.0',
        'method="POST",route="/models/{id}",status="200"} 1.0',
        'method="POST",route="other",status="404"} 3.0',
    ):
        assert f"trivium:http_requests_total{{{labels}\n" in page
    assert 'requests_rejected_total{model_name="fake",reason="invalid"} 1.0\n' in page
    assert 'requests_rejected_total{model_name="fake",reason="disconnected"} 2.0\n' in page
    assert 'requests_received_total{model_name="fake"} 4.0\n' in page


def test_other_protocols_pass():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope)

    asyncio.run(RequestLogMiddleware(app)({"type": "lifespan"}, None, None))
    assert seen == [{"type": "lifespan"}]
