"""Runs tiny models through SGLang's own model runner, one child process a model, and exits.

    python family_worker.py JOBS.json

A job names a model folder, batches of prompts, further flags, and the environment of its child. The child saves
the log-probabilities of every prompt's next token as `result`, with whether the source was patched, and, if the
environment turns the recorder on, its dumps. SGLang is imported once, because the import takes longer than all the
rest, and each child is a fork: a process of SGLang can hold one model only.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from array import array
from pathlib import Path
from typing import Any

FLAGS = (
    *("--device", "cpu", "--dtype", "float32", "--mem-fraction-static", "0.2"),
    *("--disable-cuda-graph", "--disable-radix-cache", "--chunked-prefill-size", "-1"),
    *("--max-total-tokens", "2048", "--max-running-requests", "8", "--skip-server-warmup"),
)
WAIT_S = 60


def main(jobs: list[dict[str, Any]]) -> int:
    importlib.import_module("sglang.benchmark.one_batch")  # long, and shared by all children

    failed = 0
    for job in jobs:
        child = os.fork()
        if child == 0:
            os._exit(_run_and_tell(job))
        failed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    return failed


def _run_and_tell(job: dict[str, Any]) -> int:
    try:
        os.environ.update(job["env"])
        _run(job)
        return 0
    except BaseException:
        Path(job["result"]).with_suffix(".error").write_text(traceback.format_exc())
        return 1


def _run(job: dict[str, Any]) -> None:
    import torch
    from sglang.benchmark import one_batch
    from sglang.srt.server_args import PortArgs, ServerArgs, prepare_server_args

    torch.set_num_threads(1)  # the same order of additions in every run
    flags = ["--model-path", job["model"], *FLAGS, *job["flags"]]
    args: ServerArgs = prepare_server_args(flags)
    args.resolve_once()
    one_batch._set_envs_and_config(args)
    ranks = one_batch.SpawnRanks(world_rank=one_batch.spawn_world_rank(args, tp_rank=0, pp_rank=0), gpu_id=0)
    one_batch.publish(args, role="scheduler", ranks=ranks)
    one_batch._init_process_global_configs()
    runner, _ = one_batch.load_model(args, PortArgs.init_new(args), 0, 0)
    rows = []
    for batch in job["batches"]:
        runner.clear()
        _, logits, _ = runner.extend([_request(one_batch, rid, ids) for rid, ids in batch.items()])
        rows.append(logits.float().log_softmax(dim=-1).clone())
    hooked = any(hasattr(module, "_hs_recorder") for name, module in list(sys.modules.items()) if "srt.models" in name)
    torch.save({"logprobs": torch.cat(rows), "hooked": hooked}, job["result"])
    _await_dumps(job["env"].get("SGLANG_HS_DUMP_DIR"), sum(map(len, job["batches"])))


def _request(one_batch: Any, rid: str, token_ids: list[int]) -> Any:
    params = one_batch.SamplingParams(temperature=0, max_new_tokens=1)
    made = one_batch.Req(rid=rid, origin_input_text="", origin_input_ids=array("q", token_ids), sampling_params=params)
    made.full_untruncated_fill_ids = made.origin_input_ids
    made.logprob_start_len = -1
    made.extend_end = len(token_ids)
    return made


def _await_dumps(folder: str | None, expected: int) -> None:
    """The recorder writes on threads of its own, which end with this process."""
    if folder is None:
        return
    deadline = time.monotonic() + WAIT_S
    done = 0
    while done < expected and time.monotonic() < deadline:
        time.sleep(0.05)
        lines = [Path(folder, name) for name in ("index.jsonl", "errors.jsonl")]
        done = sum(len(path.read_text().splitlines()) for path in lines if path.exists())


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))
