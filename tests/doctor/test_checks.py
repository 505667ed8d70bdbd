"""The doctor says of each thing that can be wrong that it is, and what to do."""

import fcntl
import http.server
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from paribus import cli
from paribus.doctor import checks
from paribus.doctor.checks import VARIABLES, Check, examine, judge_clock, judge_devices
from paribus.jobs.plans import enqueue
from paribus.jobs.pool import drain
from paribus.jobs.queue import Queue
from paribus.plan.plan import plan
from paribus.project import PACKAGE, Project, Settings, find
from paribus.spec.run import Runtime
from paribus.store.store import Store

Found = Callable[..., dict[str, Check]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "store")
    found.prepare()
    return found


@pytest.fixture
def found(store: Store, monkeypatch: pytest.MonkeyPatch) -> Found:
    """The checks by name; torch is not loaded, `tracking` is where MLflow should be."""
    monkeypatch.setattr(checks, "PROBE", 'print(\'{"version": "2.13.0", "cuda": null, "gpus": []}\')')
    monkeypatch.setattr(checks, "_cards", list)

    def look(tracking: str | None = None) -> dict[str, Check]:
        project = Project(store.root.parent, Settings(store=str(store.root), tracking=tracking))
        return {check.name: check for check in examine(project, store)}

    return look


def test_a_good_machine_is_ok_and_nothing_is_left_behind(found: Found, store: Store) -> None:
    before = sorted(store.root.rglob("*"))
    told = found("file:elsewhere")
    told = {name: check for name, check in told.items() if name not in ("packages", "bytecode", "disk", "slurm")}
    assert {check.status for check in told.values()} == {"ok"}, told
    assert sorted(store.root.rglob("*")) == before


def test_a_store_that_is_not_there_yet_is_looked_at_where_it_will_be(
    found: Found, store: Store, tmp_path: Path
) -> None:
    project = Project(tmp_path, Settings())
    told = {check.name: check for check in examine(project, Store(tmp_path / "not" / "yet"))}
    assert told["renames"].status == told["locks"].status == told["clock"].status == "ok"
    assert not (tmp_path / "not").exists()


def test_every_variable_that_the_code_reads_is_known() -> None:
    read = {
        name
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(r'environ(?:\.get\(|\[)"(PARIBUS_[A-Z_]+)"', path.read_text())
    }
    assert read == set(VARIABLES)


def test_a_variable_that_nothing_reads_is_a_warning(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARIBUS_STOER", "x")
    assert found()["variables"].status == "warning"
    assert found()["variables"].said.endswith("unset PARIBUS_STOER")


def test_packages_outside_the_required_range_fail_and_other_than_tested_ones_warn(
    found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: ["pytest>=999", 'ruff>=999; extra == "dev"'])
    told = found()["packages"]
    assert told.status == "failed" and "(needs >=999)" in told.said and "ruff" not in told.said
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: ["nothing-is-called-so>=1"])
    assert "nothing-is-called-so missing (needs >=1)" in found()["packages"].said
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: [])
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: [])
    assert found()["packages"].status == "ok"
    Dist = namedtuple("Dist", "name version")
    monkeypatch.setattr(
        importlib.metadata, "distributions", lambda: [Dist("pyyaml", "1.0"), Dist("torch", "2.13.0+cpu")]
    )
    told = found()["packages"]
    assert told.status == "warning" and "PyYAML 1.0 (tested: " in told.said and "torch" not in told.said


H100 = {"name": "H100", "capability": "9.0", "bf16": True, "free": 70 << 30}
V100 = {"name": "V100", "capability": "7.0", "bf16": False, "free": 30 << 30}


@pytest.mark.parametrize(
    "gpus, cuda, cards, environment, status, said",
    [
        ([], None, [], {}, "ok", "torch 2.13, no GPU"),
        ([], None, ["H100, 580.1"], {}, "failed", "torch 2.13 was built without CUDA"),
        ([], "13.0", ["H100, 580.1"], {}, "failed", "torch 2.13 for CUDA 13.0 does not see it"),
        ([], "13.0", ["H100, 580.1"], {"CUDA_VISIBLE_DEVICES": ""}, "ok", "hidden by CUDA_VISIBLE_DEVICES="),
        ([H100, H100], "13.0", ["H100, 580.1"] * 2, {}, "ok", "2 x H100 (capability 9.0), driver 580.1, bf16, 70 GiB"),
        ([H100, V100], "13.0", ["H100, 580.1"] * 2, {}, "warning", "no bf16 in hardware"),
    ],
)
def test_what_torch_sees_is_held_against_what_the_driver_lists(
    gpus: list[Any], cuda: str | None, cards: list[str], environment: dict[str, str], status: str, said: str
) -> None:
    told = judge_devices({"version": "2.13", "cuda": cuda, "gpus": gpus}, cards, environment)
    assert told[0] == status and said in told[1], told


def test_a_torch_that_does_not_load_is_one_line(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "PROBE", "raise ImportError('libcudart.so: no such file')")
    assert found()["devices"].status == "failed"
    assert found()["devices"].said.startswith("torch: ImportError: libcudart.so: no such file; install")


def test_workers_that_would_compile_torch_anew_are_a_warning(
    found: Found, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    assert found()["bytecode"].status == "warning" and "compileall" in found()["bytecode"].said
    spec = importlib.util.find_spec("torch")
    assert spec and spec.origin
    compiled = Path(importlib.util.cache_from_source(spec.origin))
    compiled.parent.mkdir(parents=True)
    compiled.touch()
    assert found()["bytecode"].status == "ok"


@pytest.mark.parametrize("skew, status", [(0.5, "ok"), (-9.0, "ok"), (3600.0, "warning"), (-11.0, "warning")])
def test_clocks_that_differ_are_a_warning(skew: float, status: str) -> None:
    assert judge_clock(skew)[0] == status
    assert ("ahead of" in judge_clock(skew)[1]) == (skew > 10) and ("behind" in judge_clock(skew)[1]) == (skew < -10)


@pytest.mark.parametrize("skew, said", [(-3600.4, "3,600 s behind"), (12.0, "12 s ahead of"), (3.0, "")])
def test_work_says_once_that_clocks_differ(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], skew: float, said: str
) -> None:
    true = time.time
    monkeypatch.setattr("paribus.store.store.time.time", lambda: true() + skew)
    drain(Project(store.root.parent, Settings()), store, [], [], Runtime(), lambda: None)
    err = capsys.readouterr().err
    assert err.count("this machine's clock is") == bool(said) and said in err, err


def test_a_lock_that_keeps_nobody_out_fails(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    assert found()["locks"].status == "failed" and "two could take one run" in found()["locks"].said


def test_a_replacement_that_leaves_a_gap_fails(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(path: Path, text: str) -> None:
        path.unlink(missing_ok=True)
        time.sleep(0.001)
        path.write_text(text)

    monkeypatch.setattr(checks, "write_atomically", write)
    assert found()["renames"].status == "failed"


@pytest.mark.parametrize(
    "blocks, inodes, status",
    [(1 << 30, 10**6, "ok"), (2 << 20, 10**6, "warning"), (1000, 10**6, "failed"), (1 << 30, 3, "failed")],
)
def test_a_full_disk_fails_and_a_nearly_full_one_warns(
    found: Found, monkeypatch: pytest.MonkeyPatch, blocks: int, inodes: int, status: str
) -> None:
    disk = namedtuple("disk", "f_bavail f_frsize f_files f_favail")(blocks, 4096, 10**6, inodes)
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    assert found()["disk"].status == status


def test_files_of_killed_writers_are_counted_once_they_are_old(found: Found, store: Store) -> None:
    left = store.root / "tables" / ".masking.md.4242.1234"
    left.touch()
    assert found()["leftovers"].status == "ok"
    os.utime(left, (0, 0))
    assert found()["leftovers"].status == "warning" and str(left) in found()["leftovers"].said


def test_a_queue_that_does_not_open_fails(found: Found, store: Store, root: Path) -> None:
    enqueue(plan(find(root), "masking", "debug", 1), store)
    assert found()["queues"] == Check("queues", "ok", "journals: 1 opened, runs: 2 waiting")
    (store.root / "queue" / "masking@debug.journal").write_text("{}\nnothing of Optuna's\n")
    assert found()["queues"].status == "failed" and "masking@debug does not open" in found()["queues"].said


def test_what_failed_of_an_older_version_of_an_experiment_is_not_counted(found: Found, store: Store) -> None:
    file, project = store.root.parent / "experiments/mine.yaml", Project(store.root.parent, Settings())
    text = "{question: q, expect: e, base: bert-relative, factors: [masking], tasks: [], seeds: 1}"
    file.parent.mkdir()
    for version in (text, text.replace("}", ", set: {budget.train_tokens: 20480}}")):
        file.write_text(version)
        enqueue(plan(project, "mine", "debug"), store)
        if claim := Queue(store, "mine@debug").claim():
            claim.failed("no such thing")
    assert found()["queues"].said == "journals: 1 opened, runs: 2 waiting"


def test_a_database_that_is_not_there_fails_at_once(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.setenv("PARIBUS_STORAGE", "postgresql://me:secret@127.0.0.1:1/none")
    assert found()["queues"].status == "failed" and "127.0.0.1:1/none cannot be used" in found()["queues"].said
    assert "secret" not in " ".join(check.said for check in found().values())


@contextmanager
def mlflow(status: int) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def test_mlflow_answers_or_not(found: Found, store: Store) -> None:
    with mlflow(200) as uri:
        assert found(uri)["mlflow"] == Check("mlflow", "ok", f"{uri} answers")
    with mlflow(500) as uri:
        assert found(uri)["mlflow"].status == "failed"
    assert found(uri)["mlflow"].status == "failed"  # it is gone
    assert "`paribus sync` sends them later" in found(uri)["mlflow"].said
    database = store.root / "mlflow.db"
    assert found(f"sqlite:///{database}")["mlflow"].said == f"{database} will be made"
    database.write_text("no database, but long enough to be taken for one" * 100)
    assert found(f"sqlite:///{database}")["mlflow"].status == "failed"


def test_the_command_prints_json_and_ends_with_1_if_something_failed(
    root: Path, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    monkeypatch.setenv("PARIBUS_STORE", str(store.root))
    for status, code in (("warning", 0), ("failed", 1)):
        monkeypatch.setattr(checks, "CHECKS", [named("_disk", (status, "so it is"))])
        monkeypatch.setattr(sys, "argv", ["paribus", "doctor", "--json"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
            sys.exit(0)
        assert (ended.value.code or 0) == code
        assert json.loads(capsys.readouterr().out) == [{"name": "disk", "status": status, "said": "so it is"}]


def named(name: str, result: tuple[str, str]) -> Callable[..., tuple[str, str]]:
    def check(*_: Any) -> tuple[str, str]:
        return result

    check.__name__ = name
    return check
