"""Zero-shot scores of sentences against one masked copy at a time, and the accuracies against answers known before."""

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import save_file
from torch import Tensor

from paribus.data.formats import MinimalPairItem, write_items
from paribus.data.vocabulary import CLS, MASK, SEP, Vocabulary
from paribus.evaluate import minimal_pairs as module
from paribus.evaluate.minimal_pairs import Judged, Sentence, drawn, judge, measures, scores, sentences
from paribus.nn.build import build_encoder, build_head, build_rtd
from paribus.nn.init import initialise
from paribus.objectives.module import named
from paribus.plan.stages import PairTest
from paribus.spec import model as spec
from paribus.spec.data import Dynamic, Replacement
from paribus.spec.objective import Mlm, Rtd
from paribus.spec.run import PairScore, PairScoring, Runtime
from paribus.spec.task import Built, MinimalPairs
from paribus.store.store import Work

CPU = torch.device("cpu")
SIZE = 512
WAYS: tuple[PairScore, ...] = ("original", "within-word-l2r", "within-word-mlm")
ENCODERS: list[dict[str, Any]] = [
    {},
    {"position": {"kind": "relative-bias"}, "norm": "pre"},
    {"position": "unordered", "attention": "disentangled", "head": {"kind": "emd", "max_length": 32}},
]
TEXTS = (
    "the government of the united states.",
    "the the of a",
    "no unconstitutional circumlocution, however well-intentioned!",
    "",
    "fellow citizens of the senate",
)


def item(number: int, good: str = "good", bad: str = "bad", paradigm: str = "p", phenomenon: str = "q") -> Any:
    return MinimalPairItem(str(number), good, bad, paradigm, phenomenon)


# --- from scores to accuracies --------------------------------------------------------------------------------------


def blimp_sized(better: Callable[[int], tuple[float, float]]) -> dict[str, tuple[float, int]]:
    """The measures of 67 paradigms of 12 phenomena, 1,000 pairs each."""
    items = (item(n, paradigm=f"p{n % 67}", phenomenon=f"q{n % 67 % 12}") for n in range(67_000))
    return measures([Judged(i, *better(n)) for n, i in enumerate(items)])


def test_whoever_prefers_the_acceptable_sentence_is_always_right_and_the_reverse_never() -> None:
    oracle, swapped = blimp_sized(lambda n: (-1.0, -2.0)), blimp_sized(lambda n: (-2.0, -1.0))
    assert len(oracle) == 3 + 67 + 12
    assert {value for name, (value, _) in oracle.items() if name != "ties"} == {1.0}
    assert {value for value, _ in swapped.values()} == {0.0}
    assert oracle["accuracy"][1] == 67_000 and oracle["accuracy.p3"][1] == 1000


def test_chance_is_a_half() -> None:
    draw = random.Random(0).random
    found = blimp_sized(lambda n: (draw(), draw()))
    assert found["accuracy"][0] == pytest.approx(0.5, abs=0.005)
    assert found["phenomenon-accuracy"][0] == pytest.approx(0.5, abs=0.005)


def test_ties_are_wrong_and_counted() -> None:
    found = blimp_sized(lambda n: (-1.0, -1.0 if n % 2 else -2.0))
    assert found["ties"] == (0.5, 67_000)
    assert found["accuracy"][0] == 0.5


def test_the_mean_is_over_paradigms_and_over_phenomena_not_over_pairs() -> None:
    right = {("a", "x"): [1], ("b", "x"): [1, 0, 0, 0], ("c", "y"): [0, 0, 0]}
    judged = [
        Judged(item(0, paradigm=paradigm, phenomenon=phenomenon), float(answer), 0.5)
        for (paradigm, phenomenon), answers in right.items()
        for answer in answers
    ]
    found = measures(judged)
    assert found["accuracy"] == (pytest.approx((1 + 0.25 + 0) / 3), 8)
    assert found["phenomenon-accuracy"] == (pytest.approx((0.625 + 0) / 2), 8)
    assert found["accuracy.b"] == (0.25, 4) and found["phenomenon-accuracy.x"] == (0.625, 5)


def test_the_pairs_drawn_of_a_paradigm_are_the_same_for_every_model_and_stay_when_there_are_more() -> None:
    items = [item(n, f"good {n}", f"bad {n}", f"p{n % 3}") for n in range(60)]
    few, many = drawn(items, 5), drawn([*reversed(items)], 8)
    assert [sum(i.paradigm == p for i in few) for p in ("p0", "p1", "p2")] == [5, 5, 5]
    assert {i.id for i in few} < {i.id for i in many} and len(many) == 24
    assert [int(i.id) for i in few] == sorted(int(i.id) for i in few)
    assert drawn([item(0, i.good, i.bad, i.paradigm) for i in items], 5) == [
        item(0, i.good, i.bad, i.paradigm) for i in few
    ]
    assert drawn(items, None) == items and drawn(items, 99) == items


# --- from sentences to scores ---------------------------------------------------------------------------------------

ASKED = Sentence((CLS, 10, 11, 12, 13, SEP), (-1, 0, 1, 1, 1, -1))  # a word of one piece, a word of three


@pytest.mark.parametrize(
    ("score", "inputs"),
    [
        ("within-word-l2r", [[MASK, 11, 12, 13], [10, MASK, MASK, MASK], [10, 11, MASK, MASK], [10, 11, 12, MASK]]),
        ("within-word-mlm", [[MASK, 11, 12, 13], *[[10, MASK, MASK, MASK]] * 3]),
    ],
)
def test_pieces_of_the_same_word_are_masked_as_written_by_hand(score: PairScore, inputs: list[list[int]]) -> None:
    ids, words = torch.tensor([ASKED.ids]), torch.tensor([ASKED.words])
    found, places = module.masked_copies(ids, words, torch.arange(4), score == "within-word-mlm")
    assert found.tolist() == [[CLS, *row, SEP] for row in inputs]
    assert places.tolist() == [1, 2, 3, 4]


def test_the_original_score_takes_each_piece_as_a_word(vocabulary: Vocabulary) -> None:
    (text,) = sentences(["unconstitutional"], vocabulary, "original")
    assert len(text.ids) > 3
    assert text.words == (-1, *range(len(text.ids) - 2), -1)


def test_words_are_the_texts_own(vocabulary: Vocabulary) -> None:
    (text,) = sentences(["government, well"], vocabulary, "within-word-l2r")
    spans = vocabulary.encode("government, well").spans
    assert text.words == (-1, *(0 if start < 10 else 1 if start == 10 else 2 for start, _ in spans), -1)


Scored = Callable[..., list[float]]


def models(encoder: spec.Encoder, std: float = 0.1) -> tuple[Any, Any]:
    built = build_encoder(encoder, SIZE)
    head = build_head(encoder, built)
    for part in (built, head):
        initialise(part, 0, std)
    return built.eval(), head.eval()


def by_hand(built: Any, head: Any, sentence: Sentence, score: PairScore) -> float:
    """One masked copy at a time."""
    total = 0.0
    for place in range(1, len(sentence.ids) - 1):
        ids = list(sentence.ids)
        for other in range(1, len(ids) - 1):
            same = sentence.words[other] == sentence.words[place]
            if other == place or same and (score == "within-word-mlm" or score == "within-word-l2r" and other > place):
                ids[other] = MASK
        with torch.no_grad():
            logits = head(built.states(torch.tensor([ids])), torch.tensor([place]))
        total += float(logits[0].double().log_softmax(-1)[sentence.ids[place]])
    return total


@pytest.mark.parametrize("changes", ENCODERS, ids=["absolute", "relative", "disentangled"])
@pytest.mark.parametrize("score", WAYS)
def test_all_copies_at_once_score_as_one_copy_at_a_time_whatever_the_batch(
    encoder: Callable[..., spec.Encoder], vocabulary: Vocabulary, changes: dict[str, Any], score: PairScore
) -> None:
    built, head = models(encoder(**changes))
    asked = sentences(TEXTS, vocabulary, score)
    expected = {sentence: by_hand(built, head, sentence, score) for sentence in asked}
    for tokens in (1, 50, 10**6):
        found = scores(asked, module.pseudo_log_likelihood(built, head, score, SIZE, tokens), CPU)
        assert found == pytest.approx(expected, rel=1e-6)


def test_the_ways_differ_but_for_words_of_one_piece(
    encoder: Callable[..., spec.Encoder], vocabulary: Vocabulary
) -> None:
    built, head = models(encoder())
    short, long = (
        [
            list(scores(sentences([text], vocabulary, way), scorer, CPU).values())[0]
            for way in WAYS
            for scorer in [module.pseudo_log_likelihood(built, head, way, SIZE, 10**6)]
        ]
        for text in ("the of a to the", "unconstitutional circumlocution")
    )
    assert short[0] == short[1] == short[2]
    assert len(set(long)) == 3


@pytest.mark.parametrize("score", WAYS)
def test_a_uniform_model_scores_minus_the_number_of_pieces_times_the_logarithm_of_the_vocabulary(
    encoder: Callable[..., spec.Encoder], vocabulary: Vocabulary, score: PairScore
) -> None:
    built, head = models(encoder(), std=1e-30)
    asked = sentences(TEXTS, vocabulary, score)
    found = scores(asked, module.pseudo_log_likelihood(built, head, score, SIZE, 200), CPU)
    assert [found[s] for s in asked] == pytest.approx([-(len(s.ids) - 2) * math.log(SIZE) for s in asked], rel=1e-6)


def replaced_token_detection(
    encoder: spec.Encoder, bias: float | None = None, discriminator: Any = "detect"
) -> tuple[Rtd, Any]:
    replacement = Replacement(mask=0.85, random=0.0)
    objective = Rtd(masking=Dynamic(), sharing="nes", replacement=replacement, discriminator=discriminator)
    both = build_rtd(encoder, objective, SIZE)
    initialise(both, 0, 0.1 if bias is None else 1e-30)
    if bias is not None:
        torch.nn.init.constant_(both.head.out.bias, bias)  # type: ignore[union-attr, arg-type]
    return objective, both.eval()


@pytest.mark.parametrize("tokens", [1, 50, 10**6])
def test_a_discriminator_scores_by_the_probabilities_that_its_pieces_are_original(
    encoder: Callable[..., spec.Encoder], vocabulary: Vocabulary, tokens: int
) -> None:
    _, rtd = replaced_token_detection(encoder())
    asked = sentences(TEXTS, vocabulary, "original")
    found = scores(asked, module.log_originality(rtd, tokens), CPU)
    for sentence in asked:
        with torch.no_grad():
            replaced = rtd.detect(torch.tensor([sentence.ids]), None, None)[0, 1:-1].double().sigmoid()
        assert found[sentence] == pytest.approx(float((1 - replaced).log().sum()), rel=1e-6)


def test_a_discriminator_that_says_replaced_of_everything_finds_no_sentence_likely(
    encoder: Callable[..., spec.Encoder], vocabulary: Vocabulary
) -> None:
    _, rtd = replaced_token_detection(encoder(), bias=20.0)
    (asked,) = sentences(["fellow citizens"], vocabulary, "original")
    (found,) = scores([asked], module.log_originality(rtd, 100), CPU).values()
    assert found == pytest.approx(-20.0 * (len(asked.ids) - 2), rel=1e-6)


@pytest.mark.parametrize("tokens", [1, 10**6])
@pytest.mark.parametrize("discriminator", ["replace-mlm", "all-tokens-mlm"])
def test_an_encoder_that_predicts_scores_by_the_probability_of_what_stands_there_copied_or_not(
    encoder: Callable[..., spec.Encoder], vocabulary: Vocabulary, discriminator: str, tokens: int
) -> None:
    _, rtd = replaced_token_detection(encoder(), discriminator=discriminator)
    asked = sentences(TEXTS, vocabulary, "original")
    found = scores(asked, module.log_originality(rtd, tokens), CPU)
    for sentence in asked:
        total = 0.0
        for place, piece in list(enumerate(sentence.ids))[1:-1]:
            with torch.no_grad():
                logits_1V, copy_1 = rtd.restore(torch.tensor([sentence.ids]), None, None, torch.tensor([place]))
            predicted = float(logits_1V[0].double().softmax(0)[piece])
            copied = 0.0 if copy_1 is None else float(copy_1.double().sigmoid())
            total += math.log(copied + (1 - copied) * predicted)
        assert found[sentence] == pytest.approx(total, rel=1e-5)


def test_an_encoder_that_copies_everything_finds_every_sentence_certain(
    encoder: Callable[..., spec.Encoder], vocabulary: Vocabulary
) -> None:
    _, rtd = replaced_token_detection(encoder(), bias=20.0, discriminator="all-tokens-mlm")
    (asked,) = sentences(["fellow citizens"], vocabulary, "original")
    (found,) = scores([asked], module.log_originality(rtd, 100), CPU).values()
    assert found == pytest.approx(0.0, abs=1e-6)


# --- pairs ----------------------------------------------------------------------------------------------------------


def test_an_oracle_over_tokens_is_right_and_texts_that_read_the_same_tie(vocabulary: Vocabulary) -> None:
    (of,) = vocabulary.encode("of").ids
    items = [item(0, "a people of a people", "a people a people"), item(1, "the People", "the people")]

    def oracle(ids_ST: Tensor, word_ST: Tensor) -> Tensor:
        return (ids_ST == of).sum(1).double() + torch.rand(len(ids_ST), dtype=torch.float64) / 2

    judged = judge(items, vocabulary, "within-word-l2r", 32, oracle, CPU)
    assert judged[0].good > judged[0].bad
    assert judged[1].good == judged[1].bad


def test_a_pair_with_a_sentence_longer_than_a_row_is_left_out(vocabulary: Vocabulary) -> None:
    items = [item(0, "of the", "the of"), item(1, "of the of", "the of"), item(2, "the of", "the of the")]

    def nothing(ids_ST: Tensor, word_ST: Tensor) -> Tensor:
        return torch.zeros(len(ids_ST), dtype=torch.float64)

    assert [pair.item.id for pair in judge(items, vocabulary, "original", 4, nothing, CPU)] == ["0"]
    assert len(judge(items, vocabulary, "original", 5, nothing, CPU)) == 3


PAIRS = [
    item(0, "the government of the people", "the government the of people", "swap", "word_order"),
    item(1, "the senate is here", "the senate are here", "agreement", "agreement"),
    item(2, "fellow citizens, unconstitutional", "fellow citizens, constitutional", "agreement", "agreement"),
    item(3, "the same", "The same", "swap", "word_order"),
    item(4, "the same " * 20, "the same", "swap", "word_order"),
]


@pytest.fixture
def stage(
    encoder: Callable[..., spec.Encoder], vocabulary: Vocabulary, tmp_path: Path, begin: Callable[..., Work]
) -> Callable[..., dict[str, Any]]:
    """The rows of the stage, metric to (value, n), and under 'scores' what it stored; with dropout, if it were on."""

    def found(rtd: bool = False, scoring: PairScoring = PairScoring(), pairs: Sequence[Any] = PAIRS) -> dict[str, Any]:  # noqa: B008
        asked = encoder(dropout=0.5)
        if rtd:
            objective, both = replaced_token_detection(asked)
            save_file(both.encoder.state_dict(), tmp_path / "encoder.safetensors")
            save_file(both.generator.state_dict(), tmp_path / "generator.safetensors")
            heads = named("head", both.head) | named("generator_head", both.generator_head)
        else:
            objective, (built, head) = Mlm(masking=Dynamic()), models(asked)
            save_file(built.state_dict(), tmp_path / "encoder.safetensors")
            heads = named("head", head)
        save_file(heads, tmp_path / "heads.safetensors")
        write_items(tmp_path / "dev.jsonl", pairs)
        data = Built(builder="minimal-pairs", dev=8)
        task = MinimalPairs(name="t", source="here", data=data)
        test = PairTest(task=task, scoring=scoring, length=32)
        with begin("minimal-pairs", test) as work:
            module.minimal_pairs(test, objective, asked, vocabulary, tmp_path, tmp_path, work, Runtime(device="cpu"))
            rows = {row["metric"]: (row["value"], row["n"]) for row in work.rows}
            return rows | {"scores": parquet.read_table(work.out / "scores.parquet").to_pylist()}

    return found


@pytest.mark.parametrize("rtd", [False, True])
def test_the_rows_can_be_had_again_from_the_scores_that_are_stored(stage: Any, rtd: bool) -> None:
    found = stage(rtd=rtd)
    stored = found.pop("scores")
    again = measures([Judged(PAIRS[int(row["id"])], row["good"], row["bad"]) for row in stored])
    assert found == {**again, "too_long": (1, 5)}
    assert found["ties"] == (0.25, 4)  # the vocabulary knows no capitals
    assert [row["paradigm"] for row in stored] == ["swap", "agreement", "agreement", "swap"]


def test_every_way_of_scoring_moves_a_number(stage: Any) -> None:
    totals = {sum(row["good"] for row in stage(scoring=PairScoring(score=way))["scores"]) for way in WAYS}
    totals.add(sum(row["good"] for row in stage(rtd=True)["scores"]))
    assert len(totals) == 4
    assert stage(scoring=PairScoring(per_paradigm=1))["too_long"][1] == 2


@pytest.mark.parametrize("rtd", [False, True])
def test_neither_repetition_nor_the_batch_size_nor_a_global_generator_matters(
    stage: Any, rtd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    once = stage(rtd=rtd)
    torch.manual_seed(2)
    assert stage(rtd=rtd) == once
    monkeypatch.setitem(module.BATCH_TOKENS, "cpu", 40)
    for now, before in zip(stage(rtd=rtd)["scores"], once["scores"], strict=True):
        assert now == {
            **before,
            "good": pytest.approx(before["good"], rel=1e-6),
            "bad": pytest.approx(before["bad"], rel=1e-6),
        }


def test_scoring_draws_from_no_global_generator(encoder: Callable[..., spec.Encoder], vocabulary: Vocabulary) -> None:
    built, head = models(encoder(dropout=0.5))
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index, union-attr]
    judge(PAIRS, vocabulary, "original", 32, module.pseudo_log_likelihood(built, head, "original", SIZE, 99), CPU)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == states[1:]  # type: ignore[index, union-attr]
