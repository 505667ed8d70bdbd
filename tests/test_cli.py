"""The command line: every verb says what it does, lists and shows what there is, and plans, queues and reports."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from paribus import __version__, cli
from paribus.errors import ParibusError
from paribus.jobs import slurm
from paribus.jobs.logs import log_path
from paribus.jobs.queue import Queue
from paribus.jobs.slurm import Job
from paribus.plan.plan import plan
from paribus.plan.stages import Stage
from paribus.project import find
from paribus.store.store import Store

Paribus = Callable[..., tuple[str, str]]
ROOT = Path(__file__).parents[1]
VERBS = sorted(get_command(cli.app).commands)  # type: ignore[attr-defined]
QUEUE = "masking@debug"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store for the project in this repository's root."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PARIBUS_STORE", str(tmp_path / "results"))
    monkeypatch.setenv("COLUMNS", "200")
    found = Store(tmp_path / "results")
    found.prepare()
    (found.root / "costs.json").write_text("{}")
    return found


@pytest.fixture
def paribus(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Paribus:
    """The command line in this process; its stdout and stderr."""

    def call(*argv: str, code: int = 0) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["paribus", *argv])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
            sys.exit(0)
        said = capsys.readouterr()
        assert (ended.value.code or 0) == code, said
        return said.out, said.err

    return call


def finish(store: Store, stage: Stage) -> None:
    work = store.claim(stage)
    assert work
    with work:
        work.commit("provenance")


def statuses(paribus: Paribus) -> list[str]:
    return [entry["status"] for entry in json.loads(paribus("status", QUEUE, "--json")[0])["runs"]]


# --- help ---


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(paribus: Paribus, verb: str) -> None:
    out, _ = paribus(verb, "--help")
    assert f"paribus {verb} [OPTIONS]" in out
    if verb not in ("bench", "data", "export", "import"):  # groups, whose verbs are listed
        assert f"Example: paribus {verb}" in " ".join(out.split())


def test_help_lists_every_verb_and_no_verb_is_an_error(paribus: Paribus) -> None:
    out, _ = paribus("--help")
    assert all(verb in out for verb in VERBS)
    paribus(code=2)


def test_the_light_verbs_load_nothing_heavy() -> None:
    """In a fresh process: what `--help`, `list` and an import of the planner bring in."""
    script = (
        "import sys\nfrom paribus.cli import app\nimport paribus.plan.plan, paribus.project, paribus.views\n"
        "app(['list', 'factors'], standalone_mode=False)\n"
        "print({'torch', 'pytorch_lightning', 'mlflow', 'optuna', 'polars', 'scipy'} & set(sys.modules))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "set()", done.stderr


def test_the_version_is_told_and_loads_nothing_heavy() -> None:
    script = "import sys\nfrom paribus.cli import app\napp(['--version'], standalone_mode=False)\n"
    script += "print({'torch', 'pytorch_lightning', 'mlflow', 'optuna', 'polars', 'scipy'} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"paribus {__version__}", "set()"], done.stderr


# --- list and show ---


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("experiments", "masking"),
        ("factors", "masking-rate"),
        ("bases", "bert-relative"),
        ("scales", "debug"),
        ("tasks", "cola"),
        ("tables", "roberta-table1"),
    ],
)
def test_list_names_what_there_is_for_people_and_programs(paribus: Paribus, store: Store, kind: str, name: str) -> None:
    rows = json.loads(paribus("list", kind, "--json")[0])
    assert name in [row[kind.removesuffix("s")] for row in rows]
    assert name in paribus("list", kind)[0]


def test_list_stages_shows_what_is_finished(paribus: Paribus, store: Store) -> None:
    assert paribus("list", "stages")[0] == "no stages yet\n"
    stage = plan(find(ROOT), "masking", "debug", seeds=1).runs[0].stages[0]
    finish(store, stage)
    assert [row["key"] for row in json.loads(paribus("list", "stages", "--json")[0])] == [stage.key]


@pytest.mark.parametrize("name", ["masking", "masking-rate", "bert-relative", "debug", "cola", "roberta-table1"])
def test_show_gives_the_file_and_its_content_as_yaml(paribus: Paribus, store: Store, name: str) -> None:
    out, _ = paribus("show", name, "--scale", "debug")
    heads = [line for line in out.splitlines() if line.startswith("--- # ")]
    assert heads and all(Path(head.rpartition(": ")[2]).is_file() for head in heads)
    assert len([part for part in yaml.safe_load_all(out) if part]) == len(heads)


def test_show_resolves_an_experiment_at_a_scale(paribus: Paribus, store: Store) -> None:
    out = paribus("show", "replacement", "--scale", "debug")[0]
    assert "run of the baseline at scale debug:" in out and "vocabulary_size: 512" in out


# --- plan ---


def test_plan_counts_runs_and_shared_stages(paribus: Paribus, store: Store) -> None:
    told = json.loads(paribus("plan", "masking", "--scale", "debug", "--seeds", "3", "--json")[0])
    assert (told["plan"], told["seeds"], told["runs"]) == (QUEUE, 3, 6)
    assert told["stages"]["pretrain"] == {"asked": 6, "distinct": 6, "done": 0}
    assert told["stages"]["pack"] == {"asked": 6, "distinct": 1, "done": 0}
    assert [(arm["arm"], arm["baseline"]) for arm in told["arms"]] == [("static", True), ("dynamic", False)]
    assert all(arm["parameters"] > 0 and arm["train_flops"] > 0 for arm in told["arms"])
    assert len(told["keys"]) == 6
    out, _ = paribus("plan", "masking", "--scale", "debug", "--seeds", "3")
    assert "static*" in out and "left to do" in out


def test_plan_counts_what_is_done(paribus: Paribus, store: Store, counted: None) -> None:
    finish(store, plan(find(ROOT), "masking", "debug", seeds=1).runs[0].stages[0])
    told = json.loads(paribus("plan", "masking", "--scale", "debug", "--json")[0])
    assert told["stages"]["corpus"]["done"] == 1 and told["stages"]["vocabulary"]["done"] == 0


def test_plan_why_says_what_changed(paribus: Paribus, store: Store) -> None:
    before = plan(find(ROOT), "masking", "debug", seeds=1).runs[0].stages
    pretrain = next(stage for stage in before if stage.kind == "pretrain")
    argv = ["plan", "masking", "--scale", "debug", "--seeds", "1"]
    assert "no other pretrain is finished yet" in paribus(*argv, "--why", pretrain.key)[0]
    finish(store, pretrain)
    assert paribus(*argv, "--why", pretrain.key[:14])[0].splitlines()[0] == f"{pretrain.key}: done"

    after = plan(find(ROOT), "masking", "debug", 1, {"optimizer.lr": 5e-4}).runs[0].stages
    changed = next(stage for stage in after if stage.kind == "pretrain")
    out, _ = paribus(*argv, "--set", "optimizer.lr=5e-4", "--why", changed.key)
    assert out.splitlines() == [
        f"{changed.key}: to do",
        f"nearest finished stage: {pretrain.key}",
        f"optimizer.lr: {pretrain.spec.optimizer.lr} -> 0.0005",  # type: ignore[attr-defined]
    ]


def test_plan_and_status_show_the_trials_of_each_arm_and_what_is_known_after_tuning(
    paribus: Paribus, store: Store, counted: None
) -> None:
    argv = ["batch-size", "--scale", "debug", "--seeds", "2"]
    told = json.loads(paribus("plan", *argv, "--json")[0])
    assert (told["runs"], len(told["keys"])) == (0, 9)
    assert [arm["tuning"]["trials"] for arm in told["arms"]] == [{"asked": 6, "known": 3, "done": 0}] * 3
    out, _ = paribus("plan", *argv)
    assert "not counted: 9 trials that earlier ones will suggest, and 6 runs after tuning" in out
    assert "9 runs queued; 6 more after tuning" in paribus("queue", *argv)[1]
    assert "tuning trials: 9 waiting" in paribus("status")[0]


# --- queue, status, cancel, retry, logs ---


def test_a_queue_from_queueing_to_retry(paribus: Paribus, store: Store) -> None:
    argv = ["queue", "masking", "--scale", "debug", "--seeds", "2"]
    assert "4 runs queued" in paribus(*argv)[1]
    assert "0 runs queued, 4 waiting already" in paribus(*argv)[1]
    assert "4 waiting" in paribus("status")[0]

    claim = Queue(store, QUEUE).claim()
    assert claim
    assert statuses(paribus) == ["running", "waiting", "waiting", "waiting"]
    claim.failed("the moon was full")
    assert "the moon was full" in paribus("status", QUEUE)[0]

    assert paribus("cancel", "masking")[0] == f"{QUEUE}: 3 runs cancelled\n"
    assert statuses(paribus) == ["failed", "cancelled", "cancelled", "cancelled"]
    assert "no run is waiting" in paribus("work")[1]
    out, err = paribus("retry")
    assert out == f"{QUEUE}: 4 runs queued again\n"
    assert err == "  1 failed: the moon was full\n  they fail again unless that was mended\n"
    assert statuses(paribus) == ["waiting"] * 4
    assert paribus("retry") == (f"{QUEUE}: 0 runs queued again\n", "")


def test_what_can_only_end_as_it_did_is_not_tried_again(
    paribus: Paribus, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "experiments").mkdir()
    (tmp_path / "paribus.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    declared = {"question": "?", "expect": "?", "base": "bert-relative", "factors": ["masking"], "seeds": 1}
    written = tmp_path / "experiments/mine.yaml"
    written.write_text(yaml.safe_dump(declared | {"set": {"optimizer.lr": 1e3}}))
    paribus("queue", "mine", "--scale", "debug")
    queue = Queue(store, "mine@debug")
    for _ in range(2):
        claim = queue.claim()
        assert claim
        claim.failed("the learning rate is too high")
    written.write_text(yaml.safe_dump(declared))
    paribus("queue", "mine", "--scale", "debug")
    claim = queue.claim()
    assert claim
    work = store.claim(next(stage for stage in claim.run.stages if stage.kind == "pretrain"))
    assert work
    with work:
        work.commit("provenance", "diverged", diverged_step=3)
    claim.diverged(3)
    queue.cancel()

    out, err = paribus("retry", "mine")
    assert out == "mine@debug: 1 runs queued again\n"
    assert err.splitlines() == [
        "  runs that diverged are left alone (1 there): that is a result, and in the store",
        "  runs of an older version of the experiment are left alone (2 there)",
    ]
    assert [entry.status for entry in queue.entries()] == ["failed", "failed", "diverged", "waiting"]


def test_failures_of_an_older_version_of_an_experiment_do_not_count_against_work(
    paribus: Paribus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def worked(project: Any, store: Store, names: list[str], *_: Any) -> None:
        queue = Queue(store, names[0])
        while claim := queue.claim():
            claim.done(0.0)

    paribus("queue", "masking", "--scale", "debug", "--seeds", "1", "--set", "precision=bf16")
    claim = Queue(store, QUEUE).claim()
    assert claim
    claim.failed("no such precision")
    monkeypatch.setattr(cli, "_work", worked)
    assert "failed no such precision" in paribus("work", QUEUE, code=1)[1]
    (store.root / "runs" / QUEUE / "asked.json").unlink()
    paribus("queue", "masking", "--scale", "debug", "--seeds", "1")
    assert paribus("work", QUEUE)[1] == ""


@pytest.mark.parametrize("launcher", ["local", "slurm"])
def test_what_an_experiment_declares_is_kept_as_it_is_when_workers_begin(
    paribus: Paribus, store: Store, monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    """An edit between queueing and working is none after the first result, whoever starts the workers."""
    paribus("queue", "masking", "--scale", "debug", "--seeds", "1")
    path = store.root / "runs" / QUEUE / "declared.json"
    now = path.read_text()
    path.write_text(json.dumps({QUEUE: {"expect": "as it was when it was queued", "arms": []}}))
    for name, does in (("submit", lambda *_: ["1"]), ("parameters", lambda *_, **__: {})):
        monkeypatch.setattr(slurm, name, does)
    monkeypatch.setattr(cli, "_work", lambda *_: None)
    monkeypatch.setattr(cli, "_fail_on_failures", lambda _: None)
    paribus("work", QUEUE, "--launcher", launcher)
    assert json.loads(path.read_text()) == json.loads(now)


def test_status_names_each_run_by_the_key_that_other_commands_take(paribus: Paribus, store: Store) -> None:
    paribus("queue", "masking", "--scale", "debug", "--seeds", "1")
    claim = Queue(store, QUEUE).claim()
    assert claim
    log_path(store, claim.run.key).write_text("begun\n")
    lines = [line.split() for line in paribus("status", "--runs")[0].splitlines()]
    for entry in Queue(store, QUEUE).entries():
        assert [entry.run, entry.arm, "0", entry.status, str(entry.attempt)] in lines
    (at_work,) = [word for word in paribus("status")[0].split() if word.startswith("run-")]
    assert paribus("logs", at_work)[0] == "begun\n"


def test_status_for_programs_has_the_slurm_jobs_too(
    paribus: Paribus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job("7_1", "PENDING", True, "Priority", "")
    monkeypatch.setattr(slurm, "jobs", lambda store: [job])
    told = json.loads(paribus("status", "--json")[0])
    assert told == {"runs": [], "jobs": [asdict(job)], "paused": False}

    def away(store: Store) -> None:
        raise ParibusError("squeue: no answer")

    monkeypatch.setattr(slurm, "jobs", away)
    out, err = paribus("status", "--json")
    assert json.loads(out)["jobs"] is None and err == "jobs: squeue: no answer\n"


@pytest.mark.parametrize("verb", ["plan", "queue", "run", "table", "report"])
def test_a_queues_name_where_an_experiments_is_expected_is_explained(paribus: Paribus, store: Store, verb: str) -> None:
    _, err = paribus(verb, QUEUE, code=2)
    assert err == f"error: {QUEUE}: that is a queue's name; expected masking --scale debug\n"


@pytest.mark.parametrize("verb", ["status", "work", "cancel", "retry", "sync"])
def test_an_unknown_queue_is_told_with_those_there_are(paribus: Paribus, store: Store, verb: str) -> None:
    _, err = paribus(verb, "masking", code=2)
    assert err == "error: no queue is called 'masking'; `paribus queue` makes one, `paribus status` lists them\n"
    paribus("queue", "masking", "--scale", "debug", "--seeds", "1")
    _, err = paribus(verb, "masking@tiny", code=2)
    assert err == "error: no queue is called 'masking@tiny' (did you mean masking@debug?)\n"


def test_work_without_anything_to_do_removes_what_killed_workers_left(paribus: Paribus, store: Store) -> None:
    paribus("queue", "masking", "--scale", "debug", "--seeds", "1")
    queue, claims = Queue(store, QUEUE), list[str]()
    while claim := queue.claim():
        claims.append(claim.run.key)
        stage = claim.run.stages[0]
        claim.done(0.0)
    finish(store, stage)
    left = store.root / "doing" / stage.key / "scratch"
    left.mkdir(parents=True)
    dead = {"owner": "", "host": socket.gethostname(), "pid": 2**22 + 1, "started": 0.0}  # nobody has that number
    for name in (stage.key, claims[0], "mirror"):
        (store.root / "leases" / f"{name}.json").write_text(json.dumps(dead))
    assert "no run is waiting" in paribus("work")[1]
    assert [*(store.root / "doing").iterdir(), *(store.root / "leases").glob("*.json")] == []


def test_sync_fails_where_an_experiment_is_left_out(paribus: Paribus, store: Store) -> None:
    paribus("queue", "masking", "--scale", "debug", "--seeds", "1")
    (store.root / "runs" / QUEUE).rename(store.root / "runs" / "gone@debug")
    paribus("queue", "masking", "--scale", "debug", "--seeds", "1")
    out, err = paribus("sync", code=1)
    assert "gone@debug is left out: no experiment is called 'gone'; " in err and out.startswith(f"{QUEUE}: 0 MLflow")
    assert paribus("sync", "masking")[0] == out


def test_a_priority_is_given_and_changed_and_kept_by_queueing(paribus: Paribus, store: Store) -> None:
    def priority(*arguments: str) -> int | None:
        paribus("queue", "masking", "--scale", "debug", "--seeds", "2", *arguments)
        return Queue(store, QUEUE).top()

    assert [priority(), priority("--priority", "3"), priority(), priority("--priority", "-1")] == [0, 3, 3, -1]


def test_logs_prints_the_log_of_a_run_by_the_beginning_of_its_key(paribus: Paribus, store: Store) -> None:
    paribus("queue", "masking", "--scale", "debug", "--seeds", "1")
    first, second = (entry.run for entry in Queue(store, QUEUE).entries())
    log_path(store, first).write_text("one\ntwo\nthree\n")
    assert paribus("logs", first[:9])[0] == "one\ntwo\nthree\n"
    assert paribus("logs", first, "--lines", "2")[0] == "two\nthree\n"
    assert "2 runs begin so" in paribus("logs", "run-", code=2)[1]
    assert "no worker took it yet" in paribus("logs", second, code=2)[1]


def run_with(monkeypatch: pytest.MonkeyPatch, worked: Callable[[Queue], None]) -> None:
    """Let `run` do `worked` where it would start workers."""

    def instead(project: Any, store: Store, names: list[str], *_: Any) -> None:
        worked(Queue(store, names[0]))

    monkeypatch.setattr(cli, "_work", instead)


def fail_all(reasons: list[str]) -> Callable[[Queue], None]:
    def work(queue: Queue) -> None:
        for reason in reasons:
            claim = queue.claim()
            assert claim
            claim.failed(reason)

    return work


def test_run_ends_with_the_reason_that_all_runs_share(
    paribus: Paribus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_with(monkeypatch, fail_all(["no text"] * 2))
    argv = ["run", "masking", "--scale", "debug", "--seeds", "1"]
    assert paribus(*argv, code=2)[1].splitlines()[-1] == "error: no text"
    out, err = paribus(*argv, code=2)  # asked again, it tries again
    assert "2 waiting already" in err and out == ""


def test_run_lists_the_reasons_where_they_differ(
    paribus: Paribus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_with(monkeypatch, fail_all(["no text", "no luck"]))
    out, err = paribus("run", "masking", "--scale", "debug", "--seeds", "1", code=1)
    assert "failed no text" in err and "failed no luck" in err and "paribus retry" in err
    assert "Static vs dynamic masking" in out  # what there is of the table is shown all the same


# --- table ---


@pytest.mark.parametrize(
    ("format", "beginning"), [("md", "## "), ("tex", "%"), ("html", "<!"), ("csv", "group,row,column,"), ("json", "{")]
)
def test_table_prints_a_papers_table_in_every_format(
    paribus: Paribus, store: Store, format: str, beginning: str
) -> None:
    out, _ = paribus("table", "deberta-table4", "--format", format)
    assert out.startswith(beginning) and "84.3" in out


def test_table_files_writes_every_format_into_the_store(paribus: Paribus, store: Store) -> None:
    _, err = paribus("table", "masking", "--scale", "debug", "--files")
    endings = {path.suffix for path in (store.root / "tables").iterdir()}
    assert endings == {".md", ".tex", ".html", ".csv", ".json"} and "written: " in err


# --- init ---


def test_init_makes_a_project_that_plans(
    paribus: Paribus, tmp_path: Path, counted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PARIBUS_STORE", raising=False)
    folder = tmp_path / "mine"
    assert "paribus plan my-first" in paribus("init", str(folder))[0]
    assert "not empty" in paribus("init", str(folder), code=2)[1]
    monkeypatch.chdir(folder)
    assert "my-first" in paribus("list")[0]
    told = json.loads(paribus("plan", "my-first", "--scale", "debug", "--json")[0])
    assert [arm["arm"] for arm in told["arms"]] == ["relative", "sinusoidal", "unordered"]
    assert all(arm["parameters"] for arm in told["arms"])


@pytest.mark.parametrize("verb", [("work",), ("run", "masking", "--scale", "debug")])
def test_a_gpu_that_is_not_there_is_one_line_before_anything_is_queued(
    paribus: Paribus, store: Store, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    _, err = paribus(*verb, "--gpus", "all", code=2)
    assert err == "error: --gpus all: no GPU is visible here; leave it out to use the CPU, with --workers N\n"
    _, err = paribus(*verb, "--per-gpu", "auto", code=2)
    assert err == "error: --per-gpu auto: needs --gpus, `all` or numbers as 0,2\n"
    assert not (store.root / "queue").exists()


def test_slurm_places_workers_itself(paribus: Paribus) -> None:
    _, err = paribus("work", "--launcher", "slurm", "--gpus", "all", code=2)
    assert err == "error: --gpus, --per-gpu: need --launcher local; with slurm, expected --gpus-per-node\n"
    _, err = paribus("work", "--launcher", "slurm", "--devices", "2", code=2)
    assert err == "error: --devices 2: needs --launcher local; a worker of a Slurm job has one GPU\n"


# --- table --check and power -----------------------------------------------------------------------------------------


@pytest.fixture
def claimed(tmp_path: Path, store: Store, counted: None, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An experiment with a claim that is met and one that is open, measured by hand."""
    folder = tmp_path / "mine"
    (folder / "experiments").mkdir(parents=True)
    (folder / "paribus.toml").write_text("")
    claims = [{"arm": "dynamic", "metric": "mlm.loss", "direction": "better"}]
    claims += [{"arm": "dynamic", "metric": "acceptability.mcc", "direction": "better"}]
    fields = {"base": "bert-relative", "factors": ["masking"], "seeds": 3, "tasks": ["acceptability"], "claims": claims}
    mine = {"question": "?", "expect": "?", "sesoi": {"nats": 0.02}, **fields}
    (folder / "experiments/mine.yaml").write_text(yaml.safe_dump(mine))
    monkeypatch.chdir(folder)
    for run in plan(find(folder), "mine", "debug").runs:
        for stage in run.stages:
            work = None if store.has(stage.key) else store.claim(stage)
            if work is None:
                continue
            with work:
                if stage.kind == "evaluate":
                    gain = 0.0 if run.arm.baseline else 0.5 + 0.01 * run.seed
                    work.row("loss", 4.0 - gain, split="test", n=10)
                work.commit("")
    return store


def test_check_fails_while_a_claim_is_open_and_says_which(claimed: Store, paribus: Paribus) -> None:
    _, said = paribus("table", "mine", "--scale", "debug", "--check", code=1)
    assert said.splitlines() == [
        "met: dynamic better on mlm.loss (helps)",
        "undecided: dynamic better on acceptability.mcc (no difference is measured)",
    ]
    paribus("table", "mine", "--scale", "debug", "--check", "--allow-undecided")
    paribus("table", "mine", "--scale", "debug")


def test_check_of_a_papers_table_counts_the_claims_of_an_experiment_without_runs(
    claimed: Store, paribus: Paribus
) -> None:
    mine = Path("experiments/mine.yaml")
    fields = {**yaml.safe_load(mine.read_text()), "reproduces": "roberta-table1"}
    mine.write_text(yaml.safe_dump({**fields, "claims": fields["claims"][:1]}))
    other = {**fields, "claims": [{**fields["claims"][0], "direction": "worse"}], "set": {"optimizer.lr": 1e-3}}
    mine.with_name("other.yaml").write_text(yaml.safe_dump(other))
    _, said = paribus("table", "roberta-table1", "--scale", "debug", "--check", code=1)
    assert said.splitlines() == [
        "met: dynamic better on mlm.loss (helps)",
        "undecided: dynamic worse on mlm.loss (no difference is measured)",
    ]


def test_check_without_claims_is_an_error(store: Store, paribus: Paribus) -> None:
    _, said = paribus("table", "masking", "--scale", "debug", "--check", code=2)
    assert said == "error: --check: masking declares no `claims`\n"


def test_power_says_how_many_seeds_an_effect_needs(claimed: Store, paribus: Paribus) -> None:
    out, _ = paribus("power", "mine", "--scale", "debug", "--json")
    (found,) = json.loads(out)
    assert (found["arm"], found["metric"], found["pairs"], found["effect"]) == ("dynamic", "mlm.loss", 3, 0.02)
    assert 2 < found["seeds"] < found["cautious"] + 50
    assert "small pilot" in paribus("power", "mine", "--scale", "debug")[0]
    _, said = paribus("power", "mine", "--scale", "debug", "--effect", "1", code=2)
    assert said.startswith("error: --effect 1: expected") and len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("option", "value"), [("--effect", "inf"), ("--effect", "nan"), ("--power", "nan"), ("--power", "0.9999")]
)
def test_power_refuses_what_no_seeds_reach(option: str, value: str, paribus: Paribus) -> None:
    _, said = paribus("power", "masking", "--metric", "mlm.loss", option, value, code=2)
    assert said.startswith(f"error: {option} ")


@pytest.mark.parametrize("command", [["work"], ["doctor", "resume"], ["bench", "pairs"]])
def test_a_device_that_is_none_is_refused_at_once(command: list[str], paribus: Paribus) -> None:
    _, said = paribus(*command, "--device", "nope", code=2)
    assert said == "error: --device nope: expected auto, cpu, cuda or cuda:N\n"
