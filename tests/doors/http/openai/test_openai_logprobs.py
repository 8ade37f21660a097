from __future__ import annotations

import math

from openai_parts import FakeTokenizer

from trivium.doors.http.openai.logprobs import CompletionLogprobs, chat_logprobs, prompt_logprobs
from trivium.doors.http.openai.pieces import Piece
from trivium.engine.outputs import TokenLogprobs
from trivium.engine.request import GenerationRequest
from trivium.engine.sampling import SamplingOptions

BEGIN, WORD = 256, 300


class Tokenizer(FakeTokenizer):
    """Bytes, a begin token, and a second token with the text "a"."""

    special_ids = frozenset({BEGIN})

    def token_bytes(self, token_id):
        return {BEGIN: b"<s>", WORD: b"a"}.get(token_id) or super().token_bytes(token_id)


def writer(prompt, echo=None, **sampling):
    return CompletionLogprobs(GenerationRequest("r", prompt, SamplingOptions(logprobs=1, **sampling)), Tokenizer(), echo)


def rows(*token_ids):
    return [TokenLogprobs(token_id, -1.0, 2, ((WORD, -0.5), (98, -0.7))) for token_id in token_ids]


def test_bytes_of_tokens():
    told = chat_logprobs([TokenLogprobs(0xE6, -math.inf, 1, ((97, -1.0),))], Tokenizer())
    assert told == [
        {
            "token": "\ufffd",
            "logprob": -9999.0,
            "bytes": [0xE6],
            "top_logprobs": [{"token": "a", "logprob": -1.0, "bytes": [97]}],
        }
    ]


def test_offsets_count_whole_characters():
    told = writer([97]).tell(Piece(0, logprobs=rows(97, *"日".encode(), 98)))
    assert told["tokens"] == ["a", "bytes:\\xe6", "bytes:\\x97", "bytes:\\xa5", "b"]
    assert told["text_offset"] == [0, 1, 1, 1, 2]
    assert told["token_logprobs"] == [-1.0] * 5
    assert told["top_logprobs"][4] == {"a": -0.5, "b": -1.0}


def test_the_likelier_of_two_with_one_text_counts():
    assert writer([97]).tell(Piece(0, logprobs=rows(97)))["top_logprobs"] == [{"a": -0.5}]


def test_pieces_are_told_as_one():
    whole = writer([97], "a").tell(Piece(0, logprobs=rows(97, BEGIN, 98), prompt_logprobs=[None]))
    pieces = writer([97], "a")
    first = pieces.tell(Piece(0, logprobs=rows(97), prompt_logprobs=[None]))
    second = pieces.tell(Piece(0, logprobs=rows(BEGIN, 98)))
    assert {name: first[name] + second[name] for name in first} == whole
    assert whole["text_offset"] == [0, 1, 2, 2]  # special tokens are not part of an answer's text
    shown = writer([97], skip_special_tokens=False).tell(Piece(0, logprobs=rows(97, BEGIN, 98)))
    assert shown["text_offset"] == [0, 1, 4]


def test_a_begin_token_before_the_prompt():
    prompt = [None, *rows(97)]
    assert writer([BEGIN, 97], "a").tell(Piece(0, logprobs=rows(98), prompt_logprobs=prompt)) == {
        "tokens": ["<s>", "a", "b"],
        "token_logprobs": [None, -1.0, -1.0],
        "top_logprobs": [None, {"a": -0.5}, {"a": -0.5, "b": -1.0}],
        "text_offset": [0, 0, 1],
    }
    assert writer([BEGIN, 97], "<s>a").tell(Piece(0, prompt_logprobs=prompt))["text_offset"] == [0, 3]


def test_prompt_logprobs():
    assert prompt_logprobs([None, TokenLogprobs(97, -2.0, 7, ((98, -1.0), (97, -2.0)))], Tokenizer()) == [
        None,
        {
            "97": {"logprob": -2.0, "rank": 7, "decoded_token": "a"},
            "98": {"logprob": -1.0, "rank": 1, "decoded_token": "b"},
        },
    ]
