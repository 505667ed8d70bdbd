"""Real text and a real task through the command line: the development data, read as a user's own files."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paribus import cli

DATA = Path(__file__).parents[2] / "shared" / "data"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="needs the development data in ../shared/data")

EXPERIMENT = """
question: Do the readers take real files?
expect: "yes"
base: bert-relative
factors: [masking]
levels: {masking: [static]}
seeds: 1
tasks: [cola]
set:
  corpus: {kind: jsonl, paths: [pretrain/en_gum.jsonl.gz, pretrain/en_speech_inaugural.jsonl.gz]}
"""


def paribus(project: Path, *argv: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1]), "PARIBUS_STORE": "results"}
    done = subprocess.run(
        [sys.executable, "-m", "paribus", *argv], cwd=project, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(project: Path, kind: str) -> list[dict[str, Any]]:
    """The rows of the only finished stage of a kind."""
    (path,) = (project / "results" / "stages").glob(f"{kind}-*/rows.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_pretraining_on_jsonl_and_finetuning_on_cola(tmp_path: Path) -> None:
    (tmp_path / "paribus.toml").write_text(f'data = "{DATA.resolve()}"\n')
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "real.yaml").write_text(EXPERIMENT)
    table = paribus(tmp_path, "run", "real", "--scale", "debug")
    assert "1 of 1 runs are done" in table and "cola" in table

    documents = {row["metric"]: row["value"] for row in rows(tmp_path, "corpus")}
    assert documents["train"] > documents["test"] >= 10 and documents["words"] > 100_000

    # CoLA in GLUE: 8,551 sentences to train on, some of which are held out to select, and 1,043 of dev.
    items = {row["split"]: row["value"] for row in rows(tmp_path, "task") if row["metric"] == "items"}
    assert items["train"] + items["select"] == 8551 and items["dev"] == 1043
    assert 0 < items["select"] < items["train"]

    scores = [row for row in rows(tmp_path, "finetune") if row["metric"] == "mcc" and row["split"] == "dev"]
    assert len(scores) == 1 and scores[0]["n"] == 1043
    losses = [row for row in rows(tmp_path, "evaluate") if row["metric"] == "loss"]
    assert {row["split"] for row in losses} == {"validation", "test"}


@pytest.mark.drill
def test_the_papers_models_stand_in_a_papers_table_of_results(tmp_path: Path) -> None:
    (tmp_path / "paribus.toml").write_text(f'data = "{DATA.resolve()}"\n')
    asked = ("--scale", "debug", "--seeds", "1")
    assert "4 of 4 runs are done" in paribus(tmp_path, "run", "results-ner", *asked)
    found = json.loads(paribus(tmp_path, "table", "elmo-table1", *asked, "--format", "json"))
    assert found["name"] == "results-ner@debug,elmo-table1"
    labels = [column["label"] for column in found["columns"]]
    published, ours = labels.index("CoNLL-2003 NER F1 (test)"), labels.index("CoNLL-2003 NER F1 (dev)")
    rows = {row["key"]: row["cells"] for row in found["rows"]}
    assert rows["elmo_baseline"][published]["value"] == 92.22 and rows["elmo_baseline"][ours] is None
    for arm in ("bert", "roberta", "electra", "deberta"):
        assert rows[arm][published] is None and len(rows[arm][ours]["samples"]) == 1
    assert found["warnings"][0].startswith("Ours and what is published do not compare.")
    assert found["warnings"][0].endswith("On test there, on dev here: CoNLL-2003 NER F1.")
