"""The index of finished stages: as if every folder were opened, whatever happens to it or to them."""

import json
import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import polars as pl
import pytest

from paribus.errors import Corrupt
from paribus.plan.runs import PlannedRun
from paribus.plan.stages import Stage, make
from paribus.spec.data import Sotu
from paribus.store.index import NAME, Finished
from paribus.store.store import Store


@pytest.fixture
def stages() -> list[Stage]:
    return [make("corpus", Sotu(), {}, seed) for seed in range(3)]


def finish(store: Store, stage: Stage, value: float, **more: Any) -> None:
    work = store.claim(stage)
    assert work
    with work:
        work.row("loss", value, split="test", n=3, task="mlm", other="not kept")
        work.row("updates", 1080)
        work.commit("provenance", **more)


def read(store: Store, stages: list[Stage]) -> Finished:
    return Finished(store, [PlannedRun(Mock(), 0, "run", stages)])


def values(store: Store, stages: list[Stage]) -> dict[str, float]:
    return dict(read(store, stages).rows.filter(metric="loss").select("key", "value").iter_rows())


def test_what_is_finished_is_found_with_its_facts_and_rows_the_second_time_without_its_folders(
    store: Store, stages: list[Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(store, stages[0], 2.0, device="cpu", seconds=1.5)
    finish(store, stages[1], 3.0, outcome="diverged")
    for again in (False, True):
        if again:
            monkeypatch.setattr(Store, "finished", Mock(side_effect=AssertionError))
        found = read(store, stages[:2])
        facts = {key: (each["outcome"], each["device"], each["seconds"]) for key, each in found.records.items()}
        assert facts == {stages[0].key: ("done", "cpu", 1.5), stages[1].key: ("diverged", None, None)}
        assert found.rows.filter(key=stages[0].key).drop("key").rows() == [
            ("mlm", "loss", "test", 2.0, 3),
            (None, "updates", None, 1080.0, None),
        ]


def test_what_was_finished_since_is_added_and_what_is_gone_is_left_out(store: Store, stages: list[Stage]) -> None:
    finish(store, stages[0], 2.0)
    assert read(store, stages).records.keys() == {stages[0].key}
    finish(store, stages[1], 3.0)
    assert values(store, stages) == {stages[0].key: 2.0, stages[1].key: 3.0}
    shutil.rmtree(store.folder(stages[0].key))
    assert values(store, stages) == {stages[1].key: 3.0}
    finish(store, stages[2], 4.0)
    assert values(store, stages[2:]) == {stages[2].key: 4.0}
    assert set(pl.read_parquet((store.root / NAME).read_bytes()[32:])["key"]) == {stages[1].key, stages[2].key}


def test_a_stage_that_was_made_again_is_read_again(store: Store, stages: list[Stage]) -> None:
    finish(store, stages[0], 2.0)
    assert values(store, stages) == {stages[0].key: 2.0}
    store.set_aside(stages[0].key)
    assert values(store, stages) == {}
    finish(store, stages[0], 5.0)
    assert values(store, stages) == {stages[0].key: 5.0}


def test_rows_that_are_changed_after_they_were_indexed_are_noticed(store: Store, stages: list[Stage]) -> None:
    finish(store, stages[0], 2.0)
    assert values(store, stages) == {stages[0].key: 2.0}
    path = store.folder(stages[0].key) / "rows.jsonl"
    path.write_text(json.dumps({"metric": "loss", "split": "test", "value": 1.0, "n": 3}) + "\n")
    with pytest.raises(Corrupt, match="does not match its checksum"):
        read(store, stages)


@pytest.mark.parametrize("content", [b"", b"no parquet", None])
def test_an_index_that_is_damaged_of_another_form_or_not_writable_costs_time_only(
    store: Store, stages: list[Stage], content: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(store, stages[0], 2.0)
    if content is None:
        pl.DataFrame({"key": [stages[0].key]}).write_parquet(store.root / NAME)
        monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    else:
        (store.root / NAME).write_bytes(content)
    for _ in range(2):
        assert values(store, stages) == {stages[0].key: 2.0}


def test_an_index_with_a_flipped_bit_is_read_from_the_folders_again(store: Store, stages: list[Stage]) -> None:
    finish(store, stages[0], 2.0)
    assert values(store, stages) == {stages[0].key: 2.0}
    path = store.root / NAME
    whole = path.read_bytes()
    for place in range(0, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 32]) + whole[place + 1 :])
        assert values(store, stages) == {stages[0].key: 2.0}


def test_a_stage_whose_record_is_gone_after_it_was_indexed_is_no_longer_finished(
    store: Store, stages: list[Stage]
) -> None:
    finish(store, stages[0], 2.0)
    assert values(store, stages) == {stages[0].key: 2.0}
    (store.folder(stages[0].key) / "stage.json").unlink()
    assert values(store, stages) == {}


def test_stages_whose_folders_changed_places_are_damaged(store: Store, stages: list[Stage]) -> None:
    """All their checksums hold."""
    for stage in stages[:2]:
        finish(store, stage, 2.0)
    one, other = (store.folder(stage.key) for stage in stages[:2])
    for old, new in ((one, one.with_name("x")), (other, one), (one.with_name("x"), other)):
        old.rename(new)
    with pytest.raises(Corrupt, match=f"it is of {stages[1].key}"):
        store.finished(stages[0].key)
    with pytest.raises(Corrupt):
        store.verified(stages[1].key)


def test_a_stage_that_was_resumed_took_its_earlier_steps_too(store: Store, stages: list[Stage]) -> None:
    finish(store, stages[0], 2.0, seconds=1000.0)
    finish(store, stages[1], 2.0)
    found = read(store, stages)
    assert found.took(stages[0].key) == 1000.0 and 0 < found.took(stages[1].key) < 100


@pytest.mark.parametrize("indexed", [False, True])
def test_a_stage_that_lost_its_rows_is_damaged(store: Store, stages: list[Stage], indexed: bool) -> None:
    finish(store, stages[0], 2.0)
    if indexed:
        assert values(store, stages) == {stages[0].key: 2.0}
    (store.folder(stages[0].key) / "rows.jsonl").unlink()
    with pytest.raises(Corrupt, match="does not match its checksum"):
        read(store, stages)


def test_a_folder_without_its_record_is_no_finished_stage(store: Store, stages: list[Stage]) -> None:
    finish(store, stages[0], 2.0)
    (store.folder(stages[0].key) / "stage.json").unlink()
    assert read(store, stages).records == {}


def test_nothing_is_finished_in_a_store_that_is_not_there(tmp_path: Path, stages: list[Stage]) -> None:
    found = read(Store(tmp_path / "none"), stages)
    assert found.records == {} and found.rows.is_empty()
    assert not (tmp_path / "none").exists()
