"""What is said of a task's files: counts, labels, repeated ids and texts, text shared with train, rows by line."""

from pathlib import Path

from paribus.data.check import Checked, check
from paribus.spec.load import build
from paribus.spec.task import Task

HEADER = "index\tsentence1\tsentence2\tlabel\n"


def files(folder: Path, train: str, dev: str = "", **data: object) -> dict[str, Checked]:
    (folder / "train.tsv").write_text(HEADER + train)
    if dev:
        (folder / "dev.tsv").write_text(HEADER + dev)
    task = build(
        Task,
        {
            "name": "t",
            "source": "s",
            "kind": "pair",
            "labels": ["no", "yes"],
            "metrics": ["accuracy"],
            "data": {"kind": "folder", "path": ".", "train": "train.tsv", "dev": "dev.tsv", **data},
        },
        "t.yaml",
    )
    return {file.split: file for file in check(task, folder)}


def test_items_labels_and_official_counts_are_reported(tmp_path: Path) -> None:
    found = files(
        tmp_path, "0\ta\tb\tyes\n1\tc\td\tyes\n2\te\tf\tno\n", "0\tg\th\tno\n", official={"train": 3, "dev": 9}
    )
    assert (found["train"].items, found["train"].labels, found["train"].complete) == (3, {"no": 1, "yes": 2}, True)
    assert (found["dev"].items, found["dev"].official, found["dev"].complete) == (1, 9, False)


def test_repeated_ids_and_texts_and_text_shared_with_train_are_noted(tmp_path: Path) -> None:
    train = "0\ta\tb\tyes\n0\ta\tb\tyes\n1\tc\td\tno\n"
    found = files(tmp_path, train, "0\ta\tb\tyes\n1\tc\tx\tyes\n2\tz\tz\tno\n")
    assert found["train"].notes == [
        "1 ids occur more than once, the first is '0' (2 times)",
        "1 items repeat the text of another",
    ]
    assert found["dev"].notes == [
        "1 items have a text that is also in train",
        "2 first sentences are also in train, 1 of them only under another label",
    ]


def test_a_missing_and_a_bad_file_are_said_and_the_others_are_read_all_the_same(tmp_path: Path) -> None:
    found = files(tmp_path, "0\ta\tb\n")
    assert not found["train"].usable and "train.tsv, line 2: 3 columns, expected the header's 4" in found["train"].file
    assert found["train"].there and not found["dev"].there and "has no dev.tsv" in found["dev"].file


def test_a_test_file_without_labels_is_read_and_its_rows_are_said(tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text("index\tsentence1\tsentence2\n0\ta\t\n")
    found = files(tmp_path, "0\ta\tb\tyes\n", "0\tc\td\tno\n", test="test.tsv")["test"]
    assert found.items == 1 and found.labels == {} and found.defects == ["line 2: sentence2 is empty"]
    assert "1 items have no label; nothing is scored on them" in found.notes
