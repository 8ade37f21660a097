"""`LineSettings`: speed and form of a serial line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trivium.errors import ConfigError

__all__ = ["LineSettings"]

_PARITIES = {"n": "N", "e": "E", "o": "O"}
_SPEEDS = range(300, 10_000_001)
_MAX_DIGITS = 20  # Python refuses to read numbers of thousands
_BAUD = 115200


@dataclass(frozen=True, slots=True)
class LineSettings:
    """Parity is N, E or O."""

    baud: int = _BAUD
    data_bits: int = 8
    stop_bits: int = 1
    parity: str = "N"

    @property
    def bytes_per_second(self) -> float:
        """What the line carries: a byte has a start bit, too."""
        return self.baud / (1 + self.data_bits + self.stop_bits + (self.parity != "N"))

    @classmethod
    def of_option(cls, text: str) -> tuple[str, LineSettings]:
        """The device and settings of "/dev/ttyUSB0:115200"; the speed may be missing. Raises `ConfigError`."""
        device, colon, digits = text.rpartition(":")
        if not (colon and digits.isascii() and digits.isdecimal()):
            device, digits = text, str(_BAUD)
        if not device or len(digits) > _MAX_DIGITS or int(digits) not in _SPEEDS:
            allowed = f"a device and a speed from {_SPEEDS[0]} to {_SPEEDS[-1]}, like /dev/ttyUSB0:115200"
            raise ConfigError(f"unit_serial must be {allowed}, got {text!r}")
        return device, cls(int(digits))

    @classmethod
    def of_command(cls, data: Any) -> LineSettings:
        """The settings of uartsetup; parity is a letter or its number in ASCII. Raises ValueError naming the field."""
        values = data if isinstance(data, dict) else {}
        parity = values.get("parity", "n")
        letter = chr(parity) if type(parity) is int and 0 < parity < 128 else parity
        if not isinstance(letter, str) or letter.lower() not in _PARITIES:
            raise ValueError(f"parity must be n, e or o, got {parity!r:.80}")
        return cls(
            _integer(values, "baud", _SPEEDS),
            _integer(values, "data_bits", range(5, 9)),
            _integer(values, "stop_bits", range(1, 3)),
            _PARITIES[letter.lower()],
        )


def _integer(values: dict[str, Any], name: str, allowed: range) -> int:
    value = values.get(name)
    if type(value) is not int or value not in allowed:
        raise ValueError(f"{name} must be an integer from {allowed[0]} to {allowed[-1]}, got {value!r:.80}")
    return value
