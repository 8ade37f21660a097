"""The command `trivium`: its group of commands, and how errors end it."""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import Any

import click

from trivium import __version__
from trivium.errors import TriviumError

__all__ = ["LazyGroup", "cli", "main"]

_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
_BROKEN_PIPE = 141  # 128 + SIGPIPE


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used, so that `--help` and every other command stay fast.

    `modules` maps a command's name to its module, which has it under the name `command`, and its line in the help.
    """

    def __init__(self, *args: Any, modules: dict[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._modules:
            return None
        command: click.Command = importlib.import_module(self._modules[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._modules.items()])

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run, and end the process.

        The exit code is 0; 1 for an error of Trivium or the system (a line on stderr), 2 for a wrong use, 130 if interrupted.
        """
        sys.exit(self._run(*args, **{**kwargs, "standalone_mode": False}))

    def _run(self, *args: Any, **kwargs: Any) -> int:
        try:
            code = super().main(*args, **kwargs)
        except click.ClickException as error:
            error.show()
            return error.exit_code
        except click.Abort:
            return _INTERRUPTED
        except TriviumError as error:
            click.echo(f"trivium: error: {error}", err=True)
            return 1
        except OSError as error:
            click.echo(f"trivium: error: {_in_words(error)}", err=True)
            _drop_unwritable_output()
            return 1
        return code if isinstance(code, int) else 0

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _drop_unwritable_output()  # whoever read it has gone
            raise click.exceptions.Exit(_BROKEN_PIPE) from None
        return result


def _in_words(error: OSError) -> str:
    """What the system says, and of which file, without the number of the error."""
    words = error.strerror or str(error)
    return words if error.filename is None else f"{error.filename}: {words}"


def _drop_unwritable_output() -> None:
    """If stdout takes no more, let what is buffered vanish, so that it does not raise again when the interpreter ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.command(
    "trivium",
    cls=LazyGroup,
    modules={
        "serve": ("trivium.cli.serve", "Answer requests over HTTP, and devices over TCP and serial lines."),
        "generate": ("trivium.cli.generate", "Answer or continue one prompt."),
        "chat": ("trivium.cli.chat", "Talk with a model."),
        "run-batch": ("trivium.cli.run_batch", "Answer a file of requests in OpenAI's batch format."),
        "pull": ("trivium.cli.pull", "Fetch a model and print where it is."),
        "info": ("trivium.cli.info", "Show a model, its memory plan and this machine."),
        "unit": ("trivium.cli.unit", "Speak the unit protocol with a server."),
        "bench": ("trivium.cli.bench", "Measure latency, throughput, or a server under load."),
    },
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="trivium", message="%(prog)s %(version)s")
def cli() -> None:
    """Run large language models on this machine's processor."""


def main() -> None:
    """Entry point of the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode must not end an answer
    cli(prog_name="trivium")
