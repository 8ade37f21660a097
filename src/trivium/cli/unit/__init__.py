"""`trivium unit`: a client of the unit door, for people."""

from __future__ import annotations

import click

from trivium.cli.unit import actions, feed, send, talk, watch

__all__ = ["command"]

command = click.Group(
    "unit",
    help="""Speak StackFlow's unit protocol with a server: Trivium's unit door, or a device.

    Answers go to stdout, remarks to stderr. An error that the server tells ends a command with exit code 1.
    """,
    commands={
        **actions.commands,
        "tasks": watch.tasks_command,
        "send": send.command,
        "talk": talk.command,
        "feed": feed.command,
        "watch": watch.command,
    },
)
