"""A keyword model for sherpa-onnx whose tokens are tones: of each token it says that it hears it while its tone sounds.

It has the form of a streaming Zipformer transducer with one layer: the encoder compares the energy in each tone's band with
that in the others', the decoder keeps a token from being told twice in a row, the joiner adds the two.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from voice_parts import tone

PITCHES = (400.0, 900.0, 2000.0, 4200.0)  # Hz, of the tokens from number 3 on
LEAST = 3  # number of the first that has a tone: before it are blank, end and unknown
_T, _SHIFT, _BINS = 45, 32, 80  # frames of 10 ms in a chunk, and from one to the next
_LEFT, _DIM, _HEADS, _KERNEL = 4, 8, 2, 7


def write_model(folder, tokens, *, stem="-epoch-1-avg-1-chunk-16-left-4", metadata=None, **texts):
    """Write the files of a model whose tokens, up to four, are the tones of `PITCHES`; `texts` are other files of it."""
    names = ["<blk>", "<sos/eos>", "<unk>", *tokens]
    folder.mkdir(exist_ok=True)
    table = "".join(f"{name} {number}\n" for number, name in enumerate(names))
    (folder / "tokens.txt").write_text(table, encoding="utf-8")
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_text(text, encoding="utf-8")
    parts = {"encoder": _encoder(len(names), metadata), "decoder": _decoder(len(names)), "joiner": _joiner(len(names))}
    for part, model in parts.items():
        onnx.save(model, str(folder / f"{part}{stem}.onnx"))
    return folder


def tones(*numbers, seconds=0.3):
    """The sound of tokens, by their place among those that have a tone."""
    return b"".join(tone(seconds, pitch=PITCHES[number]) for number in numbers)


def _encoder(num_tokens, metadata):
    states = [
        ("cached_key_0", [_LEFT, "N", _DIM]),
        ("cached_nonlin_attn_0", [1, "N", _LEFT, 3 * _DIM // 4]),
        ("cached_val1_0", [_LEFT, "N", _DIM]),
        ("cached_val2_0", [_LEFT, "N", _DIM]),
        ("cached_conv1_0", ["N", _DIM, _KERNEL // 2]),
        ("cached_conv2_0", ["N", _DIM, _KERNEL // 2]),
        ("embed_states", ["N", 128, 3, 19]),
        ("processed_lens", ["N"]),
    ]
    kinds = {name: TensorProto.INT64 if name == "processed_lens" else TensorProto.FLOAT for name, _ in states}
    weights, bias = _bands(num_tokens)
    constants = {
        "start": np.array([0], np.int64),
        "end": np.array([_SHIFT], np.int64),
        "axis": np.array([1], np.int64),
        "shape": np.array([0, _SHIFT // 4, 4, _BINS], np.int64),
        "weights": weights,
        "bias": bias,
    }
    nodes = [
        helper.make_node("Slice", ["x", "start", "end", "axis"], ["heard"]),
        helper.make_node("Reshape", ["heard", "shape"], ["grouped"]),
        helper.make_node("ReduceMean", ["grouped"], ["mean"], axes=[2], keepdims=0),
        helper.make_node("MatMul", ["mean", "weights"], ["scores"]),
        helper.make_node("Add", ["scores", "bias"], ["encoder_out"]),
        *(helper.make_node("Identity", [name], [f"new_{name}"]) for name, _ in states),
    ]
    inputs = [("x", ["N", _T, _BINS]), *states]
    outputs = [("encoder_out", ["N", _SHIFT // 4, num_tokens]), *((f"new_{name}", shape) for name, shape in states)]
    one = {
        "encoder_dims": _DIM,
        "query_head_dims": _DIM // _HEADS,
        "value_head_dims": _DIM // _HEADS,
        "num_heads": _HEADS,
        "num_encoder_layers": 1,
        "cnn_module_kernels": _KERNEL,
        "left_context_len": _LEFT,
    }
    facts = {"model_type": "zipformer2", "version": 1, "T": _T, "decode_chunk_len": _SHIFT, **one}
    return _model(nodes, inputs, outputs, constants, facts if metadata is None else metadata, kinds)


def _bands(num_tokens):
    """Weights and a bias that make scores of a frame's 80 levels, which are logarithms: a tone's band against the mean of all
    others. Noise is in all of them alike, so it is blank, as silence is."""
    low, high = (1127 * np.log1p(hz / 700) for hz in (20.0, 7600.0))  # what the levels reach over, in mel
    centres = low + (high - low) / (_BINS + 1) * np.arange(1, _BINS + 1)
    weights, bias = np.zeros((_BINS, num_tokens), np.float32), np.zeros(num_tokens, np.float32)
    bias[1:LEAST] = -100
    bias[LEAST:] = -16
    for number, pitch in enumerate(PITCHES[: num_tokens - LEAST]):
        here = np.abs(centres - 1127 * np.log1p(pitch / 700)) < 100
        weights[:, LEAST + number] = np.where(here, 4 / here.sum(), -4 / (~here).sum())
    return weights, bias


def _decoder(num_tokens):
    table = np.zeros((num_tokens, num_tokens), np.float32)
    table[np.arange(LEAST, num_tokens), np.arange(LEAST, num_tokens)] = -100
    constants = {"last": np.array(1, np.int64), "table": table}
    nodes = [
        helper.make_node("Gather", ["y", "last"], ["token"], axis=1),
        helper.make_node("Gather", ["table", "token"], ["decoder_out"], axis=0),
    ]
    facts = {"vocab_size": num_tokens, "context_size": 2}
    kinds = {"y": TensorProto.INT64}
    return _model(nodes, [("y", ["N", 2])], [("decoder_out", ["N", num_tokens])], constants, facts, kinds)


def _joiner(num_tokens):
    nodes = [helper.make_node("Add", ["encoder_out", "decoder_out"], ["logit"])]
    shape = ["N", num_tokens]
    inputs = [("encoder_out", shape), ("decoder_out", shape)]
    return _model(nodes, inputs, [("logit", shape)], {}, {"joiner_dim": num_tokens}, {})


def _model(nodes, inputs, outputs, constants, facts, kinds):
    def describe(name, shape):
        return helper.make_tensor_value_info(name, kinds.get(name.removeprefix("new_"), TensorProto.FLOAT), shape)

    values = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "tones", [describe(*i) for i in inputs], [describe(*o) for o in outputs], values)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    helper.set_model_props(model, {name: str(value) for name, value in facts.items()})
    onnx.checker.check_model(model)
    return model
