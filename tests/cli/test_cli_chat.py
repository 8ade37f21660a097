from __future__ import annotations

import json
import threading

import pytest
from cli_parts import FakeEngine, RoleTemplate, run, use_engine

from trivium.cli.chat import Chat, typed_lines
from trivium.engine.sampling import SamplingOptions
from trivium.errors import EngineDeadError


def count_turns(prompt, request, index):
    return f"answer {prompt.count('user: ')}"


def test_piped_lines_are_messages(monkeypatch):
    opened = use_engine(monkeypatch, count_turns)
    result = run("chat", "--system", "Be kind.", stdin="one\n\ntwo\n")
    assert result.exit_code == 0
    assert result.stdout == "answer 1\nanswer 2\n"
    assert result.stderr.count(" tok/s, first token ") == 2
    prompts = [bytes(request.prompt_token_ids).decode() for request in opened[0].requests]
    assert prompts == [
        "system: Be kind.\nuser: one\nassistant: ",
        "system: Be kind.\nuser: one\nassistant: answer 1\nuser: two\nassistant: ",
    ]
    assert opened[0].opened_with.max_num_seqs == 1


def test_lines_in_no_encoding(monkeypatch):
    use_engine(monkeypatch, count_turns)
    result = run("chat", stdin=b"\xff\n")
    assert result.exit_code == 2
    assert "stdin must be UTF-8" in result.stderr


def test_a_typed_line_in_no_encoding(monkeypatch, capsys):
    typed = iter([b"\xff", b"one", b"\x04"])

    def read_line(_):
        line = next(typed)
        if line == b"\x04":
            raise EOFError
        return line.decode()

    monkeypatch.setattr("builtins.input", read_line)
    assert list(typed_lines()) == ["one"]
    assert "messages must be UTF-8" in capsys.readouterr().err


def test_exit_ends_at_once(monkeypatch):
    use_engine(monkeypatch, count_turns)
    assert run("chat", stdin="one\n/exit\ntwo\n").stdout == "answer 1\n"


@pytest.fixture
def chat():
    with FakeEngine(count_turns, chat_template=RoleTemplate()) as engine:
        yield Chat(engine, SamplingOptions(), "Be kind.")


def roles(chat):
    return [message["role"] for message in chat.messages]


@pytest.mark.parametrize("word", ["/reset", "/clear", "/reset ", "  /reset", "\t/clear"])
def test_reset_keeps_the_system_message(chat, word):
    chat.take("one")
    assert roles(chat) == ["system", "user", "assistant"]
    assert chat.take(word)
    assert chat.messages == [{"role": "system", "content": "Be kind."}]


def test_system(chat):
    chat.take("one")
    chat.take("/system Be brief. ")
    assert chat.messages == [{"role": "system", "content": "Be brief."}]
    chat.take("/system")
    assert chat.messages == []


@pytest.mark.parametrize("word", ["/exit", "/quit"])
def test_exit(chat, word):
    assert not chat.take(word)


def test_help(chat, capsys):
    assert chat.take("/help")
    text = capsys.readouterr().out
    for word in ("/help", "/reset", "/clear", "/system", "/save", "/exit", "Ctrl-C"):
        assert word in text


def test_unknown_command(chat, capsys):
    assert chat.take("/rest")
    assert "no command /rest" in capsys.readouterr().err
    assert roles(chat) == ["system"]


def test_save(chat, tmp_path, capsys):
    chat.take("ünï")
    chat.take(f"/save {tmp_path / 'a b.json'}")
    assert json.loads((tmp_path / "a b.json").read_text("utf-8")) == chat.messages
    chat.take(f"/save {tmp_path}")
    chat.take("/save ~nosuchuser/x.json")
    chat.take("/save a\0b")
    chat.take("/save")
    errors = capsys.readouterr().err
    assert f"cannot write {tmp_path}" in errors
    assert "cannot write ~nosuchuser/x.json: " in errors
    assert "cannot write a\0b: " in errors
    assert "needs the name" in errors


def test_failed_answer_is_forgotten(chat, capsys):
    chat.take("one")
    before = chat.messages
    assert chat.take("x" * 1000)
    assert "error: the prompt has" in capsys.readouterr().err
    assert chat.messages == before
    chat.take("two")
    assert len(chat.messages) == len(before) + 2


def test_dead_engine_ends_the_program(chat):
    chat._engine.shutdown()
    with pytest.raises(EngineDeadError):
        chat.take("one")


def test_interrupt_keeps_what_came(monkeypatch, capsys):
    gate = threading.Semaphore(3)

    class Stdout:
        """The third piece meets Ctrl-C."""

        def __init__(self):
            self.pieces = []

        def write(self, text):
            self.pieces.append(text)
            if len(self.pieces) == 3:
                gate.release(1000)
                raise KeyboardInterrupt

        def flush(self):
            pass

    with FakeEngine(lambda *_: "abcdefgh" * 30, gate=gate, chat_template=RoleTemplate()) as engine:
        chat = Chat(engine, SamplingOptions())
        with monkeypatch.context() as patch:
            patch.setattr("trivium.cli.chat.sys.stdout", Stdout())
            patch.setattr("trivium.cli.chat.click.echo", lambda *_, **__: None)
            assert chat.take("one")
        assert chat.messages[1]["content"].startswith("abc")
        assert len(chat.messages[1]["content"]) < 240
        assert engine.idle
        assert engine.aborted == [engine.requests[0].request_id]
        gate.release(1000)
