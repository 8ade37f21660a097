"""`trivium unit ping`, `version` and so on: what the server itself can be asked."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from trivium.cli.unit.client import UnitClient, connection_options

__all__ = ["commands"]

_ACTIONS = {
    "ping": "See whether the server answers.",
    "version": "Print the version of the protocol that it speaks.",
    "lsmode": "List its models.",
    "cmminfo": "Print its memory, in KiB.",
    "hwinfo": "Print its temperature, load, memory and networks.",
    "reset": "End all tasks, of all clients.",
    "reboot": "The same on Trivium; devices start anew.",
}


def _make(action: str, help: str) -> click.Command:
    @connection_options
    @click.option("--json", "as_json", is_flag=True, help="Print the whole reply.")
    def run(host: str, port: int, timeout: float, as_json: bool) -> None:
        with UnitClient(host, port, timeout) as client:
            begin = time.perf_counter()
            reply = client.ask(action)
            seconds = time.perf_counter() - begin
        if as_json:
            click.echo(json.dumps(reply, ensure_ascii=False))
        elif action == "ping":
            click.echo(f"{host}:{port} answers in {seconds * 1000:.1f} ms")
        else:
            _show(reply["data"], str(reply["error"]["message"]))

    return click.command(action, help=help)(run)


def _show(data: Any, message: str) -> None:
    if data == "None":
        click.echo(message)
    elif isinstance(data, str):
        click.echo(data)
    elif isinstance(data, list) and all(isinstance(item, dict) and "mode" in item for item in data):
        for item in data:
            click.echo(f"{item.get('type', ''):8} {item['mode']}")
    else:
        click.echo(json.dumps(data, ensure_ascii=False, indent=2))


commands = {action: _make(action, text) for action, text in _ACTIONS.items()}
