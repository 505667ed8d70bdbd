"""Merges by likelihood, and by frequency, against hand-computed ones and against a slow trainer."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.data.vocabulary import make
from paribus.data.wordpiece import train
from paribus.errors import DataError
from paribus.spec.data import Bpe, Tokenizer, WordPiece

TOY = {"low": 5, "lower": 2, "newest": 6, "widest": 3}


def test_the_first_merges_by_likelihood_are_those_computed_by_hand() -> None:
    # (##i, ##d) and (w, ##i) tie at 3 / (3 x 3): the alphabet decides. Then (w, ##id) is at 1/3, (l, ##o) at
    # 7 / (7 x 7), while the most frequent pair, (##s, ##t), is at 9 / (9 x 9).
    letters = ["##d", "##e", "##i", "##o", "##r", "##s", "##t", "##w", *"deilnorstw"]
    assert train(TOY, len(letters) + 3, 1) == [*letters, "##id", "wid", "lo"]


def slowly(words: dict[str, int], size: int, least: int) -> list[str]:
    """The same by counting everything anew for each merge."""
    texts = {word: [word[0], *("##" + letter for letter in word[1:])] for word in words}
    pieces = sorted({piece for text in texts.values() for piece in text} | set("".join(words)))
    while len(pieces) < size:
        single: Counter[str] = Counter()
        pairs: Counter[tuple[str, str]] = Counter()
        for word, text in texts.items():
            for piece in text:
                single[piece] += words[word]
            for a, b in zip(text, text[1:], strict=False):
                pairs[a, b] += words[word]
        found = [(-n / (single[a] * single[b]), -n, a, b) for (a, b), n in pairs.items() if n >= least]
        if not found:
            break
        _, _, a, b = min(found)
        merged = a + b.removeprefix("##")
        pieces += [merged] if merged not in pieces else []
        for word, text in texts.items():
            done: list[str] = []
            for piece in text:
                if done and (done[-1], piece) == (a, b):
                    done[-1] = merged
                else:
                    done.append(piece)
            texts[word] = done
    return pieces


@given(
    words=st.dictionaries(st.text("abc", min_size=1, max_size=8), st.integers(1, 20), max_size=12),
    size=st.integers(0, 40),
    least=st.integers(1, 10),
)
def test_the_trainer_agrees_with_a_slow_one(words: dict[str, int], size: int, least: int) -> None:
    assert train(words, size, least) == slowly(words, size, least)


def test_the_order_of_the_words_does_not_matter() -> None:
    assert train(dict(reversed(TOY.items())), 30, 1) == train(TOY, 30, 1)


def test_a_rare_pair_is_not_merged() -> None:
    # `wid` comes three times only.
    assert train(TOY, 19, 4)[-1] == "lo"


# By `tokenizers`, on the toy corpus made large enough for the smallest vocabulary: capitals that stand alone.
TEXT = [word for word, count in TOY.items() for _ in range(count)] + [chr(letter) for letter in range(0x410, 0x450)]


def trained(tokenizer: Tokenizer, folder: Path) -> list[str]:
    """The merges in their order, at the size the error names as the largest."""
    try:
        made = make(tokenizer, TEXT, folder)
    except DataError as error:
        most = int(str(error).split("at most ")[1].split(";")[0])
        made = make(tokenizer.model_copy(update={"vocabulary_size": most}), TEXT, folder)
    return [piece for piece in made.pieces[5:] if len(piece.removeprefix("##")) > 1]


@pytest.mark.parametrize("kind", [Bpe, WordPiece])
def test_the_first_merges_by_frequency_are_those_computed_by_hand(kind: type[Tokenizer], tmp_path: Path) -> None:
    # (e, s) and (s, t) tie at 9: the alphabet decides. Then (es, t) is at 9; (l, o) and (o, w) tie at 7,
    # and what continues a word comes first in the alphabet.
    found = trained(kind(vocabulary_size=10000, lowercase=False), tmp_path)
    assert found[:3] == ["##es", "##est", "##ow"]


def test_likelihood_and_frequency_merge_other_pairs(tmp_path: Path) -> None:
    for name in ("frequency", "likelihood"):
        (tmp_path / name).mkdir()
    found = {
        name: trained(WordPiece(vocabulary_size=10000, lowercase=False, criterion=name), tmp_path / name)  # type: ignore[arg-type]
        for name in ("frequency", "likelihood")
    }
    assert found["likelihood"][:3] == ["##id", "wid", "lo"]
    assert found["frequency"][:3] == ["##es", "##est", "##ow"]
