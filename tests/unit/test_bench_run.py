"""Whole runs against the server with a known schedule, and the commands on what they left behind."""

import asyncio
import csv
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.load import selftest
from bench.load.client import LoadClient
from bench.load.compare import as_markdown, cautions, compare, slower_than
from bench.load.dialects import dialect
from bench.load.known_server import KnownServer, Schedule
from bench.load.load import cost_of, put
from bench.load.metrics import metrics
from bench.load.runner import Measured, Point, Round, settled
from bench.load.session import measure
from bench.load.spec import BenchSettings, WarmUp, Workload, grid
from bench.load.store import RunFolder, Summary, find_run, new_run
from bench.load.target import Target
from tests.unit.bench_support import DONE, native, request
from workbench import cli
from workbench.errors import UsageError

SCHEDULE = Schedule(ttft=0.02, itl=0.002)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with KnownServer(SCHEDULE) as server:
        yield server.url


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "hsbench" / "bench"


def settings(url: str, *workloads: Workload, **more: Any) -> BenchSettings:
    return BenchSettings(url=url, workloads=workloads, seed=7, **more)


@pytest.mark.parametrize("api", ["native", "openai", "openai-chat"])
def test_a_grid_of_workloads(url: str, api: Any, tmp_path: Path) -> None:
    told: list[Any] = []
    points = grid([3, 5], [4, 9], [1, 4], requests=6)
    folder = measure(
        settings(url + "/v1", *points, api=api, warm_up=WarmUp(windows=2, within=10.0)), told.append, tmp_path / "run"
    )
    summary = folder.summary()
    assert summary.finished
    assert [point.workload for point in summary.points] == list(points)
    assert [type(one) for one in told] == [Target, *([Round, Round, Measured] * 8)]
    for number, point in enumerate(summary.points):
        found, length = point.metrics, point.workload.output_len
        assert (found.requests, found.failed, found.short, found.tokens) == (6, 0, 0, 6 * length)
        assert (found.counted, found.finishes) == ("chunk", {"length": 6})
        records = list(folder.requests(number))
        assert [record.counts for record in records] == [(1,) * length] * 6
        assert sorted(record.number for record in records) == list(range(6))
        assert metrics(records, point.workload.concurrency) == found
        if api != "openai-chat":
            assert found.prompt_tokens == 6 * (point.workload.input_len or 0)
    assert folder.run().model == "known"


@pytest.mark.parametrize(("usage", "counted"), [("last", "total"), ("none", "assumed")])
def test_counts_that_are_not_given_are_marked(usage: str, counted: str, tmp_path: Path) -> None:
    with KnownServer(Schedule(ttft=0.01, itl=0.002, chunk=2, usage=usage)) as server:
        work = grid([3], [8], requests=2)
        folder = measure(settings(server.url, *work, api="openai", warm_up=None), lambda _: None, tmp_path / "run")
    found = folder.summary().points[0]
    assert (found.metrics.counted, found.metrics.tokens) == (counted, 16 if counted == "total" else 8)
    assert any("ASSUMED" in note or "total" in note for note in found.notes)


@pytest.mark.parametrize("spin", [0.0, 0.002])
def test_the_server_keeps_its_schedule(spin: float) -> None:
    """What it wrote is what was asked for, event by event and never early; how late is the machine's affair."""
    with KnownServer(Schedule(ttft=0.05, itl=0.01, chunk=2, spin=spin)) as server:
        loaded = selftest.offer(server.url, "native", 3, 5)
        account = server.account()
        assert server.account().answers == ()
    answers = account.answers[-3:]
    assert [answer.counts for answer in answers] == [(2, 2, 1)] * 3
    for answer in answers:
        assert all(time >= due for time, due in zip(answer.times, (0.06, 0.08, 0.09), strict=True))
    assert [record.counts for record in loaded.records] == [(2, 2, 1)] * 3
    assert sum(record.times[0] for record in loaded.records) >= sum(answer.times[0] for answer in answers)


def test_arrivals_at_a_rate_and_for_a_time(url: str) -> None:
    async def load(work: Workload) -> Any:
        spoken = dialect("native")
        async with LoadClient(url, spoken) as client:
            return await put(client, iter(lambda: spoken.body([1], work.output_len, True), None), work, seed=3)

    work = Workload(input_len=1, output_len=2, concurrency=None, rate=200.0, requests=30)
    starts = [record.start for record in asyncio.run(load(work)).records]
    assert len(starts) == 30
    assert starts == sorted(starts)
    timed = Workload(input_len=1, output_len=2, concurrency=3, seconds=0.2)
    records = asyncio.run(load(timed)).records
    assert len(records) > 3
    assert max(record.start for record in records) < 0.2 + max(record.end + record.waited for record in records)
    assert all(record.ok and record.tokens == 2 for record in records)


def test_when_a_warm_up_is_over() -> None:
    rule = WarmUp(windows=3, within=0.02)
    assert not settled([100.0, 100.0], rule)
    assert settled([50.0, 100.0, 101.0, 102.0], rule)
    assert not settled([100.0, 101.0, 102.1], rule)


def test_data_from_a_file(url: str, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(json.dumps({"input_ids": [1] * n}) for n in (3, 4)))
    work = grid([None], [2], requests=3)
    folder = measure(settings(url, *work, data=str(path), warm_up=None), lambda _: None, tmp_path / "run")
    point = folder.summary().points[0]
    assert point.metrics.prompt_tokens == 3 + 4 + 3
    assert any("more than once" in note for note in point.notes)


def test_bad_data_leaves_no_run_behind(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data.jsonl").write_text("{}\n")
    assert cli.run(["bench", "--url", url, "--data", str(tmp_path / "data.jsonl")]) == 2
    assert "row 1 has no prompt" in capsys.readouterr().err
    assert "no run is kept" in list_of_runs(capsys)


def test_the_commands(url: str, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def command(*arguments: str) -> tuple[int, str]:
        code = cli.run(["bench", *arguments])
        return code, capsys.readouterr().out

    asked = ["--url", url, "--input-len", "4", "--output-len", "6", "--concurrency", "1,2", "--requests", "4"]
    code, out = command(*asked, "--no-warm-up", "--limits", "ttft=9")
    assert code == 0
    assert "batch tok/s" in out
    assert "4->6 c=2" in out
    assert "\x1b" not in out
    code, out = command(*asked, "--no-warm-up", "--json")
    assert [json.loads(line)["metrics"]["tokens"] for line in out.splitlines()] == [24, 24]
    names = [json.loads(line)["name"] for line in command("list", "--json")[1].splitlines()]
    assert len(names) == 2
    assert all(name in command("list")[1] for name in names)
    shown = command("show", "last")[1]
    assert "TTFT up to x ms" in shown
    assert "tok/s over seconds" in shown
    assert json.loads(command("show", names[0], "--json")[1])["summary"]["finished"] is True
    assert command("compare", *names)[0] == 0
    assert command("compare", names[0], str(state / "runs" / names[0]), "--fail-if-slower", "0%")[0] == 0
    rows = list(csv.DictReader(command("export", names[0], "csv")[1].splitlines()))
    assert [(row["workload"], row["requests"]) for row in rows] == [("4->6 c=1", "4"), ("4->6 c=2", "4")]
    assert command("export", names[0], "md")[1].count("\n") == 4
    assert "TTFT" in command("--explain")[1]
    assert "TTFT" in json.loads(command("--explain", "--json")[1])


def point(label: int, ttft: float, tokens: int) -> Point:
    """A point whose figures are known: one request of `tokens` after `ttft`, in a second."""
    times = [ttft + n / (tokens - 1) for n in range(tokens)]
    work = Workload(input_len=label, output_len=tokens)
    found = metrics([request(0.0, times)], 1)
    return Point(workload=work, metrics=found, client=cost_of(0.1, 1.0, tokens, []), warmed=None, notes=())


def test_comparing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = point(1, 0.100, 101), point(1, 0.104, 101)
    found = {one.measure: one for one in compare([first, point(2, 1.0, 5)], [second])}
    assert found["TTFT p50 s"].ratio == pytest.approx(1.04)
    assert found["TTFT p50 s"].slower == pytest.approx(0.04)
    assert found["batch tok/s"].ratio == pytest.approx(1.0)
    assert [one.measure for one in slower_than(list(found.values()), 0.03)] == ["TTFT p50 s"]
    assert slower_than(list(found.values()), 0.05) == []
    halved = {
        one.measure: one
        for one in compare([point(1, 0.1, 101)], [msgspec.structs.replace(second, metrics=point(1, 0.1, 51).metrics)])
    }
    assert halved["batch tok/s"].slower == pytest.approx(0.5)
    with pytest.raises(UsageError, match="no workload in common"):
        compare([first], [point(2, 0.1, 5)])
    assert as_markdown([first]).splitlines()[2].startswith("| 1->101 c=1 | 1 | 0 | 0 | chunk | no | 100 |")
    for name, one in (("a", first), ("b", second)):
        stored(tmp_path / name, one)
    arguments = ["bench", "compare", str(tmp_path / "a"), str(tmp_path / "b"), "--fail-if-slower"]
    assert cli.run([*arguments, "5%"]) == 0
    assert cli.run([*arguments, "3%"]) == 1
    assert "TTFT p50" in capsys.readouterr().err


def test_why_a_difference_may_not_be_the_servers(tmp_path: Path) -> None:
    calm = point(1, 0.1, 101)
    busy = msgspec.structs.replace(calm, client=cost_of(0.9, 1.0, 101, []), notes=("CLIENT-LIMITED: x",))
    one = stored(tmp_path / "a", calm).run()
    other = msgspec.structs.replace(one, model="n", facts={"tp_size": 2})
    assert list(cautions((one, [calm]), (one, [calm]))) == []
    assert list(cautions((one, [calm]), (other, [busy]))) == [
        "B, 1->101 c=1: CLIENT-LIMITED: x",
        "the models differ: m and n",
        "the servers differ in tp_size: None and 2",
    ]


def stored(path: Path, one: Point) -> RunFolder:
    folder = RunFolder.create(new_run(settings("http://x", one.workload), "m", {}), path)
    folder.append(0, Measured(point=one, records=()))
    folder.finish()
    return folder


def test_a_run_folder(tmp_path: Path) -> None:
    one = point(1, 0.1, 11)
    folder = stored(tmp_path / "run", one)
    assert find_run(str(tmp_path / "run")).summary() == Summary(points=(one,), finished=True)
    assert folder.run().settings.workloads == (one.workload,)
    assert list(folder.requests(0)) == []
    with pytest.raises(UsageError, match="not empty"):
        stored(tmp_path / "run", one)
    with pytest.raises(UsageError, match="no run nosuch"):
        find_run("nosuch")
    with pytest.raises(UsageError, match="no run yet"):
        find_run("last")
    (tmp_path / "run" / "summary.json").write_text("{")
    with pytest.raises(UsageError, match="cannot be read"):
        folder.summary()


def list_of_runs(capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.run(["bench", "list"]) == 0
    return capsys.readouterr().out


class Odd(BaseHTTPRequestHandler):
    """Says that it is a server, then refuses requests or, asked for two tokens, gives one."""

    def do_GET(self) -> None:
        self._say(200, b'{"model_path": "odd"}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["sampling_params"]["max_new_tokens"] != 2:
            self._say(400, b'{"error": {"message": "the prompt is too long"}}')
        else:
            self._say(200, native(1, {"type": "stop"}) + DONE, "text/event-stream")

    def _say(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def odd() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Odd) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_server_that_refuses_or_gives_less(odd: str, capsys: pytest.CaptureFixture[str]) -> None:
    for more in ([], ["--no-warm-up"]):
        assert cli.run(["bench", "--url", odd, "--output-len", "3", *more]) == 3
        said = capsys.readouterr().err
        assert "hsbench: the server refused the requests: HTTP 400: the prompt is too long" in said
        assert "Traceback" not in said
    assert "no run is kept" in list_of_runs(capsys)
    short = ["bench", "--url", odd, "--output-len", "2", "--requests", "3", "--no-warm-up"]
    assert cli.run(short) == 1
    shown = capsys.readouterr()
    assert "3 answers have not the length asked for; ended 3 by stop" in shown.out
    assert "answers were shorter" in shown.err
    assert cli.run([*short, "--respect-eos"]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--url", "http://127.0.0.1:1"], 3, "no server answers"),
        (["--url", "http://127.0.0.1:1", "--api", "openai"], 3, "no server answers"),
        ([], 3, "no server was started"),
        (["--url", "x", "--name", "y"], 2, "both name a server"),
        (["--url", "x", "--input-len", "0"], 2, "--input-len '0'"),
        (["--url", "x", "--concurrency", "1,,2"], 2, "--concurrency"),
        (["--url", "x", "--rate", "2", "--concurrency", "2"], 2, "two kinds of load"),
        (["--url", "x", "--rate", "0"], 2, "--rate"),
        (["--url", "x", "--requests", "2", "--seconds", "2"], 2, "give one of them"),
        (["--url", "x", "--limits", "ttft=no"], 2, "'ttft=no' is not a limit"),
        (["--url", "x", "--limits", "speed=1"], 2, "'speed=1' is not a limit"),
        (["--url", "x", "--token-range", "5,5"], 2, "LO,HI"),
        (["--url", "x", "--data", "f", "--input-len", "5"], 2, "its own lengths"),
        (["--url", "x", "--api-key-env", "HSBENCH_NO_SUCH"], 2, "is not set"),
        (["show", "nosuch"], 2, "there is no run nosuch"),
        (["compare", "a", "b", "--fail-if-slower", "much"], 2, "not a percentage"),
        (["export", "last", "csv"], 2, "there is no run yet"),
    ],
)
def test_calls_that_cannot_be(arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["bench", *arguments]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert words in shown.err
    assert "next: " in shown.err


def test_the_self_test(state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(selftest, "SECONDS", 0.2)
    found = list(selftest.self_test("openai", (1000,)))
    step, ceiling = found
    assert isinstance(step, selftest.Step)
    assert isinstance(ceiling, selftest.Ceiling)
    assert step.cost.cpu_us_per_token is not None
    assert ceiling.tok_s == step.taken > 0
    selftest.remember(ceiling)
    assert selftest.remembered("openai") == ceiling.tok_s
    assert selftest.remembered("native") is None
