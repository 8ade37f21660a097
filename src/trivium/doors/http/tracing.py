"""Traces for OpenTelemetry: a span per exchange that asked for an answer. Needs the extra `tracing`, and is off by default."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Receive, Scope, Send

from trivium.doors.dispatcher import Generation

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

    from trivium.doors.http.door import HttpDoor

__all__ = ["Tracing", "TracingMiddleware"]

log = logging.getLogger("trivium.http")

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_CLOSE_SECONDS = 5.0


class Tracing:
    """Makes spans and has `processor` send them: on its own thread, unless it is told to do so at once.

    Names and attributes are those of vLLM's spans.
    """

    def __init__(self, processor: SpanProcessor) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace import SpanKind, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        resource = Resource.create({} if named else {"service.name": "trivium"})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("trivium")
        self._propagator = TraceContextTextMapPropagator()
        self._kind, self._error = SpanKind.SERVER, StatusCode.ERROR

    @classmethod
    def from_environment(cls) -> Tracing | None:
        """Send to the endpoint that OpenTelemetry's own variables name; None where they name none, or with a warning."""
        endpoint = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)
        if endpoint is None or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            return None
        protocol = next((os.environ[name] for name in _PROTOCOLS if os.environ.get(name)), "http/protobuf")
        if protocol != "http/protobuf":
            log.warning("no traces are sent: the protocol must be http/protobuf, got %r", protocol)
            return None
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            log.warning("no traces are sent to %s: %s; pip install 'trivium[tracing]' gives what is missing", endpoint, error)
            return None
        try:
            tracing = cls(BatchSpanProcessor(OTLPSpanExporter()))
        except Exception as error:  # whatever the packages make of a wrong variable must not keep the server from running
            log.warning("no traces are sent to %s: %s", endpoint, error)
            return None
        log.info("traces: %s", endpoint)
        return tracing

    def close(self) -> None:
        """Send what is left, if that takes no longer than a few seconds, and end. Blocks."""
        ending = threading.Thread(target=self._provider.shutdown, name="trivium-tracing", daemon=True)
        ending.start()
        ending.join(_CLOSE_SECONDS)

    def record(self, scope: Scope, generation: Generation, model: str, start: int, end: int) -> None:
        """Make the span of an exchange that is over. `start` and `end` are nanoseconds of the wall clock."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        span = self._tracer.start_span(
            "llm_request",
            self._propagator.extract(headers),
            self._kind,
            {"gen_ai.response.model": model, "gen_ai.request.id": scope["state"].get("request_id", "")},
            start_time=start,
        )
        if span.is_recording():
            span.set_attributes(_attributes(generation))
            failed = [delta for delta in generation.ended if delta.finish_reason in ("timeout", "error")]
            if failed:
                span.set_status(self._error, str(failed[0].error or failed[0].finish_reason))
        span.end(end)


class TracingMiddleware:
    """Records a span for every exchange whose requests came to the engine, if the door has tracing on."""

    def __init__(self, app: ASGIApp, door: HttpDoor) -> None:
        self._app = app
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tracing = self._door.tracing
        if tracing is None:
            await self._app(scope, receive, send)
            return
        start = time.time_ns()
        try:
            await self._app(scope, receive, send)
        finally:
            generation = scope.get("state", {}).get("generation")
            if generation is not None:
                tracing.record(scope, generation, self._door.engine.model_info.name, start, time.time_ns())


def _attributes(generation: Generation) -> dict[str, Any]:
    """What was asked, how much was read and written, and how long it took. Texts are not among it."""
    first = generation.requests[0]
    sampling = first.sampling
    num_samples = sum(request.n for request in generation.requests)
    reasons = [delta.finish_reason or "" for delta in generation.ended] + ["abort"] * (num_samples - len(generation.ended))
    asked = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": sampling.max_tokens,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "seed": sampling.seed
        if sampling.seed is None or sampling.seed < 2**63
        else None,  # an attribute has 64 bits and a sign
        "n": first.n,
    }
    attributes: dict[str, Any] = {f"gen_ai.request.{name}": value for name, value in asked.items() if value is not None}
    attributes |= {
        "gen_ai.usage.num_sequences": num_samples,
        "gen_ai.usage.prompt_tokens": sum(len(request.prompt_token_ids) for request in generation.requests),
        "gen_ai.usage.completion_tokens": generation.num_output_tokens,
        "gen_ai.response.finish_reasons": reasons,
    }
    return attributes | _latencies(generation)


def _latencies(generation: Generation) -> dict[str, float]:
    """Seconds: to the earliest first token, and to the end of the sample that ended last. Empty until one has ended."""
    started = [delta.times for delta in generation.ended if delta.times.first_token]
    if not started:
        return {}
    first = min(started, key=lambda times: times.first_token)
    last = max(times.last_token for times in started)
    seconds = {
        "time_in_queue": first.scheduled - first.arrival,
        "time_to_first_token": first.first_token - first.arrival,
        "e2e": max(delta.time for delta in generation.ended) - first.arrival,
        "time_in_model_prefill": first.first_token - first.scheduled,
        "time_in_model_decode": last - first.first_token,
        "time_in_model_inference": last - first.scheduled,
    }
    return {f"gen_ai.latency.{name}": value for name, value in seconds.items()}
