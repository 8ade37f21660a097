"""How words sound, with small programs in the place of espeak-ng."""

from __future__ import annotations

import pytest

from trivium.doors.unit.voice import pronunciation as module
from trivium.doors.unit.voice.pronunciation import pronounce
from trivium.doors.unit.voice.spotter import PhraseError, clean_phrase


@pytest.mark.parametrize(
    ("told", "phones"),
    [
        ("t.r.'I.v.i@.m", "T R IH V IY AH M"),
        (" m.'E.Z.3\n", "M EH ZH ER"),
        ("'E.m f.'aI.v s.t.'a.k", "EH M F AY V S T AE K"),
        ("b.'V.?.n-", "B AH T AH N"),
        ("tS.,3:.tS", "CH ER CH"),
        ("", None),
        ("y.'W.t", None),
    ],
)
def test_phonemes_become_phones(tmp_path, monkeypatch, told, phones):
    program = tmp_path / "espeak-ng"
    program.write_text(f'#!/bin/sh\ncat > "{tmp_path}/word"\ncat <<EOF\n{told}\nEOF\n')
    program.chmod(0o755)
    monkeypatch.setattr(module.shutil, "which", lambda name: str(program))
    assert pronounce("-v word") == phones
    assert (tmp_path / "word").read_text() == "-v word"


def test_without_a_program_that_tells(tmp_path, monkeypatch):
    program = tmp_path / "espeak-ng"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    for path in (None, str(program), str(tmp_path)):
        monkeypatch.setattr(module.shutil, "which", lambda name, path=path: path)
        assert pronounce("word") is None


def test_phrases_are_spelled_as_the_dictionary_does():
    assert clean_phrase(" HEY,  Computer! ") == "hey computer"
    assert clean_phrase("don't_stop M5") == "don't stop m5"
    for text in ("", "...", " "):
        with pytest.raises(PhraseError, match="must have letters"):
            clean_phrase(text)
    for text in ("你好", "grüß gott", "hey /1e-50/", "a\0b"):
        with pytest.raises(PhraseError, match="is not English"):
            clean_phrase(text)
