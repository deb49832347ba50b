"""What the tests of the probes share: a tiny model on disk, captures of it, dumps by the real recorder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from patches.recorder.passes import Slot
from patches.recorder.store import DumpStore

BLOCKS, HIDDEN, VOCABULARY = 4, 64, 256
IDS = [17, 5, 201, 33, 90, 4, 250, 121, 66, 8]


def save_tiny_model(folder: Path, *, tied: bool = False, seed: int = 0) -> Path:
    """A Llama of 4 blocks with random bfloat16 weights large enough that its blocks differ."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_hidden_layers=BLOCKS,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.15,
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 2.0)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


class Capture:
    """A bfloat16 forward pass, read through the library's own `output_hidden_states`.

    `states` is [embeddings, block 0, …, block N-2, last block (before the norm), after the norm];
    `logprobs` has the log-probability of each token after the ones before, None for the first.
    """

    def __init__(self, folder: Path, token_ids: Sequence[int], dtype: torch.dtype = torch.bfloat16) -> None:
        from transformers import AutoModelForCausalLM

        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
        before_norm: list[Tensor] = []
        model.model.norm.register_forward_pre_hook(lambda module, args: before_norm.append(args[0][0]))
        with torch.inference_mode():
            out = model(input_ids=torch.tensor([list(token_ids)]), output_hidden_states=True)
        hidden = [state[0] for state in out.hidden_states]
        self.states: list[Tensor] = [*hidden[:-1], before_norm[0], hidden[-1]]
        scores = out.logits[0].float().log_softmax(-1)
        later = [float(scores[t - 1, token_ids[t]]) for t in range(1, len(token_ids))]
        self.logprobs: list[float | None] = [None, *later]


def write_dump(
    dump_dir: Path,
    request_id: str,
    tensors: Sequence[Tensor],
    *,
    token_ids: Sequence[int] = IDS,
    blocks: Sequence[int] = (0, 1, 2),
    norm: str = "pre",
    num_blocks: int = BLOCKS,
    forward_mode: str = "EXTEND",
    prefix_len: int = 0,
    pass_index: int = 5,
) -> Path:
    """Publish one dump with the recorder's own writer: an aux tensor a block, then the final one."""
    slots = [Slot(f"aux_{n}", block, block + 1, None) for n, block in enumerate(blocks)]
    slots.append(Slot("final", num_blocks - 1, None, norm))
    meta = {
        "schema": 1,
        "request_id": request_id,
        "forward_mode": forward_mode,
        "token_ids": list(token_ids),
        "num_tokens": len(token_ids),
        "prefix_len": prefix_len,
        "num_blocks": num_blocks,
        "after_block": list(blocks),
        "captured_entering": [block + 1 for block in blocks],
        "final_norm": norm,
        "pass": {"index": pass_index, "requests": 1, "rows": len(token_ids), "row": 0},
    }
    rows = [(slot, tensor.clone()) for slot, tensor in zip(slots, tensors, strict=True)]
    before = {entry.name for entry in dump_dir.glob("req_*")}
    DumpStore(dump_dir).write(request_id, rows, meta)
    (made,) = (entry for entry in dump_dir.glob("req_*") if entry.name not in before)
    return made


def made_up(rows: int = len(IDS), count: int = 4, seed: int = 0) -> list[Tensor]:
    """Random bfloat16 tensors of the tiny model's width."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, HIDDEN, generator=generator).to(torch.bfloat16) for _ in range(count)]
