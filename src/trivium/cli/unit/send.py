"""`trivium unit send`."""

from __future__ import annotations

import json
from typing import Any

import click

from trivium.cli.unit.client import UnitClient, UnitReplyError, connection_options, error_of

__all__ = ["command"]


@click.command("send")
@click.argument("messages", metavar="MESSAGE...", nargs=-1, required=True)
@click.option("--no-reply", is_flag=True, help="Do not wait for what is answered, as with pieces of sound.")
@connection_options
def command(messages: tuple[str, ...], no_reply: bool, host: str, port: int, timeout: float) -> None:
    """Send messages as they are, one after the other, and print the frames that answer each.

    A MESSAGE is a JSON object: '{"work_id":"llm","action":"taskinfo"}'. Without a request_id it gets one; without a work_id it
    is for sys.
    """
    read = [_read(i, text) for i, text in enumerate(messages, 1)]
    with UnitClient(host, port, timeout) as client:
        for message in read:
            client.send_message(message)
            if not (no_reply or _is_part(message)):
                _print_replies(client, message)


def _read(number: int, text: str) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"MESSAGE {number} is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise click.UsageError(f"MESSAGE {number} must be an object, got {text:.80}")
    return {"request_id": str(number), "work_id": "sys", **message}


def _is_part(message: dict[str, Any]) -> bool:
    """Whether it is answered only once more of the same stream has come."""
    data = message.get("data")
    return isinstance(data, dict) and data.get("finish") is False


def _print_replies(client: UnitClient, message: dict[str, Any]) -> None:
    """Raises `UnitReplyError` after printing a frame with an error."""
    request_id = message["request_id"]
    known = all(isinstance(message.get(name), str) for name in ("request_id", "work_id", "action"))
    for frame in client.replies(request_id if known else "0"):
        click.echo(json.dumps(frame, ensure_ascii=False))
        code, text = error_of(frame)
        if code:
            raise UnitReplyError(f"{message['work_id']} {message.get('action', '')}", code, text)
