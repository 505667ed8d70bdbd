"""Fine-tuning: every head can learn, seeds decide what they should, and what cannot be answered is a wrong answer."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from paribus.data.document import Document
from paribus.data.formats import (
    Answer,
    Item,
    PairItem,
    RegressionItem,
    SentenceItem,
    SpanItem,
    TaggingItem,
    write_items,
)
from paribus.data.vocabulary import Vocabulary
from paribus.evaluate import finetune as module
from paribus.evaluate.features import features
from paribus.evaluate.finetune import Epochs, Tuned, finetune, predict
from paribus.evaluate.metrics import METRICS
from paribus.nn.build import build_encoder
from paribus.nn.init import initialise
from paribus.plan.stages import TaskTuning
from paribus.spec import model as spec
from paribus.spec.load import build
from paribus.spec.run import Runtime
from paribus.spec.task import Task
from paribus.store.store import Work

SIZE = 512
LABELS = {"pair": ["no", "yes", "maybe"], "tagging": ["O", "A", "B"]}
FINDS = {"sentence": "accuracy", "pair": "accuracy", "regression": "pearson", "span-qa": "em", "tagging": "accuracy"}


def task(kind: str) -> Task:
    data = {"kind": "built", "builder": "order", "train": 8, "dev": 8}
    given = {"name": kind, "source": "s", "data": data, "metrics": sorted(METRICS[kind]), "kind": kind}
    return build(Task, {**given, **({"labels": LABELS[kind]} if kind in LABELS else {})}, "task")


def recipe(kind: str, **changes: object) -> TaskTuning:
    given = {
        "optimizer": {"kind": "adamw", "lr": 3e-3, "weight_decay": 0.0}, "schedule": {"kind": "linear", "warmup": 0.1},
        "restart": 0, "train_items": None, "epochs": 50, "batch_items": 8, "dropout": 0.0, "length": 32,
        "layer_decay": 1.0, "precision": "fp32",
    }  # fmt: skip
    return build(TaskTuning, {"task": task(kind).model_dump(), **given, **changes}, "recipe")


def items(kind: str, documents: Sequence[Document], count: int = 32) -> list[Item]:
    """Items of a kind whose answers have nothing to do with their texts."""
    found = dict.fromkeys(s for document in documents for s in document.sentences if 6 <= len(s.split()) <= 12)
    sentences = list(found)[: count + 1]
    made: list[Item] = []
    for number, (one, two) in enumerate(zip(sentences, sentences[1:], strict=False)):
        words = tuple(one.split())
        place = number * 7 % len(words)
        start = len(" ".join(words[:place])) + (place > 0)
        match kind:
            case "sentence":
                made.append(SentenceItem(str(number), one, str(number * 5 % 7 % 2)))
            case "pair":
                made.append(PairItem(str(number), one, two, LABELS["pair"][number * 5 % 7 % 3]))
            case "regression":
                made.append(RegressionItem(str(number), one, two, number * 5 % 7 / 3))
            case "span-qa":
                made.append(SpanItem(str(number), "the", one, (Answer(words[place], start),)))
            case "tagging":
                labels = tuple(LABELS["tagging"][(number + k) % 3] for k in range(len(words)))
                made.append(TaggingItem(str(number), words, labels))
    return made


@pytest.fixture(scope="session")
def small(encoder: Callable[..., spec.Encoder]) -> spec.Encoder:
    return encoder(
        width=32, position={"kind": "relative-bias"}, feed_forward={"kind": "gelu", "width": 64}, init_std=0.1
    )


@pytest.fixture(scope="session")
def pretrained(small: spec.Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an encoder that learnt nothing yet."""
    folder = tmp_path_factory.mktemp("pretrained")
    made = build_encoder(small, SIZE)
    initialise(made, 0, 0.1)
    save_file(made.state_dict(), folder / "encoder.safetensors")
    return folder


@pytest.fixture
def tuned(
    small: spec.Encoder,
    pretrained: Path,
    vocabulary: Vocabulary,
    documents: list[Document],
    tmp_path: Path,
    begin: Callable[..., Work],
) -> Callable[..., dict[str, Any]]:
    """Fine-tunes on 32 items, which are `select` and `dev` too: what the record, the rows and the predictions say."""

    def run(asked: TaskTuning, seed: int = 0) -> dict[str, Any]:
        found = items(asked.task.kind, documents)
        for split in ("train", "select", "dev"):
            write_items(tmp_path / f"{split}.jsonl", found)
        with begin("finetune", asked, seed) as work:
            said = finetune(asked, seed, small, vocabulary, pretrained, tmp_path, work, Runtime(device="cpu"))
            path = work.out / "predictions.jsonl"
            lines = path.read_text().splitlines() if path.exists() else []
            rows = {(row["metric"], row["split"]): row["value"] for row in work._rows}
            return {**said, "rows": rows, "predictions": [json.loads(line) for line in lines]}

    return run


@pytest.mark.parametrize("kind", FINDS)
def test_every_head_learns_32_items_by_heart(tuned: Callable[..., dict[str, Any]], kind: str) -> None:
    found = tuned(recipe(kind))
    assert found["outcome"] == "done"
    assert found["rows"][FINDS[kind], "dev"] >= (0.98 if kind == "regression" else 1.0)
    assert set(found["rows"]) == {(metric, split) for metric in METRICS[kind] for split in ("select", "dev")}
    assert len(found["predictions"]) == 64


def test_the_seed_and_the_restart_decide_the_result_and_nothing_else_does(tuned: Callable[..., dict[str, Any]]) -> None:
    def predictions(seed: int = 0, **changes: object) -> list[Any]:
        return [
            line["predicted"]
            for line in tuned(recipe("regression", epochs=1, dropout=0.1, **changes), seed)["predictions"]
        ]

    torch.manual_seed(1)
    first = predictions()
    torch.manual_seed(2)
    assert predictions() == first
    assert predictions(seed=1) != first and predictions(restart=1) != first


def test_order_head_and_dropout_follow_the_seed(
    small: spec.Encoder, vocabulary: Vocabulary, documents: list[Document]
) -> None:
    asked = features(task("sentence"), items("sentence", documents), vocabulary, 32)
    orders = [[f.item for batch in Epochs(asked, 8, 2, seed) for f in batch] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0][:32] != orders[0][32:] and sorted(orders[0][:32]) == sorted(orders[0][32:]) == list(range(32))
    heads = [
        Tuned(build_encoder(small, SIZE), 32, recipe("sentence", restart=restart), 10, seed, 0.1).head.dense.weight
        for seed, restart in ((0, 0), (0, 0), (0, 1), (1, 0))
    ]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2]) and not torch.equal(heads[0], heads[3])


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_each_layer_takes_a_share_of_the_rate_of_the_one_above(encoder: Callable[..., spec.Encoder], norm: str) -> None:
    made = encoder(layers=3, norm=norm, convolution=3)
    asked = recipe("sentence", layer_decay=0.8, optimizer={"kind": "adamw", "lr": 1e-3, "weight_decay": 0.01})
    found = Tuned(build_encoder(made, 20), made.width, asked, 10, 0, 0.02)
    optimizer = found.configure_optimizers()["optimizer"]
    rates = {id(p): group["initial_lr"] for group in optimizer.param_groups for p in group["params"]}
    assert len(rates) == len(list(found.parameters()))
    # ELECTRA's code: layer l of N is at depth l, the head at N + 2.
    expected = {"head": 0, "blocks.2": 2, "blocks.1": 3, "blocks.0": 4, "convolution": 4, "tokens": 5, "segments": 5}
    for name, parameter in found.named_parameters():
        place = name.removeprefix("encoder.")
        at = next((n for part, n in expected.items() if place.startswith(part)), 2 if "last" in place else 5)
        assert rates[id(parameter)] == pytest.approx(1e-3 * 0.8**at), name
    assert optimizer.param_groups[0]["initial_lr"] == 1e-3  # the head's, which is recorded
    decays = {id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    assert decays == {id(p) for p in found.parameters() if p.ndim > 1}


def test_a_layer_decay_moves_a_finetuning(tuned: Callable[..., dict[str, Any]]) -> None:
    plain, decayed = (tuned(recipe("regression", epochs=3, layer_decay=decay)) for decay in (1.0, 0.5))
    assert plain["rows"] != decayed["rows"]


def test_only_the_first_train_items_are_seen_when_fewer_are_asked_for(tuned: Callable[..., dict[str, Any]]) -> None:
    found = tuned(recipe("sentence", train_items=4, epochs=100))
    right = [line["gold"] == line["predicted"] for line in found["predictions"][:32]]
    assert all(right[:4]) and not all(right)


def test_a_finetuning_that_diverges_is_a_result(tuned: Callable[..., dict[str, Any]]) -> None:
    found = tuned(recipe("sentence", optimizer={"kind": "adamw", "lr": 1e38}))
    assert found["outcome"] == "diverged" and found["diverged_step"] > 1 and found["rows"] == {}


@pytest.mark.parametrize("kind", FINDS)
def test_predictions_do_not_depend_on_the_batches(
    small: spec.Encoder,
    pretrained: Path,
    vocabulary: Vocabulary,
    documents: list[Document],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    tuned = Tuned(module.load_encoder(small, SIZE, pretrained), 32, recipe(kind), 10, 0, 0.5).eval()
    asked = items(kind, documents)
    whole = predict(tuned, asked, vocabulary)
    monkeypatch.setattr(module, "BATCH_ROWS", 3)
    parts = predict(tuned, asked, vocabulary)
    assert parts == (pytest.approx(whole, abs=1e-4) if kind == "regression" else whole)


def test_an_input_may_be_as_long_as_the_positions_reach(
    encoder: Callable[..., spec.Encoder], vocabulary: Vocabulary, documents: list[Document]
) -> None:
    # 30 is no multiple of eight, to which batches are padded.
    made = build_encoder(encoder(position={"kind": "absolute", "max_length": 30}), SIZE)
    initialise(made, 0, 0.1)
    tuned = Tuned(made, 16, recipe("pair", length=30), 10, 0, 0.1).eval()
    assert len(predict(tuned, items("pair", documents), vocabulary)) == 32


def test_words_that_were_cut_off_get_the_first_label(
    small: spec.Encoder, vocabulary: Vocabulary, documents: list[Document]
) -> None:
    made = build_encoder(small, SIZE)
    initialise(made, 0, 0.1)
    tuned = Tuned(made, 32, recipe("tagging", length=16), 10, 0, 0.1).eval()
    with torch.no_grad():
        tuned.head.out.bias[1] = 1e3
    long = TaggingItem("0", tuple(["the"] * 40), tuple(["A"] * 40))
    assert predict(tuned, [long], vocabulary) == [["A"] * 14 + ["O"] * 26]


def test_an_answer_is_one_stretch_of_the_passage_of_thirty_tokens_at_most(
    small: spec.Encoder, vocabulary: Vocabulary
) -> None:
    made = build_encoder(small, SIZE)
    initialise(made, 0, 0.3)
    passage = " ".join(f"the states of {number}" for number in range(30))
    asked: list[Item] = [SpanItem(str(n), "the " * n, passage, (Answer("the", 0),)) for n in range(8)]
    asked.append(SpanItem("empty", "the", "", (Answer("", 0),)))
    for seed in range(3):
        tuned = Tuned(made, 32, recipe("span-qa"), 10, seed, 1.0).eval()
        answers = predict(tuned, asked, vocabulary)
        assert answers[-1] == "" and all(answer and answer in passage for answer in answers[:-1])
        assert all(len(vocabulary.encode(answer).ids) <= module.LONGEST_ANSWER for answer in answers)
