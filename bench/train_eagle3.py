"""Does the trainer of speculators 0.9 learn from a data set that `hsbench extract --format speculators` wrote?

Its own data loaders, draft model and loss, on the CPU or a GPU; only the loop is here, because its `Trainer` moves the
model to a CUDA device by number. Usage, in an interpreter that has speculators (it and hs-connectors can be installed
beside SGLang with ``--no-deps``, plus openai, loguru and pydantic-settings)::

    python -m bench.train_eagle3 DATASET --model MODEL [--steps 300] [--seq-len 512] [--draft-vocab 4096]

Prints loss and accuracy of the first drafted token (step 0 of the training-time test) as means over tenths of the run,
and on held-out samples before and after it. Exit code 1 when the loss did not fall.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HELD_OUT = 0.1


def main() -> int:
    """Train and report."""
    options = _options()
    import torch

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, kwargs = _draft(options)
    train, held_out = _loaders(options, model)
    model.to(device)
    before = _evaluate(model, held_out, kwargs, device)
    print(f"held out, before: {_words(before)}", flush=True)
    seen = list(_train(model, train, kwargs, options, device))
    after = _evaluate(model, held_out, kwargs, device)
    print(f"held out, after {len(seen)} steps: {_words(after)}")
    fell = after["loss"] < before["loss"] and _tenth(seen, -1)["loss"] < _tenth(seen, 0)["loss"]
    print("the loss fell" if fell else "the loss did not fall")
    return 0 if fell else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--model", required=True, help="folder of the model that the states are of")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seq-len", type=int, default=512, help="tokens a step, packed")
    parser.add_argument("--draft-vocab", type=int, default=4096)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--ttt-steps", type=int, default=3)
    return parser.parse_args()


def _draft(options: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """The draft model as speculators builds it for this verifier, and what its forward is called with.

    Its target layers count boundaries, as vLLM does: the output of block k is its layer k + 1.
    """
    from speculators.models.eagle3.core import Eagle3DraftModel
    from speculators.train.cli import create_transformer_layer_config

    config = json.loads((options.dataset / "data_config.json").read_text())["hsbench"]
    assert config["final_norm"] == "pre", "the trainer applies the final norm itself"
    d2t, t2d = _vocabulary(options)
    settings = {
        "verifier_name_or_path": options.model,
        "target_layer_ids": [block + 1 for block in config["after_block"]],
        "draft_vocab_size": options.draft_vocab,
        "norm_before_residual": True,
        "norm_before_fc": True,
        "norm_output": True,
        "draft_attn_impl": "sdpa",
        "ttt_steps": options.ttt_steps,
        "ttt_step_loss_decay": 1.0,
        "loss_fn": "kl_div",
        "loss_implementation": "eager",
    }
    layer = create_transformer_layer_config(
        verifier_name_or_path=options.model,
        num_layers=1,
        draft_arch="llama",
        hidden_act="silu",
        sliding_window=2048,
        full_attention_indices=[0],
    )
    model: Any = Eagle3DraftModel.from_training_args(layer, t2d=t2d, d2t=d2t, **settings)
    return model, model.get_trainer_kwargs(**settings)[0]


def _vocabulary(options: argparse.Namespace) -> tuple[Any, Any]:
    """The draft's vocabulary: the most frequent trained tokens of the data set."""
    from datasets import load_from_disk
    from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution

    counts: Counter[int] = Counter()
    for row in load_from_disk(str(options.dataset)).with_format(None):
        counts.update(token for token, kept in zip(row["input_ids"], row["loss_mask"], strict=True) if kept)
    size = int(json.loads((Path(options.model) / "config.json").read_text())["vocab_size"])
    d2t, t2d = build_vocab_mappings_from_distribution(dict(counts), options.draft_vocab, size)
    return d2t, t2d


def _loaders(options: argparse.Namespace, model: Any) -> tuple[Any, Any]:
    import torch
    from speculators.models.eagle3.data import shift_batch
    from speculators.train.dataloader import create_train_val_loaders

    config = json.loads((options.dataset / "data_config.json").read_text())
    train, held_out = create_train_val_loaders(
        data_path=str(options.dataset),
        total_seq_len=options.seq_len,
        hidden_states_dtype=torch.float32,
        vllm_endpoint="",
        on_missing="skip",
        verifier_name_or_path=options.model,
        request_timeout=None,
        max_retries=0,
        generation_validation_retries=0,
        max_consecutive_generation_failures=1,
        hidden_size=config["model"]["hidden_size"],
        num_target_layers=len(model.target_layer_ids),
        num_workers=0,
        prefetch_factor=0,
        preprocess=shift_batch,
        train_data_ratio=1 - HELD_OUT,
    )
    return train, held_out


def _train(
    model: Any, loader: Any, kwargs: dict[str, Any], options: argparse.Namespace, device: str
) -> Iterator[dict[str, float]]:
    import torch

    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=options.lr)
    seen: list[dict[str, float]] = []
    began = time.monotonic()
    model.train()
    for batch in _endless(loader, options.steps):
        _, loss, metrics = model(**_on(batch, device), **kwargs)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        seen.append(_numbers(metrics))
        yield seen[-1]
        if len(seen) % max(1, options.steps // 10) == 0:
            words = _words(_tenth(seen[-max(1, options.steps // 10) :], 0, 1))
            print(f"step {len(seen):4} ({time.monotonic() - began:5.0f} s): {words}", flush=True)


def _endless(loader: Any, steps: int) -> Iterator[Any]:
    done = epoch = 0
    while done < steps:
        loader.batch_sampler.set_epoch(epoch)
        for batch in loader:
            yield batch
            done += 1
            if done == steps:
                return
        epoch += 1


def _evaluate(model: Any, loader: Any, kwargs: dict[str, Any], device: str) -> dict[str, float]:
    import torch

    model.eval()
    with torch.no_grad():
        return _tenth([_numbers(model(**_on(batch, device), **kwargs)[2]) for batch in loader], 0, 1)


def _on(batch: dict[str, Any], device: str) -> dict[str, Any]:
    return {key: value.to(device) if hasattr(value, "to") else value for key, value in batch.items()}


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """Loss, and the share of right first tokens: each metric comes as a sum and a total."""
    values = {name: float(value) for name, value in metrics.items()}
    return {
        "loss": values["loss_sum"] / values["loss_total"],
        "right": values["full_acc_0_sum"],
        "of": values["full_acc_0_total"],
    }


def _tenth(seen: list[dict[str, float]], place: int, parts: int = 10) -> dict[str, float]:
    """Means over a part of the run."""
    size = max(1, len(seen) // parts)
    some = seen[-size:] if place < 0 else seen[place * size : (place + 1) * size]
    right, of = sum(one["right"] for one in some), sum(one["of"] for one in some)
    return {"loss": statistics.fmean(one["loss"] for one in some), "accuracy": right / max(1.0, of)}


def _words(mean: dict[str, float]) -> str:
    return f"loss {mean['loss']:.3f}, first token right {mean['accuracy']:.1%}"


if __name__ == "__main__":
    sys.exit(main())
