"""`trivium unit feed`: a recording for kws and asr."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import click

from trivium.cli.unit.client import UnitClient, connection_options, error_of, seconds_from
from trivium.errors import TriviumError

__all__ = ["command"]

_PIECE_SECONDS = 0.1


@click.command("feed")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--wake", metavar="WORDS", help="Listen for these words; asr hears what follows them.")
@click.option("--answer", is_flag=True, help="Have the first llm answer what asr hears.")
@click.option("--asr-model", help="By default the first that the server lists.")
@click.option("--kws-model", help="Likewise.")
@click.option("--llm-model", help="Likewise.")
@click.option("--fast", is_flag=True, help="Do not wait while the sound lasts, as a microphone would.")
@click.option(
    "--wait", type=seconds_from(0.0), default=5.0, show_default=True, help="End when nothing has come for so many seconds."
)
@connection_options
def command(
    file: Path,
    wake: str | None,
    answer: bool,
    asr_model: str | None,
    kws_model: str | None,
    llm_model: str | None,
    fast: bool,
    wait: float,
    host: str,
    port: int,
    timeout: float,
) -> None:
    """Set asr up, with --wake kws, too, send them the sound of a WAV file, and print the frames that come back."""
    sound, bytes_per_second = _read(file)
    with UnitClient(host, port, timeout) as client, contextlib.ExitStack() as tasks:

        def set_up(unit: str, model: str | None, inputs: list[str], **fields: Any) -> str:
            setup = {"model": client.choose_model(unit, model), "enoutput": True, "input": inputs, **fields}
            work_id = client.set_up(unit, setup)
            tasks.callback(_exit, client, work_id)
            return work_id

        wakes = [set_up("kws", kws_model, ["kws.base64"], response_format="kws.bool", kws=wake.upper())] if wake else []
        asr = set_up("asr", asr_model, ["asr.base64", *wakes], response_format="asr.utf-8.stream")
        if answer:
            set_up("llm", llm_model, ["llm.utf-8", asr, *wakes], response_format="llm.utf-8.stream", prompt="")
        piece = int(_PIECE_SECONDS * bytes_per_second) // 2 * 2
        begin = time.monotonic()
        for start in range(0, len(sound), piece):
            data = base64.b64encode(sound[start : start + piece]).decode()
            for work_id in (*wakes, asr):
                client.send("inference", work_id, object=f"{work_id.partition('.')[0]}.base64", data=data)
            due = begin + (start + piece) / bytes_per_second
            while _print(client, 0.0 if fast else max(0.0, due - time.monotonic())):
                pass
        while _print(client, wait):
            pass


def _read(file: Path) -> tuple[bytes, int]:
    """The samples of a WAV file as units want them, and how many bytes a second has. Raises `TriviumError`, OSError."""
    from trivium.doors.unit.errors import UnitError
    from trivium.doors.unit.voice.sound import BYTES_PER_SECOND, read_wav

    try:
        return read_wav(file.read_bytes()).sound(), BYTES_PER_SECOND
    except UnitError as error:
        raise TriviumError(f"{file}: {error}") from error


def _print(client: UnitClient, timeout: float) -> bool:
    """Print a frame if one comes in time. Raises `TriviumError` for an error."""
    frame = client.receive(timeout)
    if frame is None:
        return False
    click.echo(json.dumps(frame, ensure_ascii=False))
    code, message = error_of(frame)
    if code:
        raise TriviumError(f"{frame.get('work_id')}: {message} ({code})")
    return True


def _exit(client: UnitClient, work_id: str) -> None:
    with contextlib.suppress(TriviumError, OSError):
        client.ask("exit", work_id)
