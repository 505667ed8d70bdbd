"""Minimal pairs, zero-shot: of two sentences that differ in one thing, is the acceptable one scored higher?

    stage folder: scores.parquet (id, paradigm, phenomenon, good, bad), the scores in nats

After masked language modelling a sentence is scored by its pseudo-log-likelihood, the sum over its pieces t of
log p(t | the sentence with t masked): Salazar et al. 2020, arXiv:1910.14659, section 2.  With `within-word-l2r` the
later pieces of t's word are masked too, with `within-word-mlm` all of them: Kauf and Ivanova 2023, arXiv:2305.10588.
After replaced-token detection it is the sum of log P(original) over its pieces, nothing masked; of an encoder that
predicts instead (ELECTRA's controls) P is what it gives the piece that stands there, copied or not.

Sentences of one length go together, all copies of all of them, so no batch has padding.  A sentence is scored once,
however often it stands in the pairs, so two that read the same to the model tie exactly.

N copies of S sentences of T tokens, [CLS] and [SEP] included
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import pyarrow
import torch
import torch.nn.functional as F
from pyarrow import parquet
from torch import Tensor, nn

from paribus.data.formats import MinimalPairItem, read_items
from paribus.data.vocabulary import CLS, MASK, SEP, Vocabulary
from paribus.data.words import continues_word
from paribus.errors import DataError
from paribus.evaluate.held_out import has_head, load_mlm, load_rtd
from paribus.nn.encoder import Encoder
from paribus.nn.rtd import GeneratorAndDiscriminator
from paribus.plan.stages import PairTest
from paribus.seeds import seed_for
from paribus.spec import model as spec
from paribus.spec.objective import Objective, Rtd
from paribus.spec.run import PairScore, Runtime
from paribus.store.store import Work
from paribus.train.fit import device, use_threads
from paribus.train.memory import in_parts

BATCH_TOKENS = {"cpu": 2**13, "cuda": 2**17}
MOST_LOGITS = 2**27  # half a GB of them at once, whatever the vocabulary
SPECIAL = -1  # the word of [CLS] and [SEP]

Scorer = Callable[[Tensor, Tensor], Tensor]
"""ids_ST and word_ST, the number of each token's word, to a score for each sentence (S,), float64 nats."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """What a model reads. Sentences that are equal here have one score."""

    ids: tuple[int, ...]
    words: tuple[int, ...]


def sentences(texts: Sequence[str], vocabulary: Vocabulary, score: PairScore) -> list[Sentence]:
    """[CLS] pieces [SEP] of each text. For the original score each piece is a word of its own."""
    found = []
    for text, encoded in zip(texts, vocabulary.encode_all(texts), strict=True):
        words = range(len(encoded.ids))
        if score != "original" and encoded.ids:
            words = (np.cumsum(~continues_word(text, encoded.spans)) - 1).tolist()
        found.append(Sentence((CLS, *encoded.ids, SEP), (SPECIAL, *words, SPECIAL)))
    return found


def masked_copies(ids_ST: Tensor, word_ST: Tensor, copies_N: Tensor, whole: bool) -> tuple[Tensor, Tensor]:
    """Inputs (N, T) and the place (N,) each copy is asked about; copy c is of piece c % (T - 2) of its sentence.

    Masked are that piece and the later ones of its word; `whole`: all of its word.
    """
    pieces = ids_ST.shape[1] - 2
    sentence_N, place_N = copies_N // pieces, 1 + copies_N % pieces
    word_NT = word_ST[sentence_N]
    masked_NT = word_NT == word_NT.gather(1, place_N[:, None])
    if not whole:
        masked_NT &= torch.arange(ids_ST.shape[1], device=ids_ST.device) >= place_N[:, None]
    return ids_ST[sentence_N].masked_fill(masked_NT, MASK), place_N


def pseudo_log_likelihood(module: Encoder, head: nn.Module, score: PairScore, vocabulary: int, tokens: int) -> Scorer:
    """By a masked language model; at most `tokens` tokens at once."""

    def scored(ids_ST: Tensor, word_ST: Tensor) -> Tensor:
        size, length = ids_ST.shape
        copies = size * (length - 2)
        rows = max(1, min(tokens // length, MOST_LOGITS // vocabulary))

        def asked(copies_N: Tensor) -> Tensor:
            inputs_NT, place_N = masked_copies(ids_ST, word_ST, copies_N, score == "within-word-mlm")
            at_N = torch.arange(len(copies_N), device=ids_ST.device) * length + place_N
            logits_NV = head(module.states(inputs_NT), at_N)
            target_N = ids_ST[copies_N // (length - 2), place_N]
            return -F.cross_entropy(logits_NV.float(), target_N, reduction="none").double()

        logp = [torch.empty(0, dtype=torch.float64, device=ids_ST.device)]
        for copies_N in torch.split(torch.arange(copies, device=ids_ST.device), rows):
            logp += in_parts(asked, copies_N) if len(copies_N) else []
        return torch.cat(logp).view(size, length - 2).sum(1)

    return scored


def log_originality(rtd: GeneratorAndDiscriminator, tokens: int) -> Scorer:
    """By a discriminator, or what takes its place; at most `tokens` tokens at once."""
    vocabulary = rtd.vocabulary_head and rtd.encoder.tokens.num_embeddings
    if vocabulary:
        tokens = min(tokens, MOST_LOGITS // vocabulary)

    def asked(ids_ST: Tensor) -> Tensor:
        return _log_original(rtd, ids_ST)[:, 1:-1].sum(1)

    def scored(ids_ST: Tensor, word_ST: Tensor) -> Tensor:
        rows = max(1, tokens // ids_ST.shape[1])
        return torch.cat([found for part_ST in torch.split(ids_ST, rows) for found in in_parts(asked, part_ST)])

    return scored


def _log_original(rtd: GeneratorAndDiscriminator, ids_ST: Tensor) -> Tensor:
    """The logarithm of the probability (S, T) that the original token is the one that stands there."""
    if rtd.vocabulary_head is None:
        return F.logsigmoid(-rtd.detect(ids_ST, None, None).double())
    places_N = torch.arange(ids_ST.numel(), device=ids_ST.device)
    logits_NV, copy_N = rtd.restore(ids_ST, None, None, places_N)
    logp_N = -F.cross_entropy(logits_NV.float(), ids_ST.flatten(), reduction="none").double()
    if copy_N is not None:  # p = D + (1 - D) p_MLM: as in paribus.objectives.rtd, a positive logit says copy
        logp_N = torch.logaddexp(F.logsigmoid(copy_N.double()), F.logsigmoid(-copy_N.double()) + logp_N)
    return logp_N.view_as(ids_ST)


@torch.no_grad()
def scores(asked: Iterable[Sentence], scorer: Scorer, where: torch.device) -> dict[Sentence, float]:
    """The score of each sentence."""
    by_length: dict[int, list[Sentence]] = defaultdict(list)
    for sentence in dict.fromkeys(asked):
        by_length[len(sentence.ids)].append(sentence)
    found: dict[Sentence, float] = {}
    for _, group in sorted(by_length.items()):
        ids_ST, word_ST = (torch.tensor([getattr(s, name) for s in group], device=where) for name in ("ids", "words"))
        found.update(zip(group, scorer(ids_ST, word_ST).tolist(), strict=True))
    return found


def drawn(items: Sequence[MinimalPairItem], per_paradigm: int | None) -> list[MinimalPairItem]:
    """`per_paradigm` items of each paradigm, or all, in their order: those that their text decides, for every model."""
    if per_paradigm is None:
        return list(items)
    taken: Counter[str] = Counter()
    kept = []
    for number in sorted(range(len(items)), key=lambda n: seed_for(0, "minimal pairs", items[n].good, items[n].bad)):
        taken[items[number].paradigm] += 1
        if taken[items[number].paradigm] <= per_paradigm:
            kept.append(number)
    return [items[number] for number in sorted(kept)]


@dataclass(frozen=True, slots=True)
class Judged:
    """A pair and its two scores."""

    item: MinimalPairItem
    good: float
    bad: float


def judge(
    items: Sequence[MinimalPairItem],
    vocabulary: Vocabulary,
    score: PairScore,
    length: int,
    scorer: Scorer,
    where: torch.device,
) -> list[Judged]:
    """Both scores of each pair, but for pairs with a sentence of more than `length` tokens."""
    good, bad = (sentences([getattr(item, side) for item in items], vocabulary, score) for side in ("good", "bad"))
    pairs = [pair for pair in zip(items, good, bad, strict=True) if max(len(pair[1].ids), len(pair[2].ids)) <= length]
    found = scores([sentence for _, *both in pairs for sentence in both], scorer, where)
    return [Judged(item, found[good], found[bad]) for item, good, bad in pairs]


def measures(judged: Sequence[Judged]) -> dict[str, tuple[float, int]]:
    """Each measure and the number of pairs it is of; a tie is wrong.

    accuracy: the mean over paradigms; phenomenon-accuracy: over phenomena, each the mean over its paradigms; of each
    paradigm and phenomenon after a point.  ties: the share of all pairs.
    """
    right: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for pair in judged:
        right[pair.item.phenomenon][pair.item.paradigm].append(pair.good > pair.bad)
    every, count = {}, len(judged)
    means = {phenomenon: {p: fmean(answers) for p, answers in inside.items()} for phenomenon, inside in right.items()}
    for phenomenon, inside in right.items():
        size = sum(map(len, inside.values()))
        every[f"phenomenon-accuracy.{phenomenon}"] = fmean(means[phenomenon].values()), size
        every |= {f"accuracy.{p}": (means[phenomenon][p], len(answers)) for p, answers in inside.items()}
    return {
        "accuracy": (fmean(value for inside in means.values() for value in inside.values()), count),
        "phenomenon-accuracy": (fmean(fmean(inside.values()) for inside in means.values()), count),
        "ties": (fmean(pair.good == pair.bad for pair in judged), count),
        **every,
    }


@torch.no_grad()
def minimal_pairs(
    asked: PairTest,
    objective: Objective,
    encoder: spec.Encoder,
    vocabulary: Vocabulary,
    pretrained: Path,
    task_folder: Path,
    work: Work,
    runtime: Runtime,
) -> None:
    """Rows the measures of the pairs, and how many were left out because a sentence is longer than `asked.length`.

    No row of an imported encoder that came without a vocabulary head.
    """
    if not has_head(pretrained):
        return
    use_threads(runtime)
    where = device(runtime)
    tokens, size, score = BATCH_TOKENS[where.type], len(vocabulary), asked.scoring.score
    if isinstance(objective, Rtd):
        scorer = log_originality(load_rtd(encoder, objective, size, pretrained).to(where).eval(), tokens)
    else:
        module, head = load_mlm(encoder, size, pretrained)
        module.to(where).eval()
        scorer = pseudo_log_likelihood(module, head.to(where).eval(), score, size, tokens)

    def stoppable(ids_ST: Tensor, word_ST: Tensor) -> Tensor:
        work.may_stop()
        return scorer(ids_ST, word_ST)

    items = [item for item in read_items(task_folder / "dev.jsonl") if isinstance(item, MinimalPairItem)]
    items = drawn(items, asked.scoring.per_paradigm)
    judged = judge(items, vocabulary, score, asked.length, stoppable, where)
    if not judged:
        raise DataError(f"task {asked.task.name}: no pair fits into packing.length, {asked.length} tokens")
    for metric, (value, count) in measures(judged).items():
        work.row(metric, value, split="dev", n=count)
    work.row("too_long", len(items) - len(judged), split="dev", n=len(items))
    columns = {name: [getattr(pair.item, name) for pair in judged] for name in ("id", "paradigm", "phenomenon")}
    columns |= {name: [getattr(pair, name) for pair in judged] for name in ("good", "bad")}
    parquet.write_table(pyarrow.table(columns), work.out / "scores.parquet")
