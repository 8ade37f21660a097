"""`Dialogue`: what a model is told before a user's text, and what was said, for tasks that keep that."""

from __future__ import annotations

from trivium.doors.prompt_size import check_size
from trivium.engine.engine import Engine
from trivium.models.chat_template import ChatTemplate

__all__ = ["Dialogue"]


class Dialogue:
    """Makes prompts. With `keeps`, earlier texts and answers come before a new text, as far back as the context allows."""

    def __init__(self, engine: Engine, system: str, *, keeps: bool, max_tokens: int) -> None:
        """Earlier texts leave room for `max_tokens` of an answer, or for a quarter of the context, if that is less."""
        self.keeps = keeps
        self._engine = engine
        self._system = system
        context = engine.model_info.max_model_len
        self._room = context - min(max_tokens, context // 4)
        self._turns: list[tuple[str, str]] = []

    def reset(self) -> None:
        """Forget what was said."""
        self._turns = []

    def add(self, text: str, answer: str) -> None:
        """Keep a text and its answer."""
        if self.keeps:
            self._turns.append((text, answer))

    def check(self, text: str) -> None:
        """Raise `PromptTooLongError` for a text that can never fit, in no time."""
        check_size(self._engine, self._system + text, "data")

    def prompt(self, text: str) -> list[int]:
        """The tokens of the next prompt; may run on any thread. The oldest turns that do not fit are forgotten.

        Raises `RequestError` if the template refuses it. A text that is too long by itself is mostly for the engine to refuse;
        what was said before it stays.
        """
        turns = self._turns
        tokens = self._tokens(turns, text)
        while turns and len(tokens) > self._room:
            turns = turns[max(1, len(turns) // 8) :]
            tokens = self._tokens(turns, text)
        if turns or len(tokens) < self._engine.model_info.max_model_len:
            self._turns = turns
        return tokens

    def _tokens(self, turns: list[tuple[str, str]], text: str) -> list[int]:
        template = self._engine.chat_template
        if template is None:
            said = [line for turn in turns for line in turn]
            return self._engine.tokenizer.encode_prompt("\n".join([*filter(None, [self._system]), *said, text]))
        return self._render(template, turns, text)

    def _render(self, template: ChatTemplate, turns: list[tuple[str, str]], text: str) -> list[int]:
        messages = [{"role": "system", "content": self._system}]
        for question, answer in turns:
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        messages.append({"role": "user", "content": text})
        return template.render(messages).tokens(self._engine.tokenizer)
