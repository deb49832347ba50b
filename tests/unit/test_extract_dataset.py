"""Opening data sets, what is refused, the fingerprint, and the preview."""

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset as Library

from probes import source
from tests.unit.chat_support import CHATML, save_tokenizer
from tests.unit.extract_support import LocalWorker
from workbench import cli
from workbench.errors import CheckFailed, HsbenchError, UsageError
from workbench.extract.dataset import Dataset, DatasetSettings, Tally
from workbench.extract.sample import Refused, Sample
from workbench.render.extract import preview_text

CHATS: list[dict[str, Any]] = [
    {"conversations": [{"from": "human", "value": "two plus two"}, {"from": "gpt", "value": "is four"}]},
    {"conversations": [{"from": "human", "value": "hello"}]},
    {"conversations": [{"from": "human", "value": "the cat"}, {"from": "gpt", "value": "sat on the mat " * 20}]},
]
IDS: list[dict[str, Any]] = [
    {"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]},
    {"input_ids": [4, 5], "loss_mask": [0, 0]},
    {"input_ids": [6], "loss_mask": [1, 1]},
    {"input_ids": [], "loss_mask": []},
    {"input_ids": [7, 8, 9], "loss_mask": [0, 0, 1]},
]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_tokenizer(tmp_path / "model", CHATML)


def lines(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def opened(path: Path, **settings: Any) -> Dataset:
    return Dataset.open(DatasetSettings(path=str(path), **settings), LocalWorker("here"))


def test_ids_and_masks_and_what_is_refused(tmp_path: Path) -> None:
    data = opened(lines(tmp_path / "ids.jsonl", IDS))
    assert (data.rows, data.form, data.mask) == (5, "input_ids", "the column loss_mask")
    found = list(data.samples(range(5)))
    assert found[0] == Sample(index=0, input_ids=(1, 2, 3), loss_mask=(0, 1, 1))
    assert found[4] == Sample(index=4, input_ids=(7, 8, 9), loss_mask=(0, 0, 1))
    refused = [row for row in found if isinstance(row, Refused)]
    assert [(row.index, row.kind) for row in refused] == [(1, "no_mask"), (2, "bad_row"), (3, "bad_row")]
    assert ["all zero" in refused[0].reason, "2 entries for 1" in refused[1].reason] == [True, True]
    assert (data.tally.samples, data.tally.tokens, data.tally.trained) == (2, 6, 3)
    data.tally.check()
    assert [row.index for row in data.samples([4, 0])] == [4, 0]


def test_every_kind_of_file(tmp_path: Path) -> None:
    rows = Library.from_list([IDS[0], IDS[4]])
    rows.to_parquet(str(tmp_path / "a.parquet"))
    rows.save_to_disk(str(tmp_path / "disk"))
    lines(tmp_path / "b.jsonl", [IDS[0], IDS[4]])
    (tmp_path / "many").mkdir()
    lines(tmp_path / "many/1.jsonl", [IDS[0]])
    lines(tmp_path / "many/2.jsonl", [IDS[4]])
    arrow = next((tmp_path / "disk").glob("*.arrow"))
    expected = list(opened(tmp_path / "b.jsonl").samples(range(2)))
    for path in (tmp_path / "a.parquet", tmp_path / "disk", tmp_path / "many", arrow):
        assert list(opened(path).samples(range(2))) == expected, path


def test_conversations_are_rendered_cut_and_counted(tmp_path: Path, model: Path) -> None:
    path = lines(tmp_path / "chat.jsonl", CHATS)
    data = opened(path, model=str(model), max_seq_len=60)
    first, second, third = data.samples(range(3))
    assert isinstance(first, Sample)
    assert isinstance(second, Refused)
    assert isinstance(third, Sample)
    assert second.kind == "no_mask"
    assert (third.truncated, len(third.input_ids), third.loss_mask[-1]) == (True, 60, 1)
    assert (data.tally.truncated, data.tally.samples) == (1, 2)
    short = list(opened(path, model=str(model), max_seq_len=5).samples(range(3)))
    assert [row.kind for row in short if isinstance(row, Refused)] == ["cut_mask", "no_mask", "cut_mask"]


def test_the_fingerprint_is_of_contents_tokenizer_and_settings(tmp_path: Path, model: Path) -> None:
    path = lines(tmp_path / "chat.jsonl", CHATS)
    copy = lines(tmp_path / "copy.jsonl", CHATS)
    known = opened(path, model=str(model), max_seq_len=60).fingerprint
    assert opened(copy, model=str(model), max_seq_len=60).fingerprint == known
    others = {
        opened(path, model=str(model), max_seq_len=61).fingerprint,
        opened(path, model=str(save_tokenizer(tmp_path / "m2", CHATML + "\n")), max_seq_len=60).fingerprint,
        opened(lines(tmp_path / "c.jsonl", CHATS[:2]), model=str(model), max_seq_len=60).fingerprint,
    }
    assert len(others | {known}) == 4


def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path, model: Path) -> None:
    (model / "config.json").write_text(json.dumps({"vocab_size": 9}))
    data = opened(lines(tmp_path / "ids.jsonl", [IDS[0], IDS[4]]), model=str(model))
    first, second = data.samples(range(2))
    assert isinstance(first, Sample)
    assert isinstance(second, Refused)
    assert "9 is outside the model's vocabulary of 9" in second.reason


def test_text_trains_on_every_token(tmp_path: Path, model: Path) -> None:
    (row,) = opened(lines(tmp_path / "t.jsonl", [{"text": "the cat"}]), model=str(model)).samples([0])
    assert isinstance(row, Sample)
    assert set(row.loss_mask) == {1}


def bad_files(folder: Path) -> dict[str, tuple[Path, str]]:
    (folder / "broken.jsonl").write_text('{"input_ids": [1]}\n{"input_ids": [1\n')
    (folder / "empty.jsonl").write_text("")
    (folder / "blank.jsonl").write_text("\n  \n")
    (folder / "zipped.jsonl.gz").write_bytes(gzip.compress(b""))
    (folder / "empty.parquet").write_bytes(b"")
    (folder / "nothing.json").write_text("[]")
    (folder / "notes.txt").write_text("x")
    (folder / "none").mkdir()
    (folder / "bad.parquet").write_bytes(b"PAR1 and nothing")
    lines(folder / "columns.jsonl", [{"prompt": "x"}])
    lines(folder / "chat.jsonl", CHATS)
    return {
        "missing": (folder / "no.jsonl", "does not exist"),
        "broken": (folder / "broken.jsonl", "cannot be read"),
        "empty": (folder / "empty.jsonl", r"empty\.jsonl is empty: it has no rows$"),
        "blank": (folder / "blank.jsonl", r"blank\.jsonl is empty: it has no rows$"),
        "zipped": (folder / "zipped.jsonl.gz", r"zipped\.jsonl\.gz is empty: it has no rows$"),
        "table": (folder / "empty.parquet", r"empty\.parquet is empty: it has no rows$"),
        "nothing": (folder / "nothing.json", r"nothing\.json has no rows$"),
        "ending": (folder / "notes.txt", "not a data set by its name"),
        "folder": (folder / "none", "nothing that can be read"),
        "parquet": (folder / "bad.parquet", "cannot be read"),
        "columns": (folder / "columns.jsonl", "the columns prompt"),
        "tokenizer": (folder / "chat.jsonl", "need a tokenizer"),
    }


WRONG = ("missing", "broken", "empty", "blank", "zipped", "table", "nothing", "ending", "folder", "parquet", "columns")


@pytest.mark.parametrize("which", [*WRONG, "tokenizer"])
def test_what_cannot_be_opened_is_told_in_one_line(tmp_path: Path, which: str) -> None:
    path, says = bad_files(tmp_path)[which]
    with pytest.raises(UsageError, match=says) as caught:
        opened(path)
    assert "\n" not in caught.value.message


def test_a_model_without_a_template_or_a_tokenizer(tmp_path: Path) -> None:
    path = lines(tmp_path / "chat.jsonl", CHATS)
    with pytest.raises(HsbenchError, match="no chat template"):
        opened(path, model=str(save_tokenizer(tmp_path / "m", None)))
    (tmp_path / "bare").mkdir()
    with pytest.raises(HsbenchError, match="no usable tokenizer"):
        opened(path, model=str(tmp_path / "bare"))


def test_too_many_refused_rows_are_an_error() -> None:
    tally = Tally()
    tally.add(Refused(0, "no_mask", "nothing to train on"))
    with pytest.raises(CheckFailed, match="1 of 1 rows were refused, such as row 0"):
        tally.check()
    for number in range(1, 19):
        tally.add(Sample(index=number, input_ids=(1,), loss_mask=(1,)))
    tally.check()
    tally.add(Refused(19, "no_mask", "nothing to train on"))
    tally.check()
    tally.add(Refused(20, "no_mask", "nothing to train on"))
    with pytest.raises(CheckFailed, match="3 of 21"):
        tally.check()


def test_the_preview_marks_what_is_trained_on(tmp_path: Path, model: Path) -> None:
    data = opened(lines(tmp_path / "chat.jsonl", CHATS), model=str(model))
    first, second = data.preview([0, 1])
    text = preview_text(first, colour=False)
    assert "<|im_start|>assistant\n⟦is four<|im_end|>⟧\n" in text.replace("[[", "⟦").replace("]]", "⟧")
    assert "\x1b" not in text
    assert "\x1b[1;32mis four<|im_end|>\x1b[0m" in preview_text(first, colour=True)
    assert "refused" in preview_text(second, colour=True)
    ids = opened(lines(tmp_path / "ids.jsonl", IDS))
    assert "1 " in preview_text(next(iter(ids.preview([0]))), colour=False)


def test_a_data_set_does_not_steer_the_terminal(tmp_path: Path, model: Path) -> None:
    chat = [{"from": "human", "value": "x"}, {"from": "gpt", "value": "\x1b[2Jgone"}]
    data = opened(lines(tmp_path / "chat.jsonl", [{"conversations": chat}]), model=str(model))
    assert "\x1b[2J" not in preview_text(next(iter(data.preview([0]))), colour=True)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = lines(tmp_path / "ids.jsonl", IDS)
    assert cli.run(["extract", str(path), "--preview", "2", "--json"]) == 0
    out, err = capsys.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["index"], row["trained"]) for row in rows] == [(0, 2), (1, 0)]
    assert "first 5 rows: 6 tokens, 50.0% trained on, 0 cut, 3 refused" in err
    assert cli.run(["extract", str(path)]) == 2


def test_other_contents_under_the_same_name_and_time_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "rows.jsonl"
    seen = []
    for ids in ([11, 12, 13], [97, 98, 99]):
        path.write_text(json.dumps({"input_ids": ids}) + "\n")
        os.utime(path, (1_700_000_000, 1_700_000_000))
        source._rows.cache_clear()
        (row,) = Dataset.open(DatasetSettings(path=str(path)), LocalWorker("here")).samples([0])
        assert isinstance(row, Sample)
        seen.append(row.input_ids)
    assert seen == [(11, 12, 13), (97, 98, 99)]
