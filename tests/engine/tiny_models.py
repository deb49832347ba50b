"""Small models with random weights, one for each family, written and read by transformers alone.

A server needs a checkpoint that it loads as any other, and a test needs states from weights that are the same
to the last bit but a forward pass that is not SGLang's. Weights are drawn so that every block changes the
residual stream about as much as it holds: with the usual 0.02 the blocks hardly differ, and a capture that is
one block late would pass.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

BLOCKS, HIDDEN = 6, 64
SEED = 20260801
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
VOCABULARY = 49152
"""That of the demo model's tokenizer, which the servers of these models use."""

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
MOE: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
SHARED: dict[str, Any] = {"n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1}
MLA: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 128,
}


@dataclass(frozen=True)
class Shape:
    """One family: the name of transformers' configuration class and what it is made with."""

    config: str
    options: dict[str, Any]


SHAPES: dict[str, Shape] = {
    "llama": Shape("LlamaConfig", {}),
    "qwen2": Shape("Qwen2Config", {}),
    "qwen3": Shape("Qwen3Config", {"head_dim": 16}),
    "qwen3_moe": Shape("Qwen3MoeConfig", {**MOE, "head_dim": 16, "num_experts": 8, "decoder_sparse_step": 1}),
    "gpt_oss": Shape(
        "GptOssConfig",
        {
            "head_dim": 16,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "sliding_window": 8,
            "rope_parameters": YARN,
        },
    ),
    "deepseek_v2": Shape(
        "DeepseekV3Config",
        {
            **MOE,
            **SHARED,
            **MLA,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "glm4_moe": Shape("Glm4MoeConfig", {**MOE, **SHARED, "head_dim": 16, "use_qk_norm": True, "attention_bias": True}),
}


def make(family: str, folder: Path, tokenizer: Path) -> Path:
    """Write the family's model in float32 with the tokenizer of the model folder `tokenizer`."""
    import transformers

    shape = SHAPES[family]
    config = getattr(transformers, shape.config)(**{**COMMON, **shape.options})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, value in sorted({**dict(model.named_parameters()), **dict(model.named_buffers())}.items()):
            _draw(name, value, generator)
    model.save_pretrained(folder)
    for name in TOKENIZER:
        if (tokenizer / name).is_file():
            shutil.copy(tokenizer / name, folder / name)
    return folder


VISION: dict[str, Any] = {
    **{"num_attention_heads": 2, "num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32},
    **{"vt_num_attention_heads": 2, "vt_num_hidden_layers": 1, "vt_hidden_size": 32, "vt_intermediate_size": 32},
    **{"init_pos_emb_height": 4, "init_pos_emb_width": 4, "text_hidden_size": HIDDEN},
}


def make_kimi(deepseek: Path, folder: Path) -> Path:
    """Wrap the DeepSeek model as Kimi-K2.5 does: the same weights under another name, and a vision tower.

    transformers has no such class, so the reference is the wrapped model. The tower's weights are left out of the
    checkpoint, as no prompt here has an image.
    """
    from safetensors.torch import load_file, save_file

    shutil.copytree(deepseek, folder)
    weights = {f"language_model.{name}": value for name, value in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "model_type": "kimi_k25",
        "architectures": ["KimiK25ForConditionalGeneration"],
        "text_config": json.loads((deepseek / "config.json").read_text()),
        "vision_config": VISION,
        "media_placeholder_token_id": VOCABULARY - 1,
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _draw(name: str, value: torch.Tensor, generator: torch.Generator) -> None:
    if "inv_freq" in name:
        return
    noise = torch.randn(value.shape, generator=generator)
    if value.dim() >= 2:
        scale = 1.0 if "embed" in name else 1 / math.sqrt(value.shape[-1])
        value.copy_(noise * scale)
    elif name.endswith("norm.weight") or "layernorm.weight" in name:
        value.copy_(1 + 0.1 * noise)
    else:  # biases, attention sinks, the correction of the expert scores
        value.copy_(0.1 * noise)


def states_of(folder: Path) -> Callable[[list[int]], dict[str, torch.Tensor]]:
    """Token ids → the output of each block (`"0"` …), and `pre` and `post`, by hooks on transformers' modules."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    stack = model.model
    seen: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            seen[name] = (output[0] if isinstance(output, tuple) else output)[0].clone()

        return hook

    for number, block in enumerate(stack.layers):
        block.register_forward_hook(keep(str(number)))
    stack.norm.register_forward_hook(keep("post"))

    def states(token_ids: list[int]) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            model(torch.tensor([token_ids]), use_cache=False)
        return {**seen, "pre": seen[str(len(stack.layers) - 1)]}

    return states


def architecture(folder: Path) -> str:
    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    return str(name)
