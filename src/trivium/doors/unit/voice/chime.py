"""`chime`: the sound that says that a wake word was heard."""

from __future__ import annotations

import functools

import numpy as np

from trivium.doors.unit.voice.sound import RATE, to_sound

__all__ = ["chime"]

_TONES = (660.0, 880.0)  # Hz
_SECONDS = 0.12  # of each


@functools.cache
def chime() -> bytes:
    """Two soft tones, a quarter of a second together."""
    times = np.arange(int(RATE * _SECONDS), dtype=np.float32) / RATE
    swell = 0.3 * np.sin(np.pi * times / _SECONDS) ** 2
    return to_sound(np.concatenate([swell * np.sin(2 * np.pi * tone * times) for tone in _TONES]).astype(np.float32))
