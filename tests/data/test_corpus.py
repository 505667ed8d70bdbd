"""Any source to documents, split by document."""

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.data.corpus import SPLITS, assign_splits, load, make, texts, to_document
from paribus.data.shards import Shards
from paribus.errors import DataError
from paribus.spec.data import Corpus, Jsonl, Parquet, Sotu, TextFiles

TEXTS = [f"The year {year} was good. It was long.\nThe harvest of {year} fed us all." for year in range(1800, 1830)]


def jsonl(path: Path, found: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in found))
    return path


def made(
    corpus: Corpus, files: list[Path], out: Path, workers: int = 1
) -> tuple[dict[str, int], dict[str, list[Any]]]:
    out.mkdir()
    with Shards(out / "shards", workers) as shards:
        counts = make(corpus, files, out, shards)
    return counts, {split: load(out, split) for split in SPLITS}


def test_documents_are_split_and_counted(tmp_path: Path) -> None:
    counts, splits = made(Jsonl(paths=()), [jsonl(tmp_path / "a.jsonl", [*TEXTS, TEXTS[3], " "])], tmp_path / "out")
    assert counts == {"train": 24, "validation": 3, "test": 3, "sentences": 90, "words": 30 * 15, "duplicates": 1}
    assert {split: len(found) for split, found in splits.items()} == {"train": 24, "validation": 3, "test": 3}
    whole = {document for found in splits.values() for document in found}
    assert whole == {to_document(text, "rules") for text in TEXTS}


def test_the_split_does_not_depend_on_the_order_or_format_of_the_files(tmp_path: Path) -> None:
    one = jsonl(tmp_path / "a.jsonl", TEXTS)
    backwards = tmp_path / "b.jsonl.gz"
    backwards.write_bytes(gzip.compress(jsonl(tmp_path / "c", TEXTS[::-1]).read_bytes()))
    table = tmp_path / "d.parquet"
    pl.DataFrame({"text": TEXTS[5:] + TEXTS[:5]}).write_parquet(table)
    files = []
    for number, text in enumerate(TEXTS):
        files.append(tmp_path / f"{number}.txt")
        files[-1].write_text(text.replace("\n", "\r\n\r\n"), newline="")
    found = [
        made(Jsonl(paths=()), [one], tmp_path / "1"),
        made(Jsonl(paths=()), [backwards], tmp_path / "2"),
        made(Parquet(paths=()), [table], tmp_path / "3"),
        made(TextFiles(paths=()), files, tmp_path / "4"),
    ]
    assert all(other == found[0] for other in found)


def test_fewer_documents_are_the_first_in_the_order_of_their_hash(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "a.jsonl", TEXTS)
    _, few = made(Jsonl(paths=(), documents=10), [file], tmp_path / "few")
    _, fewer = made(Jsonl(paths=(), documents=5), [file], tmp_path / "fewer")
    ids = [{document.id for found in splits.values() for document in found} for splits in (few, fewer)]
    assert len(ids[0]) == 10 and len(ids[1]) == 5 and ids[1] < ids[0]


@given(st.integers(3, 500), st.floats(0.01, 0.3), st.floats(0.01, 0.3))
def test_every_split_has_a_document_and_about_its_share(documents: int, validation: float, test: float) -> None:
    found = assign_splits(documents, validation, test, "c")
    assert len(found) == documents and set(found) == set(SPLITS)
    for split, share in (("validation", validation), ("test", test)):
        assert abs(found.count(split) - share * documents) <= 1


@pytest.mark.parametrize("documents", [0, 1, 2])
def test_too_few_documents_are_refused(documents: int) -> None:
    with pytest.raises(DataError, match=f"c: found {documents} document.* at least 3 are needed"):
        assign_splits(documents, 0.1, 0.1, "c")


def test_shares_that_leave_nothing_to_train_on_are_refused() -> None:
    with pytest.raises(DataError, match="leave none to train on"):
        assign_splits(4, 0.49, 0.49, "c")


def test_text_is_normalised() -> None:
    document = to_document(
        "Cafe\u0301 au\u00ad lait\u200b.\x00 Page one.\x0cPage two.\r\n\r\nA second\tparagraph.\r", "rules"
    )
    assert document.paragraphs == (("Café au lait.", "Page one."), ("Page two.",), ("A second paragraph.",))
    assert to_document(" \n\n ", "rules").paragraphs == ()


def test_with_lines_each_line_is_a_sentence_and_an_empty_one_ends_a_paragraph() -> None:
    text = "One. Two.\n three \n\n\nfour\n"
    assert to_document(text, "lines").paragraphs == (("One. Two.", "three"), ("four",))


def test_a_document_is_known_by_its_sentences_alone() -> None:
    assert to_document("One.  Two.\n\n\nThree.", "rules").id == to_document("One. Two.\nThree.\n", "rules").id


def test_a_line_break_inside_a_paragraph_of_a_text_file_is_only_layout(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes("\ufeffIt was\r\na long year.\r\n\r\nIt ended.".encode())
    assert list(texts(TextFiles(paths=()), [file])) == ["It was a long year.\nIt ended."]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"text": 3}\n', "line 1: no text in field 'text'"),
        (b'{"text": "a"}\n\n{"txt": "b"}\n', r"line 3: no text in field 'text' \(the line has txt\)"),
        (b'{"text": "a"}\n{"text": null}\n', "line 2: no text in field 'text'"),
        (b'{"text": "a"}\nnonsense\n', "line 2: not JSON"),
        (b'{"text": "a"}\n{"text": "caf\xe9"}\n', "line 2: not UTF-8"),
        (b"[1]\n", "line 1: no text in field 'text'"),
        (b'{"text": "\\ud800"}\n', "line 1: half of a surrogate pair"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, content: bytes, expected: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_bytes(content)
    with pytest.raises(DataError, match=f"bad.jsonl, {expected}"):
        list(texts(Jsonl(paths=()), [file]))


@pytest.mark.parametrize(("compression", "ending"), [("gzip", "gz"), ("zstd", "zst")])
def test_compressed_files_that_were_appended_to_are_read_to_their_end(
    tmp_path: Path, compression: str, ending: str
) -> None:
    file = tmp_path / f"a.jsonl.{ending}"
    for text in ("one", "two"):
        buffer = pa.BufferOutputStream()
        with pa.CompressedOutputStream(buffer, compression) as stream:
            stream.write(json.dumps({"text": text}).encode() + b"\n")
        with file.open("ab") as whole:
            whole.write(buffer.getvalue())
    assert list(texts(Jsonl(paths=()), [file])) == ["one", "two"]


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(b'{"text": "some words"}\n' * 1000)[:-20])
    table = tmp_path / "table.parquet"
    pl.DataFrame({"body": ["a", "b"], "text": ["a", None]}).write_parquet(table)
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"caf\xe9")
    for corpus, file, expected in (
        (Jsonl(paths=()), cut, "cut.jsonl.gz: cut short or damaged after line"),
        (Parquet(paths=()), cut, "cut.jsonl.gz: not readable as Parquet"),
        (Parquet(paths=(), text="words"), table, "table.parquet: no text column 'words'; there is body, text"),
        (Parquet(paths=()), table, "table.parquet, row 1: no text in column 'text'"),
        (TextFiles(paths=()), latin, r"latin.txt: not UTF-8 \(byte 3: 0xe9\)"),
    ):
        with pytest.raises(DataError, match=expected):
            list(texts(corpus, [file]))


def test_the_embedded_corpus_is_the_one_its_checksum_names() -> None:
    assert len(list(texts(Sotu(), []))) == 249
    with pytest.raises(DataError, match="are not those of sotu 0.1.2"):
        list(texts(Sotu.model_construct(sha256="0"), []))
