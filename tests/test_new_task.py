"""A task of a known kind is one YAML file: declared in a project of its own, it is listed, checked and run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paribus import cli
from paribus.project import find

TASK = """
kind: pair
source: of this test
data:
  kind: folder
  path: echo
  format: {kind: tsv, columns: {sentence1: premise, sentence2: hypothesis, label: verdict}}
  train: train.tsv
  dev: dev.tsv
  official: {train: 300, dev: 40}
labels: ["differs", "repeats"]
metrics: [accuracy]
"""
EXPERIMENT = """
question: Does a new task run?
expect: it does
base: bert-relative
factors: [masking]
levels: {masking: [static]}
seeds: 1
tasks: [echo]
set: {corpus.documents: 20}
"""
WORDS = "war peace law land trade tax bank court state union".split()


def rows(count: int) -> str:
    lines = []
    for number in range(count):
        first, second = WORDS[number % 10], WORDS[(number // 10) % 10]
        verdict = "repeats" if first == second else "differs"
        lines.append(f"the {first}, of {number}\tg{number}\tthe {second}\t{verdict}\n")
    return "premise\tgenre\thypothesis\tverdict\n" + "".join(lines)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for folder in ("data/echo", "experiments", "tasks"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "paribus.toml").touch()
    (tmp_path / "tasks/echo.yaml").write_text(TASK)
    (tmp_path / "experiments/mine.yaml").write_text(EXPERIMENT)
    (tmp_path / "data/echo/train.tsv").write_text(rows(299) + "a row of one column\n")
    (tmp_path / "data/echo/dev.tsv").write_text(rows(40))
    return tmp_path


def paribus(project: Path, *argv: str, code: int = 0) -> tuple[str, str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-m", "paribus", *argv], cwd=project, env=environment, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def test_a_task_is_added_by_one_file_and_runs(project: Path) -> None:
    listed, _ = paribus(project, "data", "list", "--json")
    (mine,) = [row for row in json.loads(listed) if row["task"] == "echo"]
    assert mine == {"task": "echo", "kind": "pair", "there": "train, dev", "missing": "", "from": ""}

    said, _ = paribus(project, "data", "check", "echo")
    assert "299 items, official 300: NOT COMPLETE" in said and "40 items, official 40\n" in said
    assert "line 301: 1 columns, expected the header's 4; left out" in said

    table, _ = paribus(project, "run", "mine", "--scale", "debug")
    assert "1 of 1 runs are done" in table and "echo" in table
    (folder,) = (project / "results/stages").glob("task-*")
    found = {(row["metric"], row["split"]): row["value"] for row in map(json.loads, (folder / "rows.jsonl").open())}
    assert found["left_out", "train"] == 1 and found["left_out", "dev"] == 0
    assert found["items", "train"] + found["items", "select"] == 299 and found["items", "dev"] == 40
    (log,) = (project / "results/logs").glob("*.log")
    assert log.read_text().count("1 of 300 rows left out; it is line 301: 1 columns") == 1


def test_a_folder_is_checked_by_whatever_tasks_have_files_there(project: Path) -> None:
    for folder in ("data", "data/echo"):
        said, _ = paribus(project, "data", "check", folder)
        assert said.startswith("echo train: ")
    _, error = paribus(project, "data", "check", "experiments", code=2)
    assert error.startswith("error: data check experiments: the files of no task are there")
    _, error = paribus(project, "data", "check", "cloze", code=2)
    assert error.count("\n") == 1 and "no files to check, its data are of kind 'built'" in error
    said, error = paribus(project, "data", "check", "qqp", code=2)
    assert "has no train.tsv" in said
    assert error == "error: data check qqp: none of its files is there; `paribus data list` says where they go\n"


def test_a_file_that_is_mostly_unreadable_is_refused_in_one_line(project: Path) -> None:
    (project / "data/echo/dev.tsv").write_text(rows(40) + "a\n" * 3)
    said, error = paribus(project, "data", "check", "echo", code=2)
    assert "dev.tsv, line 42: 1 columns, expected the header's 4 (3 of 43 rows cannot be read)" in said
    assert error == "error: data check echo: 1 files cannot be used: echo dev\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sst2", "/tasks/sst2.yaml): {data}/glue_data/SST-2 has no train.tsv, neither as it is, with .gz, nor in an "),
        ("glue-diagnostic", "tasks: glue-diagnostic has no train items (data.train) to be fine-tuned with"),
    ],
)
def test_planning_refuses_tasks_whose_files_are_missing_or_have_no_train_items(
    name: str, message: str, project: Path
) -> None:
    (project / "experiments/mine.yaml").write_text(EXPERIMENT.replace("[echo]", f"[{name}]"))
    _, error = paribus(project, "plan", "mine", "--scale", "debug", code=2)
    assert message.format(data=project / "data") in error and error.count("\n") == 1


def test_a_file_with_members_is_a_task_a_member(project: Path) -> None:
    (project / "tasks/echo.yaml").write_text(
        TASK + "members:\n  small: {data.dev: small.tsv}\n  all: {}\n  odd: {data.dve: x}\n"
    )
    tasks = find(project)
    assert [name for name in tasks.tasks if name.startswith("echo")] == ["echo-all", "echo-odd", "echo-small"]
    assert tasks.task("echo-small").data.model_dump()["dev"] == "small.tsv"
    assert tasks.task("echo-all").name == "echo-all" and tasks.task("echo-all").data.model_dump()["dev"] == "dev.tsv"
    (project / "experiments/mine.yaml").write_text(EXPERIMENT.replace("[echo]", "[echo-odd]"))
    _, error = paribus(project, "plan", "mine", "--scale", "debug", code=2)
    assert "members.odd: data.dve: no such key" in error and error.count("\n") == 1
