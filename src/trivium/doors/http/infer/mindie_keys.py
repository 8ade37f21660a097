"""The keys of MindIE's configuration file: where they stand, what they may be, the vendor's defaults."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["KEYS", "Key"]

TOP = ""
SERVER = "ServerConfig"
BACKEND = "BackendConfig"
DEPLOY = "BackendConfig.ModelDeployConfig"
MODEL = "BackendConfig.ModelDeployConfig.ModelConfig[0]"
SCHEDULE = "BackendConfig.ScheduleConfig"

Check = tuple[str, Callable[[Any], bool]]  # what is allowed, in words, and whether a value is

_MAX_UINT32 = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Key:
    """One key. If `used` it changes what we do, or has one value that we can honour; others are only checked.

    A default of None means that the key has no default here.
    """

    section: str
    name: str
    check: Check
    default: Any
    used: bool = True

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name


def _integer(low: int, high: int) -> Check:
    return f"an integer from {low} to {high}", lambda value: type(value) is int and low <= value <= high


def _only(value: Any, why: str = "") -> Check:
    return f"{value!r}{why}", lambda given: type(given) is type(value) and given == value


def _choice(*values: str) -> Check:
    return " or ".join(map(repr, values)), lambda value: isinstance(value, str) and value in values


def _is_address(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return False
    return "%" not in value


def _is_model_name(value: Any) -> bool:
    pattern = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
    return isinstance(value, str) and len(value) <= 256 and re.fullmatch(pattern, value) is not None


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 4096 and "\0" not in value


def _is_file_list(value: Any) -> bool:
    return isinstance(value, list) and 1 <= len(value) <= 3 and all(_is_path(name) and name for name in value)


_BOOLEAN: Check = "true or false", lambda value: isinstance(value, bool)
_TEXT: Check = "a string", lambda value: isinstance(value, str)
_PORT = _integer(1024, 65535)
_ADDRESS: Check = "an IPv4 or IPv6 address", _is_address
_PATH: Check = "a path of at most 4096 characters", _is_path
_FULL_PATH: Check = "a path of 1 to 4096 characters", lambda value: _is_path(value) and bool(value)
_FILES: Check = "a list of one to three file names", _is_file_list
_NAME: Check = "letters, digits, '-', '.', '_' inside, at most 256 characters", _is_model_name
_MEMORY: Check = (
    "-1 or an integer from 1 to 2147483647",
    lambda value: type(value) is int and (value == -1 or 1 <= value < 2**31),
)
_BLOCK: Check = (
    "a multiple of 16 from 16 to 128",
    lambda value: type(value) is int and 16 <= value <= 128 and not value % 16,
)
_TRUNCATION: Check = (
    "-1, 0, 1, true or false",
    lambda value: isinstance(value, bool) or (type(value) is int and -1 <= value <= 1),
)

KEYS = (
    Key(TOP, "Version", _only("1.0.0"), "1.0.0"),
    Key(TOP, "EnableDynamicAdjustTimeoutConfig", _BOOLEAN, False),
    Key(SERVER, "ipAddress", _ADDRESS, "127.0.0.1"),
    Key(SERVER, "managementIpAddress", _ADDRESS, "127.0.0.2"),
    Key(SERVER, "port", _PORT, 1025),
    Key(SERVER, "managementPort", _PORT, 1026),
    Key(SERVER, "metricsPort", _PORT, None, used=False),
    Key(SERVER, "allowAllZeroIpListening", _BOOLEAN, False),
    Key(SERVER, "maxLinkNum", _integer(1, 4096), 1000),
    Key(SERVER, "httpsEnabled", _BOOLEAN, True),
    Key(SERVER, "fullTextEnabled", _BOOLEAN, False),
    Key(SERVER, "tlsCaPath", _PATH, "security/ca/"),
    Key(SERVER, "tlsCaFile", _FILES, ["ca.pem"]),
    Key(SERVER, "tlsCert", _FULL_PATH, "security/certs/server.pem"),
    Key(SERVER, "tlsPk", _FULL_PATH, "security/keys/server.key.pem"),
    Key(SERVER, "tlsPkPwd", _PATH, "security/pass/key_pwd.txt"),
    Key(SERVER, "tlsCrlPath", _PATH, "security/certs/"),
    Key(SERVER, "tlsCrlFiles", _FILES, ["server_crl.pem"]),
    Key(SERVER, "inferMode", _only("standard", ": prefill and decode cannot be separated"), "standard"),
    Key(SERVER, "openAiSupport", _TEXT, None, used=False),
    Key(SERVER, "tokenTimeout", _integer(1, 3600), 600),
    Key(SERVER, "e2eTimeout", _integer(1, 65535), 600),
    Key(SERVER, "maxRequestLength", _integer(1, 100), 40),
    Key(SERVER, "maxJsonDepth", _integer(10, 100), None, used=False),
    Key(SERVER, "distDPServerEnabled", _only(False), False),
    Key(SERVER, "layerwiseDisaggregated", _only(False), False),
    Key(BACKEND, "backendName", _only("mindieservice_llm_engine"), "mindieservice_llm_engine"),
    Key(BACKEND, "modelInstanceNumber", _only(1, ": one server runs one model once"), 1),
    Key(BACKEND, "multiNodesInferEnabled", _only(False, ": one server runs on one machine"), False),
    Key(BACKEND, "tokenizerProcessNumber", _integer(1, 32), None, used=False),
    Key(DEPLOY, "maxSeqLen", _integer(16, 2**24), 2560),
    Key(DEPLOY, "maxInputTokenLen", _integer(1, 4194304), 2048),
    Key(DEPLOY, "truncation", _TRUNCATION, 0),
    Key(DEPLOY, "LoraModules", ("empty: adapters are not supported", lambda value: value == []), []),
    Key(MODEL, "modelInstanceType", _only("Standard"), "Standard"),
    Key(MODEL, "modelName", _NAME, None),
    Key(MODEL, "modelWeightPath", _FULL_PATH, None),
    Key(MODEL, "worldSize", _integer(1, _MAX_UINT32), None, used=False),
    Key(MODEL, "cpuMemSize", _integer(0, _MAX_UINT32), None, used=False),
    Key(MODEL, "npuMemSize", _MEMORY, -1),
    Key(MODEL, "backendType", _TEXT, None, used=False),
    Key(MODEL, "trustRemoteCode", _BOOLEAN, None, used=False),
    Key(SCHEDULE, "templateType", _choice("Standard", "Mix"), None, used=False),
    Key(SCHEDULE, "templateName", _TEXT, None, used=False),
    Key(SCHEDULE, "cacheBlockSize", _BLOCK, 128),
    Key(SCHEDULE, "maxPrefillBatchSize", _integer(0, 819200), None, used=False),
    Key(SCHEDULE, "maxPrefillTokens", _integer(1, 4194304), 8192),
    Key(SCHEDULE, "prefillTimeMsPerReq", _integer(0, 1000), None, used=False),
    Key(SCHEDULE, "prefillPolicyType", _integer(0, 0), None, used=False),
    Key(SCHEDULE, "decodeTimeMsPerReq", _integer(0, 1000), None, used=False),
    Key(SCHEDULE, "decodePolicyType", _integer(0, 0), None, used=False),
    Key(SCHEDULE, "maxBatchSize", _integer(1, 819200), 200),
    Key(SCHEDULE, "maxIterTimes", _integer(1, 2**24), 512),
    Key(SCHEDULE, "maxPreemptCount", _integer(0, 819200), None, used=False),
    Key(SCHEDULE, "supportSelectBatch", _BOOLEAN, None, used=False),
    Key(SCHEDULE, "maxQueueDelayMicroseconds", _integer(500, 1000000), None, used=False),
    Key(SCHEDULE, "maxFirstTokenWaitTime", _integer(0, 3600000), None, used=False),
    Key(SCHEDULE, "maxN", _integer(1, 8192), None, used=False),
    Key(SCHEDULE, "stageSelectPolicy", _integer(0, 2), None, used=False),
    Key(SCHEDULE, "dynamicBatchSizeEnable", _BOOLEAN, None, used=False),
    Key(SCHEDULE, "prefillExpectedTime", _integer(1, 10000), None, used=False),
    Key(SCHEDULE, "decodeExpectedTime", _integer(1, 10000), None, used=False),
)
