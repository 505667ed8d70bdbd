"""Text to ids and back to places in the text."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paribus.data.document import Document
from paribus.data.vocabulary import FIRST_ORDINARY, SPECIALS, UNK, Vocabulary, load, make
from paribus.errors import DataError
from paribus.spec.data import SentencePieceUnigram, Tokenizer, WordPiece

TOKENIZERS = {
    "wordpiece": WordPiece(vocabulary_size=400),
    "sentencepiece": SentencePieceUnigram(vocabulary_size=400),
}
# Characters of the corpus: what is not among them becomes [UNK], whose text cannot be told from its piece.
TEXT = st.text("abcdeinorst THE.,", max_size=40)


@pytest.fixture(scope="session")
def sentences(documents: list[Document]) -> list[str]:
    return [sentence for document in documents for sentence in document.sentences]


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
    spelt = "".join(words.pieces[id].removeprefix("##").replace("▁", "") for id in words.encode(text).ids)
    assert spelt == text.lower().replace(" ", "")


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text("aetsTE .,é“”ü🙂中\u00a0", max_size=40))
def test_spans_are_characters_in_order_that_leave_out_nothing_but_blanks(
    trained: Callable[[str], Vocabulary], name: str, text: str
) -> None:
    encoded = trained(name).encode(text)
    assert len(encoded.ids) == len(encoded.spans)
    end_before = 0
    for start, end in encoded.spans:
        assert end_before <= start <= end <= len(text)
        assert not text[end_before:start].strip()
        assert text[start:end] == text[start:end].lstrip()
        end_before = end
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
    words = trained(name)
    for text in ("the", "unconstitutional", "the unconstitutional states of zzyzx"):
        continues = words.continues_word[words.encode(text).ids]
        assert not continues[0] and (~continues).sum() == len(text.split())
    assert not words.continues_word[:FIRST_ORDINARY].any()


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


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        (WordPiece(vocabulary_size=50000), r"found 50000, but the train documents allow at most \d+"),
        (SentencePieceUnigram(vocabulary_size=50000), r"found 50000, but the train documents allow at most \d+"),
        (WordPiece(vocabulary_size=64), r"found 64, but the single characters .* alone take \d+"),
    ],
)
def test_a_size_that_the_text_cannot_fill_or_fit_is_refused(
    sentences: list[str], tmp_path: Path, tokenizer: Tokenizer, expected: str
) -> None:
    with pytest.raises(DataError, match=f"tokenizer.vocabulary_size: {expected}"):
        make(tokenizer, sentences, tmp_path)


def test_the_largest_size_that_the_error_names_is_possible(sentences: list[str], tmp_path: Path) -> None:
    for tokenizer in (WordPiece(vocabulary_size=50000), SentencePieceUnigram(vocabulary_size=50000)):
        with pytest.raises(DataError) as error:
            make(tokenizer, sentences[:100], tmp_path)
        most = int(str(error.value).split("at most ")[1].split(";")[0])
        assert len(make(tokenizer.model_copy(update={"vocabulary_size": most}), sentences[:100], tmp_path)) == most
