"""The history of probes: bounded, harmless where it cannot be written, blind to files that are none of its own."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from tests.unit.test_probe_parts import report
from workbench.commands import probe as command
from workbench.paths import state_dir
from workbench.probe import history, run
from workbench.server.events import Note


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def keep(**changes: Any) -> str:
    path = history.keep(report(**changes))
    assert path is not None
    assert path.parent == state_dir() / "probes"
    return path.stem


def prompts() -> list[str]:
    return [found.report.prompt for name in history.names() if (found := history.load(name))]


def test_what_is_kept_is_what_is_loaded() -> None:
    given = report(prompt="[/red] \x1b \u202e 漢字", reference={"tensors": [{"error": None}]}, logits={"error": 0.1})
    path = history.keep(given)
    assert path is not None
    found = history.load(path.stem)
    assert found is not None
    assert found.report == given
    assert path.parent.stat().st_mode & 0o77 == 0  # prompts are nobody else's business


def test_the_newest_comes_first_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "KEPT", 3)
    kept = [keep(prompt=str(number)) for number in range(5)]
    assert history.names() == list(reversed(kept[2:]))
    assert prompts() == ["4", "3", "2"]


def test_what_cannot_be_read_is_skipped() -> None:
    name = keep()
    for broken, content in (("a", b""), ("b", b"{"), ("c", b"[1]"), ("d", b"\xff\xfe"), ("e", b'{"time": 1}')):
        (history.probes_dir() / f"99{broken}.json").write_bytes(content)
        assert history.load(f"99{broken}") is None
    (history.probes_dir() / "99f.json").mkdir()
    (history.probes_dir() / "note.txt").write_text("mine")
    (history.probes_dir() / ".99g.json.1.tmp").write_text("half")
    assert [found for found in history.names() if history.load(found)] == [name]
    assert history.load("gone") is None


def test_a_report_of_another_version_is_read_as_far_as_it_goes() -> None:
    name = keep()
    path = history.probes_dir() / f"{name}.json"
    more = msgspec.json.decode(path.read_bytes())
    more["report"]["new_field"] = [1]
    path.write_bytes(msgspec.json.encode(more))
    assert history.load(name) is not None


def test_no_folder_is_no_harm() -> None:
    assert history.names() == []
    state_dir().parent.mkdir(parents=True, exist_ok=True)
    state_dir().write_text("a file where the folder should be")
    assert history.keep(report()) is None
    assert history.names() == []


def test_a_probe_that_holds_nan_is_kept_too() -> None:
    row = msgspec.structs.replace(report().tensors[0], nan=8, token_norms=(float("nan"), 1.0))
    found = history.load(keep(tensors=(row,), verdict="not_finite"))
    assert found is not None
    assert found.report.verdict == "not_finite"
    assert found.report.tensors[0].token_norms == (None, 1.0)


def test_the_command_keeps_each_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "run", lambda options: iter([Note("using"), report(prompt=options.prompt.text)]))
    done = CliRunner().invoke(command.probe, ["--json", "Hello world"], standalone_mode=False)
    assert done.exception is None
    assert prompts() == ["Hello world"]
