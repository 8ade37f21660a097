"""What `speculation.py` has answered: prompts whose answers repeat them, and prompts whose answers do not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["TEXTS", "Text"]


@dataclass(frozen=True)
class Text:
    """A prompt. A chat prompt is put through the model's template, another is continued as it stands."""

    name: str
    prompt: str
    repeats: bool
    chat: bool = False


def _novel(start: int, end: int) -> str:
    path = Path(__file__).parents[1] / "tests" / "data" / "pride_and_prejudice.txt"
    return path.read_text(encoding="utf-8")[start:end]


_SENTENCES = (
    "The lighthouse at Cape Morrow was built in 1871 by the engineer Thomas Hale.",
    "It stands forty metres above the sea on a cliff of red sandstone.",
    "For the first thirty years its lamp burned whale oil, and two keepers carried the fuel up the stairs every evening.",
    "In 1902 the oil lamp was replaced by a gas burner, which was brighter and needed only one keeper.",
    "The storm of 1926 broke three of the windows and flooded the store room, but the light stayed on all night.",
    "Electric power reached the cape in 1948, and the last keeper, Martha Dean, left the house in 1963.",
    "Since then the lamp has been switched by a clock, and a boat brings a mechanic twice a year.",
    "Today the keeper's house is a small museum that opens from May to September.",
    "Visitors can climb the tower on Sundays, when a volunteer shows them the old burner and the log books.",
)
_PASSAGE = " ".join(_SENTENCES)

_CODE = """class Circle:
    def __init__(self, radius):
        self.radius = radius

    def area(self):
        return 3.14159 * self.radius ** 2

    def describe(self):
        return f"a circle of area {self.area():.2f}"


class Square:
    def __init__(self, side):
        self.side = side

    def area(self):
        return self.side ** 2

    def describe(self):
        return f"a square of area {self.area():.2f}"


class Rectangle:
    def __init__(self, width, height):
        self.width = width
        self.height = height

    def area(self):
        return self.width * self.height

    def describe(self):
        return f"a rectangle of area {self.area():.2f}"
"""

_RECORDS = "\n".join(
    f"{name}, born in {year} in {town}, is a {trade} and can be reached at {name.split()[0].lower()}@{town.lower()}.example."
    for name, year, town, trade in (
        ("Anna Fisher", 1961, "Lisbon", "baker"),
        ("Boris Klein", 1974, "Vienna", "printer"),
        ("Clara Novak", 1982, "Prague", "surgeon"),
        ("David Stone", 1990, "Dublin", "teacher"),
        ("Elena Rossi", 1968, "Verona", "carpenter"),
        ("Frank Olsen", 1979, "Bergen", "sailor"),
        ("Greta Lind", 1985, "Malmo", "painter"),
    )
)

TEXTS = (
    Text(
        "summary",
        f"{_PASSAGE}\n\nSummary, made of the most important sentences of the text:\n\n- {_SENTENCES[0]}\n- ",
        repeats=True,
    ),
    Text(
        "edit",
        f"Draft:\n\n{_PASSAGE}\n\nFinal version, with the name Cape Morrow changed to Cape Sorrow:\n\n"
        + _SENTENCES[0].replace("Morrow", "Sorrow"),
        repeats=True,
    ),
    Text(
        "extraction",
        f"{_RECORDS}\n\nName, town, address:\n"
        "Anna Fisher, Lisbon, anna@lisbon.example\nBoris Klein, Vienna, boris@vienna.example\n",
        repeats=True,
    ),
    Text(
        "code",
        f"# shapes.py\n{_CODE}\n\n# shapes.py, with Circle called Disc\nclass Disc:\n    def __init__(self",
        repeats=True,
    ),
    Text("story", "Tell me a story about a fox and a lighthouse.", repeats=False, chat=True),
    Text("explanation", "Explain how rainbows form, and why the sky is blue.", repeats=False, chat=True),
    Text("letter", "Write a letter to an old friend about moving to another town.", repeats=False, chat=True),
    Text("recipe", "How do I bake a good loaf of bread?", repeats=False, chat=True),
    Text("novel", _novel(20000, 21500), repeats=False),
)
