"""The command line: a list of verbs.

Heavy imports wait inside; settings live in files, flags say only what to do and where.
"""

import gc
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paribus.errors import ParibusError, in_one_line

if TYPE_CHECKING:
    from paribus.jobs.queue import Entry
    from paribus.plan.plan import Plan
    from paribus.project import Library, Project
    from paribus.spec.run import Runtime
    from paribus.store.store import Store
    from paribus.tables.certificate import Side
    from paribus.tables.table import Table
    from paribus.tables.verdict import Checked

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _without_scale(name: str) -> str:
    experiment, at, scale = name.rpartition("@")
    if at:
        raise ParibusError(f"{name}: that is a queue's name; expected {experiment} --scale {scale}")
    return name


Name = Annotated[
    str, typer.Argument(help="An experiment; `paribus list experiments` shows them.", callback=_without_scale)
]
Scale = Annotated[str, typer.Option(help="A preset of sizes and budgets; `paribus list scales`.")]
Seeds = Annotated[
    int | None, typer.Option(min=1, max=10_000, help="Runs of each arm; default: as its queue or the experiment says.")
]
Sets = Annotated[list[str] | None, typer.Option("--set", help="path=value for every arm, e.g. optimizer.lr=3e-4.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Workers = Annotated[int, typer.Option(min=1, help="Worker processes.")]


def _device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise ParibusError(f"--device {name}: expected auto, cpu, cuda or cuda:N")
    return name


Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.", callback=_device)]
Micro = Annotated[
    int | None, typer.Option(min=1, help="Rows on the device at once; default: 64k tokens of them. Gradients add up.")
]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads a worker; results depend on it in the last bit.")]
CheckpointSeconds = Annotated[float, typer.Option(min=0, help="Time between checkpoints.")]
OtherCode = Annotated[
    bool, typer.Option("--allow-other-code", help="Join workers that run other code than this; the tables show it.")
]
Gpus = Annotated[str | None, typer.Option(help="all, or numbers as 0,2: workers pinned to these GPUs.")]
PerGpu = Annotated[str, typer.Option(help="Workers a GPU; auto: as many as fit by measured memory.")]
Devices = Annotated[int, typer.Option(min=1, help="GPUs, or CPU processes, that pretrain one run together.")]
Strategy = Annotated[
    str, typer.Option(help="Of several devices: ddp, each with the whole model, or fsdp, each with a share of it.")
]


def _among(option: str, *known: str) -> Callable[[Any], Any]:
    """Refuses what is not among the known."""

    def check(given: Any) -> Any:
        for one in [given] if isinstance(given, str) else given or ():
            if one not in known:
                raise ParibusError(f"--{option} {one}: expected {', '.join(known[:-1])} or {known[-1]}")
        return given

    return check


COMPILE, SDPA = ("off", "on", "graphs"), ("auto", "cudnn", "flash", "efficient", "math")
Compile = Annotated[
    str,
    typer.Option(
        help="How steps are computed: off, as written; on, pretraining by torch.compile; graphs, also by CUDA graphs.",
        callback=_among("compile", *COMPILE),
    ),
]
Compiles = Annotated[
    list[str], typer.Option(help="Of paribus, each in turn: off, on, graphs.", callback=_among("compile", *COMPILE))
]
Sdpa = Annotated[
    str,
    typer.Option(
        help="The kernel of attention taken first: auto, cudnn, flash, efficient or math.",
        callback=_among("sdpa", *SDPA),
    ),
]
Format = Annotated[str, typer.Option(help="text, md, tex, html, csv or json.")]
Allow = Annotated[
    list[str] | None,
    typer.Option(help="Give verdicts though this differs between arms: code, libraries or card. The table says so."),
]
Loaders = Annotated[int, typer.Option(min=0, help="Processes a worker that make batches ahead, for a fast device.")]
Base = Annotated[str, typer.Option(help="`paribus list bases`.")]
Batch = Annotated[str | None, typer.Option(help="Rows x tokens of a step, as 64x512; default: the scale's.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Also write all of it there.")]
Queues = Annotated[list[str] | None, typer.Argument(help="experiment or experiment@scale; default: all queues.")]


def _version(asked: bool) -> None:
    if asked:
        from paribus import __version__

        print(f"paribus {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="The version of this program.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Ablations of Transformer-encoder pretraining, all else equal."""


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2."""
    signal.signal(signal.SIGTERM, _terminated)
    # Thousands of runs are many objects and hardly a cycle: to look for some this seldom makes large tables a third
    # faster.
    gc.set_threshold(1_000_000, 20, 20)
    try:
        with in_one_line():
            app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
    finally:
        gc.freeze()  # nor is there one to find at the end, where Python would look once more


def _terminated(*_: object) -> None:
    """End, but stop the workers on the way out; who manages machines may say it more than once."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


def _project() -> "Project":
    from paribus.project import find

    return find()


def _store(project: "Project") -> "Store":
    from paribus.store.store import Store

    return Store(project.store, project.settings.lease_seconds)


def _plan(project: "Project", name: str, scale: str, seeds: int | None, sets: Iterable[str] | None) -> "Plan":
    from paribus.plan.plan import plan
    from paribus.spec.load import parse_overrides

    return plan(project, name, scale, seeds, parse_overrides(sets or ()), _store(project))


def _asked(project: "Project", name: str, scale: str, seeds: int | None, sets: Iterable[str] | None) -> "Plan":
    """The plan of what was queued, to look at."""
    from paribus.jobs.runs import plan_asked
    from paribus.spec.load import parse_overrides

    return plan_asked(project, _store(project), name, scale, seeds, parse_overrides(sets or ()))


# --- looking ---------------------------------------------------------------------------------------------------------


@app.command("list")
def list_(
    what: Annotated[
        str, typer.Argument(help="experiments, factors, bases, scales, protocols, tasks, tables or stages.")
    ] = "experiments",
    as_json: Json = False,
) -> None:
    """What there is, shipped and yours.  Example: paribus list factors"""
    from paribus import views

    project = _project()
    rows = views.listing(project, _store(project), what)
    if as_json:
        views.show_json(rows)
    elif rows:
        views.show_rows(rows)
    else:
        print(f"no {what} yet")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="An experiment, factor, base, scale, protocol, task or table.")],
    scale: Scale = "tiny",
) -> None:
    """One file, resolved, with its source.  Example: paribus show masking --scale base"""
    from paribus.spec.describe import describe
    from paribus.spec.load import suggest

    project = _project()
    libraries: dict[str, Library[Any]] = {
        "experiment": project.experiments,
        "factor": project.factors,
        "base": project.bases,
        "scale": project.scales,
        "protocol": project.protocols,
        "task": project.tasks,
        "table": project.tables,
    }
    found = {kind: library for kind, library in libraries.items() if name in library.paths}
    if not found:
        hint = suggest(name, [n for lib in libraries.values() for n in lib]) or "; `paribus list` shows what there is"
        raise ParibusError(f"nothing is called {name!r}{hint}{project.alone}")
    for kind, library in found.items():
        print(f"--- # {kind} {name}: {library.path(name)}")
        if kind == "experiment":
            plan = _plan(project, name, scale, None, None)
            shown: Any = {
                **plan.experiment.model_dump(mode="json"),
                "arms": {arm.label: dict(arm.levels) for arm in plan.arms},
                f"run of the baseline at scale {scale}": plan.baseline.run,
            }
        elif kind == "base":
            shown = {"source": project.bases.get(name).source.strip(), "run": project.base(name)}
        elif kind == "task":
            shown = project.task(name)
        else:
            shown = library.get(name)
        print("\n".join(describe(shown)) + "\n")


@app.command()
def plan(
    experiment: Name,
    scale: Scale = "tiny",
    seeds: Seeds = None,
    sets: Sets = None,
    why: Annotated[str | None, typer.Option(help="Say what makes this stage (a key or its beginning) new.")] = None,
    as_json: Json = False,
) -> None:
    """Every run and stage, what is done and shared, parameters, FLOPs, time, disk.  Example: paribus plan masking"""
    from paribus import views
    from paribus.plan.estimate import costs as count
    from paribus.plan.estimate import estimate
    from paribus.plan.plan import why as explain

    project = _project()
    store = _store(project)
    found = _plan(project, experiment, scale, seeds, sets)
    done = store.keys()
    if why is not None:
        matching = [stage for stage in found.stages() if stage.key.startswith(why)]
        if len(matching) != 1:
            raise ParibusError(f"--why {why}: {len(matching)} stages of {found.name} begin so; give more of the key")
        print(f"{matching[0].key}: {'done' if matching[0].key in done else 'to do'}")
        print("\n".join(explain(matching[0], store.records(matching[0].kind))))
        return
    costs = count(found, project, store.root / "costs.json")
    missing = [stage for stage in found.stages() if stage.key not in done]
    if as_json:
        keys = [
            {"run": r.key, "arm": r.arm.label, "seed": r.seed, "stages": [s.key for s in r.stages]}
            for r in found.known
        ]
        views.show_json({**views.plan_summary(found, done, costs), "keys": keys})
    else:
        views.show_plan(found, done, costs, estimate(found, missing, costs, store.records()))


@app.command()
def status(
    queues: Queues = None,
    watch: Annotated[bool, typer.Option(help="Look again every two seconds until Ctrl-C.")] = False,
    runs: Annotated[bool, typer.Option("--runs", help="Each run by its key, which other commands take.")] = False,
    as_json: Json = False,
) -> None:
    """Arms by seeds, what runs where, how long still, what failed.  Example: paribus status masking@tiny --watch"""
    from dataclasses import asdict

    from paribus import views
    from paribus.jobs.queue import entries, names
    from paribus.jobs.slurm import jobs
    from paribus.jobs.status import gpus, standing

    project = _project()
    store = _store(project)
    if as_json:
        asked = names(store, queues, project.scales)
        found = [{"queue": name, **asdict(entry)} for name, entry in entries(store, asked)]
        there = None  # not known
        try:
            there = [asdict(job) for job in jobs(store)]
        except ParibusError as error:
            print(f"jobs: {error}", file=sys.stderr)
        views.show_json({"runs": found, "jobs": there, "paused": store.paused})
        return

    def look() -> Any:
        found = [standing(project, store, name) for name in names(store, queues, project.scales)]
        return views.status_view(store, found, gpus(), runs)

    if watch:
        views.watch(look)
    else:
        views.console.print(look())


@app.command()
def logs(
    run: Annotated[str, typer.Argument(help="A run's key, or its beginning; `paribus status --runs` lists them.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    lines: Annotated[int | None, typer.Option(min=1, help="Only so many of the last lines.")] = None,
) -> None:
    """What the workers of a run printed.  Example: paribus logs run-3a5e -f"""
    from paribus.jobs.logs import read

    for text in read(_store(_project()), run, lines, follow):
        sys.stdout.write(text)
        sys.stdout.flush()


def _runtime(strategy: str, devices: int, **others: Any) -> "Runtime":
    from paribus.spec.run import Runtime

    if strategy not in ("ddp", "fsdp"):
        raise ParibusError(f"--strategy {strategy}: expected ddp or fsdp")
    if strategy == "fsdp" and devices == 1:
        raise ParibusError("--strategy fsdp: needs --devices 2 or more, found 1")
    return Runtime(strategy=strategy, devices=devices, **others)


# --- doing -----------------------------------------------------------------------------------------------------------


@app.command()
def queue(
    experiment: Name,
    scale: Scale = "tiny",
    seeds: Seeds = None,
    sets: Sets = None,
    priority: Annotated[
        int | None, typer.Option(help="Higher goes first, over all experiments; also changes that of what waits.")
    ] = None,
) -> None:
    """Queue the runs an experiment lacks.  Example: paribus queue masking --scale small --seeds 5"""
    project = _project()
    store = _store(project)
    found = _plan(project, experiment, scale, seeds, sets)
    store.prepare()
    _enqueue(found, store, priority)


def _enqueue(found: "Plan", store: "Store", priority: int | None = None, again: bool = False) -> None:
    from paribus.jobs.plans import enqueue

    counts = enqueue(found, store, priority, again)
    queued = counts.pop("queued", 0)
    others = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    later = f"; {found.seeds * len(found.untuned)} more after tuning" if found.untuned else ""
    print(f"{found.name}: {queued} runs queued" + (f", {others} already" if others else "") + later, file=sys.stderr)


@app.command()
def work(
    queues: Queues = None,
    workers: Workers = 1,
    device: Device = "auto",
    threads: Threads = 1,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    loader_workers: Loaders = 0,
    micro_batch_rows: Micro = None,
    allow_other_code: OtherCode = False,
    gpus: Gpus = None,
    per_gpu: PerGpu = "1",
    devices: Devices = 1,
    strategy: Strategy = "ddp",
    compile: Compile = "off",
    sdpa: Sdpa = "auto",
    launcher: Annotated[str, typer.Option(help="local, or slurm: jobs that outlive this command.")] = "local",
    partition: Annotated[str | None, typer.Option(help="Slurm: as for sbatch, like the next four.")] = None,
    account: Annotated[str | None, typer.Option()] = None,
    qos: Annotated[str | None, typer.Option()] = None,
    constraint: Annotated[str | None, typer.Option()] = None,
    mem: Annotated[str | None, typer.Option()] = None,
    time_limit: Annotated[
        str | None, typer.Option("--time", help="Slurm: time limit of a job, after which it is queued again [1:00:00].")
    ] = None,
    gpus_per_node: Annotated[int, typer.Option(min=0, help="Slurm: GPUs of a job, each with a worker.")] = 0,
    cpus_per_task: Annotated[int | None, typer.Option(min=1, help="Slurm: CPUs a worker [as --threads].")] = None,
    slurm: Annotated[list[str] | None, typer.Option(help="Slurm: key=value, any other option of sbatch.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Slurm: stay until the jobs have ended.")] = False,
) -> None:
    """Take queued runs until none is left.  Example: paribus work --workers 2"""
    from paribus.jobs.cards import slots
    from paribus.jobs.plans import present
    from paribus.jobs.pool import drain, tidy
    from paribus.jobs.queue import Queue, entries, names
    from paribus.jobs.tuning import advance

    runtime = _runtime(
        strategy,
        devices,
        device=device,
        threads=threads,
        checkpoint_seconds=checkpoint_seconds,
        loader_workers=loader_workers,
        micro_batch_rows=micro_batch_rows,
        allow_other_code=allow_other_code,
        compile=compile,
        sdpa=sdpa,
    )
    project = _project()
    store = _store(project)
    store.prepare()
    named = {"partition": partition, "account": account, "qos": qos, "constraint": constraint, "mem": mem}
    others = {"time": time_limit, "gpus-per-node": gpus_per_node, "cpus-per-task": cpus_per_task, "slurm": slurm}
    if launcher not in ("local", "slurm"):
        raise ParibusError(f"--launcher {launcher}: expected local or slurm")
    if launcher == "local" and (given := [name for name, value in {**named, **others, "wait": wait}.items() if value]):
        raise ParibusError(f"--{given[0]}: needs --launcher slurm")
    if launcher == "slurm" and (gpus is not None or per_gpu != "1"):
        raise ParibusError("--gpus, --per-gpu: need --launcher local; with slurm, expected --gpus-per-node")
    if launcher == "slurm" and devices > 1:
        raise ParibusError(f"--devices {devices}: needs --launcher local; a worker of a Slurm job has one GPU")
    chosen = slots(workers, gpus, per_gpu, runtime) if launcher == "local" else []
    asked = names(store, queues, project.scales)
    for name in asked:
        Queue(store, name).reap()
        advance(store, Queue(store, name))
    if not any(entry.status == "waiting" for _, entry in entries(store, asked)):
        print("no run is waiting", file=sys.stderr)
        tidy(store, asked)  # whoever did the last run may have been killed in the end
        return
    _declare(project, store, asked)
    if launcher == "local":
        _work(project, store, asked, lambda look: drain(project, store, asked, chosen, runtime, look))
    else:
        from paribus.jobs import slurm as cluster

        cpus = cpus_per_task or threads
        limit = time_limit or "1:00:00"
        settings = cluster.parameters(workers, limit, gpus_per_node, slurm or (), cpus_per_task=cpus, **named)
        jobs = cluster.submit(cluster.Worker(project, store, asked, runtime), store, workers, settings)
        print("\n".join(jobs), flush=True)
        if not wait:
            return
        _work(project, store, asked, lambda look: cluster.wait(store, jobs, look))
    _fail_on_failures([(name, e) for name in asked for e in present(project, store, Queue(store, name))[0]])


def _declare(project: "Project", store: "Store", names: list[str]) -> None:
    """Keep what the queues' experiments declare by now, before anybody works on them."""
    from paribus.jobs.plans import queued
    from paribus.store.declared import declare

    for found in queued(project, store, names, lambda problem: None):  # which the mirror tells
        declare(store, found)


def _work(project: "Project", store: "Store", names: list[str], launch: Callable[[Callable[[], None]], None]) -> None:
    """Run workers on the queues by `launch`, showing where they stand and mirroring them to MLflow meanwhile."""
    from paribus import views
    from paribus.jobs.plans import Statuses
    from paribus.tracking.live import Mirroring

    statuses = Statuses(project, store, names)
    with views.Display(store, statuses) as display, Mirroring(project, store, names):
        launch(display.look)


def _fail_on_failures(entries: "list[tuple[str, Entry]]") -> None:
    """Exit code 1 when a run did not get to its end, with the reasons."""
    bad = [(name, e) for name, e in entries if e.status in ("failed", "diverged", "waiting", "lost")]
    bad = [(name, e) for name, e in bad if not (e.trial and e.status == "diverged")]
    for name, entry in bad:
        print(
            f"{name} {entry.run} (arm {entry.arm}, seed {entry.seed}): {entry.status} {entry.reason or ''}",
            file=sys.stderr,
        )
    if bad:
        print("`paribus logs RUN` shows what happened, `paribus retry` queues again what failed", file=sys.stderr)
        raise typer.Exit(1)


@app.command()
def run(
    experiment: Name,
    scale: Scale = "tiny",
    seeds: Seeds = None,
    sets: Sets = None,
    workers: Workers = 1,
    device: Device = "auto",
    threads: Threads = 1,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    loader_workers: Loaders = 0,
    micro_batch_rows: Micro = None,
    allow_other_code: OtherCode = False,
    gpus: Gpus = None,
    per_gpu: PerGpu = "1",
    devices: Devices = 1,
    strategy: Strategy = "ddp",
    compile: Compile = "off",
    sdpa: Sdpa = "auto",
) -> None:
    """Queue, work and print the table, in the foreground.  Example: paribus run masking --seeds 3 --workers 2"""
    from paribus.jobs.cards import slots
    from paribus.jobs.pool import drain, tidy
    from paribus.jobs.queue import entries, names
    from paribus.plan.plan import again
    from paribus.tracking.live import Mirroring

    runtime = _runtime(
        strategy,
        devices,
        device=device,
        threads=threads,
        checkpoint_seconds=checkpoint_seconds,
        loader_workers=loader_workers,
        micro_batch_rows=micro_batch_rows,
        allow_other_code=allow_other_code,
        compile=compile,
        sdpa=sdpa,
    )
    chosen = slots(workers, gpus, per_gpu, runtime)
    project = _project()
    store = _store(project)
    found = _plan(project, experiment, scale, seeds, sets)
    store.prepare()
    done = store.keys()
    if found.untuned or any(stage.key not in done for stage in found.stages()):
        _enqueue(found, store, again=True)
        _declare(project, store, [found.name])
        _work(project, store, [found.name], lambda look: drain(project, store, [found.name], chosen, runtime, look))
        found = again(found, project, store)
        keys = {run.key for run in found.known}
        stands = [(name, entry) for name, entry in entries(store, [found.name]) if entry.run in keys]
        if {entry.status for _, entry in stands} == {"failed"} and len({entry.reason for _, entry in stands}) == 1:
            raise ParibusError(stands[0][1].reason)
    else:
        stands = []
        print(f"{found.name}: everything is done, nothing is computed again", file=sys.stderr)
        there = [name for name in names(store, None) if name == found.name]
        tidy(store, there)
        with Mirroring(project, store, there):
            pass
    _print_tables(project, store, experiment, scale, seeds, sets, "text", files=True)
    _fail_on_failures(stands)


@app.command()
def cancel(
    queues: Queues = None,
    jobs: Annotated[bool, typer.Option("--jobs", help="Only the Slurm jobs; their runs wait again.")] = False,
) -> None:
    """Cancel what waits and stop what runs.  Example: paribus cancel masking@tiny"""
    from paribus.jobs.queue import Queue, names

    project = _project()
    store = _store(project)
    if jobs:
        from paribus.jobs import slurm

        print(f"{len(slurm.cancel(store))} jobs cancelled")
        return
    for name in names(store, queues, project.scales):
        print(f"{name}: {Queue(store, name).cancel()} runs cancelled")


@app.command()
def retry(queues: Queues = None) -> None:
    """Queue again what failed or was cancelled.  Example: paribus retry masking@tiny"""
    from paribus.jobs.plans import retry as again
    from paribus.jobs.queue import names

    project = _project()
    store = _store(project)
    for name in names(store, queues, project.scales):
        count, told = again(project, store, name)
        print(f"{name}: {count} runs queued again", flush=True)
        for line in told:
            print(f"  {line}", file=sys.stderr)


# --- reading ---------------------------------------------------------------------------------------------------------


@app.command()
def table(
    name: Annotated[
        str, typer.Argument(help="An experiment or a paper's table; `paribus list tables`.", callback=_without_scale)
    ],
    scale: Scale = "tiny",
    seeds: Seeds = None,
    sets: Sets = None,
    format: Format = "text",
    files: Annotated[bool, typer.Option(help="Also write every format into the store's tables/.")] = False,
    allow: Allow = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit 1 unless every claim of the experiment (`claims`) is met.")
    ] = False,
    allow_undecided: Annotated[
        bool, typer.Option("--allow-undecided", help="With --check: only a claim that is not met counts.")
    ] = False,
) -> None:
    """The paper's table with our numbers beside it.  Example: paribus table roberta-table1 --format tex"""
    project = _project()
    claims = _print_tables(project, _store(project), name, scale, seeds, sets, format, files, allow)
    if check:
        if not claims:
            raise ParibusError(f"--check: {name} declares no `claims`")
        for claim in claims:
            print(claim.sentence, file=sys.stderr)
        if any(claim.outcome not in ("met", *(["undecided"] if allow_undecided else [])) for claim in claims):
            raise typer.Exit(1)


@app.command()
def compare(
    one: Annotated[str, typer.Argument(help="EXPERIMENT[@SCALE]:ARM, or a run's key.")],
    other: Annotated[str, typer.Argument(help="Another one; the label alone for an arm of the same experiment.")],
    scale: Scale = "tiny",
    seeds: Seeds = None,
    sets: Sets = None,
    allow: Allow = None,
    format: Format = "text",
    as_json: Json = False,
) -> None:
    """What differs between two arms, and whether all else is equal.  Example: paribus compare masking:dynamic static"""
    from paribus.jobs.runs import find_run
    from paribus.spec.load import parse_overrides
    from paribus.tables import compare as comparing

    project = _project()
    store = _store(project)
    overrides = parse_overrides(sets or ())

    def side(name: str, beside: str = "") -> "Side":
        if name.startswith("run-"):
            return comparing.of_run(project, store, find_run(store, name))
        return comparing.of_arm(project, store, name, scale, seeds, overrides, beside)

    sides = side(one), side(other, one)
    found = comparing.compare(*sides, store, _allowed(allow))
    if as_json:
        from paribus import views

        views.show_json(comparing.as_json(found))
    else:
        _print_table(comparing.table(found), format)


def _allowed(names: Iterable[str] | None) -> set[str]:
    from paribus.tables.certificate import ALLOWED

    for name in names or ():
        if name not in ALLOWED:
            raise ParibusError(f"--allow {name}: expected one of {', '.join(ALLOWED)}")
    return set(names or ())


def _print_table(found: "Table", format: str) -> None:
    from paribus.tables.render import FORMATS, render

    if format == "text":
        from paribus import views
        from paribus.tables.render.terminal import show

        views.console.print(show(found, views.console.width))
    elif format not in FORMATS:
        raise ParibusError(f"--format {format}: expected one of text, {', '.join(FORMATS)}")
    else:
        sys.stdout.write(render(found, format).rstrip("\n") + "\n")


@app.command()
def power(
    experiment: Name,
    scale: Scale = "tiny",
    seeds: Seeds = None,
    sets: Sets = None,
    effect: Annotated[
        float | None, typer.Option(help="To be found, in the metric's unit; default: the experiment's `sesoi`.")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="One column, e.g. mlm.loss; --effect needs it.")] = None,
    wanted: Annotated[float, typer.Option("--power", help="How often a true effect is to be found.")] = 0.8,
    as_json: Json = False,
) -> None:
    """Seeds an experiment needs, from the runs that it has.  Example: paribus power masking --metric mlm.loss"""
    from dataclasses import asdict

    from paribus import views
    from paribus.tables.experiment import experiment_table
    from paribus.tables.power import needed, notes, rows

    if effect is not None and (metric is None or not 0 < effect < math.inf):
        raise ParibusError(f"--effect {effect:g}: expected a size above 0 in the unit of one column, and its --metric")
    if not 0.05 < wanted <= 0.999:
        raise ParibusError(f"--power {wanted:g}: expected a share above 0.05 and up to 0.999")
    project = _project()
    store = _store(project)
    found = needed(experiment_table(_asked(project, experiment, scale, seeds, sets), store), effect, metric, wanted)
    if as_json:
        views.show_json([asdict(each) for each in found])
    else:
        views.show_rows(rows(found))
        for note in notes(found, wanted):
            print(note)


def _print_tables(
    project: "Project",
    store: "Store",
    name: str,
    scale: str,
    seeds: int | None,
    sets: Iterable[str] | None,
    format: str,
    files: bool,
    allow: Iterable[str] | None = None,
) -> "list[Checked]":
    from paribus.jobs.queue import ended, names
    from paribus.spec.load import parse_overrides
    from paribus.store.store import writing
    from paribus.tables.experiment import tables_for
    from paribus.tables.render import FORMATS, write_all

    if format not in ("text", *FORMATS):
        raise ParibusError(f"--format {format}: expected one of text, {', '.join(FORMATS)}")
    overrides = parse_overrides(sets or ())
    failed, finished = ended(store, names(store, None))
    claims: list[Checked] = []
    tables = tables_for(project, store, name, scale, seeds, overrides, failed, _allowed(allow), finished)
    if len(tables) > 1 and format in ("json", "csv", "html") and not files:
        told = ", ".join(found.name for found in tables)
        raise ParibusError(f"table {name} --format {format}: these are {len(tables)} ({told}); --files writes each")
    for found in tables:
        claims += found.claims
        _print_table(found, format)
        if files:
            store.prepare()
            with writing(store.root):
                written = write_all(found, store.root / "tables")
            print("written: " + ", ".join(_short(path) for path in written), file=sys.stderr)
    return claims


def _short(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


@app.command()
def plot(
    experiment: Name,
    kind: Annotated[str, typer.Option(help="forest, curves, cost, tuning or grid.")] = "forest",
    out: Annotated[Path, typer.Option(help="A file ending in .pdf, .png or .svg.")] = Path("plot.pdf"),
    scale: Scale = "tiny",
    seeds: Seeds = None,
    sets: Sets = None,
) -> None:
    """A chart of an experiment as a file.  Example: paribus plot masking --kind curves --out curves.pdf"""
    from paribus.pages.charts import plot as draw
    from paribus.pages.web import content

    project = _project()
    store = _store(project)
    shown = content(project, store, _asked(project, experiment, scale, seeds, sets))
    _write(out, draw(shown, kind, out.suffix.removeprefix(".").lower()))


@app.command()
def report(
    experiment: Name,
    out: Annotated[Path | None, typer.Option(help="The file; default: in the store's tables/.")] = None,
    scale: Scale = "tiny",
    seeds: Seeds = None,
    sets: Sets = None,
) -> None:
    """An experiment's page as one HTML file that needs no network.  Example: paribus report masking"""
    from paribus.pages.web import Site

    project = _project()
    store = _store(project)
    found = _asked(project, experiment, scale, seeds, sets)
    if out is None:
        store.prepare()
        out = store.root / "tables" / f"{found.label}.report.html"
    _write(out, Site(project, store, served=False).experiment(found))


def _write(out: Path, content: str | bytes) -> None:
    """Write the file that --out names, whole or not at all."""
    from paribus.files import write_atomically

    try:
        write_atomically(out, content)
    except OSError as error:
        raise ParibusError(f"--out {out}: cannot be written ({error.strerror})") from error
    print(_short(out))


@app.command()
def ui(
    port: Annotated[int, typer.Option(min=1, max=65535)] = 5000,
    host: Annotated[str, typer.Option(help="The address to listen at; others than 127.0.0.1 let others in.")] = (
        "127.0.0.1"
    ),
) -> None:
    """MLflow, with pages of the experiments and tables below /paribus.  Example: paribus ui --port 5001"""
    from paribus.tracking.mirror import tracking_uri
    from paribus.tracking.server import refuse_port_in_use, ui_command

    project = _project()
    store = _store(project)
    if not store.root.is_dir():
        store.prepare()
    refuse_port_in_use(host, port)
    argv, environment = ui_command(store, tracking_uri(project), host, port)
    print(f"http://{host}:{port}/paribus/", file=sys.stderr)
    os.execvpe(argv[0], argv, environment)


@app.command()
def sync(queues: Queues = None) -> None:
    """Bring MLflow up to date with store and experiments, or build it anew.  Example: paribus sync masking@tiny"""
    from functools import partial

    from paribus.jobs.plans import queued
    from paribus.jobs.queue import names
    from paribus.tracking.mirror import sync as bring
    from paribus.tracking.mirror import table_of, tracking_uri

    project = _project()
    store = _store(project)
    left_out: list[str] = []
    for found in queued(project, store, names(store, queues, project.scales), left_out.append):
        counts = bring(found, store, tracking_uri(project), table=partial(table_of, found, project, store))
        did = f"{counts.created} MLflow runs made, {counts.updated} updated, {counts.unchanged} left alone"
        did += f", {counts.removed} that it no longer asks for removed" if counts.removed else ""
        print(f"{found.name}: {did}")
    if left_out:
        print("\n".join(left_out), file=sys.stderr)
        raise typer.Exit(1)


@app.command()
def publish(experiment: Name, scale: Scale = "tiny", seeds: Seeds = None, sets: Sets = None) -> None:
    """Two views of an experiment inside MLflow: arms, and learning curves.  Example: paribus publish masking"""
    from functools import cache, partial

    from paribus.tracking.mirror import sync, table_of, tracking_uri
    from paribus.tracking.publish import publish as write_views

    project = _project()
    store = _store(project)
    found = _asked(project, experiment, scale, seeds, sets)
    store.prepare()
    table = cache(partial(table_of, found, project, store))
    sync(found, store, tracking_uri(project), table=table)
    for name, address in write_views(found, table(), tracking_uri(project)).items():
        print(f"{name}: {address}")


@app.command()
def init(folder: Annotated[Path, typer.Argument(help="A new or empty folder.")]) -> None:
    """Make a project of your own.  Example: paribus init my-ablations"""
    from paribus.scaffold import make

    for path in make(folder):
        print(path)
    print(f"try: cd {folder} && paribus plan my-first --scale debug")


data = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The files of tasks on this machine.")
app.add_typer(data, name="data")


@data.command("list")
def data_list(as_json: Json = False) -> None:
    """Which tasks' files are there, and what to do for the missing.  Example: paribus data list"""
    from paribus import views
    from paribus.data.check import inventory

    rows = inventory(_project())
    if as_json:
        views.show_json(rows)
    else:
        views.show_rows(rows)


@data.command("check")
def data_check(
    what: Annotated[
        str, typer.Argument(help="A task, or a folder: the data folder or a part of it; `paribus data list`.")
    ],
    limit: Annotated[int, typer.Option(min=0, help="Defective rows to list for each file; 0 lists all.")] = 0,
    as_json: Json = False,
) -> None:
    """What the files of a task hold, beside the official counts.  Example: paribus data check qqp"""
    from dataclasses import asdict

    from paribus import views
    from paribus.data.check import check, checkable

    found = {task.name: check(task, root) for task, root in checkable(_project(), what)}
    if as_json:
        views.show_json({name: [asdict(file) for file in files] for name, files in found.items()})
    else:
        views.show_checked(found, limit)
    refused = [f"{name} {file.split}" for name, files in found.items() for file in files if file.there > file.usable]
    if refused:
        raise ParibusError(f"data check {what}: {len(refused)} files cannot be used: {', '.join(refused)}")
    if not any(file.there for files in found.values() for file in files):
        raise ParibusError(f"data check {what}: none of its files is there; `paribus data list` says where they go")


doctor = typer.Typer(rich_markup_mode=None, invoke_without_command=True)
app.add_typer(doctor, name="doctor")


@doctor.callback()
def doctor_check(context: typer.Context, as_json: Json = False) -> None:
    """Packages, GPUs, the store's disk and locks, clocks, queue, MLflow, Slurm.  Example: paribus doctor"""
    if context.invoked_subcommand:
        return
    from dataclasses import asdict

    from paribus import views
    from paribus.doctor.checks import examine

    project = _project()
    found = [asdict(check) for check in examine(project, _store(project))]
    if as_json:
        views.show_json(found)
    else:
        views.show_rows(found)
    if any(check["status"] == "failed" for check in found):
        raise typer.Exit(1)


@doctor.command("resume")
def doctor_resume(device: Device = "auto") -> None:
    """Prove that a killed run resumes to the same bits here.  Example: paribus doctor resume --device cuda"""
    from paribus.doctor.resume import prove

    differences = 0
    for what, difference in prove(device):
        print(f"{what}: {difference or 'ok, the same bits'}", flush=True)
        differences += difference is not None
    if differences:
        raise typer.Exit(1)


exports = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Write a run's encoder for other programs.")
app.add_typer(exports, name="export")
imports = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Take an encoder from elsewhere as an arm.")
app.add_typer(imports, name="import")


@exports.command("hf")
def export_hf(
    run: Annotated[str, typer.Argument(help="A run's key, or its beginning; `paribus status --runs` lists them.")],
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.")],
    generator: Annotated[bool, typer.Option(help="The generator of replaced-token detection instead.")] = False,
) -> None:
    """A pretrained encoder as transformers loads it.  Example: paribus export hf run-3a5e my-bert"""
    from paribus.interop.hf import export
    from paribus.jobs.runs import find_run
    from paribus.plan.stages import Stages

    store = _store(_project())
    found = find_run(store, run)
    stages = {stage.kind: stage.key for stage in Stages(found.run).at(found.seed)}
    pretrained, vocabulary = stages["import" if found.run.pretrained else "pretrain"], stages["vocabulary"]
    for key in (vocabulary, pretrained):
        if not store.has(key):
            raise ParibusError(f"{found.key}: {key} is not done yet; `paribus work {found.queue}` makes it")
    if store.record(pretrained)["outcome"] == "diverged":
        raise ParibusError(f"{found.key}: {pretrained} diverged, so there is no encoder")
    for sentence in export(found.run, store.verified(pretrained), store.verified(vocabulary), folder, generator):
        print(f"note: {sentence}", file=sys.stderr)
    print(folder)


@imports.command("hf")
def import_hf(
    folder: Annotated[Path, typer.Argument(help="A checkpoint's folder: config.json, weights, tokenizer files.")],
    name: Annotated[str | None, typer.Option(help="The factor's name; default: the folder's.")] = None,
) -> None:
    """A checkpoint on disk as a factor `trained` | `imported`.  Example: paribus import hf ../bert-base-uncased"""
    from paribus.interop.hf import write_factor

    path = write_factor(_project(), folder, name or folder.resolve().name)
    print(_short(path))
    print(f"an experiment takes it with `factors: [{path.stem}]`", file=sys.stderr)


bench = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Measure this installation; numbers, no verdicts."
)
app.add_typer(bench, name="bench")


@bench.command("cli")
def bench_cli(repeats: Annotated[int, typer.Option(min=1)] = 5) -> None:
    """CPU and wall seconds of whole processes: --help, list, plan."""
    from paribus.bench.cli import measure

    measure(repeats)


@bench.command("plan")
def bench_plan(runs: Annotated[int, typer.Option(min=2)] = 10_000) -> None:
    """Seconds to plan an experiment of many runs, as a whole process."""
    from paribus.bench.cli import measure_plan

    measure_plan(runs)


@bench.command("queue")
def bench_queue(
    runs: Annotated[int, typer.Option(min=10)] = 400,
    workers: Annotated[int, typer.Option(min=1)] = 8,
    storage: Annotated[str | None, typer.Option(help="Also postgresql://...; default: PARIBUS_STORAGE.")] = None,
) -> None:
    """Runs that do nothing, drained a second, and the time of one claim: journal and PostgreSQL."""
    from paribus.bench.queue import measure as measure_queue

    measure_queue(runs, workers, storage or os.environ.get("PARIBUS_STORAGE"))


@bench.command("overhead")
def bench_overhead(runs: Annotated[int, typer.Option(min=1)] = 5) -> None:
    """Seconds of a warm worker outside training and evaluating, by what they go to."""
    from paribus.bench.overhead import measure as measure_overhead

    measure_overhead(runs)


@bench.command("calibration")
def bench_calibration(
    experiments: Annotated[int, typer.Option(min=10, help="Simulated experiments of each kind.")] = 1000,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """How often verdicts are false where nothing differs, intervals cover, and effects are found as promised."""
    from paribus.bench.calibration import measure as measure_verdicts

    measure_verdicts(experiments, seed)


@bench.command("table")
def bench_table(
    runs: Annotated[int, typer.Option(min=2)] = 10_000,
    peer: Annotated[bool, typer.Option(help="Also log them to MLflow and search there: takes minutes.")] = True,
) -> None:
    """`paribus table` over many runs, beside MLflow's `search_runs`."""
    from paribus.bench.table import measure as measure_table

    measure_table(runs, peer)


@bench.command("pairs")
def bench_pairs(
    scale: str = "small",
    pairs: Annotated[int, typer.Option(min=1)] = 20_000,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    device: Device = "auto",
) -> None:
    """Minimal pairs scored a minute, by the encoder of a scale."""
    from paribus.bench.pairs import measure as measure_pairs
    from paribus.spec.run import Runtime

    measure_pairs(scale, pairs, repeats, Runtime(device=device))


@bench.command("data")
def bench_data(
    files: Annotated[
        list[Path] | None, typer.Argument(help="JSON lines, as of a corpus; default: the embedded one.")
    ] = None,
    vocabulary: Annotated[int, typer.Option(min=512, max=2**16, help="Ids of the WordPiece vocabulary.")] = 8192,
    length: Annotated[int, typer.Option(min=16, help="Tokens of a row.")] = 512,
    peer: Annotated[bool, typer.Option(help="Also by `datasets` and `transformers` (extras: datasets, hf).")] = False,
    repeat_gb: Annotated[float, typer.Option(min=0, help="Also that text repeated up to so many GB.")] = 0.0,
) -> None:
    """Seconds and memory of a corpus, its vocabulary and its rows; the same rows by `datasets.map`."""
    from importlib.util import find_spec

    from paribus.bench.data import measure as measure_data

    for file in files or []:
        if not file.is_file():
            raise ParibusError(f"{file}: no such file; expected JSON lines, as .jsonl, .jsonl.gz or .jsonl.zst")
    if peer and not all(map(find_spec, ("datasets", "transformers"))):
        raise ParibusError("bench data --peer: needs datasets and transformers, pip install 'paribus[datasets,hf]'")
    measure_data(files or [], vocabulary, length, peer, repeat_gb)


@bench.command("devices")
def bench_devices(
    scale: str = "base",
    devices: Annotated[str, typer.Option(help="How many, one after the other.")] = "1,2",
    steps: Annotated[int, typer.Option(min=10)] = 100,
    device: Device = "auto",
    micro_batch_rows: Micro = None,
    strategy: Strategy = "ddp",
) -> None:
    """Tokens a second of a scale's pretraining with one and more devices."""
    from paribus.bench.devices import measure as measure_devices

    counts = devices.split(",")
    if not all(count.isdecimal() and int(count) > 0 for count in counts):
        raise ParibusError(f"--devices {devices}: expected numbers from 1, as 1,2")
    # A single device among them has nothing to share.
    runtime = _runtime(strategy, max(map(int, counts)), device=device, micro_batch_rows=micro_batch_rows)
    measure_devices(scale, [int(count) for count in counts], steps, runtime)


@bench.command("train")
def bench_train(
    base: Base = "bert",
    scale: Scale = "small",
    sets: Sets = None,
    batch: Batch = None,
    compile: Compiles = ["off", "graphs"],  # noqa: B006  -- typer shows it and changes nothing in it
    sdpa: Sdpa = "auto",
    peer: Annotated[
        list[str] | None,
        typer.Option(
            help="transformers' model of the same shape: transformers, transformers-compiled.",
            callback=_among("peer", "transformers", "transformers-compiled"),
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=2, help="Steps that are timed.")] = 20,
    repeats: Annotated[int, typer.Option(min=1, help="Processes of each, in turn.")] = 1,
    device: Device = "auto",
    threads: Threads = 1,
    json_file: JsonFile = None,
) -> None:
    """Pretraining's tokens a second beside transformers'.  Example: paribus bench train --peer transformers"""
    from paribus.bench.train import measure as measure_training
    from paribus.bench.train import sized
    from paribus.spec.load import parse_overrides
    from paribus.spec.run import Runtime

    run = sized(base, scale, parse_overrides(sets or ()), batch)
    runtime = Runtime(device=device, threads=threads, sdpa=sdpa)
    contenders = [f"compile {how}" for how in compile] + list(peer or ())
    measure_training(run, contenders, steps, repeats, runtime, f"{base}@{scale}", json_file)


@bench.command("curves")
def bench_curves(
    base: Base = "bert",
    scale: Scale = "small",
    sets: Sets = None,
    compile: Compiles = ["off", "graphs"],  # noqa: B006  -- typer shows it and changes nothing in it
    sdpa: Sdpa = "auto",
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each.")] = 3,
    steps: Annotated[int | None, typer.Option(min=1, help="Of each training; default: the scale's.")] = None,
    device: Device = "auto",
    threads: Threads = 1,
    json_file: JsonFile = None,
    plot_file: Annotated[Path | None, typer.Option("--plot", help="Also draw it; .pdf, .png or .svg.")] = None,
) -> None:
    """Losses by fast and by plain steps, beside what seeds do to them.  Example: paribus bench curves --scale tiny"""
    from paribus.bench.curves import measure as measure_curves
    from paribus.bench.train import sized
    from paribus.spec.load import parse_overrides
    from paribus.spec.run import Runtime

    overrides = parse_overrides(sets or ())
    run = sized(base, scale, overrides, None, steps)
    runtime = Runtime(device=device, threads=threads, sdpa=sdpa)
    measure_curves(run, compile, seeds, runtime, f"{base}@{scale}", json_file, plot_file)


@bench.command("together")
def bench_together(
    base: Base = "bert",
    scale: Scale = "small",
    sets: Sets = None,
    batch: Batch = None,
    counts: Annotated[str, typer.Option(help="Runs at once, one number after the other.")] = "1,2,4,8",
    compile: Compiles = ["off", "graphs"],  # noqa: B006  -- typer shows it and changes nothing in it
    sdpa: Sdpa = "auto",
    seconds: Annotated[float, typer.Option(min=0.1, help="Of the window over which all are timed.")] = 20.0,
    device: Device = "auto",
    threads: Threads = 1,
    json_file: JsonFile = None,
) -> None:
    """Several runs at once on one device beside one alone.  Example: paribus bench together --counts 1,4"""
    from paribus.bench.together import measure as measure_together
    from paribus.bench.train import sized
    from paribus.spec.load import parse_overrides
    from paribus.spec.run import Runtime

    numbers = counts.split(",")
    if not all(number.isdecimal() and int(number) > 0 for number in numbers):
        raise ParibusError(f"--counts {counts}: expected numbers from 1, as 1,2,4")
    run = sized(base, scale, parse_overrides(sets or ()), batch)
    runtime = Runtime(device=device, threads=threads, sdpa=sdpa)
    measure_together(run, [int(number) for number in numbers], compile, seconds, runtime, f"{base}@{scale}", json_file)


if __name__ == "__main__":
    main()
