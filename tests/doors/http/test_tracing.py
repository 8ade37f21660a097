from __future__ import annotations

import asyncio
import http.server
import logging
import subprocess
import sys
import threading
import time

import httpx
import pytest
from engine_parts import make_engine, request
from http_parts import serving
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from starlette.applications import Starlette
from starlette.routing import Route

from trivium.doors.dispatcher import Dispatcher
from trivium.doors.http.bodies import JsonResponse
from trivium.doors.http.config import ServerConfig
from trivium.doors.http.door import HttpDoor, door_of
from trivium.doors.http.tracing import Tracing, TracingMiddleware

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
VARIABLES = [
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_SDK_DISABLED",
    "OTEL_SERVICE_NAME",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_TRACES_SAMPLER",
]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def ask(tracing, *requests, headers=(), **options):
    """One exchange with these engine requests on an engine with a fake model."""

    async def answer(http_request):
        def make():
            for one in requests:
                one.arrival_time = time.monotonic()
            return requests

        with await door_of(http_request).generate(http_request, make) as generation:
            await generation.all()
        return JsonResponse({})

    async def main():
        door = HttpDoor(ServerConfig())
        door.tracing = tracing
        door.attach(Dispatcher(engine))
        app = Starlette(routes=[Route("/", answer, methods=["POST"])])
        app.state.door = door
        scope = {"type": "http", "method": "POST", "path": "/", "headers": list(headers), "state": {"request_id": "mine"}}
        scope |= {"query_string": b"", "root_path": "", "app": app}
        forever = asyncio.Event()

        async def send(message):
            pass

        await TracingMiddleware(app, door)(scope, forever.wait, send)

    with make_engine(**options) as engine:
        asyncio.run(main())


@pytest.fixture
def memory():
    return InMemorySpanExporter()


@pytest.fixture
def tracing(memory):
    tracing = Tracing(SimpleSpanProcessor(memory))
    yield tracing
    tracing.close()


def test_a_span_says_what_was_asked_and_how_long_it_took(tracing, memory):
    ask(tracing, request("a", "secret words", n=2, max_tokens=5, temperature=0.5, top_p=0.9, seed=7))
    (span,) = memory.get_finished_spans()
    assert (span.name, span.kind, span.parent) == ("llm_request", SpanKind.SERVER, None)
    assert span.resource.attributes["service.name"] == "trivium"
    found = dict(span.attributes)
    latencies = {name: found.pop(name) for name in list(found) if name.startswith("gen_ai.latency.")}
    assert found == {
        "gen_ai.response.model": "fake",
        "gen_ai.request.id": "mine",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 0,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.seed": 7,
        "gen_ai.request.n": 2,
        "gen_ai.usage.num_sequences": 2,
        "gen_ai.usage.prompt_tokens": 12,
        "gen_ai.usage.completion_tokens": 10,
        "gen_ai.response.finish_reasons": ("length", "length"),
    }
    seconds = {name.removeprefix("gen_ai.latency."): value for name, value in latencies.items()}
    assert 0 <= seconds["time_in_queue"] <= seconds["time_to_first_token"] < seconds["e2e"]
    assert seconds["e2e"] <= (span.end_time - span.start_time) / 1e9
    parts = seconds["time_in_model_prefill"] + seconds["time_in_model_decode"]
    assert seconds["time_in_model_inference"] == pytest.approx(parts)
    assert span.status.status_code is StatusCode.UNSET


def test_the_parent_comes_from_the_headers(tracing, memory):
    ask(tracing, request("a"), headers=[(b"traceparent", f"00-{TRACE}-{PARENT}-01".encode()), (b"tracestate", b"k=v")])
    ask(tracing, request("a"), headers=[(b"traceparent", b"00-nonsense-01")])
    child, alone = memory.get_finished_spans()
    assert f"{child.context.trace_id:032x}" == TRACE
    assert f"{child.parent.span_id:016x}" == PARENT
    assert child.context.trace_state["k"] == "v"
    assert alone.parent is None


def test_a_parent_that_is_not_sampled_makes_no_span(tracing, memory):
    ask(tracing, request("a"), headers=[(b"traceparent", f"00-{TRACE}-{PARENT}-00".encode())])
    assert memory.get_finished_spans() == ()


def test_several_prompts_and_odd_seeds(tracing, memory):
    ask(tracing, request("a", "x" * 3, seed=2**64 - 1), request("b", "y" * 4))
    (span,) = memory.get_finished_spans()
    assert span.attributes["gen_ai.usage.prompt_tokens"] == 7
    assert span.attributes["gen_ai.usage.num_sequences"] == 2
    assert "gen_ai.request.seed" not in span.attributes


def test_failures_are_marked(tracing, memory):
    ask(tracing, request("a", seed=666))
    (span,) = memory.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert "no such seed" in span.status.description
    assert span.attributes["gen_ai.response.finish_reasons"] == ("error",)


def test_what_the_engine_refuses_has_no_span(tracing, memory):
    with pytest.raises(ValueError, match="300 tokens"):
        ask(tracing, request("a", "x" * 300))
    assert memory.get_finished_spans() == ()


class Collector(http.server.BaseHTTPRequestHandler):
    """Receives spans as a collector does."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.received.append((self.path, self.headers["content-type"], body))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
        self.server.arrived.set()

    def log_message(self, *args):
        pass


@pytest.fixture
def collector():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    server.received, server.arrived = [], threading.Event()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_sends_its_spans_at_its_end(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
    body = {"model": "fake", "prompt": "hello", "max_tokens": 4}
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine"}
    with make_engine() as engine, serving(engine) as running:
        assert httpx.post(f"{running.url}/v1/completions", json=body, headers=headers).status_code == 200
    ((_, _, sent),) = collector.received
    (span,) = ExportTraceServiceRequest.FromString(sent).resource_spans[0].scope_spans[0].spans
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    texts = {entry.key: entry.value.string_value for entry in span.attributes}
    assert texts["gen_ai.request.id"] == "mine"


@pytest.mark.parametrize("name", VARIABLES[:2])
def test_spans_arrive_over_http(name, collector, monkeypatch):
    url = f"http://127.0.0.1:{collector.server_port}"
    monkeypatch.setenv(name, url if name == VARIABLES[0] else f"{url}/v1/traces")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my-model")
    tracing = Tracing.from_environment()
    ask(tracing, request("a", max_tokens=3))
    assert not collector.arrived.is_set()  # they wait for their batch
    tracing.close()
    ((path, kind, body),) = collector.received
    assert (path, kind) == ("/v1/traces", "application/x-protobuf")
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    service = {entry.key: entry.value.string_value for entry in resource.resource.attributes}["service.name"]
    assert service == "my-model"
    (span,) = resource.scope_spans[0].spans
    assert span.name == "llm_request"
    numbers = {entry.key: entry.value.int_value for entry in span.attributes}
    assert numbers["gen_ai.usage.completion_tokens"] == 3


def test_off_unless_an_endpoint_is_named(monkeypatch):
    assert Tracing.from_environment() is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert Tracing.from_environment() is None


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf, got 'grpc'"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "http/protobuf, got 'http/json'"),
    ],
)
def test_what_cannot_be_honoured_is_said(name, value, words, monkeypatch, caplog):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv(name, value)
    with caplog.at_level(logging.WARNING):
        assert Tracing.from_environment() is None
    assert words in caplog.text


def test_what_the_packages_do_not_take_is_said(monkeypatch, caplog):
    def refuse():
        raise ValueError("lzma is no compression")

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("opentelemetry.exporter.otlp.proto.http.trace_exporter.OTLPSpanExporter", refuse)
    with caplog.at_level(logging.WARNING):
        assert Tracing.from_environment() is None
    assert "lzma is no compression" in caplog.text


def test_missing_packages_are_named_by_their_extra(monkeypatch, caplog):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with caplog.at_level(logging.WARNING):
        assert Tracing.from_environment() is None
    assert "trivium[tracing]" in caplog.text


def test_nothing_is_imported_unless_it_is_on():
    code = "import sys, trivium.doors.http.tracing as t; t.Tracing.from_environment(); print('opentelemetry' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output == "False\n"
