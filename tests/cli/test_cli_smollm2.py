"""The command as users start it, with the real model."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import termios
import time

import pytest

SECONDS = 60  # a slow, busy machine

# Makes the terminal on stdin the controlling one, so that its Ctrl-C becomes a signal.
IN_TERMINAL = (
    "import fcntl, runpy, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "runpy.run_module('trivium', run_name='__main__', alter_sys=True)"
)
STORY = "Write a long story about a dragon and a princess."


def trivium(*args, stdin=None):
    command = [sys.executable, "-m", "trivium", *map(str, args)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=SECONDS)


@pytest.fixture
def model(smollm2):
    return ["-m", smollm2, "--max-model-len", "1024"]


def test_generate(model):
    args = ["generate", "What is the capital of France?", *model, "--temperature", "0", "--max-tokens", "24"]
    first, second = trivium(*args, "-v"), trivium(*args, "--json")
    assert (first.returncode, second.returncode) == (0, 0)
    report = json.loads(second.stdout)
    assert report["text"]
    assert first.stdout == report["text"] + "\n"
    tokens = report["usage"]["completion_tokens"]
    assert f"{tokens} tokens, " in first.stderr
    assert first.stderr.count("\n") == 1
    assert second.stderr == ""


def test_the_first_question_a_person_asks(model):
    answer = trivium("generate", "What is the capital of France?", *model, "--temperature", "0")
    assert answer.stdout == "The capital of France is Paris.\n"


def test_seeded_and_raw(model):
    args = ["generate", "--raw", "-", *model, "--seed", "7", "--max-tokens", "12", "--json"]
    first, second = (json.loads(trivium(*args, stdin="Once upon a time").stdout) for _ in range(2))
    assert first["text"] == second["text"]
    assert first["usage"]["prompt_tokens"] == 4
    assert first["seed"] == second["seed"]


def test_missing_model():
    result = trivium("generate", "x", "-m", "/no/such/model.gguf")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("trivium: error: there is no model '/no/such/model.gguf'")


def test_damaged_model(tmp_path):
    file = tmp_path / "bad.gguf"
    file.write_bytes(b"GGUF" + bytes(40))
    result = trivium("generate", "x", "-m", file)
    assert result.returncode == 1
    assert result.stderr.startswith("trivium: error: ")
    assert result.stderr.count("\n") == 1


def test_generate_interrupted(model):
    command = [sys.executable, "-m", "trivium", "generate", STORY, *model, "--temperature", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
    assert process.returncode == 130


def test_generate_into_a_closed_pipe(model):
    command = [sys.executable, "-m", "trivium", "generate", STORY, *model, "--temperature", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.read(1)
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode == 141
    assert errors == b""


def test_run_batch(model, tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    bodies = [
        ("/v1/completions", {"prompt": ["The sky is", "Water is"], "max_tokens": 4, "temperature": 0, "logprobs": 2}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6, "n": 2, "seed": 1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "ok?"}], "guided_json": schema, "max_tokens": 64}),
    ]
    lines = [{"custom_id": str(i), "method": "POST", "url": url, "body": body} for i, (url, body) in enumerate(bodies)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = trivium("run-batch", "-i", source, "-o", target, *model)
    assert result.returncode == 0
    assert "3 answered, 0 failed" in result.stderr
    answers = {record["custom_id"]: record["response"]["body"] for record in map(json.loads, target.read_text().splitlines())}
    for choice in answers["0"]["choices"]:
        assert len(choice["logprobs"]["tokens"]) == 4
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
        assert len(choice["logprobs"]["top_logprobs"][0]) == 2
    assert len(answers["1"]["choices"]) == 2
    assert isinstance(json.loads(answers["2"]["choices"][0]["message"]["content"])["ok"], bool)


def test_bench(model):
    result = trivium("bench", "latency", *model, "--input-len", 8, "--output-len", 4, "--iters", 1, "--warmup", 0, "--json")
    assert result.returncode == 0
    assert json.loads(result.stdout)["output_tokens_per_second"]["mean"] > 0


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, *args, home):
        master, slave = os.openpty()
        attributes = termios.tcgetattr(slave)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
        self.process = subprocess.Popen(
            [sys.executable, "-c", IN_TERMINAL, *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb", "TRIVIUM_HOME": str(home)},
        )
        os.close(slave)
        self.master = master
        self.seen = ""

    def type(self, text):
        os.write(self.master, text.encode())

    def interrupt_prompt(self):
        """Ctrl-C at a prompt. Python loses one that comes between showing it and waiting for keys; nobody types so fast."""
        time.sleep(0.5)
        self.type("\x03")

    def read_until(self, text):
        """Read on until `text` came; returns what came until then."""
        deadline = time.monotonic() + SECONDS
        while text not in self.seen:
            ready, _, _ = select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no {text!r} in {self.seen!r}"
            self.seen += os.read(self.master, 4096).decode("utf-8", "replace")
        before, _, self.seen = self.seen.partition(text)
        return before

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def terminal(model, tmp_path):
    terminal = Terminal("chat", *model, "--temperature", "0", "--max-tokens", "250", home=tmp_path)
    yield terminal
    terminal.close()


def test_chat_in_a_terminal(terminal, tmp_path):
    terminal.read_until("/help for help")
    terminal.read_until("> ")
    terminal.type("What is the capital of France?\n")
    assert terminal.read_until(" tok/s, first token ").strip()
    terminal.read_until("> ")
    terminal.type("/help\n")
    terminal.read_until("/reset")
    terminal.read_until("> ")
    terminal.type("/exit\n")
    assert terminal.process.wait(SECONDS) == 0
    assert "What is the capital of France?" in (tmp_path / "chat_history").read_text()


def test_interrupt_stops_the_answer_not_the_program(terminal):
    terminal.read_until("> ")
    terminal.type(STORY + "\n")
    terminal.read_until("\n")
    terminal.read_until(" ")  # the answer has begun
    terminal.type("\x03")
    terminal.read_until("stopped")
    terminal.read_until(" tok/s")
    terminal.read_until("> ")
    terminal.type("Hi\n")
    terminal.read_until(" tok/s")
    terminal.read_until("> ")
    terminal.interrupt_prompt()
    terminal.read_until("Ctrl-C again ends the program")
    terminal.read_until("> ")
    terminal.interrupt_prompt()
    assert terminal.process.wait(SECONDS) == 0


def test_end_of_input_ends_the_program(terminal):
    terminal.read_until("> ")
    terminal.type("\x04")
    assert terminal.process.wait(SECONDS) == 0
