"""The mirror against a real SQLite tracking store, over stages written by hand."""

import base64
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

import pytest

from paribus.errors import ParibusError
from paribus.plan.plan import Plan, PlannedRun, plan
from paribus.plan.stages import Stage, TaskTuning
from paribus.project import find
from paribus.store.store import Store, Work
from paribus.tables.experiment import experiment_table
from paribus.tables.render import FORMATS, render
from paribus.tables.table import Table
from paribus.tracking import mirror
from paribus.tracking import publish as publisher
from paribus.tracking.mirror import content, sync
from paribus.tracking.publish import publish
from paribus.tracking.server import ui_command
from paribus.tracking.wanted import OWN, Wanted

ROOT = Path(__file__).resolve().parents[2]
SCORES = {1e-3: 0.25, 3e-3: 0.5}
"""What a fake fine-tuning scores, by its learning rate."""


def planned(seeds: int = 1, **overrides: Any) -> Plan:
    return plan(find(ROOT), "masking", "debug", seeds=seeds, overrides=overrides)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "store")
    store.prepare()
    return store


@pytest.fixture(scope="session")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty tracking database; making one takes seconds."""
    path = tmp_path_factory.mktemp("schema") / "mlflow.db"
    mirror.connect(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def database(schema: Path, tmp_path: Path) -> Callable[[str], str]:
    """Makes a tracking store by name and returns its URI."""

    def make(name: str) -> str:
        shutil.copy(schema, tmp_path / name)
        return f"sqlite:///{tmp_path / name}"

    return make


def curve(steps: int, scale: float = 1.0) -> str:
    losses = {step: scale * (6 - step / 100) for step in range(0, steps, 10)}
    points = [{"step": step, "time": time.time(), "train/loss": loss} for step, loss in losses.items()]
    return "".join(json.dumps(point) + "\n" for point in points)


def begin(store: Store, stage: Stage, steps: int, scale: float = 1.0) -> Work:
    """Claim a stage and write the beginning of its curve. Use the result as a context to let go of it."""
    work = store.claim(stage)
    assert work
    work.__enter__()
    (work.scratch / "curve.jsonl").write_text(curve(steps, scale))
    return work


def finish(store: Store, stage: Stage, scale: float = 1.0, outcome: str = "done", loss: float = 5.25) -> None:
    """A finished stage with rows in the form the real ones have."""
    work = begin(store, stage, 0)
    if stage.kind == "pretrain":
        (work.out / "curve.jsonl").write_text(curve(50, scale))
        work.row("train_loss", 5.5 + (stage.seed or 0))
    elif isinstance(stage.spec, TaskTuning):
        for split in ("select", "dev"):
            for metric in stage.spec.task.metrics:
                work.row(metric, SCORES[stage.spec.point.lr] + stage.spec.restart / 8, split=split, n=100)
    else:
        for split in ("test", "validation"):
            work.row("loss", loss, split=split, n=100)
    code: dict[str, Any] = {"paribus": "1.2", "commit": "abc", "dirty": True, "diff": "- old\n+ new\n"}
    code |= {"python": "3.11", "packages": {"torch": "2.13"}}
    work.commit(store.record_provenance(code), outcome)
    work.__exit__(None, None, None)


def finish_run(store: Store, run: PlannedRun) -> None:
    for stage in run.stages:
        if stage.kind in OWN:
            finish(store, stage)


def by_name(uri: str, plan: Plan) -> dict[str, Any]:
    """Arms, runs and stages by their own and their parent's name; not the experiment's run, which is above all."""
    runs = {id: run for id, run in content(uri, plan)["runs"].items() if run["tags"]["paribus.kind"] != "experiment"}
    names = {id: run["name"] for id, run in runs.items()}
    return {" < ".join(filter(None, (run["name"], names.get(run["parent"])))): run for run in runs.values()}


def test_an_experiment_is_mirrored_as_arms_runs_and_stages(store: Store, database: Callable[[str], str]) -> None:
    uri, wanted = database("a.db"), planned(seeds=2)
    for run in wanted.runs:
        finish_run(store, run)
    assert sync(wanted, store, uri).created == 1 + 2 + 4 + 4 * 4
    found = by_name(uri, wanted)
    assert {run["status"] for run in found.values()} == {"FINISHED"}
    at = "lr=0.001 batch=32 epochs=1 #0"
    stages = {"pretrain", "evaluate", f"acceptability {at}", f"truecasing {at}"}
    assert {name.split(" < ")[0] for name in found if name.endswith("< dynamic seed 1")} == stages

    arm, run, pretrain = found["dynamic"], found["dynamic seed 1 < dynamic"], found["pretrain < dynamic seed 1"]
    assert arm["params"]["objective.masking.kind"] == run["params"]["objective.masking.kind"] == "dynamic"
    assert "seed" not in arm["params"] and run["params"]["seed"] == "1"
    assert pretrain["params"]["encoder.width"] == "32" and "corpus.kind" not in pretrain["params"]
    assert run["tags"]["paribus.level.masking"] == run["tags"]["paribus.arm"] == "dynamic"
    assert run["tags"]["paribus.stage.pack"] == wanted.runs[0].stages[2].key
    assert run["tags"]["paribus.commit"] == "abc" and run["tags"]["paribus.dirty"] == "true"
    assert run["tags"]["paribus.version"] == "1.2"
    assert pretrain["tags"]["paribus.stage"] == wanted.runs[3].stages[3].key
    assert run["artifacts"]["git.diff"] == "- old\n+ new\n"
    assert run["artifacts"]["environment.txt"].endswith("# python: 3.11\ntorch==2.13\n")
    assert "\nseed: 1\n" in run["artifacts"]["run.yaml"]

    record = store.record(pretrain["tags"]["paribus.stage"])
    start, end = round(record["first_started"] * 1000), round(record["finished"] * 1000)
    assert (pretrain["start"], pretrain["end"]) == (start, end)
    assert pretrain["metrics"]["train/loss"] == [(step, start + step, 6 - step / 100) for step in range(0, 50, 10)]
    assert pretrain["metrics"]["pretrain/train_loss"] == run["metrics"]["pretrain/train_loss"] == [(0, end, 6.5)]
    assert run["metrics"]["test/mlm/loss"][0][2] == 5.25
    assert run["metrics"]["dev/acceptability/mcc"][0][2] == 0.25
    assert arm["start"] <= run["start"] == start and run["end"] <= arm["end"]


def test_minimal_pairs_are_a_stage_called_as_their_task(
    store: Store, database: Callable[[str], str], tmp_path: Path
) -> None:
    (tmp_path / "experiments").mkdir()
    (tmp_path / "paribus.toml").touch()
    experiment = "{question: q, expect: e, base: bert-relative, factors: [masking-rate], tasks: [minimal-pairs]}"
    (tmp_path / "experiments/pairs.yaml").write_text(experiment)
    wanted = plan(find(tmp_path), "pairs", "debug", seeds=1)
    run = wanted.runs[0]
    finish_run(store, run)
    uri = database("pairs.db")
    sync(wanted, store, uri)
    found = by_name(uri, wanted)
    assert f"minimal-pairs < {run.arm.label} seed 0" in found
    assert "test/minimal-pairs/loss" in found[f"{run.arm.label} seed 0 < {run.arm.label}"]["metrics"]


def test_an_unchanged_store_is_not_sent_and_mlflow_not_asked(
    store: Store, database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, wanted = database("a.db"), planned()
    finish_run(store, wanted.runs[0])
    assert sync(wanted, store, uri).created == 7
    monkeypatch.setattr(mirror, "connect", lambda uri: pytest.fail("MLflow was asked"))
    assert sync(wanted, store, uri) == mirror.Counts(unchanged=7)


def test_a_run_between_two_stages_is_running_while_its_worker_lives(store: Store) -> None:
    wanted = planned()
    finish(store, own(wanted.runs[0])[0])

    def outcome() -> str:
        entry = next(entry for entry in Wanted(wanted, store).entries() if entry.name == "static seed 0")
        return entry.read().outcome

    lease = store.lease(wanted.runs[0].key)
    assert lease and outcome() == "running"
    lease.release()
    assert outcome() == "missing"


def test_the_mirror_loads_without_mlflow() -> None:
    code = "import sys, paribus.tracking.mirror, paribus.tracking.server; sys.exit('mlflow' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "platform")}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


@pytest.mark.parametrize("replayed", [1.0, 1.5], ids=["same values", "other values"])
def test_a_mirror_kept_up_in_pieces_equals_one_rebuilt(
    store: Store, database: Callable[[str], str], replayed: float
) -> None:
    """In pieces: half a curve, a kill, a resume from an older checkpoint, the end; then a second seed."""
    uri, one, two = database("live.db"), planned(), planned(seeds=2)
    pretrain = one.runs[0].stages[3]
    with begin(store, pretrain, 30):
        sync(one, store, uri, live=True)
        found = by_name(uri, one)
        assert [found[name]["status"] for name in ("static", "pretrain < static seed 0")] == ["RUNNING", "RUNNING"]
        assert len(found["pretrain < static seed 0"]["metrics"]["train/loss"]) == 3
    sync(one, store, uri, live=True)
    assert by_name(uri, one)["pretrain < static seed 0"]["status"] == "SCHEDULED"
    with begin(store, pretrain, 20, replayed):
        assert sync(one, store, uri, live=True).created == 0, "the curve may still catch up"
    with begin(store, pretrain, 40, replayed):
        sync(one, store, uri, live=True)
        assert len(by_name(uri, one)["pretrain < static seed 0"]["metrics"]["train/loss"]) == 4
    finish(store, pretrain, replayed)
    sync(one, store, uri, live=True)
    for run in one.runs:
        finish_run(store, run) if run.arm.label == "dynamic" else [finish(store, stage) for stage in own(run)[1:]]
    sync(one, store, uri, live=True)
    assert by_name(uri, one)["static"]["status"] == "FINISHED"
    sync(two, store, uri, live=True)
    assert by_name(uri, two)["static"]["end"] is None, "it has a seed to go"
    for run in two.runs[2:]:
        finish_run(store, run)
        sync(two, store, uri, live=True)
    assert sync(two, store, uri, live=True).outage == ""
    assert by_name(uri, two)["static"]["status"] == "FINISHED"

    rebuilt = database("rebuilt.db")
    sync(two, store, rebuilt)
    assert content(uri, two) == content(rebuilt, two)


def own(run: PlannedRun) -> list[Stage]:
    return [stage for stage in run.stages if stage.kind in OWN]


@pytest.mark.parametrize("marks", [None, "", '{"sqlite'], ids=["lost", "empty", "torn"])
def test_without_its_marks_a_sync_sends_again_and_changes_nothing(
    store: Store, database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, marks: str | None
) -> None:
    uri, wanted = database("a.db"), planned()
    monkeypatch.setattr(mirror, "PAGE", 4)  # six runs are two pages
    finish_run(store, wanted.runs[0])
    sync(wanted, store, uri)
    before = content(uri, wanted)
    path = store.root / "mirror.json"
    path.unlink() if marks is None else path.write_text(marks)
    assert sync(wanted, store, uri) == mirror.Counts(updated=7)
    assert content(uri, wanted) == before


@pytest.mark.parametrize("calls", [1, 3, 6])
@pytest.mark.parametrize("where", ["create_run", "log_batch", "set_terminated"])
def test_a_sync_killed_half_way_is_completed_by_the_next(
    store: Store, database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, where: str, calls: int
) -> None:
    uri, wanted = database("a.db"), planned()
    finish_run(store, wanted.runs[0])
    client = type(mirror.connect(uri))
    real, left = getattr(client, where), iter(range(calls - 1))

    def dying(*args: Any, **more: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(*args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(client, where, dying)
        patch.setattr(mirror, "write_atomically", lambda path, text: None)
        with pytest.raises(KeyboardInterrupt):
            for _ in range(2):  # whichever call is the last, one sync of two dies
                sync(wanted, store, uri)
    sync(wanted, store, uri)
    undisturbed = database("b.db")
    sync(wanted, store, undisturbed)
    assert content(uri, wanted) == content(undisturbed, wanted)


@pytest.mark.parametrize("loss", ["database", "newest database", "one run", "the experiment"])
def test_what_was_deleted_from_mlflow_comes_back(store: Store, database: Callable[[str], str], loss: str) -> None:
    uri, older, wanted = database("a.db"), database("older.db"), planned()
    first, *others = own(wanted.runs[0])
    finish(store, first)
    sync(wanted, store, older)
    for stage in others:
        finish(store, stage)
    sync(wanted, store, uri)
    before = content(uri, wanted)
    client = mirror.connect(uri)
    experiment = client.get_experiment_by_name(wanted.name).experiment_id
    if loss == "database":
        uri = database("a.db")  # an empty one in its place
    elif loss == "newest database":
        shutil.copy(older.removeprefix("sqlite:///"), uri.removeprefix("sqlite:///"))
    elif loss == "one run":
        client.delete_run(client.search_runs([experiment], "run_name = 'static'")[0].info.run_id)
    else:
        client.delete_experiment(experiment)
    sync(wanted, store, uri)
    assert content(uri, wanted) == before


def test_a_diverged_run_is_over_and_failed(store: Store, database: Callable[[str], str]) -> None:
    uri, wanted = database("a.db"), planned()
    finish(store, own(wanted.runs[0])[0], outcome="diverged")
    sync(wanted, store, uri)
    found = by_name(uri, wanted)
    assert {run["status"] for run in found.values()} == {"FAILED"}
    assert {run["tags"]["paribus.outcome"] for run in found.values()} == {"diverged"}


def test_a_stage_given_up_or_set_aside_leaves_the_mirror(store: Store, database: Callable[[str], str]) -> None:
    uri, wanted = database("a.db"), planned()
    first, second = own(wanted.runs[0])[:2]
    finish(store, first)
    work = begin(store, second, 0)
    (work.scratch / "curve.jsonl").unlink()
    sync(wanted, store, uri, live=True)
    assert "evaluate < static seed 0" in by_name(uri, wanted)
    with pytest.raises(ValueError), work:
        raise ValueError("crashed before anything could be kept")
    sync(wanted, store, uri, live=True)
    assert set(by_name(uri, wanted)) == {"static", "static seed 0 < static", "pretrain < static seed 0"}


def test_a_stage_computed_again_replaces_what_was_sent(store: Store, database: Callable[[str], str]) -> None:
    uri, wanted = database("a.db"), planned()
    finish_run(store, wanted.runs[0])
    sync(wanted, store, uri)
    shutil.rmtree(store.folder(own(wanted.runs[0])[0].key))
    finish(store, own(wanted.runs[0])[0], scale=2.0)
    sync(wanted, store, uri)
    rebuilt = database("rebuilt.db")
    sync(wanted, store, rebuilt)
    assert content(uri, wanted) == content(rebuilt, wanted)


def test_an_outage_is_told_live_and_raised_otherwise(store: Store) -> None:
    wanted = planned()
    finish_run(store, wanted.runs[0])
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        uri = f"http://me:secret@127.0.0.1:{unused.getsockname()[1]}"
        told = sync(wanted, store, uri, live=True).outage
        assert told.startswith(uri.replace("me:secret@", "")) and "\n" not in told and "secret" not in told
        with pytest.raises(ParibusError, match=r"^http://127.0.0.1:\d+: cannot be brought up to date"):
            sync(wanted, store, uri)


def test_a_table_that_cannot_be_made_is_no_outage_of_mlflow(store: Store) -> None:
    wanted = planned()
    finish_run(store, wanted.runs[0])

    def table() -> Table:
        raise ZeroDivisionError("of a variant")

    told = "masking@debug: cannot be read for MLflow (ZeroDivisionError: of a variant)"
    assert sync(wanted, store, "sqlite:///never.db", live=True, table=table).outage == told
    with pytest.raises(ParibusError, match=re.escape(told)):
        sync(wanted, store, "sqlite:///never.db", table=table)


def test_without_mlflow_live_work_goes_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = planned()
    finish_run(store, wanted.runs[0])
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert "MLflow is not installed here" in sync(wanted, store, "sqlite:///never.db", live=True).outage


def test_nothing_started_is_nothing_mirrored(store: Store) -> None:
    assert sync(planned(), store, "sqlite:///never.db") == mirror.Counts()
    assert sync(planned(), Store(store.root / "never"), "sqlite:///never.db") == mirror.Counts()


def test_a_run_shows_the_learning_rate_that_select_chooses(store: Store) -> None:
    wanted = planned(**{"finetuning.learning_rates": [1e-3, 3e-3], "finetuning.seeds": 2})
    run = wanted.runs[0]
    *others, last = own(run)
    for stage in others:
        finish(store, stage)
    entry = next(entry for entry in Wanted(wanted, store).entries() if entry.name == "static seed 0")
    assert "dev/acceptability/mcc" in {point.key for point in entry.read().points}
    assert "paribus.lr.truecasing" not in entry.read().tags, "one of its fine-tunings is missing"
    finish(store, last)
    entry = next(entry for entry in Wanted(wanted, store).entries() if entry.name == "static seed 0")
    assert entry.read().tags["paribus.lr.truecasing"] == "0.003"
    assert entry.read().tags["paribus.batch_items.truecasing"] == "32"
    assert [point.value for point in entry.read().points if point.key == "dev/truecasing/f1"] == [0.5 + 1 / 16]


def test_the_ui_is_refused_where_a_server_is_the_tracking_store(store: Store) -> None:
    with pytest.raises(ParibusError, match="http://lab:5000 is an MLflow server already"):
        ui_command(store, "http://lab:5000", "127.0.0.1", 5001)


@pytest.mark.drill
def test_a_real_server_shows_the_artifacts_and_can_be_mirrored_to(store: Store, database: Callable[[str], str]) -> None:
    uri, wanted = database("a.db"), planned()
    finish_run(store, wanted.runs[0])
    sync(wanted, store, uri)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv, environment = ui_command(store, uri, "127.0.0.1", port)
    server = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with ExitStack() as stack:
        stack.callback(server.wait)
        stack.callback(server.terminate)
        url = f"http://127.0.0.1:{port}"
        deadline = time.time() + 60
        while not answers(f"{url}/health"):
            assert server.poll() is None and time.time() < deadline
            time.sleep(0.2)
        client = mirror.connect(uri)
        experiment = client.get_experiment_by_name(wanted.name).experiment_id
        (run,) = client.search_runs([experiment], "run_name = 'static seed 0'")
        with urllib.request.urlopen(f"{url}/get-artifact?path=git.diff&run_uuid={run.info.run_id}") as answer:
            assert answer.read() == b"- old\n+ new\n"

        # The same server as the tracking store of another project: it chooses where artifacts go.
        other = planned(**{"optimizer.lr": 1e-3})
        elsewhere = Store(store.root.parent / "other")
        elsewhere.prepare()
        finish_run(elsewhere, other.runs[0])
        client.rename_experiment(experiment, "out of the way")
        assert sync(other, elsewhere, url).created == 7
        assert by_name(url, other)["static seed 0 < static"]["artifacts"]["git.diff"] == "- old\n+ new\n"
        assert sync(other, elsewhere, url) == mirror.Counts(unchanged=7)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def test_trials_are_mirrored_as_arms_of_their_own_that_say_so_and_stay_when_their_arm_is_tuned(store: Store) -> None:
    def look() -> Plan:
        return plan(find(ROOT), "batch-size", "debug", seeds=1, results=store)

    found = look()
    trial = found.trials[0]
    for stage in trial.stages:
        if stage.kind in OWN:
            finish(store, stage)
    before = {entry.id: entry for entry in Wanted(found, store).entries() if entry.source}
    assert [entry.name for entry in before.values()] == [
        "batch-size@debug", "bsz-256 lr=0.00283", "bsz-256 lr=0.00283 seed 1000", "pretrain", "evaluate"
    ]  # fmt: skip
    assert [entry.read().tags.get("paribus.trial") for entry in before.values()] == [None, None, "true", "true", "true"]
    while (now := look()).untuned:
        for run in now.trials:
            finish_trial(store, run)
        for tuning in now.tunings:
            if tuning.suggestion and not store.has(tuning.suggestion.key):
                work = begin(store, tuning.suggestion, 0)
                work.row("suggestion", 0.004 + 0.001 * len(tuning.trials))
                work.commit("-")
                work.__exit__(None, None, None)
    assert before.keys() <= {entry.id for entry in Wanted(now, store).entries()}


def finish_trial(store: Store, run: PlannedRun) -> None:
    for kind in ("pretrain", "evaluate"):
        stage = run.stage(kind)
        if not store.has(stage.key):
            work = begin(store, stage, 0)
            work.row("loss", 5.0, split="validation")
            work.commit("-")
            work.__exit__(None, None, None)


def test_arms_carry_what_the_table_says_and_the_experiment_the_table_itself(
    store: Store, database: Callable[[str], str]
) -> None:
    wanted = planned(seeds=3)
    for run in wanted.runs:
        finish_run(store, run)
    uri = database("table.db")
    table = partial(experiment_table, wanted, store)
    sync(wanted, store, uri, table=table)
    found = content(uri, wanted)
    whole = next(run for run in found["runs"].values() if run["tags"]["paribus.kind"] == "experiment")
    assert {file.rpartition(".")[2] for file in whole["artifacts"]} == set(FORMATS)
    assert whole["artifacts"]["table.md"] == render(table(), "md") and "| MLM loss" in found["note"]
    arm = by_name(uri, wanted)["dynamic"]
    (row,) = (row for row in table().rows if row.key == "dynamic")
    cell = next(cell for cell, column in zip(row.cells, table().columns, strict=True) if column.key == "mlm.loss")
    assert cell and cell.difference and cell.verdict
    said = {key: history[-1][2] for key, history in arm["metrics"].items()}
    assert said["table/mlm.loss/mean"] == cell.value and said["table/mlm.loss/n"] == 3
    assert said["table/mlm.loss/difference"] == cell.difference.mean
    assert arm["tags"]["paribus.verdict.mlm.loss"] == cell.verdict.kind
    assert sync(wanted, store, uri, table=table).updated == 0


def test_what_the_table_says_later_stands_at_a_later_step(store: Store, database: Callable[[str], str]) -> None:
    uri = database("later.db")
    for seeds in (1, 2):
        wanted = planned(seeds=seeds)
        for run in wanted.runs:
            finish_run(store, run)
        sync(wanted, store, uri, table=partial(experiment_table, wanted, store))
    assert [step for step, *_ in by_name(uri, wanted)["dynamic"]["metrics"]["table/mlm.loss/n"]] == [2, 4]


THREE = "{source: x, base: a, levels: {a: {}, b: {objective.rate: 0.2}, c: {objective.rate: 0.4}}}"
LOSSES = {"a": 4.5, "b": 4.4, "c": 4.2}


def edited(root: Path, addition: str = "", seeds: int = 2, **overrides: Any) -> Plan:
    """The plan of an experiment of three arms after its file was edited so."""
    for name, text in {
        "paribus.toml": "",
        "ablations/three.yaml": THREE,
        "experiments/t.yaml": "{question: q, expect: e, base: bert-relative, factors: [three], tasks: [], "
        f"seeds: {seeds}, sesoi: {{nats: 0.02}}, {addition}}}",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return plan(find(root), "t", "debug", overrides=overrides)


def finish_all(store: Store, wanted: Plan) -> None:
    for run in wanted.runs:
        for stage in own(run):
            if not store.has(stage.key):
                shorter = run.arm.run.budget.train_tokens / 1e6
                finish(store, stage, loss=LOSSES[run.arm.label] + run.seed / 100 * ord(run.arm.label) / 97 - shorter)


def whole(wanted: Plan, store: Store, uri: str) -> mirror.Counts:
    """As `paribus sync` does it."""
    return sync(wanted, store, uri, table=partial(experiment_table, wanted, store))


def shown(uri: str, wanted: Plan) -> tuple[list[str], dict[str, Any]]:
    """The arms that the filter of `publish` shows, and what MLflow says of the plan now, by paribus.id."""
    client = mirror.connect(uri)
    experiment = [client.get_experiment_by_name(wanted.name).experiment_id]
    arms = client.search_runs(experiment, publisher._only("arm", wanted))
    runs = client.search_runs(experiment, f"tags.`paribus.plan` = '{wanted.label}'")
    ids = {run.info.run_id: run.data.tags["paribus.id"] for run in runs}
    found = {}
    for run in runs:
        metrics = sorted((at.key, at.step, at.timestamp, at.value) for at in run.data.to_proto().metrics)
        info = run.info.run_name, run.info.status, run.info.start_time, run.info.end_time
        tags = {key: ids.get(value, value) for key, value in run.data.tags.items()}
        found[ids[run.info.run_id]] = {"info": info, "tags": tags, "params": run.data.params, "metrics": metrics}
    assert len(found) == len(runs), "no run is there twice"
    return sorted(run.info.run_name for run in arms), found


@pytest.mark.parametrize(
    "edits",
    [
        [{}, {"addition": "baseline: {three: c}"}, {}],
        [{}, {"addition": "set: {budget.train_tokens: 20480}"}, {}],
        [{}, {"addition": "levels: {three: [a, c]}"}, {}],
        [{}, {"seeds": 1}, {}],
        [{"addition": "baseline: {three: c}"}, {"addition": "levels: {three: [a, b]}", "seeds": 1}, {}],
    ],
    ids=["the baseline", "what is set", "an arm", "seeds", "several things"],
)
def test_after_edits_mlflow_holds_what_a_new_database_would(
    store: Store, database: Callable[[str], str], tmp_path: Path, edits: list[dict[str, Any]]
) -> None:
    uri = database("a.db")
    for number, edit in enumerate(edits):
        wanted = edited(tmp_path, **edit)
        sync(wanted, store, uri, live=True)
        finish_all(store, wanted)
        sync(wanted, store, uri, live=True)
        whole(wanted, store, uri)
        anew = database(f"{number}.db")
        whole(wanted, store, anew)
        assert shown(uri, wanted) == shown(anew, wanted)
        assert shown(uri, wanted)[0] == sorted(arm.label for arm in wanted.arms)


def test_an_older_version_leaves_before_the_new_one_has_begun(
    store: Store, database: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, older = database("a.db"), edited(tmp_path, seeds=1)
    finish_all(store, older)
    whole(older, store, uri)
    wanted = edited(tmp_path, "set: {budget.train_tokens: 20480}", seeds=1)
    sync(wanted, store, uri, live=True)
    assert shown(uri, wanted)[0] == ["a", "b", "c"], "a look that makes no table takes nothing away"
    whole(wanted, store, uri)
    assert shown(uri, wanted) == ([], {})
    monkeypatch.setattr(mirror, "connect", lambda uri: pytest.fail("MLflow was asked"))
    assert whole(wanted, store, uri) == mirror.Counts()


def test_a_look_without_a_table_lets_stand_what_the_table_said(
    store: Store, database: Callable[[str], str], tmp_path: Path
) -> None:
    uri, wanted = database("a.db"), edited(tmp_path)
    finish_all(store, wanted)
    whole(wanted, store, uri)
    before = shown(uri, wanted)
    assert by_name(uri, wanted)["c"]["tags"]["paribus.verdict.mlm.loss"] == "helps"
    sync(wanted, store, uri, live=True)
    assert shown(uri, wanted) == before


def test_plans_with_overrides_that_change_no_arm_have_arms_of_their_own(
    store: Store, database: Callable[[str], str], tmp_path: Path
) -> None:
    uri, plain = database("a.db"), edited(tmp_path)
    other = edited(tmp_path, **{"optimizer.lr": plain.baseline.run.optimizer.lr})
    finish_all(store, plain)
    for wanted in (plain, other):
        whole(wanted, store, uri)
    assert shown(uri, plain)[0] == shown(uri, other)[0] == ["a", "b", "c"]
    assert whole(plain, store, uri).unchanged == 1 + 3 + 6 + 12


def test_a_run_that_was_restored_beside_its_successor_is_removed(
    store: Store, database: Callable[[str], str], tmp_path: Path
) -> None:
    uri, wanted = database("a.db"), edited(tmp_path, seeds=1)
    client = mirror.connect(uri)
    finish_all(store, wanted)
    whole(wanted, store, uri)
    first = [client.get_experiment_by_name(wanted.name).experiment_id], publisher._only("arm", wanted)
    restored = client.search_runs(*first)[0].info.run_id
    client.delete_run(restored)
    whole(wanted, store, uri)
    client.restore_run(restored)
    wanted = edited(tmp_path, "baseline: {three: c}", seeds=1)
    assert whole(wanted, store, uri).removed == 1
    assert shown(uri, wanted)[0] == ["a", "b", "c"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError], ids=["killed", "failed"])
@pytest.mark.parametrize("call", range(1, 14, 3))
def test_an_edit_taken_back_after_its_sync_ended_half_way_leaves_nothing_of_it(
    store: Store,
    database: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
    call: int,
) -> None:
    uri, before = database("a.db"), edited(tmp_path, seeds=1)
    finish_all(store, before)
    whole(before, store, uri)
    was = shown(uri, before)
    client, left = type(mirror.connect(uri)), iter(range(call))

    def ending(real: Callable[..., Any], *args: Any, **more: Any) -> Any:
        if error is KeyboardInterrupt:  # who is killed writes nothing any more
            patch.setattr(mirror, "write_atomically", lambda path, text: None)
        done = real(*args, **more)
        if next(left, None) is None:
            raise error
        return done

    with monkeypatch.context() as patch:
        for name in ("create_run", "delete_run", "log_batch"):
            patch.setattr(client, name, partialmethod(partial(ending, getattr(client, name))))
        with pytest.raises((KeyboardInterrupt, ParibusError)):
            whole(edited(tmp_path, "baseline: {three: c}", seeds=1), store, uri)
    whole(before, store, uri)
    assert shown(uri, before) == was


def test_views_are_published_under_names_of_ours(store: Store, database: Callable[[str], str]) -> None:
    uri, wanted = database("views.db"), planned(seeds=2)
    for run in wanted.runs:
        finish_run(store, run)
    sync(wanted, store, uri)
    found = publish(wanted, experiment_table(wanted, store), uri)
    tags = mirror.connect(uri).get_experiment_by_name(wanted.name).tags
    assert set(found) == {"paribus-arms", "paribus-curves"}
    for name, address in found.items():
        packed = tags[f"mlflow.sharedViewState.{name}"]
        state = json.loads(zlib.decompress(base64.b64decode(packed.removeprefix("deflate;"))))
        assert len(packed) < 8000 and state["compareRunCharts"] and f"viewStateShareKey={name}" in address


def test_an_experiment_without_finished_runs_has_no_summaries_of_arms(
    store: Store, database: Callable[[str], str]
) -> None:
    found, project = planned(), find(ROOT)
    with begin(store, found.runs[0].pretrained, steps=40):
        paper = project.paper(found.experiment)
        assert paper and sync(found, store, database("a.db"), table=partial(experiment_table, found, store, paper))
