"""Runs models through SGLang's own model runner on the CPU platform: one prefill of several prompts, then decode.

    python platform_worker.py JOBS.json

Each job is a child as in `family_worker.py`. Into its `result` go `logprobs` [steps, prompts, vocabulary] and
`tokens` [steps, prompts], the token chosen at each step. The capture plug-in is called as SGLang's scheduler calls
it, before any model file is imported, so that a job also records, by the route that its environment names.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import family_worker as families


def run(job: dict[str, Any]) -> None:
    import torch
    from sglang.benchmark import one_batch
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import PortArgs, prepare_server_args

    load_plugins()
    torch.set_num_threads(1)
    args: Any = prepare_server_args(["--model-path", job["model"], *families.FLAGS, *job["flags"]])
    args.resolve_once()
    one_batch._set_envs_and_config(args)
    ranks = one_batch.SpawnRanks(world_rank=one_batch.spawn_world_rank(args, tp_rank=0, pp_rank=0), gpu_id=0)
    one_batch.publish(args, role="scheduler", ranks=ranks)
    one_batch._init_process_global_configs()
    runner, _ = one_batch.load_model(args, PortArgs.init_new(args), 0, 0)
    prompts = job["prompts"]
    chosen, logits, batch = runner.extend([families._request(one_batch, rid, ids) for rid, ids in prompts.items()])
    steps = [(logits.float().log_softmax(dim=-1).clone(), chosen.clone())]
    for _ in range(job["steps"]):
        chosen, logits = runner.decode(chosen, batch)
        steps.append((logits.float().log_softmax(dim=-1).clone(), chosen.clone()))
    logprobs, tokens = (torch.stack(part) for part in zip(*steps, strict=True))
    torch.save({"logprobs": logprobs, "tokens": tokens}, job["result"])
    families._await_dumps(job["env"].get("SGLANG_HS_DUMP_DIR"), len(prompts))


if __name__ == "__main__":
    families._run = run
    sys.exit(families.main(json.loads(Path(sys.argv[1]).read_text())))
