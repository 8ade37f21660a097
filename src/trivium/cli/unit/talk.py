"""`trivium unit talk`: a conversation with a language model behind the unit door."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import click

from trivium.cli.chat import piped_lines, typed_lines
from trivium.cli.unit.client import UnitClient, UnitReplyError, connection_options, error_of
from trivium.errors import TriviumError

__all__ = ["Talk", "command"]

_STOP_SECONDS = 10.0  # within which a stopped answer ends

_HELP = """\
/help   this text
/reset  forget the conversation (also /clear)
/exit   end (also /quit and Ctrl-D)
Ctrl-C stops an answer; twice at the prompt, it ends the program."""


@click.command("talk")
@click.option("--model", "-m", help="Name of a model of the server; by default the first that it lists.")
@click.option("--system", default="", help="System message.")
@click.option("--max-tokens", type=click.IntRange(1), default=512, show_default=True, help="Tokens of an answer, at most.")
@click.option("--temperature", type=click.FloatRange(0.0), help="By default the server's.")
@connection_options
def command(
    model: str | None, system: str, max_tokens: int, temperature: float | None, host: str, port: int, timeout: float
) -> None:
    """Set an llm task up, talk with it, and end it. /help lists what can be typed besides messages.

    Answers go to stdout, remarks to stderr. Without a terminal every line of stdin is a message.
    """
    with UnitClient(host, port, timeout) as client:
        setup: dict[str, Any] = {
            "model": client.choose_model("llm", model),
            "response_format": "llm.utf-8.stream",
            "input": ["llm.utf-8.stream"],
            "enoutput": True,
            "max_token_len": max_tokens,
            "prompt": system,
            "context": True,
        }
        if temperature is not None:
            setup["temperature"] = temperature
        talk = Talk(client, client.set_up("llm", setup))
        try:
            if sys.stdin.isatty():
                click.echo(f"{talk.work_id}, {setup['model']}: /help for help, /exit to end", err=True)
            lines = typed_lines() if sys.stdin.isatty() else piped_lines()
            for line in lines:
                if not talk.take(line):
                    break
        finally:
            with contextlib.suppress(TriviumError, OSError):
                client.ask("exit", talk.work_id)


class Talk:
    """A conversation with one task. `take` handles a line: a message, or a command that begins with a slash."""

    def __init__(self, client: UnitClient, work_id: str) -> None:
        self.work_id = work_id
        self._client = client

    def take(self, line: str) -> bool:
        """Handle a line of input; False if it ends the program. Raises `TriviumError` if the server is gone."""
        words = line.strip()
        if words in ("/exit", "/quit"):
            return False
        if words == "/help":
            click.echo(_HELP)
        elif words in ("/reset", "/clear"):
            for _ in self._client.replies(self._ask("reset")):
                pass
        elif words.startswith("/"):
            click.echo(f"there is no command {words.split()[0]}; /help lists them", err=True)
        elif words:
            self._answer(line)
        return True

    def _ask(self, text: str) -> str:
        chunk = {"delta": text, "index": 0, "finish": True}
        return self._client.send("inference", self.work_id, object="llm.utf-8.stream", data=chunk)

    def _answer(self, text: str) -> None:
        """Print the answer as it comes; Ctrl-C has it end."""
        request_id = self._ask(text)
        try:
            self._print(request_id)
        except KeyboardInterrupt:
            self._stop(request_id)
            click.echo("stopped", err=True)
        except UnitReplyError as error:
            click.echo(f"error: {error}", err=True)

    def _print(self, request_id: str) -> None:
        try:
            for frame in self._client.replies(request_id):
                data = frame.get("data")
                delta = data.get("delta") if isinstance(data, dict) else None
                if isinstance(delta, str):
                    sys.stdout.write(delta)
                    sys.stdout.flush()
                code, message = error_of(frame)
                if code:
                    raise UnitReplyError(self.work_id, code, message)
        finally:
            click.echo()

    def _stop(self, request_id: str) -> None:
        """Send a pause, and drop what still comes of the answer."""
        self._client.send("pause", self.work_id)
        timeout, self._client.timeout = self._client.timeout, _STOP_SECONDS
        try:
            for _ in self._client.replies(request_id):
                pass
        finally:
            self._client.timeout = timeout
