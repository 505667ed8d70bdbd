"""Data preparation: seconds and memory of each step, beside `datasets.map` and a collator making the same rows."""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from paribus.bench.cli import children_cpu
from paribus.data import corpus, packing, vocabulary
from paribus.data.shards import Shards, cores
from paribus.data.tokenised import tokenised
from paribus.errors import ParibusError
from paribus.spec.data import Corpus, FullSentences, Jsonl, Sotu, WordPiece

SAMPLE_SECONDS = 0.05


def measure(files: list[Path], size: int, length: int, peer: bool, gigabytes: float) -> None:
    """Prepare JSON lines `files`, or without any the embedded corpus; then that text repeated up to `gigabytes`."""
    asked: Corpus = Jsonl(paths=()) if files else Sotu()
    print(f"{cores()} cores; WordPiece of {size:,} ids, FULL-SENTENCES rows of {length}; seconds of processes and all")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _step("corpus", _corpus, asked, files, folder)
        _step("vocabulary", _vocabulary, folder, size)
        ours = _step("tokenise and pack train", _pack, folder, folder, length, ("train",))
        rows = packing.load(folder, "train")
        print(f"  {len(rows):,} rows, {int(rows.lengths.sum()):,} tokens")
        if peer:
            theirs = _step("the same by datasets.map and a collator", _datasets, folder, length)
            if not np.array_equal(np.load(folder / "peer.npy", mmap_mode="r"), rows.tokens):
                raise ParibusError("bench data: the rows of datasets.map are others")
            wall, cpu = (their / our for their, our in zip(theirs, ours, strict=True))
            print(f"  the same rows; datasets takes {wall:.1f}x as long, {cpu:.1f}x the CPU")
        if gigabytes:
            copies, repeated = folder / "repeated.jsonl", folder / "repeated"
            repeated.mkdir()
            _repeat(folder, copies, gigabytes)
            print(f"{copies.stat().st_size / 1e9:.2f} GB of that text")
            _step("corpus", _corpus, Jsonl(paths=()), [copies], repeated)
            _step("tokenise and pack", _pack, repeated, folder, length, corpus.SPLITS)
            rows = packing.load(repeated, "train")
            print(f"  {len(rows):,} rows, {int(rows.lengths.sum()):,} tokens in train")


def _step(name: str, function: Callable[..., None], *arguments: Any) -> tuple[float, float]:
    """Wall and CPU seconds of a call in a process of its own; they and the most memory of all its processes printed."""
    before, start, peak = children_cpu(), time.perf_counter(), 0
    process = get_context("spawn").Process(target=function, args=arguments)
    process.start()
    while process.is_alive():
        with suppress(psutil.NoSuchProcess):
            tree = [found := psutil.Process(process.pid), *found.children(recursive=True)]
            peak = max(peak, sum(_resident(one) for one in tree))
        process.join(SAMPLE_SECONDS)
    if process.exitcode:
        raise ParibusError(f"bench data: {name} ended with code {process.exitcode}")
    wall, cpu = time.perf_counter() - start, children_cpu() - before
    print(f"{wall:7.1f} s wall {cpu:7.1f} s CPU {peak / 2**20:7,.0f} MiB  {name}", flush=True)
    return wall, cpu


def _resident(process: psutil.Process) -> int:
    """Bytes a process holds, what it shares with others counted for each; 0 if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return int(process.memory_info().rss)
    return 0


def _corpus(asked: Corpus, files: list[Path], folder: Path) -> None:
    with Shards(folder / "corpus-shards") as shards:
        corpus.make(asked, files, folder, shards)


def _vocabulary(folder: Path, size: int) -> None:
    vocabulary.make(WordPiece(vocabulary_size=size), corpus.Sentences(folder, "train"), folder)


def _pack(folder: Path, words: Path, length: int, splits: tuple[str, ...]) -> None:
    size, asked = len(vocabulary.load(words)), FullSentences(length=length)
    with Shards(folder / "shards") as shards:
        for split in splits:
            packing.save(packing.rows(asked, tokenised(folder, words, shards, split), size), folder, split, size)


def _repeat(folder: Path, out: Path, gigabytes: float) -> None:
    """The train documents again and again, each time under another number, so that none is a duplicate."""
    with out.open("w") as stream:
        for copy in count():
            for document in corpus.stream(folder, "train"):
                paragraphs = [" ".join(paragraph) for paragraph in document.paragraphs]
                stream.write(json.dumps({"text": "\n".join([f"Copy {copy}.", *paragraphs])}) + "\n")
                if stream.tell() >= gigabytes * 1e9:
                    return


def _datasets(folder: Path, length: int) -> None:
    """The train rows as a user of `datasets` and `transformers` makes them."""
    import datasets
    import transformers

    datasets.disable_progress_bars()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        **{f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "CLS", "SEP", "MASK", "UNK")},
    )

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        sentences = [[s for paragraph in paragraphs for s in paragraph] for paragraphs in batch["paragraphs"]]
        flat = [sentence for document in sentences for sentence in document]
        ids = iter(tokenizer(flat, add_special_tokens=False, return_attention_mask=False)["input_ids"])
        return {"sentences": [[next(ids) for _ in document] for document in sentences]}

    row: list[int] = []

    def group(batch: dict[str, list[Any]], places: list[int]) -> dict[str, list[list[int]]]:
        nonlocal row
        made = []
        for document, place in zip(batch["sentences"], places, strict=True):
            cut = [ids[at : at + length - 2] for ids in document for at in range(0, len(ids), length - 2)]
            for number, ids in enumerate(cut):
                separator = [tokenizer.sep_token_id] if number == 0 and row else []
                if row and len(row) + len(separator) + len(ids) + 1 > length:
                    made.append(row)
                    row, separator = [], []
                row = [*(row or [tokenizer.cls_token_id]), *separator, *ids, tokenizer.sep_token_id]
            if place == last and row:
                made.append(row)
        return {"input_ids": made}

    cache = str(folder / "cache")
    train = datasets.Dataset.from_parquet(str(folder / "documents.parquet"), cache_dir=cache)
    train = train.filter(lambda split: split == "train", input_columns="split")
    last = len(train) - 1
    encoded = train.map(encode, batched=True, batch_size=100, num_proc=cores(), remove_columns=train.column_names)
    grouped = encoded.map(group, batched=True, with_indices=True, remove_columns=encoded.column_names)
    collate = transformers.DataCollatorWithPadding(tokenizer, "max_length", length, return_tensors="np")

    def parts() -> Iterator[Any]:
        for batch in grouped.iter(1000):
            yield collate([{"input_ids": ids} for ids in batch["input_ids"]])["input_ids"].astype(np.uint16)

    np.save(folder / "peer.npy", np.concatenate(list(parts())))
