"""A file is the old one or the new one, whatever happens on the way; one that cannot be read is refused."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from normstorm._shared import files


def test_text_and_bytes(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    files.write_atomically(file, "é\n")
    assert file.read_bytes() == b"\xc3\xa9\n"
    files.write_atomically(str(file), b"\x00\r\n")
    assert file.read_bytes() == b"\x00\r\n" and os.listdir(tmp_path) == ["a.txt"]


def test_a_relative_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files.write_atomically("a.txt", "1")
    assert (tmp_path / "a.txt").read_text() == "1"


def test_the_longest_name_that_is_allowed(tmp_path: Path) -> None:
    file = files.checked("report", tmp_path / ("x" * files.LONGEST_NAME))
    files.write_atomically(file, "1")
    assert file.read_text() == "1"


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("old")

    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os if broken == "fsync" else Path, broken, fail)
    with pytest.raises(OSError, match="no space left"):
        files.write_atomically(file, "new")
    assert file.read_text() == "old" and os.listdir(tmp_path) == ["a.txt"]


def test_the_content_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def noted(name: str, inner: Callable[..., object]) -> Callable[..., object]:
        def call(*given: object) -> object:
            done.append(name)
            return inner(*given)

        return call

    monkeypatch.setattr(os, "fsync", noted("fsync", os.fsync))
    monkeypatch.setattr(Path, "replace", noted("replace", Path.replace))
    files.write_atomically(tmp_path / "a.txt", "1")
    assert done[:2] == ["fsync", "replace"]


def test_several_writers_do_not_meet(tmp_path: Path) -> None:
    file, texts = tmp_path / "a.txt", [str(i) * 100_000 for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: files.write_atomically(file, text), texts))
    assert file.read_text() in texts and os.listdir(tmp_path) == ["a.txt"]


UNREADABLE = {
    "no.toml": (None, r"readable file; got \S+ \(No such file or directory\)"),
    "broken.toml": (b"a = ", r"TOML file; got \S+ \(Invalid value .*\)"),
    "latin.toml": (b"# caf\xe9", r"TOML file; got \S+ \('utf-8' codec .*\)"),
    "deep.toml": (b"a = " + 5000 * b"[", r"TOML file; got \S+ \(nested too deeply\)"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_is_no_toml_file_is_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    content, sentence = UNREADABLE[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"^f: spec must be a {sentence}$"):
        files.toml_table("f: spec", str(tmp_path / name))


def test_other_names_and_a_file_that_is_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^spec must be a readable file; got an empty name \("):
        files.toml_table("spec", "")
    with pytest.raises(ValueError, match=rf"^spec must be a readable file; got {tmp_path} \(Is a directory\)$"):
        files.toml_table("spec", str(tmp_path))
    (tmp_path / "é.toml").write_text("a = 'é'", encoding="utf-8")
    assert files.toml_table("spec", str(tmp_path / "é.toml")) == {"a": "é"}


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no such directory here")
def test_a_directory_that_only_says_that_it_can_be_written_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^run: checkpoint must be a writable file; got /proc/self/a\.ckpt"):
        files.writable("run: checkpoint", Path("/proc/self/a.ckpt"))
