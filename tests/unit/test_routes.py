"""Which route is taken and why, what it adds to the command, what is refused, and the proof that it records."""

import json
import time
from pathlib import Path

import msgspec
import pytest

from patches.plugin import APPLIED, FAILED
from tests.trees import NEW, OLD
from workbench.errors import Missing, NotRecording, UsageError
from workbench.models.folder import ModelFacts
from workbench.server import flags, proof, routes
from workbench.server.engine import Engine
from workbench.server.launch import plan
from workbench.server.prepare import by_route
from workbench.server.specs import DumpSpec, LaunchSpec
from workbench.server.state import ServerRecord

BUILTIN_FLAGS = frozenset({routes.AUX_FLAG, routes.HOOKS_FLAG, routes.IDS_FLAG})
DUMP = DumpSpec("/d", (2, 15, 27))


def facts(architecture: str, blocks: int | None = 30) -> ModelFacts:
    return ModelFacts("/m", num_blocks=blocks, architectures=(architecture,) if architecture else ())


@pytest.fixture
def engine(releases: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """0.5.23 with hsbench beside it. The sources are real; the folder of plug-ins is all that is looked for of them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return engine_of(releases[NEW], NEW, tmp_path / NEW, BUILTIN_FLAGS)


def engine_of(release: Path, version: str, to: Path, known: frozenset[str]) -> Engine:
    (to / "srt" / "plugins").mkdir(parents=True)
    (to / "srt" / "models").symlink_to(release / "sglang" / "srt" / "models")
    return Engine("/e/bin/python", version, to, "2", cuda=False, has_cpu_platform=True, flags=known, has_plugin=True)


ARCHITECTURES = {
    "LlamaForCausalLM": ("DFLASH", ["srt/models/llama.py"]),
    "Qwen2ForCausalLM": ("EAGLE3", ["srt/models/qwen2.py"]),
    "Qwen3ForCausalLM": ("DFLASH", ["srt/models/qwen3.py", "srt/models/qwen2.py"]),
    "Qwen3MoeForCausalLM": ("DFLASH", ["srt/models/qwen2_moe.py"]),
    "GptOssForCausalLM": ("DFLASH", ["srt/models/gpt_oss.py"]),
    "DeepseekV3ForCausalLM": ("DFLASH", ["srt/models/deepseek_v2.py"]),
    "Glm4MoeForCausalLM": ("EAGLE3", ["srt/models/glm4_moe.py"]),
}
"""Architecture → the convention in which id k is the output of block k, by the setters of 0.5.23; the edited files."""


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_auto_takes_the_plug_in_and_edits_the_models_own_file(engine: Engine, architecture: str) -> None:
    route = routes.choose(DUMP, (), engine, facts(architecture))
    assert (route.name, route.flags) == ("plugin", ())
    assert set(ARCHITECTURES[architecture][1]) <= set(route.files)
    assert "it edits no file" in route.why


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_built_in_route_asks_for_the_outputs_of_the_blocks(engine: Engine, architecture: str) -> None:
    dump = msgspec.structs.replace(DUMP, route="builtin")
    route = routes.choose(dump, (), engine, facts(architecture))
    given = flags.given(route.flags)
    assert given["--speculative-algorithm"] == ARCHITECTURES[architecture][0]
    at = route.flags.index(routes.IDS_FLAG)
    assert route.flags[at + 1 : at + 4] == ("2", "15", "27")
    hooks = json.loads(str(given["--forward-hooks"]))
    assert [hook["target_modules"][0] for hook in hooks] == ["model.norm", "model"]
    default = routes.choose(DumpSpec("/d", route="builtin"), (), engine, facts(architecture, 32))
    assert default.flags[at + 1 : at + 4] == ("2", "16", "29")


@pytest.mark.parametrize(
    ("changes", "model", "name", "why"),
    [
        ({"has_plugin": False}, facts("LlamaForCausalLM"), "patch", "hsbench is not installed in /e/bin/python"),
        ({}, facts("NoSuchForCausalLM"), "patch", "no edit is known for NoSuchForCausalLM"),
        ({}, facts(""), "plugin", "it edits no file"),
    ],
)
def test_auto_says_why_it_passed_a_route_by(
    engine: Engine, changes: dict[str, bool], model: ModelFacts, name: str, why: str
) -> None:
    route = routes.choose(DUMP, (), msgspec.structs.replace(engine, **changes), model)
    assert route.name == name
    assert why in route.describe()


def test_auto_falls_back_to_the_built_in_where_the_source_is_not_known(engine: Engine, tmp_path: Path) -> None:
    models = tmp_path / "strange" / "srt" / "models"
    models.mkdir(parents=True)
    (models.parent / "plugins").mkdir()
    text = (engine.root / "srt" / "models" / "llama.py").read_text().replace("capture_output", "captured")
    (models / "llama.py").write_text(text)
    strange = msgspec.structs.replace(engine, root=tmp_path / "strange")
    route = routes.choose(DUMP, (), strange, facts("LlamaForCausalLM"))
    assert route.name == "builtin"
    assert "not plugin, as its edit does not fit this release: srt/models/llama.py: looked for" in route.why


def test_the_old_release_has_the_plug_in_and_no_built_in(releases: dict[str, Path], tmp_path: Path) -> None:
    old = engine_of(releases[OLD], OLD, tmp_path / OLD, frozenset({routes.HOOKS_FLAG}))
    assert routes.choose(DUMP, (), old, facts("LlamaForCausalLM")).name == "plugin"
    with pytest.raises(Missing, match=f"SGLang {OLD} has no --enable-return-aux-hidden-states"):
        routes.choose(msgspec.structs.replace(DUMP, route="builtin"), (), old, facts("LlamaForCausalLM"))


@pytest.mark.parametrize(
    ("dump", "model", "why"),
    [
        (DumpSpec("/d", route="builtin"), facts("LlamaForCausalLM", None), "it must be told the blocks"),
        (DumpSpec("/d", (2, 2), route="builtin"), facts("LlamaForCausalLM"), "every block once"),
        (DumpSpec("/d", (2,), route="builtin"), facts("NoSuchForCausalLM"), "SGLang cannot capture in"),
        (DumpSpec("/d", (2,), route="plugin"), facts("NoSuchForCausalLM"), "no edit is known"),
    ],
)
def test_a_route_that_is_not_open_is_refused(engine: Engine, dump: DumpSpec, model: ModelFacts, why: str) -> None:
    with pytest.raises(Missing, match=why):
        routes.choose(dump, (), engine, model)


def test_flags_that_the_built_in_route_needs_are_not_the_users(engine: Engine) -> None:
    dump = msgspec.structs.replace(DUMP, route="builtin")
    with pytest.raises(UsageError, match="--speculative-draft-model-path"):
        routes.choose(dump, ("--speculative-draft-model-path", "/x"), engine, facts("LlamaForCausalLM"))


def launched(engine: Engine, **dump: object) -> tuple[dict[str, str], tuple[str, ...]]:
    spec = LaunchSpec(model="/m", dump=DumpSpec("/d", **dump), flags=("--log-level", "info"))  # type: ignore[arg-type]
    assert spec.dump is not None
    made = plan(by_route(spec, routes.choose(spec.dump, spec.flags, engine, facts("LlamaForCausalLM"))), engine)
    return made.env, made.argv


def test_the_server_is_told_the_route(engine: Engine) -> None:
    env, argv = launched(engine)
    assert env["SGLANG_HS_ROUTE"] == "plugin"
    assert env["SGLANG_HS_FILES"] == "srt/models/llama.py"
    assert routes.AUX_FLAG not in argv
    env, argv = launched(engine, route="builtin")
    assert env["SGLANG_HS_ROUTE"] == "builtin"
    assert "SGLANG_HS_FILES" not in env
    assert routes.AUX_FLAG in argv


@pytest.mark.parametrize(
    "flag",
    [
        *("--enable-dp-attention", "--attn-dp-size 2", "--attn-cp-size=2", "--enable-prefill-cp"),
        *("--enable-layernorm-sp", "--enable-attn-tp-input-scattered", "--dp-size 2", "--data-parallel-size 4"),
    ],
)
def test_scattered_states_are_refused_before_the_launch(engine: Engine, flag: str) -> None:
    spec = LaunchSpec(model="/m", dump=DUMP, flags=tuple(flag.split()))
    with pytest.raises(UsageError, match=r"spreads the rows|several engines"):
        plan(spec, engine)
    plan(msgspec.structs.replace(spec, dump=None), engine)


def test_tensor_parallelism_is_no_scattering(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_CPU_OMP_THREADS_BIND", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3, 4})
    made = plan(LaunchSpec(model="/m", dump=DUMP, flags=("--tp", "2")), engine)
    assert made.env["SGLANG_CPU_OMP_THREADS_BIND"] == "0,1|2,3"
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {5})
    made = plan(LaunchSpec(model="/m", dump=DUMP, flags=("--tp-size=2",)), engine)
    assert made.env["SGLANG_CPU_OMP_THREADS_BIND"] == "5|5"
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0-3|4-7")
    made = plan(LaunchSpec(model="/m", dump=DUMP, flags=("--tp-size=2",)), engine)
    assert "SGLANG_CPU_OMP_THREADS_BIND" not in made.env


def test_chunks_are_refused_unless_allowed(engine: Engine) -> None:
    spec = LaunchSpec(model="/m", dump=DUMP, flags=("--chunked-prefill-size", "16"))
    with pytest.raises(UsageError, match="cuts a prompt into several passes"):
        plan(spec, engine)
    fixed = flags.given(plan(msgspec.structs.replace(spec, fix=True), engine).argv)
    assert fixed["--chunked-prefill-size"] == "-1"
    allowed = msgspec.structs.replace(spec, dump=msgspec.structs.replace(DUMP, allow_chunked=True), fix=True)
    assert flags.given(plan(allowed, engine).argv)["--chunked-prefill-size"] == "16"
    bare = msgspec.structs.replace(allowed, flags=("--enable-mixed-chunk",), fix=False)
    with pytest.raises(UsageError, match="mixes prefill and decode"):
        plan(bare, engine)


def test_a_running_servers_scattering_is_seen() -> None:
    assert flags.incomplete({"attn_dp_size": 2}) == ["rows are spread over several ranks: leave out --attn-dp-size"]
    (found,) = flags.incomplete({"enable_layernorm_sp": True})
    assert "leave out --enable-layernorm-sp" in found


# The proof.


@pytest.fixture
def record(tmp_path: Path) -> ServerRecord:
    log = tmp_path / "server.log"
    log.write_text(f"before\n{APPLIED}srt/models/llama.py\nafter\n")
    dump = DumpSpec(str(tmp_path / "dumps"), route="plugin")
    (tmp_path / "dumps").mkdir()
    return ServerRecord(
        name="one", pid=1, since_boot=0, create_time=0, argv=(), env={"SGLANG_HS_FILES": "srt/models/llama.py"},
        url="http://x", host="x", port=1, model="/m", python="/p", engine_version=NEW, device="cpu", log=str(log),
        dump=dump, started=time.time(),
    )  # fmt: skip


def publish(record: ServerRecord, **status: object) -> None:
    assert record.dump is not None
    whole = {"time": time.time(), "route": "plugin", **status}
    Path(record.dump.folder, "recorder.json").write_text(json.dumps(whole))


def test_a_server_that_records_is_believed(record: ServerRecord) -> None:
    publish(record)
    (note,) = proof.records(record)
    assert note.text == "the recorder runs, by the route plugin: srt/models/llama.py"


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ("nothing\n", "SGLang did not call it"),
        (f"{FAILED}srt/models/llama.py: looked for x\n", "cannot edit srt/models/llama.py: looked for x"),
        ("[t] Failed to load plugin hsbench from group g\n", "Failed to load plugin hsbench"),
        ("[t] Skipping plugin hsbench (not in SGLANG_PLUGINS)\n", "not in SGLANG_PLUGINS"),
        (f"{APPLIED}srt/models/qwen2.py\n", "not applied"),
    ],
)
def test_a_plug_in_that_was_not_applied_is_an_error(record: ServerRecord, log: str, says: str) -> None:
    Path(record.log).write_text(log)
    publish(record)
    with pytest.raises(NotRecording, match=says):
        list(proof.records(record))


def test_a_recorder_that_never_ran_is_an_error(record: ServerRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "WAIT_S", 0.0)
    with pytest.raises(NotRecording, match="passes through no file that it is in"):
        list(proof.records(record))
    publish(record, time=record.started - 60)
    with pytest.raises(NotRecording, match="does not run"):
        list(proof.records(record))
    with open(record.log, "a", encoding="utf-8") as file:
        file.write("[t] _hs_ recorder is off: no rank sees whole states with --attn-dp-size 2\n")
    with pytest.raises(NotRecording, match="no rank sees whole states with --attn-dp-size 2"):
        list(proof.records(record))


def test_another_route_than_the_one_chosen_is_an_error(record: ServerRecord) -> None:
    publish(record, route="patch")
    with pytest.raises(NotRecording, match="records by the route patch, not by plugin"):
        list(proof.records(record))


def test_what_records_nothing_is_not_asked(record: ServerRecord) -> None:
    assert list(proof.records(msgspec.structs.replace(record, dump=None))) == []
