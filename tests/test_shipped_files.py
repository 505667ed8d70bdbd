"""Every file that is shipped loads, says where it comes from, and plans."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from paribus.data.builders import BUILDERS
from paribus.plan.plan import Plan, plan
from paribus.project import Project, find
from paribus.spec.load import apply, build
from paribus.spec.run import Run
from paribus.spec.task import Built, Folder
from paribus.tables.experiment import reproducing
from paribus.tables.published import paper_column, paper_row

PROJECT = find(Path(__file__).parent.parent)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The shipped files, with a file wherever the data of a task would lie, which are a user's: enough to plan."""
    root = tmp_path_factory.mktemp("project")
    for task in map(PROJECT.task, PROJECT.tasks):
        if isinstance(task.data, Folder):
            for name in filter(None, (task.data.train, task.data.dev)):
                path = root / "data" / task.data.path / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"{task.data.path}/{name}")
    return find(root)


@pytest.fixture(scope="module")
def planned(project: Project) -> Callable[[str], Plan]:
    """The plan of an experiment at scale tiny, one seed."""
    return cache(lambda experiment: plan(project, experiment, "tiny", seeds=1))


def at(base: str, scale: str) -> Run:
    """A base at a scale."""
    preset = PROJECT.scales.get(scale)
    data = PROJECT.base(base).model_dump()
    for patch in (preset.set, preset.bases.get(base, {})):
        apply(data, patch, scale)
    return build(Run, data, f"{base} at {scale}")


def test_something_of_each_kind_is_shipped() -> None:
    for library in (PROJECT.experiments, PROJECT.bases, PROJECT.scales, PROJECT.factors, PROJECT.tasks, PROJECT.tables):
        assert library.paths


def test_what_is_shipped_is_found_from_any_folder(tmp_path: Path) -> None:
    elsewhere: Project = find(tmp_path)
    for kind in ("experiments", "bases", "scales", "factors", "tasks", "tables"):
        assert list(getattr(elsewhere, kind)) == list(getattr(PROJECT, kind))


@pytest.mark.parametrize("scale", list(PROJECT.scales))
@pytest.mark.parametrize("experiment", list(PROJECT.experiments))
def test_an_experiment_plans_at_every_scale(project: Project, experiment: str, scale: str) -> None:
    found = plan(project, experiment, scale, seeds=1)
    assert len(found.runs) + len(found.untuned) == len(found.arms) > 1
    assert found.baseline.baseline and found.experiment.question.endswith("?")


@pytest.mark.parametrize("scale", list(PROJECT.scales))
@pytest.mark.parametrize("base", list(PROJECT.bases))
def test_a_base_is_valid_at_every_scale(base: str, scale: str) -> None:
    assert at(base, scale).budget.steps > 0


# What a column of a paper's table of hyper-parameters is in a run.
TOKENIZERS = {"wordpiece": "WordPiece", "byte-bpe": "byte-level BPE", "sentencepiece-unigram": "SentencePiece"}
READ = {
    "layers": lambda run: run.encoder.layers,
    "hidden_size": lambda run: run.encoder.width,
    "ffn_size": lambda run: run.encoder.feed_forward.width,
    "attention_heads": lambda run: run.encoder.heads,
    "head_size": lambda run: run.encoder.width // run.encoder.heads,
    "activation": lambda run: {"gelu": "GELU"}[run.encoder.feed_forward.kind],
    "dropout": lambda run: run.encoder.dropout,
    "attention_dropout": lambda run: run.encoder.attention.dropout,
    "max_relative_distance": lambda run: run.encoder.attention.max_distance,
    "attention_scale": lambda run: f"1/sqrt({1 + run.encoder.attention.c2p + run.encoder.attention.p2c}d)",
    "emd_layers": lambda run: run.encoder.head.steps,
    "vocab_size": lambda run: 1000 * (run.tokenizer.vocabulary_size // 1000),  # papers give thousands
    "tokenizer": lambda run: TOKENIZERS[run.tokenizer.kind],
    "max_seq_len": lambda run: run.packing.length,
    "input_format": lambda run: run.packing.kind + {"none": ", no NSP"}[run.objective.sentence],
    "masking": lambda run: run.objective.masking.kind,
    "mask_probability": lambda run: run.objective.rate,
    "mask_token_share": lambda run: run.objective.replacement.mask,
    "random_token_share": lambda run: run.objective.replacement.random,
    "keep_token_share": lambda run: 1 - run.objective.replacement.mask - run.objective.replacement.random,
    "optimizer": lambda run: {"adamw": "Adam(W)"}[run.optimizer.kind],
    "peak_learning_rate": lambda run: run.optimizer.lr,
    "learning_rate_decay": lambda run: run.schedule.kind,
    "warmup_steps": lambda run: round(run.schedule.warmup * run.budget.steps, -2),
    "steps": lambda run: run.budget.steps,
    "batch_size": lambda run: run.budget.batch_tokens // run.packing.length,
    "batch_sequences_len512": lambda run: run.budget.batch_tokens // 512,
    "batch_tokens": lambda run: run.budget.batch_tokens,
    "adam_beta1": lambda run: run.optimizer.beta1,
    "adam_beta2": lambda run: run.optimizer.beta2,
    "adam_epsilon": lambda run: run.optimizer.eps,
    "weight_decay": lambda run: run.optimizer.weight_decay,
    "gradient_clipping": lambda run: run.optimizer.clip,
    "precision": lambda run: {"bf16": "mixed"}[run.precision],
}
# Data, machines and cost; BERT's first 90 % at length 128 and its NSP, which the base says it leaves out; and its ten
# masks, which are what static masking takes over its 40 passes.
NOT_READ = {
    "params_m", "data", "data_gb", "wikipedia_words_m", "bookscorpus_words_m", "batch_sequences_len128", "epochs",
    "seq_len_schedule", "nsp_positive_share", "static_mask_duplicates", "tpu_chips", "training_days", "hardware",
    "v100_gpus",
}  # fmt: skip
# No table in dashboards/papers: Clark et al. 2020, arXiv:2003.10555, table 6; He et al. 2021, arXiv:2111.09543.
KEYS = (
    "layers",
    "hidden_size",
    "batch_size",
    "steps",
    "warmup_steps",
    "peak_learning_rate",
    "adam_beta2",
    "vocab_size",
)
WITHOUT_A_TABLE: dict[tuple[str, str], dict[str, Any]] = {
    ("electra", "base"): dict(zip(KEYS, (12, 768, 256, 766_000, 10_000, 2e-4, 0.999, 30_000), strict=True)),
    ("electra", "large"): dict(zip(KEYS, (24, 1024, 2048, 400_000, 10_000, 2e-4, 0.999, 30_000), strict=True)),
    ("deberta-v3", "base"): dict(zip(KEYS, (12, 768, 2048, 125_000, 10_000, 5e-4, 0.98, 128_000), strict=True)),
    ("deberta-v3", "large"): dict(zip(KEYS, (24, 1024, 8192, 500_000, 10_000, 3e-4, 0.98, 128_000), strict=True)),
}


@pytest.mark.parametrize(
    ("base", "scale", "row"),
    [
        ("bert", "base", "bert_base"),
        ("bert", "large", "bert_large"),
        ("roberta", "base", "roberta_base"),
        ("roberta", "large", "roberta_large"),
        ("deberta", "base", "deberta_base_ablation"),
        ("deberta", "large", "deberta_large"),
        *((base, scale, None) for base, scale in WITHOUT_A_TABLE),
    ],
)
def test_a_base_has_the_hyper_parameters_that_its_paper_prints(base: str, scale: str, row: str | None) -> None:
    printed = WITHOUT_A_TABLE.get((base, scale), {})
    if row:
        table = PROJECT.tables.get(f"{base}-hyperparameters-pretraining")
        (printed,) = (r.values for r in table.rows if r.key == row)
        assert set(printed) <= READ.keys() | NOT_READ
    expected = {key: value for key, value in printed.items() if value is not None and key in READ}
    run = at(base, scale)
    assert {key: READ[key](run) for key in expected} == pytest.approx(expected)


@pytest.mark.parametrize(("base", "row"), [("bert", "paper_range"), ("roberta", "glue")])
def test_a_base_is_fine_tuned_as_its_paper_prints(base: str, row: str) -> None:
    (printed,) = (r.values for r in PROJECT.tables.get(f"{base}-hyperparameters-finetuning").rows if r.key == row)
    for scale in ("base", "large"):
        found = at(base, scale).finetuning
        assert list(found.learning_rates) == printed["learning_rate"] and set(found.batch_items) <= set(
            printed["batch_size"]
        )
        if base == "bert":
            assert set(found.epochs) <= set(printed["epochs"]) and found.dropout == (printed["dropout"],)
        else:
            assert (found.epochs, found.weight_decay, found.warmup) == (
                (printed["max_epochs"],),
                printed["weight_decay"],
                (printed["warmup_ratio"],),
            )


@pytest.mark.parametrize("scale", list(PROJECT.scales))
def test_a_scale_knows_only_bases_that_there_are(scale: str) -> None:
    assert set(PROJECT.scales.get(scale).bases) <= set(PROJECT.bases)
    assert PROJECT.scales.get(scale).note.strip()


@pytest.mark.parametrize("factor", list(PROJECT.factors))
def test_a_factor_has_a_source_and_its_base_among_its_levels(factor: str) -> None:
    found = PROJECT.factors.get(factor)
    assert found.source.strip() and found.base in found.levels and len(found.levels) > 1


@pytest.mark.parametrize("base", list(PROJECT.bases))
def test_a_base_has_a_source(base: str) -> None:
    assert PROJECT.bases.get(base).source.strip()


@pytest.mark.parametrize("name", list(PROJECT.tasks))
def test_a_task_loads_and_its_builder_makes_its_kind(name: str) -> None:
    task = PROJECT.task(name)
    assert task.name == name and task.source.strip()
    if isinstance(task.data, Built):
        builder = BUILDERS[task.data.builder]
        assert builder.kind is type(task) and tuple(builder.labels) == tuple(getattr(task, "labels", ()))


@pytest.mark.parametrize("experiment", list(PROJECT.experiments))
def test_an_experiment_has_a_number_in_every_table_that_it_reproduces(experiment: str) -> None:
    found = PROJECT.experiments.get(experiment)
    for table in map(PROJECT.tables.get, found.reproduces):
        pairs = [(task, metric) for task in map(PROJECT.task, found.tasks) for metric in task.metrics]
        assert any(paper_column(*pair, table) for pair in pairs) or table.kind == "ablation", table.id


def test_every_arm_of_the_deberta_ablation_is_a_row_of_the_papers_table() -> None:
    found = plan(PROJECT, "deberta-components", "tiny", seeds=1)
    rows = {row.key for row in PROJECT.tables.get("deberta-table4").rows}
    assert {arm.label for arm in found.arms} == rows - {"bert_base", "roberta_base", "xlnet_base"}
    assert found.baseline.label == "deberta_base"
    # The arms differ in the parts and in nothing else: data, masks, optimizer and budget are the baseline's own.
    for arm in found.arms:
        assert arm.run.model_copy(update={"encoder": found.baseline.run.encoder}) == found.baseline.run
        parts = {"attention", "head", "position"}
        assert arm.run.encoder.model_dump(exclude=parts) == found.baseline.run.encoder.model_dump(exclude=parts)
        assert arm.run.encoder.attention.model_dump(exclude={"c2p", "p2c"}) == (
            found.baseline.run.encoder.attention.model_dump(exclude={"c2p", "p2c"})
        )


def test_the_arms_of_the_embedding_sharing_ablation_are_rows_of_the_papers_table_and_differ_in_that_alone() -> None:
    rows = {row.key for row in PROJECT.tables.get("debertav3-ablation").rows}
    for scale in PROJECT.scales:
        found = plan(PROJECT, "embedding-sharing", scale, seeds=1)
        assert {arm.label for arm in found.arms} == rows - {"bert_base", "electra_base", "deberta_base"}
        for arm in found.arms:
            objective = arm.run.objective.model_copy(update={"sharing": arm.label})
            assert found.baseline.run.model_copy(update={"objective": objective}) == arm.run


MEASURED = [name for name in PROJECT.tables if PROJECT.tables.get(name).kind in ("ablation", "result")]


@pytest.mark.parametrize("name", MEASURED)
def test_every_row_of_a_papers_scores_is_an_arm_or_the_table_says_what_it_would_take(
    planned: Callable[[str], Plan], name: str
) -> None:
    table = PROJECT.tables.get(name)
    arms: set[str] = set()
    for found in map(planned, reproducing(PROJECT, name)):
        arms |= {row.key for arm in found.arms if (row := paper_row(found, arm, table))}
    assert arms | set(table.lacking) == {row.key for row in table.rows} and not arms & set(table.lacking)


def test_the_sizes_of_bert_are_the_papers_at_scale_base() -> None:
    found = plan(PROJECT, "model-size", "base", seeds=1)
    rows = {row.key: row.values for row in PROJECT.tables.get("bert-ablation-model-size").rows}
    for arm in found.arms:
        encoder, printed = arm.run.encoder, rows[found.experiment.reproduces["bert-ablation-model-size"][arm.label]]
        assert [encoder.layers, encoder.width, encoder.heads] == [
            printed[key] for key in ("layers", "hidden_size", "attention_heads")
        ]
        assert encoder.feed_forward.width == 4 * encoder.width


def test_the_widths_of_alberts_tables_are_the_papers_at_scale_base() -> None:
    found = plan(PROJECT, "embedding-size", "base", seeds=1)
    assert {arm.label: arm.run.encoder.embedding_width for arm in found.arms} == {
        "full": 768,
        "third": 256,
        "sixth": 128,
        "twelfth": 64,
    }


def test_the_budgets_of_robertas_table_4_are_the_papers_at_scale_large() -> None:
    found = plan(PROJECT, "more-data", "large", seeds=1)
    rows = {row.key: row.values for row in PROJECT.tables.get("roberta-table4").rows}
    for arm in found.arms:
        printed = rows[arm.label.replace("-", "_")]
        assert arm.run.budget.steps == printed["steps"]
        assert arm.run.budget.batch_tokens // arm.run.packing.length == printed["batch_size"]
        assert arm.run.packing.train_tokens == 40e9 * printed["data_gb"] / 160


def test_papers_columns_of_tasks_that_are_shipped_are_found_by_their_names() -> None:
    tasks, tables = [*map(PROJECT.task, PROJECT.tasks)], [*map(PROJECT.tables.get, MEASURED)]
    found = {
        (column.task, column.metric)
        for task in tasks
        for table in tables
        for metric in task.metrics
        if (column := paper_column(task, metric, table))
    }
    assert found >= {
        ("squad1", "f1"),
        ("squad2", "f1"),
        ("mnli_m", "acc"),
        ("mnli_mm", "acc"),
        ("sst2", "acc"),
        ("qnli", "acc"),
        ("race", "acc"),
        ("cola", "mcc"),
        ("conll2003", "f1"),
        ("squad2", "em"),
        ("mrpc", "acc"),
        ("qqp", "acc"),
        ("stsb", "corr"),
        ("stsb", "spearman"),
        ("xnli_sw", "acc"),
        ("cb", "f1"),
        ("multirc", "em"),
        ("record", "f1"),
    }


@pytest.mark.parametrize("scale", list(PROJECT.scales))
def test_the_last_four_layers_that_are_read_are_not_all_of_them(scale: str) -> None:
    assert plan(PROJECT, "feature-layers", scale, seeds=1).baseline.run.encoder.layers > 4
