"""`verify` finds every planted fault, by the check that is for it, and nothing in a data set that is right."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from tests.unit.extract_support import local_pool, run_record, sample, states_of, write_both
from tests.unit.verify_support import audit, build, failed, file_of, plant, set_line
from workbench import cli
from workbench.extract.index import INDEX_FILE
from workbench.extract.record import FORMATS, Format
from workbench.extract.sample import Refused
from workbench.extract.writer import DatasetWriter
from workbench.render.verify import verify_markdown

ROWS = 12


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[Format, Path]:
    folder = tmp_path_factory.mktemp("whole")
    return {kind: build(folder / kind, kind, [sample(n) for n in range(ROWS)]) for kind in FORMATS}


@pytest.fixture
def data(whole: dict[Format, Path], tmp_path: Path) -> Path:
    return shutil.copytree(whole["speculators-v1"], tmp_path / "out")


@pytest.mark.parametrize("kind", FORMATS)
def test_a_right_data_set_is_green(whole: dict[Format, Path], kind: Format) -> None:
    report = audit(whole[kind], sample=None)
    assert not report.problems
    assert (report.verdict, report.samples, report.checked) == ("ok", ROWS, ROWS)
    outcomes = {check.name: check.outcome for check in report.checks}
    assert {name for name, outcome in outcomes.items() if outcome != "ok"} == {"norm"}
    assert report.tokens == sum(10 + n for n in range(ROWS))
    assert [tensor["name"] for tensor in report.tensors] == ["aux 0", "aux 1", "aux 2", "last state"]
    expected = 64**0.5 * 2.0
    assert report.tensors[0]["row_norm"] == pytest.approx(expected, rel=0.1)


def test_shards_that_are_not_joined_are_no_data_set_but_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(2):
        build(tmp_path / f"shard_{number}-of-3", "speculators-v1", [sample(number)])
    (tmp_path / "shard_2-of-3").mkdir()
    assert cli.run(["verify", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path} holds 3 shards of a run, not joined" in said
    assert f"hsbench extract --merge {tmp_path}" in said
    assert f"hsbench verify {tmp_path}/shard_0-of-3 --partial" in said


def test_a_job_that_has_written_nothing_yet_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".hsbench").mkdir()
    (tmp_path / ".hsbench/cluster.jsonl").write_text("")
    assert cli.run(["verify", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path} holds no samples yet" in said
    assert f"next: hsbench watch {tmp_path}" in said


def test_a_truncated_file(data: Path) -> None:
    with open(file_of(data, 5), "rb+") as file:
        file.truncate(1000)
    found = failed(audit(data))
    assert set(found) == {"files"}
    assert "data_5.pt: it has 1000 bytes" in found["files"]


def test_a_file_cut_to_the_same_size(data: Path) -> None:
    path = file_of(data, 5)
    size = path.stat().st_size
    with open(path, "rb+") as file:
        file.truncate(size // 2)
        file.truncate(size)
    assert "files" in failed(audit(data)) or "checksum" in failed(audit(data))


def test_one_flipped_bit(data: Path) -> None:
    content = bytearray(file_of(data, 2).read_bytes())
    content[len(content) // 2] ^= 1
    file_of(data, 2).write_bytes(content)
    assert set(failed(audit(data))) == {"checksum"}


VALUES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "nan": (lambda held: held["hidden_states"][1][3].fill_(float("nan")), "aux 1: 1 of 14 rows hold NaN or Inf"),
    "inf": (lambda held: held["hidden_states"][3][0, 5].fill_(float("inf")), "the last state: 1 of 14 rows hold"),
    "zero": (lambda held: held["hidden_states"][0].zero_(), "aux 0 is all zero"),
    "zero row": (lambda held: held["hidden_states"][0][7].zero_(), "aux 0: 1 of 14 rows are all zero"),
    "constant": (lambda held: held["hidden_states"][2].fill_(1.5), "aux 2 is constant"),
}


@pytest.mark.parametrize("which", VALUES)
def test_bad_values(data: Path, which: str) -> None:
    change, says = VALUES[which]
    plant(data, 4, change)
    found = failed(audit(data))
    assert says in found.pop("values")
    assert set(found) <= {"statistics"}


def test_swapped_files(data: Path) -> None:
    one, other = file_of(data, 1), file_of(data, 2)
    held = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(held)
    found = failed(audit(data))
    assert "not the row's but those of row 2" in found["ids"]
    assert {"ids", "checksum", "source"} <= set(found)


def test_swapped_samples_of_which_the_index_says_nothing(data: Path) -> None:
    one, other = file_of(data, 1), file_of(data, 2)
    held, lines = one.read_bytes(), [json.loads(line) for line in (data / INDEX_FILE).read_text().splitlines()]
    one.write_bytes(other.read_bytes())
    other.write_bytes(held)
    about = {line["index"]: {k: v for k, v in line.items() if k not in ("index", "file")} for line in lines}
    set_line(data, 1, **about[2])
    set_line(data, 2, **about[1])
    with local_pool() as pool:
        record = msgspec.json.decode((data / "hsbench.json").read_bytes(), type=type(run_record("speculators")))
        writer = DatasetWriter(data, record, pool)
        writer.finalise()
        writer.close()
    found = failed(audit(data))
    assert set(found) == {"source"}
    assert "not those of the source's row; those are in the file of row 2" in found["source"]


def test_the_other_side_of_the_norm_is_out_of_the_bands(data: Path) -> None:
    plant(data, 6, lambda held: held["hidden_states"].__setitem__(3, states_of(sample(6))[4]))
    found = failed(audit(data))
    assert set(found) == {"statistics"}
    assert "last state has rows of size" in found["statistics"]


def test_a_mask_of_zeros(data: Path) -> None:
    plant(data, 6, lambda held: held["loss_mask"].zero_(), digests=True)
    found = failed(audit(data))
    assert set(found) == {"mask", "source"}
    assert "all zero" in found["mask"]


@pytest.mark.parametrize(("way", "by"), [("later", 1), ("earlier", -1)])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_shifted_mask(whole: dict[Format, Path], tmp_path: Path, kind: Format, way: str, by: int) -> None:
    data = shutil.copytree(whole[kind], tmp_path / "out")

    def shift(held: dict[str, Any]) -> None:
        held["loss_mask"] = held["loss_mask"].roll(by)

    plant(data, 6, shift, digests=True)
    found = failed(audit(data))
    assert f"shifted by one token, {way}" in found["source"]
    assert set(found) == ({"source", "side files"} if kind == "speculators" else {"source"})


def test_a_mask_of_other_values(data: Path) -> None:
    plant(data, 6, lambda held: held["loss_mask"].mul_(2), digests=True)
    assert "other values than 0 and 1" in failed(audit(data))["mask"]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_wrong_dtype(whole: dict[Format, Path], tmp_path: Path, kind: Format) -> None:
    data = shutil.copytree(whole[kind], tmp_path / "out")

    def widen(held: dict[str, Any]) -> None:
        for name in ("hidden_states", "hidden_state", "aux_hidden_state"):
            if isinstance(held.get(name), list):
                held[name][2] = held[name][2].to(torch.float16)
            elif name in held:
                held[name] = held[name].to(torch.float16)

    plant(data, 3, widen)
    found = failed(audit(data))
    assert set(found) == {"tensors"}
    assert "float16, not bfloat16" in found["tensors"]


def test_too_few_rows_and_too_few_states(data: Path) -> None:
    plant(data, 3, lambda held: held["hidden_states"].__setitem__(1, held["hidden_states"][1][:-1].clone()))
    plant(data, 4, lambda held: held["hidden_states"].pop(0))
    found = failed(audit(data))
    assert "aux 1 has 12 rows for 13 tokens and 1 more" in found["tensors"]


def test_a_row_twice_in_the_index(data: Path) -> None:
    first = (data / INDEX_FILE).read_text().splitlines()[0]
    with open(data / INDEX_FILE, "a") as file:
        file.write(first + "\n")
    found = failed(audit(data))
    assert set(found) == {"duplicates"}
    assert "row 0 is in the index twice" in found["duplicates"]


def test_two_files_for_a_row(data: Path) -> None:
    (data / "rows_2000-4000").mkdir()
    shutil.copy(file_of(data, 0), data / "rows_2000-4000/data_0.pt")
    found = failed(audit(data))
    assert "a second file for row 0" in found["duplicates"]
    assert set(found) == {"duplicates", "strays"}


def test_a_row_that_was_done_again_is_no_duplicate(data: Path, tmp_path: Path) -> None:
    file_of(data, 2).unlink()
    record = msgspec.json.decode((data / "hsbench.json").read_bytes(), type=type(run_record("speculators")))
    with local_pool() as pool:
        writer = DatasetWriter(data, record, pool)
        assert writer.recover().redo == (2,)
        writer.write(sample(2), write_both(tmp_path / "dumps", sample(2)))
        writer.finalise()
        writer.close()
    assert not failed(audit(data))


def test_a_missing_row(data: Path) -> None:
    lines = (data / INDEX_FILE).read_text().splitlines(keepends=True)
    (data / INDEX_FILE).write_text("".join(lines[:7] + lines[8:]))
    found = failed(audit(data))
    assert "1 of 12 rows are missing: 7" in found["rows"]
    assert "data_7.pt: a sample that the index does not know" in found["files"]
    file_of(data, 7).unlink()
    assert set(failed(audit(data))) == {"rows", "side files"}
    partial = audit(data, partial=True)
    assert not failed(partial)


def test_a_missing_file(data: Path) -> None:
    file_of(data, 7).unlink()
    assert "data_7.pt: it is missing" in failed(audit(data))["files"]


def test_stray_files(data: Path) -> None:
    shutil.copy(file_of(data, 0), data / "vocab_mapping.pt")
    found = failed(audit(data))
    assert set(found) == {"strays"}
    assert "vocab_mapping.pt: a file that readers would take for a sample" in found["strays"]
    (data / "vocab_mapping.pt").unlink()
    (data / "notes.txt").write_text("x")
    report = audit(data)
    assert (report.verdict, [p.warning for p in report.problems]) == ("ok", [True])


def test_a_damaged_index_and_torn_last_line(data: Path) -> None:
    with open(data / INDEX_FILE, "ab") as file:
        file.write(b'{"index": 3')
    assert not failed(audit(data))
    content = (data / INDEX_FILE).read_bytes()
    (data / INDEX_FILE).write_bytes(content.replace(b'"written"', b'"writ', 1))
    assert "line 1 is damaged" in failed(audit(data))["index"]


def test_side_files_that_do_not_fit(data: Path, whole: dict[Format, Path], tmp_path: Path) -> None:
    lengths = json.loads((data / "sample_lengths.json").read_text())
    (data / "sample_lengths.json").write_text(json.dumps({**lengths, "3": 99}))
    assert "differs from the index in 3" in failed(audit(data))["side files"]
    arrow = shutil.copytree(whole["speculators"], tmp_path / "arrow")
    shutil.copy(next(whole["speculators"].glob("*.arrow")), tmp_path / "x.arrow")
    next(arrow.glob("*.arrow")).write_bytes(b"no arrow")
    assert "cannot be read" in failed(audit(arrow))["side files"]


def test_no_pickle_is_executed(data: Path, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "executed",))

    torch.save({"input_ids": Evil()}, file_of(data, 3))
    assert "cannot be read" in failed(audit(data))["files"] or "bytes" in failed(audit(data))["files"]
    assert not (tmp_path / "executed").exists()


def test_without_the_source_nothing_is_said_about_it(data: Path, whole: dict[Format, Path], tmp_path: Path) -> None:
    record = json.loads((data / "hsbench.json").read_text())
    source = Path(record["source"]["path"])
    record["source"]["path"] = "/gone.jsonl"
    (data / "hsbench.json").write_text(json.dumps(record))
    for name in ("data_config.json",):
        config = json.loads((data / name).read_text())
        config["data"]["train_data_path"] = "/gone.jsonl"
        (data / name).write_text(json.dumps(config))
    report = audit(data)
    (check,) = (check for check in report.checks if check.name == "source")
    assert (check.outcome, "name it with --source" in check.detail) == ("skipped", True)
    assert not failed(audit(data, source=str(source)))


def test_a_data_set_of_another_program(data: Path) -> None:
    for name in ("hsbench.json", INDEX_FILE):
        (data / name).unlink()
    report = audit(data)
    assert (report.verdict, report.checked, report.format) == ("ok", ROWS, "speculators-v1")
    torch.save(torch.zeros(3), data / "rows_0-2000/data_1.pt")
    assert "holds a Tensor" in failed(audit(data))["files"]


def test_refused_and_quarantined_rows_are_accounted_for(tmp_path: Path) -> None:
    with local_pool() as pool:
        writer = DatasetWriter(tmp_path / "out", run_record("speculators-v1", 3), pool)
        writer.write(sample(0), write_both(tmp_path / "dumps", sample(0)))
        writer.refuse(Refused(1, "no_mask", "nothing to train on"))
        writer.write(sample(2), write_both(tmp_path / "dumps", sample(2), final="post"))
        writer.finalise()
        writer.close()
    report = audit(tmp_path / "out")
    assert report.verdict == "ok"
    (rows,) = (check for check in report.checks if check.name == "rows")
    assert rows.detail == "1 written, 1 refused, 1 quarantined"


def test_the_command_prints_and_exits_by_the_verdict(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["verify", str(data), "--all", "--json", "--workers", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "ok"
    file_of(data, 1).unlink()
    assert cli.run(["verify", str(data), "--workers", "1"]) == 1
    shown = capsys.readouterr().out
    assert "rows_0-2000/data_1.pt: it is missing" in shown
    assert "verdict: failed" in shown
    assert cli.run(["verify", str(data / "none")]) == 2
    assert cli.run(["verify", str(data), "--all", "--sample", "2"]) == 2


def test_the_report_as_markdown(data: Path) -> None:
    file_of(data, 1).unlink()
    text = verify_markdown(audit(data))
    assert text.startswith("# hsbench verify: failed\n")
    assert "| files | failed | rows_0-2000/data_1.pt: it is missing |" in text
    assert "| aux 2, block 2 |" in text
