"""Workers as Slurm jobs: what is submitted, what is said of them, and, as drills, a real cluster of one node."""

import os
import pickle
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import pytest
from tests.small_project import MASKS, OFTEN, SmallProject

from paribus.errors import ParibusError
from paribus.jobs import slurm
from paribus.jobs.slurm import Job, Worker, jobs, parameters, submit, time_limit
from paribus.project import find
from paribus.spec.run import Runtime
from paribus.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "store")
    found.prepare()
    return found


@pytest.fixture
def worker(store: Store, root: Path) -> Worker:
    return Worker(find(root), store, ["masking@debug"], Runtime())


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """command(name, script): a program of Slurm's that this test replaces."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def write(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return write


@pytest.fixture
def handlers() -> Iterator[None]:
    """Puts back what a job does at signals."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    "text, minutes",
    [("30", 30), ("4:00:00", 240), ("1-12", 2160), ("1-12:30", 2190), ("0:59:01", 60), ("2:30", 3), ("2-0:0:1", 2881)],
)
def test_a_time_limit_is_read_as_slurm_reads_it(text: str, minutes: int) -> None:
    assert time_limit(text) == minutes


@pytest.mark.parametrize("text", ["", "4h", "1:2:3:4", "-5", "0:00", "1-"])
def test_another_time_limit_is_refused(text: str) -> None:
    with pytest.raises(ParibusError, match=f"^--time {text}: expected "):
        time_limit(text)


def test_a_job_has_as_many_workers_as_gpus_and_is_warned_before_its_limit() -> None:
    found = parameters(8, "4:00:00", 4, ["gres=license:1", "mail-user=me", "exclusive=true"], partition="p", qos=None)
    assert {"partition": "p", "time": 240, "signal_delay_s": 120}.items() <= found.items()
    assert {"gpus_per_node": 4, "ntasks_per_node": 4, "gpus_per_task": 1}.items() <= found.items()
    assert {"gres": "license:1", "mail_user": "me", "exclusive": True}.items() <= found.items() and "qos" not in found
    assert parameters(1, "1", 0, [])["signal_delay_s"] == 30
    assert "gpus_per_node" not in parameters(1, "1", 0, [])


@pytest.mark.parametrize(
    "workers, gpus, more, said",
    [
        (6, 4, [], "--workers 6: expected a multiple of --gpus-per-node 4"),
        (1, 0, ["array=0-3"], "--slurm array: paribus sets this itself"),
        (1, 0, ["--time=3"], "--slurm --time: paribus sets this itself, by --time"),
        (1, 0, ["exclusive"], "--slurm exclusive: expected key=value"),
    ],
)
def test_settings_that_cannot_be_are_refused(workers: int, gpus: int, more: list[str], said: str) -> None:
    with pytest.raises(ParibusError, match=said):
        parameters(workers, "1", gpus, more)


def test_a_failed_submission_is_slurms_own_words_in_one_line_and_leaves_nothing(
    store: Store, worker: Worker, command: Callable[[str, str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    command("srun", "exit 1")
    command(
        "sbatch", "echo 'sbatch: error: invalid partition: x' >&2; echo 'sbatch: error: Submission failed' >&2; exit 1"
    )
    with pytest.raises(ParibusError) as error:
        submit(worker, store, 2, parameters(2, "10", 0, [], partition="x"))
    assert str(error.value) == "sbatch: invalid partition: x; Submission failed"
    assert capfd.readouterr() == ("", "")
    assert not list((store.root / "slurm").iterdir())


def test_without_slurm_a_submission_says_so(store: Store, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ParibusError, match="no sbatch here"):
        submit(worker, store, 1, parameters(1, "10", 0, []))


def test_submitted_is_an_array_of_the_same_worker_that_may_be_requeued(
    store: Store, worker: Worker, command: Callable[[str, str], None]
) -> None:
    command("srun", "exit 1")
    command("sbatch", "echo Submitted batch job 71")
    assert submit(worker, store, 2, parameters(2, "10", 0, ["comment=hello"])) == ["71_0", "71_1"]
    (script,) = (store.root / "slurm").glob("*/71_submission.sh")
    lines = script.read_text().splitlines()
    assert {"#SBATCH --array=0-1%2", "#SBATCH --requeue", "#SBATCH --signal=USR2@120"} <= set(lines)
    assert "#SBATCH --comment=hello" in lines


def test_of_jobs_it_is_said_where_they_stand_and_why_they_ended(
    store: Store, command: Callable[[str, str], None]
) -> None:
    slurm._squeue.cache_clear()
    command("squeue", "echo '7_1|RUNNING|None|node3'; echo '7_2|PENDING|Priority|'; echo '5|PENDING|BeginTime|'")
    for folder, ids in {"a": ["4", "5"], "b": ["7_0", "7_1", "7_2", "7_3", "7_10"]}.items():
        (store.root / "slurm" / folder).mkdir(parents=True)
        for id in ids:
            (store.root / "slurm" / folder / f"{id}_submitted.pkl").touch()
    last = store.root / "slurm" / "b"
    (last / "7_0_0_result.pkl").write_bytes(pickle.dumps(("success", None)))
    (last / "7_3_0_result.pkl").write_bytes(pickle.dumps(("error", "Traceback\n  line\nStoreError: no space\n")))
    (last / "7_10_0_log.err").write_text("submitit INFO (x) - Starting\nkilled by\nslurmstepd: error: TIME LIMIT\n\n")
    assert jobs(store) == [
        Job("5", "PENDING", True, "BeginTime", ""),  # of an earlier submission, alive
        Job("7_0", "COMPLETED", False, "", ""),
        Job("7_1", "RUNNING", True, "node3", ""),
        Job("7_2", "PENDING", True, "Priority", ""),
        Job("7_3", "FAILED", False, "", "StoreError: no space"),
        Job("7_10", "ENDED", False, "", "killed by; slurmstepd: error: TIME LIMIT"),
    ]


def test_a_cluster_that_does_not_answer_is_one_line(store: Store, command: Callable[[str, str], None]) -> None:
    slurm._squeue.cache_clear()
    command("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    assert jobs(store) == []  # nothing was submitted: nobody is asked
    (store.root / "slurm" / "a").mkdir(parents=True)
    (store.root / "slurm" / "a" / "4_submitted.pkl").touch()
    with pytest.raises(ParibusError, match="^squeue: slurm_load_jobs error: Unable to contact slurm controller$"):
        jobs(store)


def signalled(*numbers: int) -> Callable[..., None]:
    """A pool that is signalled while it works and looks until that makes it stop."""

    def drain(*arguments: Any) -> None:
        for number in numbers:
            signal.raise_signal(number)
        arguments[-1]()
        raise AssertionError("look should have raised")

    return drain


@pytest.mark.parametrize("numbers", [[signal.SIGUSR2], [signal.SIGTERM, signal.SIGUSR2]])
def test_slurms_warning_stops_the_worker_and_then_requeues(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, handlers: None, numbers: list[int]
) -> None:
    requeued = []

    def requeue(number: int, _: FrameType | None) -> None:
        requeued.append(number)

    monkeypatch.setattr(slurm, "drain", signalled(*numbers))
    signal.signal(signal.SIGUSR2, requeue)
    worker()
    assert requeued == [signal.SIGUSR2]


def test_a_job_that_is_told_to_end_does_not_requeue_itself(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, handlers: None
) -> None:
    """Else scancel would never get rid of it."""
    monkeypatch.setattr(slurm, "drain", signalled(signal.SIGTERM))
    monkeypatch.setattr(slurm, "KILL_SECONDS", 0.1)
    signal.signal(signal.SIGUSR2, lambda *_: pytest.fail("requeued"))
    worker()


# --- a real cluster --------------------------------------------------------------------------------------------------

CONFIGURATION = """\
ClusterName=paribus
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
# A requeued job is held for as long as its credential is good, by default two minutes.
AuthInfo=cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
GresTypes=gpu
ReturnToService=2
EnforcePartLimits=ALL
KillWait=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
SchedulerParameters=sched_interval=2,bf_interval=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmdSpoolDir={folder}/node
StateSaveLocation={folder}/state
SlurmUser=root
SlurmdUser=root
MpiDefault=none
NodeName=localhost NodeAddr=127.0.0.1 CPUs=2 Gres=gpu:2
PartitionName=debug Nodes=localhost Default=YES MaxTime=60 PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=localhost MaxTime=60 PriorityTier=9
"""
LONG = [*MASKS, "--set", "budget.train_tokens=1572864"]  # both runs still train when Slurm interrupts them


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Slurm on this machine, one node with two cores and two GPUs that are none."""
    missing = [name for name in ("slurmctld", "slurmd", "munged", "sbatch") if shutil.which(name) is None]
    if missing or os.getuid() != 0:
        pytest.skip(f"needs root and Debian's slurm-wlm and munge; missing: {', '.join(missing) or 'root'}")
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("node", "state"):
        (folder / name).mkdir()
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(folder=folder, host=socket.gethostname().split(".")[0], ports=free_ports(2))
    )
    (folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
    munge = None
    if subprocess.run(["munge", "-n"], capture_output=True).returncode != 0:
        Path("/run/munge").mkdir(exist_ok=True)
        shutil.chown("/run/munge", "munge", "munge")
        munge = subprocess.Popen(["su", "-s", "/bin/sh", "munge", "-c", "exec munged --foreground"])
        time.sleep(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        for name in [name for name in os.environ if name.startswith("SLURM_") and name != "SLURM_CONF"]:
            patch.delenv(name)
        words = (folder / "said").open("w")
        commands = (["slurmctld", "-D"], ["slurmd", "-D", "-N", "localhost"])
        daemons = [subprocess.Popen(command, stdout=words, stderr=words) for command in commands]
        try:
            until = time.monotonic() + 60
            while said("sinfo", "--noheader", "--format=%T", "--partition=debug") != "idle":
                if time.monotonic() > until or any(daemon.poll() is not None for daemon in daemons):
                    pytest.skip(f"Slurm does not start here: {(folder / 'said').read_text()[-500:]}")
                time.sleep(0.5)
            yield
            subprocess.run(["scancel", f"--user={os.getuid()}"])
        finally:
            for daemon in [*daemons[::-1], *([munge] if munge else [])]:
                daemon.terminate()
                daemon.wait(30)
            words.close()


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [found.getsockname()[1] for found in sockets]
    for found in sockets:
        found.close()
    return ports


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def wait_for(condition: Callable[[], object], project: SmallProject, seconds: float = 600) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, project.paribus("status") + said("scontrol", "show", "jobs")
        time.sleep(0.2)


def ended(project: SmallProject) -> bool:
    return not any(job.alive for job in jobs(project.store))


@pytest.fixture(scope="module")
def drained(cluster: None, tmp_path_factory: pytest.TempPathFactory) -> SmallProject:
    """A project whose queue two jobs have emptied, undisturbed."""
    project = SmallProject(tmp_path_factory.mktemp("drained") / "project")
    project.paribus("queue", *LONG)
    told = project.paribus("work", "--launcher", "slurm", "--workers", "2", "--time", "10", "--wait")
    assert len(told.split()) == 2
    return project


@pytest.fixture
def project(cluster: None, tmp_path: Path) -> SmallProject:
    return SmallProject(tmp_path / "project")


@pytest.fixture
def prepared(drained: SmallProject, project: SmallProject) -> SmallProject:
    """A project that has the data of `drained`, and nothing trained."""
    for kind in ("corpus", "vocabulary", "pack", "task", "features"):
        for stage in drained.store.root.glob(f"stages/{kind}-*"):
            shutil.copytree(stage, project.store.root / "stages" / stage.name)
    return project


@pytest.mark.drill
def test_jobs_empty_a_queue_and_end(drained: SmallProject) -> None:
    assert [(entry["status"], entry["attempt"]) for entry in drained.entries()] == [("done", 1)] * 2
    assert {entry["worker"].split(":")[0] for entry in drained.entries()} == {socket.gethostname()}
    assert [job.state for job in jobs(drained.store)] == ["COMPLETED"] * 2
    root = drained.store.root
    assert not list((root / "leases").glob("*.json")) and not list((root / "doing").iterdir())


@pytest.mark.drill
@pytest.mark.parametrize("how", ["warned", "requeued", "preempted"])
def test_a_job_that_slurm_interrupts_comes_back_and_the_run_goes_on_to_the_same_bits(
    drained: SmallProject, prepared: SmallProject, how: str
) -> None:
    prepared.paribus("queue", *LONG)
    ids = prepared.paribus("work", "--launcher", "slurm", "--workers", "2", "--time", "10", *OFTEN).split()
    wait_for(lambda: len({path.parts[-4] for path in prepared.checkpoints()}) == 2, prepared)  # both runs have one
    shown = prepared.paribus("status")
    assert all(f"{id}  RUNNING  localhost  run-" in shown for id in ids), shown
    match how:
        case "warned":
            subprocess.run(["scancel", "--signal=USR2", *ids], check=True)
        case "requeued":  # without a word: SIGTERM and SIGKILL
            subprocess.run(["scontrol", "requeue", ",".join(ids)], check=True)
        case "preempted":
            subprocess.run(["sbatch", "-p", "urgent", "--exclusive", "--wrap=true", "-o", "/dev/null"], check=True)
    wait_for(lambda: all(entry["status"] == "done" for entry in prepared.entries()), prepared)
    assert [entry["attempt"] for entry in prepared.entries()] == [2, 2]
    # On a busy machine one of them may have got to its evaluation before Slurm came.
    assert any(record["resumed_at"] > 0 for record in prepared.store.records("pretrain"))
    assert prepared.results() == drained.results()
    wait_for(lambda: ended(prepared), prepared)


@pytest.mark.drill
def test_a_job_at_its_time_limit_comes_back_until_it_is_cancelled_with_jobs(prepared: SmallProject) -> None:
    prepared.paribus("queue", *LONG[:-1], "budget.train_tokens=104857600")
    (id,) = prepared.paribus("work", "--launcher", "slurm", "--time", "1", *OFTEN).split()
    wait_for(lambda: prepared.checkpoints() and prepared.entries()[0]["attempt"] > 1, prepared)
    assert "Restarts=0" not in said("scontrol", "show", "job", id)
    assert prepared.paribus("cancel", "--jobs") == "1 jobs cancelled\n"
    wait_for(lambda: ended(prepared), prepared)
    assert {entry["status"] for entry in prepared.entries()} == {"waiting"}
    assert f"job {id} CANCELLED: " in prepared.paribus("status")


@pytest.mark.drill
def test_each_gpu_of_a_job_has_a_worker_that_sees_no_other(project: SmallProject) -> None:
    project.paribus("queue", *LONG)
    argv = ["--gpus-per-node", "2", "--workers", "2", "--device", "cpu", "--time", "10"]
    (id,) = project.paribus("work", "--launcher", "slurm", *argv).split()
    wait_for(lambda: [entry["status"] for entry in project.entries()] == ["running"] * 2, project)
    workers = [psutil.Process(int(entry["worker"].split(":")[1].split()[0])) for entry in project.entries()]
    assert {worker.environ()["CUDA_VISIBLE_DEVICES"] for worker in workers} == {"0", "1"}
    project.paribus("cancel", "--jobs")
    wait_for(lambda: ended(project), project)


@pytest.mark.drill
@pytest.mark.parametrize(
    "argv, told",
    [
        (["--partition", "nowhere"], "error: sbatch: invalid partition specified: nowhere; "),
        (["--time", "2-0"], "error: sbatch: Batch job submission failed: Requested time limit is invalid"),
        (["--gpus-per-node", "3", "--workers", "3"], "error: sbatch: Batch job submission failed: More processors"),
    ],
)
def test_what_slurm_refuses_is_one_line(project: SmallProject, argv: list[str], told: str) -> None:
    project.paribus("queue", *LONG)
    err = project.paribus("work", "--launcher", "slurm", *argv, code=2)
    assert err.startswith(told) and err.count("\n") == 1, err
