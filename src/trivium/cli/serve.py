"""`trivium serve`: the engine behind HTTP, and behind the unit protocol."""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import resource
import shlex
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from trivium.cli.options import EngineCommand, engine_options, read_settings, settings_options
from trivium.config import EngineConfig
from trivium.doors.http.config import ServerConfig
from trivium.doors.unit.config import UnitConfig
from trivium.errors import ConfigError

if TYPE_CHECKING:
    from trivium.doors.dispatcher import Dispatcher
    from trivium.doors.http.server import HttpServer
    from trivium.doors.unit.server import UnitServer
    from trivium.engine.engine import Engine

__all__ = ["command"]

log = logging.getLogger("trivium")

_OTHER_FILES = 128  # that the process has open, beside connections


@click.command("serve", cls=EngineCommand)
@click.argument("model_name", metavar="[MODEL]", required=False)
@click.option(
    "--mindie-config",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="MindIE's config.json; all other ways to give an option stand above it.",
)
@settings_options(ServerConfig, "Server options")
@settings_options(UnitConfig, "Unit options")
@engine_options()
def command(model_name: str | None, mindie_config: str | None, **flags: Any) -> None:
    """Answer requests over HTTP, and devices over TCP and serial lines, with MODEL or the configured one.

    POST /infer as MindIE has it, the OpenAI API under /v1, and a page to talk to at /; StackFlow's unit protocol on the unit
    port. Options stand in the tables [server] and [unit] of --config. SIGTERM and Ctrl-C let running answers finish; a second
    one ends at once.
    """
    if model_name is not None and flags["model"] not in (None, model_name):
        raise click.UsageError(f"MODEL is {model_name}, but --model is {flags['model']}")
    flags["model"] = model_name or flags["model"]
    unit_config = read_settings(UnitConfig, flags, file=flags["config_file"])
    config, server_config, notes = _read_configs(flags, mindie_config)
    _check_parsers(config)
    from trivium.doors.http.request_log import configure_logging

    configure_logging(server_config.log_format)
    for note in notes:
        log.info("%s", note)
    _run(config, server_config, unit_config)


def _read_configs(flags: dict[str, Any], mindie_config: str | None) -> tuple[EngineConfig, ServerConfig, list[str]]:
    """The engine's and the server's configuration, and what to tell of MindIE's. Raises `ConfigError`."""
    file = flags.pop("config_file")
    if mindie_config is None:
        return read_settings(EngineConfig, flags, file=file), read_settings(ServerConfig, flags, file=file), []
    from trivium.doors.http.infer.mindie_config import read_mindie_config

    mindie = read_mindie_config(mindie_config)
    config = read_settings(EngineConfig, flags, file=file, base=mindie.engine)
    return config, read_settings(ServerConfig, flags, file=file, base=mindie.server), mindie.notes


def _check_parsers(config: EngineConfig, engine: Engine | None = None) -> None:
    """Raise `ConfigError` if there are no such parsers or, once it is loaded, the model's vocabulary does not suit them."""
    from trivium.parsing import get_reasoning_parser, get_tool_parser

    named = ((config.reasoning_parser, get_reasoning_parser), (config.tool_call_parser, get_tool_parser))
    for name, find in named:
        if name is not None:
            parser: Callable[[Any], object] = find(name)
            if engine is not None:
                parser(engine.tokenizer)


def _run(config: EngineConfig, server_config: ServerConfig, unit_config: UnitConfig) -> None:
    """Serve until a signal. Raises `ConfigError`, and `ModelLoadError` and its kinds."""
    import asyncio

    from trivium.cli.answer import open_engine
    from trivium.doors.http.server import HttpServer
    from trivium.doors.sockets import close_all
    from trivium.doors.unit.server import UnitServer
    from trivium.doors.unit.tcp import MAX_CONNECTIONS

    engines: list[Engine] = []
    units: list[UnitServer] = []
    # Bound before the model is loaded, so that a port in use is known at once; clients that come meanwhile wait.
    sockets = _bind_units(unit_config) if unit_config.unit else []

    def load() -> Engine:
        engine = open_engine(config, server.check_running)
        engines.append(engine)
        _check_parsers(config, engine)
        return engine

    def make_units(dispatcher: Dispatcher) -> UnitServer:
        units.append(UnitServer(unit_config, dispatcher, sockets=sockets))
        return units[-1]

    def ready() -> None:
        for unit in units:
            _tell_units(unit, server_config)
        log.info("ready: %s takes requests", engines[0].model_info.name)
        if server_config.log_format == "text":
            click.echo(_hints(server, engines[0]), err=True)

    try:
        server = HttpServer(server_config, load, make_units if unit_config.unit else None)
        unit_connections = MAX_CONNECTIONS if unit_config.unit else 0
        _allow_files(server_config.max_connections + unit_connections + _OTHER_FILES)
        asyncio.run(_serve(server, ready))
    finally:
        close_all(sockets)
        for engine in engines:
            engine.shutdown()


def _bind_units(config: UnitConfig) -> list[socket.socket]:
    from trivium.doors.sockets import bind

    try:
        return bind(config.unit_host, config.unit_port, "unit_port")
    except ConfigError as error:
        raise ConfigError(f"{error}; --no-unit does without the unit door") from error


async def _serve(server: HttpServer, ready: Callable[[], None]) -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def end(signum: int) -> None:
        for one in signals:
            loop.remove_signal_handler(one)
            # The system does it, whatever the process is busy with; but not for the first one of a container.
            signal.signal(one, signal.SIG_DFL if os.getpid() != 1 else _end_at_once)
        # Only now is it true: between the loop's handlers and the system's a second signal would be Python's own.
        log.info("%s: running answers may finish; a second signal ends at once", signal.Signals(signum).name)
        server.stop()

    for signum in signals:
        loop.add_signal_handler(signum, end, signum)
    await server.run(ready)


def _end_at_once(signum: int, frame: object) -> None:
    os._exit(128 + signum)


def _tell_units(unit: UnitServer, server_config: ServerConfig) -> None:
    log = logging.getLogger("trivium.unit")
    for address in unit.addresses:
        log.info("unit: %s", address)
    if not unit.is_local:
        keyed = ", without the key that the http door asks for" if server_config.api_key else ""
        log.warning("whoever reaches %s may use the unit door%s: its protocol has no keys", unit.addresses[0], keyed)


def _allow_files(count: int) -> None:
    """Have the system allow so many open files, as far as it lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        allowed = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < count:
            log.warning("max_connections: the system allows only %d open files; `ulimit -n` raises that", allowed)


def _hints(server: HttpServer, engine: Engine) -> str:
    """What to open, and what to type, to see that it works."""
    config, url = server.config, _reachable(server.urls[0])
    curl = ["curl"]
    if config.tls_ca is not None:
        curl += ["--cert", "CLIENT.pem", "--key", "CLIENT.key"]
    if config.api_key:
        curl += ["-H", '"Authorization: Bearer $TRIVIUM_API_KEY"']
    name = engine.model_info.name
    infer = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 32}}
    chat = {"model": name, "messages": [{"role": "user", "content": "Name three primary colours."}]}
    lines = [f"\nOpen {url}/ in a browser, or ask from a shell:\n"]
    for path, body in (("/infer", infer), ("/v1/chat/completions", chat)):
        data = shlex.quote(json.dumps(body, ensure_ascii=False))
        lines.append("  " + " ".join([*curl, url + path, "-H", "'Content-Type: application/json'", "-d", data]))
    if config.api_key:
        lines.append("\nwith one of the API keys in the variable TRIVIUM_API_KEY.")
    return "\n".join(lines) + "\n"


def _reachable(url: str) -> str:
    """A URL of this machine, where the server listens on all addresses."""
    parts = urlsplit(url)
    address = ipaddress.ip_address((parts.hostname or "").partition("%")[0])
    if not address.is_unspecified:
        return url
    return f"{parts.scheme}://{'127.0.0.1' if address.version == 4 else '[::1]'}:{parts.port}"
