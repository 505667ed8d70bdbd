"""A corpus in shards gives what it gives in one piece, whoever makes them however often killed; memory is flat."""

import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import paribus
from paribus.data import corpus, packing, shards, vocabulary
from paribus.data.document import Document
from paribus.data.tokenised import statistics, tokenised
from paribus.data.tokens import Tokeniser
from paribus.data.vocabulary import Vocabulary
from paribus.spec.data import (
    DocSentences,
    FullSentences,
    Jsonl,
    Packing,
    SegmentPairs,
    SentencePairs,
    WordPiece,
)

FORMATS: list[Packing] = [
    FullSentences(length=48),
    DocSentences(length=48),
    SegmentPairs(length=48),
    SentencePairs(length=48),
]


def write(path: Path, documents: Sequence[Document], copies: int = 1) -> Path:
    """The documents as JSON lines, each copy of one under a number of its own."""
    with path.open("w") as stream:
        for copy in range(copies):
            for document in documents:
                text = f"Copy {copy}.\n" + "\n".join(map(" ".join, document.paragraphs))
                stream.write(json.dumps({"text": text}) + "\n")
    return path


def prepare(file: Path, words: Path, out: Path, workers: int = 1, packing_: Packing = FORMATS[0]) -> None:
    """A corpus and its rows in `out`; what is in out/shards is not made again."""
    out.mkdir(exist_ok=True)
    size = len(vocabulary.load(words))
    with shards.Shards(out / "shards", workers) as made:
        corpus.make(Jsonl(paths=()), [file], out, made)
        for split in corpus.SPLITS:
            packing.save(packing.rows(packing_, tokenised(out, words, made, split), size), out, split, size)
        parts = packing.words(tokenised(out, words, made, "test"), size, packing_.length)
        packing.save(parts, out, "test.words", size)


def results(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def words(documents: list[Document], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a vocabulary."""
    folder = tmp_path_factory.mktemp("words")
    sentences = [sentence for document in documents for sentence in document.sentences]
    vocabulary.make(WordPiece(vocabulary_size=512), sentences, folder)
    return folder


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of two or three documents."""
    monkeypatch.setattr(corpus, "SHARD", 2**14)


@pytest.mark.parametrize("tokens", [None, 9000])
@pytest.mark.parametrize("cuts", [(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11), (5,), (0, 3, 3, 12)])
@pytest.mark.parametrize("packing_", FORMATS, ids=lambda packing: packing.kind)
def test_rows_do_not_depend_on_where_shards_end(
    packing_: Packing, cuts: tuple[int], tokens: int | None, documents: list[Document], vocabulary: Vocabulary
) -> None:
    parts = [Tokeniser(vocabulary)(documents[a:b]) for a, b in pairwise([0, *cuts, 12])]
    found = list(packing.rows(packing_, parts, len(vocabulary), tokens))
    whole = packing.pack(packing_, documents[:12], vocabulary, tokens)
    assert len(whole) > 100
    for name, array in whole.arrays.items():
        assert np.array_equal(np.concatenate([part.arrays[name] for part in found]), array)


def test_rows_do_not_depend_on_shards_or_workers(
    documents: list[Document], words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "a.jsonl", documents)
    prepare(file, words, tmp_path / "whole")
    assert len(list((tmp_path / "whole" / "shards").glob("corpus.*"))) == 1
    monkeypatch.setattr(corpus, "SHARD", 2**14)
    prepare(file, words, tmp_path / "one")
    prepare(file, words, tmp_path / "two", workers=2)
    one, two, whole = (results(tmp_path / name) for name in ("one", "two", "whole"))
    assert len(list((tmp_path / "two" / "shards").glob("corpus.*"))) > 5
    assert one == two
    one.pop("documents.parquet")
    whole.pop("documents.parquet")
    assert one == whole
    groups = pq.ParquetFile(tmp_path / "two" / "documents.parquet")
    assert all(len(groups.read_row_group(n)["split"].unique()) == 1 for n in range(groups.num_row_groups))
    for split in corpus.SPLITS:
        assert corpus.load(tmp_path / "one", split) == corpus.load(tmp_path / "whole", split)


def test_tokenizers_are_described_by_what_a_text_costs(documents: list[Document], words: Path, tmp_path: Path) -> None:
    prepare(write(tmp_path / "a.jsonl", [*documents, Document("a", (("The 中 é.",),))]), words, tmp_path / "out")
    sentences = list(corpus.Sentences(tmp_path / "out", "train"))
    ids = [id for encoded in vocabulary.load(words).encode_all(sentences) for id in encoded.ids]
    with shards.Shards(tmp_path / "counts", 1) as made:
        assert statistics(tmp_path / "out", words, made, "train") == {
            "tokens_a_word": len(ids) / sum(len(sentence.split()) for sentence in sentences),
            "bytes_a_token": sum(len(sentence.encode()) for sentence in sentences) / len(ids),
            "unknown_share": ids.count(vocabulary.UNK) / len(ids),
        }
    assert vocabulary.UNK in ids


class Killed(BaseException):
    """What stands for SIGKILL in one process."""


def test_a_stage_that_is_killed_at_any_shard_ends_in_the_same_bits(
    documents: list[Document], words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: None
) -> None:
    file = write(tmp_path / "a.jsonl", documents[:12])
    prepare(file, words, tmp_path / "undisturbed")
    sync, out, seen = shards.sync_to_disk, tmp_path / "killed", set()

    def killed_once_a_shard(path: Path) -> None:
        if path.suffix == ".npy" and path.parent.name not in seen:
            seen.add(path.parent.name)
            raise Killed
        sync(path)

    monkeypatch.setattr(shards, "sync_to_disk", killed_once_a_shard)
    kills = 0
    while True:
        try:
            prepare(file, words, out)
            break
        except Killed:
            kills += 1
            assert kills < 100
    assert kills == len(list((out / "shards").glob("[!.]*"))) > 10
    assert results(out) == results(tmp_path / "undisturbed")


@pytest.mark.drill
def test_a_stage_whose_processes_are_killed_ends_in_the_same_bits(
    documents: list[Document], words: Path, tmp_path: Path, small: None
) -> None:
    file = write(tmp_path / "a.jsonl", documents, 10)
    prepare(file, words, tmp_path / "undisturbed")
    out = tmp_path / "killed"
    arguments = f"sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_streaming as t"
    call = f"t.prepare(*map(t.Path, {[str(path) for path in (file, words, out)]!r}), workers=2)"
    environment = {**os.environ, "PYTHONPATH": str(Path(paribus.__file__).parents[1])}
    kills = 0
    for shards_more in (1, 7, 20, 40, 60, 90, 10**6):
        child = subprocess.Popen(
            [sys.executable, "-c", f"import sys; {arguments}; t.corpus.SHARD = 2**14; {call}"], env=environment
        )
        while child.poll() is None and len(list((out / "shards").glob("[!.]*"))) < shards_more:
            time.sleep(0.002)
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
            kills += 1
        child.wait()
    assert child.returncode == 0 and kills >= 4
    assert results(out) == results(tmp_path / "undisturbed")


def test_memory_does_not_grow_with_the_corpus(
    documents: list[Document], words: Path, tmp_path: Path, small: None
) -> None:
    peaks = []
    for copies in (1, 8):
        file = write(tmp_path / f"{copies}.jsonl", documents[:12], copies)
        prepare(file, words, tmp_path / f"warm-{copies}")  # imports, tables
        before = pa.default_memory_pool().max_memory()
        tracemalloc.start()
        prepare(file, words, tmp_path / f"{copies}")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert pa.default_memory_pool().max_memory() == before or copies == 1
    text = [(tmp_path / f"{copies}.jsonl").stat().st_size for copies in (1, 8)]
    assert text[1] > 7 * text[0]
    assert peaks[1] < 1.3 * peaks[0]
