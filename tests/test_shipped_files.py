"""Every file that is shipped loads, says where it comes from, and plans."""

from pathlib import Path

import pytest

from paribus.data.builders import BUILDERS
from paribus.plan.plan import plan
from paribus.project import Project, find
from paribus.spec.load import apply, build
from paribus.spec.run import Run
from paribus.spec.task import Built

PROJECT = find(Path(__file__).parent.parent)


def test_something_of_each_kind_is_shipped() -> None:
    for library in (PROJECT.experiments, PROJECT.bases, PROJECT.scales, PROJECT.factors, PROJECT.tasks, PROJECT.tables):
        assert library.paths


def test_what_is_shipped_is_found_from_any_folder(tmp_path: Path) -> None:
    elsewhere: Project = find(tmp_path)
    for kind in ("experiments", "bases", "scales", "factors", "tasks", "tables"):
        assert list(getattr(elsewhere, kind)) == list(getattr(PROJECT, kind))


@pytest.mark.parametrize("scale", list(PROJECT.scales))
@pytest.mark.parametrize("experiment", list(PROJECT.experiments))
def test_an_experiment_plans_at_every_scale(experiment: str, scale: str) -> None:
    found = plan(PROJECT, experiment, scale, seeds=1)
    assert len(found.runs) + len(found.untuned) == len(found.arms) > 1
    assert found.baseline.baseline and found.experiment.question.endswith("?")


@pytest.mark.parametrize("scale", list(PROJECT.scales))
@pytest.mark.parametrize("base", list(PROJECT.bases))
def test_a_base_is_valid_at_every_scale(base: str, scale: str) -> None:
    preset = PROJECT.scales.get(scale)
    data = build(Run, PROJECT.bases.get(base).run, base).model_dump()
    for patch in (preset.set, preset.bases.get(base, {})):
        apply(data, patch, scale)
    assert build(Run, data, f"{base} at {scale}").budget.steps > 0


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
def test_what_an_experiment_reproduces_is_a_table_that_there_is(experiment: str) -> None:
    table = PROJECT.experiments.get(experiment).reproduces
    assert table is None or PROJECT.tables.get(table).id == table


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
