"""`pronounce`: how an English word sounds that the dictionary of pocketsphinx does not have, by asking espeak-ng."""

from __future__ import annotations

import re
import shutil
import subprocess

__all__ = ["pronounce"]

_SECONDS = 10.0

# The phones of the CMU dictionary, and what espeak-ng calls them in its American English.
# fmt: off
_NAMES = {
    "AA": "A: A# 0", "AA R": "A@", "AE": "a aa", "AH": "a# V @ @- @2 @5", "AH L": "l- @L", "AH M": "m-", "AH N": "n-",
    "AO": "O2 O: O", "AO R": "O@ o@", "AW": "aU", "AW ER": "aU@", "AY": "aI", "AY AH": "aI@", "AY ER": "aI3", "B": "b",
    "CH": "tS", "D": "d", "DH": "D", "EH": "E E# E2", "EH R": "e@", "ER": "3 3:", "EY": "eI e:", "F": "f", "G": "g",
    "HH": "h", "IH": "I I2 I#", "IH R": "i@3", "IY": "i i:", "IY AH": "i@", "JH": "dZ", "K": "k x", "L": "l l^",
    "M": "m", "N": "n", "NG": "N", "OW": "oU oU# o:", "OY": "OI", "P": "p", "R": "r r-", "S": "s", "SH": "S",
    "T": "t t# t2 ?", "TH": "T", "UH": "U", "UH R": "U@", "UW": "u: u", "V": "v", "W": "w", "Y": "j", "Z": "z",
    "ZH": "Z",
}
# fmt: on
_PHONES = {name: phones for phones, names in _NAMES.items() for name in names.split()}
_STRESS = re.compile(r"^[',%=|]+|[|]$")
_IGNORED = frozenset({"", ";", ":", "_", "_:", "||"})


def pronounce(word: str) -> str | None:
    """The word's phones as the CMU dictionary writes them; None without espeak-ng, or if it says what cannot be written so."""
    program = shutil.which("espeak-ng")
    if program is None:
        return None
    command = [program, "-q", "-x", "--sep=.", "-v", "en-us", "-b", "1", "--stdin"]
    try:
        told = subprocess.run(command, input=word.encode(), capture_output=True, timeout=_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    names = [_STRESS.sub("", name) for name in re.split(r"[.\s]+", told.decode("utf-8", "replace"))]
    phones = [_PHONES.get(name) for name in names if name not in _IGNORED]
    return " ".join(phone for phone in phones if phone) if phones and all(phones) else None
