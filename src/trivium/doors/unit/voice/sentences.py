"""`Sentences`: cuts text that comes bit by bit into pieces to be spoken."""

from __future__ import annotations

__all__ = ["Sentences"]

_MARKS = frozenset("，、,。.!！?？;；\n")  # noqa: RUF001
_NUMBER_MARKS = frozenset(",.")  # part of a number between digits
_MAX_PIECE = 400  # characters without any mark


class Sentences:
    """Gives out a piece whenever its end has come: a mark of punctuation, a new line, or many characters without either."""

    def __init__(self) -> None:
        self._text = ""
        self._seen = 0  # characters of it that end nothing

    def add(self, text: str) -> list[str]:
        """The pieces that end in this text."""
        self._text += text
        return self._cut(final=False)

    def finish(self) -> list[str]:
        """What is left."""
        pieces = self._cut(final=True)
        rest, self._text, self._seen = self._text, "", 0
        return [*pieces, f"{rest.strip()}."] if _is_spoken(rest) else pieces

    def _cut(self, *, final: bool) -> list[str]:
        pieces, start = [], 0
        text = self._text
        position = self._seen
        while position < len(text):
            char = text[position]
            if char in _NUMBER_MARKS and text[position - 1 : position].isdigit():
                if position + 1 == len(text) and not final:
                    break  # whether a number goes on is not known yet
                ends = not text[position + 1 : position + 2].isdigit()
            else:
                ends = char in _MARKS
            position += 1
            if not ends and position - start >= _MAX_PIECE:
                space = text.rfind(" ", start + 1, position)
                position = position if space < 0 else space + 1
                ends = True
            if ends:
                piece, start = text[start:position], position
                if _is_spoken(piece):
                    pieces.append(piece.strip())
        self._text, self._seen = text[start:], position - start
        return pieces


def _is_spoken(piece: str) -> bool:
    """Whether it has anything but punctuation and space."""
    return any(char.isalnum() for char in piece)
