"""Turns a Llama in GGUF into a folder as Hugging Face tools read it: bfloat16 weights, config, tokenizer.

It runs by its path in the interpreter of the engine, which need not have hsbench. It needs what every SGLang
brings (gguf, safetensors, tokenizers, torch) and nothing else, so that the folder does not depend on the
release of transformers. Standard output carries lines ``done total``, counted in tensors.

    python convert.py FILE.gguf FOLDER

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Tensor names and the order of rows of the
query and key projections: `convert_hf_to_gguf.py` of llama.cpp, whose `LlamaModel.permute` is undone here.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

MISSING_PACKAGE = 3
"""Exit code when a package is missing; the last line of standard output is its name."""

BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
CONTROL_TOKEN = 3
"""`LLAMA_TOKEN_TYPE_CONTROL`: tokens such as end of turn, never made from text."""


def say(text: str) -> None:
    """One line to standard output, at once."""
    os.write(1, text.encode() + b"\n")


def hf_name(name: str) -> str:
    """What transformers calls a tensor: `model.layers.3.mlp.up_proj.weight` for `blk.3.ffn_up.weight`."""
    stem, _, kind = name.rpartition(".")
    if stem in OUTER_NAMES:
        return f"{OUTER_NAMES[stem]}.{kind}"
    prefix, number, inner = stem.split(".")
    if prefix != "blk":
        raise ValueError(f"unknown tensor {name}")
    return f"model.layers.{int(number)}.{BLOCK_NAMES[inner]}.{kind}"


def unpermute(weight: Any, heads: int) -> Any:
    """Rows of a rotary projection from llama.cpp's order (pairs side by side) back to two halves.

    Shape in and out: [heads * head size, hidden size].
    """
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, half, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def read_fields(reader: Any) -> "dict[str, Any]":
    """The metadata as plain values."""
    return {name: field.contents() for name, field in reader.fields.items()}


def write_weights(reader: Any, fields: "dict[str, Any]", folder: Path) -> None:
    """Dequantise to float32, undo the permutation, round to bfloat16, write one file."""
    import torch
    from gguf import dequantize
    from safetensors.torch import save_file

    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    weights = {}
    for done, tensor in enumerate(reader.tensors):
        values = dequantize(tensor.data, tensor.tensor_type)
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            values = unpermute(values, heads[kind])
        weights[hf_name(tensor.name)] = torch.from_numpy(values.copy()).to(torch.bfloat16)
        if done % 64 == 0:
            say(f"{done} {len(reader.tensors)}")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def write_config(fields: "dict[str, Any]", tied: bool, folder: Path) -> None:
    """`config.json` and `generation_config.json`.

    The rotary base stands in it twice: releases of transformers before 5 read `rope_theta` and would silently
    take 10000 without it.
    """
    hidden, heads = fields["llama.embedding_length"], fields["llama.attention.head_count"]
    theta = fields["llama.rope.freq_base"]
    special = {
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": fields["llama.feed_forward_length"],
        "max_position_embeddings": fields["llama.context_length"],
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": fields["llama.block_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "rope_theta": theta,
        "tie_word_embeddings": tied,
        "use_cache": True,
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        **special,
    }
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", special)


def write_tokenizer(fields: "dict[str, Any]", folder: Path) -> None:
    """`tokenizer.json`, `tokenizer_config.json` and the chat template.

    The pre-tokenizer `smollm` splits digits one by one, then as GPT-2 does. The longest sequence is stated,
    because SGLang 0.5.15 cannot answer `/tokenize` for a tokenizer that has none.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    if (fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"]) != ("gpt2", "smollm"):
        raise ValueError(f"unknown tokenizer {fields['tokenizer.ggml.model']}/{fields['tokenizer.ggml.pre']}")
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    digits, words = (
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds) if kind == CONTROL_TOKEN]  # noqa: B905 - equal lengths
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[fields["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
        "model_max_length": fields["llama.context_length"],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    write_json(folder / "tokenizer_config.json", settings)
    (folder / "chat_template.jinja").write_text(fields["tokenizer.chat_template"], encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Indented, as the tools that read it write it."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def convert(source: Path, folder: Path) -> None:
    """Write everything into `folder`, which exists and is empty."""
    from gguf import GGUFReader

    reader = GGUFReader(source)
    fields = read_fields(reader)
    if fields["general.architecture"] != "llama":
        raise ValueError(f"{source} is a {fields['general.architecture']}, not a llama")
    write_config(fields, all(tensor.name != "output.weight" for tensor in reader.tensors), folder)
    write_tokenizer(fields, folder)
    write_weights(reader, fields, folder)


if __name__ == "__main__":
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except ModuleNotFoundError as error:
        say(str(error.name))
        sys.exit(MISSING_PACKAGE)
