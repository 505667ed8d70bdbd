"""Stages of a run one after another: each kind has its function; a task that starts from another one's encoder."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from safetensors.torch import load_file

from paribus import execute
from paribus.data import corpus, shards
from paribus.data.document import Document
from paribus.errors import Stopped
from paribus.evaluate import finetune
from paribus.execute import Context
from paribus.plan.plan import plan
from paribus.plan.stages import VERSIONS, Stage, TaskTuning
from paribus.project import Project, find
from paribus.spec.run import Runtime
from paribus.store.store import Store

FILES = {
    "paribus.toml": "",
    "ablations/rate.yaml": """
source: a test
base: "15"
levels: {"15": {objective.rate: 0.15}, "40": {objective.rate: 0.4}}
""",
    "tasks/pairs.yaml": """
kind: pair
source: a test
data: {kind: built, builder: order, train: 60, dev: 8}
labels: [swapped, in-order]
metrics: [accuracy]
""",
    "tasks/tags.yaml": """
kind: tagging
source: a test
data: {kind: built, builder: truecasing, train: 60, dev: 8}
labels: [O, CAP]
metrics: [f1]
""",
    "experiments/protocols/chain.yaml": """
source: a test
finetuning: {learning_rates: [1e-3], epochs: 1, batch_items: 16, length: 32, start_from: {pairs: tags}}
""",
    "experiments/chain.yaml": """
question: Does it help to start from another task?
expect: not here
base: bert-relative
factors: [rate]
tasks: [pairs, tags]
protocol: chain
set:
  corpus: {kind: jsonl, paths: [corpus.jsonl]}
  objective.masking: dynamic
  budget: {train_tokens: 4096, batch_tokens: 1024}
""",
}


@pytest.fixture
def project(documents: list[Document], tmp_path: Path) -> Project:
    texts = ["\n".join(map(" ".join, document.paragraphs)) for document in documents]
    corpus = {"data/corpus.jsonl": "".join(json.dumps({"text": text}) + "\n" for text in texts)}
    for name, text in {**FILES, **corpus}.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return find(tmp_path / "project")


def test_every_kind_of_stage_can_be_computed() -> None:
    assert set(execute.FUNCTIONS) == set(VERSIONS) - {"suggest"}  # which the queue of a tuning computes


def test_an_encoder_goes_from_task_to_task_and_a_start_that_diverged_ends_both(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = plan(project, "chain", "debug", 1).runs[0]
    store = Store(tmp_path / "store")
    store.prepare()
    context = Context(project, store, Runtime(device="cpu"), run.arm.run, data_here=True)
    loaded: list[Path] = []
    weights = finetune._weights

    def loading(folder: Path) -> object:
        loaded.append(folder)
        return weights(folder)

    monkeypatch.setattr(finetune, "_weights", loading)
    execute.execute(context, run.stages)
    first, then = (stage for stage in run.stages if isinstance(stage.spec, TaskTuning))
    assert (first.spec.task.name, then.spec.task.name) == ("tags", "pairs")  # type: ignore[attr-defined]
    assert loaded == [store.folder(run.stage("pretrain").key), store.folder(first.key)]
    assert (store.folder(first.key) / "encoder.safetensors").is_file()
    assert not (store.folder(then.key) / "encoder.safetensors").exists()
    left = load_file(store.folder(first.key) / "encoder.safetensors")
    assert left.keys() == load_file(loaded[0] / "encoder.safetensors").keys()

    diverged = json.loads((store.folder(first.key) / "stage.json").read_text()) | {"outcome": "diverged"}
    (store.folder(first.key) / "stage.json").write_text(json.dumps(diverged))
    work = store.claim(Stage("finetune", "finetune-again", then.spec, then.seed, then.inputs))
    assert work
    with work:
        assert execute.FUNCTIONS["finetune"](context, then, work)["outcome"] == "diverged"


def test_data_stages_that_are_stopped_again_and_again_go_on_and_end_in_the_same_bits(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "SHARD", 2**14)
    monkeypatch.setattr(shards, "cores", lambda: 1)
    made, write = [], shards._write
    monkeypatch.setattr(shards, "_write", lambda make, task, path: made.append(path) or write(make, task, path))
    run = plan(project, "chain", "debug", 1).runs[0]
    found, shards_made = [], []
    for name in ("undisturbed", "stopped"):
        store, left = Store(tmp_path / name), 10**4 if name == "undisturbed" else 1
        store.prepare()
        made.clear()
        stops = 0
        while True:
            asked = [False] * left
            stop = partial(lambda asked: not asked or asked.pop(), asked)
            context = Context(project, store, Runtime(device="cpu"), run.arm.run, stop, data_here=True)
            try:
                execute.execute(context, run.stages[:3])
                break
            except Stopped:
                stops, left = stops + 1, left + 1
        shards_made.append([path.name for path in made if path.parent.name == "shards"])
        folders = [store.folder(stage.key) for stage in run.stages[:3]]
        assert [folder.name.split("-")[0] for folder in folders] == ["corpus", "vocabulary", "pack"]
        files = [path for folder in folders for path in sorted(folder.iterdir()) if path.name != "stage.json"]
        found.append({path.name: path.read_bytes() for path in files})
        assert not list((store.root / "doing").iterdir())
    assert stops > 10
    assert found[0] == found[1]
    assert shards_made[0] == shards_made[1] and len(shards_made[0]) > 10  # none of corpus and pack was made twice


def test_a_stage_says_what_computed_it(project: Project, tmp_path: Path) -> None:
    run = plan(project, "chain", "debug", 1).runs[0]
    store = Store(tmp_path / "store")
    store.prepare()
    execute.execute(Context(project, store, Runtime(device="cpu"), run.arm.run, data_here=True), run.stages[:5])
    record = store.record(run.stage("evaluate").key)
    assert (record["device"], record["driver"], record["matmul"]) == ("cpu", None, "highest")
    assert record["peak_memory_mb"] > 10
    assert store.provenance(record["provenance"])["code"] == execute.program(project)


def test_variants_are_run_as_they_are_hashed_however_old_their_file_says_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    script = "from pathlib import Path; from paribus.project import add_variants"
    script += f"; print(add_variants(Path({str(path)!r})).SCALE)"
    environment = {**os.environ, "PYTHONPATH": str(Path(execute.__file__).parents[1]), "PYTHONDONTWRITEBYTECODE": ""}
    for scale in ("1.0", "9.0"):
        path.write_text(f"SCALE = {scale}\n")
        os.utime(path, (1e9, 1e9))
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        assert done.stdout.strip() == scale, done.stderr


def test_a_stage_was_made_by_the_code_that_was_there_when_it_began(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, store = plan(project, "chain", "debug", 1).runs[0], Store(tmp_path / "store")
    store.prepare()
    before = execute.environment(project)["code"]

    def edits(*_: object) -> dict[str, object]:
        monkeypatch.setattr(execute, "program", lambda project: "paribus 1 (code edited)")
        return {}

    monkeypatch.setattr(execute, "FUNCTIONS", {"corpus": edits, "vocabulary": edits})
    execute.execute(Context(project, store, Runtime(device="cpu"), run.arm.run, data_here=True), run.stages[:2])
    made = [store.provenance(store.record(stage.key)["provenance"])["code"] for stage in run.stages[:2]]
    assert made == [before, f"{before}, edited meanwhile to paribus 1 (code edited)"]


def test_a_stage_that_began_after_the_code_was_edited_says_so(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its worker had imported by then is one thing, what it imports later another."""
    store = Store(tmp_path / "store")
    store.prepare()
    context = Context(project, store, Runtime(device="cpu"), plan(project, "chain", "debug", 1).runs[0].arm.run)
    before = store.provenance(context.provenance())["code"]
    monkeypatch.setattr(execute, "program", lambda project: "paribus 1 (code edited)")
    assert store.provenance(context.provenance())["code"] == f"{before}, edited meanwhile to paribus 1 (code edited)"
    monkeypatch.setattr(execute, "program", Mock(side_effect=FileNotFoundError))  # a checkout is at it
    assert store.provenance(context.provenance())["code"] == f"{before}, edited meanwhile to something else"


def test_the_program_is_another_one_when_the_users_variants_are_edited(project: Project) -> None:
    before = execute.program(project)
    (project.root / "paribus.toml").write_text('variants = "mine.py"')
    told = []
    for text in ("def modules():\n    return {}\n", "def modules():\n    return dict()\n"):
        (project.root / "mine.py").write_text(text)
        told.append(execute.program(find(project.root)))
    assert len({before, *told}) == 3 and all(text.startswith("paribus ") for text in told)
