"""`Spotter`: finds key phrases in sound, with pocketsphinx."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trivium.doors.unit.voice.activity import FRAME_SECONDS, Activity, IsSpeech, webrtc_detector
from trivium.doors.unit.voice.pronunciation import pronounce
from trivium.doors.unit.voice.sound import BYTES_PER_SECOND

__all__ = ["PhraseError", "Spotted", "Spotter", "clean_phrase"]

_SEARCH = "phrases"
_ENDS_AFTER = 0.6  # seconds of silence
_DEAF_AFTER = 1.0  # seconds in which no phrase is found anew: the rest of this one
_STEP = 4  # frames that are decoded together
_DECODER_FRAME = 0.01  # seconds

# The decoder compares how well a phrase fits with how well any sounds fit, and the longer the phrase, the worse that comparison
# is, even if it was said. Measured on recordings of several people: 10 to the minus 4 for each sound beyond three.
_EXPONENT_PER_PHONE, _FREE_PHONES, _MAX_EXPONENT = 4, 3, 50
_EASE = 80  # how far `ease` moves the exponent


class PhraseError(ValueError):
    """A phrase cannot be listened for; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Spotted:
    """A phrase, and when it began, in seconds of the sound so far."""

    phrase: str
    start: float


def clean_phrase(text: str) -> str:
    """A phrase as the dictionary spells it: words in lower case. Raises `PhraseError` for what is no English."""
    phrase = " ".join(re.sub(r"[\s,.!?_]+", " ", text).lower().split())
    if not phrase:
        raise PhraseError(f"a wake word must have letters, got {text!r:.80}")
    if not re.fullmatch(r"[a-z0-9' -]+", phrase):
        raise PhraseError(f"the wake word {text!r:.80} is not English: the bundled model knows no other language")
    return phrase


class Spotter:
    """Listens for phrases while somebody speaks. For one thread."""

    def __init__(self, phrases: Sequence[str], *, ease: float = 0.0, is_speech: IsSpeech | None = None) -> None:
        """`phrases` as `clean_phrase` gives them; `ease` from -1 (few false alarms) to 1 (hardly any miss).

        Takes some tenths of a second. Raises `PhraseError` for words that neither the dictionary nor espeak-ng knows.
        """
        from pocketsphinx import Decoder

        self._decoder: Any = Decoder(lm=None, kws=None, loglevel="FATAL")
        self._activity = Activity(is_speech or webrtc_detector())
        self._add({phrase: self._exponent(phrase) + _EASE * ease for phrase in phrases})
        self._in_utterance = False
        self._pending = bytearray()
        self._num_frames = 0  # heard so far
        self._utterance_start = 0.0
        self._deaf_until = 0.0

    def hear(self, sound: bytes) -> list[Spotted]:
        """Phrases that have been said by the end of this piece of sound, each once."""
        found = []
        for frame in self._activity.frames(sound):
            self._num_frames += 1
            self._pending += self._activity.feed(frame)
            ended = self._activity.speaking and self._activity.silence >= _ENDS_AFTER
            if len(self._pending) >= _STEP * len(frame) or ended:
                found += self._decode()
            if ended:
                self._end()
        return found

    def finish(self) -> list[Spotted]:
        """Phrases that have been said, as no more sound comes for now; what comes later has nothing to do with it."""
        found = self._decode() if self._pending else []
        self.forget()
        return found

    def forget(self) -> None:
        """What was heard has nothing to do with what will be."""
        self._pending.clear()
        self._end()
        self._activity.start()

    def _exponent(self, phrase: str) -> float:
        num_phones = sum(len(self._phones(word).split()) for word in phrase.split())
        return max(0, _EXPONENT_PER_PHONE * (num_phones - _FREE_PHONES))

    def _phones(self, word: str) -> str:
        known: str | None = self._decoder.lookup_word(word)
        if known is not None:
            return known
        phones = pronounce(word)
        if phones is None:
            raise PhraseError(f"the dictionary has no {word!r}, and espeak-ng is not there to say it")
        self._decoder.add_word(word, phones, True)
        return phones

    def _add(self, exponents: dict[str, float]) -> None:
        lines = [f"{phrase} /1e{-min(max(round(e), 0), _MAX_EXPONENT)}/\n" for phrase, e in exponents.items()]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "phrases")
            with open(path, "w", encoding="ascii") as file:
                file.writelines(lines)
            self._decoder.add_kws(_SEARCH, path)
        self._decoder.activate_search(_SEARCH)

    def _decode(self) -> list[Spotted]:
        sound, now = bytes(self._pending), self._num_frames * FRAME_SECONDS
        self._pending.clear()
        if not self._in_utterance:
            self._in_utterance = True
            self._utterance_start = max(0.0, now - len(sound) / BYTES_PER_SECOND)
            self._decoder.start_utt()
        self._decoder.process_raw(sound, False, False)
        if self._decoder.hyp() is None:
            return []
        segment = next(iter(self._decoder.seg()))
        spotted = Spotted(segment.word.strip(), self._utterance_start + segment.start_frame * _DECODER_FRAME)
        self._decoder.end_utt()
        self._in_utterance = False
        if now < self._deaf_until:
            return []
        self._deaf_until = now + _DEAF_AFTER
        return [spotted]

    def _end(self) -> None:
        """Nobody speaks any more."""
        if self._in_utterance:
            self._in_utterance = False
            self._decoder.end_utt()
        self._activity.rest()
