"""MindIE's configuration file, read as options of ours."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import orjson

from trivium.doors.http.infer.mindie_keys import KEYS, Key
from trivium.errors import ConfigError

__all__ = ["MindieConfig", "read_mindie_config"]

_MAX_BYTES = 10 * 2**20

# What our engine runs with at most, where the vendor's range is wider.
_MOST_SEQS = 4096
_LEAST_BATCHED, _MOST_BATCHED = 16, 2**18
_MAX_WAITING = 512

# Keys that must not be larger than another. The first of each pair gives way where it is a default.
_LIMITS = (
    ("maxIterTimes", "maxSeqLen"),
    ("maxInputTokenLen", "maxPrefillTokens"),
    ("maxPrefillBatchSize", "maxBatchSize"),
    ("maxPreemptCount", "maxBatchSize"),
    ("maxN", "maxBatchSize"),
)


@dataclass(frozen=True, slots=True)
class MindieConfig:
    """Keyword values of `EngineConfig` and of `ServerConfig`, and what the log should tell at start."""

    engine: dict[str, Any]
    server: dict[str, Any]
    notes: list[str]


def read_mindie_config(path: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> MindieConfig:
    """Read a file like the vendor's `conf/config.json`.

    Keys that are not there have the vendor's defaults: https with client certificates, port 1025, at most 512 output tokens.
    Null counts as not there. Paths of certificates are relative to the folder that holds `conf`, as the vendor has it, or to
    the file's own. MIES_CONTAINER_IP in `environ` (default: the process's) stands above ipAddress.

    Raises `ConfigError` naming the key, what is allowed and what came for values out of their ranges, and for those that ask
    for what we cannot do.
    """
    path = Path(path)
    content = _read(path)
    given = dict(_walk(path, content))
    known = {key.path: key for key in KEYS}
    values = {key.name: key.default for key in KEYS}
    for place, value in given.items():
        key = known.get(place)
        if key is not None:
            _check(path, key, value)
            values[key.name] = value
    address = (os.environ if environ is None else environ).get("MIES_CONTAINER_IP")
    if address:
        _check("MIES_CONTAINER_IP", known["ServerConfig.ipAddress"], address)
        values["ipAddress"] = address
    explicit = {key.name for key in KEYS if key.path in given}
    _reconcile(path, values, explicit)
    notes = [*_notes(path, given, values), *_fit(path, values)]
    return MindieConfig(_engine(values), _server(path, values), notes)


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{path} must have at most {_MAX_BYTES} bytes (10 MB), got {path.stat().st_size}")
        content = orjson.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a JSON object, got {content!r:.80}")
    return content


def _walk(path: Path, content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keys of all sections with their full names, without nulls."""
    server, backend = (_section(path, content, name, name) for name in ("ServerConfig", "BackendConfig"))
    deploy = _section(path, backend, "ModelDeployConfig", "BackendConfig.ModelDeployConfig")
    schedule = _section(path, backend, "ScheduleConfig", "BackendConfig.ScheduleConfig")
    models = deploy.get("ModelConfig", [{}])
    if not isinstance(models, list) or len(models) != 1 or not isinstance(models[0], dict):
        _refuse(path, "BackendConfig.ModelDeployConfig.ModelConfig", "a list of one object: one server runs one model", models)
    sections = {
        "": {name: value for name, value in content.items() if name not in ("ServerConfig", "BackendConfig")},
        "ServerConfig.": server,
        "BackendConfig.": {n: v for n, v in backend.items() if n not in ("ModelDeployConfig", "ScheduleConfig")},
        "BackendConfig.ModelDeployConfig.": {name: value for name, value in deploy.items() if name != "ModelConfig"},
        "BackendConfig.ModelDeployConfig.ModelConfig[0].": models[0],
        "BackendConfig.ScheduleConfig.": schedule,
    }
    for prefix, section in sections.items():
        for name, value in section.items():
            if value is not None:
                yield prefix + name, value


def _section(path: Path, content: Mapping[str, Any], name: str, place: str) -> dict[str, Any]:
    section: dict[str, Any] | None = content.get(name)
    if section is None:
        return {}
    if not isinstance(section, dict):
        _refuse(path, place, "an object", section)
    return section


def _reconcile(path: Path, values: dict[str, Any], explicit: set[str]) -> None:
    """Check keys against each other."""
    values["maxInputTokenLen"] = min(values["maxInputTokenLen"], values["maxSeqLen"] - 1)
    for name, limit in _LIMITS:
        if values[name] is None or values[name] <= values[limit]:
            continue
        if name in explicit:
            _refuse(path, name, f"at most {limit}, which is {values[limit]}", values[name])
        values[name] = values[limit]
    if values["ipAddress"] in ("0.0.0.0", "::") and not values["allowAllZeroIpListening"]:
        _refuse(path, "ServerConfig.ipAddress", "a single address, unless allowAllZeroIpListening is true", values["ipAddress"])


def _fit(path: Path, values: dict[str, Any]) -> Iterator[str]:
    """Bring sizes that the vendor allows, and our engine does not, into its range."""
    ranges = {"maxBatchSize": (1, _MOST_SEQS), "maxPrefillTokens": (_LEAST_BATCHED, _MOST_BATCHED)}
    for name, (low, high) in ranges.items():
        fitted = min(max(values[name], low), high)
        if fitted != values[name]:
            yield f"{path}: {name} {values[name]} is taken as {fitted}: {low} to {high} is possible here"
            values[name] = fitted


def _engine(values: Mapping[str, Any]) -> dict[str, Any]:
    engine = {
        "max_model_len": values["maxSeqLen"],
        "max_num_seqs": values["maxBatchSize"],
        "max_num_batched_tokens": values["maxPrefillTokens"],
        "max_waiting": max(_MAX_WAITING, values["maxLinkNum"]),  # whatever connection is taken may wait
        "block_size": values["cacheBlockSize"],
    }
    if values["modelWeightPath"] is not None:
        engine["model"] = values["modelWeightPath"]
    if values["modelName"] is not None:
        engine["served_model_name"] = values["modelName"]
    if values["npuMemSize"] != -1:
        engine["kv_cache_memory"] = values["npuMemSize"] * 2**30
    return engine


def _server(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    timeouts = (3600, 65535) if values["EnableDynamicAdjustTimeoutConfig"] else (values["tokenTimeout"], values["e2eTimeout"])
    server = {
        "host": values["ipAddress"],
        "port": values["port"],
        "max_connections": values["maxLinkNum"],
        "max_request_bytes": values["maxRequestLength"] * 2**20,
        "max_input_len": values["maxInputTokenLen"],
        "max_output_len": values["maxIterTimes"],
        "request_timeout": float(min(timeouts)),
        "infer_full_text": values["fullTextEnabled"],
        "infer_truncation": _truncation(values["truncation"]),
    }
    management = values["managementIpAddress"], values["managementPort"]
    if management != (values["ipAddress"], values["port"]):  # one address and port for both planes merges them
        server |= {"management_host": management[0], "management_port": management[1]}
    return server | _tls(path, values) if values["httpsEnabled"] else server


def _truncation(value: bool | int) -> str:
    """-1 and true cut on the right, 1 on the left."""
    if value is True or value == -1:
        return "right"
    return "left" if value == 1 else "none"


def _tls(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    folder = path.absolute().parent
    root = folder.parent if folder.name == "conf" else folder
    if len(values["tlsCaFile"]) > 1:
        _refuse(path, "ServerConfig.tlsCaFile", "one file: join several into one", values["tlsCaFile"])
    for name in values["tlsCrlFiles"]:
        if os.path.isfile(root / values["tlsCrlPath"] / name):
            _refuse(path, "ServerConfig.tlsCrlFiles", "files that are not there: revocation lists are not supported", name)
    tls = {
        "tls_cert": str(root / values["tlsCert"]),
        "tls_key": str(root / values["tlsPk"]),
        "tls_ca": str(root / values["tlsCaPath"] / values["tlsCaFile"][0]),
        "tls_min_version": "1.3",
    }
    password = root / values["tlsPkPwd"]
    return tls | {"tls_key_password_file": str(password)} if values["tlsPkPwd"] and os.path.isfile(password) else tls


def _notes(path: Path, given: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[str]:
    used = [key for key in KEYS if key.used]
    defaults = [f"{key.name}={values[key.name]!r}" for key in used if key.path not in given and key.default is not None]
    if defaults:
        yield f"{path}: not there, so the vendor's defaults hold: {', '.join(defaults)}"
    ignored = given.keys() - {key.path for key in used}
    if ignored:
        yield f"{path}: ignored: {', '.join(place for place in given if place in ignored)}"


def _check(source: object, key: Key, value: Any) -> None:
    allowed, fits = key.check
    if not fits(value):
        _refuse(source, key.path, allowed, value)


def _refuse(source: object, place: str, allowed: str, value: Any) -> NoReturn:
    raise ConfigError(f"{source}: {place} must be {allowed}, got {value!r:.80}")
