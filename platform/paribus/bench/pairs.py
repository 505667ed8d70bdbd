"""How fast minimal pairs are scored: pieces, masked copies and all, by the encoder of a scale, not trained."""

import statistics
import tempfile
import time
from itertools import islice
from pathlib import Path

from paribus.data import builders, corpus, vocabulary
from paribus.data.formats import MinimalPairItem
from paribus.evaluate.minimal_pairs import BATCH_TOKENS, judge, pseudo_log_likelihood
from paribus.nn.build import build_encoder, build_head
from paribus.nn.init import initialise
from paribus.plan.arms import arms
from paribus.project import find
from paribus.spec.run import Runtime
from paribus.train.fit import device, use_threads


def measure(scale: str, pairs: int, repeats: int, runtime: Runtime) -> None:
    """`pairs` pairs of the embedded corpus, whose sentences are longer than BLiMP's."""
    run = arms(find(), "masking", scale)[0].run
    documents = [corpus.to_document(text, "rules") for text in corpus.texts(run.corpus, [])]
    made = islice(builders.BUILDERS["minimal-pairs"].make(documents, 0), pairs)
    items = [item for item in made if isinstance(item, MinimalPairItem)]
    with tempfile.TemporaryDirectory() as folder:
        sentences = [sentence for document in documents for sentence in document.sentences]
        words = vocabulary.make(run.tokenizer, sentences, Path(folder))
    use_threads(runtime)
    where = device(runtime)
    module = build_encoder(run.encoder, len(words))
    head = build_head(run.encoder, module)
    for part in (module, head):
        initialise(part, 0, run.encoder.init_std)
        part.to(where).eval()
    score = run.evaluation.minimal_pairs.score
    scorer = pseudo_log_likelihood(module, head, score, len(words), BATCH_TOKENS[where.type])
    seconds = []
    for _ in range(repeats + 1):  # the first warms up
        start = time.perf_counter()
        judged = judge(items, words, score, run.packing.length, scorer, where)
        seconds.append(time.perf_counter() - start)
    rate = 60 * len(items) / statistics.median(seconds[1:])
    size = sum(parameter.numel() for parameter in [*module.parameters(), *head.parameters()])
    tokens = statistics.fmean(len(words.encode(item.good).ids) for item in items)
    print(
        f"{rate:,.0f} pairs a minute (median of {repeats}, {min(seconds[1:]):.2f} to {max(seconds[1:]):.2f} s)  "
        f"{len(judged):,} of {len(items):,} pairs, {tokens:.1f} pieces a sentence, {score}, "
        f"{size / 1e6:.1f}M parameters, {where}"
    )
