"""Text to ids and back to places in the text."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paribus.data import tokens
from paribus.data.document import Document
from paribus.data.tokens import Tokeniser
from paribus.data.vocabulary import FIRST_ORDINARY, SPECIALS, UNK, Vocabulary, load, make
from paribus.data.words import continues_word
from paribus.errors import DataError
from paribus.spec.data import Bpe, ByteBpe, SentencePieceBpe, SentencePieceUnigram, Tokenizer, Unigram, WordPiece

TOKENIZERS: dict[str, Tokenizer] = {
    "wordpiece": WordPiece(vocabulary_size=400),
    "wordpiece-likelihood": WordPiece(vocabulary_size=400, criterion="likelihood", min_frequency=10),
    "bpe": Bpe(vocabulary_size=400),
    "byte-bpe": ByteBpe(vocabulary_size=400, lowercase=True),
    "unigram": Unigram(vocabulary_size=400),
    "sentencepiece-bpe": SentencePieceBpe(vocabulary_size=400),
    "sentencepiece-unigram": SentencePieceUnigram(vocabulary_size=400),
}
# Characters of the corpus: what is not among them becomes [UNK], whose text cannot be told from its piece.
TEXT = st.text("abcdeinorst THE.,", max_size=40)


@pytest.fixture(scope="session")
def sentences(documents: list[Document]) -> list[str]:
    return [sentence for document in documents[:6] for sentence in document.sentences]


@pytest.fixture(scope="session")
def trained(sentences: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Vocabulary]:
    """The vocabulary of a name in TOKENIZERS, trained once."""
    found = {name: make(t, sentences, tmp_path_factory.mktemp(name)) for name, t in TOKENIZERS.items()}
    return found.__getitem__


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_vocabulary_has_the_size_asked_for_and_begins_with_the_specials(
    trained: Callable[[str], Vocabulary], name: str
) -> None:
    words = trained(name)
    assert len(words) == len(words.pieces) == len(set(words.pieces)) == 400
    assert tuple(words.pieces[:FIRST_ORDINARY]) == SPECIALS


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXT)
def test_pieces_spell_the_text_in_lower_case(trained: Callable[[str], Vocabulary], name: str, text: str) -> None:
    words = trained(name)
    spelt = "".join(words.pieces[id].removeprefix("##").strip("▁") for id in words.encode(text).ids)
    assert spelt.replace("Ġ", "") == text.lower().replace(" ", "")


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text("aetsTE .,é“”ü🙂中\u00a0", max_size=40))
def test_spans_are_characters_in_order_that_leave_out_nothing_but_blanks(
    trained: Callable[[str], Vocabulary], name: str, text: str
) -> None:
    encoded = trained(name).encode(text)
    assert len(encoded.ids) == len(encoded.spans)
    before, end_before = (0, 0), 0
    for start, end in encoded.spans:
        # The bytes of one character may lie in several pieces: these have one place.
        assert (start, end) == before or end_before <= start <= end <= len(text)
        assert not text[end_before:start].strip()
        assert text[start:end] == text[start:end].lstrip()
        before, end_before = (start, end), end
    assert not text[end_before:].strip()


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_word_after_letters_of_several_bytes_is_found_where_it_stands(
    trained: Callable[[str], Vocabulary], name: str
) -> None:
    text = "Éé “the” — 🙂 states"
    encoded = trained(name).encode(text)
    first = next(i for i, (start, _) in enumerate(encoded.spans) if start >= text.index("states"))
    assert text[encoded.spans[first][0] : encoded.spans[-1][1]] == "states"


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("special", SPECIALS)
def test_a_special_typed_in_a_text_is_text(trained: Callable[[str], Vocabulary], name: str, special: str) -> None:
    ids = trained(name).encode(f"the {special} of states").ids
    assert not set(ids) & (set(range(FIRST_ORDINARY)) - {UNK})


@pytest.mark.parametrize("name", TOKENIZERS)
def test_specials_in_the_training_text_are_text(sentences: list[str], tmp_path: Path, name: str) -> None:
    words = make(TOKENIZERS[name], [f"[MASK] {sentence} [SEP]" for sentence in sentences], tmp_path)
    assert not set(words.encode("[MASK] the [SEP]").ids) & {0, 1, 2, 3}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_what_continues_a_word_is_marked(trained: Callable[[str], Vocabulary], name: str) -> None:
    for text in ("the", "unconstitutional", "the unconstitutional states of zzyzx", "états naïve"):
        continues = continues_word(text, trained(name).encode(text).spans)
        assert not continues[0] and (~continues).sum() == len(text.split())


@pytest.mark.parametrize("name", ["wordpiece", "bpe"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text("aetsTE .,-é“”$中", max_size=40))
def test_words_of_the_text_are_those_that_berts_marks_tell(
    trained: Callable[[str], Vocabulary], name: str, text: str
) -> None:
    encoded = trained(name).encode(text)
    marked = [trained(name).pieces[id].startswith("##") for id in encoded.ids]
    known = [id != UNK for id in encoded.ids]
    continues = continues_word(text, encoded.spans)
    assert [m for m, k in zip(marked, known, strict=True) if k] == continues[known].tolist()


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text("aetsTE .,é“”ü🙂", max_size=40))
def test_every_tokenizer_finds_the_same_words_between_blanks(
    trained: Callable[[str], Vocabulary], name: str, text: str
) -> None:
    text = " ".join(text.split())
    encoded = trained(name).encode(text)
    numbers = Tokeniser(trained(name))([Document("a", ((text,),))]).numbers.tolist()
    assert sorted(set(numbers)) == list(range(len(text.split())))
    assert numbers == sorted(numbers)
    for number, (start, end) in zip(numbers, encoded.spans, strict=True):
        assert text[start:end] in text.split()[number]


# The bytes of GPT-2's printable alphabet: those that print stand for themselves, the others follow from 256 on.
PRINTS = [byte for byte in range(256) if chr(byte).isprintable() and byte not in (0x20, 0xA0, 0xAD)]
BYTES = {chr(byte): byte for byte in PRINTS} | {
    chr(256 + n): byte for n, byte in enumerate(b for b in range(256) if b not in PRINTS)
}


@pytest.fixture(scope="session")
def cased(sentences: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Vocabulary]:
    """Byte-level BPE that leaves case alone, with a blank before a text or without."""
    found = {
        p: make(ByteBpe(vocabulary_size=400, prefix_space=p), sentences, tmp_path_factory.mktemp("b"))
        for p in (True, False)
    }
    return found.__getitem__


@pytest.mark.parametrize("prefix_space", [True, False])
@given(text=st.text(max_size=30) | st.text(" \t\n🙂é'sT[MASK]\x1f", max_size=20))
def test_byte_level_pieces_give_any_text_back(
    cased: Callable[[bool], Vocabulary], prefix_space: bool, text: str
) -> None:
    words = cased(prefix_space)
    ids = words.encode(text).ids
    decoded = bytes(BYTES[letter] for id in ids for letter in words.pieces[id]).decode()
    assert decoded == (" " + text if prefix_space and text else text)
    assert not set(ids) & set(range(FIRST_ORDINARY))


def test_with_a_blank_before_it_a_first_word_is_the_piece_it_is_elsewhere(cased: Callable[[bool], Vocabulary]) -> None:
    assert cased(True).encode("the").ids == cased(True).encode("of the").ids[-1:]
    assert cased(False).encode("the").ids != cased(False).encode("of the").ids[-1:]


def test_the_likeliest_pieces_are_taken_and_their_probabilities_sum_to_at_most_one(
    trained: Callable[[str], Vocabulary], sentences: list[str], tmp_path: Path
) -> None:
    words = make(TOKENIZERS["unigram"], sentences, tmp_path)
    scores = dict(json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"][FIRST_ORDINARY:])
    assert 0.9 < sum(map(math.exp, scores.values())) < 1.001  # the last pieces over the size are trimmed after training

    def all_ways(text: str) -> list[float]:
        return [
            scores[text[:end]] + rest
            for end in range(1, len(text) + 1)
            if text[:end] in scores
            for rest in (all_ways(text[end:]) if end < len(text) else [0.0])
        ]

    for word in ("states", "congress", "they"):
        taken = sum(scores[words.pieces[id]] for id in words.encode(word).ids)
        assert taken == pytest.approx(max(all_ways("▁" + word)))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_what_was_saved_encodes_as_what_was_trained(sentences: list[str], tmp_path: Path, name: str) -> None:
    words = make(TOKENIZERS[name], sentences, tmp_path)
    again = load(tmp_path)
    assert again.pieces == words.pieces
    assert (
        again.encode_all(sentences[:50])
        == words.encode_all(sentences[:50])
        == [words.encode(s) for s in sentences[:50]]
    )


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_same_text_gives_the_same_pieces_in_the_same_order(
    trained: Callable[[str], Vocabulary], sentences: list[str], tmp_path: Path, name: str
) -> None:
    assert make(TOKENIZERS[name], sentences, tmp_path).pieces == trained(name).pieces


def test_lower_case_can_be_left_alone(sentences: list[str], tmp_path: Path) -> None:
    words = make(WordPiece(vocabulary_size=400, lowercase=False), sentences, tmp_path)
    assert words.encode("The").ids != words.encode("the").ids


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_size_that_the_text_cannot_fill_is_refused_and_the_largest_that_the_error_names_is_possible(
    sentences: list[str], tmp_path: Path, name: str
) -> None:
    def of(size: int) -> Tokenizer:
        return TOKENIZERS[name].model_copy(update={"vocabulary_size": size})

    with pytest.raises(
        DataError, match=r"tokenizer.vocabulary_size: found 50000, but the train documents allow"
    ) as error:
        make(of(50000), sentences[:100], tmp_path)
    most = int(str(error.value).split("at most ")[1].split(";")[0])
    assert len(make(of(most), sentences[:100], tmp_path)) == most


@pytest.mark.parametrize("name", [name for name in TOKENIZERS if name != "byte-bpe"])
def test_a_size_without_room_for_the_characters_is_refused(tmp_path: Path, name: str) -> None:
    alphabet = " ".join(chr(letter) for letter in range(0x1200, 0x1248))
    tokenizer = TOKENIZERS[name].model_copy(update={"vocabulary_size": 64})
    with pytest.raises(DataError, match=r"tokenizer.vocabulary_size: found 64, but the single characters .* take \d+"):
        make(tokenizer, [alphabet] * 20, tmp_path)


@pytest.mark.parametrize(
    ("name", "dropped"),
    [("wordpiece", [1, 1, 0, 0, 2]), ("byte-bpe", [0] * 5), ("sentencepiece-bpe", [0, 0, 1, 0, 0])],
)
def test_bytes_that_a_normaliser_drops_but_for_case_are_said_by_no_piece(
    trained: Callable[[str], Vocabulary], name: str, dropped: list[int]
) -> None:
    codes = np.frombuffer("éÉ…中\u0301".encode("utf-32-le"), dtype=np.uint32)
    assert trained(name).dropped(codes).tolist() == dropped


def test_an_accent_that_is_dropped_is_a_byte_that_is_unknown(trained: Callable[[str], Vocabulary]) -> None:
    found = Tokeniser(trained("wordpiece"))([Document("a", (("Thé oath, of óffice é é plain",),))])
    assert found.unknown.tolist() == [1, 0, 0, 1, 1, 1, 0]


@pytest.mark.parametrize("name", [*TOKENIZERS, "no blank"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.text("aetsTE .,'-é“”ü🙂中≠\u0301", min_size=1, max_size=40), max_size=6),
    remembered=st.integers(0, 20),
)
def test_sentences_encoded_word_by_word_are_sentences_encoded_whole(
    trained: Callable[[str], Vocabulary],
    cased: Callable[[bool], Vocabulary],
    name: str,
    texts: list[str],
    remembered: int,
) -> None:
    words = cased(False) if name == "no blank" else trained(name)
    folded = [text for text in (" ".join(text.split()) for text in texts) if text]
    tokeniser = Tokeniser(words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "REMEMBERED", remembered)
        for text in folded:
            found, encoded = tokeniser([Document("a", ((text,),))]), words.encode(text)
            assert (found.ids & ~tokens.WORD_GOES_ON).tolist() == encoded.ids
            assert (found.ids & tokens.WORD_GOES_ON > 0).tolist() == continues_word(text, encoded.spans).tolist()
            assert found.sizes.tolist() == [len(word.encode()) for word in text.split()]
            known = [id != UNK for id in encoded.ids]
            whole = np.flatnonzero(found.unknown)
            assert all(k or n in whole for k, n in zip(known, found.numbers.tolist(), strict=True))
        together = tokeniser([Document(str(number), ((text,),)) for number, text in enumerate(folded)])
    assert together.sentences.tolist() == [len(words.encode(text).ids) for text in folded]
    assert together.documents.tolist() == [1] * len(folded)
