"""The voice units: wake words, speech to text, text to speech. They need the extra `voice`."""

from __future__ import annotations

import importlib.util

from trivium.doors.unit.bus import Bus
from trivium.doors.unit.config import UnitConfig
from trivium.doors.unit.unit import Unit

__all__ = ["voice_units"]

_PACKAGES = ("pocketsphinx", "faster_whisper")


def voice_units(bus: Bus, config: UnitConfig) -> list[Unit]:
    """The units kws, asr, whisper, tts and melotts; none without the extra. Their models and packages load when used."""
    if not all(importlib.util.find_spec(package) for package in _PACKAGES):
        return []
    from trivium.doors.unit.voice.asr import AsrUnit, WhisperUnit
    from trivium.doors.unit.voice.kws import KwsUnit
    from trivium.doors.unit.voice.models import SpeechModels
    from trivium.doors.unit.voice.recogniser import Recognisers
    from trivium.doors.unit.voice.sound_device import SoundDevice
    from trivium.doors.unit.voice.tts import MelottsUnit, TtsUnit

    models, device, recognisers = SpeechModels(config.speech_models), SoundDevice(), Recognisers()
    return [
        KwsUnit(bus, config.unit_max_tasks, models, device),
        AsrUnit(bus, config.unit_max_tasks, models, device, recognisers),
        WhisperUnit(bus, config.unit_max_tasks, models, device, recognisers),
        TtsUnit(bus, config, models, device),
        MelottsUnit(bus, config, models, device),
    ]
