"""The original page misspells an argument once."""

from fastdeploy import LLM

LLM(model="baidu/ERNIE-4.5-0.3B-Paddle", resoning_parser="ernie-45-vl")
