"""MindIE's configuration file: what its keys become here, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trivium.config import EngineConfig
from trivium.doors.http.config import ServerConfig
from trivium.doors.http.infer.mindie_config import MindieConfig, read_mindie_config
from trivium.doors.http.infer.mindie_keys import KEYS
from trivium.errors import ConfigError

SECTIONS = ("ServerConfig", "BackendConfig", "ModelDeployConfig", "ModelConfig", "ScheduleConfig")


def nested(top: dict | None = None, server=None, backend=None, deploy=None, model=None, schedule=None) -> dict[str, Any]:
    """A file with the vendor's sections."""
    return {
        "Version": "1.0.0",
        **(top or {}),
        "ServerConfig": dict(server or {}),
        "BackendConfig": {
            **(backend or {}),
            "ModelDeployConfig": {**(deploy or {}), "ModelConfig": [dict(model or {})]},
            "ScheduleConfig": dict(schedule or {}),
        },
    }


def read(folder: Path, content: object, environ: dict[str, str] | None = None) -> MindieConfig:
    path = folder / "config.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    config = read_mindie_config(path, environ or {})
    EngineConfig(**config.engine)
    ServerConfig(**config.server)
    return config


def refused(folder: Path, content: object) -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder, content)
    return str(caught.value)


def test_a_whole_file(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        nested(
            server={
                "ipAddress": "10.0.0.5",
                "managementIpAddress": "10.0.0.5",
                "port": 2025,
                "managementPort": 2026,
                "metricsPort": 2027,
                "allowAllZeroIpListening": False,
                "maxLinkNum": 300,
                "httpsEnabled": False,
                "fullTextEnabled": True,
                "inferMode": "standard",
                "openAiSupport": "vllm",
                "tokenTimeout": 120,
                "e2eTimeout": 90,
                "maxRequestLength": 8,
                "kmcKsfMaster": "tools/pmt/master/ksfa",
            },
            backend={
                "backendName": "mindieservice_llm_engine",
                "modelInstanceNumber": 1,
                "npuDeviceIds": [[0, 1, 2, 3]],
                "tokenizerProcessNumber": 8,
                "multiNodesInferEnabled": False,
            },
            deploy={"maxSeqLen": 4096, "maxInputTokenLen": 4096, "truncation": False},
            model={
                "modelInstanceType": "Standard",
                "modelName": "qwen2.5-7b_chat",
                "modelWeightPath": "/models/qwen",
                "worldSize": 4,
                "npuMemSize": 3,
                "backendType": "atb",
                "trustRemoteCode": True,
            },
            schedule={
                "templateType": "Standard",
                "cacheBlockSize": 64,
                "maxPrefillBatchSize": 32,
                "maxPrefillTokens": 8192,
                "maxBatchSize": 64,
                "maxIterTimes": 1024,
                "maxPreemptCount": 0,
                "supportSelectBatch": False,
            },
        ),
    )
    assert config.engine == {
        "model": "/models/qwen",
        "served_model_name": "qwen2.5-7b_chat",
        "max_model_len": 4096,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 8192,
        "max_waiting": 512,
        "block_size": 64,
        "kv_cache_memory": 3 * 2**30,
    }
    assert config.server == {
        "host": "10.0.0.5",
        "port": 2025,
        "management_host": "10.0.0.5",
        "management_port": 2026,
        "max_connections": 300,
        "max_request_bytes": 8 * 2**20,
        "max_input_len": 4095,
        "max_output_len": 1024,
        "request_timeout": 90.0,
        "infer_full_text": True,
        "infer_truncation": "none",
    }


@pytest.mark.parametrize(
    "content", [{}, nested(), {"ServerConfig": None, "BackendConfig": None}, nested(server={"port": None})]
)
def test_the_vendors_defaults(tmp_path: Path, content: object) -> None:
    config = read(tmp_path, content)
    assert config.engine == {
        "max_model_len": 2560,
        "max_num_seqs": 200,
        "max_num_batched_tokens": 8192,
        "max_waiting": 1000,
        "block_size": 128,
    }
    assert config.server == {
        "host": "127.0.0.1",
        "port": 1025,
        "management_host": "127.0.0.2",
        "management_port": 1026,
        "max_connections": 1000,
        "max_request_bytes": 40 * 2**20,
        "max_input_len": 2048,
        "max_output_len": 512,
        "request_timeout": 600.0,
        "infer_full_text": False,
        "infer_truncation": "none",
        "tls_cert": str(tmp_path / "security/certs/server.pem"),
        "tls_key": str(tmp_path / "security/keys/server.key.pem"),
        "tls_ca": str(tmp_path / "security/ca/ca.pem"),
        "tls_min_version": "1.3",
    }
    (note,) = config.notes
    assert "the vendor's defaults hold" in note
    for default in ("port=1025", "httpsEnabled=True", "maxIterTimes=512", "maxSeqLen=2560", "maxBatchSize=200"):
        assert default in note


def test_each_ignored_key_is_told_once(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        nested(
            {"LogConfig": {"dynamicLogLevel": ""}},
            server={"kmcKsfMaster": "a", "metricsPort": 1027, "prot": 1},
            backend={"npuDeviceIds": [[0]]},
            model={"plugin_params": "{}", "worldSize": 1},
            schedule={"maxN": 8},
        ),
    )
    told = "\n".join(config.notes)
    for place in (
        "LogConfig",
        "ServerConfig.kmcKsfMaster",
        "ServerConfig.metricsPort",
        "ServerConfig.prot",
        "BackendConfig.npuDeviceIds",
        "BackendConfig.ModelDeployConfig.ModelConfig[0].plugin_params",
        "BackendConfig.ModelDeployConfig.ModelConfig[0].worldSize",
        "BackendConfig.ScheduleConfig.maxN",
    ):
        assert told.count(place) == 1
    assert "Version" not in told


@pytest.mark.parametrize(
    ("value", "side"), [(-1, "right"), (True, "right"), (0, "none"), (False, "none"), (1, "left"), (None, "none")]
)
def test_truncation(tmp_path: Path, value: object, side: str) -> None:
    assert read(tmp_path, nested(deploy={"truncation": value})).server["infer_truncation"] == side


def test_one_port_for_everything(tmp_path: Path) -> None:
    server = {"port": 1025, "managementPort": 1025, "managementIpAddress": "127.0.0.1"}
    assert "management_port" not in read(tmp_path, nested(server=server)).server
    apart = read(tmp_path, nested(server={"port": 1025, "managementPort": 1025})).server
    assert (apart["management_host"], apart["management_port"]) == ("127.0.0.2", 1025)


@pytest.mark.parametrize(("token", "e2e", "seconds"), [(600, 600, 600), (30, 600, 30), (3600, 60, 60), (3600, 65535, 3600)])
def test_timeouts(tmp_path: Path, token: int, e2e: int, seconds: int) -> None:
    assert read(tmp_path, nested(server={"tokenTimeout": token, "e2eTimeout": e2e})).server["request_timeout"] == seconds


def test_timeouts_at_their_most(tmp_path: Path) -> None:
    content = nested({"EnableDynamicAdjustTimeoutConfig": True}, server={"tokenTimeout": 30})
    assert read(tmp_path, content).server["request_timeout"] == 3600


def test_sizes_beyond_our_ranges_are_fitted_and_told(tmp_path: Path) -> None:
    config = read(tmp_path, nested(schedule={"maxBatchSize": 819200, "maxPrefillTokens": 4194304}))
    assert (config.engine["max_num_seqs"], config.engine["max_num_batched_tokens"]) == (4096, 2**18)
    assert sum("is taken as" in note for note in config.notes) == 2


def test_defaults_give_way_to_what_the_file_says(tmp_path: Path) -> None:
    config = read(tmp_path, nested(deploy={"maxSeqLen": 100}, schedule={"maxBatchSize": 4, "maxPrefillTokens": 50}))
    assert (config.engine["max_model_len"], config.engine["max_num_batched_tokens"]) == (100, 50)
    assert (config.server["max_input_len"], config.server["max_output_len"]) == (50, 100)


def test_the_environments_address(tmp_path: Path) -> None:
    content = nested(server={"ipAddress": "10.0.0.5"})
    assert read(tmp_path, content, {"MIES_CONTAINER_IP": "10.0.0.6"}).server["host"] == "10.0.0.6"
    assert read(tmp_path, content, {"MIES_CONTAINER_IP": ""}).server["host"] == "10.0.0.5"
    with pytest.raises(ConfigError, match=r"MIES_CONTAINER_IP.*IPv4 or IPv6.*'somewhere'"):
        read(tmp_path, content, {"MIES_CONTAINER_IP": "somewhere"})


def test_certificates_are_found_from_the_folder_above_conf(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "pass").mkdir()
    (tmp_path / "pass" / "key.txt").write_text("secret")
    server = {"tlsCaPath": "ca/", "tlsCaFile": ["own.pem"], "tlsCert": "c.pem", "tlsPk": "/k.pem", "tlsPkPwd": "pass/key.txt"}
    config = read(tmp_path / "conf", nested(server=server)).server
    assert config["tls_ca"] == str(tmp_path / "ca/own.pem")
    assert config["tls_cert"] == str(tmp_path / "c.pem")
    assert config["tls_key"] == "/k.pem"
    assert config["tls_key_password_file"] == str(tmp_path / "pass/key.txt")


def test_a_revocation_list_that_is_there_cannot_be_honoured(tmp_path: Path) -> None:
    (tmp_path / "crl.pem").write_text("")
    server = {"tlsCrlPath": "", "tlsCrlFiles": ["crl.pem"]}
    assert "ServerConfig.tlsCrlFiles" in refused(tmp_path, nested(server=server))
    assert "tls_cert" not in read(tmp_path, nested(server={**server, "httpsEnabled": False})).server


def test_one_file_of_certificates(tmp_path: Path) -> None:
    message = refused(tmp_path, nested(server={"tlsCaFile": ["a.pem", "b.pem"]}))
    assert "ServerConfig.tlsCaFile must be one file" in message


WRONG = [
    ({"top": {"Version": "2.0.0"}}, "Version"),
    ({"top": {"EnableDynamicAdjustTimeoutConfig": 1}}, "EnableDynamicAdjustTimeoutConfig"),
    *(({"server": {"ipAddress": value}}, "ServerConfig.ipAddress") for value in ("localhost", "", 1, "1.2.3", "fe80::1%eth0")),
    *(({"server": {"ipAddress": value}}, "ServerConfig.ipAddress") for value in ("0.0.0.0", "::")),
    *(({"server": {"port": value}}, "ServerConfig.port") for value in (0, 1023, 65536, "1025", 1025.0, True)),
    ({"server": {"managementPort": 80}}, "ServerConfig.managementPort"),
    ({"server": {"managementIpAddress": "here"}}, "ServerConfig.managementIpAddress"),
    ({"server": {"metricsPort": 80}}, "ServerConfig.metricsPort"),
    *(({"server": {"maxLinkNum": value}}, "ServerConfig.maxLinkNum") for value in (0, 4097, "1")),
    *(({"server": {"httpsEnabled": value}}, "ServerConfig.httpsEnabled") for value in (0, "false", [])),
    ({"server": {"fullTextEnabled": "yes"}}, "ServerConfig.fullTextEnabled"),
    ({"server": {"inferMode": "dmi"}}, "ServerConfig.inferMode"),
    ({"server": {"distDPServerEnabled": True}}, "ServerConfig.distDPServerEnabled"),
    ({"server": {"layerwiseDisaggregated": True}}, "ServerConfig.layerwiseDisaggregated"),
    *(({"server": {"tokenTimeout": value}}, "ServerConfig.tokenTimeout") for value in (0, 3601)),
    *(({"server": {"e2eTimeout": value}}, "ServerConfig.e2eTimeout") for value in (0, 65536)),
    *(({"server": {"maxRequestLength": value}}, "ServerConfig.maxRequestLength") for value in (0, 101)),
    *(({"server": {"maxJsonDepth": value}}, "ServerConfig.maxJsonDepth") for value in (9, 101)),
    *(({"server": {"tlsCaFile": value}}, "ServerConfig.tlsCaFile") for value in ([], "ca.pem", ["a"] * 4, [""], [1])),
    *(({"server": {"tlsCert": value}}, "ServerConfig.tlsCert") for value in ("", 1, "a" * 4097, "a\0b")),
    ({"backend": {"backendName": "other"}}, "BackendConfig.backendName"),
    *(({"backend": {"modelInstanceNumber": value}}, "BackendConfig.modelInstanceNumber") for value in (0, 2, True)),
    ({"backend": {"multiNodesInferEnabled": True}}, "BackendConfig.multiNodesInferEnabled"),
    ({"backend": {"tokenizerProcessNumber": 33}}, "BackendConfig.tokenizerProcessNumber"),
    *(({"deploy": {"maxSeqLen": value}}, "ModelDeployConfig.maxSeqLen") for value in (0, -1, 15, 2**24 + 1, "2560")),
    *(({"deploy": {"maxInputTokenLen": value}}, "ModelDeployConfig.maxInputTokenLen") for value in (0, 4194305)),
    *(({"deploy": {"truncation": value}}, "ModelDeployConfig.truncation") for value in (2, -2, "true", 1.0)),
    ({"deploy": {"LoraModules": [{"name": "a"}]}}, "ModelDeployConfig.LoraModules"),
    ({"model": {"modelInstanceType": "StandardMock"}}, "ModelConfig[0].modelInstanceType"),
    *(({"model": {"modelName": value}}, "ModelConfig[0].modelName") for value in ("", "-a", "a.", "a b", "a" * 257, 1)),
    ({"model": {"modelWeightPath": ""}}, "ModelConfig[0].modelWeightPath"),
    *(({"model": {"npuMemSize": value}}, "ModelConfig[0].npuMemSize") for value in (0, -2, 2**31, 1.5)),
    ({"model": {"worldSize": 0}}, "ModelConfig[0].worldSize"),
    *(({"schedule": {"cacheBlockSize": value}}, "ScheduleConfig.cacheBlockSize") for value in (0, 8, 24, 144, 128.0)),
    *(({"schedule": {"maxPrefillTokens": value}}, "ScheduleConfig.maxPrefillTokens") for value in (0, 4194305)),
    *(({"schedule": {"maxBatchSize": value}}, "ScheduleConfig.maxBatchSize") for value in (0, 819201)),
    ({"schedule": {"maxIterTimes": 0}}, "ScheduleConfig.maxIterTimes"),
    ({"schedule": {"prefillPolicyType": 1}}, "ScheduleConfig.prefillPolicyType"),
    ({"schedule": {"templateType": "Other"}}, "ScheduleConfig.templateType"),
    ({"schedule": {"maxQueueDelayMicroseconds": 499}}, "ScheduleConfig.maxQueueDelayMicroseconds"),
    ({"schedule": {"stageSelectPolicy": 3}}, "ScheduleConfig.stageSelectPolicy"),
    # Keys against each other.
    ({"schedule": {"maxIterTimes": 2561}}, "maxIterTimes must be at most maxSeqLen"),
    ({"deploy": {"maxInputTokenLen": 9000, "maxSeqLen": 10000}}, "maxInputTokenLen must be at most maxPrefillTokens"),
    ({"schedule": {"maxPrefillBatchSize": 9, "maxBatchSize": 8}}, "maxPrefillBatchSize must be at most maxBatchSize"),
    ({"schedule": {"maxPreemptCount": 9, "maxBatchSize": 8}}, "maxPreemptCount must be at most maxBatchSize"),
    ({"schedule": {"maxN": 9, "maxBatchSize": 8}}, "maxN must be at most maxBatchSize"),
]


@pytest.mark.parametrize(("sections", "place"), WRONG)
def test_refusals_name_the_key(tmp_path: Path, sections: dict[str, Any], place: str) -> None:
    message = refused(tmp_path, nested(**sections))
    assert place in message
    assert " must be " in message
    assert ", got " in message
    assert str(tmp_path / "config.json") in message


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_all_addresses_if_that_is_allowed(tmp_path: Path, address: str) -> None:
    content = nested(server={"ipAddress": address, "allowAllZeroIpListening": True})
    assert read(tmp_path, content).server["host"] == address


@pytest.mark.parametrize(
    "models", [[], [{}, {}], {}, "a", [1], [None]], ids=["none", "two", "no list", "text", "number", "null"]
)
def test_exactly_one_model(tmp_path: Path, models: object) -> None:
    content = {"BackendConfig": {"ModelDeployConfig": {"ModelConfig": models}}}
    assert "ModelConfig must be a list of one object" in refused(tmp_path, content)


@pytest.mark.parametrize("section", ["ServerConfig", "BackendConfig"])
def test_sections_are_objects(tmp_path: Path, section: str) -> None:
    assert f"{section} must be an object" in refused(tmp_path, {section: [1]})


@pytest.mark.parametrize("content", ["", "{", "[]", "1", "null", '{"ServerConfig": {}, // note\n}', '{"a": NaN}', "\ud800"])
def test_files_that_are_no_configuration(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_mindie_config(path, {})


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "no.json", tmp_path):
        with pytest.raises(ConfigError, match="cannot read the configuration"):
            read_mindie_config(path, {})


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b" " * (10 * 2**20) + b"{}")
    with pytest.raises(ConfigError, match="10 MB"):
        read_mindie_config(path, {})


def test_names_of_keys_are_one_each() -> None:
    assert len({key.name for key in KEYS}) == len({key.path for key in KEYS}) == len(KEYS)


def test_defaults_are_in_their_ranges() -> None:
    assert all(key.default is None or key.check[1](key.default) for key in KEYS)


values = (
    st.none()
    | st.booleans()
    | st.integers(-2, 5000)
    | st.sampled_from(["", "Standard", "Mix", "1.0.0", "127.0.0.1", "::1", "a", "\0", [], ["a.pem"], {}, 10**9, 2**40, 1.5])
    | st.text(max_size=5)
)
keys = st.dictionaries(st.sampled_from([key.name for key in KEYS]) | st.text(max_size=3), values, max_size=3)
deploys = keys | st.fixed_dictionaries({"ModelConfig": st.lists(keys)})
contents = st.fixed_dictionaries(
    {},
    optional={
        "Version": st.just("1.0.0") | values,
        "ServerConfig": keys | values,
        "BackendConfig": st.fixed_dictionaries(
            {},
            optional={
                "ModelDeployConfig": keys | st.fixed_dictionaries({"ModelConfig": st.lists(keys)}),
                "ScheduleConfig": keys,
            },
        ),
    },
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents)
def test_whatever_is_read_is_a_configuration_of_ours(tmp_path: Path, content: object) -> None:
    """`read` makes both configurations of it."""
    try:
        config = read(tmp_path, json.loads(json.dumps(content)))
    except ConfigError as error:
        told = str(error)
        assert "config.json" in told
        return
    assert config.notes
