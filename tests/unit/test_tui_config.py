"""The app's settings from files."""

from pathlib import Path

import pytest

from workbench.errors import UsageError
from workbench.tui.config import AppSettings, Config, load


def test_no_file_is_no_setting(tmp_path: Path) -> None:
    assert load((tmp_path / "none.toml",)) == Config()


def test_a_later_file_wins_key_by_key(tmp_path: Path) -> None:
    (tmp_path / "user.toml").write_text('[app]\ntheme = "nord"\nascii = true\n[keys]\n"server.stop" = "ctrl+x"\n')
    (tmp_path / "here.toml").write_text('[app]\ntheme = "dracula"\n[keys]\nleave = "Q"\n')
    found = load((tmp_path / "user.toml", tmp_path / "here.toml"))
    assert found.app == AppSettings(theme="dracula", ascii=True)
    assert found.keys == {"server.stop": "ctrl+x", "leave": "Q"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[app\n", "cannot be read"),
        ("[app]\ntheme = 3\n", "theme"),
        ("[app]\nthem = 'x'\n", "them"),
        ("app = 3\n", "app is not a table"),
        ("[colours]\na = 1\n", "colours"),
        ('[keys]\n"server.fly" = "z"\n', "server.fly"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(UsageError, match=words) as caught:
        load((tmp_path / "bad.toml",))
    assert caught.value.next_step


@pytest.mark.parametrize("key", ["x", "X", "f5", "ctrl+x", "exclamation_mark", "ctrl+shift+k", "]"])
def test_a_key_is_taken(tmp_path: Path, key: str) -> None:
    (tmp_path / "good.toml").write_text(f'[keys]\n"probe.compare" = "{key}"\n')
    assert load((tmp_path / "good.toml",)).keys == {"probe.compare": key}


@pytest.mark.parametrize(
    ("name", "key", "words"),
    [
        ("leave", "not a key", "is no key"),
        ("leave", "", "is no key"),
        ("leave", "x", "for server.stop and for leave|for leave and for server.stop"),
        ("help", "1", "for mode server"),
        ("probe.compare", "m", "probe.mark"),
    ],
)
def test_no_key_is_taken_from_another_action(tmp_path: Path, name: str, key: str, words: str) -> None:
    (tmp_path / "bad.toml").write_text(f'[keys]\n"{name}" = "{key}"\n')
    with pytest.raises(UsageError, match=words):
        load((tmp_path / "bad.toml",))
