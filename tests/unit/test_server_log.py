"""Phases and last words of real logs."""

from pathlib import Path

import pytest

from workbench.server.log import LogReader, next_step, reason, tail

V0_5_23 = """\
[2026-11-29 17:52:43] \x1b[1;33m'--disable-cuda-graph' is deprecated and will be removed.\x1b[0m
[2026-11-29 17:52:48] server_args={'model_path': '/m', 'tokenizer_path': '/m'}
[2026-11-29 17:53:00] Init parallel begin.
[2026-11-29 17:53:03] Load weight begin. avail mem=20.60 GB
Multi-thread loading shards:   0% Completed | 0/1\rMulti-thread loading shards: 100% Completed | 1/1
[2026-11-29 17:53:03] Load weight end. elapsed=0.18 s, type=LlamaForCausalLM, avail mem=20.43 GB.
[2026-11-29 17:53:11] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 179287, K size: 1.92 GB
[2026-11-29 17:53:11] Disable prefill CUDA graph because prefill.backend='disabled'.
[2026-11-29 17:53:12] INFO:     Started server process [7104]
[2026-11-29 17:53:12] INFO:     Uvicorn running on http://127.0.0.1:31555 (Press CTRL+C to quit)
[2026-11-29 17:53:13] The server is fired up and ready to roll!
"""
V0_5_15_TWO_RANKS = """\
[2026-11-29 17:52:48] server_args=ServerArgs(model_path='/m', tokenizer_path='/m')
[2026-11-29 17:52:50 TP0] Init torch distributed begin.
[2026-11-29 17:52:52 TP0] Load weight begin. avail mem=138.60 GB
[2026-11-29 17:52:53 TP0] Load weight end. elapsed=1.18 s, type=LlamaForCausalLM, avail mem=120.43 GB
[2026-11-29 17:52:54 TP1] Load weight begin. avail mem=138.60 GB
[2026-11-29 17:52:55 TP1] Load weight end. elapsed=1.18 s, type=LlamaForCausalLM, avail mem=120.43 GB
[2026-11-29 17:52:55 TP0] Memory pool end. avail mem=16.33 GB
[2026-11-29 17:52:56 TP0] Capture decode CUDA graph begin. backend=full, avail mem=16.10 GB
[2026-11-29 17:52:58] INFO:     Started server process [7104]
[2026-11-29 17:52:59] The server is fired up and ready to roll!
"""


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (V0_5_23, ["start workers", "load weights", "kv cache", "warm-up", "ready"]),
        (V0_5_15_TWO_RANKS, ["start workers", "load weights", "kv cache", "graphs", "warm-up", "ready"]),
    ],
)
def test_phases_come_once_each_however_the_log_grows(tmp_path: Path, log: str, expected: list[str]) -> None:
    path = tmp_path / "log"
    reader = LogReader(path)
    seen = list(reader.new_phases())
    data = log.encode()
    for end in range(0, len(data) + 7, 7):
        path.write_bytes(data[:end])
        seen += reader.new_phases()
    assert seen == expected


def test_lines_are_whole_and_clean(tmp_path: Path) -> None:
    path = tmp_path / "log"
    reader = LogReader(path)
    path.write_bytes(V0_5_23.encode())
    lines = list(reader.lines())
    assert lines[0].endswith("'--disable-cuda-graph' is deprecated and will be removed.")
    assert "Multi-thread loading shards: 100% Completed | 1/1" in lines
    split = "half a l\xefne\n".encode()
    with path.open("ab") as file:
        file.write(split[:9])
    assert list(reader.lines()) == []
    with path.open("ab") as file:
        file.write(split[9:])
    assert list(reader.lines()) == ["half a l\xefne"]


def test_the_tail_is_short_and_hides_secrets(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("\n".join(["old"] * 9000 + ["x" * 900, "", "--api-key planted", ""]))
    assert tail(path, 2) == ["x" * 300, "--api-key ***"]
    assert tail(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("lines", "why", "step"),
    [
        (
            ["usage: sglang serve [-h]", "sglang serve: error: unrecognized arguments: --no-such"],
            "unrecognized arguments: --no-such",
            "correct the flags after --",
        ),
        (
            [
                "Traceback (most recent call last):",
                "torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB",
                "bye",
            ],
            "torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB",
            "--mem-fraction-static",
        ),
        (
            ["OSError: [Errno 98] Address already in use"],
            "OSError: [Errno 98] Address already in use",
            "--port 0",
        ),
        (["killed"], "", "the whole log: /l"),
    ],
)
def test_the_reason_and_the_next_step(lines: list[str], why: str, step: str) -> None:
    assert reason(lines) == why
    assert step in next_step(why, Path("/l"))
