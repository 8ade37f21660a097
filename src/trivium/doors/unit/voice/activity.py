"""`Activity`: where speech begins in a stream of sound, and how long it has been over."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from trivium.doors.unit.voice.sound import RATE

__all__ = ["FRAME_BYTES", "FRAME_SECONDS", "Activity", "IsSpeech", "webrtc_detector"]

FRAME_SECONDS = 0.03
FRAME_BYTES = 2 * int(RATE * FRAME_SECONDS)

_WINDOW = 8  # frames that are looked at together
_BEGINS = 5  # of these must be speech for it to begin
_GOES_ON = 2  # of the last three must be speech for it to go on
_LEAD = 12  # frames before that which belong to it, too: detectors miss soft beginnings

IsSpeech = Callable[[bytes], bool]


def webrtc_detector() -> IsSpeech:
    """A detector of speech in frames, WebRTC's, which pocketsphinx carries. It keeps a state: one for each stream."""
    from pocketsphinx import Vad

    detector = Vad(2, RATE, FRAME_SECONDS)
    is_speech: IsSpeech = detector.is_speech
    return is_speech


class Activity:
    """Smooths what a detector says of single frames.

    Attributes:
        speaking: speech has begun, and nobody has called `rest` since.
        silence: seconds since the last speech, or since the start.
        num_speech: frames of speech so far.
    """

    def __init__(self, is_speech: IsSpeech) -> None:
        self._is_speech = is_speech
        self._cut = b""  # less than a frame
        self.start()

    def start(self) -> None:
        """Begin with a new stream."""
        self.silence = 0.0
        self.num_speech = 0
        self.rest()

    def rest(self) -> None:
        """Wait for speech to begin anew; the silence goes on."""
        self.speaking = False
        self._recent = deque[bool](maxlen=_WINDOW)
        self._lead = deque[bytes](maxlen=_LEAD)

    def frames(self, sound: bytes) -> list[bytes]:
        """Whole frames of a stream that comes in pieces of any size."""
        sound = self._cut + sound
        end = len(sound) // FRAME_BYTES * FRAME_BYTES
        self._cut = sound[end:]
        return [sound[i : i + FRAME_BYTES] for i in range(0, end, FRAME_BYTES)]

    def feed(self, frame: bytes) -> bytes:
        """Take a frame; returns what of the sound belongs to speech: nothing before it begins, then this frame and at first
        some of those before."""
        spoken = self._is_speech(frame)
        self._recent.append(spoken)
        if not self.speaking:
            self._lead.append(frame)
            if sum(self._recent) < _BEGINS:
                self.silence += FRAME_SECONDS
                return b""
            self.speaking = True
            self.silence = 0.0
            self.num_speech += _BEGINS
            return b"".join(self._lead)
        if spoken and sum(list(self._recent)[-3:]) >= _GOES_ON:
            self.silence = 0.0
            self.num_speech += 1
        else:
            self.silence += FRAME_SECONDS
        return frame
