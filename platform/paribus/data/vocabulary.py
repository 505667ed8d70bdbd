"""Text to ids and back to places in the text. Trained by `tokenizers` and `sentencepiece`.

    stage folder: tokenizer.json or tokenizer.model, vocabulary.json (kind, pieces in order of id, units where not
                  sentences, and ids of an imported one: its own id for each of ours)

Ids 0 to 4 are always [PAD], [CLS], [SEP], [MASK], [UNK].  Specials are not part of the trained model, so "[MASK]" typed
in a corpus is text.
"""

import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from paribus.data import wordpiece
from paribus.data.words import Texts
from paribus.errors import DataError
from paribus.spec.data import Bpe, ByteBpe, SentencePieceBpe, SentencePieceUnigram, Tokenizer, Unigram, WordPiece

PAD, CLS, SEP, MASK, UNK = range(5)
SPECIALS = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]")
FIRST_ORDINARY = len(SPECIALS)

Units = Literal["sentences", "words", "words-with-blank"]
"""What a tokenizer encodes apart: what stands between blanks, with or without the one before it; or whole sentences."""
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Encoded:
    """A text in pieces. `spans`: the (start, end) characters of each piece in the text, without a space before it."""

    ids: list[int]
    spans: list[tuple[int, int]]


@dataclass(frozen=True)
class Pieces:
    """The pieces of several texts, end to end. `counts`: how many of each text; all others as `Encoded`."""

    ids: Numbers
    starts: Numbers
    ends: Numbers
    counts: Numbers


class Vocabulary:
    """A trained vocabulary.

    encode: the pieces of each text, where places may count blanks before a piece as part of it.  normalise: what a text
    is to it, with whatever blanks.  units: what texts may be cut into and encoded apart, see `Units`.
    """

    def __init__(
        self,
        pieces: Sequence[str],
        encode: Callable[[Sequence[str]], Pieces],
        units: Units = "sentences",
        normalise: Callable[[str], str] = str,
    ) -> None:
        self.pieces = list(pieces)
        self._encode, self._normalise = encode, normalise
        self.units = units
        self._dropped: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> Encoded:
        """The pieces of a text, without special ones."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[Encoded]:
        """The pieces of each text."""
        found = self.encode_flat(Texts(texts))
        ends = np.cumsum(found.counts).tolist()
        ids, spans = found.ids.tolist(), list(zip(found.starts.tolist(), found.ends.tolist(), strict=True))
        return [Encoded(ids[start:end], spans[start:end]) for start, end in zip([0, *ends], ends, strict=False)]

    def dropped(self, codes: NDArray[np.uint32]) -> Numbers:
        """The UTF-8 bytes of each character, by its code, that no piece says: what normalising takes away but for case,
        as accents, at least one of a character that it makes another. Not those that [UNK] hides."""
        unique, of = np.unique(codes, return_inverse=True)
        for code in set(unique.tolist()) - self._dropped.keys():
            character = chr(code)
            normal = self._normalise(character).strip(" \u2581")
            cases = {normalize("NFC", same) for same in (character, character.lower(), character.casefold())}
            size = len(character.encode()) - len(normal.encode())
            self._dropped[code] = 0 if normalize("NFC", normal) in cases else max(1, size)
        return np.array([self._dropped[code] for code in unique.tolist()], dtype=np.int64)[of]

    def encode_flat(self, texts: Texts) -> Pieces:
        """The pieces of all texts."""
        return _placed(texts, self._encode(texts.texts))


def make(tokenizer: Tokenizer, sentences: Iterable[str], out: Path) -> Vocabulary:
    """Train on `sentences`, which are gone through more than once, and write the model into `out`."""
    match tokenizer:
        case WordPiece() | Bpe() | ByteBpe():
            pieces = _train_merges(tokenizer, sentences, out)
        case Unigram():
            pieces = _train_unigram(tokenizer, sentences, out)
        case SentencePieceBpe() | SentencePieceUnigram():
            pieces = _train_sentencepiece(tokenizer, sentences, out)
        case _:
            raise DataError(f"tokenizer.kind {tokenizer.kind!r} has no trainer")
    head = {"kind": tokenizer.kind, "pieces": pieces, "units": _units(tokenizer)}
    (out / "vocabulary.json").write_text(json.dumps(head, ensure_ascii=False), "utf-8")
    return load(out)


def load(folder: Path) -> Vocabulary:
    """The vocabulary in a finished stage."""
    head = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
    pieces, fast = head["pieces"], (folder / "tokenizer.json").is_file()
    encode, normalise = _encoder(folder, head.get("ids")) if fast else _sentencepiece_encoder(folder, len(pieces))
    return Vocabulary(pieces, encode, head.get("units", "sentences"), normalise)


def _units(tokenizer: Tokenizer) -> Units:
    match tokenizer:
        case WordPiece() | Bpe() | Unigram():
            return "words"
        case ByteBpe():
            return "words" if tokenizer.prefix_space else "words-with-blank"
        case _:
            return "sentences"


def end_to_end(counts: Iterable[int], ids: Iterable[Iterable[int]], spans: Iterable[Iterable[Iterable[int]]]) -> Pieces:
    """The pieces of texts, from how many each has, and their ids and spans text by text."""
    places = np.fromiter(chain.from_iterable(chain.from_iterable(spans)), np.int64).reshape(-1, 2)
    flat = np.fromiter(chain.from_iterable(ids), np.int64)
    return Pieces(flat, places[:, 0], places[:, 1], np.fromiter(counts, np.int64))


def _placed(texts: Texts, found: Pieces) -> Pieces:
    """Pieces with their places, less the blanks that some kinds count as part of a word.

    A bare mark of a word's beginning, which `tokenizers` puts at the letter after it, has an empty place before it.
    """
    text = np.repeat(np.arange(len(found.counts)), found.counts)
    begins = texts.begins[text]
    starts, ends = np.minimum(texts.next_letters[begins + found.starts] - begins, found.ends), found.ends.copy()
    marks = np.flatnonzero(
        (text[:-1] == text[1:]) & ((starts[:-1] != starts[1:]) | (ends[:-1] != ends[1:])) & (starts[1:] < ends[:-1])
    )
    ends[marks] = np.maximum(starts[marks], starts[marks + 1])
    return Pieces(found.ids, starts, ends, found.counts)


def _too_large(tokenizer: Tokenizer, possible: int) -> DataError:
    return DataError(
        f"tokenizer.vocabulary_size: found {tokenizer.vocabulary_size}, but the train documents allow at most "
        f"{possible}; take a smaller vocabulary or more text"
    )


def _too_small(tokenizer: Tokenizer, needed: int) -> DataError:
    return DataError(
        f"tokenizer.vocabulary_size: found {tokenizer.vocabulary_size}, but the single characters of the train "
        f"documents and the special ids alone take {needed}"
    )


# --- WordPiece, BPE and byte-level BPE by `tokenizers` --------------------------------------------------------------


def _train_merges(tokenizer: WordPiece | Bpe | ByteBpe, sentences: Iterable[str], out: Path) -> list[str]:
    from tokenizers import Tokenizer as Trained
    from tokenizers import models, pre_tokenizers, trainers

    size = tokenizer.vocabulary_size
    marks: dict[str, Any] = {} if isinstance(tokenizer, ByteBpe) else {"continuing_subword_prefix": "##"}

    def train(texts: Iterable[str], size: int, first: Sequence[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
        trained = _dressed(Trained(models.BPE(**marks)), tokenizer)
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=tokenizer.min_frequency,
            special_tokens=list(first),
            show_progress=False,
            **marks,
        )
        trained.train_from_iterator(_batches(texts), trainer)
        model = json.loads(trained.to_str())["model"]
        return model["vocab"], [tuple(merge) for merge in model["merges"]]

    merges: list[tuple[str, str]] = []
    if isinstance(tokenizer, WordPiece) and tokenizer.criterion == "likelihood":
        words: Counter[str] = Counter()
        for between_blanks, count in Counter(chain.from_iterable(map(str.split, sentences))).items():
            for word in _words(tokenizer, between_blanks):
                words[word] += count
        pieces = [*SPECIALS, *wordpiece.train(words, size - len(SPECIALS), tokenizer.min_frequency)]
    else:
        # The trainer numbers single characters in the order of a hash table, another one each time, and breaks ties by
        # number. So they are found first, and training is told their order.
        known: Iterable[str]
        if isinstance(tokenizer, ByteBpe):
            known = pre_tokenizers.ByteLevel.alphabet()
        else:
            known, _ = train(set(chain.from_iterable(map(str.split, sentences))), 0, SPECIALS)
        vocab, merges = train(sentences, size, [*SPECIALS, *sorted(set(known) - set(SPECIALS))])
        pieces = sorted(vocab, key=lambda piece: vocab[piece])
    if len(pieces) < size:
        raise _too_large(tokenizer, len(pieces))
    if len(pieces) > size:
        raise _too_small(tokenizer, len(pieces))
    ids = {piece: id for id, piece in enumerate(pieces)}
    model: models.Model
    match tokenizer:
        case WordPiece():
            model = models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100)
        case Bpe():
            model = models.BPE(ids, merges, unk_token="[UNK]", **marks)
        case ByteBpe():
            model = models.BPE(ids, merges)
    # A fresh tokenizer around the pieces: the trained one would find its special tokens in ordinary text.
    _dressed(Trained(model), tokenizer).save(str(out / "tokenizer.json"))
    return pieces


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Texts by the thousand: `tokenizers` takes the interpreter's lock for each thing it is given."""
    left = iter(texts)
    while batch := list(islice(left, 1000)):
        yield batch


def _normalizer(tokenizer: Tokenizer) -> Any:
    from tokenizers import normalizers

    if not isinstance(tokenizer, ByteBpe):
        return normalizers.BertNormalizer(lowercase=tokenizer.lowercase)
    lower = [normalizers.Lowercase()] if tokenizer.lowercase else []
    return normalizers.Sequence([*lower, *([normalizers.Prepend(" ")] if tokenizer.prefix_space else [])])


def _pre_tokenizer(tokenizer: Tokenizer) -> Any:
    from tokenizers import pre_tokenizers

    if isinstance(tokenizer, ByteBpe):
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    bert = pre_tokenizers.BertPreTokenizer()
    if isinstance(tokenizer, Unigram):
        return pre_tokenizers.Sequence([bert, pre_tokenizers.Metaspace(prepend_scheme="always", split=False)])
    return bert


def _dressed(trained: Any, tokenizer: Tokenizer) -> Any:
    """A model of `tokenizers` with the normaliser and the words of a kind."""
    trained.normalizer, trained.pre_tokenizer = _normalizer(tokenizer), _pre_tokenizer(tokenizer)
    return trained


def _words(tokenizer: Tokenizer, sentence: str) -> list[str]:
    """The words that a kind cuts a sentence into before it looks for pieces."""
    normal = _normalizer(tokenizer).normalize_str(sentence)
    return [word for word, _ in _pre_tokenizer(tokenizer).pre_tokenize_str(normal)]


Coder = tuple[Callable[[Sequence[str]], Pieces], Callable[[str], str]]
"""What encodes texts, and what normalises one before."""


def _encoder(folder: Path, order: Sequence[int] | None) -> Coder:
    """`order`: the tokenizer's own id for each of ours, where they are not the same."""
    from tokenizers import Tokenizer as Trained

    trained = Trained.from_file(str(folder / "tokenizer.json"))
    ours = np.argsort(order or range(trained.get_vocab_size()))

    def encode(texts: Sequence[str]) -> Pieces:
        found = trained.encode_batch(list(texts), add_special_tokens=False)
        pieces = end_to_end(map(len, found), (text.ids for text in found), (text.offsets for text in found))
        return replace(pieces, ids=ours[pieces.ids])

    return encode, trained.normalizer.normalize_str if trained.normalizer else str


# --- by `sentencepiece` ---------------------------------------------------------------------------------------------


def _train_unigram(tokenizer: Unigram, sentences: Iterable[str], out: Path) -> list[str]:
    from tokenizers import Tokenizer as Trained
    from tokenizers import models

    # Two words a line: a string is a candidate if it goes on in several ways, and a word goes on with a blank alone.
    words = (_words(tokenizer, sentence) for sentence in sentences)
    pairs = (sentence[at : at + 2] for sentence in words for at in range(0, len(sentence), 2))
    lines = ("".join(pair).replace("▁", " ") for pair in pairs)
    found = _sentencepiece(tokenizer, lines, model_type="unigram", normalization="identity", character_coverage=1.0)
    pieces = [(special, 0.0) for special in SPECIALS]
    pieces += [(found.id_to_piece(id), found.get_score(id)) for id in range(1, found.get_piece_size())]
    _dressed(Trained(models.Unigram(pieces, unk_id=UNK)), tokenizer).save(str(out / "tokenizer.json"))
    return [piece for piece, _ in pieces]


def _train_sentencepiece(
    tokenizer: SentencePieceBpe | SentencePieceUnigram, sentences: Iterable[str], out: Path
) -> list[str]:
    found = _sentencepiece(
        tokenizer,
        sentences,
        model_type=tokenizer.kind.removeprefix("sentencepiece-"),
        normalization="nmt_nfkc_cf" if tokenizer.lowercase else "nmt_nfkc",
        character_coverage=tokenizer.character_coverage,
    )
    (out / "tokenizer.model").write_bytes(found.serialized_model_proto())
    return [*SPECIALS, *(found.id_to_piece(id) for id in range(1, found.get_piece_size()))]


def _sentencepiece(
    tokenizer: Tokenizer, sentences: Iterable[str], model_type: str, normalization: str, character_coverage: float
) -> Any:
    """A trained processor. Its piece 0, <unk>, stands for [UNK]; the others are the ordinary pieces."""
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type=model_type,
            vocab_size=tokenizer.vocabulary_size - len(SPECIALS) + 1,
            character_coverage=character_coverage,
            normalization_rule_name=normalization,
            max_sentence_length=2**24,  # bytes; it would leave longer ones out, in silence
            bos_id=-1,
            eos_id=-1,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        if found := re.search(r"Please set it to a value <= (\d+)", str(error)):
            raise _too_large(tokenizer, int(found[1]) + len(SPECIALS) - 1) from None
        if found := re.search(r"smaller than required_chars. \d+ vs (\d+)", str(error)):
            raise _too_small(tokenizer, int(found[1]) + len(SPECIALS) - 1) from None
        raise DataError(f"tokenizer: sentencepiece could not train ({error})") from None
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def _sentencepiece_encoder(folder: Path, size: int) -> Coder:
    import sentencepiece

    trained = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    shift = size - trained.get_piece_size()

    def encode(texts: Sequence[str]) -> Pieces:
        # Offsets in characters are to be asked for: those of its other formats are in bytes.
        found = trained.encode(list(texts), return_type="offset_mapping")
        ids = [text["ids"] for text in found]
        pieces = end_to_end(map(len, ids), ids, (text["offsets"] for text in found))
        return replace(pieces, ids=np.where(pieces.ids == 0, UNK, pieces.ids + shift))

    return encode, trained.normalize
