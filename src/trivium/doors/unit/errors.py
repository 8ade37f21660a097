"""What goes wrong at the unit door: the protocol's codes, with the original's words."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Code", "UnitError"]


class Code(IntEnum):
    """Codes of error replies."""

    BRACES = -1  # a closing brace too many: the receiver starts anew
    JSON = -2
    ACTION = -3  # no such action, or one that is refused
    NO_INPUT = -4  # inference for a task that does not exist, or takes nothing from users
    MODEL = -5  # setup failed
    NO_TASK = -6
    NO_UNIT = -9
    UNAVAILABLE = -10
    RUN = -11  # the model failed on this inference, or its prompt is too long
    BUSY = -13  # too many inferences wait
    NO_WORK = -18  # the unit does not have the action
    LINK = -20
    FULL = -21  # no more tasks
    LINK_KIND = -22  # kws: not something it can be linked to
    BASE64 = -23
    EMPTY = -24
    STREAM = -25  # chunks of streamed input do not fit together


_MESSAGES = {
    Code.BRACES: "reace reset",
    Code.JSON: "json format error.",
    Code.ACTION: "action match false",
    Code.NO_INPUT: "inference data push false",
    Code.MODEL: "Model loading failed.",
    Code.NO_TASK: "Unit Does Not Exist",
    Code.NO_UNIT: "unit call false",
    Code.UNAVAILABLE: "Not available at the moment.",
    Code.RUN: "Model run failed.",
    Code.BUSY: "Already working.",
    Code.NO_WORK: "not have unit action!",
    Code.LINK: "link false",
    Code.FULL: "task full",
    Code.LINK_KIND: "link false",
    Code.BASE64: "Base64 decoding error.",
    Code.EMPTY: "The inference data is empty.",
    Code.STREAM: "Stream data index error.",
}


class UnitError(Exception):
    """An error reply. The message begins with the original's words; `detail` says after them what is wrong."""

    def __init__(self, code: Code, detail: str = "") -> None:
        self.code = code
        self.message = f"{_MESSAGES[code]} {detail}" if detail else _MESSAGES[code]
        super().__init__(self.message)
