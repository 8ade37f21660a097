"""`trivium chat`: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trivium.cli.options import EngineCommand, engine_options, read_lone_config
from trivium.cli.sampling import resolve_sampling, sampling_options, take_sampling
from trivium.config import cache_home
from trivium.errors import EngineDeadError, EngineError

if TYPE_CHECKING:
    from trivium.engine.engine import Engine
    from trivium.engine.sampling import SamplingOptions

__all__ = ["Chat", "command", "piped_lines", "typed_lines"]

_NOT_HERE = ("seed", "max_num_seqs", "max_waiting", "max_logprobs", "served_model_name", "reasoning_parser", "tool_call_parser")
_HISTORY_LINES = 1000

_HELP = """\
/help          this text
/reset         forget the conversation (also /clear); the system message stays
/system TEXT   set the system message and forget the conversation; without TEXT there is none
/save FILE     write the conversation as JSON
/exit          end (also /quit and Ctrl-D)
Ctrl-C stops an answer; twice at the prompt, it ends the program."""


@click.command("chat", cls=EngineCommand)
@click.option("--system", help="System message.")
@sampling_options
@engine_options(without=_NOT_HERE)
def command(system: str | None, **flags: Any) -> None:
    """Talk with a model. /help lists what can be typed besides messages.

    Answers go to stdout, figures and errors to stderr. Without a terminal every line of stdin is a message.
    """
    given = take_sampling(flags)
    config = read_lone_config(flags)
    from trivium.cli.answer import open_engine

    with open_engine(config) as engine:
        chat = Chat(engine, resolve_sampling(given, engine.model_info.generation_defaults), system)
        if sys.stdin.isatty():
            click.echo(f"{engine.model_info.name}: /help for help, /exit to end", err=True)
            lines = typed_lines()
        else:
            lines = piped_lines()
        for line in lines:
            if not chat.take(line):
                break


class Chat:
    """One conversation. `take` handles a line: a message, or a command that begins with a slash."""

    def __init__(self, engine: Engine, sampling: SamplingOptions, system: str | None = None) -> None:
        self._engine = engine
        self._sampling = sampling
        self._system = system
        self._history: list[dict[str, str]] = []

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation so far, the system message first."""
        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        return system + self._history

    def take(self, line: str) -> bool:
        """Handle a line of input; False if it ends the program."""
        words = line.strip()
        if not words:
            return True
        if not words.startswith("/"):
            self._answer(line)
            return True
        name, _, argument = words.partition(" ")
        if name in ("/exit", "/quit"):
            return False
        if name == "/help":
            click.echo(_HELP)
        elif name in ("/reset", "/clear"):
            self._history = []
        elif name == "/system":
            self._system, self._history = argument.strip() or None, []
        elif name == "/save":
            self._save(argument.strip())
        else:
            click.echo(f"there is no command {name}; /help lists them", err=True)
        return True

    def _answer(self, text: str) -> None:
        """Stream the answer to a message; both enter the conversation, an interrupted answer as far as it came."""
        from trivium.cli.answer import Answer, encode_messages, stream

        answer = Answer()
        question = {"role": "user", "content": text}
        try:
            prompt = encode_messages(self._engine, [*self.messages, question])
            with contextlib.closing(stream(self._engine, prompt, self._sampling, answer)) as pieces:
                for piece in pieces:
                    sys.stdout.write(piece)
                    sys.stdout.flush()
        except KeyboardInterrupt:
            click.echo()
            click.echo("stopped", err=True)
        except EngineDeadError:
            raise
        except EngineError as error:
            click.echo(f"error: {error}", err=True)
        else:
            click.echo()
        if answer.num_tokens:
            click.echo(answer.summary(), err=True)
            self._history += [question, {"role": "assistant", "content": answer.text}]

    def _save(self, file: str) -> None:
        if not file:
            click.echo("/save needs the name of a file", err=True)
            return
        try:
            Path(file).expanduser().write_text(json.dumps(self.messages, ensure_ascii=False, indent=2) + "\n", "utf-8")
        except (OSError, RuntimeError, ValueError) as error:  # "~nobody/x" and text that is not Unicode are no OSErrors
            click.echo(f"cannot write {file}: {getattr(error, 'strerror', None) or error}", err=True)


def piped_lines() -> Iterator[str]:
    """Lines of stdin without their ends. Raises `UsageError` if they are not UTF-8."""
    try:
        for line in sys.stdin:
            yield line.removesuffix("\n")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"stdin must be UTF-8: {error}") from error


def typed_lines() -> Iterator[str]:
    """Lines from a terminal, with editing and a history that outlives the program. Ends with Ctrl-D, or Ctrl-C twice."""
    with _line_history():
        interrupted = False
        while True:
            try:
                line = input("> ")
            except EOFError:
                click.echo()
                return
            except KeyboardInterrupt:
                click.echo()
                if interrupted:
                    return
                click.echo("Ctrl-C again ends the program", err=True)
                interrupted = True
                continue
            except UnicodeDecodeError as error:
                click.echo(f"messages must be UTF-8: {error}", err=True)
                continue
            interrupted = False
            yield line


@contextlib.contextmanager
def _line_history() -> Iterator[None]:
    """Readline, where Python has it, with its history in the cache folder. Not being able to keep it is no fault."""
    try:
        import readline
    except ImportError:
        yield
        return
    file = cache_home() / "chat_history"
    readline.set_history_length(_HISTORY_LINES)
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(file)
