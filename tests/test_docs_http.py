"""The tables of docs/http.md say what the code says. Those that are made of code must stand there word for word."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
from fake_engine import FakeEngine

from trivium.cli.bench.serve import command as bench_command
from trivium.cli.serve import command as serve_command
from trivium.config import EngineConfig
from trivium.doors.http import limits
from trivium.doors.http.anthropic import request as messages_request
from trivium.doors.http.config import ServerConfig
from trivium.doors.http.errors import HttpError, form_of
from trivium.doors.http.infer import parameters
from trivium.doors.http.infer.mindie_keys import KEYS
from trivium.doors.http.metrics import Metrics
from trivium.doors.http.openai import request as openai_request
from trivium.doors.http.openapi import chat, messages, responses
from trivium.doors.http.responses import request as responses_request
from trivium.doors.http.routes import business_routes, management_routes
from trivium.parsing import grammar, reasoning_parsers, tool_parsers

PAGE = Path(__file__).parents[1] / "docs" / "http.md"
TEXT = PAGE.read_text(encoding="utf-8")


def section(title: str) -> str:
    """The text from a heading to the next of its level or a higher one."""
    match = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,2}} |\Z)", TEXT, re.S | re.M)
    assert match is not None, title
    return re.split(rf"^#{{1,{len(match[1])}}} ", match[2], flags=re.M)[0]


def rows(text: str, header: str) -> list[list[str]]:
    """The cells of the table whose first line begins so."""
    lines = text[text.index(f"| {header}") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def spans(text: str) -> list[str]:
    """What stands between backticks, outside of blocks."""
    return re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))


def names(cells: list[list[str]]) -> set[str]:
    """The names in a table's first column."""
    return {name for row in cells for name in spans(row[0])}


def options_table() -> str:
    """Flags of the server."""

    def default(name: str) -> str:
        value = ServerConfig.default(name)
        if value is None or value == []:
            return ""
        return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"

    helps = ServerConfig.help()
    return "\n".join(f"| `--{f.name.replace('_', '-')}` | {default(f.name)} | {helps[f.name]} |" for f in fields(ServerConfig))


def metrics_table() -> str:
    """Everything that `/metrics` tells of ours."""
    metrics = Metrics()
    metrics.attach(FakeEngine())
    lines = []
    for family in metrics.families():
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = [label for label in family._labelnames if label != "model_name"]
        told = "the configuration" if name == "trivium:cache_config_info" else ", ".join(f"`{label}`" for label in labels)
        lines.append(f"| `{name}` | {family.type} | {told} | {family.documentation} |")
    return "\n".join(lines)


def refused_table() -> str:
    """Fields of the OpenAI API that may only ask for nothing."""
    lines = []
    for name, neutral in openai_request.WITHOUT_EFFECT.items():
        allowed = " or ".join(f"`{openai_request.json.dumps(value)}`" for value in neutral)
        lines.append(f"| `{name}` | {allowed or 'unset'} |")
    return "\n".join(lines)


@pytest.mark.parametrize("table", [options_table, metrics_table, refused_table, parameters.parameters_table])
def test_tables_that_are_made_of_code(table) -> None:
    assert table().strip() in TEXT, f"docs/http.md must hold\n{table()}"


def test_options_exist() -> None:
    """Every flag that is named is one of ours; of the table of vLLM's, those of the last column."""
    known = {
        name
        for command in (serve_command, bench_command)
        for option in command.params
        for name in (*option.opts, *option.secondary_opts)
    }
    vllm = section("Moving from vLLM")
    ours = "\n".join(row[-1] for row in rows(vllm, "vLLM | here")[:1] + rows(vllm, "vLLM | here")[2:])
    for text in (TEXT.replace(vllm, ""), ours):
        for flag in re.findall(r"`(--[a-z-]+)", text):
            assert flag in known, flag
    same = spans(rows(vllm, "vLLM | here")[1][0])
    assert len(same) > 10
    assert set(same) <= known


def test_commands_are_taken(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("server.toml", "conf/config.json"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    commands = re.findall(r"^(?:[A-Z_]+=\S+ )*trivium serve\b([^#\n]*)", TEXT, re.M)
    assert len(commands) > 5
    for words in commands:
        with serve_command.make_context("serve", shlex.split(words)):
            pass


def test_the_toml_file_is_taken(tmp_path) -> None:
    (block,) = re.findall(r"^```toml\n(.*?)^```", TEXT, re.S | re.M)
    (tmp_path / "server.toml").write_text(block)
    engine = EngineConfig.load(file=tmp_path / "server.toml", environ={})
    server = ServerConfig.load(file=tmp_path / "server.toml", environ={})
    assert (engine.max_model_len, server.api_key, server.request_timeout) == (4096, ["first-key", "second-key"], 120)


def test_limits() -> None:
    """Every cap has its row, with its value."""
    table = rows(section("Limits"), "limit | value")
    values = {name: getattr(limits, name) for name in limits.__all__}
    values |= {name: value for name, value in vars(grammar).items() if name.startswith("MAX_")}
    values["MAX_TOKENS"] = parameters.MAX_TOKENS
    told = {spans(row[2])[0]: row[1] for row in table}
    assert len(told) == len(table)
    assert {name for name in told if not name.startswith("--")} == set(values)
    for name, cell in told.items():
        if name.startswith("--"):
            field = name[2:].replace("-", "_")
            value = (ServerConfig if field in ServerConfig.help() else EngineConfig).default(field)
        else:
            value = values[name]
        number = re.match(r"[\d,.]+", cell)
        assert (None if number is None else float(number[0].replace(",", ""))) == value, name


def test_fields_of_openai_requests() -> None:
    known = set(chat.SCHEMAS["ChatRequest"]["properties"]) | set(chat.SCHEMAS["CompletionRequest"]["properties"])
    known |= {*openai_request._NOTED, "service_tier", "metadata"}
    text = section("Fields")
    assert names(rows(text, "field | meaning")) | names(rows(text[text.index("Extensions") :], "field | meaning")) == known


def test_fields_of_responses() -> None:
    text = section("Responses")
    assert names(rows(text, "field | meaning")) == set(responses.SCHEMAS["ResponseRequest"]["properties"])
    refused = spans(text[text.index("Refused:") :].split(", `item_reference`")[0])
    assert refused == list(responses_request._REFUSED)


def test_fields_of_messages() -> None:
    text = section("Anthropic messages")
    assert names(rows(text, "field | meaning")) == set(messages.SCHEMAS["MessageRequest"]["properties"])
    refused = spans(text[text.index("Refused:") :].split(", tools of")[0])
    assert refused == list(messages_request._REFUSED)
    assert set(messages_request._NOTED) <= set(spans(text))


def test_parsers() -> None:
    for registry, option in ((tool_parsers, "--tool-call-parser"), (reasoning_parsers, "--reasoning-parser")):
        match = re.search(rf"`{option}` \(([^)]*)\)", TEXT)
        assert match is not None
        assert spans(match[1]) == registry.names


def test_labels() -> None:
    metrics = Metrics()
    for family, label in (("requests_rejected", "reason"), ("request_success", "finished_reason")):
        (found,) = [one for one in metrics.families() if one.name == f"trivium:{family}"]
        match = re.search(rf"`{label}`[^`]* is one of ([^;.]*)[;.]", section("Metrics"))
        assert match is not None
        assert spans(match[1]) == [sample.labels[label] for sample in found.samples]


def test_mindie_keys() -> None:
    text = section("Moving from MindIE")
    table = rows(text, "key | becomes")
    assert names(table) == {key.name for key in KEYS if key.used}
    ignored = re.search(r"^Ignored, but checked: (.*?)\. ", text, re.S | re.M)
    assert ignored is not None
    assert spans(ignored[1]) == [key.name for key in KEYS if not key.used]


def test_errors() -> None:
    """Each status in each API's form."""
    table = rows(section("Errors"), "status | when")
    for row in table:
        error = HttpError(int(row[0]), "words")
        for cell, path in zip(row[2:], ("/v1/chat/completions", "/v1/messages", "/infer"), strict=True):
            if cell == "–":
                continue
            body = form_of(path).body(error)
            inner = body["error"] if isinstance(body["error"], dict) else body
            kind = inner.get("type") if path != "/infer" else inner["error_type"]
            assert kind == (spans(cell) or [cell])[0], row
            if path == "/v1/chat/completions":
                assert inner["code"] == (spans(cell)[1] if len(spans(cell)) > 1 else None), row


def test_routes_exist() -> None:
    """Whatever path is named with its method is served, except where the text says that it is not there."""
    served = {
        (method, re.sub(r"\{.*\}", "NAME", route.path))
        for route in business_routes() + management_routes(own_port=True)
        for method in route.methods
    }
    text = TEXT.replace(section("Moving from MindIE"), "").replace(section("Moving from vLLM"), "")
    found = re.findall(r"`(GET|POST) (/[^`?]*)", text)
    assert len(found) > 15
    assert set(found) <= served
    for path in re.findall(r"http://127\.0\.0\.1:8000(/[\w/.]*)", TEXT):
        assert path == "/v1" or path in {route for _, route in served}, path
