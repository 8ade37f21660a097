"""`trivium info`: the machine, a model, and how the model would use the machine."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trivium import __version__
from trivium.cli.options import EngineCommand, engine_options, read_config
from trivium.config import EngineConfig
from trivium.errors import ModelNotFoundError

if TYPE_CHECKING:
    from trivium.cli.model_facts import ModelFacts

__all__ = ["command"]


@click.command("info", cls=EngineCommand)
@click.argument("model", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@engine_options(
    without=("model", "seed", "served_model_name", "reasoning_parser", "tool_call_parser", "max_logprobs", "max_waiting")
)
def command(model: str | None, as_json: bool, **flags: Any) -> None:
    """Show this version and machine, and MODEL with its memory plan; nothing is loaded or fetched.

    Without MODEL, the configured one, if it is on this machine. Sizes are those that the engine options lead to.
    """
    config = read_config(flags, model=model)
    report: dict[str, Any] = {"trivium": __version__, "machine": _machine(config), "model": None, "memory": None}
    path = _find(config.model, required=model is not None)
    if path is not None:
        from trivium.cli.model_facts import read_facts

        facts = read_facts(path, config, report["machine"]["available_memory_bytes"])
        report["model"] = _model(facts)
        report["memory"] = _memory(facts, config)
    if as_json:
        click.echo(json.dumps(report, ensure_ascii=False, indent=2))
    else:
        _print(report, config.model)


def _find(name: str, *, required: bool) -> Path | None:
    from trivium.models.catalogue import resolve_model

    try:
        return resolve_model(name, download=False)
    except ModelNotFoundError:
        if required:
            raise
        return None


def _machine(config: EngineConfig) -> dict[str, Any]:
    from trivium import _native
    from trivium.engine.machine import available_memory, instruction_set, usable_cores

    return {
        "processor": platform.machine(),
        "instruction_sets": _native.available_instruction_sets(),
        "instruction_set": instruction_set(),
        "cores": usable_cores(),
        "num_threads": config.num_threads or usable_cores(),
        "available_memory_bytes": available_memory(),
    }


def _model(facts: ModelFacts) -> dict[str, Any]:
    spec = facts.spec
    described = {
        "path": str(facts.path),
        "architecture": spec.architecture,
        "parameters": facts.num_parameters,
        "file_bytes": facts.file_bytes,
        "types": facts.types,
        "layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "heads": spec.num_heads,
        "kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "max_position": spec.max_position,
        "tied_output": spec.tied_output,
    }
    if spec.moe is not None:
        described |= {"experts": spec.moe.num_experts, "experts_per_token": spec.moe.experts_per_token}
    return described | dict(spec.extra)


def _memory(facts: ModelFacts, config: EngineConfig) -> dict[str, Any]:
    return {
        "weight_bytes": facts.weight_bytes,
        "kv_block_bytes": facts.block_bytes,
        "kv_blocks": facts.num_blocks,
        "kv_bytes": facts.num_blocks * facts.block_bytes,
        "block_size": config.block_size,
        "max_model_len": facts.max_model_len,
        "max_num_seqs": config.max_num_seqs,
    }


def _print(report: dict[str, Any], model: str) -> None:
    click.echo(f"trivium {report['trivium']}")
    for title in ("machine", "model", "memory"):
        values = report[title]
        if values is None:
            continue
        click.echo(f"\n{title}")
        for name, value in values.items():
            label = name.removesuffix("_bytes").replace("_", " ")
            click.echo(f"  {label:<20} {_text(value, name.endswith('_bytes') or name == 'types')}")
    if report["model"] is None:
        click.echo(f"\nmodel: {model} is not on this machine; `trivium pull {model}` fetches it")


def _text(value: Any, is_bytes: bool) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(item, is_bytes)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value / 1e6:,.1f} MB" if is_bytes else str(value)
