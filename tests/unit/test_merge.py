"""Shards joined into one data set: compared with the same rows written without shards, and broken off at every step."""

import fcntl
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.extract_support import run_record
from tests.unit.merge_support import BAD, OF, ROWS, contents, cut, join, names, write
from tests.unit.verify_support import audit, set_line
from workbench import cli
from workbench.errors import CheckFailed, HsbenchError, Missing, UsageError
from workbench.exitcodes import ExitCode
from workbench.extract import writer
from workbench.extract.index import IndexLine, read_lines
from workbench.extract.job.files import JobFiles
from workbench.extract.merge import refuse_part_of_whole
from workbench.extract.record import FORMATS, Format, save_record
from workbench.extract.watch import run_in

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`shards/` and `whole/` of the same rows, never changed."""
    folder = tmp_path_factory.mktemp("merge")
    cut(folder / "shards", "speculators-v1")
    write(folder / "whole", "speculators-v1")
    return folder


@pytest.fixture
def shards(made: Path, tmp_path: Path) -> Path:
    """Four finished shards to do with as one likes; a copy, so that it costs little."""
    return Path(shutil.copytree(made / "shards", tmp_path / "out"))


def as_whole(made: Path, out: Path) -> None:
    """The folder is what an unsharded run leaves, and nothing of the shards is left beside the job's own files."""
    assert contents(out) == contents(made / "whole")
    assert {path.name for path in out.iterdir()} == {path.name for path in (made / "whole").iterdir()}
    bad = out.with_name(f"{out.name}.quarantine")
    assert dumps(bad) == dumps(made / "whole.quarantine")
    assert [path.name for path in bad.iterdir()] == [f"sample_{BAD}"]
    assert sorted(path.name for path in (out / ".hsbench/shards").iterdir()) == [f"shard_{n}-of-4" for n in range(OF)]
    assert not (out / ".hsbench/merge.json").exists()


def dumps(bad: Path) -> list[str]:
    """What lies in a quarantine, whatever number the recorder gave a dump."""
    return sorted(re.sub(r"req_\d+", "req_N", name) for name in names(bad))


@pytest.mark.parametrize("kind", FORMATS)
def test_it_is_what_an_unsharded_run_leaves(tmp_path: Path, kind: Format) -> None:
    out, whole = cut(tmp_path / "out", kind), write(tmp_path / "whole", kind)
    inodes = inodes_of(out)
    assert len(inodes) == ROWS - 2
    ended = join(out, check=True)
    assert (ended.state, ended.exit_code) == ("done", 0)
    assert ended.message.startswith(f"{ROWS - 2} samples, ")
    assert contents(out) == contents(whole)
    assert inodes_of(out) == inodes, "a sample was written a second time"
    report = audit(out, sample=None)
    assert (report.verdict, report.checked) == ("ok", ROWS - 2), report.problems


@pytest.mark.parametrize("kind", FORMATS)
def test_shards_made_by_other_processes_have_the_checksums_of_the_whole(
    tmp_path: Path, kind: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.count(1000)
    monkeypatch.setattr(writer, "temporary_name", lambda path: path.with_name(f".{path.name}.{next(numbers)}.tmp"))
    out, whole = cut(tmp_path / "out", kind), write(tmp_path / "whole", kind)
    join(out)
    sums = [
        {line.file: line.crc32 for line in read_lines(place) if isinstance(line, IndexLine)} for place in (out, whole)
    ]
    assert sums[0] == sums[1]
    for name, crc in sums[0].items():
        if name:
            assert zlib.crc32((out / name).read_bytes()) == int(crc, 16)
            assert (out / name).read_bytes() == (whole / name).read_bytes()


def inodes_of(folder: Path) -> dict[str, int]:
    """The inode of every sample file by its name."""
    found = [path for part in ("rows_*/data_*", "hidden_states/hs_*") for path in folder.rglob(part)]
    return {path.name: path.stat().st_ino for path in found}


def test_the_arrow_data_set_has_every_row(tmp_path: Path) -> None:
    from datasets import load_from_disk

    out = cut(tmp_path / "out", "speculators")
    join(out)
    held, alone = load_from_disk(str(out)), load_from_disk(str(write(tmp_path / "whole", "speculators")))
    assert held.to_dict() == alone.to_dict()
    assert len(held) == ROWS


def test_watching_and_the_job_find_a_run_that_is_done(made: Path, shards: Path) -> None:
    join(shards)
    as_whole(made, shards)
    seen = run_in(shards).look()
    assert (seen.kind, seen.state, seen.rows, seen.written, seen.quarantined) == ("own", "done", ROWS, ROWS - 2, 1)
    assert seen.tok_s_avg == pytest.approx(4 * 100 / 40.0)
    job = JobFiles(shards).load()
    assert job is not None
    assert (job.settings.out, job.settings.shard) == (str(shards), (0, 1))


def test_a_second_call_says_that_it_is_done(made: Path, shards: Path) -> None:
    first, before = join(shards), contents(shards)
    again = join(shards)
    assert again.message == f"nothing to merge: {first.message}"
    assert contents(shards) == before
    as_whole(made, shards)


def test_the_command(made: Path, shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["extract", "--merge", str(shards), "--check", "--json"]) == ExitCode.OK
    out, _ = capsys.readouterr()
    events = [json.loads(line) for line in out.splitlines()]
    assert (events[0]["text"], events[-1]["state"]) == ("4 shards, 11 rows", "done")
    as_whole(made, shards)
    assert cli.run(["extract", "--merge", str(shards)]) == ExitCode.OK
    out, said = capsys.readouterr()
    assert (out, "nothing to merge" in said) == (f"{shards}\n", True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--merge", "DIR", "data.jsonl"], "--merge DIR does not go with DATA"),
        (["--merge", "DIR", "--shard", "1/4"], "does not go with --shard"),
        (["--merge", "DIR", "--resume", "X"], "does not go with --resume"),
        (["--merge", "no/where"], "there is no folder"),
        (["--merge", "s3://key:secret@bucket/run"], "holds credentials"),
        (["data.jsonl", "--out", "x", "--check"], "--check goes with --merge"),
    ],
)
def test_a_wrong_call_is_one_line(
    tmp_path: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(tmp_path) if argument == "DIR" else argument for argument in arguments]
    assert cli.run(["extract", *given]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 2


def drop(number: int) -> Callable[[Path], None]:
    return lambda out: shutil.rmtree(out / f"shard_{number}-of-4")


def both_dropped(out: Path) -> None:
    drop(1)(out)
    drop(3)(out)


def of_two_divisions(out: Path) -> None:
    write(out / "shard_1-of-2", "speculators-v1", (1, 2))


def copied(out: Path) -> None:
    shutil.rmtree(out / "shard_2-of-4")
    shutil.copytree(out / "shard_0-of-4", out / "shard_2-of-4")


def with_a_foreign_row(out: Path) -> None:
    line = json.loads((out / "shard_1-of-4/index.jsonl").read_text().splitlines()[0])
    with open(out / "shard_0-of-4/index.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def unfinished(out: Path) -> None:
    path = out / "shard_3-of-4/index.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def torn(out: Path) -> None:
    path = out / "shard_3-of-4/index.jsonl"
    path.write_bytes(path.read_bytes()[:-1])


def not_begun(out: Path) -> None:
    (out / "shard_3-of-4/hsbench.json").unlink()


def of_other_blocks(out: Path) -> None:
    changed = json.loads((out / "shard_2-of-4/hsbench.json").read_text())
    changed["states"]["after_block"] = [0, 1, 3]
    (out / "shard_2-of-4/hsbench.json").write_text(json.dumps(changed))


def of_other_data(out: Path) -> None:
    changed = json.loads((out / "shard_2-of-4/hsbench.json").read_text())
    changed["source"]["fingerprint"] = "another"
    (out / "shard_2-of-4/hsbench.json").write_text(json.dumps(changed))


def a_run_of_its_own(out: Path) -> None:
    save_record(out, run_record("speculators-v1", ROWS))


def files_in_the_way(out: Path) -> None:
    (out / "rows_0-2000").mkdir()
    (out / "rows_0-2000/data_3.pt").write_bytes(b"another's")


def linked(out: Path) -> None:
    shutil.move(out / "shard_2-of-4", out.parent / "elsewhere")
    (out / "shard_2-of-4").symlink_to(out.parent / "elsewhere")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (drop(1), "1 of 4 shards are missing in OUT: shard_1-of-4"),
        (both_dropped, "2 of 4 shards are missing in OUT: shard_1-of-4, shard_3-of-4"),
        (not_begun, "1 of 4 shards are missing in OUT: shard_3-of-4"),
        (of_two_divisions, "shards of several divisions: shard_1-of-2, shard_0-of-4"),
        (copied, "shard_2-of-4 holds the rows of shard 0/4, so it overlaps shard_0-of-4"),
        (with_a_foreign_row, "shard_0-of-4 holds rows of shard_1-of-4: 1"),
        (unfinished, "shard_3-of-4 has 1 of 2 rows to go"),
        (torn, "shard_3-of-4 has 1 of 2 rows to go"),
        (of_other_blocks, "shard_2-of-4 is of another run than shard_0-of-4: blocks: [0, 1, 2], now [0, 1, 3]"),
        (of_other_data, "shard_2-of-4 is of another run than shard_0-of-4: data set or tokenizer"),
        (a_run_of_its_own, "OUT is of a run already, and beside it lie shard_0-of-4, shard_1-of-4"),
        (files_in_the_way, "OUT holds more than shards: rows_0-2000"),
        (linked, "shard_2-of-4 is a link"),
    ],
)
def test_what_is_no_whole_is_refused_by_name(shards: Path, spoil: Callable[[Path], None], words: str) -> None:
    spoil(shards)
    before = names(shards)
    with pytest.raises(UsageError) as refused:
        join(shards)
    assert words in refused.value.message.replace(str(shards), "OUT")
    assert refused.value.next_step
    assert before == {name for name in names(shards) if not name.endswith(".hsbench/lock")}


def cut_off(out: Path) -> None:
    os.truncate(out / "shard_1-of-4/rows_0-2000/data_9.pt", 100)


def gone(out: Path) -> None:
    (out / "shard_1-of-4/rows_0-2000/data_9.pt").unlink()


def a_stray(out: Path) -> None:
    shutil.copy(out / "shard_1-of-4/rows_0-2000/data_9.pt", out / "shard_1-of-4/rows_0-2000/data_77.pt")


def another_name(out: Path) -> None:
    set_line(out / "shard_1-of-4", 9, file="rows_0-2000/data_1.pt")


def damaged_index(out: Path) -> None:
    path = out / "shard_1-of-4/index.jsonl"
    path.write_text("{\n" + path.read_text())


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (cut_off, "shard_1-of-4/rows_0-2000/data_9.pt has 100 bytes, the index says"),
        (gone, "shard_1-of-4/rows_0-2000/data_9.pt is missing"),
        (a_stray, "shard_1-of-4/rows_0-2000/data_77.pt is a sample of no row"),
        (another_name, "shard_1-of-4/rows_0-2000/data_1.pt is no file of row 9"),
        (damaged_index, "index.jsonl, line 1"),
    ],
)
def test_files_that_are_not_as_the_index_says_are_refused(
    shards: Path, spoil: Callable[[Path], None], words: str
) -> None:
    spoil(shards)
    with pytest.raises(CheckFailed, match=r"shard_1-of-4") as refused:
        join(shards)
    assert words in refused.value.message
    assert not list(shards.glob("rows_*"))


def test_a_changed_byte_is_seen_with_check_only(made: Path, shards: Path) -> None:
    path = shards / "shard_1-of-4/rows_0-2000/data_9.pt"
    held = bytearray(path.read_bytes())
    held[len(held) // 2] ^= 1
    path.write_bytes(held)
    with pytest.raises(CheckFailed, match=r"1 files .* shard_1-of-4/rows_0-2000/data_9.pt has the checksum"):
        join(shards, check=True)
    assert not list(shards.glob("rows_*"))
    join(shards)
    assert [problem.file for problem in audit(shards, sample=None).problems if problem.check == "checksum"] == [
        "rows_0-2000/data_9.pt"
    ]


def test_a_whole_is_checked_too(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    join(shards)
    call = ["extract", "--merge", str(shards), "--check"]
    assert cli.run(call) == ExitCode.OK
    assert "9 files have the checksum of their index" in capsys.readouterr().err
    for row in (4, 9):
        path = shards / f"rows_0-2000/data_{row}.pt"
        held = bytearray(path.read_bytes())
        held[len(held) // 2] ^= 1
        path.write_bytes(held)
    assert cli.run(call) == ExitCode.CHECK_FAILED
    said = capsys.readouterr().err
    assert "2 files are not as they were written" in said
    assert "rows_0-2000/data_4.pt has the checksum" in said
    assert "rows_0-2000/data_9.pt has the checksum" in said
    assert f"hsbench extract --resume {shards} makes them again" in said
    path.unlink()
    assert cli.run(call) == ExitCode.CHECK_FAILED
    assert "rows_0-2000/data_9.pt is missing" in capsys.readouterr().err


@pytest.mark.parametrize("name", [".", "shard_2-of-4"])
def test_a_job_that_writes_is_not_disturbed(shards: Path, name: str) -> None:
    (shards / name / ".hsbench").mkdir(exist_ok=True)
    with open(shards / name / ".hsbench/lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="a job already writes into"):
            join(shards)
    join(shards)


def test_the_caller_may_hold_the_lock(made: Path, shards: Path) -> None:
    with JobFiles(shards).locked():
        join(shards, locked=True)
    as_whole(made, shards)


def test_fewer_rows_than_shards(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for number in range(3):
        write(out / f"shard_{number}-of-5", "speculators-v1", (number, 5), rows=3)
    (out / "shard_4-of-5/.hsbench").mkdir(parents=True)  # a job that found no row of its own
    join(out)
    assert contents(out) == contents(write(tmp_path / "whole", "speculators-v1", rows=3))
    assert not list(out.glob("shard_*"))


def test_files_of_another_origin_stay(made: Path, shards: Path) -> None:
    (shards / "slurm-17.out").write_text("said")
    (shards / "shard_1-of-4/notes.txt").write_text("mine")
    join(shards)
    assert (shards / "shard_1-of-4/notes.txt").read_text() == "mine"
    assert (shards / "slurm-17.out").read_text() == "said"
    assert names(shards / "shard_1-of-4") == {"notes.txt"}
    assert join(shards).state == "done"


class Broken(Exception):
    """Stands for the process being gone."""


def breaking(monkeypatch: pytest.MonkeyPatch, after: int) -> Iterator[int]:
    """Let so many changes of the file system happen and none more; yields how many there were."""
    count = 0

    def spied(real: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            if count >= after:
                raise Broken
            count += 1
            return real(*arguments, **options)

        return change

    with monkeypatch.context() as patched:
        for name in ("replace", "unlink", "rmdir", "mkdir"):
            patched.setattr(os, name, spied(getattr(os, name)))
        patched.setattr(Path, "unlink", spied(Path.unlink))
        yield count
    yield count


def merge_broken(out: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> bool:
    """Whether it was over before so many changes were made."""
    steps = breaking(monkeypatch, after)
    next(steps)
    try:
        join(out)
    except Broken:
        return False
    finally:
        next(steps)
    return True


def test_broken_off_between_any_two_steps_the_same_call_goes_on(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for after in range(200):
        out = Path(shutil.copytree(made / "shards", tmp_path / f"{after}" / "out"))
        over = merge_broken(out, monkeypatch, after)
        join(out)
        as_whole(made, out)
        shutil.rmtree(out.parent)
        if over:
            assert after > 60
            return
    raise AssertionError("it makes more changes than expected")


def test_broken_off_again_and_again_it_comes_to_an_end(
    made: Path, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for round_ in range(100):
        if merge_broken(shards, monkeypatch, 5 + round_):
            break
        if (shards / "hsbench.json").exists():  # whoever sees a run sees all of it
            assert contents(shards) == {**contents(shards), **contents(made / "whole")}
    as_whole(made, shards)


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.unit.merge_support import join
real, count = os.replace, 0
def replace(*arguments):
    global count
    count += 1
    if count == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)
os.replace = replace
join(Path(sys.argv[1]))
"""


def test_killed_in_the_middle_nothing_is_lost(made: Path, shards: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(shards), "6"], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert 0 < len(list(shards.glob("rows_*/*.pt"))) < ROWS - 2
    with pytest.raises(UsageError, match="is being merged"):
        refuse_part_of_whole(shards / "shard_1-of-4")
    (shards / "shard_2-of-4/rows_0-2000/.data_2.pt.7.tmp").write_bytes(b"left over")
    join(shards)
    as_whole(made, shards)


def test_a_file_that_is_in_both_places_is_nobodys_guess(made: Path, shards: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(shards), "6"], cwd=ROOT, check=False)
    moved = next(shards.glob("rows_*/*.pt"))
    number = int(moved.stem.rpartition("_")[2])
    shutil.copy(moved, shards / f"shard_{number % OF}-of-4/rows_0-2000" / moved.name)
    with pytest.raises(CheckFailed, match=rf"shard_{number % OF}-of-4/rows_0-2000/{moved.name} is there twice"):
        join(shards)


def test_a_merged_run_takes_no_shard_more(shards: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    refuse_part_of_whole(shards / "shard_1-of-4")
    join(shards)
    data = tmp_path / "data.jsonl"
    data.write_text('{"input_ids": [1, 2]}\n')
    assert cli.run(["extract", str(data), "--out", str(shards), "--shard", "1/4"]) == ExitCode.USAGE
    assert "is a whole already, merged of its shards" in capsys.readouterr().err
    assert not list(shards.glob("shard_*"))


def test_what_the_file_system_refuses_is_one_error(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", str(shards / "index.jsonl"))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(HsbenchError) as raised:
            join(shards)
    assert isinstance(raised.value, Missing)
    assert "No space left" in raised.value.message
    join(shards)


def test_shards_on_another_file_system_are_refused(shards: Path, tmp_path: Path) -> None:
    place = shards / "shard_2-of-4"
    kept = shutil.move(place, tmp_path / "kept")
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place], check=True)
    try:
        shutil.copytree(kept, place, dirs_exist_ok=True)
        with pytest.raises(UsageError, match="shard_2-of-4 lies on another file system"):
            join(shards)
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)
    assert not list(shards.glob("rows_*"))
