"""`trivium unit tasks` and `trivium unit watch`."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from trivium.cli.unit.client import UnitClient, UnitReplyError, connection_options, seconds_from

__all__ = ["command", "tasks_command"]

_UNITS = ("kws", "asr", "whisper", "llm", "vlm", "tts", "melotts")


@click.command("tasks")
@connection_options
def tasks_command(host: str, port: int, timeout: float) -> None:
    """List all tasks: work_id, model, response format, inputs.

    What they say from now on is sent to whoever commands them next.
    """
    with UnitClient(host, port, timeout) as client:
        for work_id in _list_tasks(client):
            info = _take(client, work_id)
            inputs = info.get("inputs", info.get("inputs_", []))
            texts = (info.get("model", ""), info.get("response_format", ""), ",".join(map(str, inputs)))
            click.echo("  ".join([f"{work_id:12}", *map(str, texts)]).rstrip())


@click.command("watch")
@click.argument("work_ids", metavar="[WORK_ID]...", nargs=-1)
@click.option("--seconds", type=seconds_from(0.0), help="End after so long; by default Ctrl-C does.")
@connection_options
def command(work_ids: tuple[str, ...], seconds: float | None, host: str, port: int, timeout: float) -> None:
    """Print every frame that tasks send from now on, by default those of all tasks.

    A task's frames go to one client: whoever has commanded it last. Watching it takes them away from the one before, until that
    one commands it again.
    """
    with UnitClient(host, port, timeout) as client:
        watched = list(work_ids) or _list_tasks(client)
        for work_id in watched:
            _take(client, work_id)
        click.echo(f"watching {', '.join(watched) or 'nothing: there are no tasks'}", err=True)
        if not watched:
            return
        end = None if seconds is None else time.monotonic() + seconds
        while end is None or time.monotonic() < end:
            frame = client.receive(timeout if end is None else max(0.0, min(timeout, end - time.monotonic())))
            if frame is not None:
                click.echo(json.dumps(frame, ensure_ascii=False))


def _list_tasks(client: UnitClient) -> list[str]:
    """The tasks of all units that the server has. Raises `UnitReplyError`."""
    found: list[str] = []
    for unit in _UNITS:
        try:
            listed = client.ask("taskinfo", unit)["data"]
        except UnitReplyError as error:
            if error.code != -9:
                raise
        else:
            found += map(str, listed if isinstance(listed, list) else [])
    return found


def _take(client: UnitClient, work_id: str) -> dict[str, Any]:
    """Ask for a task's configuration, with which its output comes here. Raises `UnitReplyError`."""
    data = client.ask("taskinfo", work_id)["data"]
    return data if isinstance(data, dict) else {}
