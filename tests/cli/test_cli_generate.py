from __future__ import annotations

import json

import pytest
from cli_parts import run, use_engine


def echo(prompt, request, index):
    return f"<{prompt}>"


def test_prompt_goes_through_the_template(monkeypatch):
    opened = use_engine(monkeypatch, echo)
    result = run("generate", "Hi", "--system", "Be kind.")
    assert result.exit_code == 0
    assert result.stdout == "<system: Be kind.\nuser: Hi\nassistant: >\n"
    assert result.stderr == ""
    assert opened[0].opened_with.max_num_seqs == 1


def test_raw(monkeypatch):
    use_engine(monkeypatch, echo)
    assert run("generate", "--raw", "Once").stdout == "<Once>\n"


def test_model_without_a_template(monkeypatch):
    use_engine(monkeypatch, echo, chat_template=None)
    assert run("generate", "Once").stdout == "<Once>\n"
    result = run("generate", "Once", "--system", "Be kind.")
    assert result.exit_code == 1
    assert "no chat template" in result.stderr


def test_no_second_line_break(monkeypatch):
    use_engine(monkeypatch, lambda *_: "text\n")
    assert run("generate", "x").stdout == "text\n"


def test_stdin(monkeypatch):
    use_engine(monkeypatch, echo)
    assert run("generate", "--raw", "-", stdin="two\nlines\n").stdout == "<two\nlines>\n"


def test_stdin_that_is_not_text(monkeypatch):
    use_engine(monkeypatch, echo)
    result = run("generate", "-", stdin=b"\xff\xfe")
    assert result.exit_code == 2
    assert "UTF-8" in result.stderr


def test_system_with_raw(monkeypatch):
    opened = use_engine(monkeypatch, echo)
    assert run("generate", "--raw", "--system", "x", "y").exit_code == 2
    assert opened == []


def test_sampling_reaches_the_engine(monkeypatch):
    opened = use_engine(monkeypatch, echo, generation_defaults={"top_k": 9})
    run("generate", "x", "--seed", "3", "--temperature", "0.5", "--stop", "end", "--max-tokens", "4")
    sampling = opened[0].requests[0].sampling
    assert (sampling.seed, sampling.temperature, sampling.stop, sampling.max_tokens, sampling.top_k) == (3, 0.5, ("end",), 4, 9)


def test_wrong_sampling_loads_nothing(monkeypatch):
    opened = use_engine(monkeypatch, echo)
    result = run("generate", "x", "--top-p", "1.5")
    assert (result.exit_code, opened) == (1, [])
    assert result.stderr == "trivium: error: top_p must be a number in [0, 1], got 1.5\n"


def test_json(monkeypatch):
    use_engine(monkeypatch, lambda *_: "answer")
    result = run("generate", "--raw", "abc", "--json", "--max-tokens", "100")
    report = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    assert (report["text"], report["finish_reason"], report["model"]) == ("answer", "stop", "smollm2")
    assert report["usage"] == {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10}
    timings = report["timings"]
    assert 0 < timings["first_token_seconds"] <= timings["total_seconds"]
    assert timings["tokens_per_second"] > 0


def test_json_at_the_limit(monkeypatch):
    use_engine(monkeypatch, lambda *_: "abcdef")
    report = json.loads(run("generate", "x", "--json", "--max-tokens", "2").stdout)
    assert (report["text"], report["finish_reason"]) == ("ab", "length")


def test_verbose(monkeypatch):
    use_engine(monkeypatch, lambda *_: "abc")
    result = run("generate", "x", "-v")
    assert result.stdout == "abc\n"
    assert "4 tokens, " in result.stderr
    assert " tok/s, first token " in result.stderr


def test_failing_engine(monkeypatch):
    use_engine(monkeypatch, echo)
    result = run("generate", "boom")
    assert result.exit_code == 1
    assert result.stderr == "trivium: error: the step failed\n"


def test_too_long_prompt(monkeypatch):
    use_engine(monkeypatch, echo)
    result = run("generate", "x" * 600)
    assert result.exit_code == 1
    assert result.stderr.startswith("trivium: error: the prompt has ")


@pytest.mark.parametrize("flag", ["--max-num-seqs", "--tool-call-parser"])
def test_flags_without_a_meaning_here(flag):
    assert run("generate", "x", flag, "1").exit_code == 2
