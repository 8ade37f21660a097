"""From sound to sentences, with a recogniser that tells how many frames of speech it got."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from voice_parts import FRAME, SPEECH, loud, silence, speech

from trivium.doors.unit.voice.activity import Activity
from trivium.doors.unit.voice.hearing import EndRules, Heard, Hearing


class Ear:
    """A hearing, and what it told."""

    def __init__(self, *, so_far=False, sleeps=False, **rules):
        self.told = []
        self.calls = []
        self.texts = None  # instead of the number of frames
        self.now = 0.0
        self.seconds = 0.0  # that recognising takes
        self.hearing = Hearing(
            Activity(loud), self.transcribe, self.tell, EndRules(**rules), so_far=so_far, clock=lambda: self.now
        )
        if sleeps:
            self.hearing.sleeps = True
            self.hearing.sleep()

    def transcribe(self, sound):
        self.calls.append(len(sound))
        self.now += self.seconds
        text = self.texts.pop(0) if self.texts else str(sum(map(loud, frames(sound))))
        if isinstance(text, Exception):
            raise text
        return text

    def tell(self, heard, text):
        self.told.append((heard, text))

    def take(self):
        told, self.told = self.told, []
        return told

    def hear(self, sound):
        self.hearing.hear(sound)
        return self.take()


def frames(sound):
    return [sound[i : i + FRAME] for i in range(0, len(sound), FRAME)]


SENTENCE = [(Heard.SENTENCE, "34")]  # of 1.02 s


def test_a_sentence_ends_with_silence():
    ear = Ear()
    assert ear.hear(silence(5) + speech(1.02) + silence(1.17)) == []
    assert ear.hear(silence(0.09)) == SENTENCE
    assert ear.hear(silence(10)) == []
    assert ear.hear(speech(1.02) + silence(1.5)) == SENTENCE
    assert ear.hearing.awake


def test_it_is_recognised_once_while_the_silence_is_waited_for():
    ear = Ear()
    ear.hear(speech(1.02) + silence(0.36))
    assert len(ear.calls) == 1
    assert ear.hear(silence(1)) == SENTENCE
    assert len(ear.calls) == 1


def test_a_pause_does_not_end_it():
    ear = Ear()
    assert ear.hear(speech(0.51) + silence(0.6) + speech(0.51) + silence(1.2)) == SENTENCE
    assert len(ear.calls) == 2


def test_a_sentence_that_is_too_long_is_cut():
    ear = Ear(longest=3.0)
    assert ear.hear(speech(3.0)) == [(Heard.SENTENCE, "100")]
    assert ear.hear(speech(1.02) + silence(1.5)) == SENTENCE


def test_what_has_been_said_so_far():
    ear = Ear(so_far=True)
    told = ear.hear(speech(3.0) + silence(1.2))
    assert [heard for heard, _ in told] == [Heard.SO_FAR] * 4 + [Heard.SENTENCE]
    counts = [int(text) for _, text in told]
    assert counts == sorted(counts)
    assert counts[-2:] == [100, 100]


def test_the_same_text_is_not_told_twice():
    ear = Ear(so_far=True)
    ear.texts = ["a", "a", "a b", "a b", "a b."]
    assert ear.hear(speech(4.0) + silence(1.2)) == [
        (Heard.SO_FAR, "a"),
        (Heard.SO_FAR, "a b"),
        (Heard.SO_FAR, "a b."),
        (Heard.SENTENCE, "a b."),
    ]


def test_guesses_take_a_third_of_the_time_at_most():
    ear = Ear(so_far=True)
    ear.seconds = 10.0
    for _ in range(100):
        ear.hear(SPEECH)
        ear.now += 0.03
    assert len(ear.calls) == 1


def test_asleep_until_woken_and_again_at_the_end():
    ear = Ear(sleeps=True)
    assert ear.hear(speech(1) + silence(2)) == []
    ear.hearing.wake()
    assert ear.hear(speech(1.02) + silence(1.2) + speech(1.02) + silence(1.2)) == SENTENCE
    assert not ear.hearing.awake
    assert ear.hear(speech(1) + silence(2)) == []


def test_asleep_again_if_nothing_is_said():
    ear = Ear(sleeps=True)
    ear.hearing.wake()
    assert ear.hear(silence(2.37)) == []
    assert ear.hearing.awake
    ear.hear(silence(0.06))
    assert not ear.hearing.awake
    assert ear.calls == []


def test_the_wake_words_end_is_left_out():
    ear = Ear(sleeps=True)
    ear.hearing.wake(0.3)
    assert ear.hear(speech(1.32) + silence(1.2)) == SENTENCE


def test_woken_again_in_a_sentence():
    ear = Ear(so_far=True, sleeps=True)
    ear.hearing.wake()
    assert ear.hear(speech(0.9)) == [(Heard.SO_FAR, "27")]
    ear.hearing.wake()
    assert ear.take() == [(Heard.NOTHING, "")]
    assert ear.hear(speech(1.02) + silence(1.2))[-1:] == SENTENCE
    ear.hearing.wake()
    ear.hearing.wake()
    assert ear.take() == []


def test_put_to_sleep_in_a_sentence():
    ear = Ear(so_far=True)
    ear.hear(speech(0.9))
    ear.hearing.sleep()
    assert ear.take() == [(Heard.NOTHING, "")]
    assert ear.hear(speech(2) + silence(2)) == []


def test_noise_is_no_sentence():
    ear = Ear(sleeps=True)
    ear.texts = ["", "12"]
    ear.hearing.wake()
    assert ear.hear(speech(0.6) + silence(1.2)) == []
    assert ear.hearing.awake  # but the silence goes on
    assert ear.hear(speech(0.6) + silence(1.2)) == [(Heard.SENTENCE, "12")]
    ear.texts = [""]
    ear.hearing.wake()
    assert ear.hear(speech(0.6) + silence(2.43)) == []
    assert not ear.hearing.awake


def test_endless_noise_ends():
    ear = Ear(sleeps=True, so_far=True)
    ear.texts = [""] * 100
    ear.hearing.wake()
    assert ear.hear(speech(31)) == []
    assert not ear.hearing.awake


def test_a_text_that_dissolves():
    ear = Ear(so_far=True)
    ear.texts = ["a", ""]
    assert ear.hear(speech(0.9) + silence(1.2)) == [(Heard.SO_FAR, "a"), (Heard.NOTHING, "")]


def test_no_more_sound_is_silence():
    ear = Ear()
    ear.hear(speech(1.02))
    ear.hearing.end()
    assert ear.take() == SENTENCE
    ear.hearing.end()
    assert ear.take() == []


def test_recordings_end():
    ear = Ear()
    ear.hearing.hear_recording(speech(1.02))
    assert ear.take() == SENTENCE
    ear.hearing.hear_recording(speech(1.02) + silence(1.2) + speech(0.51))
    assert ear.take() == [*SENTENCE, (Heard.SENTENCE, "17")]
    ear.hearing.hear_recording(speech(1.02) + silence(3))
    assert ear.take() == SENTENCE
    ear.hearing.hear_recording(silence(1))
    assert ear.take() == [(Heard.NOTHING, "")]


def test_a_recording_for_one_that_sleeps():
    ear = Ear(sleeps=True)
    ear.hearing.hear_recording(speech(1))
    assert ear.take() == [(Heard.NOTHING, "")]


def test_the_rest_of_what_nobody_wants_any_more_is_left_out():
    ear = Ear()
    ear.hearing = Hearing(
        Activity(loud), ear.transcribe, ear.tell, EndRules(), so_far=False, is_unwanted=lambda: len(ear.calls) > 0
    )
    ear.hearing.hear_recording((speech(1.02) + silence(1.2)) * 10)
    assert len(ear.calls) == 1


@pytest.mark.parametrize("sleeps", [False, True])
def test_a_fault_gives_the_sentence_up(sleeps):
    ear = Ear(so_far=True, sleeps=sleeps)
    ear.texts = [RuntimeError("broken")]
    ear.hearing.wake()
    with pytest.raises(RuntimeError, match="broken"):
        ear.hear(speech(2))
    assert ear.hearing.awake is not sleeps
    ear.hearing.wake()
    assert ear.hear(speech(1.02) + silence(1.2))[-1:] == SENTENCE


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=6), st.booleans(), st.integers(200, 5000))
def test_any_sound_makes_sentences_that_end(turns, so_far, size):
    ear = Ear(so_far=so_far, longest=1.0)
    sound = b"".join(speech(a * 0.03) + silence(b * 0.03) for a, b in turns)
    for i in range(0, len(sound), size):
        ear.hearing.hear(sound[i : i + size])
    ear.hearing.end()
    begun = False
    for heard, text in ear.told:
        assert heard is not Heard.NOTHING or begun
        assert (heard is Heard.NOTHING) == (text == "")
        begun = heard is Heard.SO_FAR
    assert not begun
