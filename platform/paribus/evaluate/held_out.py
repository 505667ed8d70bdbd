"""Held-out masked-LM loss: the same masked places for every arm, seed and step of training.

A share of the tokens, all by [MASK], drawn from a constant stream by row number; fp32; summed over all places, divided
once, so batch size does not enter.

Nats a token compare only where tokens are the same.  Across tokenizers: that share of the words, all pieces of each by
[MASK], drawn from a constant stream by the word's number in its split: the same words for every tokenizer and format.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from paribus.data.masking import mask
from paribus.data.packing import DOCUMENT, Rows, Words, bits_per_byte, load, load_words
from paribus.data.vocabulary import MASK, PAD
from paribus.evaluate.metrics import detection
from paribus.nn.build import build_encoder, build_head, build_rtd
from paribus.nn.encoder import Encoder
from paribus.nn.heads import PooledHead
from paribus.nn.rtd import GeneratorAndDiscriminator, corrupt, sample
from paribus.objectives.batch import Micro
from paribus.objectives.loader import make_micro
from paribus.objectives.module import part
from paribus.objectives.rtd import detection_loss
from paribus.seeds import seed_for, uniforms
from paribus.spec import model as spec
from paribus.spec.data import Replacement
from paribus.spec.objective import Mlm, Objective, Rtd
from paribus.spec.run import HeldOut, Runtime
from paribus.store.store import Measured
from paribus.train.fit import device, use_threads
from paribus.train.memory import in_parts

Flags = NDArray[np.bool_]

ALL_MASKED = Replacement(mask=1.0, random=0.0)
EVALUATION_SEED = -1  # no run has it, so no training mask is an evaluation mask
BATCH_ROWS = 128


def load_encoder(encoder: spec.Encoder, vocabulary: int, pretrained: Path) -> Encoder:
    """The pretrained encoder of a finished stage."""
    module = build_encoder(encoder, vocabulary)
    module.load_state_dict(load_file(pretrained / "encoder.safetensors"))
    return module


def load_mlm(encoder: spec.Encoder, vocabulary: int, pretrained: Path) -> tuple[Encoder, nn.Module]:
    """The pretrained encoder and the vocabulary head of a finished stage."""
    module = load_encoder(encoder, vocabulary, pretrained)
    head = build_head(encoder, module)
    head.load_state_dict(part("head", load_file(pretrained / "heads.safetensors")))
    return module, head


def has_head(pretrained: Path) -> bool:
    """Whether a finished stage has heads: an imported checkpoint may come without one that fits."""
    return (pretrained / "heads.safetensors").is_file()


def load_rtd(encoder: spec.Encoder, objective: Rtd, vocabulary: int, pretrained: Path) -> GeneratorAndDiscriminator:
    """Generator, discriminator and heads of a finished stage."""
    module = build_rtd(encoder, objective, vocabulary)
    weights = load_file(pretrained / "heads.safetensors")
    module.encoder.load_state_dict(load_file(pretrained / "encoder.safetensors"))
    module.generator.load_state_dict(load_file(pretrained / "generator.safetensors"))
    for name in ("head", "generator_head", "vocabulary_head"):
        if (head := getattr(module, name)) is not None:
            head.load_state_dict(part(name, weights))
    return module


@dataclass
class Scored:
    """What a batch gives: nats and document of each masked token, how many were right; with a sentence objective how
    many kinds of pair were told; with replaced-token detection what the encoder says of the generator's samples."""

    nats: NDArray[np.float64]
    documents: NDArray[np.int64]
    right: int
    told: int = 0
    restored: float = 0.0
    probability: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    replaced: Flags = field(default_factory=lambda: np.empty(0, dtype=bool))


def _batches(rows: int) -> Iterator[NDArray[np.int64]]:
    """The numbers of the rows, BATCH_ROWS at once."""
    for start in range(0, rows, BATCH_ROWS):
        yield np.arange(start, min(start + BATCH_ROWS, rows))


@torch.no_grad()
def held_out(
    asked: HeldOut,
    objective: Objective,
    encoder: spec.Encoder,
    vocabulary: int,
    pretrained: Path,
    pack: Path,
    work: Measured,
    runtime: Runtime,
    splits: Sequence[str] = ("validation", "test"),
    words: bool = True,
) -> None:
    """Rows loss (nats a masked token), perplexity and accuracy on the validation and test documents.

    Beside the loss its standard error (loss_error), clustered by document; none for rows of pairs, which do not say
    where a document begins.
    Of task `mlm`; or, after replaced-token detection, of task `generator`, and of task `rtd` how well the
    discriminator finds the replaced among all tokens, where samples of the generator, drawn from a constant stream,
    stand at the masked places; of an encoder that was to predict them instead, its loss there (nats a predicted token).

    Where a sentence objective was trained also, of task `sentence`, the share of rows whose kind of pair it tells
    (sentence_accuracy), and what always saying the most frequent kind would (majority.sentence_accuracy).
    Of task `words`, but not of a generator: bits a byte of masked words, and the share with every piece right.
    No row of an imported encoder that came without a vocabulary head. Fewer `splits`, or no `words`, take less time.
    """
    if not has_head(pretrained):
        return
    use_threads(runtime)
    where = device(runtime)
    if isinstance(objective, Rtd):
        task, rtd = "generator", load_rtd(encoder, objective, vocabulary, pretrained).to(where).eval()
        module, head = rtd.generator, rtd.generator_head
    else:
        task, rtd = "mlm", None
        module, head = load_mlm(encoder, vocabulary, pretrained)
        module.to(where).eval()
        head.to(where).eval()
    pooled = None
    if isinstance(objective, Mlm) and objective.kinds_of_pair:
        pooled = PooledHead(encoder.width, objective.kinds_of_pair)
        pooled.load_state_dict(part("sentence_head", load_file(pretrained / "heads.safetensors")))
        pooled.to(where).eval()

    def score(rows: Rows, document_of: NDArray[np.int64], numbers: NDArray[np.int64]) -> Scored:
        work.may_stop()
        tokens = rows.tokens[numbers]
        masked = mask(tokens, numbers, np.zeros_like(numbers), EVALUATION_SEED, asked.rate, ALL_MASKED, vocabulary)
        micro = make_micro(rows, numbers, tokens, masked.inputs, masked.chosen, objective, 0, EVALUATION_SEED)
        micro = micro.to(where)
        states = module.states(micro.tokens_BT, micro.segments_BT, micro.unseen)
        logits_MV = head(states, micro.places_M)
        found = Scored(
            F.cross_entropy(logits_MV, micro.targets_M, reduction="none").double().cpu().numpy(),
            document_of[numbers][masked.chosen],
            int((logits_MV.argmax(-1) == micro.targets_M).sum()),
        )
        if pooled is not None:
            found.told = int((pooled(states.last_BTD).argmax(-1) == micro.labels_B).sum())
        if rtd and isinstance(objective, Rtd) and objective.detects:
            found.probability, found.replaced = _detected(rtd, micro, logits_MV)
        elif rtd and isinstance(objective, Rtd):
            assert micro.draws_M is not None
            found.restored = float(detection_loss(rtd, objective, micro, sample(logits_MV, micro.draws_M)))
        return found

    for split in splits:
        rows = load(pack, split)
        document_of = np.cumsum(rows.flags & DOCUMENT > 0, dtype=np.int64).reshape(rows.flags.shape)
        compute = partial(score, rows, document_of)
        scored = [found for numbers in _batches(len(rows)) for found in in_parts(compute, numbers)]
        right, told, restored = (sum(getattr(s, name) for s in scored) for name in ("right", "told", "restored"))
        losses = np.concatenate([found.nats for found in scored])
        loss, places = float(losses.mean()), len(losses)
        work.row("loss", loss, split=split, n=places, task=task)
        if (error := clustered_error(losses, np.concatenate([found.documents for found in scored]))) is not None:
            work.row("loss_error", error, split=split, n=places, task=task)
        work.row("perplexity", math.exp(min(loss, 700.0)), split=split, n=places, task=task)
        work.row("accuracy", right / places, split=split, n=places, task=task)
        if pooled is not None:
            most = int(np.bincount(rows.labels).max())
            for name, count in (("sentence_accuracy", told), ("majority.sentence_accuracy", most)):
                work.row(name, count / len(rows), split=split, n=len(rows), task="sentence")
        if isinstance(objective, Rtd) and not objective.detects:
            asked_tokens = int(rows.lengths.sum()) if objective.of_all_tokens else places
            work.row("loss", restored / asked_tokens, split=split, n=asked_tokens, task="rtd")
        elif rtd:
            probability = np.concatenate([found.probability for found in scored])
            replaced = np.concatenate([found.replaced for found in scored])
            for metric, value in detection(probability, replaced).items():
                work.row(metric, value, split=split, n=len(replaced), task="rtd")
        if rtd is None and words:
            whole = load_words(pack, split)
            chosen = _choose_words(len(whole.sizes), asked.rate)
            word_nats, known = _score_words(module, head, whole, chosen, where)
            bits = bits_per_byte(
                float(word_nats.sum()), int(whole.sizes[chosen].sum()), int(whole.unknown[chosen].sum())
            )
            work.row("bits_per_byte", bits, split=split, n=int(chosen.sum()), task="words")
            work.row("word_accuracy", float(known[chosen].mean()), split=split, n=int(chosen.sum()), task="words")


def clustered_error(values: NDArray[np.float64], clusters: NDArray[np.int64]) -> float | None:
    """Standard error of the mean of `values`, dependent within a cluster; None where there is but one cluster.

    Cameron and Miller 2015, J. Human Resources 50(2), section II: residuals summed by cluster, times C / (C - 1).
    """
    count = len(np.unique(clusters))
    if count < 2:
        return None
    residuals = np.bincount(clusters, values - values.mean())
    return math.sqrt(count / (count - 1) * float((residuals**2).sum())) / len(values)


def _choose_words(words: int, rate: float) -> Flags:
    """Which words are masked: floor(rate x words + 0.5) of them, at least one."""
    draws = uniforms(seed_for(EVALUATION_SEED, "words"), np.arange(words))
    chosen = np.zeros(words, dtype=bool)
    chosen[np.argsort(draws, kind="stable")[: max(1, math.floor(rate * words + 0.5))]] = True
    return chosen


def _score_words(
    module: Encoder, head: nn.Module, words: Words, chosen: Flags, where: torch.device
) -> tuple[NDArray[np.float64], Flags]:
    """Nats of each chosen word, summed over its pieces, and whether all of them are right and none hides text."""
    nats = np.zeros(len(words.sizes))
    known = words.unknown == 0

    def score(numbers: NDArray[np.int64]) -> tuple[NDArray[np.integer], NDArray[np.float64], Flags]:
        word_BT = words.numbers[numbers]
        chosen_BT = (word_BT >= 0) & chosen[word_BT]
        tokens_BT = words.rows.tokens[numbers]
        micro = make_micro(words.rows, numbers, tokens_BT, np.where(chosen_BT, MASK, tokens_BT), chosen_BT).to(where)
        logits_MV = head(module.states(micro.tokens_BT, micro.segments_BT, micro.unseen), micro.places_M)
        nats_M = F.cross_entropy(logits_MV, micro.targets_M, reduction="none").double().cpu().numpy()
        right_M = (logits_MV.argmax(-1) == micro.targets_M).cpu().numpy()
        return word_BT[chosen_BT], nats_M, right_M

    for numbers in _batches(len(words.rows)):
        for word_M, nats_M, right_M in in_parts(score, numbers):
            np.add.at(nats, word_M, nats_M)
            known[word_M[~right_M]] = False
    return nats, known


def _detected(
    rtd: GeneratorAndDiscriminator, micro: Micro, logits_MV: Tensor
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """For each token but [PAD], the discriminator's probability that it was replaced, and whether it was."""
    assert micro.draws_M is not None
    sampled_M = sample(logits_MV, micro.draws_M)
    tokens_BT = corrupt(micro.tokens_BT, micro.places_M, sampled_M)
    original_BT = corrupt(micro.tokens_BT, micro.places_M, micro.targets_M)
    logits_BT = rtd.detect(tokens_BT, micro.segments_BT, micro.unseen)
    real_BT = original_BT != PAD
    return logits_BT[real_BT].double().sigmoid().cpu().numpy(), (tokens_BT != original_BT)[real_BT].cpu().numpy()
