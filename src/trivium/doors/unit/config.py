"""`UnitConfig`: the only source of the unit door's options, for flags, `TRIVIUM_…` variables and TOML's `[unit]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trivium.doors.unit.line_settings import LineSettings
from trivium.doors.unit.remote.address import BusAddress
from trivium.settings import Settings, option, require

__all__ = ["UnitConfig"]

_UNITS = ("llm", "kws", "asr", "whisper", "tts", "melotts")


@dataclass(slots=True)
class UnitConfig(Settings):
    """Options of the unit door. Raises `ConfigError` naming the field, what is allowed and what came."""

    table: ClassVar[str | None] = "unit"

    unit: bool = option(True, "answer devices that speak StackFlow's unit protocol")
    unit_host: str = option("127.0.0.1", "address the unit door listens on; 0.0.0.0 for every one")
    unit_port: int = option(10001, "its TCP port; 0 takes a free one")
    unit_serial: list[str] = option([], "serial line it answers, too, like /dev/ttyUSB0:115200")
    unit_max_tasks: int = option(8, "tasks of one unit at once; more setups are refused")
    unit_queue: int = option(8, "inferences that may wait behind a task's running one; more are refused")
    unit_frame_tokens: int = option(3, "tokens in a streamed frame, at least")
    unit_models: list[str] = option([], "model that a device's name stands for, as NAME=MODEL")
    unit_speech_models: list[str] = option(
        [], "the same for speech: NAME=a folder of Whisper or of sherpa-onnx (kws), or a piper voice's .onnx file"
    )
    unit_sound_frame: int = option(2880, "bytes of 16 kHz sound in a frame of streamed speech, at most")
    unit_default_model: str | None = option(None, "model for names that nothing stands for; default: such a setup is refused")
    unit_without: list[str] = option([], "unit that the server does not run, like asr, so that another process can be it")
    unit_bus: str | None = option(None, "folder, or tcp://ADDRESS:PORT, where units of other processes join; default: nowhere")
    unit_bus_open: bool = option(False, "let whoever reaches it join a unit_bus that is not on this machine alone")

    def __post_init__(self) -> None:
        self.coerce()
        require(bool(self.unit_host), "unit_host", "an address", self.unit_host)
        require(0 <= self.unit_port <= 65535, "unit_port", "0..65535", self.unit_port)
        require(1 <= self.unit_max_tasks <= 4096, "unit_max_tasks", "1..4096", self.unit_max_tasks)
        require(0 <= self.unit_queue <= 4096, "unit_queue", "0..4096", self.unit_queue)
        require(1 <= self.unit_frame_tokens <= 4096, "unit_frame_tokens", "1..4096", self.unit_frame_tokens)
        require(96 <= self.unit_sound_frame <= 2**20, "unit_sound_frame", "96..1048576", self.unit_sound_frame)
        require(self.unit_default_model != "", "unit_default_model", "a model", self.unit_default_model)
        devices = [device for device, _ in self.serial_lines]
        require(len(set(devices)) == len(devices), "unit_serial", "different devices", devices)
        for name in self.unit_without:
            require(name in _UNITS, "unit_without", " or ".join(_UNITS), name)
        _ = self.models, self.speech_models
        address = self.bus_address
        closed = address is None or address.is_local or self.unit_bus_open
        require(closed, "unit_bus", "a folder, or tcp:// on this machine alone, unless unit_bus_open is set", self.unit_bus)

    @property
    def bus_address(self) -> BusAddress | None:
        """Where units of other processes join."""
        return None if self.unit_bus is None else BusAddress.of_option(self.unit_bus)

    @property
    def serial_lines(self) -> list[tuple[str, LineSettings]]:
        """Devices of the serial lines, and how they are set at first."""
        return [LineSettings.of_option(text) for text in self.unit_serial]

    @property
    def models(self) -> dict[str, str]:
        """Language models by the names that devices use."""
        return _table("unit_models", self.unit_models)

    @property
    def speech_models(self) -> dict[str, str]:
        """Models of the voice units by the names that devices use."""
        return _table("unit_speech_models", self.unit_speech_models)


def _table(field: str, texts: list[str]) -> dict[str, str]:
    """Names and what they stand for. Raises `ConfigError`."""
    table: dict[str, str] = {}
    for text in texts:
        name, equals, model = text.partition("=")
        require(bool(name and equals and model), field, "NAME=MODEL", text)
        require(table.setdefault(name, model) == model, field, f"one model for {name!r}", text)
    return table
