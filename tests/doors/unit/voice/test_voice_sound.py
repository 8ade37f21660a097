"""Sound as bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from voice_parts import tone, wav

from trivium.doors.unit.errors import Code, UnitError
from trivium.doors.unit.voice.chime import chime
from trivium.doors.unit.voice.sound import read_recording, read_wav, resample


def samples(sound):
    return np.frombuffer(sound, "<i2").astype(int)


def test_plain_samples_stay_as_they_are():
    recording = read_recording(tone(0.1), "kws.base64")
    assert recording.sound() == tone(0.1)
    assert not recording.whole


@pytest.mark.parametrize("kind", ["asr.wav.base64", "asr.base64"])
def test_a_wav_file_of_the_usual_form_stays_as_it_is(kind):
    recording = read_recording(wav(tone(0.1)), kind)
    assert recording.sound() == tone(0.1)
    assert recording.whole


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({}, 0.5),
        ({"rate": 4000}, 2.0),
        ({"rate": 4000, "bits": 8}, 4.0),
        ({"rate": 48000}, 0.5),  # takes more as it came than the sixth of a second that it lasts
        ({"channels": 8}, 0.5),
    ],
)
def test_what_a_recording_takes_while_it_waits(fields, seconds):
    recording = read_wav(wav(tone(0.5), **fields))
    assert recording.num_bytes == seconds * 32000
    assert recording.num_bytes >= len(recording.sound())


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000])
def test_another_rate(rate):
    sound = read_wav(wav(tone(0.5, rate), rate)).sound()
    assert abs(len(sound) - 16000) <= 2
    inside = slice(800, -800)  # the ends ring
    assert np.abs(samples(sound)[:7990][inside] - samples(tone(0.5))[:7990][inside]).max() < 200


@pytest.mark.parametrize(
    ("bits", "form", "convert"),
    [
        (8, 1, lambda x: ((x >> 8) + 128).astype(np.uint8).tobytes()),
        (24, 1, lambda x: (x.astype("<i4") << 8).view(np.uint8).reshape(-1, 4)[:, :3].tobytes()),
        (32, 1, lambda x: (x.astype("<i4") << 16).tobytes()),
        (32, 3, lambda x: (x / 32768).astype("<f4").tobytes()),
    ],
)
@pytest.mark.parametrize("extensible", [False, True])
def test_other_samples(bits, form, convert, extensible):
    given_form, extra = (0xFFFE, bytes(8) + bytes([form, 0]) + bytes(14)) if extensible else (form, b"")
    file = wav(convert(samples(tone(0.1))), bits=bits, form=given_form, extra=extra)
    assert np.abs(samples(read_wav(file).sound()) - samples(tone(0.1))).max() <= (256 if bits == 8 else 1)


def test_channels_are_mixed():
    left, right = samples(tone(0.1)), samples(tone(0.1, pitch=880))
    file = wav(np.stack([left, right], axis=1).astype("<i2").tobytes(), channels=2)
    assert np.abs(samples(read_wav(file).sound()) - (left + right) / 2).max() <= 1


def test_floats_that_are_none_and_too_loud_ones():
    levels = np.array([np.nan, np.inf, -np.inf, 7.0], "<f4")
    assert samples(read_wav(wav(levels.tobytes(), bits=32, form=3)).sound()).tolist() == [0, 32767, -32768, 32767]


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFF000, 7000])
def test_a_file_from_a_pipe_and_a_torn_one(size):
    assert read_wav(wav(tone(0.1) + b"x", size=size)).sound() == tone(0.1)


@pytest.mark.parametrize(
    ("data", "kind", "code", "words"),
    [
        (b"", "asr.base64", Code.EMPTY, "empty"),
        (b"abc", "asr.base64", Code.RUN, "an even number of bytes, got 3"),
        (tone(0.01), "asr.wav.base64", Code.RUN, "did not bring a WAV file"),
        (b"ID3x", "asr.mp3.base64", Code.RUN, "did not bring a WAV file"),
        (b"RIFF", "asr.base64", Code.RUN, "header is broken"),
        (b"RIFFxxxxWAVE", "asr.base64", Code.RUN, "no samples"),
        (b"RIFFxxxxWAVEdata\x02\0\0\0xx", "asr.base64", Code.RUN, "no samples"),
        (wav(tone(0.01))[:40], "asr.base64", Code.RUN, "no samples"),
        (wav(tone(0.01), form=7), "asr.base64", Code.RUN, "got format 7 with 16 bit"),
        (wav(tone(0.01), bits=64), "asr.base64", Code.RUN, "got format 1 with 64 bit"),
        (wav(tone(0.01), rate=1), "asr.base64", Code.RUN, "got 1 Hz"),
        (wav(tone(0.01), channels=0), "asr.base64", Code.RUN, "0"),
        (wav(tone(0.01), channels=9), "asr.base64", Code.RUN, "1 to 8 channels"),
    ],
)
def test_what_cannot_be_read_is_named(data, kind, code, words):
    with pytest.raises(UnitError, match=words) as caught:
        read_recording(data, kind)
    assert caught.value.code == code


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 55), st.integers(0, 255))
def test_any_bytes_are_sound_or_refused(data, position, byte):
    file = bytearray(wav(data))
    file[position] = byte
    for given_bytes in (data, b"RIFFxxxxWAVE" + data, bytes(file)):
        try:
            sound = read_recording(given_bytes, "asr.base64").sound()
        except UnitError:
            continue
        assert len(sound) % 2 == 0


def test_resampling_nothing():
    assert len(resample(np.zeros(0, np.float32), 8000)) == 0
    assert len(resample(np.zeros(1, np.float32), 192_000)) == 1


def test_the_chime_is_short_and_soft():
    assert 0.2 < len(chime()) / 32000 < 0.3
    assert 5000 < np.abs(samples(chime())).max() < 12000
