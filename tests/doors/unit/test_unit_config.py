"""Options of the unit door."""

from __future__ import annotations

import pytest

from trivium.doors.unit.config import UnitConfig
from trivium.doors.unit.line_settings import LineSettings
from trivium.errors import ConfigError


def test_defaults():
    config = UnitConfig()
    assert config.unit
    assert (config.unit_host, config.unit_port) == ("127.0.0.1", 10001)
    assert (config.unit_max_tasks, config.unit_queue, config.unit_frame_tokens) == (8, 8, 3)
    assert config.serial_lines == []
    assert config.models == {}


def test_a_file_and_variables(tmp_path):
    path = tmp_path / "trivium.toml"
    path.write_text(
        'model = "smollm2"\n[unit]\nunit_port = 7\nunit_models = ["a=b", "c=hf:d/e=f"]\nunit_serial = ["/dev/x:9600"]\n'
    )
    config = UnitConfig.load({"unit_port": None}, path, {"TRIVIUM_UNIT_QUEUE": "3", "TRIVIUM_UNIT": "off"})
    assert (config.unit_port, config.unit_queue, config.unit) == (7, 3, False)
    assert config.models == {"a": "b", "c": "hf:d/e=f"}
    assert config.serial_lines == [("/dev/x", LineSettings(9600))]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("unit_host", ""),
        ("unit_port", 65536),
        ("unit_port", -1),
        ("unit_max_tasks", 0),
        ("unit_queue", -1),
        ("unit_frame_tokens", 0),
        ("unit_default_model", ""),
        ("unit_models", ["a"]),
        ("unit_models", ["=b"]),
        ("unit_models", ["a="]),
        ("unit_models", ["a=b", "a=c"]),
        ("unit_speech_models", ["a"]),
        ("unit_speech_models", ["a=b", "a=c"]),
        ("unit_sound_frame", 95),
        ("unit_sound_frame", 2**20 + 1),
        ("unit_serial", [""]),
        ("unit_serial", [":9600"]),
        ("unit_serial", ["/dev/x:5"]),
        ("unit_serial", ["/dev/x:99999999999999999999"]),
        ("unit_serial", ["/dev/x:9600", "/dev/x:115200"]),
    ],
)
def test_wrong_values_are_named(option, value):
    with pytest.raises(ConfigError, match=option):
        UnitConfig(**{option: value})


def test_lines_are_set_as_the_option_and_the_command_say():
    assert LineSettings.of_option("/dev/ttyS1") == ("/dev/ttyS1", LineSettings())
    assert LineSettings.of_option("/dev/serial/by-path/a:b") == ("/dev/serial/by-path/a:b", LineSettings())
    data = {"baud": 1_500_000, "data_bits": 8, "stop_bits": 1, "parity": 110}
    assert LineSettings.of_command(data) == LineSettings(1_500_000, 8, 1, "N")
    assert LineSettings.of_command(data | {"parity": "e", "stop_bits": 2}) == LineSettings(1_500_000, 8, 2, "E")
    assert LineSettings().bytes_per_second == 11520


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("baud", 0),
        ("baud", "9600"),
        ("baud", None),
        ("baud", True),
        ("data_bits", 9),
        ("stop_bits", 0),
        ("parity", "x"),
        ("parity", 7),
        ("parity", None),
    ],
)
def test_wrong_settings_of_the_command_are_named(field, value):
    data = {"baud": 9600, "data_bits": 8, "stop_bits": 1, "parity": 110}
    with pytest.raises(ValueError, match=field):
        LineSettings.of_command(data | {field: value})
    with pytest.raises(ValueError, match="baud"):
        LineSettings.of_command("None")
