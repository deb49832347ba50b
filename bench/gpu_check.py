"""Is the captured block the claimed block, on a GPU and on two? Random checkpoints of the shapes that matter.

For each shape: a checkpoint with random weights (fixed seed) is written by transformers in bfloat16, SGLang serves
it with the patch, prompts of random tokens are probed, and every captured state is judged against an independent
float32 forward pass of the same checkpoint, and the final state against the server's own log-probabilities. With
two GPUs the same prompts are captured at TP=1 and TP=2 and compared.

Usage: ``python -m bench.gpu_check --shape llama-8b --work DIR --out FILE.json [--tp 1 2]``; the shape ``tiny`` with
``--device cpu`` tries the script itself out.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.capture_safety import target_of
from probes import logits
from probes.dumps import load, read_meta
from probes.measure import mean_error
from probes.model import load_model
from probes.reference import reference_with
from probes.weights import read_config
from workbench.probe.capture import Capture, capture
from workbench.server.client import SglangClient

HSBENCH = [sys.executable, "-m", "workbench.cli"]
FLAGS = ["--grammar-backend", "none", "--skip-tokenizer-init"]
CUDA_FLAGS = ["--attention-backend", "triton", "--sampling-backend", "pytorch", "--disable-cuda-graph"]
LENGTHS = (48, 333)

LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 8, "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 16,
    "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2, "n_shared_experts": 1, "first_k_dense_replace": 3,
    "vocab_size": 32000, "max_position_embeddings": 8192, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "rms_norm_eps": 1e-6,
    "rope_scaling": {"rope_type": "yarn", "type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4096,
                     "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
}  # fmt: skip
TINY = {**LLAMA_8B, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6, "vocab_size": 512}
SHAPES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "tiny": (TINY, (1, 3, 4)),
    "llama-8b": (LLAMA_8B, (2, 16, 29)),
    "deepseek-v3": (DEEPSEEK, (1, 4, 6)),
}


def make_checkpoint(folder: Path, config: dict[str, Any]) -> float:
    """Write a random bfloat16 checkpoint once; returns the seconds it took."""
    if (folder / "config.json").exists():
        return 0.0
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    began = time.monotonic()
    torch.manual_seed(7)
    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    known = dict(config)
    parsed = AutoConfig.for_model(known.pop("model_type"), **known)
    model = AutoModelForCausalLM.from_config(parsed, dtype=torch.bfloat16)
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and "embed" not in name:
            weight.data.normal_(std=weight.shape[-1] ** -0.5)  # large enough that neighbouring blocks differ
    model.save_pretrained(folder)
    del model
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    torch.set_default_device("cpu")
    return time.monotonic() - began


def prompts(vocabulary: int) -> list[list[int]]:
    """Random token ids, the same for every run."""
    import random

    source = random.Random(3)
    return [[source.randrange(10, vocabulary) for _ in range(length)] for length in LENGTHS]


def hsbench(*arguments: str, check: bool = True) -> str:
    """Run the command line; its stdout. Its narration goes on to stderr."""
    done = subprocess.run([*HSBENCH, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if check and done.returncode not in (0, 1):
        raise SystemExit(f"{arguments}: exit {done.returncode}")
    return done.stdout


def capture_all(name: str, ids: list[list[int]]) -> list[Capture]:
    """Capture every prompt on the running server of this name, with log-probabilities."""
    target = target_of(name)
    with SglangClient(target.url, timeout=300) as client:
        return [capture(target, client, prompt, timeout_s=300, logprobs=True) for prompt in ids]


def one_run(given: argparse.Namespace, model: Path, blocks: tuple[int, ...], tp: int) -> list[Capture]:
    """Serve at one tensor-parallel size, capture every prompt, stop."""
    name, dumps = f"check-tp{tp}", given.work / f"dumps-{model.name}-tp{tp}"
    record = ["--dump-dir", str(dumps), "--layers", ",".join(map(str, blocks)), "--final", "both"]
    flags = [*FLAGS, *(CUDA_FLAGS if given.device == "cuda" else []), "--tp-size", str(tp)]
    where = ["--name", name, "--device", given.device, "--port", "0", "--timeout", "420"]
    hsbench("serve", "--model", str(model), *where, *record, "--", *flags)
    try:
        return capture_all(name, prompts(read_config(model)["vocab_size"]))
    finally:
        hsbench("stop", name)


def judged(model: Path, captures: list[Capture], device: str) -> list[dict[str, Any]]:
    """Each capture against the float32 reference and the server's log-probabilities."""
    loaded, results = load_model(model, device), []
    for one in captures:
        tensors, meta = load(one.folder), read_meta(one.folder)
        rows = reference_with(loaded, list(one.token_ids), tensors, meta)
        pairs = one.answer["meta_info"]["input_token_logprobs"]
        head = logits.check(model, tensors["final"], "pre", one.token_ids, [pair[0] for pair in pairs])
        checks = {"tensors": [asdict(row) for row in rows], "logits": asdict(head)}
        facts = {key: one.meta[key] for key in ("tp_rank", "tp_size", "sglang_version", "patch_hash")}
        shortfall = one.shortfall.cause if one.shortfall else None
        results.append({"tokens": len(one.token_ids), "seconds": one.seconds, "short": shortfall, **facts, **checks})
    return results


def difference(one: Capture, other: Capture) -> dict[str, float]:
    """Mean relative error a token between two dumps of the same prompt, by tensor."""
    left, right = load(one.folder), load(other.folder)
    return {name: mean_error(right[name], left[name]) for name in left}


def main() -> None:
    """Run the shapes asked for and write one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("gpu-check.json"))
    parser.add_argument("--checkpoint-only", action="store_true", help="write the checkpoint and nothing else")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--tp", type=int, nargs="+", default=[1])
    given = parser.parse_args()
    config, blocks = SHAPES[given.shape]
    given.work = given.work.absolute()
    model = given.work / given.shape
    result: dict[str, Any] = {"shape": given.shape, "blocks": blocks, "checkpoint_s": make_checkpoint(model, config)}
    if given.checkpoint_only:
        return
    captures: dict[int, list[Capture]] = {}
    for tp in given.tp:
        captures[tp] = one_run(given, model, blocks, tp)
    for tp in given.tp:  # only now: the reference needs the memory that the servers held
        result[f"tp{tp}"] = judged(model, captures[tp], given.device)
    if len(given.tp) > 1:
        first, second = (captures[tp] for tp in given.tp[:2])
        result["tp_difference"] = [difference(one, other) for one, other in zip(first, second, strict=True)]
    given.out.write_text(json.dumps(result, indent=1))
    for tp in given.tp:
        for run in result[f"tp{tp}"]:
            verdicts = [f"{row['name']} {row['verdict']} {row['error']:.4f}" for row in run["tensors"]]
            print(f"TP={tp}, {run['tokens']} tokens: {', '.join(verdicts)}; logits {run['logits']['verdict']}")


if __name__ == "__main__":
    main()
