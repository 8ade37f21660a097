from __future__ import annotations

import itertools
import json
import os
import pkgutil
import threading

import pytest
from cli_parts import FakeEngine, RoleTemplate, run, use_engine

from trivium.cli.batch_file import Results, read_lines
from trivium.cli.run_batch import BatchRun
from trivium.doors.http.openai.request import CHAT, COMPLETIONS


def chat_line(custom_id, text="hi", **body):
    body = {"messages": [{"role": "user", "content": text}], **body}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}


def completion_line(custom_id, prompt, **body):
    return {"custom_id": custom_id, "method": "POST", "url": COMPLETIONS, "body": {"prompt": prompt, **body}}


def write(path, *lines):
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))


def read(path):
    """Results by custom_id; their ids are all different."""
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert len({record["id"] for record in records}) == len(records)
    return {record["custom_id"]: record for record in records}


def reply(prompt, request, index):
    return f"{prompt[-4:]}#{index}"


def test_chat(monkeypatch, source, target):
    use_engine(monkeypatch, lambda *_: "hello")
    write(source, chat_line("a", n=2, logprobs=True, top_logprobs=1))
    result = run("run-batch", "-i", source, "-o", target)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "1 answered, 0 failed, 0 done before" in result.stderr
    record = read(target)["a"]
    assert record["error"] is None
    assert record["response"]["status_code"] == 200
    body = record["response"]["body"]
    assert body["object"] == "chat.completion"
    assert body["model"] == "fake"
    assert body["id"] == f"chatcmpl-{record['response']['request_id']}"
    first, second = body["choices"]
    assert (first["index"], second["index"]) == (0, 1)
    assert first["message"] == {"role": "assistant", "content": "hello"}
    assert first["finish_reason"] == "stop"
    assert first["logprobs"]["content"][0] == {
        "token": "h",
        "logprob": -0.5,
        "bytes": [104],
        "top_logprobs": [{"token": "i", "logprob": -2.0, "bytes": [105]}],
    }
    prompt_tokens = len("user: hi\nassistant: ")
    assert body["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 12,
        "total_tokens": prompt_tokens + 12,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_completions(monkeypatch, source, target):
    use_engine(monkeypatch, reply)
    write(source, completion_line("a", ["one.", "two."], n=2, logprobs=1, max_tokens=6))
    run("run-batch", "-i", source, "-o", target)
    body = read(target)["a"]["response"]["body"]
    assert body["object"] == "text_completion"
    assert [choice["text"] for choice in body["choices"]] == ["one.#0", "one.#1", "two.#0", "two.#1"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert {choice["finish_reason"] for choice in body["choices"]} == {"length"}
    assert body["usage"]["prompt_tokens"] == 8
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["tokens"] == list("one.#0")
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4, 5]
    assert logprobs["token_logprobs"] == [-0.5] * 6
    assert logprobs["top_logprobs"][0] == {"o": -0.5, "p": -2.0}


def test_bad_lines_stop_no_others(monkeypatch, source, target):
    use_engine(monkeypatch, reply)
    write(
        source,
        chat_line("unknown", echo=True),
        chat_line("range", temperature=-1),
        chat_line("stream", stream=True),
        "garbage",
        chat_line("good"),
        chat_line("good"),
        chat_line("long", "x" * 900),
        chat_line("fails", "boom"),
        completion_line("good too", "x"),
    )
    result = run("run-batch", "-i", source, "-o", target)
    assert result.exit_code == 0
    assert "2 answered, 7 failed" in result.stderr
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert len(lines) == 9
    by_id = {record["custom_id"]: record for record in lines if record["response"] is not None}
    assert by_id["unknown"]["response"]["status_code"] == 400
    assert by_id["unknown"]["response"]["body"]["error"]["param"] == "echo"
    assert "echo" in by_id["unknown"]["error"]["message"]
    assert by_id["range"]["response"]["body"]["error"]["param"] == "temperature"
    assert by_id["stream"]["response"]["body"]["error"]["param"] == "stream"
    assert by_id["long"]["response"]["status_code"] == 400
    assert by_id["fails"]["response"]["status_code"] == 500
    assert by_id["fails"]["error"]["message"] == "the step failed"
    assert by_id["good"]["error"] is None
    assert by_id["good too"]["error"] is None
    faults = [record["error"]["line"] for record in lines if record["response"] is None]
    assert faults == [4, 6]


def test_goes_on_after_a_crash(monkeypatch, source, target):
    opened = use_engine(monkeypatch, reply)
    write(source, *[chat_line(str(i), f"message {i}") for i in range(6)], "garbage")
    run("run-batch", "-i", source, "-o", target)
    whole = target.read_bytes().splitlines(keepends=True)
    kept = [line for line in whole if json.loads(line)["custom_id"] in ("1", "4", None)]
    target.write_bytes(b"".join(kept) + whole[0][:30])
    result = run("run-batch", "-i", source, "-o", target)
    assert "4 answered, 0 failed, 3 done before" in result.stderr
    assert target.read_bytes().startswith(b"".join(kept))
    assert sorted(read(target), key=str) == ["0", "1", "2", "3", "4", "5", None]
    assert len(opened[1].requests) == 4
    assert "0 answered, 0 failed, 7 done before" in run("run-batch", "-i", source, "-o", target).stderr


def test_overwrite(monkeypatch, source, target):
    use_engine(monkeypatch, reply)
    write(source, chat_line("a"))
    target.write_text("anything\n")
    result = run("run-batch", "-i", source, "-o", target)
    assert result.exit_code == 1
    assert "--overwrite" in result.stderr
    assert run("run-batch", "-i", source, "-o", target, "--overwrite").exit_code == 0
    assert list(read(target)) == ["a"]


def test_failures_of_the_engine_are_repeated(monkeypatch, source, target):
    use_engine(monkeypatch, reply)
    write(source, chat_line("a", "boom"), chat_line("b"), chat_line("c", temperature=-1))
    assert "1 answered, 2 failed" in run("run-batch", "-i", source, "-o", target).stderr
    assert "0 answered, 1 failed, 2 done before" in run("run-batch", "-i", source, "-o", target).stderr
    lines = [json.loads(line)["custom_id"] for line in target.read_text().splitlines()]
    assert sorted(lines) == ["a", "a", "b", "c"]


@pytest.mark.parametrize("broken", ["request.BodyReader.read", "response.response_body"])
def test_unforeseen_errors_stop_no_others(monkeypatch, caplog, source, target, broken):
    use_engine(monkeypatch, reply)
    owner, _, name = f"trivium.doors.http.openai.{broken}".rpartition(".")
    method = pkgutil.resolve_name(f"{owner}.{name}")
    calls = itertools.count()

    def fail_first(*args):
        if next(calls) == 0:
            raise ZeroDivisionError("by accident")
        return method(*args)

    monkeypatch.setattr(f"{owner}.{name}", fail_first)
    write(source, chat_line("a"), chat_line("b"))
    result = run("run-batch", "-i", source, "-o", target)
    assert result.exit_code == 0
    assert "1 answered, 1 failed" in result.stderr
    (failure,) = [record for record in read(target).values() if record["error"]]
    assert failure["response"]["status_code"] == 500
    assert failure["error"]["message"] == "ZeroDivisionError: by accident"
    (record,) = caplog.records
    assert record.exc_info[0] is ZeroDivisionError


def test_requests_from_a_pipe(monkeypatch, tmp_path, target):
    use_engine(monkeypatch, reply)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=write, args=(pipe, chat_line("a"), chat_line("b")))
    writer.start()
    result = run("run-batch", "-i", pipe, "-o", target)
    writer.join()
    assert "2 answered, 0 failed" in result.stderr
    assert sorted(read(target)) == ["a", "b"]


def test_full_disk(monkeypatch, source):
    use_engine(monkeypatch, reply)
    write(source, chat_line("a"))
    result = run("run-batch", "-i", source, "-o", "/dev/full")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "trivium: error: No space left on device"


def test_same_file(source):
    write(source, chat_line("a"))
    result = run("run-batch", "-i", source, "-o", source, "--overwrite")
    assert result.exit_code == 2
    assert source.read_text() == json.dumps(chat_line("a")) + "\n"


def test_in_flight_is_bounded_and_batched(source, target):
    most = 0

    def watch(prompt, request, index):
        nonlocal most
        most = max(most, len(engine.running) + len(engine.waiting))
        return "answer"

    with FakeEngine(watch, max_num_seqs=4, max_waiting=6, chat_template=RoleTemplate()) as engine:
        write(source, *[chat_line(str(i), n=1 + i % 3) for i in range(30)], completion_line("many", ["x"] * 20, n=3))
        with Results(target) as results:
            batch = BatchRun(engine, results)
            batch.answer(read_lines(source))
        assert (batch.answered, batch.failed) == (31, 0)
        assert engine.idle
        assert 4 <= most < 6
    assert len(read(target)["many"]["response"]["body"]["choices"]) == 60


def test_results_come_as_they_are_ready(source, target):
    gate = threading.Semaphore(0)
    seen = []

    def on_result():
        seen.append([json.loads(line)["custom_id"] for line in target.read_text().splitlines()])

    with FakeEngine(lambda prompt, *_: prompt[0] * int(prompt[1]), gate=gate, max_num_seqs=4) as engine:
        write(source, completion_line("long", "a9"), completion_line("short", "b2"))
        gate.release(100)
        with Results(target) as results:
            BatchRun(engine, results, on_result).answer(read_lines(source))
        gate.release(100)
    assert seen == [["short"], ["short", "long"]]


def test_tools_and_thought(monkeypatch, source, target):
    text = 'hm</think>\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    use_engine(monkeypatch, lambda *_: text, reasoning_parser="ernie-x1", tool_call_parser="ernie-x1")
    tools = [{"type": "function", "function": {"name": "weather"}}]
    write(source, chat_line("tools", tools=tools), chat_line("none"))
    run("run-batch", "-i", source, "-o", target)
    results = read(target)
    (choice,) = results["tools"]["response"]["body"]["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning_content"] == "hm"
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Rome"}
    (choice,) = results["none"]["response"]["body"]["choices"]
    assert choice["finish_reason"] == "stop"
    assert "tool_calls" not in choice["message"]


def test_missing_files(tmp_path, target):
    assert run("run-batch", "-i", tmp_path / "none", "-o", target).exit_code == 2
    assert run("run-batch", "-o", target).exit_code == 2
