"""The log of the Server mode: an index of lines over a file that changes, a search, and what is drawn."""

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot

from tests.unit.tui_support import HOSTILE, run, until
from workbench.server.secrets import mask_text
from workbench.tui import logindex
from workbench.tui.logindex import Extent, Found, LogIndex, Search, line_text, raw_line
from workbench.tui.widgets.logpane import LogPane, styled


def wait(condition: Callable[[], object], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.005)


class Told:
    """An index of a file, and all that it told."""

    def __init__(self, path: Path) -> None:
        self.all: list[Extent] = []
        self.index = LogIndex(path, self.all.append, every_s=0.02)
        self.index.start()

    @property
    def now(self) -> Extent:
        return self.all[-1]

    def texts(self) -> list[str]:
        extent = self.now
        return [line_text(raw_line(self.index, extent.starts[n], extent.end(n)), ()) for n in range(extent.lines)]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[Path, Told]]:
    path = tmp_path / "server.log"
    told = Told(path)
    yield path, told
    told.index.stop()


def test_index_knows_the_end_first_and_then_every_line(tmp_path: Path) -> None:
    lines = [f"line {n} " + "x" * (n % 97) for n in range(20_000)]
    path = tmp_path / "log"
    path.write_text("\n".join(lines))
    assert path.stat().st_size > 2 * logindex.TAIL
    told = Told(path)
    wait(lambda: told.all and told.now.whole)
    first = told.all[0]
    assert not first.whole
    assert 0 < first.lines < 20_000
    assert told.now.lines == 20_000
    assert told.texts() == lines
    assert first.lines + told.now.front == 20_000
    assert line_text(raw_line(told.index, first.starts[0], first.end(0)), ()) == lines[told.now.front]
    told.index.stop()


def test_index_goes_on_with_what_is_added(watched: tuple[Path, Told]) -> None:
    path, told = watched
    wait(lambda: told.all and told.now.state == "missing")
    path.write_text("one\ntw")
    wait(lambda: told.all and told.texts() == ["one", "tw"])
    with path.open("a") as file:
        file.write("o\nthree\n")
    wait(lambda: told.texts() == ["one", "two", "three"])
    assert {extent.age for extent in told.all if extent.lines} == {1}


def test_index_notices_a_file_that_is_cut_replaced_or_removed(watched: tuple[Path, Told]) -> None:
    path, told = watched
    path.write_text("one\ntwo\n")
    wait(lambda: told.all and told.texts() == ["one", "two"])
    path.write_text("new\n")
    wait(lambda: told.texts() == ["new"])
    other = path.with_name("other")
    other.write_text("other a\nother b\nother c\n")
    os.replace(other, path)
    wait(lambda: told.texts() == ["other a", "other b", "other c"])
    path.unlink()
    wait(lambda: told.now.state == "removed")
    assert told.texts() == ["other a", "other b", "other c"]
    path.write_text("again\n")
    wait(lambda: told.texts() == ["again"])
    assert len({extent.age for extent in told.all if extent.lines}) == 4


def test_index_notices_a_file_that_was_emptied_and_grew_longer_than_before(watched: tuple[Path, Told]) -> None:
    path, told = watched
    path.write_text("aaa\nbbb\n")
    wait(lambda: told.all and told.texts() == ["aaa", "bbb"])
    path.write_text("other text\nand more\nand more\n")
    wait(lambda: told.texts() == ["other text", "and more", "and more"])


def test_of_a_progress_bar_the_last_state_is_shown_and_of_a_long_line_the_beginning(watched: tuple[Path, Told]) -> None:
    path, told = watched
    bar = "".join(f"\rLoading: {n} of 20000" for n in range(20_001))
    path.write_text(f"{bar}\n{'long ' * 100_000}\n\x1b[31mred\x1b[0m\n")
    wait(lambda: told.all and told.now.lines == 3)
    texts = told.texts()
    assert texts[0] == "Loading: 20000 of 20000"
    assert texts[1].startswith("long long")
    assert len(texts[1]) == logindex.LINE_CHARS
    assert texts[2] == "red"


def test_a_secret_is_hidden_also_where_a_long_line_is_cut() -> None:
    secret = "correct-horse"
    raw = b"x " * (logindex.LINE_CHARS // 2 - 2) + secret.encode() + b" end"
    assert "corre" not in line_text(raw, (secret,))
    assert line_text(b"key correct-horse hf_abcdefghijkl", (secret,)) == "key *** ***"
    assert line_text(b"api_key=" + b"a" * 60_000 + b" end", ()) == "api_key=*** end"
    assert line_text(b"a" * 60_000, ()) == "a" * logindex.LINE_CHARS


@pytest.mark.parametrize(
    "line",
    [
        "api_key='abcdefgh'", "db_password: hunter22", "MY_SECRET_X=abc", "hf-token abcdefgh", "Bearer abcdefgh",
        "https://user:pw@host/x", "GET /x?sig=abc&Signature=def", "?x-amz-credential=abc", "hf_abcdefghijk",
        "sk-abcdefghijk",
    ],
)  # fmt: skip
def test_whatever_the_masking_hides_is_hidden_here(line: str) -> None:
    assert mask_text(line) != line
    assert line_text(line.encode(), ()) == mask_text(line)


@pytest.mark.parametrize("words", ["needle", "Needle", "a.b[", "ü"])
def test_search_finds_the_lines_that_hold_the_words(tmp_path: Path, words: str) -> None:
    kinds = ["hay", "a needle", "two needle needle", "NEEDLE", "Needle", "a.b[", "axb", "für", "\x1b[1mneedle\x1b[0m"]
    lines = [f"{kinds[n % len(kinds)]} {'x' * (n % 53)}" for n in range(20_000)]
    path = tmp_path / "log"
    path.write_text("".join(f"{line}\n" for line in lines))
    insensitive = words == words.lower()
    expected = [n for n, line in enumerate(lines) if words in (line.lower() if insensitive else line)]
    found: list[Found] = []
    told = Told(path)
    search = Search(told.index, words, found.append)
    wait(lambda: told.all and told.now.whole)
    search.feed(told.now)
    wait(lambda: found and found[-1].done)
    assert list(found[-1].lines) == expected
    search.stop()
    told.index.stop()


def test_search_goes_on_as_the_log_grows_and_finds_nothing_in_colours(watched: tuple[Path, Told]) -> None:
    path, told = watched
    path.write_text("\x1b[31mcolour\x1b[0m\nstate 31m\rlast state\n31m here\n")
    wait(lambda: told.all and told.now.lines == 3)
    found: list[Found] = []
    search = Search(told.index, "31m", found.append)
    search.feed(told.now)
    wait(lambda: found and found[-1].done)
    assert list(found[-1].lines) == [2]
    with path.open("a") as file:
        file.write("nothing\n31m again\n")
    wait(lambda: told.now.lines == 5)
    search.feed(told.now)
    wait(lambda: found[-1].total == 2)
    assert list(found[-1].lines) == [2, 4]
    assert (found[-1].near(0), found[-1].near(3), found[-1].near(5)) == (0, 1, 1)
    search.stop()


class PaneApp(App[None]):
    """A log and nothing else."""

    def compose(self) -> ComposeResult:
        yield LogPane(id="log")


def seen(pilot: Pilot[None]) -> list[str]:
    pane = pilot.app.query_one(LogPane)
    return [pane.render_line(y).text.rstrip() for y in range(pane.size.height)]


async def opened(pilot: Pilot[None], path: Path, lines: int) -> LogPane:
    pane = pilot.app.query_one(LogPane)
    pane.open(path)
    pane.focus()
    await until(pilot, lambda: pane.extent.whole and pane.extent.lines == lines)
    return pane


def test_pane_follows_until_somebody_scrolls_up(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {n}\n" for n in range(50_000)))

    async def scenario() -> None:
        async with PaneApp().run_test(size=(60, 10)) as pilot:
            pane = await opened(pilot, path, 50_000)
            assert seen(pilot)[-1] == "line 49999"
            with path.open("a") as file:
                file.write("news\n")
            await until(pilot, lambda: seen(pilot)[-1] == "news")
            await pilot.press("pageup")
            assert not pane.following
            held = seen(pilot)
            with path.open("a") as file:
                file.write("more\n")
            await until(pilot, lambda: pane.extent.lines == 50_002)
            assert seen(pilot) == held
            await pilot.press("g")
            await until(pilot, lambda: seen(pilot)[0] == "line 0")
            await pilot.press("end")
            await until(pilot, lambda: pane.following)
            assert seen(pilot)[-1] == "more"

    run(scenario())


def test_pane_shows_the_rest_of_long_lines_and_that_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("0123456789" * 8 + "\n" + "short\n")

    async def scenario() -> None:
        async with PaneApp().run_test(size=(40, 10)) as pilot:
            pane = await opened(pilot, path, 2)
            width = pane.size.width
            assert seen(pilot)[0] == ("0123456789" * 8)[: width - 1] + "→"
            await pilot.press("right")
            await until(pilot, lambda: seen(pilot)[0].startswith("6789"))
            assert seen(pilot)[1] == ""
            await pilot.press("left")
            await until(pilot, lambda: seen(pilot)[1] == "short")

    run(scenario())


def test_pane_goes_from_hit_to_hit(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"{'an error' if n % 1000 == 7 else 'fine'} {n}\n" for n in range(10_000)))

    async def scenario() -> None:
        async with PaneApp().run_test(size=(60, 10)) as pilot:
            pane = await opened(pilot, path, 10_000)
            pane.look_for("error")
            await until(pilot, lambda: pane.found is not None and pane.found.done and pane.hit is not None)
            assert pane.found is not None
            assert (pane.found.total, pane.hit) == (10, 9)
            pane.next_hit(1)
            await pilot.pause()
            await until(pilot, lambda: pane.present() == 7)
            assert "an error 7" in seen(pilot)
            pane.next_hit(-1)
            assert pane.present() == 9007
            pane.look_for("")
            assert not pane.next_hit(1)

    run(scenario())


def test_pane_survives_hostile_lines_and_a_file_that_goes_away(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(f"{HOSTILE}\n".encode() + b"\xff\xfe\x00 bytes\n\n[/red]\n")

    async def scenario() -> None:
        async with PaneApp().run_test(size=(70, 10)) as pilot:
            pane = await opened(pilot, path, 4)
            assert seen(pilot)[0].startswith("[/red] [bold]x[/]")
            assert "\\u202e" in seen(pilot)[0]
            assert "\\x00 bytes" in seen(pilot)[1]
            pane.look_for("[/red]")
            await until(pilot, lambda: pane.found is not None and pane.found.total == 2)
            path.unlink()
            await until(pilot, lambda: pane.extent.state == "removed")
            path.write_text("")
            await until(pilot, lambda: pane.extent.lines == 0)
            for width in (5, 1, 80):
                await pilot.resize_terminal(width, 3)
            pane.open(None)
            await pilot.pause()
            await until(pilot, lambda: "".join(seen(pilot)) == "")

    run(scenario())


def test_levels_and_hits_are_marked_without_changing_the_words() -> None:
    line = "[2026-01-01 10:00:00 TP0] RuntimeError: [/red] broken"
    text = styled(line, "broken", True)
    assert text.plain == line
    assert {str(span.style) for span in text.spans} == {"red", "bold", "dim", "bold reverse underline"}
    assert not styled("all is well", "", False).spans
    assert re.search("yellow", str(styled("a warning", "", False).spans))
