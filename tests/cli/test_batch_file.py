from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trivium.cli.batch_file import BatchLine, Results, count_lines, read_lines
from trivium.doors.http.openai.request import CHAT, COMPLETIONS
from trivium.errors import ConfigError


def line(**changes):
    return {"custom_id": "a", "method": "POST", "url": CHAT, "body": {}, **changes}


def error_body(message):
    return {"error": {"message": message, "type": "invalid_request_error", "param": "n", "code": None}}


def read(path, *lines):
    path.write_bytes(b"".join((item if isinstance(item, bytes) else json.dumps(item).encode()) + b"\n" for item in lines))
    return list(read_lines(path))


def test_requests(source):
    first, second = read(source, line(body={"n": 1}), b"", line(custom_id="b", url=COMPLETIONS))
    assert first == BatchLine(1, "a", CHAT, {"n": 1})
    assert second == BatchLine(3, "b", COMPLETIONS, {})
    assert count_lines(source) == 2


def test_last_line_without_a_line_break(source):
    source.write_text(json.dumps(line()))
    assert [item.custom_id for item in read_lines(source)] == ["a"]
    assert count_lines(source) == 1


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (b"garbage", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'"\xff"', "not JSON"),
        ([1], "must be an object"),
        (line(custom_id=None), "custom_id"),
        (line(custom_id=""), "custom_id"),
        (line(custom_id=3), "custom_id"),
        (line(method="GET"), "method must be POST, got 'GET'"),
        (line(url="/v1/embeddings"), "url must be"),
        (line(url=[]), "url must be"),
        (line(body=None), "body must be an object"),
    ],
)
def test_faults(source, wrong, fault):
    bad, good = read(source, wrong, line(custom_id="good"))
    assert fault in bad.fault
    assert good.fault is None


def test_second_line_of_one_id(source):
    first, second, third = read(source, line(), line(body={"n": 2}), line(method="GET"))
    assert first.fault is None
    assert "'a' was there before" in second.fault
    assert "method" in third.fault


def test_results(target):
    request, fault = BatchLine(1, "ä"), BatchLine(2, None, fault="not JSON")
    with Results(target) as results:
        results.answer(request, "r1", {"text": "ü\ud800"})
        assert len(target.read_text("utf-8").splitlines()) == 1  # at once, not at the end
        results.fault(fault)
        results.failure(BatchLine(3, "c"), "r3", 400, error_body("wrong"))
    assert "ä" in target.read_text("utf-8")
    answer, invalid, failure = [json.loads(text) for text in target.read_text("utf-8").splitlines()]
    assert answer.pop("id").startswith("batch_req_")
    assert answer == {
        "custom_id": "ä",
        "response": {"status_code": 200, "request_id": "r1", "body": {"text": "ü\ud800"}},
        "error": None,
    }
    assert invalid["response"] is None
    assert invalid["error"] == {"code": "invalid_line", "message": "line 2: not JSON", "line": 2}
    assert failure["response"]["status_code"] == 400
    assert failure["response"]["body"]["error"]["param"] == "n"
    assert failure["error"] == {"code": "400", "message": "wrong"}


def test_resume(target):
    done, fault, refused = BatchLine(1, "a"), BatchLine(2, "a", fault="twice"), BatchLine(3, "c")
    with Results(target) as results:
        assert not any(map(results.has, (done, fault, refused)))
        results.answer(done, "r", {})
        results.fault(fault)
        results.failure(refused, "r", 400, error_body("wrong"))
    whole = target.read_bytes()
    target.write_bytes(whole + b'{"id": "batch_req_1", "custom_id": "d", "resp')
    with Results(target) as results:
        assert target.read_bytes() == whole
        assert all(map(results.has, (done, fault, refused)))
        assert not results.has(BatchLine(4, "d"))
        assert not results.has(BatchLine(5, "a", fault="twice"))
        results.answer(BatchLine(4, "d"), "r", {})
    assert target.read_bytes().startswith(whole)
    assert target.read_bytes().count(b"\n") == 4


@pytest.mark.parametrize("status", [429, 500, 503])
def test_failures_that_may_pass_are_not_held(target, status):
    line = BatchLine(1, "a")
    with Results(target) as results:
        results.failure(line, "r", status, error_body("later"))
    with Results(target) as results:
        assert not results.has(line)
        results.answer(line, "r", {})
    with Results(target) as results:
        assert results.has(line)
    assert len(target.read_bytes().splitlines()) == 2


@pytest.mark.parametrize("torn", [b"{", b'{"id": "bat', b'{"id": "batch_req_1"'])
def test_torn_first_line(target, torn):
    target.write_bytes(torn)
    with Results(target) as results:
        results.answer(BatchLine(1, "a"), "r", {})
    assert [json.loads(text)["custom_id"] for text in target.read_text().splitlines()] == ["a"]


def test_overwrite(target):
    with Results(target) as results:
        results.answer(BatchLine(1, "a"), "r", {})
    with Results(target, overwrite=True) as results:
        assert not results.has(BatchLine(1, "a"))
    assert target.read_bytes() == b""


@pytest.mark.parametrize("content", [b"notes\n", b"[1]\n", b'{"custom_id": "a"}\n', b'{"custom_id": [], "error": null}\n'])
def test_other_files_are_left_alone(target, content):
    target.write_bytes(content + b"torn")
    with pytest.raises(ConfigError, match="line 1 is no result of run-batch; --overwrite"):
        Results(target)
    assert target.read_bytes() == content + b"torn"


@pytest.mark.parametrize("content", [b'{"precious": 1}', b"notes", b'{"id": 1}', b'{"id": "batch"}'])
def test_other_files_without_a_line_break_are_left_alone(target, content):
    target.write_bytes(content)
    with pytest.raises(ConfigError, match="line 1 is no result of run-batch; --overwrite"):
        Results(target)
    assert target.read_bytes() == content


def test_device_is_not_read(tmp_path):
    with Results(Path("/dev/null")) as results:
        results.answer(BatchLine(1, "a"), "r", {})
        assert not results.has(BatchLine(1, "a"))


def test_pipe_is_written(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with Results(pipe) as results:
        results.answer(BatchLine(1, "a"), "r", {})
        assert json.loads(os.read(reader, 65536))["custom_id"] == "a"
    os.close(reader)


def test_target_that_cannot_be_written(tmp_path):
    with pytest.raises(ConfigError, match="cannot write"):
        Results(tmp_path / "none" / "out.jsonl")
