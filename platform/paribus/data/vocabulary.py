"""Text to ids and back to places in the text. Trained by `tokenizers` and `sentencepiece`.

    stage folder: tokenizer.json or tokenizer.model, vocabulary.json (kind, pieces in order of id)

Ids 0 to 4 are always [PAD], [CLS], [SEP], [MASK], [UNK].  Specials are not part of the trained model, so "[MASK]" typed
in a corpus is text.
"""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paribus.errors import DataError
from paribus.spec.data import SentencePieceUnigram, Tokenizer, WordPiece

PAD, CLS, SEP, MASK, UNK = range(5)
SPECIALS = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]")
FIRST_ORDINARY = len(SPECIALS)


@dataclass(frozen=True)
class Encoded:
    """A text in pieces. `spans`: the (start, end) characters of each piece in the text, without a space before it."""

    ids: list[int]
    spans: list[tuple[int, int]]


class Vocabulary:
    """A trained vocabulary."""

    def __init__(self, pieces: Sequence[str], encode: Callable[[Sequence[str]], list[Encoded]], mark: str) -> None:
        self.pieces = list(pieces)
        self._encode = encode
        # '##' marks a piece that continues a word (WordPiece); '▁' marks one that begins it (SentencePiece).
        continues = [p.startswith("##") if mark == "##" else not p.startswith("▁") for p in self.pieces]
        self.continues_word: NDArray[np.bool_] = np.array(continues)
        self.continues_word[:FIRST_ORDINARY] = False

    def __len__(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> Encoded:
        """The pieces of a text, without special ones."""
        return self._encode([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[Encoded]:
        """The pieces of each text."""
        return self._encode(texts)


def make(tokenizer: Tokenizer, sentences: Sequence[str], out: Path) -> Vocabulary:
    """Train on `sentences` and write the model into `out`."""
    match tokenizer:
        case WordPiece():
            _train_wordpiece(tokenizer, sentences, out)
        case SentencePieceUnigram():
            _train_sentencepiece(tokenizer, sentences, out)
        case _:
            raise DataError(f"tokenizer.kind {tokenizer.kind!r} has no trainer")
    return load(out)


def load(folder: Path) -> Vocabulary:
    """The vocabulary in a finished stage."""
    head = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
    if head["kind"] == "wordpiece":
        return Vocabulary(head["pieces"], _wordpiece_encoder(folder), "##")
    return Vocabulary(head["pieces"], _sentencepiece_encoder(folder, len(head["pieces"])), "▁")


def _write_head(out: Path, kind: str, pieces: Sequence[str]) -> None:
    (out / "vocabulary.json").write_text(json.dumps({"kind": kind, "pieces": pieces}, ensure_ascii=False), "utf-8")


def _too_large(tokenizer: Tokenizer, possible: int) -> DataError:
    return DataError(
        f"tokenizer.vocabulary_size: found {tokenizer.vocabulary_size}, but the train documents allow at most "
        f"{possible}; take a smaller vocabulary or more text"
    )


# --- WordPiece by `tokenizers` --------------------------------------------------------------------------------------


def _train_wordpiece(tokenizer: WordPiece, sentences: Sequence[str], out: Path) -> None:
    from tokenizers import Tokenizer as Trained
    from tokenizers import models, normalizers, pre_tokenizers, trainers

    def dressed(model: models.WordPiece) -> Trained:
        found = Trained(model)
        found.normalizer = normalizers.BertNormalizer(lowercase=tokenizer.lowercase)
        found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return found

    def train(size: int, first: Sequence[str]) -> dict[str, int]:
        trained = dressed(models.WordPiece(unk_token="[UNK]"))
        trainer = trainers.WordPieceTrainer(
            vocab_size=size,
            min_frequency=tokenizer.min_frequency,
            limit_alphabet=tokenizer.vocabulary_size,
            special_tokens=list(first),
            show_progress=False,
        )
        trained.train_from_iterator(sentences, trainer)
        return trained.get_vocab()

    # The trainer numbers single characters in the order of a hash table, another one each time, and breaks ties by
    # number. So they are found first, and training is told their order.
    characters = sorted(set(train(0, SPECIALS)) - set(SPECIALS))
    vocab = train(tokenizer.vocabulary_size, [*SPECIALS, *characters])
    pieces = sorted(vocab, key=lambda piece: vocab[piece])
    if len(pieces) < tokenizer.vocabulary_size:
        raise _too_large(tokenizer, len(pieces))
    if len(pieces) > tokenizer.vocabulary_size:
        raise DataError(
            f"tokenizer.vocabulary_size: found {tokenizer.vocabulary_size}, but the single characters of the train "
            f"documents and the special ids alone take {len(pieces)}"
        )
    # A fresh tokenizer around the pieces: the trained one would find its special tokens in ordinary text.
    dressed(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100)).save(str(out / "tokenizer.json"))
    _write_head(out, "wordpiece", pieces)


def _wordpiece_encoder(folder: Path) -> Callable[[Sequence[str]], list[Encoded]]:
    from tokenizers import Tokenizer as Trained

    trained = Trained.from_file(str(folder / "tokenizer.json"))

    def encode(texts: Sequence[str]) -> list[Encoded]:
        return [Encoded(e.ids, e.offsets) for e in trained.encode_batch(list(texts), add_special_tokens=False)]

    return encode


# --- Unigram by `sentencepiece` -------------------------------------------------------------------------------------


def _train_sentencepiece(tokenizer: SentencePieceUnigram, sentences: Sequence[str], out: Path) -> None:
    import sentencepiece

    model = io.BytesIO()
    lower = "nmt_nfkc_cf" if tokenizer.lowercase else "nmt_nfkc"
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type="unigram",
            vocab_size=tokenizer.vocabulary_size - len(SPECIALS) + 1,  # its own <unk> stands for [UNK]
            character_coverage=tokenizer.character_coverage,
            normalization_rule_name=lower,
            bos_id=-1,
            eos_id=-1,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        possible = str(error).rstrip(". ").rsplit(" ", 1)[-1]
        if possible.isdigit():
            raise _too_large(tokenizer, int(possible) + len(SPECIALS) - 1) from None
        raise DataError(f"tokenizer: sentencepiece could not train ({error})") from None
    (out / "tokenizer.model").write_bytes(model.getvalue())
    trained = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [trained.id_to_piece(id) for id in range(1, trained.get_piece_size())]
    _write_head(out, "sentencepiece-unigram", [*SPECIALS, *pieces])


def _sentencepiece_encoder(folder: Path, size: int) -> Callable[[Sequence[str]], list[Encoded]]:
    import sentencepiece

    trained = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    shift = size - trained.get_piece_size()

    def encode(texts: Sequence[str]) -> list[Encoded]:
        found = []
        # Offsets in characters are to be asked for: those of its other formats are in bytes.
        for text, pieces in zip(texts, trained.encode(list(texts), return_type="offset_mapping"), strict=True):
            ids = [UNK if id == 0 else id + shift for id in pieces["ids"]]
            found.append(Encoded(ids, [(end - len(text[start:end].lstrip()), end) for start, end in pieces["offsets"]]))
        return found

    return encode
