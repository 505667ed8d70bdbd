"""Small files: whole or not there, and caches that may be lost."""

import errno
import os
from fnmatch import fnmatch
from pathlib import Path

import pytest

from paribus.files import TEMPORARY, read_cache, temporary, write_atomically, write_cache


def test_a_small_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "format.json"
    write_atomically(path, "old")

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [None, "", '{"a": 1, "b"'])
def test_a_cache_that_is_missing_or_torn_holds_nothing_and_is_made_anew(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "new" / "cache.json"
    if content is not None:
        path.parent.mkdir()
        path.write_text(content)
    assert read_cache(path) == {}
    write_cache(path, {"a": 1})
    assert read_cache(path) == {"a": 1}


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file where the folder would be")
    write_cache(tmp_path / "store" / "cache.json", {"a": 1})
    assert read_cache(tmp_path / "store" / "cache.json") == {}


def test_what_is_taken_for_half_written_is_what_was_named_so_and_no_hidden_file_of_others() -> None:
    assert fnmatch(temporary(Path("tables/masking@tiny.tex")).name, TEMPORARY)
    for name in (".git.keep.me", ".notes.txt.swp", ".run.log.Xa12Bc", ".lock"):
        assert not fnmatch(name, TEMPORARY)
