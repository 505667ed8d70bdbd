"""Models that transformers trained for a moment say the same of a hundred real items when they are evaluated here.

Their side is written after the documented examples of transformers (run_qa.py with utils_qa.py, run_glue.py,
run_ner.py): its own tokenizer, a row at a time, without padding. The trunk and the vocabulary come over as
`paribus import hf` brings them; a task's head, which the product trains anew, is copied here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from paribus.data import vocabulary as vocabularies
from paribus.data.formats import Item, PairItem, SpanItem, TaggingItem, read
from paribus.data.vocabulary import Vocabulary
from paribus.evaluate.features import Feature, features
from paribus.evaluate.finetune import Split, Tuned, predict
from paribus.evaluate.metrics import bio
from paribus.interop.hf import bring, bring_tokenizer, read_config
from paribus.nn.build import build_encoder
from paribus.plan.stages import TaskTuning
from paribus.project import find, locate
from paribus.spec.data import Imported, WordPiece
from paribus.spec.finetuning import Windows
from paribus.spec.load import build
from paribus.spec.task import Task

transformers = pytest.importorskip("transformers", reason="needs the extra paribus[hf]")

ITEMS, LENGTH = 100, 128
SHORT = 35  # of pairs, so that many are cut
LABELS = ["entailment", "neutral", "contradiction"]  # as models on the hub have them, unlike tasks/mnli.yaml
WINDOWS = Windows(stride=40, question=62, maximum_context=False)
TASKS = {
    "squad": ("squad", "dev-v1.1.json"),
    "mnli-m": ("glue_data/MNLI", "dev_matched.tsv"),
    "conll2003": ("conll2003", "eng.testa"),
}


@dataclass(frozen=True)
class Real:
    """A hundred items of each task to predict and as many to learn from; a tokenizer of transformers."""

    tasks: dict[str, Task]
    dev: dict[str, list[Any]]
    train: dict[str, list[Any]]
    tokenizer: Any


@pytest.fixture(scope="module")
def real(root: Path, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Real:
    project = find(root)
    tasks = {name: project.task(name) for name in TASKS}
    dev: dict[str, list[Any]] = {}
    train: dict[str, list[Any]] = {}
    for name, (folder, file) in TASKS.items():
        items = read(tasks[name], locate(shared / folder, file)).items
        apart = items[:: len(items) // (2 * ITEMS)]
        dev[name], train[name] = apart[: 2 * ITEMS : 2], apart[1 : 2 * ITEMS : 2]
    for part in (dev, train):  # what the task stage does: IOB1 as BIO
        part["conll2003"] = [replace(item, labels=tuple(bio(item.labels))) for item in part["conll2003"]]
    texts = [item.content for items in train.values() for item in items]
    ours = vocabularies.make(WordPiece(vocabulary_size=1500), texts, tmp_path_factory.mktemp("vocabulary"))
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *ours.pieces[5:]]  # the order of BERT's own vocab.txt
    tokenizer = transformers.BertTokenizerFast(vocab={piece: id for id, piece in enumerate(pieces)})
    return Real(tasks, dev, train, tokenizer)


def trained(real: Real, kind: str, steps: int, rows: Callable[[int], dict[str, Any]], **config: Any) -> Any:
    """A small random model of transformers after `steps` updates, each on `rows` of the step."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    sizes |= {"vocab_size": len(real.tokenizer), "max_position_embeddings": LENGTH}
    told = transformers.BertConfig(**sizes, initializer_range=0.1, **config)
    model = getattr(transformers, kind)(told).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(steps):
        loss = model(**rows(step)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def brought(
    real: Real, model: Any, task: Task, head: dict[str, Tensor], folder: Path, length: int = LENGTH
) -> tuple[Tuned, Vocabulary]:
    """The model here: saved by transformers and imported, `head` in place of a fresh one."""
    model.save_pretrained(folder)
    real.tokenizer.save_pretrained(folder)
    (folder / "vocabulary").mkdir()
    spec, config = read_config(folder)
    told = {"path": "theirs", "vocabulary_size": config["vocab_size"], "lowercase": True}
    vocabulary = bring_tokenizer(build(Imported, told, "tokenizer"), folder, folder / "vocabulary")
    asked = {
        "task": task.model_dump(), "optimizer": {"kind": "adamw", "lr": 1e-3}, "schedule": "linear", "warmup": 0.1,
        "restart": 0, "train_items": None, "epochs": 1, "batch_items": 8, "dropout": 0.1, "length": length,
        "layer_decay": 1.0, "precision": "fp32", "choose_on": "select", "keep": "last", "patience": None,
        "pooling": "cls", "frozen": None, "windows": WINDOWS.model_dump() if task.kind == "span-qa" else None,
        "leaves_encoder": False,
    }  # fmt: skip
    recipe = build(TaskTuning, asked, "recipe")
    module = Tuned(build_encoder(spec, len(vocabulary)), spec.width, recipe, 1, 0, spec.init_std)
    module.encoder.load_state_dict(
        bring(spec, folder, [folder / "model.safetensors"], folder / "vocabulary")["encoder"]
    )
    module.head.load_state_dict(head)
    return module.eval(), vocabulary


def split(module: Tuned, items: Sequence[Item], vocabulary: Vocabulary) -> Split:
    return Split(list(items), features(module.task, items, vocabulary, module.length, module.windows))


def read_as(vocabulary: Vocabulary, found: Sequence[Feature]) -> list[tuple[list[str], list[int]]]:
    """The pieces of each row and their segments; ids differ, as ours number special pieces in another order."""
    segments = [[int(0 < f.second <= place) for place in range(len(f.ids))] for f in found]
    return [([vocabulary.pieces[id] for id in f.ids], kinds) for f, kinds in zip(found, segments, strict=True)]


def rows_of(tokenizer: Any, encoded: Any) -> list[tuple[list[str], list[int]]]:
    pairs = zip(encoded["input_ids"], encoded["token_type_ids"], strict=True)
    return [(tokenizer.convert_ids_to_tokens(ids), kinds) for ids, kinds in pairs]


@torch.no_grad()
def outputs(model: Any, encoded: Any) -> list[Any]:
    """What the model says of each row by itself."""
    rows = zip(encoded["input_ids"], encoded["token_type_ids"], strict=True)
    return [model(torch.tensor([ids]), token_type_ids=torch.tensor([segments])) for ids, segments in rows]


# --- SQuAD -----------------------------------------------------------------------------------------------------------


def windows_of(tokenizer: Any, item: SpanItem) -> Any:
    """run_qa.py's features. Its doc_stride is the overlap of two windows, ours is between their starts."""
    question = len(tokenizer(item.question, add_special_tokens=False)["input_ids"])
    return tokenizer(
        item.question.lstrip(),
        item.context,
        truncation="only_second",
        max_length=LENGTH,
        stride=LENGTH - 3 - question - WINDOWS.stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )


def with_answer(tokenizer: Any, item: SpanItem) -> dict[str, Tensor]:
    """The first window that holds the answer, as run_qa.py's prepare_train_features labels it."""
    encoded, answer = windows_of(tokenizer, item), item.answers[0]
    for row, offsets in enumerate(encoded["offset_mapping"]):
        places = [place for place, side in enumerate(encoded.sequence_ids(row)) if side == 1]
        starts = [place for place in places if offsets[place][0] <= answer.start < offsets[place][1]]
        ends = [place for place in places if offsets[place][0] < answer.start + len(answer.text) <= offsets[place][1]]
        if starts and ends:
            found = {name: torch.tensor([encoded[name][row]]) for name in ("input_ids", "token_type_ids")}
            return {**found, "start_positions": torch.tensor(starts[:1]), "end_positions": torch.tensor(ends[:1])}
    raise AssertionError(f"no window of {item.id} holds its answer")


def best_answer(encoded: Any, said: Sequence[Any], context: str) -> str:
    """utils_qa.py's postprocess_qa_predictions, version 1.1: 20 starts, 20 ends, answers of at most 30 tokens."""
    candidates = []
    for row, out in enumerate(said):
        sides, offsets = encoded.sequence_ids(row), encoded["offset_mapping"][row]
        start_logits, end_logits = out.start_logits[0].numpy(), out.end_logits[0].numpy()
        for start in np.argsort(start_logits)[-1:-21:-1]:
            for end in np.argsort(end_logits)[-1:-21:-1]:
                if sides[start] != 1 or sides[end] != 1 or end < start or end - start + 1 > 30:
                    continue
                score = start_logits[start] + end_logits[end]
                candidates.append((float(score), context[offsets[start][0] : offsets[end][1]]))
    return max(candidates, key=lambda candidate: candidate[0], default=(0.0, ""))[1]


def test_answers_to_squad_are_those_of_transformers(real: Real, tmp_path: Path) -> None:
    """The head: qa_outputs is ours `out`.

    Aligned by settings: `maximum_context: false`, as run_qa.py lets an answer begin in any window, BERT's code only in
    the one with most context; their overlap is worked out from our stride. Questions are never cut there, and short
    enough here. Where no span is allowed utils_qa.py writes "empty", ours gives no answer.
    """
    task, tokenizer = real.tasks["squad"], real.tokenizer
    learnt = [with_answer(tokenizer, item) for item in real.train["squad"]]
    model = trained(real, "BertForQuestionAnswering", 60, lambda step: learnt[step % len(learnt)])
    head = {"out.weight": model.qa_outputs.weight, "out.bias": model.qa_outputs.bias}
    module, vocabulary = brought(real, model, task, head, tmp_path)

    ours = split(module, real.dev["squad"], vocabulary)
    encoded = [windows_of(tokenizer, item) for item in ours.items if isinstance(item, SpanItem)]
    theirs = [row for windows in encoded for row in rows_of(tokenizer, windows)]
    assert len(theirs) > 3 * ITEMS
    assert read_as(vocabulary, ours.features) == theirs

    contexts = [item.context for item in ours.items if isinstance(item, SpanItem)]
    expected = [
        best_answer(windows, outputs(model, windows), context)
        for windows, context in zip(encoded, contexts, strict=True)
    ]
    assert len(expected) == ITEMS and len(set(expected)) > ITEMS / 2
    assert [prediction.answer for prediction in predict(module, ours)] == expected


# --- MNLI ------------------------------------------------------------------------------------------------------------


def test_labels_of_mnli_are_those_of_transformers(real: Real, tmp_path: Path) -> None:
    """The head: bert.pooler.dense, a tanh, dropout, classifier are ours `dense`, tanh, dropout, `out`.

    The rows of the classifier go by label, as the order of labels is another one there. Aligned by length: of
    two sides that are cut alike and an odd room, ours gives the first the token more (BERT's run_classifier.py), the
    tokenizers of transformers the longer; so the room is even. With it all cuts are the same.
    """
    task, tokenizer = real.tasks["mnli-m"], real.tokenizer

    def encode(items: Sequence[PairItem], **asked: Any) -> Any:
        pairs = [item.sentence1 for item in items], [item.sentence2 for item in items]
        return tokenizer(*pairs, truncation="longest_first", max_length=SHORT, **asked)

    def batch(step: int) -> dict[str, Any]:
        items = real.train["mnli-m"][step % 10 :: 10]
        labels = torch.tensor([LABELS.index(item.label) for item in items])
        return {**encode(items, padding=True, return_tensors="pt"), "labels": labels}

    model = trained(real, "BertForSequenceClassification", 150, batch, num_labels=3)
    order = [LABELS.index(label) for label in task.labels]  # type: ignore[attr-defined]
    head = {
        "dense.weight": model.bert.pooler.dense.weight,
        "dense.bias": model.bert.pooler.dense.bias,
        "out.weight": model.classifier.weight[order],
        "out.bias": model.classifier.bias[order],
    }
    module, vocabulary = brought(real, model, task, head, tmp_path, SHORT)

    ours = split(module, real.dev["mnli-m"], vocabulary)
    encoded = encode(real.dev["mnli-m"])
    assert 10 < sum(len(feature.ids) == SHORT for feature in ours.features) < ITEMS
    assert read_as(vocabulary, ours.features) == rows_of(tokenizer, encoded)
    logits = [out.logits[0] for out in outputs(model, encoded)]
    expected = [LABELS[int(row.argmax())] for row in logits]
    assert len(expected) == ITEMS and set(expected) == set(LABELS)
    found = predict(module, ours)
    assert [prediction.answer for prediction in found] == expected
    scores = torch.tensor([prediction.scores for prediction in found])
    assert torch.allclose(scores, torch.stack(logits)[:, order], rtol=0, atol=1e-4)


# --- CoNLL-2003 ------------------------------------------------------------------------------------------------------


def test_tags_of_conll_are_those_of_transformers(real: Real, tmp_path: Path) -> None:
    """The head: classifier is ours `out`. A word has the label of its first piece on both sides.

    Aligned by length: no sentence is cut, so that it does not matter that ours cuts before a whole word, and calls what
    it cut off O (its gold labels still count), where run_ner.py cuts inside and scores nothing of what is cut off.
    """
    task, tokenizer = real.tasks["conll2003"], real.tokenizer
    labels = list(task.labels)  # type: ignore[attr-defined]

    def encode(items: Sequence[TaggingItem], **asked: Any) -> Any:
        words = [list(item.words) for item in items]
        return tokenizer(words, is_split_into_words=True, truncation=True, max_length=LENGTH, **asked)

    def firsts(encoded: Any, row: int) -> list[int]:
        """Where the first piece of each word is."""
        of = encoded.word_ids(row)
        return [place for place, word in enumerate(of) if word is not None and word != of[place - 1]]

    def batch(step: int) -> dict[str, Any]:
        items = real.train["conll2003"][step % 10 :: 10]
        encoded = encode(items, padding=True, return_tensors="pt")
        target = torch.full_like(encoded["input_ids"], -100)
        for row, item in enumerate(items):
            target[row, firsts(encoded, row)] = torch.tensor([labels.index(label) for label in item.labels])
        return {**encoded, "labels": target}

    model = trained(real, "BertForTokenClassification", 200, batch, num_labels=len(labels))
    head = {"out.weight": model.classifier.weight, "out.bias": model.classifier.bias}
    module, vocabulary = brought(real, model, task, head, tmp_path)

    ours = split(module, real.dev["conll2003"], vocabulary)
    encoded = encode(real.dev["conll2003"])
    assert read_as(vocabulary, ours.features) == rows_of(tokenizer, encoded)
    expected = [
        [labels[label] for label in out.logits[0].argmax(-1)[firsts(encoded, row)].tolist()]
        for row, out in enumerate(outputs(model, encoded))
    ]
    assert len(expected) == ITEMS and len({tag for tags in expected for tag in tags}) > 3
    assert [prediction.answer for prediction in predict(module, ours)] == expected
