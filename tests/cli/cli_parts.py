"""Running commands in this process, on an engine without a model."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner, Result

sys.path.insert(0, str(Path(__file__).parents[1] / "doors" / "library"))

from fake_engine import FakeEngine, RoleTemplate

from trivium.cli import answer
from trivium.cli.main import cli

__all__ = ["FakeEngine", "RoleTemplate", "run", "use_engine"]


def use_engine(monkeypatch, reply=None, **options):
    """Have commands open a FakeEngine; returns the list of those that were opened."""
    opened = []

    def open_engine(config):
        chosen = {name: getattr(config, name) for name in ("max_num_seqs", "max_waiting", "max_model_len")}
        own = {"chat_template": RoleTemplate(), **chosen, **options}
        engine = FakeEngine(reply, **own) if reply else FakeEngine(**own)
        engine.opened_with = config
        engine.model_info = replace(engine.model_info, vocab_size=256)  # its answers are made from prompts of bytes
        opened.append(engine)
        return engine

    monkeypatch.setattr(answer, "open_engine", open_engine)
    return opened


def run(*args, stdin=None) -> Result:
    """A command's output and exit code; what it raised beyond that fails the test."""
    result = CliRunner().invoke(cli, [str(arg) for arg in args], input=stdin, catch_exceptions=False)
    assert isinstance(result, Result)
    return result
