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
