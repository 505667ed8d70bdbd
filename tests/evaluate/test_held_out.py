"""Held-out loss: the same places whatever is measured, whenever and in whatever batches."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from paribus.data.document import Document
from paribus.data.masking import mask
from paribus.data.packing import DOCUMENT, Words, load, load_words, pack_words, save
from paribus.data.packing import pack as packed_rows
from paribus.data.vocabulary import MASK, Vocabulary, make
from paribus.evaluate import held_out as module
from paribus.evaluate.held_out import held_out
from paribus.nn.build import build_encoder, build_head, build_rtd
from paribus.nn.heads import PooledHead
from paribus.nn.init import initialise
from paribus.objectives.module import named
from paribus.spec import model as spec
from paribus.spec.data import (
    ByteBpe,
    Dynamic,
    FullSentences,
    Replacement,
    SentencePairs,
    SentencePieceUnigram,
    WordPiece,
)
from paribus.spec.objective import Mlm, Rtd
from paribus.spec.run import HeldOut, Runtime
from paribus.store.store import Work

Measure = Callable[..., dict[tuple[str, str], float]]
SIZE = 512


@pytest.fixture
def measure(encoder: Callable[..., spec.Encoder], packed: Path, tmp_path: Path, begin: Callable[..., Work]) -> Measure:
    """The rows of an encoder started from `seed` with `std`, as (split, metric) to value."""

    def found(
        seed: int = 0, std: float = 0.1, asked: HeldOut | None = None, pack: Path = packed
    ) -> dict[tuple[str, str], float]:
        encoder_module = build_encoder(encoder(dropout=0.5), SIZE)
        head = build_head(encoder(), encoder_module)
        for part in (encoder_module, head):
            initialise(part, seed, std)
        save_file(encoder_module.state_dict(), tmp_path / "encoder.safetensors")
        save_file({f"head.{n}": w for n, w in head.state_dict().items()}, tmp_path / "heads.safetensors")
        with begin("evaluate", asked or HeldOut()) as work:
            runtime, mlm = Runtime(device="cpu"), Mlm(masking=Dynamic())
            held_out(asked or HeldOut(), mlm, encoder(dropout=0.5), SIZE, tmp_path, pack, work, runtime)
            return {(str(row["split"]), row["metric"]): row["value"] for row in work.rows} | {
                (str(row["split"]), "n"): row["n"] for row in work.rows if row["task"] == "mlm"
            }

    return found


def test_a_model_that_guesses_uniformly_costs_the_logarithm_of_the_vocabulary(measure: Measure) -> None:
    found = measure(std=1e-30)
    for split in ("validation", "test"):
        assert found[split, "loss"] == pytest.approx(math.log(SIZE), abs=1e-5)
        assert found[split, "perplexity"] == pytest.approx(SIZE, rel=1e-4)


def test_what_a_sentence_head_tells_is_counted_beside_a_constant_answer(
    encoder: Callable[..., spec.Encoder],
    documents: list[Document],
    vocabulary: Vocabulary,
    tmp_path: Path,
    begin: Callable[..., Work],
) -> None:
    pack = tmp_path / "pack"
    pack.mkdir()
    packing = SentencePairs(length=32, negatives="three-way")
    rows = {split: packed_rows(packing, documents[:2], vocabulary, None) for split in ("validation", "test")}
    for split, found in rows.items():
        save([found], pack, split, len(vocabulary))
        save([pack_words(documents[:2], vocabulary, 32)], pack, f"{split}.words", len(vocabulary))
    parts = {"encoder": build_encoder(encoder(), SIZE)}
    parts |= {"head": build_head(encoder(), parts["encoder"]), "sentence_head": PooledHead(16, 3)}
    for part in parts.values():
        initialise(part, 0, 0.02)
    torch.nn.init.constant_(parts["sentence_head"].out.bias[2], 100.0)  # always says 2
    save_file(parts["encoder"].state_dict(), tmp_path / "encoder.safetensors")
    heads = {f"{name}.{n}": w for name in ("head", "sentence_head") for n, w in parts[name].state_dict().items()}
    save_file(heads, tmp_path / "heads.safetensors")
    with begin("evaluate", HeldOut()) as work:
        objective = Mlm(masking=Dynamic(), sentence="three-way")
        held_out(HeldOut(), objective, encoder(), SIZE, tmp_path, pack, work, Runtime(device="cpu"))
        values = {row["metric"]: row["value"] for row in work.rows if row["split"] == "test"}
    labels = rows["test"].labels
    assert values["sentence_accuracy"] == pytest.approx((labels == 2).mean())
    assert values["majority.sentence_accuracy"] == pytest.approx((labels == 0).mean())


def chosen_words(packed: Path, split: str) -> tuple[Words, NDArray[np.bool_]]:
    words = load_words(packed, split)
    return words, module._choose_words(len(words.sizes), 0.15)


def test_a_model_that_guesses_uniformly_costs_its_tokens_times_the_logarithm_over_the_bytes(
    measure: Measure, packed: Path
) -> None:
    found = measure(std=1e-30)
    for split in ("validation", "test"):
        words, chosen = chosen_words(packed, split)
        tokens = int(chosen[words.numbers[words.numbers >= 0]].sum())
        bits = tokens * math.log2(SIZE) + 8 * words.unknown[chosen].sum()
        assert found[split, "bits_per_byte"] == pytest.approx(bits / words.sizes[chosen].sum(), rel=1e-5)


def test_words_are_chosen_by_number_whatever_the_tokenizer(documents: list[Document], tmp_path: Path) -> None:
    held_out, texts = documents[:2], [sentence for document in documents[:4] for sentence in document.sentences]
    made = {}
    for tokenizer in (
        WordPiece(vocabulary_size=300),
        ByteBpe(vocabulary_size=300),
        SentencePieceUnigram(vocabulary_size=300),
    ):
        (tmp_path / tokenizer.kind).mkdir()
        made[tokenizer.kind] = pack_words(held_out, make(tokenizer, texts, tmp_path / tokenizer.kind), 32)
    sizes = [len(word.encode()) for document in held_out for s in document.sentences for word in s.split()]
    for words in made.values():
        assert words.sizes.tolist() == sizes
        assert set(words.numbers[words.numbers >= 0]) == set(range(len(sizes)))
    assert len({len(words.rows) for words in made.values()}) == 3  # but they lie in other rows


def test_words_masked_whole_are_scored_as_by_hand(
    encoder: Callable[..., spec.Encoder], packed: Path, measure: Measure
) -> None:
    found = measure(seed=3)
    encoder_module = build_encoder(encoder(), SIZE)
    head = build_head(encoder(), encoder_module)
    for part in (encoder_module, head):
        initialise(part, 3, 0.1)
    encoder_module.eval()
    words, chosen = chosen_words(packed, "test")
    assert chosen.sum() == math.floor(0.15 * len(chosen) + 0.5)
    bits, right = 0.0, {int(word): words.unknown[word] == 0 for word in np.flatnonzero(chosen)}
    for row in range(len(words.rows)):
        length = words.rows.lengths[row]
        tokens, number = words.rows.tokens[row, :length].astype(int), words.numbers[row, :length]
        masked = [MASK if n >= 0 and chosen[n] else t for t, n in zip(tokens, number, strict=True)]
        with torch.no_grad():
            logits = head(encoder_module.states(torch.tensor([masked])), torch.arange(length))
        for place in range(length):
            if number[place] >= 0 and chosen[number[place]]:
                bits -= float(logits[place].log_softmax(-1)[tokens[place]]) / math.log(2)
                right[int(number[place])] &= bool(logits[place].argmax() == tokens[place])
    bits += 8 * int(words.unknown[chosen].sum())
    assert found["test", "bits_per_byte"] == pytest.approx(bits / words.sizes[chosen].sum(), rel=1e-5)
    assert found["test", "word_accuracy"] == sum(right.values()) / len(right)


def test_other_numbers_for_the_ids_leave_bits_a_byte_alone(encoder: Callable[..., spec.Encoder], packed: Path) -> None:
    words, chosen = chosen_words(packed, "test")
    order = np.concatenate([np.arange(5), 5 + np.random.default_rng(0).permutation(SIZE - 5)])  # old id -> new id
    tokens = order[words.rows.tokens]
    relabelled = replace(words, rows=replace(words.rows, tokens=tokens))
    cpu = torch.device("cpu")
    found = []
    for asked, ids in ((words, np.arange(SIZE)), (relabelled, order)):
        encoder_module = build_encoder(encoder(), SIZE)
        head = build_head(encoder(), encoder_module)
        for part in (encoder_module, head):
            initialise(part, 0, 0.1)
        with torch.no_grad():
            table, bias = encoder_module.tokens.weight.clone(), head.bias.clone()
            encoder_module.tokens.weight[ids], head.bias[ids] = table, bias
            found.append(module._score_words(encoder_module.eval(), head, asked, chosen, cpu))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    assert (found[0][1] == found[1][1]).all()


@pytest.mark.parametrize("rows", [1, 7])
def test_neither_repetition_nor_the_batch_size_matters(
    measure: Measure, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    once = measure()
    assert measure() == once
    monkeypatch.setattr(module, "BATCH_ROWS", rows)
    assert measure() == pytest.approx(once, rel=2e-6)


def test_memory_that_runs_out_changes_no_measure(
    measure: Measure, detect: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = module.Encoder.states

    def small_device(self: module.Encoder, tokens: torch.Tensor, *more: Any) -> Any:
        if len(tokens) > 9:
            raise torch.OutOfMemoryError
        return states(self, tokens, *more)

    whole = measure(), detect()
    monkeypatch.setattr(module.Encoder, "states", small_device)
    assert (measure(), detect()) == (pytest.approx(whole[0], rel=1e-5), pytest.approx(whole[1], rel=1e-5))


def test_the_error_of_the_loss_takes_the_tokens_of_a_document_together() -> None:
    rng = np.random.default_rng(0)
    alone = rng.normal(size=400)
    error = module.clustered_error(alone, np.arange(400))
    assert error == pytest.approx(alone.std(ddof=1) / math.sqrt(400))
    # Every value ten times in its cluster tells nothing new.
    assert module.clustered_error(np.repeat(alone, 10), np.repeat(np.arange(400), 10)) == pytest.approx(error)
    assert module.clustered_error(alone, np.zeros(400, dtype=np.int64)) is None


def test_the_loss_is_clustered_by_document(
    measure: Measure, documents: list[Document], vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ("test", "loss_error") not in measure()  # one document a split
    rows = packed_rows(FullSentences(length=32), documents[:4], vocabulary, None)
    for split in ("validation", "test"):
        save([rows], tmp_path, split, len(vocabulary))
        save([pack_words(documents[:1], vocabulary, 32)], tmp_path, f"{split}.words", len(vocabulary))
    asked = []
    monkeypatch.setattr(module, "clustered_error", lambda *given: asked.append(given) or 0.25)
    found = measure(pack=tmp_path)
    assert found["test", "loss_error"] == 0.25
    numbers = np.arange(len(rows))
    chosen = mask(rows.tokens, numbers, 0 * numbers, -1, 0.15, module.ALL_MASKED, SIZE).chosen
    document, expected = 0, []
    for flag, masked in zip(rows.flags.flat, chosen.flat, strict=True):
        document += bool(flag & DOCUMENT)
        expected += [document] * bool(masked)
    losses, clusters = asked[1]
    assert clusters.tolist() == expected and set(expected) == {1, 2, 3, 4}
    assert losses.mean() == pytest.approx(found["test", "loss"])


def test_the_global_generator_does_not_matter(measure: Measure) -> None:
    torch.manual_seed(1)
    once = measure()
    torch.manual_seed(2)
    assert measure() == once


def test_every_model_is_asked_for_the_same_places(measure: Measure) -> None:
    one, other = measure(seed=0), measure(seed=1)
    assert one["test", "loss"] != other["test", "loss"]
    assert one["test", "n"] == other["test", "n"]
    assert measure(asked=HeldOut(rate=0.3))["test", "n"] == pytest.approx(2 * one["test", "n"], rel=0.1)


@pytest.fixture
def detect(encoder: Callable[..., spec.Encoder], packed: Path, tmp_path: Path, begin: Callable[..., Work]) -> Measure:
    """The rows of a generator and a discriminator, as (task, split, metric) to value; the keyword biases the latter."""

    def found(bias: float = 0.0, seed: int = 0, **asked: Any) -> dict[tuple[str, str, str], float]:
        objective = Rtd(masking=Dynamic(), sharing="nes", replacement=Replacement(mask=0.85, random=0.0), **asked)
        both = build_rtd(encoder(dropout=0.5), objective, SIZE)
        initialise(both, seed, 0.1)
        if both.head is not None:
            torch.nn.init.constant_(both.head.out.bias, bias)  # type: ignore[union-attr, arg-type]
        save_file(both.encoder.state_dict(), tmp_path / "encoder.safetensors")
        save_file(both.generator.state_dict(), tmp_path / "generator.safetensors")
        heads = {}
        for name in ("head", "generator_head", "vocabulary_head"):
            if (head := getattr(both, name)) is not None:
                heads |= named(name, head)
        save_file(heads, tmp_path / "heads.safetensors")
        with begin("evaluate", HeldOut()) as work:
            runtime = Runtime(device="cpu")
            held_out(HeldOut(), objective, encoder(dropout=0.5), SIZE, tmp_path, packed, work, runtime)
            rows = {(row["task"], str(row["split"]), row["metric"]): row["value"] for row in work.rows}
            return rows | {(row["task"], str(row["split"]), "n"): row["n"] for row in work.rows}

    return found


def test_of_two_networks_the_generator_is_measured_by_mlm_and_the_discriminator_by_what_it_finds(
    detect: Measure, measure: Measure, packed: Path
) -> None:
    nothing, everything = detect(bias=-50.0), detect(bias=50.0)
    tokens = int(load(packed, "test").lengths.sum())
    assert {task for task, _, _ in nothing} == {"generator", "rtd"}
    assert nothing["generator", "test", "n"] == measure()["test", "n"] and nothing["rtd", "test", "n"] == tokens
    assert (nothing["rtd", "test", "recall"], nothing["rtd", "test", "precision"]) == (0, 0)
    assert everything["rtd", "test", "recall"] == 1
    # An untrained generator is nearly never right, so nearly every masked place is replaced.
    share = everything["rtd", "test", "precision"]
    assert share * tokens == pytest.approx(nothing["generator", "test", "n"], rel=0.02)
    assert everything["rtd", "test", "f1"] == pytest.approx(2 * share / (1 + share))
    assert "accuracy" not in {metric for task, _, metric in nothing if task == "rtd"}


def test_an_encoder_that_predicts_is_measured_by_its_own_loss(detect: Measure, packed: Path) -> None:
    one = detect(discriminator="replace-mlm")
    assert one["rtd", "test", "n"] == one["generator", "test", "n"]
    assert {metric for task, _, metric in one if task == "rtd"} == {"loss", "n"}
    assert one["rtd", "validation", "loss"] > 0 and one["rtd", "test", "loss"] != one["generator", "test", "loss"]
    # One that always copies pays for what was replaced alone: hardly anything where nothing is to be copied.
    never, always = (detect(discriminator="all-tokens-mlm", bias=bias) for bias in (-50.0, 5.0))
    assert never["rtd", "test", "n"] == int(load(packed, "test").lengths.sum())
    assert always["rtd", "test", "loss"] < never["rtd", "test", "loss"] / 2


def test_the_samples_of_an_evaluation_are_always_the_same(detect: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    once = detect()
    monkeypatch.setattr(module, "BATCH_ROWS", 7)
    torch.manual_seed(2)
    assert detect() == pytest.approx(once, rel=1e-5)
    assert detect(seed=1) != once
