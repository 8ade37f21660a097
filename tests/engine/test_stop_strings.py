from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from trivium.engine.stop_strings import StopMatch, StopPatterns, StopStrings


def run(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    """(shown text, stop string found) of a text that comes in pieces."""
    matcher, shown = StopStrings(StopPatterns(stops)), ""
    for piece in pieces:
        result = matcher.push(piece)
        if isinstance(result, StopMatch):
            return shown + result.before, result.stop
        shown += result
    return shown + matcher.flush(), None


def first_match(stops: list[str], text: str) -> tuple[str, str | None]:
    """The definition: the first end of a match, and the longest match that ends there."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


def test_text_without_stop_comes_at_once() -> None:
    assert StopStrings(StopPatterns(["###"])).push("some text") == "some text"


def test_possible_beginning_is_held_back_and_released() -> None:
    matcher = StopStrings(StopPatterns(["</s>"]))
    assert matcher.push("a<") == "a"
    assert matcher.push("/") == ""
    assert matcher.push("b") == "</b"
    assert matcher.push("c<") == "c"
    assert matcher.flush() == "<"
    assert matcher.push("/s>") == "/s>"


def test_match_across_pushes() -> None:
    matcher = StopStrings(StopPatterns(["User:", "\n\n"]))
    assert matcher.push("hi\nUs") == "hi\n"
    assert matcher.push("er: more") == StopMatch("User:", "")


def test_match_gives_the_text_before_it() -> None:
    assert StopStrings(StopPatterns(["stop"])).push("text stop here") == StopMatch("stop", "text ")


def test_earliest_end_wins_then_the_longest() -> None:
    assert run(["abcd", "b"], ["abcd"]) == ("a", "b")
    assert run(["b", "ab"], ["xab"]) == ("x", "ab")


def test_self_overlapping_string() -> None:
    assert run(["aab"], ["a", "a", "a", "b"]) == ("a", "aab")
    assert run(["abac"], list("ababac")) == ("ab", "abac")


@given(
    st.lists(st.text("ab.", min_size=1, max_size=5), min_size=1, max_size=3),
    st.lists(st.text("ab.", max_size=4), max_size=12),
)
def test_result_does_not_depend_on_the_cuts(stops: list[str], pieces: list[str]) -> None:
    assert run(stops, pieces) == first_match(stops, "".join(pieces))


@given(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3), st.text("abc", max_size=20))
def test_no_more_is_held_back_than_needed(stops: list[str], text: str) -> None:
    matcher = StopStrings(StopPatterns(stops))
    shown = ""
    for index, char in enumerate(text):
        result = matcher.push(char)
        if isinstance(result, StopMatch):
            return
        shown += result
        held = text[len(shown) : index + 1]
        longest = max(
            (n for stop in stops for n in range(len(stop)) if text[: index + 1].endswith(stop[:n])), default=0
        )  # fmt: skip
        assert len(held) == longest


def test_hostile_repetition_takes_linear_time() -> None:
    matcher = StopStrings(StopPatterns(["a" * 50_000 + "b"]))
    started = time.perf_counter()
    for _ in range(100):
        assert not isinstance(matcher.push("a" * 1000), StopMatch)
    assert time.perf_counter() - started < 10
    assert len(matcher.flush()) == 50_000
