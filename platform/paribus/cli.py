"""The command line: a list of verbs.

Heavy imports wait inside; settings live in files, flags say only what to do and where.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paribus.errors import ParibusError

if TYPE_CHECKING:
    from paribus.jobs.queue import Entry
    from paribus.plan.estimate import Cost
    from paribus.plan.plan import Plan
    from paribus.project import Library, Project
    from paribus.spec.experiment import Experiment
    from paribus.spec.task import Task
    from paribus.store.store import Store

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Ablations of Transformer-encoder pretraining, all else equal.",
)

Name = Annotated[str, typer.Argument(help="An experiment; `paribus list experiments` shows them.")]
Scale = Annotated[str, typer.Option(help="A preset of sizes and budgets; `paribus list scales`.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Runs of each arm; default: what the experiment says.")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="path=value for every arm, e.g. optimizer.lr=3e-4.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Workers = Annotated[int, typer.Option(min=1, help="Worker processes.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Micro = Annotated[
    int | None, typer.Option(min=1, help="Rows on the device at once; default: 64k tokens of them. Gradients add up.")
]
Queues = Annotated[list[str] | None, typer.Argument(help="experiment or experiment@scale; default: all queues.")]


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that workers are stopped on the way out
    try:
        app()
    except ParibusError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)


def _project() -> "Project":
    from paribus.project import find

    return find()


def _store(project: "Project") -> "Store":
    from paribus.store.store import Store

    return Store(project.store)


def _plan(project: "Project", name: str, scale: str, seeds: int | None, sets: Iterable[str] | None) -> "Plan":
    from paribus.plan.plan import plan
    from paribus.spec.load import parse_override

    return plan(project, name, scale, seeds, dict(parse_override(text) for text in sets or ()), _store(project))


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
    if what == "stages":
        store = _store(project)
        rows = [
            {"key": r["key"], "outcome": r["outcome"], "seconds": round(r["finished"] - r["started"], 1)}
            for r in store.records()
        ]
    else:
        rows = _listing(project, what)
    if as_json:
        views.show_json(rows)
    elif rows:
        views.show_rows(rows)
    else:
        print(f"no {what} yet")


def _bases(experiment: "Experiment") -> str:
    """The base of an experiment and, in brackets, those of single scales."""
    at = ", ".join(f"{scale}: {base}" for scale, base in experiment.base_at.items())
    return experiment.base + (f" ({at})" if at else "")


def _listing(project: "Project", what: str) -> list[dict[str, Any]]:
    match what:
        case "experiments":
            library = project.experiments
            return [
                {"experiment": n, "question": e.question, "base": _bases(e)} for n in library for e in [library.get(n)]
            ]
        case "factors":
            return [
                {"factor": n, "levels": ", ".join(f.levels), "source": f.source}
                for n in project.factors
                for f in [project.factors.get(n)]
            ]
        case "bases":
            return [{"base": n, "source": project.bases.get(n).source.strip()} for n in project.bases]
        case "scales":
            return [{"scale": n, "note": project.scales.get(n).note.strip()} for n in project.scales]
        case "protocols":
            return [{"protocol": n, "source": project.protocols.get(n).source.strip()} for n in project.protocols]
        case "tasks":
            return [
                {"task": n, "kind": t.kind, "metrics": ", ".join(t.metrics), "source": t.source}
                for n in project.tasks
                for t in [project.task(n)]
            ]
        case "tables":
            return [
                {"table": n, "kind": t.kind, "title": t.title, "arxiv": t.paper.arxiv or ""}
                for n in project.tables
                for t in [project.tables.get(n)]
            ]
    from paribus.spec.load import suggest

    kinds = ("experiments", "factors", "bases", "scales", "protocols", "tasks", "tables", "stages")
    raise ParibusError(f"list {what}: no such kind" + suggest(what, kinds))


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="An experiment, factor, base, scale, protocol, task or table.")],
    scale: Scale = "tiny",
) -> None:
    """One file, resolved, with its source.  Example: paribus show masking --scale base"""
    from paribus.spec.describe import describe
    from paribus.spec.load import build, suggest
    from paribus.spec.run import Run

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
        raise ParibusError(
            f"nothing is called {name!r}" + suggest(name, [n for lib in libraries.values() for n in lib])
        )
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
            base = project.bases.get(name)
            shown = {"source": base.source.strip(), "run": build(Run, base.run, f"{library.path(name)}: run")}
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
    costs = _costs(project, found, store)
    missing = [stage for stage in found.stages() if stage.key not in done]
    if as_json:
        keys = [
            {"run": r.key, "arm": r.arm.label, "seed": r.seed, "stages": [s.key for s in r.stages]}
            for r in [*found.trials, *found.runs]
        ]
        views.show_json({**views.plan_summary(found, done, costs), "keys": keys})
    else:
        views.show_plan(found, done, costs, estimate(found, missing, costs, store.records()))


def _costs(project: "Project", found: "Plan", store: "Store") -> "dict[str, Cost]":
    """The cost of each arm, remembered in the store; counting needs torch, so a process of its own does it."""
    from paribus.plan.estimate import Cost, cost_key, cost_question
    from paribus.store.store import write_atomically

    path = store.root / "costs.json"
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError):
        known = {}
    asked = {cost_key(arm.run): cost_question(arm.run) for arm in found.arms}
    new = [key for key in asked if key not in known]
    if new:
        child = subprocess.run(
            [sys.executable, "-m", "paribus.nn.count"],
            input=json.dumps([asked[key] for key in new]),
            capture_output=True,
            text=True,
            cwd=project.root,
        )
        if child.returncode:
            print(f"parameters could not be counted: {child.stderr.strip().splitlines()[-1]}", file=sys.stderr)
            return {}
        known |= dict(zip(new, json.loads(child.stdout), strict=True))
        try:
            store.root.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(known))
        except OSError:
            pass  # only a cache: planning on a read-only store still works
    return {key: Cost(**known[key]) for key in asked}


@app.command()
def status(
    queues: Queues = None,
    watch: Annotated[bool, typer.Option(help="Look again every second until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Where every queued run stands.  Example: paribus status masking@tiny --watch"""
    from dataclasses import asdict

    from paribus import views

    store = _store(_project())
    while True:
        entries = _entries(store, queues)
        if as_json:
            views.show_json([{"queue": name, **asdict(entry)} for name, entry in entries])
        else:
            if watch:
                views.console.clear()
            views.show_status(entries, store)
        if not watch:
            return
        time.sleep(1.0)


def _names(store: "Store", asked: Iterable[str] | None) -> list[str]:
    """The queues that `asked` (names with or without a scale; None: all) means."""
    from paribus.jobs.journal import queues
    from paribus.spec.load import suggest

    there = queues(store)
    if not asked:
        return there
    found = []
    for name in asked:
        matching = [queue for queue in there if queue == name or queue.rpartition("@")[0] == name]
        if not matching:
            raise ParibusError(f"no queue is called {name!r}" + suggest(name, there))
        found += matching
    return found


def _entries(store: "Store", asked: Iterable[str] | None) -> "list[tuple[str, Entry]]":
    from paribus.jobs.queue import Queue

    return [(name, entry) for name in _names(store, asked) for entry in Queue(store, name).entries()]


@app.command()
def logs(
    run: Annotated[str, typer.Argument(help="A run's key, or its beginning; `paribus status` lists them.")],
) -> None:
    """What the workers of a run printed.  Example: paribus logs run-3a5e"""
    store = _store(_project())
    found = sorted((store.root / "logs").glob(f"{run}*.log"))
    if len(found) != 1:
        raise ParibusError(
            f"logs {run}: {len(found)} logs begin so" + ("" if found else "; `paribus status` lists the runs")
        )
    sys.stdout.write(found[0].read_text(errors="replace"))


# --- doing -----------------------------------------------------------------------------------------------------------


@app.command()
def queue(
    experiment: Name,
    scale: Scale = "tiny",
    seeds: Seeds = None,
    sets: Sets = None,
    priority: Annotated[int, typer.Option(help="Higher goes first.")] = 0,
) -> None:
    """Queue the runs an experiment lacks.  Example: paribus queue masking --scale small --seeds 5"""
    project = _project()
    found = _plan(project, experiment, scale, seeds, sets)
    _enqueue(found, _store(project), priority)


def _enqueue(found: "Plan", store: "Store", priority: int = 0, again: bool = False) -> None:
    """Queue what is missing; `again`: also what failed or was cancelled before (what diverged would diverge again)."""
    from paribus.jobs.queue import Queue
    from paribus.jobs.runs import remember
    from paribus.jobs.tuning import write_tuning

    queue = Queue(store, found.name)
    remember(store, found)
    runs = [*found.trials, *found.runs]
    if again:
        keys = {run.key for run in runs}
        queue.retry(e.run for e in queue.entries() if e.run in keys and e.status in ("failed", "cancelled"))
    for tuning in found.tunings:
        write_tuning(store, found.name, tuning, found.seeds, priority)
    counts = queue.add(runs, priority)
    queued = counts.pop("queued", 0)
    others = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    later = f"; {found.seeds * len(found.untuned)} more after tuning" if found.untuned else ""
    print(f"{found.name}: {queued} runs queued" + (f", {others} already" if others else "") + later, file=sys.stderr)


@app.command()
def work(
    queues: Queues = None,
    workers: Workers = 1,
    device: Device = "auto",
    threads: Annotated[
        int, typer.Option(min=1, help="CPU threads a worker; results depend on it in the last bit.")
    ] = 1,
    checkpoint_seconds: Annotated[float, typer.Option(min=0, help="Time between checkpoints.")] = 60.0,
    micro_batch_rows: Micro = None,
) -> None:
    """Take queued runs until none is left.  Example: paribus work --workers 2"""
    from paribus.jobs.queue import Queue
    from paribus.jobs.tuning import advance
    from paribus.spec.run import Runtime

    project = _project()
    store = _store(project)
    store.prepare()
    runtime = Runtime(
        device=device, threads=threads, checkpoint_seconds=checkpoint_seconds, micro_batch_rows=micro_batch_rows
    )
    names = _names(store, queues)
    for name in names:
        Queue(store, name).reap()
        advance(store, Queue(store, name))
    if not any(entry.status == "waiting" for _, entry in _entries(store, names)):
        print("no run is waiting", file=sys.stderr)
        return
    _work(project, store, names, workers, runtime, _queued_plans(project, store, names))
    _fail_on_failures(_entries(store, names))


def _work(
    project: "Project", store: "Store", names: list[str], workers: int, runtime: Any, plans: "list[Plan]"
) -> None:
    """Run workers on the queues until they are empty, mirroring `plans` to MLflow meanwhile."""
    from paribus import views
    from paribus.jobs.pool import Pool

    def statuses() -> list[str]:
        return [entry.status for _, entry in _entries(store, names)]

    with views.Display(store, statuses) as display, _Mirroring(project, store, plans):
        Pool(project, store, names, workers, runtime).wait(display.look)
        # A worker that was killed leaves its run behind; give it to fresh workers, but not for ever.
        for _ in range(3):
            if not {"waiting", "lost"} & set(statuses()):
                break
            Pool(project, store, names, workers, runtime).wait(display.look)


def _queued_plans(project: "Project", store: "Store", names: Iterable[str]) -> "list[Plan]":
    """What the queues were asked for, planned again; what no longer plans is said and left out."""
    from paribus.jobs.runs import asked
    from paribus.plan.plan import plan

    found = []
    for name in names:
        experiment, _, scale = name.rpartition("@")
        for told in asked(store, name):
            try:
                found.append(plan(project, experiment, scale, told["seeds"], told["overrides"], store))
            except ParibusError as error:
                print(f"{name} is not mirrored: {error}", file=sys.stderr)
    return found


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
        print("`paribus logs RUN` shows what happened, `paribus retry` queues them again", file=sys.stderr)
        raise typer.Exit(1)


def _mirror(project: "Project", store: "Store", found: "Plan") -> str:
    """Bring MLflow up to date, one process at a time; why it could not be, if so."""
    from paribus.tracking.mirror import sync, tracking_uri

    lease = store.lease("mirror")
    if lease is None:
        return ""  # another command is at it
    try:
        return sync(found, store, tracking_uri(project), live=True).outage
    finally:
        lease.release()


class _Mirroring:
    """Keeps MLflow up to date from a thread of this process while workers run; the last look is at the end."""

    def __init__(self, project: "Project", store: "Store", plans: "list[Plan]") -> None:
        self._project, self._store, self._plans = project, store, plans
        self._stop = threading.Event()
        self._said: set[str] = set()
        self._thread = threading.Thread(target=self._run, daemon=True, name="mirror")

    def _run(self) -> None:
        while not self._stop.wait(5.0):
            self._sync()

    def _sync(self) -> None:
        from paribus.plan.plan import again

        for plan in self._plans:
            outage = _mirror(self._project, self._store, again(plan, self._project, self._store))
            if outage and outage not in self._said:
                print(f"mlflow: {outage}; `paribus sync` will catch up", file=sys.stderr)
                self._said.add(outage)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._sync()


@app.command()
def run(
    experiment: Name,
    scale: Scale = "tiny",
    seeds: Seeds = None,
    sets: Sets = None,
    workers: Workers = 1,
    device: Device = "auto",
    threads: Annotated[
        int, typer.Option(min=1, help="CPU threads a worker; results depend on it in the last bit.")
    ] = 1,
    checkpoint_seconds: Annotated[float, typer.Option(min=0, help="Time between checkpoints.")] = 60.0,
    micro_batch_rows: Micro = None,
) -> None:
    """Queue, work and print the table, in the foreground.  Example: paribus run masking --seeds 3 --workers 2"""
    from paribus.plan.plan import again
    from paribus.spec.run import Runtime

    project = _project()
    store = _store(project)
    found = _plan(project, experiment, scale, seeds, sets)
    store.prepare()
    done = store.keys()
    if found.untuned or any(stage.key not in done for stage in found.stages()):
        _enqueue(found, store, again=True)
        runtime = Runtime(
            device=device, threads=threads, checkpoint_seconds=checkpoint_seconds, micro_batch_rows=micro_batch_rows
        )
        _work(project, store, [found.name], workers, runtime, _queued_plans(project, store, [found.name]))
        found = again(found, project, store)
        keys = {run.key for run in [*found.trials, *found.runs]}
        entries = [(name, entry) for name, entry in _entries(store, [found.name]) if entry.run in keys]
        if {entry.status for _, entry in entries} == {"failed"} and len({entry.reason for _, entry in entries}) == 1:
            raise ParibusError(entries[0][1].reason)
    else:
        entries = []
        print(f"{found.name}: everything is done, nothing is computed again", file=sys.stderr)
        with _Mirroring(project, store, _queued_plans(project, store, [found.name])):
            pass
    _print_tables(project, store, experiment, scale, seeds, sets, "text", files=True)
    _fail_on_failures(entries)


@app.command()
def cancel(queues: Queues = None) -> None:
    """Cancel what waits and stop what runs.  Example: paribus cancel masking@tiny"""
    from paribus.jobs.queue import Queue

    store = _store(_project())
    for name in _names(store, queues):
        print(f"{name}: {Queue(store, name).cancel()} runs cancelled")


@app.command()
def retry(queues: Queues = None) -> None:
    """Queue again what failed, diverged or was cancelled.  Example: paribus retry masking@tiny"""
    from paribus.jobs.queue import Queue

    store = _store(_project())
    for name in _names(store, queues):
        print(f"{name}: {Queue(store, name).retry()} runs queued again")


# --- reading ---------------------------------------------------------------------------------------------------------


@app.command()
def table(
    name: Annotated[str, typer.Argument(help="An experiment or a paper's table; `paribus list tables`.")],
    scale: Scale = "tiny",
    seeds: Seeds = None,
    sets: Sets = None,
    format: Annotated[str, typer.Option(help="text, md, tex, html, csv or json.")] = "text",
    files: Annotated[bool, typer.Option(help="Also write every format into the store's tables/.")] = False,
) -> None:
    """The paper's table with our numbers beside it.  Example: paribus table roberta-table1 --format tex"""
    project = _project()
    _print_tables(project, _store(project), name, scale, seeds, sets, format, files)


def _print_tables(
    project: "Project",
    store: "Store",
    name: str,
    scale: str,
    seeds: int | None,
    sets: Iterable[str] | None,
    format: str,
    files: bool,
) -> None:
    from paribus.spec.load import parse_override
    from paribus.store.store import writing
    from paribus.tables.render import FORMATS, render, write_all
    from paribus.tables.table import tables_for

    if format not in ("text", *FORMATS):
        raise ParibusError(f"--format {format}: expected one of text, {', '.join(FORMATS)}")
    overrides = dict(parse_override(text) for text in sets or ())
    failed = (
        [e.run for _, e in _entries(store, None) if e.status == "failed"] if (store.root / "queue").is_dir() else ()
    )
    for found in tables_for(project, store, name, scale, seeds, overrides, failed):
        if format == "text":
            from paribus import views
            from paribus.tables.render.terminal import show

            views.console.print(show(found, views.console.width))
        else:
            sys.stdout.write(render(found, format).rstrip("\n") + "\n")
        if files:
            store.prepare()
            with writing(store.root):
                written = write_all(found, store.root / "tables")
            print("written: " + ", ".join(_short(path) for path in written), file=sys.stderr)


def _short(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


@app.command()
def ui(port: Annotated[int, typer.Option(min=1, max=65535)] = 5000) -> None:
    """MLflow on 127.0.0.1 with the mirrored runs.  Example: paribus ui --port 5001"""
    from paribus.tracking.mirror import tracking_uri
    from paribus.tracking.server import ui_command

    project = _project()
    argv, environment = ui_command(_store(project), tracking_uri(project), port)
    os.execvpe(argv[0], argv, environment)


@app.command()
def sync(queues: Queues = None) -> None:
    """Bring MLflow up to date with the store, or build it anew.  Example: paribus sync masking@tiny"""
    from paribus.tracking.mirror import sync as bring
    from paribus.tracking.mirror import tracking_uri

    project = _project()
    store = _store(project)
    for found in _queued_plans(project, store, _names(store, queues)):
        counts = bring(found, store, tracking_uri(project))
        did = f"{counts.created} MLflow runs made, {counts.updated} updated, {counts.unchanged} left alone"
        print(f"{found.name}: {did}")


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
    from paribus.data.check import sources
    from paribus.errors import DataError

    project = _project()
    rows = []
    for name in project.tasks:
        task = project.task(name)
        found = sources(task, project.data)
        missing = [split for split, source in found.items() if isinstance(source, DataError)]
        there = ", ".join(split for split in found if split not in missing)
        files = ", ".join(f"{split}: {getattr(task.data, split)}" for split in missing)
        rows.append(
            {
                "task": name,
                "kind": task.kind,
                "there": there if found else f"({task.data.kind})",
                "missing": f"{files}; into {project.data / getattr(task.data, 'path', '')}" if missing else "",
                "from": getattr(task.data, "obtain", "") if missing else "",
            }
        )
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
    from paribus.data.check import check

    project = _project()
    tasks = _checkable(project, what)
    found = {task.name: check(task, root) for task, root in tasks}
    if as_json:
        views.show_json({name: [asdict(file) for file in files] for name, files in found.items()})
    else:
        views.show_checked(found, limit)
    refused = [f"{name} {file.split}" for name, files in found.items() for file in files if file.there > file.usable]
    if refused:
        raise ParibusError(f"data check {what}: {len(refused)} files cannot be used: {', '.join(refused)}")


def _checkable(project: "Project", what: str) -> "list[tuple[Task, Path]]":
    """The tasks that `what` means, each with the data folder it is to be read from."""
    from paribus.data.check import sources
    from paribus.project import Source
    from paribus.spec.task import Folder

    if what in project.tasks.paths:
        task = project.task(what)
        if not isinstance(task.data, Folder):
            kind = task.data.kind
            raise ParibusError(f"data check {what}: there are no files to check, its data are of kind {kind!r}")
        return [(task, project.data)]
    folder = Path(what).resolve()
    if not folder.is_dir():
        project.tasks.path(what, "data check")
    found = []
    for name in project.tasks:
        task = project.task(name)
        if not isinstance(task.data, Folder):
            continue
        parts = Path(task.data.path).parts
        # The folder is the data folder itself, or lies on the way from there to the task's own.
        roots = [folder] + [
            folder.parents[depth - 1] for depth in range(1, len(parts) + 1) if folder.parts[-depth:] == parts[:depth]
        ]
        for root in roots:
            if any(isinstance(source, Source) for source in sources(task, root).values()):
                found.append((task, root))
                break
    if not found:
        raise ParibusError(f"data check {what}: the files of no task are there; `paribus data list` says where they go")
    return found


exports = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Write a run's encoder for other programs.")
app.add_typer(exports, name="export")
imports = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Take an encoder from elsewhere as an arm.")
app.add_typer(imports, name="import")


@exports.command("hf")
def export_hf(
    run: Annotated[str, typer.Argument(help="A run's key, or its beginning; `paribus status` lists them.")],
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


@bench.command("pairs")
def bench_pairs(
    scale: str = "small",
    pairs: Annotated[int, typer.Option(min=1)] = 20_000,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    device: str = "auto",
) -> None:
    """Minimal pairs scored a minute, by the encoder of a scale."""
    from paribus.bench.pairs import measure as measure_pairs
    from paribus.spec.run import Runtime

    measure_pairs(scale, pairs, repeats, Runtime(device=device))


if __name__ == "__main__":
    main()
