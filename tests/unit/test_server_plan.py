"""The command and environment of a server, decided without touching anything."""

from pathlib import Path

import msgspec
import pytest

from workbench.errors import Missing, UsageError
from workbench.server import flags
from workbench.server.engine import Engine
from workbench.server.launch import DumpSpec, LaunchSpec, plan

ENGINE = Engine("/e/bin/python", "0.5.23", Path("/e/sglang"), "2.14.1", cuda=False, has_cpu_platform=True)
CUDA = msgspec.structs.replace(ENGINE, cuda=True, has_cpu_platform=False)
DUMP = DumpSpec("/dumps", (2, 15, 27), "pre")


def words(engine: Engine = ENGINE, **spec: object) -> list[str]:
    whole = msgspec.structs.replace(LaunchSpec(model="/m"), **spec)
    return list(plan(whole, engine).argv)


def test_the_cpu_gets_what_it_needs() -> None:
    assert words(port=4711) == [
        *["/e/bin/python", "-m", "sglang.launch_server", "--model-path", "/m"],
        *["--host", "127.0.0.1", "--port", "4711", "--device", "cpu"],
        *["--attention-backend", "torch_native", "--disable-cuda-graph", "--disable-radix-cache"],
        *["--mem-fraction-static", "0.2", "--sleep-on-idle", "--max-total-tokens", "32768"],
    ]


def test_the_cpu_cache_holds_a_whole_context() -> None:
    argv = plan(LaunchSpec(model="/m"), ENGINE, context_len=40960).argv
    assert argv[argv.index("--max-total-tokens") + 1] == "40960"


def test_cuda_is_left_to_sglang() -> None:
    made = plan(LaunchSpec(model="/m"), CUDA)
    assert made.argv[-4:] == ("--port", "30017", "--device", "cuda")
    assert "SGLANG_PLATFORM" not in made.env


def test_the_users_flags_win_and_come_last() -> None:
    given = ("--mem-fraction-static", "0.5", "--attention-backend=intel_amx", "--log-level", "debug")
    argv = words(flags=given)
    assert argv[-5:] == list(given)
    assert argv.count("--mem-fraction-static") == 1
    assert "torch_native" not in argv


def test_the_host_is_given_once_and_reached_locally() -> None:
    for given in (("--host", "0.0.0.0", "--tp", "2"), ("--host=0.0.0.0", "--tp", "2")):
        made = plan(LaunchSpec(model="/m", flags=given), ENGINE)
        assert made.argv[5:7] == ("--host", "0.0.0.0")
        assert sum(word.startswith("--host") for word in made.argv) == 1
        assert made.argv[-2:] == ("--tp", "2")
        assert made.url == "http://127.0.0.1:30017"


@pytest.mark.parametrize("engine", [ENGINE, CUDA])
def test_a_dump_needs_whole_uncached_prompts(engine: Engine) -> None:
    argv = words(engine, dump=DUMP)
    assert argv.count("--disable-radix-cache") == 1
    assert argv[argv.index("--chunked-prefill-size") + 1] == "-1"
    assert "--disable-prefill-cuda-graph" in argv


def test_a_flag_that_the_release_lacks_is_not_added() -> None:
    old = msgspec.structs.replace(CUDA, flags=frozenset({"--disable-radix-cache", "--chunked-prefill-size"}))
    argv = words(old, dump=DUMP)
    assert "--disable-prefill-cuda-graph" not in argv
    assert "--disable-radix-cache" in argv


@pytest.mark.parametrize(
    "given",
    [
        ("--chunked-prefill-size", "4096"),
        ("--chunked-prefill-size=4096",),
        ("--enable-mixed-chunk",),
        ("--enable-two-batch-overlap",),
        ("--pp-size", "2"),
        ("--cuda-graph-backend-prefill", "full"),
        ("--cuda-graph-config", '{"prefill": {"backend": "breakable"}}'),
        ("--enable-hierarchical-cache",),
    ],
)
def test_flags_that_spoil_a_dump_are_refused_by_name(given: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=given[0].partition("=")[0]):
        words(dump=DUMP, flags=given)
    assert words(flags=given)[-len(given) :] == list(given)


@pytest.mark.parametrize(
    "given",
    [
        ("--chunked-prefill-size", "-1"),
        ("--chunked-prefill-size=-1",),
        ("--pp-size", "1"),
        ("--cuda-graph-backend-prefill", "disabled"),
        ("--cuda-graph-config", '{"decode": {"max_bs": 8}}'),
    ],
)
def test_harmless_values_of_those_flags_pass(given: tuple[str, ...]) -> None:
    assert words(dump=DUMP, flags=given)[-len(given) :] == list(given)


@pytest.mark.parametrize("flag", ["--port", "--model-path", "--model", "--device"])
def test_flags_of_hsbench_itself_are_refused(flag: str) -> None:
    with pytest.raises(UsageError, match=f"{flag} is set by hsbench"):
        words(flags=(flag, "1"))


def test_the_dump_folder_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    made = plan(LaunchSpec(model="/m", dump=DumpSpec("here")), ENGINE)
    assert made.env["SGLANG_HS_DUMP_DIR"] == str(tmp_path / "here")
    assert "SGLANG_HS_DUMP_BLOCKS" not in made.env
    assert "SGLANG_HS_DUMP_BLOCKS" in made.without
    assert "SGLANG_HS_DUMP_DIR" not in made.without


def test_relative_paths_of_files_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.jinja").touch()
    given = ("--chat-template", "./t.jinja", "--file=./t.jinja", "--name", "./none", "--other", "t.jinja")
    assert words(flags=given)[-6:] == [
        *[str(tmp_path / "t.jinja"), f"--file={tmp_path}/t.jinja"],
        *["--name", "./none", "--other", "t.jinja"],
    ]


def test_devices_that_are_not_there() -> None:
    with pytest.raises(Missing, match="sees no CUDA device"):
        words(device="cuda")
    with pytest.raises(Missing, match="cannot run on a CPU") as caught:
        words(CUDA, device="cpu")
    assert caught.value.next_step == "/e/bin/python -m pip install hsbench"


def test_another_port() -> None:
    made = plan(LaunchSpec(model="30017", port=30017), ENGINE).on_port(5)
    assert made.argv[3:9] == ("--model-path", "30017", "--host", "127.0.0.1", "--port", "5")
    assert made.url == "http://127.0.0.1:5"


def test_what_a_running_server_lacks() -> None:
    good = {
        "disable_radix_cache": True,
        "chunked_prefill_size": -1,
        "enable_two_batch_overlap": False,
        "pp_size": 1,
    }
    assert flags.incomplete({**good, "cuda_graph_config": {"prefill": {"backend": "disabled"}}}) == []
    bad = {
        "disable_radix_cache": False,
        "chunked_prefill_size": 8192,
        "enable_two_batch_overlap": True,
        "pp_size": 2,
        "cuda_graph_config": {"prefill": {"backend": "breakable"}},
    }
    found = flags.incomplete(bad)
    assert len(found) == 5
    for name, why in zip(
        ("radix", "chunked-prefill-size", "prefill-cuda-graph", "two-batch", "pp-size"), found, strict=True
    ):
        assert name in why
