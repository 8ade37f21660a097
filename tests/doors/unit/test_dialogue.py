"""`Dialogue`: what is kept of what was said."""

from __future__ import annotations

from engine_parts import make_engine

from trivium.doors.unit.dialogue import Dialogue


def test_the_oldest_turns_go_when_the_context_is_full():
    with make_engine(max_model_len=256) as engine:
        dialogue = Dialogue(engine, "", keeps=True, max_tokens=16)
        for number in range(10):
            dialogue.add(f"question {number} " + "x" * 20, "answer")
        prompt = bytes(dialogue.prompt("now")).decode()
        assert prompt.endswith("question 9 xxxxxxxxxxxxxxxxxxxx\nanswer\nnow")
        assert "question 0" not in prompt


def test_a_text_that_is_too_long_by_itself_costs_nothing_of_what_was_said():
    with make_engine(max_model_len=256) as engine:
        dialogue = Dialogue(engine, "", keeps=True, max_tokens=16)
        dialogue.add("my name is Ada", "hello Ada")
        assert len(dialogue.prompt("y" * 300)) >= 300  # the engine refuses it
        assert b"Ada" in bytes(dialogue.prompt("who am I?"))
