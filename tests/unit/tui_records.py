"""Records as the modes' sources hand them out, made by hand: nothing of a real machine, clock or folder in them."""

from pathlib import Path
from typing import Any

from bench.load.load import ClientCost
from bench.load.metrics import Metrics, Spread
from bench.load.runner import Point
from bench.load.spec import BenchSettings, GoodputLimits, Workload
from bench.load.store import Run
from tests.unit.tui_support import NOW
from tests.unit.watch_support import job_file
from workbench.extract.job.events import Slow, Told
from workbench.extract.watch.view import RunView
from workbench.probe.history import Kept
from workbench.probe.report import OtherDump, ProbeReport, TensorRow, Token
from workbench.supervision.doctor import Finding
from workbench.supervision.records import GpuSample, StackSample
from workbench.supervision.verdict import State, Verdict
from workbench.tui.sources import bench, extraction, machine, patches, probe
from workbench.tui.sources.server_facts import GpuRow, Machine, Phase, ProcessRow, ServerView, standing

GIB = 1 << 30
DAY = 86_400.0


# Server


def hung(log: str = "", **changes: Any) -> ServerView:
    """A server of four ranks of which one stands elsewhere; nothing moves for longer than it may."""
    values: dict[str, Any] = {
        "name": "demo",
        "key": "demo 1",
        "alive": True,
        "log": log,
        "verdict": Verdict(
            state=State.HUNG_SPIN, phase="warm-up", confidence=0.95, evidence=("nothing has moved for 74 s", "GPU 0"),
            against=("not all ranks could be looked at",), next_step="hsbench stop demo",
        ),
        "silent": 74.0, "allowed": 62.0, "known_silence": 31.0, "known_lines": 641, "known_seconds": 98.0, "lines": 217,
        "phases": (
            Phase("import", "done", 6.0, 7.0), Phase("warm-up", "running", 94.0, 12.0), Phase("ready", "to come")
        ),
        "standing": standing(
            [StackSample(pid=p, label="", source="py-spy", frames=(f"f ({'ab'[p == 0]}.py:1)",)) for p in range(4)],
            {pid: f"TP{pid}" for pid in range(4)},
        ),
        "processes": tuple(
            ProcessRow(pid=p, created=1, rank=f"TP{p}", name="x", cpu=1.0, rss=3 << 30, read=0.0, state="running")
            for p in range(4)
        ),
        "gpus": (GpuRow(GpuSample(index=0, name="H100", used=60 << 30, total=80 << 30, busy=1.0, power_w=140.0), 0.0),),
        "machine": Machine(cpu=0.6, cores=8, load=4.0, used=2 << 30, total=8 << 30),
    }  # fmt: skip
    return ServerView(**{**values, **changes})


def hung_at_all_reduce(log: str) -> ServerView:
    """As `hung`, with all that a real one shows: four GPUs, a process above the ranks, whole stacks."""
    waits = ("all_reduce (pynccl.py:164)", "tensor_model_parallel_all_reduce (communication_op.py:14)", "forward (x:9)")
    loads = ("load_weights (loader.py:412)", "load_model (loader.py:77)", "run_scheduler (scheduler.py:3001)")
    stacks = [
        StackSample(pid=4100 + rank, label="", source="py-spy", frames=loads if rank == 3 else waits)
        for rank in range(4)
    ]
    ranks = [
        ProcessRow(
            pid=4100 + rank, created=1, rank=f"TP{rank}", name=f"sglang::scheduler_TP{rank}", state="running",
            cpu=0.12 if rank == 3 else 1.0, rss=(5 + rank) * GIB, read=2.5e6 if rank == 3 else 0.0,
            stack=stacks[rank].frames[0],
        )
        for rank in range(4)
    ]  # fmt: skip
    main = ProcessRow(
        pid=4096, created=1, rank="server", name="python", cpu=0.02, rss=2 * GIB, read=0.0, state="sleeping"
    )
    return hung(
        log,
        verdict=Verdict(
            state=State.HUNG_SPIN, phase="warm-up", confidence=0.95,
            evidence=(
                "nothing has moved for 74 s: no line of the log, no byte read, no GPU memory",
                "TP0, TP1, TP2 want a whole core each and stand at the same line in 3 stacks",
                "the four GPUs are at 100 % and 140 W of 700 W, as in a collective that spins",
            ),
            against=("TP3 still reads 2.5 MB/s",),
            next_step="hsbench stop demo, then start it with NCCL_DEBUG=INFO",
        ),
        phases=(
            Phase("import", "done", 6.0, 7.0), Phase("start workers", "done", 9.0, 8.0),
            Phase("load weights", "done", 41.0, 44.0), Phase("warm-up", "running", 94.0, 12.0),
            Phase("ready", "to come", None, 98.0),
        ),
        standing=standing(stacks, {4100 + rank: f"TP{rank}" for rank in range(4)}),
        processes=(main, *ranks),
        gpus=tuple(
            GpuRow(
                GpuSample(
                    index=at, name="H100", used=60 * GIB, total=80 * GIB, busy=1.0, power_w=140.0, power_limit_w=700.0,
                    traffic=3e6,
                ),
                0.0,
            )
            for at in range(4)
        ),
        machine=Machine(cpu=0.6, cores=64, load=4.2, used=96 * GIB, total=512 * GIB),
    )  # fmt: skip


# Patches

EXAMPLE = "srt/models/llama.py"
EXAMPLE_DIFF = f"""\
--- a/sglang/{EXAMPLE}
+++ b/sglang/{EXAMPLE}
@@ -1,6 +1,9 @@
 \"\"\"A model of some blocks.\"\"\"
{" "}
 import math
+from sglang._hs import recorder as _hs_recorder
+
+_hs = _hs_recorder.begin("llama")
{" "}
{" "}
 class Model:
@@ -12,4 +15,7 @@
     def forward(self, states):
-        for block in self.blocks:
+        for _hs_number, block in enumerate(self.blocks):
+            _hs.enter(_hs_number, states)
             states = block(states)
-        return self.norm(states)
+        _hs.leave(states)
+        states = self.norm(states)
+        return _hs.final(states)
"""


def patched() -> patches.Snapshot:
    """A tree with the recorder in two families, one file of another release, and routes that were tried."""
    families = tuple(
        patches.FamilyView(name, state, (f"srt/models/{name}.py",), _routes(name, works))
        for name, state, works in (
            ("llama", "applied", ("patch", "plugin", "builtin")), ("qwen2", "applied", ("patch", "plugin")),
            ("qwen3", "clean", ("patch", "plugin")), ("qwen3_moe", "clean", ("plugin",)),
            ("gpt_oss", "stale", ()), ("deepseek_v2", "clean", ("patch",)), ("glm4_moe", "missing", ()),
        )
    )  # fmt: skip
    inserted = [text[1:] for text in EXAMPLE_DIFF.splitlines() if text.startswith("+") and "_hs" in text]
    judged = patches.Judged(
        state="applied",
        reason="2 of 7 families",
        outdated=False,
        left=(),
        files=(
            patches.FileView(EXAMPLE, "patched", ("llama",), len(inserted)),
            patches.FileView("srt/models/qwen2.py", "patched", ("qwen2", "qwen3"), 5),
            patches.FileView("srt/models/gpt_oss.py", "upgraded", ("gpt_oss",), 0),
        ),
        families=families,
        lines=tuple(
            patches.LineView(EXAMPLE, at, text)
            for at, text in zip((4, 6, 16, 17, 19, 21), inserted, strict=True)
        ),
        lines_all=len(inserted),
        diffs={EXAMPLE: EXAMPLE_DIFF},
    )  # fmt: skip
    tried = tuple(cell for family in families for cell in family.cells)
    return patches.Snapshot(
        where=(), python="/opt/env/bin/python", root="/opt/env/lib/python3.12/site-packages/sglang", version="0.5.23",
        judged=judged, support=patches.Support("tree", "0.5.23", tried, NOW - DAY), users=("demo",),
    )  # fmt: skip


def _routes(family: str, works: tuple[str, ...]) -> tuple[patches.Cell, ...]:
    return tuple(
        patches.Cell(family, route, route in works, "" if route in works else "no such hook")
        for route in ("patch", "plugin", "builtin")
    )


# Probe


def report_of(tokens: tuple[Token, ...], tensors: tuple[TensorRow, ...], **changes: Any) -> ProbeReport:
    """What a probe of these tokens found."""
    values: dict[str, Any] = {
        "model": "/models/demo", "prompt": "".join(token.text for token in tokens), "tokens": tokens,
        "tensors": tensors, "final_norm": "pre", "verdict": "ok",
        "other_dumps": (OtherDump("req_0", "warm-up", 6), OtherDump("", "decode pass", count=7)),
        "summary": f"{len(tensors)} tensors of {len(tokens)} tokens, complete and finite", "seconds": 3.2,
        "capture_seconds": 0.04, "gb_per_second": 0.012, "request_id": "hs-7f3a91", "dump": "/d/req_2",
        "server": "http://127.0.0.1:30017", "route": "plugin",
    }  # fmt: skip
    return ProbeReport(**{**values, **changes})


def tensor_row(name: str, block: int, scale: int, norms: tuple[float, ...], norm: str | None = None) -> TensorRow:
    """Values in a hill on both sides of zero, `scale` times as wide as the least."""
    hill = tuple(round(40 * scale / (1 + abs(at - 6) ** 2)) for at in range(16))
    return TensorRow(
        name=name, after_block=block, captured_entering=None if norm else block + 1, norm=norm,
        shape=(len(norms), 576), dtype="bfloat16", bytes=len(norms) * 1152, min=-3.25 * scale, max=4.5 * scale,
        mean=0.015625 * scale, std=0.75 * scale, zeros=3, nan=0, inf=0, histogram=(*hill[::-1], *hill),
        token_norms=norms,
    )  # fmt: skip


def probed() -> probe.Snapshot:
    """Four tensors, each checked against transformers, the last one of another block than it claims."""
    words = ("The", " capital", " of", " France", " is", " Paris", ".")
    tokens = tuple(Token(504 + 13 * at, word) for at, word in enumerate(words))
    spread = (9.0, 2.0, 1.5, 3.0, 1.25, 4.0, 2.5)
    tensors = tuple(
        tensor_row(name, block, scale, tuple(scale * 6.0 * one for one in spread), norm)
        for name, block, scale, norm in (
            ("aux_0", 2, 1, None), ("aux_1", 15, 4, None), ("aux_2", 27, 16, None), ("final", 29, 60, "pre")
        )
    )  # fmt: skip
    checked = [
        {"name": row.name, "claimed": row.after_block, "error": 0.0083, "error_before": 0.32, "error_after": 0.25,
         "best": f"block {row.after_block}", "verdict": "ok"}
        for row in tensors[:3]
    ]  # fmt: skip
    checked.append({"name": "final", "claimed": 29, "error": 0.31, "best": "block 28", "verdict": "wrong block"})
    found = report_of(
        tokens, tensors, verdict="wrong_block", summary="final holds the output of block 28, not that of block 29",
        next_step="look at hsbench layers /models/demo, and name the norm's side",
        reference={"num_tokens": 31, "note": "a built-in text, since 7 tokens are too few to judge by",
                   "tensors": checked},
        logits={"verdict": "ok", "error": 0.0031, "error_other": 9.13, "claimed": "pre", "other": "post"},
        self_test={"batch": 6, "rows": [{"label": "yours", "error": 0.0, "bit_equal": True, "verdict": "ok"}]},
    )  # fmt: skip
    kept = Kept(time=NOW - 60, report=found)
    entries = [probe.entry_of("4", kept)]
    for at, (prompt, verdict, ago) in enumerate((
        ("Once upon a time there was", "ok", 3700.0), ("1,2,3", "radix_hit", 2 * DAY), ("Hello world", "unclear", DAY)
    )):  # fmt: skip
        entries.append(
            probe.Entry(f"{3 - at}", NOW - ago, prompt, len(prompt.split()), "/models/demo", verdict)
        )  # fmt: skip
    return probe.Snapshot(tuple(entries), 1, "4", kept, None, None)


# Bench


def spread(median: float) -> Spread:
    """Around a median, in seconds."""
    return Spread(
        count=32, mean=1.05 * median, p50=median, p90=1.5 * median, p95=1.75 * median, p99=2.5 * median,
        largest=3 * median,
    )  # fmt: skip


def point(concurrency: int, tok_s: float, **client: Any) -> Point:
    """A workload that is over."""
    cost = {
        "cpu_s": 1.25, "seconds": 20.0, "cpu_share": 0.0625, "cpu_us_per_token": 41.5, "lag_p50": 0.0002,
        "lag_p99": 0.0011, "lag_largest": 0.004,
    }  # fmt: skip
    limited = client.get("limited", ())
    figures = Metrics(
        requests=32, failed=1 if limited else 0, short=0, first_error="timeout" if limited else None,
        finishes={"length": 32}, tokens=4096, prompt_tokens=4096, cached_tokens=0, counted="chunk", seconds=20.0,
        ttft=spread(0.03125 * concurrency), tpot=spread(0.004 * concurrency), itl=spread(0.004 * concurrency),
        e2e=spread(0.5 * concurrency), itl_spread=0.0, decode_tok_s=tok_s, batch_tok_s=tok_s, window_s=18.0,
        whole_tok_s=0.9 * tok_s, requests_s=1.6, good_s=1.5, good_share=0.94,
    )  # fmt: skip
    return Point(
        workload=Workload(input_len=128, output_len=128, concurrency=concurrency, requests=32),
        metrics=figures,
        client=ClientCost(**{**cost, **client}),
        warmed=None,
        notes=("CLIENT-LIMITED: loop lag", "the second half was 3 % slower than the first") if limited else (),
    )


def measured() -> bench.Snapshot:
    """A run with its plots, another that goes on, and two sweeps."""
    points = (
        point(1, 118.5), point(8, 746.25), point(32, 1893.0, limited=("loop lag",), lag_p99=0.061, cpu_share=0.97)
    )  # fmt: skip
    curves = bench.Curves(
        ttft=[(20.0 + at + at * at / 16, 100 * (at + 1) / 32) for at in range(32)],
        itl=[(3.0 + at / 8, 100 * (at + 1) / 64) for at in range(64)],
        rate=[((at + 0.5) / 3, 112.0 + min(at, 12) / 2 + (at % 4) / 4 - (9 if at == 41 else 0)) for at in range(60)],
        stride=1,
    )
    work = tuple(one.workload for one in points)
    settings = BenchSettings(url="http://127.0.0.1:30017", workloads=work, seed=7, limits=GoodputLimits(ttft=0.5))
    run = Run(
        name="20260921-101500-4f1c", started=NOW - 600, settings=settings, model="/models/demo",
        facts={"sglang": "0.5.23", "tp_size": 1, "dtype": "bfloat16"},
    )  # fmt: skip
    first = f"/state/bench/runs/{run.name}"
    detail = bench.RunDetail(key=first, state="finished", run=run, points=points, shown=0, curves=curves)
    about, flags = "demo http://127.0.0.1:30017 native", "demo --tp-size 2"
    rows: list[tuple[str, bool, str, str, float, int, int]] = [
        (first, True, run.name, "finished", 600.0, 3, 3), ("/state/b", True, "b", "running", 60.0, 1, 3),
        ("/state/c", False, "nccl-7c2f01aa", "finished", 2 * DAY, 20, 20),
        ("/state/d", False, "flags-03be9d11", "broken off", 3 * DAY, 9, 26),
        ("/state/e", True, "e", "broken off", 4 * DAY, 0, 2),
    ]  # fmt: skip
    entries = tuple(
        bench.Entry(
            key=key, kind="run" if is_run else "sweep", name=name, began=NOW - ago, state=state, done=done, of=of,
            about=about if is_run else flags, tok_s=731.5 if state == "running" else None,
        )
        for key, is_run, name, state, ago, done, of in rows
    )  # fmt: skip
    return bench.Snapshot(entries=entries, left_out=0, detail=detail)


# Extraction


def run_view(**changes: Any) -> RunView:
    """One look at a job's run of which next to nothing is known."""
    whole: dict[str, Any] = {"kind": "own", "folder": "/data/run", "time": 1e9, "state": "running"}
    return RunView(**{**whole, **changes})


def extracting() -> extraction.Snapshot:
    """A run at 12 % with an error, a finished one, another tool's, and a lost one."""
    folder = "/data/sets/chat_v3"
    view = run_view(
        folder=folder, time=NOW, rows=10_000, written=1197, refused=2, quarantined=1, tokens=2_100_000,
        tokens_expected=17_300_000.0, nbytes=9_700_000_000, tok_s_now=38_900.0, tok_s_avg=37_200.0, plain_share=0.974,
        bytes_s_now=1.79e8, bytes_s_avg=1.71e8, eta_s=409.0, in_flight=32, dump_dir="/dev/shm/hs", dump_n=1231,
        waiting_bytes=3 * GIB, high_water_bytes=8 * GIB, free_bytes=830 * GIB, restarts=1, retries=3,
        estimated=("eta_s", "tokens_expected"),
        messages=(
            Told(time=NOW - 300, text="the server died and was started again", level="warning"),
            Told(time=NOW - 120, text="row 871 was cut to 4,096 tokens", level="warning", index=871),
            Told(time=NOW - 45, text="NaN in aux_1, three times; quarantined", level="error", index=1104),
        ),
        slowest=(Slow(871, 4096, 3.5), Slow(412, 3911, 3.25), Slow(1104, 2650, 2.75)),
        history=tuple((NOW - 600 + 10 * at, 37e3 + 60 * min(at, 40) - (9000 if at == 30 else 0)) for at in range(61)),
    )  # fmt: skip
    runs = (
        extraction.RunRow(folder=folder, state="running", written=1197, rows=10_000, running=True),
        extraction.RunRow(folder="/data/sets/code_v1", state="done", written=5000, rows=5000),
        extraction.RunRow(folder="/mnt/theirs/hidden", kind="foreign", state="still", written=740, attached=True),
        extraction.RunRow(folder="/data/sets/old", kind="lost", problem="/data/sets/old is gone"),
    )  # fmt: skip
    detail = extraction.Detail(folder=folder, view=view, job=job_file(Path(folder)), running=True)
    return extraction.Snapshot(runs=runs, detail=detail)


# Machine


def at_work() -> machine.Snapshot:
    """Jobs of every kind and outcome, a machine of 16 cores, and a report with a problem."""
    job = machine.JobView
    jobs = (
        job("task:5", "bench", "--name demo --concurrency 1,8,32", "running", True, NOW - 42, 42.0,
            "128->128 c=8: measuring, 12 of 32 requests"),
        job("server:demo", "server", "demo at http://127.0.0.1:30017", "ready", True, NOW - 5400, 5400.0,
            "/models/demo"),
        job("extraction:/data/sets/chat_v3", "extraction", "/data/sets/chat_v3", "running", True, NOW - 60, 60.0,
            "1,197 of 10,000 samples of chat.jsonl"),
        job("task:4", "probe", "--reference The capital of France", "failed", False, NOW - 700, 12.5,
            "final holds the output of block 28, not that of block 29", 1),
        job("task:3", "patch", "apply", "done", False, NOW - DAY, 1.5, "2 families, 11 lines", 0),
        job("task:2", "serve", "--model demo", "killed", False, NOW - 2 * DAY, None, "load weights", None),
    )  # fmt: skip
    gpus = tuple(
        GpuSample(index=at, name="H100", used=(60 - 59 * at) * GIB, total=80 * GIB, busy=0.97 - 0.97 * at,
                  power_w=612.0 - 540 * at, power_limit_w=700.0)
        for at in range(2)
    )  # fmt: skip
    cores = tuple(((at * 7) % 16) / 16 for at in range(16))
    vitals = machine.Vitals(
        cores, (3.21, 2.75, 1.5), machine.Room(96 * GIB, 128 * GIB), machine.Room(940 * GIB, 1000 * GIB),
        machine.Room(3 * GIB, 64 * GIB), gpus, "",
    )  # fmt: skip
    findings = (
        Finding("hsbench", "ok", "hsbench 1.0, Python 3.12"),
        Finding("engine", "ok", "SGLang 0.5.23 with torch 2.9, the recorder is applied"),
        Finding("gpu", "ok", "2 GPUs, driver 570.10, peer access between all"),
        Finding("limits", "note", "1,024 open files; an extraction with 256 requests in flight needs 2,048"),
        Finding("disk", "problem", "60 GiB of 1000 GiB are free in /data", "free some, or name another --out"),
    )
    words = (
        "[   0.0 s] 3 workloads of 128 tokens in, 128 out", "[   2.1 s] warm-up: 3 rounds within 2 %",
        "[  18.4 s] 128->128 c=1: 118.5 tok/s, TTFT 31.2 ms", "[  42.0 s] 128->128 c=8: measuring, 12 of 32 requests",
    )  # fmt: skip
    return machine.Snapshot(
        jobs=jobs, vitals=vitals, report=machine.Report(findings, False, NOW - 30),
        versions=(("hsbench", "1.0"), ("sglang", "0.5.23"), ("torch", "2.9.0"), ("python", "3.12.4")),
        places=(("state", "/home/me/.local/state/hsbench"), ("config", "/home/me/.config/hsbench/config.toml")),
        detail=machine.Detail("task:5", "hsbench bench --name demo --concurrency 1,8,32", words),
    )  # fmt: skip
