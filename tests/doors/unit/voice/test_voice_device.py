"""The microphone and the loudspeaker, with a package sounddevice that tests make."""

from __future__ import annotations

import asyncio
import sys
import types

import pytest
from voice_parts import tone

from trivium.doors.unit.voice.sound_device import NoDeviceError, SoundDevice


class Stream:
    made = ()

    def __init__(self, **options):
        if Stream.broken:
            raise ValueError("no device")
        self.options, self.written, self.state = options, b"", "made"
        Stream.made = (*Stream.made, self)

    def start(self):
        self.state = "started"

    def close(self):
        self.state = "closed"

    def abort(self):
        self.state = "aborted"

    def write(self, data):
        self.written += data

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.state = f"{self.state}, closed"


@pytest.fixture
def package(monkeypatch):
    package = types.ModuleType("sounddevice")
    package.RawInputStream = package.RawOutputStream = Stream

    def check(**options):
        if Stream.broken:
            raise ValueError("no device")

    package.check_output_settings = check
    monkeypatch.setitem(sys.modules, "sounddevice", package)
    monkeypatch.setattr(Stream, "broken", False, raising=False)
    monkeypatch.setattr(Stream, "made", ())
    return package


def test_all_listeners_share_one_microphone(package):
    device, heard = SoundDevice(), []
    ends = [device.listen(lambda sound, i=i: heard.append((i, sound))) for i in range(2)]
    (stream,) = Stream.made
    assert stream.state == "started"
    assert (stream.options["samplerate"], stream.options["channels"], stream.options["dtype"]) == (16000, 1, "int16")
    stream.options["callback"](memoryview(b"ab"), 1, None, None)
    assert heard == [(0, b"ab"), (1, b"ab")]
    ends[0]()
    ends[0]()
    stream.options["callback"](memoryview(b"cd"), 1, None, None)
    assert heard[2:] == [(1, b"cd")]
    ends[1]()
    assert stream.state == "closed"
    device.listen(heard.append)()
    assert len(Stream.made) == 2


def test_playing_to_the_end_and_until_stopped(package):
    async def main():
        device = SoundDevice()
        await device.play(tone(0.1), lambda: False)
        stops = iter([False, False, False, True])
        await device.play(tone(0.1), lambda: next(stops))
        await device.play(tone(0.1), lambda: True)
        device.close()
        device.close()

    asyncio.run(main())
    whole, cut = Stream.made
    assert (whole.written, whole.state) == (tone(0.1), "made, closed")
    assert (cut.written, cut.state) == (tone(0.1)[:1280], "aborted, closed")


def test_without_devices(package, monkeypatch):
    device = SoundDevice()
    device.check_speaker()
    monkeypatch.setattr(Stream, "broken", True)
    assert_nothing_there(device, "no device")


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    assert_nothing_there(SoundDevice(), "the package sounddevice is not installed")


def test_without_portaudio(monkeypatch, tmp_path):
    (tmp_path / "sounddevice.py").write_text("raise OSError('PortAudio library not found')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    assert_nothing_there(SoundDevice(), "PortAudio library not found")


def assert_nothing_there(device, words):
    async def play():
        try:
            await device.play(tone(0.1), lambda: False)
        finally:
            device.close()

    with pytest.raises(NoDeviceError, match=words):
        device.listen(print)
    with pytest.raises(NoDeviceError, match=words):
        device.check_speaker()
    with pytest.raises(NoDeviceError, match=words):
        asyncio.run(play())
