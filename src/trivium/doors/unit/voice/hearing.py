"""`Hearing`: from sound to sentences: when somebody speaks, what they have said so far, and when they have done."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from trivium.doors.unit.voice.activity import FRAME_SECONDS, Activity
from trivium.doors.unit.voice.sound import BYTES_PER_SECOND

__all__ = ["EndRules", "Heard", "Hearing"]

_GUESS_BYTES = int(0.8 * BYTES_PER_SECOND)  # of new sound, before it is recognised again
_PAUSE = 0.3  # seconds of silence after which what was said is recognised: it may have been all


class Heard(Enum):
    """What there is to tell."""

    SO_FAR = "what has been said so far of a sentence"
    SENTENCE = "a whole sentence"
    NOTHING = "what began like speech was none, or a recording has no speech"


@dataclass(frozen=True, slots=True)
class EndRules:
    """Seconds after which a sentence ends."""

    unspoken: float = 2.4  # of silence, if nothing was said
    spoken: float = 1.2  # of silence, after something was said
    longest: float = 30.0  # of the sentence


class Hearing:
    """Hears one stream of sound. For one thread.

    Attributes:
        sleeps: it falls asleep at the end of a sentence, or when none begins, and hears nothing until `wake`.
        awake: whether it hears.
    """

    def __init__(
        self,
        activity: Activity,
        transcribe: Callable[[bytes], str],
        tell: Callable[[Heard, str], None],
        rules: EndRules,
        *,
        so_far: bool,
        clock: Callable[[], float] = time.monotonic,
        is_unwanted: Callable[[], bool] = lambda: False,
    ) -> None:
        """`transcribe` recognises a sentence, and may take a while. `so_far`: tell what is said before it is complete, too.

        `is_unwanted`: nobody wants to know any more what is being heard; the rest of it is left out.
        """
        self.sleeps = False
        self.awake = True
        self._activity = activity
        self._transcribe = transcribe
        self._tell = tell
        self._rules = rules
        self._so_far = so_far
        self._clock = clock
        self._is_unwanted = is_unwanted
        self._deaf = 0  # frames that are left out yet
        self._num_told = 0
        self._clear()

    def hear(self, sound: bytes) -> None:
        """The stream goes on. Raises what `transcribe` raises; then the sentence is given up."""
        if not self.awake:
            return
        for frame in self._activity.frames(sound):
            if self._is_unwanted():
                return
            if self._deaf:
                self._deaf -= 1
                continue
            self._step(frame)
            if not self.awake:
                return

    def hear_recording(self, sound: bytes) -> None:
        """A recording that ends here. At least one sentence is told, or that there is none."""
        before = self._num_told
        self.hear(sound)
        self.end()
        if self._num_told == before:
            self._say(Heard.NOTHING)

    def end(self) -> None:
        """No more sound comes for now: what was said, if anything, is all."""
        if self._activity.speaking and not self._is_unwanted():
            self._end_sentence()

    def wake(self, delay: float = 0.0) -> None:
        """Hear from now on, but for the first `delay` seconds; what was begun is given up."""
        self._give_up()
        self._activity.start()
        self.awake = True
        self._deaf = round(delay / FRAME_SECONDS)

    def sleep(self) -> None:
        """Hear nothing until `wake`; what was begun is given up."""
        self._give_up()
        self.awake = False

    def _clear(self) -> None:
        self._sentence = bytearray()
        self._text = ""  # of what has been recognised of it
        self._recognised = 0  # frames of speech in it
        self._told_so_far = ""
        self._guess_at = _GUESS_BYTES  # of the sentence
        self._guess_from = 0.0  # by the clock

    def _step(self, frame: bytes) -> None:
        activity, rules = self._activity, self._rules
        self._sentence += activity.feed(frame)
        if not activity.speaking:
            if self.sleeps and activity.silence >= rules.unspoken:
                self.sleep()
            return
        seconds = len(self._sentence) / BYTES_PER_SECOND
        if activity.silence >= rules.spoken or seconds >= rules.longest:
            self._end_sentence()
        elif activity.silence >= _PAUSE or self._is_time_to_guess():
            self._guess()

    def _is_time_to_guess(self) -> bool:
        return self._so_far and len(self._sentence) >= self._guess_at and self._clock() >= self._guess_from

    def _guess(self) -> None:
        text = self._recognise()
        if self._so_far and text and text != self._told_so_far:
            self._told_so_far = text
            self._tell(Heard.SO_FAR, text)

    def _recognise(self) -> str:
        """What the sentence is so far; recognised anew only if there is more speech than last time."""
        if self._recognised == self._activity.num_speech:
            return self._text
        began = self._clock()
        try:
            self._text = self._transcribe(bytes(self._sentence))
        except Exception:
            self._rest()
            raise
        self._recognised = self._activity.num_speech
        now = self._clock()
        # On a busy machine no more than a third of the time goes into guesses.
        self._guess_from = now + 2 * (now - began)
        self._guess_at = len(self._sentence) + _GUESS_BYTES
        return self._text

    def _end_sentence(self) -> None:
        text = self._recognise()
        endless = len(self._sentence) / BYTES_PER_SECOND >= self._rules.longest
        if text:
            self._say(Heard.SENTENCE, text)
        else:
            self._give_up()
        self._clear()
        if text or endless:
            self._rest()
        else:
            self._activity.rest()

    def _rest(self) -> None:
        """Wait for another sentence, or sleep."""
        self._activity.start()
        self._clear()
        if self.sleeps:
            self.awake = False

    def _give_up(self) -> None:
        """Tell that nothing comes of the sentence, if something of it was told."""
        if self._told_so_far:
            self._say(Heard.NOTHING)
        self._clear()

    def _say(self, heard: Heard, text: str = "") -> None:
        self._num_told += 1
        self._tell(heard, text)
