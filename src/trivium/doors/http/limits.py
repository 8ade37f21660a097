"""Caps that hold before any work is done. Those that a user may want otherwise are options (`ServerConfig`, `EngineConfig`)."""

from __future__ import annotations

__all__ = [
    "BODY_SECONDS",
    "HEADER_SECONDS",
    "KEEP_ALIVE_SECONDS",
    "MAX_BAD_WORDS",
    "MAX_DETOKENIZED",
    "MAX_HEADER_BYTES",
    "MAX_JSON_CONTAINERS",
    "MAX_JSON_DEPTH",
    "MAX_MESSAGES",
    "MAX_PENDING_DELTAS",
    "MAX_PIPELINED",
    "MAX_PROMPTS",
    "MAX_PROMPT_CHARS",
    "MAX_SAMPLES",
    "MAX_STOP_CHARS",
    "MAX_STOP_STRINGS",
    "MAX_STOP_TOKEN_IDS",
    "MAX_TOOLS",
    "STALL_SECONDS",
]

MAX_HEADER_BYTES = 64 * 1024  # request line and headers together: 431
HEADER_SECONDS = 30.0  # from a connection, or the first byte of a further request, to the end of the headers
BODY_SECONDS = 60.0  # from the headers to the end of the body: 408
KEEP_ALIVE_SECONDS = 180.0  # that a connection may stay open between requests
MAX_PIPELINED = 8  # requests that a connection may send ahead of their answers
MAX_JSON_DEPTH = 64
MAX_JSON_CONTAINERS = 2**20  # arrays and objects of a body: each takes some 100 bytes, however short its text
MAX_PROMPT_CHARS = 4 * 2**20  # of one prompt, or of a conversation's texts together
MAX_DETOKENIZED = 2**18  # token ids that are told as text: one of a few bytes may stand for 100 characters
MAX_MESSAGES = 4096
MAX_PROMPTS = 512  # of one completion request
MAX_SAMPLES = 128  # `n`
MAX_TOOLS = 128
MAX_STOP_STRINGS = 32
MAX_STOP_CHARS = 1024  # of one stop string, or bad word
MAX_STOP_TOKEN_IDS = 1024
MAX_BAD_WORDS = 256

# A reader that takes nothing for so long, or lets so much pile up, is gone: its request is aborted.
STALL_SECONDS = 60.0
MAX_PENDING_DELTAS = 50_000
