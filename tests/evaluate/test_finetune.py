"""Fine-tuning: every head can learn, seeds decide what they should, and what cannot be answered is a wrong answer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from paribus.data.document import Document
from paribus.data.formats import (
    Answer,
    ChoiceItem,
    Item,
    PairItem,
    RegressionItem,
    SentenceItem,
    SpanItem,
    TaggingItem,
    read,
    write_items,
)
from paribus.data.vocabulary import Vocabulary
from paribus.errors import Stopped
from paribus.evaluate import finetune as module
from paribus.evaluate import predictions
from paribus.evaluate.batch import Batch
from paribus.evaluate.features import Feature, features, items_of, load, make
from paribus.evaluate.finetune import Best, Epochs, Split, Tuned, best_span, finetune, predict
from paribus.evaluate.held_out import load_encoder
from paribus.evaluate.metrics import GROUPED, METRICS, Options, score
from paribus.nn.build import build_encoder
from paribus.nn.init import initialise
from paribus.plan.stages import TaskTuning, Tokenised
from paribus.project import find, locate
from paribus.spec import model as spec
from paribus.spec.finetuning import Windows
from paribus.spec.load import build
from paribus.spec.run import Runtime
from paribus.spec.task import Task
from paribus.store.store import Work, read_jsonl

SIZE = 512
CPU = Runtime(device="cpu")
LABELS = {"pair": ["no", "yes", "maybe"], "tagging": ["O", "A", "B"]}
FINDS = {
    "sentence": "accuracy", "pair": "accuracy", "regression": "pearson", "span-qa": "em", "tagging": "accuracy",
    "multiple-choice": "accuracy",
}  # fmt: skip


def task(kind: str, **changes: object) -> Task:
    data = {"kind": "built", "builder": "order", "train": 8, "dev": 8}
    metrics = sorted(METRICS[kind].keys() - GROUPED)
    given = {"name": kind, "source": "s", "data": data, "metrics": metrics, "kind": kind, **changes}
    return build(Task, {**given, **({"labels": LABELS[kind]} if kind in LABELS else {})}, "task")


def recipe(kind: str, **changes: object) -> TaskTuning:
    given = {
        "optimizer": {"kind": "adamw", "lr": 3e-3, "weight_decay": 0.0}, "schedule": "linear", "warmup": 0.1,
        "restart": 0, "train_items": None, "epochs": 50, "batch_items": 8, "dropout": 0.0, "length": 32,
        "layer_decay": 1.0, "precision": "fp32", "choose_on": "select", "keep": "last", "patience": None,
        "pooling": "cls", "frozen": None,        "windows": {} if kind == "span-qa" else None, "leaves_encoder": False,
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
            case "multiple-choice":
                label = number * 5 % 7 % 3
                options = [" ".join(words[:3]), " ".join(words[3:5]), two]
                made.append(ChoiceItem(str(number), one, "so", tuple(options), label))
    return made


def split(kind: str, found: Sequence[Item], vocabulary: Vocabulary, length: int = 32) -> Split:
    return Split(list(found), features(task(kind), found, vocabulary, length))


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

    def run(
        asked: TaskTuning,
        seed: int = 0,
        stops: Sequence[int] = (),
        runtime: Runtime = CPU,
        **others: Sequence[Item],
    ) -> dict[str, Any]:
        found = items(asked.task.kind, documents)
        for split in ("train", "select", "dev"):
            write_items(tmp_path / f"{split}.jsonl", others.get(split, found))
        tokenised = Tokenised(**{name: getattr(asked, name) for name in Tokenised.model_fields})
        make(tokenised, vocabulary, tmp_path, tmp_path)
        module._split.cache_clear()  # a stage's folder never changes, this one does
        for steps in stops:
            asked_to, work = iter(range(10**6)), begin("finetune", asked, seed)
            work._stop = lambda asked_to=asked_to, steps=steps: next(asked_to) >= steps - 1
            with pytest.raises(Stopped), work:
                finetune(asked, seed, small, pretrained, tmp_path, tmp_path, work, runtime)
        with begin("finetune", asked, seed) as work:
            said = finetune(asked, seed, small, pretrained, tmp_path, tmp_path, work, runtime)
            path = work.out / predictions.FILE
            rows = {(row["metric"], row["split"]): row["value"] for row in work.rows}
            told = list(predictions.read(path)) if path.exists() else []
            left = load_file(work.out / "encoder.safetensors") if asked.leaves_encoder else None
            steps = [point["step"] for point in read_jsonl(work.scratch / "curve.jsonl")]
            return {**said, "rows": rows, "predictions": told, "encoder": left, "steps": steps}

    return run


@pytest.mark.parametrize("kind", FINDS)
def test_every_head_learns_32_items_by_heart(tuned: Callable[..., dict[str, Any]], kind: str) -> None:
    found = tuned(recipe(kind))
    assert found["outcome"] == "done"
    assert found["rows"][FINDS[kind], "dev"] >= (0.98 if kind == "regression" else 1.0)
    metrics = METRICS[kind].keys() - GROUPED
    assert set(found["rows"]) == {(metric, split) for metric in metrics for split in ("select", "dev")}
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
    units, lengths = split("sentence", items("sentence", documents), vocabulary).units()
    orders = [[f.item for batch in Epochs(units, lengths, 8, 2, seed) for f in batch] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0][:32] != orders[0][32:] and sorted(orders[0][:32]) == sorted(orders[0][32:]) == list(range(32))
    heads = [
        Tuned(build_encoder(small, SIZE), 32, recipe("sentence", restart=restart), 10, seed, 0.1).head.dense.weight
        for seed, restart in ((0, 0), (0, 0), (0, 1), (1, 0))
    ]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2]) and not torch.equal(heads[0], heads[3])


@pytest.mark.parametrize("changes", [{}, {"keep": "best", "patience": 2}], ids=["last", "best"])
def test_a_fine_tuning_that_was_stopped_twice_ends_bit_for_bit_like_one_that_was_not(
    tuned: Callable[..., dict[str, Any]], changes: dict[str, Any]
) -> None:
    asked = recipe("sentence", epochs=6, dropout=0.1, leaves_encoder=True, **changes)
    whole = tuned(asked)
    resumed = tuned(asked, stops=(5, 7))  # in the middle of an epoch and, at step 12, at the end of one
    for name in ("rows", "predictions", "steps"):
        assert resumed[name] == whole[name]
    assert (whole["resumed_at"], resumed["resumed_at"]) == (0, 12)
    assert whole["sdpa"] == "auto"
    for name, weight in whole["encoder"].items():
        assert torch.equal(resumed["encoder"][name], weight), name


@pytest.mark.drill
@pytest.mark.parametrize("keep", ["last", "best"])
def test_a_fine_tuning_killed_at_twenty_points_ends_bit_for_bit_like_one_that_was_not(
    killed: Callable[..., dict[str, Any]],
    small: spec.Encoder,
    pretrained: Path,
    vocabulary: Vocabulary,
    documents: list[Document],
    tmp_path: Path,
    keep: str,
) -> None:
    asked = recipe("sentence", epochs=20, dropout=0.1, leaves_encoder=True, keep=keep)
    for split in ("train", "select", "dev"):
        write_items(tmp_path / f"{split}.jsonl", items("sentence", documents))
    tokenised = Tokenised(**{name: getattr(asked, name) for name in Tokenised.model_fields})
    make(tokenised, vocabulary, tmp_path, tmp_path)
    places = {"start": str(pretrained), "task": str(tmp_path), "features": str(tmp_path)}
    said = killed("finetune", asked, 80, places=places, encoder=small.model_dump(mode="json"))
    assert said["killed"] == 20 and said["resumed_at"] > 60


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
    tuned = Tuned(load_encoder(small, SIZE, pretrained), 32, recipe(kind), 10, 0, 0.5).eval()
    asked = split(kind, items(kind, documents), vocabulary)
    whole = predict(tuned, asked)
    monkeypatch.setattr(module, "PREDICT_TOKENS", 100)
    parts = predict(tuned, asked)
    for one, other in zip(whole, parts, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-4)
        assert one.answer == (pytest.approx(other.answer, abs=1e-4) if kind == "regression" else other.answer)


@pytest.mark.parametrize("kind", FINDS)
def test_a_batch_for_which_memory_runs_out_has_the_gradients_and_answers_of_its_parts(
    small: spec.Encoder,
    pretrained: Path,
    vocabulary: Vocabulary,
    documents: list[Document],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    tuned = Tuned(load_encoder(small, SIZE, pretrained), 32, recipe(kind), 10, 0, 0.5)
    asked = split(kind, items(kind, documents, 11), vocabulary)
    steps = tuned.step(asked.features), tuned.cut(tuned.step(asked.features), 4)
    numbers = [len(batch) for batch in steps[1].batches]
    assert len(numbers) > 2 and max(numbers) <= 4 and sum(numbers) == len(asked.features)
    gradients = []
    for step in steps:
        tuned.zero_grad()
        for _ in tuned._parts(step):
            pass
        gradients.append({name: p.grad.clone() for name, p in tuned.named_parameters() if p.grad is not None})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-3, atol=1e-6)
    tuned.eval()
    whole, forward = predict(tuned, asked), tuned.forward

    def small_device(batch: Batch) -> torch.Tensor:
        if len(batch) > 4:
            raise torch.OutOfMemoryError
        return forward(batch)

    monkeypatch.setattr(tuned, "forward", small_device)
    for one, other in zip(whole, predict(tuned, asked), strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-4)


def test_the_record_of_a_finetuning_says_how_often_memory_ran_out(
    tuned: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = Tuned.forward

    def small_device(self: Tuned, batch: Batch) -> torch.Tensor:
        if self.training and len(batch) > 4:
            raise torch.OutOfMemoryError
        return forward(self, batch)

    before = tuned(recipe("sentence", epochs=3))
    monkeypatch.setattr(Tuned, "forward", small_device)
    after = tuned(recipe("sentence", epochs=3))
    assert (before["out_of_memory"], after["out_of_memory"]) == (0, 1)
    assert after["steps"] == before["steps"] and after["rows"] == pytest.approx(before["rows"], abs=0.05)


@pytest.mark.parametrize("asked", ["off", "on", "graphs"])
def test_without_a_gpu_a_finetuning_is_as_written_whatever_is_asked(
    tuned: Callable[..., dict[str, Any]], asked: str
) -> None:
    assert tuned(recipe("sentence", epochs=1), runtime=Runtime(device="cpu", compile=asked))["compile"] == "off"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_finetuning_that_is_asked_for_graphs_takes_them(tuned: Callable[..., dict[str, Any]]) -> None:
    asked = recipe("sentence", epochs=3)
    plain, found = (tuned(asked, runtime=Runtime(device="cuda", compile=how)) for how in ("off", "graphs"))
    assert (plain["compile"], found["compile"]) == ("off", "graphs")
    assert found["rows"] == pytest.approx(plain["rows"], abs=0.1)


def test_an_input_may_be_as_long_as_the_positions_reach(
    encoder: Callable[..., spec.Encoder], vocabulary: Vocabulary, documents: list[Document]
) -> None:
    # 30 is no multiple of eight, to which batches are padded.
    made = build_encoder(encoder(position={"kind": "absolute", "max_length": 30}), SIZE)
    initialise(made, 0, 0.1)
    tuned = Tuned(made, 16, recipe("pair", length=30), 10, 0, 0.1).eval()
    asked = split("pair", items("pair", documents), vocabulary, 30)
    assert len(predict(tuned, asked)) == 32 and max(len(feature.ids) for feature in asked.features) == 30


def test_words_that_were_cut_off_get_the_first_label(
    small: spec.Encoder, vocabulary: Vocabulary, documents: list[Document]
) -> None:
    made = build_encoder(small, SIZE)
    initialise(made, 0, 0.1)
    tuned = Tuned(made, 32, recipe("tagging", length=16), 10, 0, 0.1).eval()
    with torch.no_grad():
        tuned.head.out.bias[1] = 1e3
    long = TaggingItem("0", tuple(["the"] * 40), tuple(["A"] * 40))
    (found,) = predict(tuned, split("tagging", [long], vocabulary, 16))
    assert found.answer == ["A"] * 14 + ["O"] * 26


# --- what chooses, and what is kept ----------------------------------------------------------------------------------


def test_dev_is_read_once_and_after_everything_was_chosen(
    tuned: Callable[..., dict[str, Any]], documents: list[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = recipe("sentence", epochs=4, keep="best")
    other = [replace(item, id=f"other {item.id}") for item in items("sentence", documents)[:7]]
    predicted: list[int] = []

    def counting(tuned: Tuned, split: Split, *more: Any) -> Any:
        predicted.append(len(split.items))
        return predict(tuned, split)

    monkeypatch.setattr(module, "predict", counting)
    found = tuned(asked, dev=other)
    assert predicted == [32] * (4 + 1) + [7]
    again = tuned(asked)
    for row in [("accuracy", "select"), ("best_epoch", None)]:
        assert found["rows"][row] == again["rows"][row], "another dev set chooses nothing else"
    assert [row for row in found["predictions"] if row["split"] == "select"] == again["predictions"][:32]


def test_choosing_on_dev_trains_on_what_select_held_out_too(tuned: Callable[..., dict[str, Any]]) -> None:
    held_out, all_items = (tuned(recipe("sentence", epochs=2, choose_on=split)) for split in ("select", "dev"))
    assert (held_out["steps"][-1], all_items["steps"][-1]) == (2 * 4, 2 * 8)
    assert {row["split"] for row in all_items["predictions"]} == {"dev"}
    assert {split for _, split in all_items["rows"]} == {"dev"}


class Trainer:
    global_step = 0
    should_stop = False


def test_the_best_epoch_is_kept_and_patience_ends_the_training() -> None:
    trained = torch.nn.Linear(1, 1, bias=False)
    scores = iter([0.1, 0.5, 0.5, 0.4, 0.9])
    best, trainer = Best(10, 2, lambda: next(scores)), Trainer()
    for step in range(1, 51):
        trained.weight.data.fill_(step)
        trainer.global_step = step
        best.on_train_batch_end(trainer, trained)  # type: ignore[arg-type]
        if trainer.should_stop:
            break
    assert (step, best.epoch, float(best.weights["weight"])) == (40, 2, 20.0)


def test_a_batch_without_a_word_that_has_a_label_is_no_loss(
    tuned: Callable[..., dict[str, Any]], documents: list[Document]
) -> None:
    train = items("tagging", documents)
    train[3], train[7] = TaggingItem("3", ("x" * 60,), ("A",)), TaggingItem("7", (), ())
    assert tuned(recipe("tagging", epochs=1, batch_items=1), train=train)["outcome"] == "done"


def test_patience_spares_epochs_and_the_best_epoch_is_told(tuned: Callable[..., dict[str, Any]]) -> None:
    found = tuned(recipe("sentence", keep="best", patience=3))
    best = found["rows"]["best_epoch", None]
    assert found["steps"][-1] == (best + 3) * 4 < 50 * 4


# --- heads -----------------------------------------------------------------------------------------------------------


def test_the_loss_of_choices_is_over_the_options_of_each_item() -> None:
    numbers, labels = [3, 1, 4], [2, 0, 1]
    batch = [
        Feature([1, 2], item, 0, labels[item], option) for item, count in enumerate(numbers) for option in range(count)
    ]
    out = torch.randn(8, 1)
    slow = [
        F.cross_entropy(part.T, torch.tensor([label])) for part, label in zip(out.split(numbers), labels, strict=True)
    ]
    found = module.task_loss(task("multiple-choice"), out, Batch.of(batch, 8, task("multiple-choice")))
    assert found == pytest.approx(float(torch.stack(slow).sum()))


def test_the_loss_of_spans_is_the_mean_of_both_ends_over_tokens_but_padding() -> None:
    batch = [
        Feature([1, 9, 2, 9, 9, 2], 0, 3, (3, 4), spans=[(0, 1), (1, 2)], widest=[True, True]),
        Feature([1, 9, 2, 9, 2], 1, 3, (0, 0), spans=[(0, 1)], widest=[True]),
    ]
    out = torch.randn(2, 8, 2)
    slow = [
        F.cross_entropy(out[row, : len(feature.ids), side][None], torch.tensor([feature.target[side]]))  # type: ignore[index]
        for row, feature in enumerate(batch)
        for side in (0, 1)
    ]
    found = module.task_loss(task("span-qa"), out, Batch.of(batch, 8, task("span-qa")))
    assert found == pytest.approx(float(torch.stack(slow).sum() / 2))


@given(st.data())
def test_the_best_span_is_that_of_a_search_over_all(data: st.DataObject) -> None:
    words, second = data.draw(st.integers(1, 12)), data.draw(st.integers(2, 5))
    values = st.lists(st.integers(-9, 9), min_size=second + words + 1, max_size=second + words + 1)
    scores = np.array([data.draw(values), data.draw(values)], dtype=np.float32).T
    widest = data.draw(st.lists(st.booleans(), min_size=words, max_size=words))
    asked = Windows(longest_answer=data.draw(st.integers(1, 4)), maximum_context=data.draw(st.booleans()))
    spans = [(10 * word, 10 * word + 5) for word in range(words)]
    feature = Feature([9] * len(scores), 0, second, (0, 0), spans=spans, widest=widest)
    slow = [
        (scores[second + start, 0] + scores[second + end, 1], spans[start][0], spans[end][1])
        for start in range(words)
        for end in range(start, min(words, start + asked.longest_answer))
        if widest[start] or not asked.maximum_context
    ]
    value, null, first, last = best_span(scores, feature, asked)
    assert null == scores[0].sum()
    assert (value, first, last) in slow if slow else value == -np.inf
    assert not slow or value == max(slow)[0]


def test_few_candidates_are_the_best_of_all_tokens_as_in_the_reference_code() -> None:
    scores = np.array([[9, 9], [8, 8], [5, 1], [1, 5]], dtype=np.float32)
    feature = Feature([1, 7, 8, 9], 0, 2, (0, 0), spans=[(0, 1), (2, 3)], widest=[True, True])
    assert best_span(scores, feature, Windows(candidates=3))[0] == 10.0
    assert best_span(scores, feature, Windows(candidates=2))[0] == -np.inf, "[CLS] and a question take both places"


def test_an_answer_is_withheld_by_a_threshold_chosen_where_everything_is(
    tuned: Callable[..., dict[str, Any]], documents: list[Document], tmp_path: Path
) -> None:
    asked = recipe("span-qa", epochs=30, task=task("span-qa", unanswerable=True).model_dump())
    mixed = [replace(item, answers=()) if n % 3 == 0 else item for n, item in enumerate(items("span-qa", documents))]
    found = tuned(asked, dev=mixed)
    threshold = found["rows"]["null_threshold", "select"]
    for row in found["predictions"]:
        answer, null = row["scores"]
        assert (row["predicted"] == "") == (null - answer > threshold)
    assert ("null_threshold", "dev") not in found["rows"]


def test_iob1_labels_are_learnt_and_scored_as_bio(tuned: Callable[..., dict[str, Any]]) -> None:
    labels = ["O", "B-X", "I-X"]
    asked = recipe("tagging", epochs=1, task=task("tagging", metrics=["entity-f1"]).model_dump() | {"labels": labels})
    iob1 = [TaggingItem(str(n), ("one", "two", "three", "four"), ("O", "I-X", "I-X", "B-X")) for n in range(8)]
    found = tuned(asked, train=iob1, select=iob1, dev=iob1)
    assert {tuple(row["gold"]) for row in found["predictions"]} == {("O", "B-X", "I-X", "B-X")}


def test_every_choice_of_a_recipe_moves_a_number(tuned: Callable[..., dict[str, Any]]) -> None:
    changes: list[dict[str, Any]] = [
        {}, {"pooling": "mean"}, {"pooling": "max"}, {"schedule": "cosine"}, {"warmup": 5}, {"dropout": 0.5},
        {"batch_items": 16}, {"epochs": 3}, {"frozen": {"layers": "last"}}, {"frozen": {"layers": "embeddings"}},
        {"frozen": {"layers": "last", "lstm_width": 4}}, {"choose_on": "dev"},
    ]  # fmt: skip
    found = [
        tuned(recipe("regression", **{"epochs": 2, **change}))["predictions"][-1]["scores"][0] for change in changes
    ]
    assert len(set(found)) == len(changes)


@pytest.mark.parametrize(
    "changes",
    [{"stride": 3}, {"question": 2}, {"longest_answer": 1}, {"candidates": 1}, {"maximum_context": False}],
)
def test_every_choice_about_windows_moves_an_answer(
    small: spec.Encoder, pretrained: Path, vocabulary: Vocabulary, documents: list[Document], changes: dict[str, Any]
) -> None:
    passages = [" ".join(document.sentences[:4]) for document in documents]
    asked: list[Item] = [SpanItem(str(n), "the states of the union", text, ()) for n, text in enumerate(passages)]

    def scores(**windows: Any) -> list[list[float]]:
        made = recipe("span-qa", windows=windows)
        tuned = Tuned(load_encoder(small, SIZE, pretrained), 32, made, 10, 0, 1.0).eval()
        found = features(task("span-qa"), asked, vocabulary, 32, made.windows)
        return [prediction.scores for prediction in predict(tuned, Split(asked, found))]

    assert scores() != scores(**changes)


@pytest.mark.parametrize("layers", ["embeddings", "second-to-last", "last", "mix-all"])
def test_a_frozen_encoder_stays_as_it_is_while_its_reader_learns(
    tuned: Callable[..., dict[str, Any]], pretrained: Path, layers: str
) -> None:
    frozen = {"layers": layers, "lstm_width": 8 if layers == "last" else 0}
    found = tuned(recipe("tagging", epochs=3, frozen=frozen, leaves_encoder=True))
    before = load_file(pretrained / "encoder.safetensors")
    assert all(torch.equal(before[name], found["encoder"][name]) for name in before)
    assert found["outcome"] == "done" and found["rows"]["accuracy", "dev"] > 0


def test_a_trained_encoder_is_left_for_others(tuned: Callable[..., dict[str, Any]], pretrained: Path) -> None:
    found = tuned(recipe("sentence", epochs=1, leaves_encoder=True))["encoder"]
    before = load_file(pretrained / "encoder.safetensors")
    assert found.keys() == before.keys() and not torch.equal(before["tokens.weight"], found["tokens.weight"])


# --- what it costs ---------------------------------------------------------------------------------------------------


def test_batches_are_the_same_whatever_the_tokenizer() -> None:
    lengths = [7 * n % 50 for n in range(200)]

    def order(pieces: int) -> list[list[int]]:
        units = [[Feature([9] * (pieces * length + 2), n, 0, 0)] for n, length in enumerate(lengths)]
        return [[feature.item for feature in batch] for batch in Epochs(units, lengths, 8, 2, 0)]

    assert order(1) == order(3)


@given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 3))
def test_every_unit_comes_once_an_epoch_in_batches_of_the_size(count: int, size: int, epochs: int) -> None:
    units = [[Feature([1], n, 0, 0, 0), Feature([1], n, 0, 0, 1)] for n in range(count)]
    made = Epochs(units, [n * n % 17 for n in range(count)], size, epochs, 0)
    batches = list(made)
    assert len(batches) == made.steps == epochs * made.a_pass
    for epoch in range(epochs):
        mine = batches[epoch * made.a_pass : (epoch + 1) * made.a_pass]
        assert sorted(len(batch) for batch in mine)[1:] == [2 * size] * (made.a_pass - 1)
        assert sorted(feature.item for batch in mine for feature in batch) == sorted([*range(count)] * 2)


def test_batches_of_like_length_spare_padding() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 60, 2000).tolist()
    units = [[Feature([9] * length, n, 0, 0)] for n, length in enumerate(lengths)]
    padded = sum(len(batch) * max(len(f.ids) for f in batch) for batch in Epochs(units, lengths, 16, 1, 0))
    assert sum(lengths) / padded > 0.9
    shuffled = rng.permutation(lengths).reshape(-1, 16)
    assert sum(lengths) / (shuffled.max(1).sum() * 16) < 0.6


@pytest.mark.parametrize("kind", FINDS)
def test_a_tokenised_task_is_read_back_as_it_was_made(
    kind: str, documents: list[Document], vocabulary: Vocabulary, tmp_path: Path
) -> None:
    found = items(kind, documents)
    if kind == "sentence":
        found[3] = replace(found[3], label=None)  # an item without a label has no target
    for split in ("train", "select", "dev"):
        write_items(tmp_path / f"{split}.jsonl", found)
    windows = Windows(stride=5) if kind == "span-qa" else None
    asked = Tokenised(task=task(kind), train_items=7, length=24, windows=windows)
    counts = make(asked, vocabulary, tmp_path, tmp_path)
    for split, first in (("train", 7), ("select", None), ("dev", None)):
        again = [
            f if f.spans is None else replace(f, spans=[(int(start), int(end)) for start, end in f.spans])
            for f in load(tmp_path, split, task(kind))
        ]
        part = items_of(task(kind), tmp_path, split, first)
        assert again == features(task(kind), part, vocabulary, 24, windows)
        assert len(again) == counts[split]


# --- predictions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pair", "regression", "span-qa", "tagging", "multiple-choice"])
def test_scores_follow_from_the_predictions_that_are_kept(tuned: Callable[..., dict[str, Any]], kind: str) -> None:
    found = tuned(recipe(kind, epochs=2))
    for metric, split in found["rows"]:
        rows = [row for row in found["predictions"] if row["split"] == split]
        again = score(task(kind), metric, [row["gold"] for row in rows], [row["predicted"] for row in rows])
        assert again == found["rows"][metric, split]
    assert [row["id"] for row in found["predictions"]] == [str(n) for n in range(32)] * 2


def test_grouped_options_are_scored_from_what_is_kept_too(
    tuned: Callable[..., dict[str, Any]], documents: list[Document]
) -> None:
    metrics = ["f1a", "group-em", "record-f1", "record-em"]
    asked = recipe("pair", epochs=1, task=task("pair", metrics=["accuracy"]).model_dump() | {"metrics": metrics})
    made = [replace(item, group=str(n // 4), option=f"the {n}") for n, item in enumerate(items("pair", documents))]
    found = tuned(asked, dev=made, select=made)
    rows = [row for row in found["predictions"] if row["split"] == "dev"]
    likely = [row["scores"][-1] - np.logaddexp.reduce(row["scores"]) for row in rows]
    of = Options([row["group"] for row in rows], [row["option"] for row in rows], likely)
    gold, predicted = [row["gold"] for row in rows], [row["predicted"] for row in rows]
    for metric in metrics:
        assert found["rows"][metric, "dev"] == score(asked.task, metric, gold, predicted, of)  # type: ignore[arg-type]


def test_an_encoder_that_never_pretrained_stays_near_the_majority_class_of_mnli(
    tuned: Callable[..., dict[str, Any]], shared: Path, root: Path
) -> None:
    """What pretraining is worth shows against this, and labels that leak would too.

    One epoch of 2,000 pairs: 37 % where the most frequent label has 35 %. More epochs learn words that go with a label.
    """
    mnli, folder = find(root).task("mnli-m"), shared / "glue_data" / "MNLI"
    train, dev = (read(mnli, locate(folder, name)).items[:2000] for name in ("train.tsv", "dev_matched.tsv"))
    asked = recipe("pair", task=mnli.model_dump(), epochs=1, length=64)
    found = tuned(asked, train=train, select=dev[:8], dev=dev)["rows"]["accuracy", "dev"]
    labels = [item.gold for item in dev]
    most = max(labels.count(label) for label in set(labels)) / len(labels)
    assert 0.34 < most < 0.37 and abs(found - most) < 0.04
