"""The command `trivium`. `trivium.cli.main.main` runs it; each command is a module, loaded when it is used."""

from __future__ import annotations
