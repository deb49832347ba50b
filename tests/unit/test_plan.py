"""`hsbench plan`: figures against arithmetic done by hand, and what must hold for any figures."""

import json
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench.load.runner import Point
from bench.load.spec import Workload
from bench.load.store import Summary
from tests.unit.extract_support import LocalWorker, run_record
from tests.unit.merge_support import cut, join
from tests.unit.tui_records import point as bench_point
from tests.unit.watch_support import make_job, picture
from workbench import cli
from workbench.errors import UsageError
from workbench.exitcodes import ExitCode
from workbench.extract.dataset import Dataset, DatasetSettings
from workbench.extract.like import like
from workbench.extract.plan import Cost, Overheads, Rates, Volume, cost, counted, enough, make_plan, numbers
from workbench.extract.record import save_record

ROOT = Path(__file__).parents[2]
NOTHING = Overheads(start_s=0, shard_s=0)
DEEPSEEK = Volume(tokens=17.3e6, bytes_per_token=4 * 7168 * 2, rows=9000)
"""A token of DeepSeek-V3: three blocks and the last, hidden size 7168, bfloat16."""


def test_the_worked_example_by_hand() -> None:
    assert DEEPSEEK.bytes_per_token == 57_344
    assert DEEPSEEK.nbytes == pytest.approx(992.05e9, rel=1e-5)
    assert DEEPSEEK.nbytes / 2**30 == pytest.approx(924, abs=0.1)
    one = cost(DEEPSEEK, Rates(tok_s=20_000), Overheads(start_s=600, shard_s=30), 1)
    assert one.work_s == pytest.approx(865)  # 17.3e6 / 20,000
    assert one.fixed_s == 600 + 4 * 30
    assert (one.total_s, one.shards) == (pytest.approx(1585), 4)
    four = cost(DEEPSEEK, Rates(tok_s=20_000), Overheads(start_s=600, shard_s=30), 4)
    assert four.total_s == pytest.approx(865 / 4 + 720)
    assert four.efficiency == pytest.approx(1585 / (865 / 4 + 720) / 4)
    assert four.server_hours == pytest.approx(4 * (865 / 4 + 720) / 3600)


@pytest.mark.parametrize(
    ("rates", "servers", "tok_s", "bound"),
    [
        (Rates(tok_s=1000), 8, 8000, "prefill"),
        (Rates(tok_s=1000, disk_bytes_s=50e3), 8, 4000, "node's disk"),  # 50e3 / 100 = 500 a server
        (Rates(tok_s=1000, disk_bytes_s=50e3, net_bytes_s=20e3), 8, 1600, "node's network"),
        (Rates(tok_s=1000, shared_bytes_s=500e3), 8, 5000, "shared storage"),
        (Rates(shared_bytes_s=500e3), 8, 5000, "shared storage"),
        (Rates(tok_s=1000, disk_bytes_s=200e3, net_bytes_s=200e3, shared_bytes_s=900e3), 8, 8000, "prefill"),
    ],
)
def test_the_slowest_of_all_bounds_it(rates: Rates, servers: int, tok_s: float, bound: str) -> None:
    found = cost(Volume(tokens=1e6, bytes_per_token=100), rates, NOTHING, servers)
    assert (found.tok_s, found.bound) == (pytest.approx(tok_s), bound)
    assert found.work_s == pytest.approx(1e6 / tok_s)
    assert found.nbytes_s == pytest.approx(100 * tok_s)


def test_the_bound_changes_its_name_at_the_crossing() -> None:
    volume, rates = Volume(tokens=1e9, bytes_per_token=100), Rates(tok_s=1000, shared_bytes_s=1.6e6)
    assert enough(volume, rates) == pytest.approx(16)  # 1.6e6 / 100 / 1000
    named = {n: cost(volume, rates, NOTHING, n).bound for n in (15, 16, 17)}
    assert named == {15: "prefill", 16: "prefill", 17: "shared storage"}


def test_the_start_up_is_the_bound_once_it_takes_longer_than_the_work() -> None:
    volume, over = Volume(tokens=1e6, bytes_per_token=100), Overheads(start_s=60, shard_s=10)
    assert [cost(volume, Rates(tok_s=1000), over, n).bound for n in (9, 10, 11)] == ["prefill", "prefill", "start-up"]


def test_more_servers_than_rows_do_not_help() -> None:
    volume = Volume(tokens=1e9, bytes_per_token=100, rows=10)
    found = [cost(volume, Rates(tok_s=1000), NOTHING, n) for n in (2, 4, 5, 9, 10, 20)]
    # Shards: 8, then one a row. Rounds: 4, 3, 2, 2, 1, 1.
    assert [one.shards for one in found] == [8, 10, 10, 10, 10, 10]
    assert [one.at_work for one in found] == pytest.approx([2, 10 / 3, 5, 5, 10, 10])
    assert [one.bound for one in found] == [
        "prefill",
        "too few rows",
        "prefill",
        "too few rows",
        "prefill",
        "too few rows",
    ]
    assert found[-1].work_s == pytest.approx(1e9 / 10 / 1000)


def test_servers_that_never_have_a_shard_are_named_before_the_start_up() -> None:
    volume, over = Volume(tokens=1e5, bytes_per_token=100, rows=80), Overheads(start_s=300, shard_s=30)
    # Work of one server: 100 s, so start-up is the bound from the first on, and 80 shards leave 176 of 256 without any.
    assert [cost(volume, Rates(tok_s=1000), over, n).bound for n in (1, 64, 80, 81, 256)] == [
        "start-up",
        "start-up",
        "start-up",
        "too few rows",
        "too few rows",
    ]
    slow = Rates(tok_s=1000, shared_bytes_s=10_000)  # 100 tokens/s: 1,000 s of work however many write
    assert cost(volume, slow, over, 256).bound == "shared storage"


def test_fewer_shards_than_asked_for_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["plan", "--tokens", "1e6", "--rows", "80", "--model", str(shape(tmp_path, 64, 8)), "--tok-s", "1000"]
    assert cli.run(given) == ExitCode.OK
    said = "a shard has a row at least: 80 shards at most, fewer than 4 a server from 64 servers on"
    assert said in capsys.readouterr().out
    assert cli.run([*given, "--shards-per-server", "100"]) == ExitCode.OK
    assert "80 shards at most, fewer than 100 a server from 1 server on" in capsys.readouterr().out
    assert cli.run([*given, "--rows", "100000"]) == ExitCode.OK
    assert "shards at most" not in capsys.readouterr().out


def anything(chance: random.Random) -> tuple[Volume, Rates, Overheads]:
    def maybe(low: float, high: float) -> float | None:
        return None if chance.random() < 0.3 else 10 ** chance.uniform(low, high)

    rows = None if chance.random() < 0.3 else int(10 ** chance.uniform(0, 6))
    volume = Volume(tokens=10 ** chance.uniform(3, 11), bytes_per_token=chance.randrange(1000, 10**5), rows=rows)
    rates = Rates(
        tok_s=10 ** chance.uniform(2, 6),
        disk_bytes_s=maybe(7, 10),
        net_bytes_s=maybe(7, 11),
        shared_bytes_s=maybe(8, 12),
    )
    over = Overheads(
        start_s=chance.uniform(0, 900), shard_s=chance.uniform(0, 60), shards_a_server=chance.randint(1, 8)
    )
    return volume, rates, over


@pytest.mark.parametrize("seed", range(20))
def test_what_holds_for_any_figures(seed: int) -> None:
    volume, rates, over = anything(random.Random(seed))
    before: Cost | None = None
    for servers in range(1, 1500, 7):
        found = cost(volume, rates, over, servers)
        assert found.total_s == pytest.approx(found.work_s + found.fixed_s)
        assert found.shards <= (volume.rows or found.shards)
        assert found.at_work <= servers
        assert found.tok_s <= (rates.tok_s or 0) * servers * 1.0001
        assert found.nbytes_s <= (rates.shared_bytes_s or float("inf")) * 1.0001
        assert 0 < found.efficiency <= 1.0001
        if before is not None:
            assert found.total_s <= before.total_s * 1.0001, "more servers were slower"
        before = found
    faster = Rates(**{**{n: getattr(rates, n) for n in rates.__struct_fields__}, "tok_s": 2 * (rates.tok_s or 0)})
    assert cost(volume, faster, over, 64).total_s <= cost(volume, rates, over, 64).total_s


def test_the_numbers_of_servers() -> None:
    assert numbers(None) == [1, 2, 4, 16, 64, 256, 1024]
    assert numbers(48) == [1, 2, 4, 16, 48, 64, 256, 1024]
    assert numbers(3000)[-1] == 3000
    assert make_plan(DEEPSEEK, Rates(), NOTHING, numbers(None), 1).costs == ()


def rows_of(folder: Path, lengths: list[int]) -> Dataset:
    path = folder / f"{len(lengths)}.jsonl"
    path.write_text("".join(json.dumps({"input_ids": [1] * n, "loss_mask": [1] * n}) + "\n" for n in lengths))
    return Dataset.open(DatasetSettings(path=str(path)), LocalWorker("here"))


def test_tokens_are_counted_by_the_data_set_itself(tmp_path: Path) -> None:
    few = counted(rows_of(tmp_path, [5, 7, 9]), 10, every=False)
    assert (few.tokens, few.rows, few.looked_at, few.nbytes) == (21, 3, 3, 210)
    lengths = [2 + number % 50 for number in range(1200)]
    data = rows_of(tmp_path, lengths)
    guess, exact = counted(data, 10, every=False), counted(data, 10, every=True)
    assert (exact.tokens, exact.tokens_low, exact.looked_at) == (sum(lengths), sum(lengths), 1200)
    assert guess.looked_at == 512
    assert guess.tokens_low is not None
    assert guess.tokens_low < guess.tokens
    assert guess.tokens == pytest.approx(sum(lengths), rel=0.1)


def test_a_rate_from_a_run_is_that_of_one_server(tmp_path: Path) -> None:
    make_job(tmp_path / "run", [picture(5, 50), picture(20, 3000)], alive=False)
    save_record(tmp_path / "run", run_record("speculators-v1"))
    found = like(tmp_path / "run")
    assert found.tok_s == pytest.approx(150)
    assert found.record is not None
    out = tmp_path / "shards"
    for number, tokens in enumerate((1000, 3000)):
        make_job(out / f"shard_{number}-of-2", [picture(10, tokens)], alive=False)
    assert like(out).tok_s == pytest.approx(4000 / 20)
    merged = cut(tmp_path / "merged", "speculators-v1")  # each shard's job told 100 tokens in 10 s
    join(merged)
    assert like(merged).tok_s == pytest.approx(10)


def point(output: int, prompts: int, seconds: float, cached: int = 0) -> Point:
    made, change = bench_point(1, 100.0), msgspec.structs.replace
    figures = change(made.metrics, prompt_tokens=prompts, cached_tokens=cached, seconds=seconds)
    return change(made, workload=Workload(input_len=128, output_len=output), metrics=figures)


def test_a_rate_from_a_bench_is_that_of_prompts_alone(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    points = [point(128, 1000, 1.0), point(1, 6000, 2.0, cached=1000), point(1, 8000, 4.0)]
    (tmp_path / "summary.json").write_bytes(msgspec.json.encode(Summary(points=tuple(points), finished=True)))
    assert like(tmp_path).tok_s == pytest.approx(2500)
    (tmp_path / "summary.json").write_bytes(msgspec.json.encode(Summary(points=tuple(points[:1]))))
    with pytest.raises(UsageError, match="no prefill was measured"):
        like(tmp_path)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--tokens", "17.3e6", "--model", str(shape(tmp_path, 7168, 61)), "--layers", "2,30,57", "--tok-s", "20000"]
    assert cli.run(["plan", *given, "--servers", "3", "--shared-storage-gb-s", "40", "--json"]) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert found["nbytes"] == pytest.approx(17.3e6 * 57_344)
    assert [one["servers"] for one in found["costs"]] == [1, 2, 3, 4, 16, 64, 256, 1024]
    assert found["costs"][2]["work_s"] == pytest.approx(17.3e6 / 60_000)
    assert found["costs"][-1]["work_s"] == pytest.approx(17.3e6 * 57_344 / 40e9)
    assert found["enough_servers"] == pytest.approx(40e9 / 57_344 / 20_000)
    assert cli.run(["plan", *given, "--gpus-per-server", "8"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "57,344 B a token: 992.1 GB (923.9 GiB)" in out
    assert next(line.split()[:2] for line in out.splitlines() if line.strip().startswith("256")) == ["256", "2,048"]


def test_a_token_has_as_many_states_as_layers_and_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(shape(tmp_path, 64, 8))
    make_job(tmp_path / "run", [picture(10, 1000)], alive=False)
    save_record(tmp_path / "run", run_record("speculators-v1"))
    wide = run_record("speculators-v1").states.hidden_size
    for arguments, size in (
        (["--model", model], 4 * 64 * 2),
        (["--model", model, "--layers", "1,2"], 3 * 64 * 2),
        (["--like", str(tmp_path / "run")], 4 * wide * 2),
        (["--like", str(tmp_path / "run"), "--layers", "1"], 2 * wide * 2),
    ):
        assert cli.run(["plan", "--tokens", "1000", "--json", *arguments]) == ExitCode.OK
        assert json.loads(capsys.readouterr().out)["volume"]["bytes_per_token"] == size


def test_without_a_rate_it_tells_the_size_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["plan", "--tokens", "1e6", "--model", str(shape(tmp_path, 64, 8))]) == ExitCode.OK
    out = capsys.readouterr().out
    assert out.splitlines() == [
        "1.0 M tokens, 512 B a token: 512.0 MB (0.5 GiB)",
        "no time without a rate: --tok-s X, or --like DIR of a run or a bench",
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "it takes DATA or --tokens N"),
        (["nowhere.jsonl"], "there is no nowhere.jsonl"),
        (["SHAPE", "--tokens", "5"], "it takes DATA or --tokens N"),
        (["SHAPE", "--rows", "5"], "--rows goes with --tokens"),
        (["--tokens", "5"], "the size of a token is not known"),
        (["--tokens", "0"], "'0' is not a number above 0"),
        (["--tokens", "nan"], "'nan' is not a number above 0"),
        (["--tokens", "inf"], "'inf' is not a number above 0"),
        (["--tokens", "many"], "'many' is not a number above 0"),
        (["--tokens", "5", "--model", "SHAPE", "--tok-s", "-1"], "'-1' is not a number above 0"),
        (["--tokens", "5", "--model", "SHAPE", "--servers", "0"], "0 is not in the range"),
        (["--tokens", "5", "--rows", "9000", "--model", "SHAPE"], "--tokens 5 are fewer than --rows 9,000"),
        (["--tokens", "5", "--model", "SHAPE", "--layers", "2,x"], "is not a list of block numbers"),
        (["--tokens", "5", "--model", "SHAPE", "--layers", "2,7"], "names block 7; the model has blocks 0 to 7"),
        (["--tokens", "5", "--model", "SHAPE", "--like", "nowhere"], "there is no folder nowhere"),
        (["--tokens", "5", "--model", "SHAPE", "--like", "SHAPE"], "no rate was measured in"),
        (["--tokens", "5", "--model", "no/such/model"], "the model no/such/model does not exist"),
        (["--tokens", "5", "--model", "org/name"], "org/name is not a folder here"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(shape(tmp_path, 64, 8)) if one == "SHAPE" else one for one in arguments]
    assert cli.run(["plan", *given]) in (ExitCode.USAGE, ExitCode.MISSING)
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 2, said


def test_the_process_of_the_command_loads_no_torch(tmp_path: Path) -> None:
    code = "import sys, workbench.cli; workbench.cli.run(sys.argv[1:]); print('LOADED', *sys.modules)"
    given = ["plan", "--tokens", "5", "--model", str(shape(tmp_path, 64, 8)), "--tok-s", "1"]
    out = subprocess.run(
        [sys.executable, "-c", code, *given], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "start-up" in out
    assert not {"torch", "sglang", "transformers", "numpy", "ray", "fsspec"} & set(out.rpartition("LOADED")[2].split())


def shape(folder: Path, hidden: int, blocks: int) -> Path:
    """A model as far as its config.json goes."""
    path = folder / "shape"
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({"hidden_size": hidden, "num_hidden_layers": blocks}))
    return path
