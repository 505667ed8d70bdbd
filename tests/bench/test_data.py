"""The measurement of data preparation runs, and `datasets.map` gives the rows that are ours."""

import json
import re
from pathlib import Path

import pytest

from paribus.bench.data import measure
from paribus.data.document import Document


@pytest.fixture
def corpus(documents: list[Document], tmp_path: Path) -> Path:
    file = tmp_path / "a.jsonl"
    texts = ["\n".join(map(" ".join, document.paragraphs)) for document in documents]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return file


def test_every_step_of_data_preparation_is_measured(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measure([corpus], 512, 64, peer=False, gigabytes=0.0005)
    said = capsys.readouterr().out
    assert len(re.findall(r"\d s wall +\d+\.\d s CPU +\d+ MiB", said)) == 5
    rows = [int(found.replace(",", "")) for found in re.findall(r"([\d,]+) rows", said)]
    assert len(rows) == 2 and rows[1] > rows[0] > 100


@pytest.mark.drill
def test_datasets_and_a_collator_make_the_same_rows(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measure([corpus], 512, 64, peer=True, gigabytes=0)  # it refuses other rows
    assert "the same rows; datasets takes" in capsys.readouterr().out
