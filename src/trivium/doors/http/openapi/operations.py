"""Routes for operators and browsers: health, metrics, statistics, the page, this document."""

from __future__ import annotations

from trivium.doors.http.openapi.kinds import Schema, choice, integer, mapping, number, record, string
from trivium.doors.http.openapi.operation import Operation, Payload

__all__ = ["OPERATIONS"]

_JSON = "application/json"


def _probe(path: str, name: str, summary: str, good: tuple[str, ...], bad: tuple[str, ...]) -> Operation:
    answers = {
        200: Payload("Yes", {_JSON: record({"status": choice(*good)})}),
        503: Payload("No, or the server has too many connections", {_JSON: record({"status": choice(*bad)})}),
    }
    return Operation("get", path, name, "Operation", summary, answers, is_open=True)


def _vendor_probe(path: str, name: str, summary: str) -> Operation:
    return Operation("get", path, name, "Operation", summary, {200: Payload("Yes"), 503: Payload("No")}, is_open=True)


def _stop(method: str, path: str, name: str, **more: object) -> Operation:
    answers = {200: Payload("It will end", {_JSON: record({"status": {"const": "stopping"}})})}
    return Operation(method, path, name, "Operation", "Let running work finish, and end.", answers, **more)  # type: ignore[arg-type]


_STATS: dict[str, Schema] = {
    "model": string(),
    "max_model_len": integer(1),
    "uptime": number(0, text="Seconds"),
    "running": integer(0),
    "waiting": integer(0),
    "kv_used": integer(0, text="Blocks held by requests"),
    "kv_total": integer(1),
    "prompt_tokens": integer(0, text="Computed, without those found in the prefix cache"),
    "generated_tokens": integer(0),
    "prefix_queries": integer(0),
    "prefix_hits": integer(0),
}
_FILE = {"name": "file", "in": "path", "required": True, "schema": string()}
_MODE = {
    "name": "mode",
    "in": "query",
    "description": "Force gives running work 5 seconds at most",
    "schema": choice("Force"),
}

OPERATIONS = (
    _probe("/health", "health", "Whether the engine makes steps.", ("ok", "loading"), ("hanging", "dead")),
    _probe("/ready", "ready", "Whether requests are taken.", ("ready",), ("loading", "draining", "dead")),
    _vendor_probe("/v2/health/live", "live", "/health for MindIE's probes."),
    _vendor_probe("/v2/health/ready", "vendorReady", "/ready for MindIE's probes."),
    Operation(
        "get",
        "/version",
        "version",
        "Operation",
        "The server's version.",
        {200: Payload("The version", {_JSON: record({"version": string()})})},
    ),
    Operation(
        "get",
        "/metrics",
        "metrics",
        "Operation",
        "Counters, gauges and histograms for Prometheus.",
        {200: Payload("Prometheus' text format", {"text/plain": string()})},
    ),
    Operation(
        "get",
        "/stats",
        "stats",
        "Operation",
        "The engine's state; counters grow from its start.",
        {200: Payload("The state", {_JSON: record(_STATS)})},
    ),
    Operation(
        "get",
        "/openapi.json",
        "openapi",
        "Operation",
        "This document.",
        {200: Payload("The document", {_JSON: mapping()})},
    ),
    _stop("get", "/stopService", "stopService", parameters=(_MODE,)),
    _stop("post", "/shutdown", "shutdown"),
    Operation(
        "get",
        "/",
        "page",
        "Page",
        "A page to talk to the model.",
        {200: Payload("The page", {"text/html": string()}), 304: Payload("The client has it")},
        is_open=True,
    ),
    Operation(
        "get",
        "/page/{file}",
        "pageFile",
        "Page",
        "What the page loads.",
        {
            200: Payload("A file", {kind: string() for kind in ("text/css", "text/javascript", "image/svg+xml")}),
            304: Payload("The client has it"),
        },
        parameters=(_FILE,),
        also=(404,),
        is_open=True,
    ),
)
