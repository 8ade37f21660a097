"""The document at `/openapi.json`: it describes what is served, and nothing else, and what it says holds."""

from __future__ import annotations

import json
import re

import jsonschema_rs
import pytest
from bad_days_parts import ask, ask_json, bad_day, head, key_line, post

from trivium.doors.http.infer.parameters import PARAMETERS
from trivium.doors.http.routes import business_routes, management_routes

STREAMING = {"/infer", "/infer_token", "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}


@pytest.fixture(scope="module")
def server():
    with bad_day() as running:
        yield running


@pytest.fixture(scope="module")
def document(server):
    return fetched(server)


def fetched(server, port=None):
    answer = ask(port or server, head("/openapi.json", *key_line(server), method="GET"))
    assert answer.status == 200
    return answer.json()


def served(routes):
    """(path, method) of routes as the document writes them; HEAD goes with GET."""
    found = set()
    for route in routes:
        path = re.sub(r"^/page/.+", "/page/{file}", re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path))
        found |= {(path, method.lower()) for method in route.methods if method != "HEAD"}
    return found


def described(document):
    return {(path, method) for path, methods in document["paths"].items() for method in methods}


def validator(document, schema):
    """Of values against a schema that may refer to the document's components."""
    return jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]})


def test_what_is_served_is_described_and_nothing_else(document):
    assert described(document) == served(business_routes() + management_routes(own_port=False))


def test_each_port_describes_its_own_routes():
    with bad_day(options={"management_port": 0}, check=False) as server:
        assert described(fetched(server)) == served(business_routes())
        operators = fetched(server, server.server.management_port)
        assert described(operators) == served(management_routes(own_port=True))
        assert ("/shutdown", "post") in described(operators)


def test_it_is_an_openapi_document(document):
    assert document["openapi"] == "3.1.0"
    names = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(names) == len(set(names))
    for path, methods in document["paths"].items():
        for operation in methods.values():
            told = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
            assert told == set(re.findall(r"\{(\w+)\}", path))
            assert all(re.fullmatch("[1-5][0-9][0-9]", status) for status in operation["responses"])
            assert all(response["description"] for response in operation["responses"].values())


def test_every_schema_is_one_and_every_reference_leads_somewhere(document):
    schemas = list(document["components"]["schemas"].values())
    for methods in document["paths"].values():
        for operation in methods.values():
            holders = [operation.get("requestBody", {}), *operation["responses"].values()]
            schemas += [one["schema"] for holder in holders for one in holder.get("content", {}).values()]
    assert len(schemas) > 200
    for schema in schemas:
        jsonschema_rs.meta.validate(schema)
    used = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert used == set(document["components"]["schemas"])


def test_every_route_tells_its_errors(document):
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            statuses = set(operation["responses"])
            assert {"400", "401", "403", "408", "429", "431", "500", "503"} <= statuses, path
            if method == "post" and path != "/shutdown":
                assert "413" in statuses
            assert {"422", "424"} <= statuses or path not in ("/infer", "/infer_token")
            form = operation["responses"]["400"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            infer = path in ("/infer", "/infer_token", "/v1/tokenizer")
            anthropic = path.startswith("/v1/messages")
            assert form == ("InferError" if infer else "AnthropicError" if anthropic else "OpenAIError")


def test_examples_are_taken_and_answered_as_described(server, document):
    tried = 0
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method != "post":
                continue
            content = operation["requestBody"]["content"]["application/json"]
            example = content["example"]
            validator(document, content["schema"]).validate(example)
            answer = ask_json(server, path, example)
            assert answer.status == 200, (path, answer)
            told = operation["responses"]["200"]["content"]
            validator(document, told["application/json"]["schema"]).validate(answer.json())
            assert ("text/event-stream" in told) == (path in STREAMING)
            if path in STREAMING:
                answer = ask_json(server, path, {**example, "stream": True})
                assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
            tried += 1
    assert tried == 10


def test_what_can_be_got_is_as_described(server, document):
    for path, methods in document["paths"].items():
        if "get" not in methods:
            continue
        responses = methods["get"]["responses"]
        for name in {"/page/{file}": ["app.js", "page.css", "icon.svg"], "/v1/models/{id}": ["fake"]}.get(path, [""]):
            answer = ask(server, head(re.sub(r"\{\w+\}", name, path), method="GET"))
            assert answer.status == 200, (path, answer)
            if "content" in responses["200"]:
                media_type = answer.headers["content-type"].partition(";")[0]
                schema = responses["200"]["content"][media_type]["schema"]
                value = answer.json() if media_type == "application/json" else answer.body.decode()
                validator(document, schema).validate(value)
            else:
                assert not answer.body


def test_errors_are_as_described(server, document):
    for path, methods in document["paths"].items():
        for operation in methods.values():
            if "requestBody" not in operation:
                continue
            answer = ask_json(server, path, b"[]")
            schema = operation["responses"][str(answer.status)]["content"]["application/json"]["schema"]
            validator(document, schema).validate(answer.json())


def test_ranges_come_from_the_tables(document):
    schema = document["components"]["schemas"]["InferParameters"]["properties"]
    assert list(schema) == [parameter.name for parameter in PARAMETERS]
    assert schema["priority"]["maximum"] == 5
    assert document["components"]["schemas"]["ChatRequest"]["properties"]["n"]["maximum"] == 128


def test_files_of_the_page_are_listed(document):
    file = next(one for one in document["paths"]["/page/{file}"]["get"]["parameters"] if one["name"] == "file")
    assert "app.js" in file["schema"]["enum"]


def test_keys_are_told_where_they_are_wanted(document):
    assert "security" not in document
    with bad_day(options={"api_key": ["sesame"]}) as server:
        assert ask(server, head("/openapi.json", method="GET")).status == 401
        guarded = fetched(server)
        assert guarded["security"] == [{"bearer": []}, {"key": []}]
        assert set(guarded["components"]["securitySchemes"]) == {"bearer", "key"}
        for path, methods in guarded["paths"].items():
            for method, operation in methods.items():
                is_open = operation.get("security") == []
                path = path.replace("{file}", "app.js").replace("{id}", "fake")
                data = post(path, b"{}") if method == "post" else head(path, method="GET")
                assert (ask(server, data).status != 401) == is_open, path


# Fields that are right only together with others.
DEPENDENT = {"best_of", "continue_final_message", "stream_options", "structured_outputs", "tool_choice", "top_logprobs"}


def ends(schema):
    """Values of a schema at the ends of its range."""
    if "null" in schema.get("type", ()) or None in schema.get("enum", ()):
        yield None
    yield from (value for value in schema.get("enum", ()) if value is not None)
    yield from (schema[name] for name in ("minimum", "maximum") if name in schema)
    if "boolean" in schema.get("type", ()):
        yield from (False, True)


def members(document, schema):
    """The properties of an object, or of every alternative."""

    def found(schema):
        return document["components"]["schemas"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema

    schema = found(schema)
    for kind in schema.get("oneOf", [schema]):
        for name, inner in kind["properties"].items():
            yield name, inner
            if name == "parameters":
                yield from ((("parameters", key), value) for key, value in found(inner)["properties"].items())


@pytest.mark.parametrize("path", sorted({*STREAMING, "/detokenize", "/v1/tokenizer", "/v1/messages/count_tokens"}))
def test_each_field_is_taken_at_the_ends_of_its_range(server, document, path):
    content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    example = content["example"]
    if path in ("/v1/chat/completions", "/v1/completions"):
        example = {**example, "max_tokens": 2}
    tried = 0
    for name, schema in members(document, content["schema"]):
        for value in ends(schema):
            if name in DEPENDENT and value is not None:
                continue
            if isinstance(name, tuple):
                body = {**example, "parameters": {"max_new_tokens": 2, name[1]: value}}
            elif name in example and value is None:
                continue  # what must be given
            else:
                body = {**example, name: value}
            if name == "max_tokens" and value == 0:
                body["echo"] = True
            answer = ask_json(server, path, body)
            assert answer.status == 200, (body, answer)
            tried += 1
    assert tried
