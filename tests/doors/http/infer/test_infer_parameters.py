"""Every row of the original's table of parameters: what it takes, what it refuses, and how."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import jsonschema_rs
import pytest
from http_parts import serving
from infer_parts import script_engine

from trivium.doors.http.infer.parameters import PARAMETERS, body_schema, parameters_table

MAX_INT32 = 2**31 - 1
MAX_UINT64 = 2**64 - 1

GOOD = {
    "temperature": [0.5, 1, 2, 0.001, 1.1e-6, 1000, 3e300, MAX_UINT64],
    "top_k": [1, 10, 1000, MAX_INT32],
    "top_p": [0.95, 1.1e-6, 0.999999],
    "typical_p": [0.5, 1, 1.0, 1e-9],
    "do_sample": [True, False],
    "seed": [1, 846930886, 2**63, MAX_UINT64],
    "repetition_penalty": [1.03, 1, 0.5, 1e-30, 1e-300, 2, 1e300],
    "watermark": [True, False],
    "priority": [1, 2, 3, 4, 5],
    "max_new_tokens": [1, 20, MAX_INT32],
    "timeout": [1, 10, 3600],
    "details": [True, False],
}

NO_NUMBER = ["0.5", True, False, [0.5], {}]
NO_INTEGER = [*NO_NUMBER, 10.0, 1.5, "10"]
NO_BOOLEAN = [0, 1, 1.0, "true", "", [], {}]
BAD = {
    "temperature": ("> 1e-06", [*NO_NUMBER, 1e-6, 0, 0.0, -1, -0.5, -1e300]),
    "top_k": (">= 1 and <= 2147483647", [*NO_INTEGER, 0, -1, MAX_INT32 + 1, MAX_UINT64, MAX_UINT64 + 1]),
    "top_p": ("> 1e-06 and < 1", [*NO_NUMBER, 1e-6, 0, 1, 1.0, 1.5, -0.1]),
    "typical_p": ("> 0 and <= 1", [*NO_NUMBER, 0, 0.0, 1.0001, 2, -1]),
    "do_sample": ("true or false", NO_BOOLEAN),
    "seed": ("<= 18446744073709551615", [*NO_INTEGER, 0, -1, MAX_UINT64 + 1, 1e30]),
    "repetition_penalty": ("> 0", [*NO_NUMBER, 0, 0.0, -1, -0.1]),
    "watermark": ("true or false", NO_BOOLEAN),
    "priority": (">= 1 and <= 5", [*NO_INTEGER, 0, -1, 6]),
    "max_new_tokens": (">= 1 and <= 2147483647", [*NO_INTEGER, 0, -1, MAX_INT32 + 1]),
    "timeout": (">= 1 and <= 3600", [*NO_INTEGER, 0, -1, 3601]),
    "details": ("true or false", NO_BOOLEAN),
}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    engine = script_engine("ok")
    with serving(engine) as server, httpx.Client(base_url=server.url) as client:
        yield client
    engine.shutdown()


def refused(client: httpx.Client, body: object, status: int = 422) -> str:
    """The error's text. It is plain JSON, whatever the body asks for."""
    response = client.post("/infer", content=body if isinstance(body, (bytes, str)) else json.dumps(body))
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    assert list(answer) == ["error", "error_type"]
    assert answer["error_type"] == {422: "Input Validation Error", 424: "Generation Error"}[status]
    return answer["error"]


def test_the_tables_have_the_same_rows() -> None:
    assert [p.name for p in PARAMETERS] == list(GOOD) == list(BAD)


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in GOOD.items() for value in values])
def test_values_that_are_taken(client: httpx.Client, key: str, value: object) -> None:
    response = client.post("/infer", json={"inputs": "hello", "parameters": {key: value}})
    assert response.status_code == 200, response.text
    assert response.json()["generated_text"] == ("o" if (key, value) == ("max_new_tokens", 1) else "ok")


@pytest.mark.parametrize("key", GOOD)
def test_null_is_absent(client: httpx.Client, key: str) -> None:
    response = client.post("/infer", json={"inputs": "hello", "stream": None, "parameters": {key: None}})
    assert response.json() == {"generated_text": "ok"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("key", "value"), [(key, value) for key, (_, values) in BAD.items() for value in values])
def test_values_that_are_refused(client: httpx.Client, key: str, value: object, stream: bool) -> None:
    message = refused(client, {"inputs": "hello", "stream": stream, "parameters": {key: value}})
    assert message.startswith(f"parameters.{key} must be ")
    assert BAD[key][0] in message
    shown = float(value) if isinstance(value, int) and value > MAX_UINT64 else value
    assert message.endswith(f"got {shown!r}")


@pytest.mark.parametrize("number", ["1e400", "NaN", "Infinity", "-1e999"])
def test_numbers_that_are_no_json(client: httpx.Client, number: str) -> None:
    refused(client, '{"inputs": "hello", "parameters": {"temperature": ' + number + "}}")


@pytest.mark.parametrize("parameters", [[], "", 0, True, [{}]])
def test_parameters_must_be_an_object(client: httpx.Client, parameters: object) -> None:
    assert refused(client, {"inputs": "hello", "parameters": parameters}).startswith("parameters must be an object")


@pytest.mark.parametrize("stream", [0, 1, "true", [], {}])
def test_stream_must_be_a_boolean(client: httpx.Client, stream: object) -> None:
    assert refused(client, {"inputs": "hello", "stream": stream}).startswith("stream must be true or false")


def test_the_first_wrong_thing_is_told(client: httpx.Client) -> None:
    """Inputs, then the parameters in the vendor's order, then stream, then what the model takes."""
    wrong: dict[str, object] = dict.fromkeys(reversed(BAD), "wrong")
    body = {"stream": 1, "parameters": wrong, "inputs": 5}
    assert "inputs" in refused(client, body)
    body["inputs"] = "x" * 300  # too long for the model, which is looked at last
    for key in BAD:
        assert refused(client, body).startswith(f"parameters.{key} must be")
        del wrong[key]
    assert refused(client, body).startswith("stream")
    del body["stream"]
    assert "at most 255 tokens, got 300" in refused(client, body, 424)


def test_a_long_wrong_value_is_cut_short(client: httpx.Client) -> None:
    assert len(refused(client, {"inputs": "hello", "parameters": {"top_k": "x" * 10**6}})) < 400
    assert len(refused(client, {"inputs": "hello", "parameters": {"top_k": [1] * 10**5}})) < 400


def test_the_schema_says_the_same() -> None:
    schema = jsonschema_rs.Draft202012Validator(body_schema())
    for key, values in GOOD.items():
        for value in [*values, None]:
            assert schema.is_valid({"inputs": "hello", "parameters": {key: value}}), (key, value)
    for key, (_, values) in BAD.items():
        for value in values:
            if value != 10.0:  # an integer to JSON schema
                assert not schema.is_valid({"inputs": "hello", "parameters": {key: value}}), (key, value)
    assert schema.is_valid({"inputs": [{"type": "text", "text": "a"}, {"text": "b"}], "stream": True, "parameters": None})
    assert schema.is_valid({"input_id": [1, 2, 1048576], "unknown": 1})
    for body in ({}, {"inputs": ""}, {"inputs": []}, {"inputs": "a", "input_id": [1]}, {"input_id": []}, {"input_id": [-1]}):
        assert not schema.is_valid(body), body


def test_the_table_of_the_docs_has_a_row_for_each() -> None:
    lines = parameters_table().splitlines()
    assert len(lines) == 2 + len(PARAMETERS)
    assert all(f"| `{p.name}` | {p.allowed} |" in line for p, line in zip(PARAMETERS, lines[2:], strict=True))
