"""Sound as bytes: what all voice units mean by it, and from WAV files to it.

Sound is 16 kHz mono, signed 16-bit samples in little-endian order, as the protocol has it.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trivium.doors.unit.errors import Code, UnitError

__all__ = ["BYTES_PER_SECOND", "RATE", "Recording", "read_recording", "read_wav", "resample", "to_sound"]

Levels = npt.NDArray[np.float32]

RATE = 16000  # samples per second
BYTES_PER_SECOND = 2 * RATE

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE  # format tags of WAV files
_RATES = (4000, 192_000)
_MAX_CHANNELS = 8


@dataclass(frozen=True, slots=True)
class Recording:
    """Samples as they came. `sound` converts them, which takes a while for long ones.

    `whole`: it is a file with a beginning and an end, not a piece of a stream.
    """

    samples: bytes
    rate: int = RATE
    channels: int = 1
    bits: int = 16
    is_float: bool = False
    whole: bool = False

    @property
    def num_bytes(self) -> int:
        """What it takes while it waits: as samples that came or as `sound`, whichever is more."""
        num_frames = len(self.samples) // (self.channels * self.bits // 8)
        return max(len(self.samples), 2 * math.ceil(num_frames * RATE / self.rate))

    def sound(self) -> bytes:
        """As 16 kHz mono, 16 bit."""
        if (self.rate, self.channels, self.bits, self.is_float) == (RATE, 1, 16, False):
            return self.samples
        levels = _levels(self.samples, self.bits, self.is_float)
        levels = levels[: len(levels) // self.channels * self.channels]
        return to_sound(resample(levels.reshape(-1, self.channels).mean(axis=1), self.rate))


def read_recording(data: bytes, kind: str) -> Recording:
    """What an inference brings: a WAV file, or plain samples. `kind` is the command's object.

    Raises `UnitError`: EMPTY, RUN for what is no sound that can be read.
    """
    if not data:
        raise UnitError(Code.EMPTY)
    if data.startswith(b"RIFF"):
        return read_wav(data)
    for form in ("wav", "mp3", "opus", "flac"):
        if form in kind.lower():
            raise UnitError(
                Code.RUN, f"{kind!r:.80} did not bring a WAV file; sound must be one, or 16 kHz mono 16-bit samples."
            )
    if len(data) % 2:
        raise UnitError(Code.RUN, f"Samples of 16 bit must have an even number of bytes, got {len(data)}.")
    return Recording(data)


def read_wav(data: bytes) -> Recording:
    """A WAV file: PCM of 8 to 32 bit or floats of 32 bit. Sizes that are too large, as of files written to a pipe, end with
    the data. Raises `UnitError` RUN."""
    if len(data) < 12 or data[8:12] != b"WAVE":
        raise _not_wav("its header is broken")
    header, position = None, 12
    while position + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, position)
        body = data[position + 8 : position + 8 + size]
        if name == b"fmt ":
            header = _header(body)
        elif name == b"data":
            if header is None:
                break
            rate, channels, bits, is_float = header
            whole_frames = len(body) // (channels * bits // 8) * (channels * bits // 8)
            return Recording(body[:whole_frames], rate, channels, bits, is_float, whole=True)
        position += 8 + size + size % 2
    raise _not_wav("it has no samples")


def resample(levels: Levels, rate: int) -> Levels:
    """Levels at 16 kHz, by cutting off or extending the spectrum of the whole signal."""
    if rate == RATE or not len(levels):
        return levels
    step = rate // math.gcd(rate, RATE)  # samples that become a whole number of samples
    padded = np.pad(levels, (0, -len(levels) % step))
    size = len(padded) * RATE // rate
    spectrum = np.fft.rfft(padded)[: size // 2 + 1]
    resampled = np.fft.irfft(spectrum, size) * (RATE / rate)
    return np.asarray(resampled[: max(1, round(len(levels) * RATE / rate))], np.float32)


def to_sound(levels: Levels) -> bytes:
    """Levels from -1 to 1 as samples; louder ones are clipped."""
    return np.clip(np.round(levels * 32768), -32768, 32767).astype("<i2").tobytes()


def _header(body: bytes) -> tuple[int, int, int, bool]:
    """Rate, channels, bits, and whether they are floats."""
    if len(body) < 16:
        raise _not_wav("its header is broken")
    form, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", body)
    if form == _EXTENSIBLE and len(body) >= 26:
        form = struct.unpack_from("<H", body, 24)[0]
    if (form, bits) not in {(_PCM, 8), (_PCM, 16), (_PCM, 24), (_PCM, 32), (_FLOAT, 32)}:
        raise _not_wav(f"it must be PCM of 8, 16, 24 or 32 bit or floats of 32 bit, got format {form} with {bits} bit")
    if not (_RATES[0] <= rate <= _RATES[1] and 1 <= channels <= _MAX_CHANNELS):
        raise _not_wav(
            f"it must have {_RATES[0]} to {_RATES[1]} Hz and 1 to {_MAX_CHANNELS} channels, got {rate} Hz, {channels}"
        )
    return rate, channels, bits, form == _FLOAT


def _not_wav(reason: str) -> UnitError:
    return UnitError(Code.RUN, f"The WAV file cannot be read: {reason}.")


def _levels(samples: bytes, bits: int, is_float: bool) -> Levels:
    """From -1 to 1."""
    if is_float:
        levels = np.nan_to_num(np.frombuffer(samples, "<f4"), nan=0.0, posinf=1.0, neginf=-1.0)
    elif bits == 8:
        levels = (np.frombuffer(samples, np.uint8).astype(np.float32) - 128) / 128
    elif bits == 24:
        wide: npt.NDArray[Any] = np.zeros((len(samples) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(samples, np.uint8).reshape(-1, 3)
        levels = wide.view("<i4")[:, 0] / 2**31
    else:
        levels = np.frombuffer(samples, f"<i{bits // 8}") / 2 ** (bits - 1)
    return np.asarray(levels, np.float32)
