"""The tokens of a corpus stage, a row group of it at a time, in shards.

shard folder: an array a file, see Tokens; or counts.npy, see `statistics`
"""

from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from paribus.data import corpus, vocabulary
from paribus.data.shards import Shards
from paribus.data.tokens import WORD_GOES_ON, Tokeniser, Tokens
from paribus.data.vocabulary import UNK


def tokenised(corpus_folder: Path, vocabulary_folder: Path, shards: Shards, split: str) -> Iterator[Tokens]:
    """The tokens of a split of a corpus, memory-mapped, a part at a time."""
    for folder in _made(_save, corpus_folder, vocabulary_folder, shards, split):
        yield Tokens(*(np.load(folder / f"{field.name}.npy", mmap_mode="r") for field in fields(Tokens)))


def statistics(corpus_folder: Path, vocabulary_folder: Path, shards: Shards, split: str) -> dict[str, float]:
    """What tokenizers are described by: tokens a word (fertility), bytes of text a token, share of [UNK] tokens."""
    folders = _made(_count, corpus_folder, vocabulary_folder, shards, split)
    tokens, words, size, unknown = sum(np.load(folder / "counts.npy") for folder in folders).tolist()
    return {"tokens_a_word": tokens / words, "bytes_a_token": size / tokens, "unknown_share": unknown / tokens}


def _made(
    keep: Callable[[Tokens, Path], None], corpus_folder: Path, vocabulary_folder: Path, shards: Shards, split: str
) -> Iterator[Path]:
    """The shards of a split, of whose tokens `keep` writes what it needs."""
    make = partial(_shard, keep, corpus_folder, vocabulary_folder, split)
    return shards.of(split, make, corpus.parts(corpus_folder, split))


def _shard(
    keep: Callable[[Tokens, Path], None],
    corpus_folder: Path,
    vocabulary_folder: Path,
    split: str,
    number: int,
    folder: Path,
) -> None:
    keep(_tokeniser(vocabulary_folder)(corpus.part(corpus_folder, number, split)), folder)


@lru_cache(1)
def _tokeniser(folder: Path) -> Tokeniser:
    """One that remembers its words from shard to shard."""
    return Tokeniser(vocabulary.load(folder))


def _save(tokens: Tokens, folder: Path) -> None:
    for field in fields(tokens):
        np.save(folder / f"{field.name}.npy", getattr(tokens, field.name))


def _count(tokens: Tokens, folder: Path) -> None:
    blanks = len(tokens.sizes) - len(tokens.sentences)  # one between two words
    unknown = (tokens.ids & ~WORD_GOES_ON) == UNK
    np.save(folder / "counts.npy", [len(tokens.ids), len(tokens.sizes), tokens.sizes.sum() + blanks, unknown.sum()])
