"""Variants: the built-in sets, a user's file, hazards, and what is refused with a reason."""

from pathlib import Path

import pytest

from bench.sweep.hazards import RULES, Hazard, judge, known_names
from bench.sweep.variants import SETS, Variant, ablation, baseline, choose, load_file, load_set, parse
from tests.trees import installed_root
from workbench.errors import UsageError


def one(env: str = "{}", flags: str = "[]", axis: str = "nccl", name: str = "x") -> tuple[Variant, ...]:
    text = f'[[variant]]\nname = "{name}"\naxis = "{axis}"\nenv = {env}\nflags = {flags}\n'
    return parse(text, "test")


@pytest.mark.parametrize("name", SETS)
def test_the_built_in_sets_are_sound(name: str) -> None:
    variants = load_set(name)
    assert variants
    assert choose(variants, unsafe=True).variants == variants


def test_the_flags_of_the_built_in_sets_are_flags_of_sglang() -> None:
    fields = (installed_root() / "srt" / "arg_groups" / "fields").glob("*.py")
    source = "\n".join(path.read_text(encoding="utf-8") for path in fields)
    words = {word for name in SETS for variant in load_set(name) for word in variant.flags if word.startswith("--")}
    for word in words:
        assert f"    {word[2:].replace('-', '_')}: A[" in source, word


@pytest.mark.parametrize(
    ("name", "value", "hazard"),
    [
        ("NCCL_P2P_LEVEL", "PXB", Hazard.SAFE),
        ("NCCL_P2P_LEVEL", "SYS", Hazard.UNSAFE),
        ("NCCL_P2P_LEVEL", "PHB", Hazard.UNSAFE),
        ("NCCL_P2P_LEVEL", "4", Hazard.NEVER),
        ("NCCL_PROTO", "LL", Hazard.SAFE),
        ("NCCL_PROTO", "Simple", Hazard.SAFE),
        ("NCCL_PROTO", "^LL128", Hazard.SAFE),
        ("NCCL_PROTO", "LL128", Hazard.UNSAFE),
        ("NCCL_PROTO", "LL,LL128,Simple", Hazard.UNSAFE),
        ("NCCL_PROTO", "allreduce:LL128", Hazard.UNSAFE),
        ("NCCL_PROTO", "fast", Hazard.NEVER),
        ("NCCL_NTHREADS", "256", Hazard.SAFE),
        ("NCCL_NTHREADS", "64", Hazard.UNSAFE),
        ("NCCL_NTHREADS", "100", Hazard.NEVER),
        ("NCCL_BUFFSIZE", "8388608", Hazard.SAFE),
        ("NCCL_BUFFSIZE", "5000000", Hazard.NEVER),
        ("NCCL_MIN_CTAS", "8", Hazard.SAFE),
        ("NCCL_MIN_CTAS", "65", Hazard.NEVER),
        ("NCCL_LL_BUFFSIZE", "65536", Hazard.NEVER),
        ("NCCL_LL128_BUFFSIZE", "65536", Hazard.NEVER),
        ("NCCL_CHUNK_SIZE", "1", Hazard.NEVER),
        ("NCCL_SHM_DISABLE", "1", Hazard.UNSAFE),
        ("NCCL_GRAPH_MIXING_SUPPORT", "0", Hazard.UNSAFE),
        ("NCCL_DEBUG", "INFO", Hazard.NEVER),
        ("NCCL_P2P_DISABLE", "1", Hazard.SAFE),
        ("NCCL_P2P_DISABLE", "yes", Hazard.NEVER),
        ("NCCL_SYM_CTAS", "4", Hazard.UNSAFE),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "1", Hazard.NEVER),
        ("SGLANG_HS_DUMP_DIR", "/x", Hazard.NEVER),
        ("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE", "1", Hazard.SAFE),
    ],
)
def test_the_hazard_of_a_value(name: str, value: str, hazard: Hazard) -> None:
    assert judge(name, value).hazard is hazard


def test_every_rule_says_why_and_from_where() -> None:
    assert all(rule.why and rule.source for rule in RULES.values())


def test_nccl_knows_more_names_than_the_rules() -> None:
    assert {"NCCL_PROTO", "NCCL_NVLS_NCHANNELS", "NCCL_IB_HCA"} < known_names()
    assert all(name.startswith("NCCL_") for name in known_names() - RULES.keys())


def test_an_unknown_variable_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError) as caught:
        one('{ NCCL_PROTOCOL = "LL" }')
    assert caught.value.message == "NCCL reads no variable NCCL_PROTOCOL"
    assert caught.value.next_step == "did you mean NCCL_PROTO?"


def test_a_variable_that_must_never_be_swept_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match=r"NCCL_LL_BUFFSIZE=1: other sizes hang or give wrong results \(nccl#1739"):
        one('{ NCCL_LL_BUFFSIZE = "1" }')


def test_unsafe_variants_are_left_out_unless_asked_for() -> None:
    variants = load_set("pcie")
    safe = choose(variants)
    left = dict(safe.left_out)
    assert set(left) == {"p2p-phb", "p2p-sys", "proto-ll128"}
    assert "--unsafe" in left["proto-ll128"]
    assert "corrupt" in left["proto-ll128"]
    assert {v.name for v in choose(variants, unsafe=True).variants} - {v.name for v in safe.variants} == set(left)


def test_axes_choose_and_say_what_they_leave_out() -> None:
    chosen = choose(load_set("nvlink"), ["communicator"])
    assert {variant.axis for variant in chosen.variants} == {"communicator"}
    assert ("proto-ll", "axis nccl is not asked for") in chosen.left_out
    with pytest.raises(UsageError, match="no axis is named speed"):
        choose(load_set("nvlink"), ["speed"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": "baseline", "env": '{ NCCL_ALGO = "Ring" }'}, "always there"),
        ({"name": "A b", "env": '{ NCCL_ALGO = "Ring" }'}, "a name is made of"),
        ({}, "changes nothing"),
        ({"axis": "flags", "flags": '["tp", "2"]'}, "flags begin with '--'"),
        ({"axis": "flags", "env": '{ SGLANG_X = "1" }'}, "has no variables"),
        ({"axis": "communicator", "env": '{ NCCL_ALGO = "Ring" }'}, "belong to the axis nccl"),
        ({"axis": "nccl", "flags": '["--x"]'}, "needs a variable of NCCL"),
        ({"axis": "communicator", "env": '{ HF_TOKEN = "abc" }'}, "is a secret"),
        ({"axis": "flags", "flags": '["--port", "1"]'}, "--port is set by hsbench"),
        ({"axis": "speed", "flags": '["--x"]'}, "Invalid enum value 'speed'"),
        ({"env": "{ NCCL_MIN_CTAS = 8 }"}, "Expected `str`, got `int`"),
    ],
)
def test_what_cannot_be_run_is_refused(arguments: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        one(**arguments)


def test_the_same_name_or_the_same_settings_twice_is_refused() -> None:
    table = '[[variant]]\nname = "{}"\naxis = "nccl"\nenv = {{ NCCL_ALGO = "{}" }}\n'
    with pytest.raises(UsageError, match="is there twice"):
        parse(table.format("a", "Ring") + table.format("a", "Tree"), "test")
    with pytest.raises(UsageError, match="is there twice"):
        parse(table.format("a", "Ring") + table.format("b", "Ring"), "test")


def test_a_users_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[[variant]]\nname = "ring"\naxis = "nccl"\nenv = { NCCL_ALGO = "Ring" }\n', encoding="utf-8")
    assert load_file(path) == (Variant(name="ring", axis="nccl", env={"NCCL_ALGO": "Ring"}),)
    path.write_text("[[variant]\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"mine\.toml: "):
        load_file(path)
    with pytest.raises(UsageError, match="cannot read"):
        load_file(tmp_path / "none.toml")


def test_a_misspelt_key_is_said() -> None:
    with pytest.raises(UsageError, match="unknown field `envs`"):
        parse('[[variant]]\nname = "x"\naxis = "nccl"\nenvs = {}\n', "test")


def test_the_ablation_has_each_alone_and_both() -> None:
    env, flags = {"NCCL_PROTO": "Simple"}, ["--num-continuous-decode-steps", "4"]
    variants = {variant.name: variant for variant in ablation(env, flags)}
    assert list(variants) == ["nccl-only", "flag-only", "both"]
    assert (variants["nccl-only"].env, variants["nccl-only"].flags) == (env, ())
    assert (variants["flag-only"].env, variants["flag-only"].flags) == ({}, tuple(flags))
    assert (variants["both"].env, variants["both"].flags) == (env, tuple(flags))
    assert (baseline().env, baseline().flags) == ({}, ())
    with pytest.raises(UsageError, match="needs NCCL variables and flags"):
        ablation({}, flags)
