"""Where speech begins and ends."""

from __future__ import annotations

import pytest
from voice_parts import FRAME, SILENCE, SPEECH, loud, silence, speech

from trivium.doors.unit.voice.activity import Activity


def feed(activity, sound):
    return b"".join(activity.feed(frame) for frame in activity.frames(sound))


def test_speech_begins_with_what_led_to_it():
    activity = Activity(loud)
    assert feed(activity, silence(3)) == b""
    assert activity.silence == pytest.approx(3)
    heard = feed(activity, speech(1.2))
    assert activity.speaking
    assert heard == SILENCE * 7 + speech(1.2)
    assert activity.silence == 0
    feed(activity, silence(0.9))
    assert activity.speaking
    assert activity.silence == pytest.approx(0.9)
    before = activity.num_speech
    feed(activity, speech(0.3))
    assert activity.silence == 0
    assert activity.num_speech > before


def test_short_noise_is_no_speech():
    activity = Activity(loud)
    for _ in range(10):
        feed(activity, speech(0.12) + silence(0.3))
    assert not activity.speaking
    feed(activity, speech(0.3))
    assert activity.speaking
    feed(activity, silence(0.3) + SPEECH + silence(0.3))  # a click does not prolong it
    assert activity.silence == pytest.approx(0.63)


def test_rest_keeps_the_silence_and_start_does_not():
    activity = Activity(loud)
    feed(activity, speech(0.3) + silence(0.6))
    activity.rest()
    assert not activity.speaking
    assert activity.silence == pytest.approx(0.6)
    activity.start()
    assert (activity.silence, activity.num_speech) == (0, 0)


@pytest.mark.parametrize("size", [1, 2, 7, FRAME - 1, FRAME, FRAME + 1, 10_000])
def test_pieces_of_any_size_make_the_same_frames(size):
    activity = Activity(loud)
    sound = silence(0.3) + speech(0.3) + b"rest"
    frames = []
    for i in range(0, len(sound), size):
        frames += activity.frames(sound[i : i + size])
    assert b"".join(frames) == sound[:-4]
    assert {len(frame) for frame in frames} == {FRAME}
