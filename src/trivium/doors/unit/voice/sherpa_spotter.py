"""`SherpaSpotter`: finds key phrases in sound, with a model for sherpa-onnx."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trivium.doors.unit.voice.keyword_tokens import KeywordTokens
from trivium.doors.unit.voice.sherpa_model import SherpaModel
from trivium.doors.unit.voice.sound import BYTES_PER_SECOND, RATE
from trivium.doors.unit.voice.spotter import Spotted

__all__ = ["SherpaSpotter"]

_USUAL_THRESHOLD = 0.25
_PIECE = BYTES_PER_SECOND // 10  # of sound, after which it is seen whether a phrase was said
_REST_SECONDS = 1.5  # of silence after which the model has told whatever it heard before
# A model looks at chunks of about 0.3 s and some sound behind them, so it tells a phrase about this long after its end.
_LATE_SECONDS = 0.6


class SherpaSpotter:
    """Listens for phrases all the time: such a model knows itself what is no speech. For one thread."""

    def __init__(self, folder: str, phrases: Sequence[str], *, threshold: float | None = None) -> None:
        """`threshold` from 0 to 1, higher is stricter; None for the one that the folder or the library has.

        Takes a second or two. Raises `ModelLoadError` for a folder that is no such model, and `PhraseError`.
        """
        path = Path(folder).expanduser()
        model = SherpaModel.find(path)
        tokens = KeywordTokens(path)
        self._phrases = [" ".join(phrase.split()) for phrase in phrases]
        lines = []
        for number, spelled in enumerate(map(tokens.spell, self._phrases)):
            own = spelled.threshold if threshold is None else ""
            lines.append(" ".join(word for word in (*spelled.tokens, spelled.score, own, f"@{number}") if word))
        keywords = "\n".join(lines) + "\n"
        usual = _USUAL_THRESHOLD if threshold is None else threshold
        model.check(keywords, usual)
        self._spotter: Any = model.load(keywords, usual)
        self._num_bytes = 0  # heard so far
        self._cut = b""  # half a sample
        self.forget()

    def hear(self, sound: bytes) -> list[Spotted]:
        """Phrases that have been said by the end of this piece of sound, each once."""
        sound = self._cut + sound
        end = len(sound) - len(sound) % 2
        self._cut = sound[end:]
        return [spotted for i in range(0, end, _PIECE) for spotted in self._hear_piece(sound[i : min(i + _PIECE, end)])]

    def finish(self) -> list[Spotted]:
        """Phrases that have been said, as no more sound comes for now; what comes later has nothing to do with it."""
        before = self._num_bytes
        found = self.hear(bytes(int(_REST_SECONDS * RATE) * 2))
        self._num_bytes = before
        self.forget()
        return found

    def forget(self) -> None:
        """What was heard has nothing to do with what will be."""
        self._cut = b""
        self._stream = self._spotter.create_stream()

    def _hear_piece(self, sound: bytes) -> list[Spotted]:
        self._num_bytes += len(sound)
        self._stream.accept_waveform(RATE, np.frombuffer(sound, "<i2").astype(np.float32) / 32768)
        found = []
        while self._spotter.is_ready(self._stream):
            self._spotter.decode_stream(self._stream)
            number = self._spotter.get_result(self._stream)
            if number:
                times = self._spotter.timestamps(self._stream)
                found.append(Spotted(self._phrases[int(number)], self._start(times)))
                self._spotter.reset_stream(self._stream)
        return found

    def _start(self, times: list[float]) -> float:
        """When a phrase began that is found now: the library's times count from some moment that it does not tell."""
        seconds = times[-1] - times[0] if times else 0.0
        return max(0.0, self._num_bytes / BYTES_PER_SECOND - seconds - _LATE_SECONDS)
