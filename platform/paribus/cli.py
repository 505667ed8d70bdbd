"""The command line: a list of verbs.

Heavy imports wait inside; settings live in files, flags say only what to do and where.
"""

import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paribus.errors import ParibusError

if TYPE_CHECKING:
    from paribus.jobs.queue import Entry
    from paribus.plan.plan import Plan
    from paribus.project import Library, Project
    from paribus.spec.run import Runtime
    from paribus.store.store import Store
    from paribus.tables.verdict import Checked

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
OtherCode = Annotated[
    bool, typer.Option("--allow-other-code", help="Join workers that run other code than this; the tables show it.")
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
            for r in [*found.trials, *found.runs]
        ]
        views.show_json({**views.plan_summary(found, done, costs), "keys": keys})
    else:
        views.show_plan(found, done, costs, estimate(found, missing, costs, store.records()))


@app.command()
def status(
    queues: Queues = None,
    watch: Annotated[bool, typer.Option(help="Look again every second until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Where every queued run stands.  Example: paribus status masking@tiny --watch"""
    from dataclasses import asdict

    from paribus import views
    from paribus.jobs.queue import entries, names

    store = _store(_project())
    while True:
        found = entries(store, names(store, queues))
        if as_json:
            views.show_json([{"queue": name, **asdict(entry)} for name, entry in found])
        else:
            if watch:
                views.console.clear()
            views.show_status(found, store)
        if not watch:
            return
        time.sleep(1.0)


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
    priority: Annotated[
        int | None, typer.Option(help="Higher goes first, over all experiments; also changes that of what waits.")
    ] = None,
) -> None:
    """Queue the runs an experiment lacks.  Example: paribus queue masking --scale small --seeds 5"""
    project = _project()
    found = _plan(project, experiment, scale, seeds, sets)
    _enqueue(found, _store(project), priority)


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
    threads: Annotated[
        int, typer.Option(min=1, help="CPU threads a worker; results depend on it in the last bit.")
    ] = 1,
    checkpoint_seconds: Annotated[float, typer.Option(min=0, help="Time between checkpoints.")] = 60.0,
    micro_batch_rows: Micro = None,
    allow_other_code: OtherCode = False,
) -> None:
    """Take queued runs until none is left.  Example: paribus work --workers 2"""
    from paribus.jobs.queue import Queue, entries, names
    from paribus.jobs.tuning import advance
    from paribus.spec.run import Runtime

    project = _project()
    store = _store(project)
    store.prepare()
    runtime = Runtime(
        device=device,
        threads=threads,
        checkpoint_seconds=checkpoint_seconds,
        micro_batch_rows=micro_batch_rows,
        allow_other_code=allow_other_code,
    )
    asked = names(store, queues)
    for name in asked:
        Queue(store, name).reap()
        advance(store, Queue(store, name))
    if not any(entry.status == "waiting" for _, entry in entries(store, asked)):
        print("no run is waiting", file=sys.stderr)
        return
    _work(project, store, asked, workers, runtime)
    _fail_on_failures(entries(store, asked))


def _work(project: "Project", store: "Store", names: list[str], workers: int, runtime: "Runtime") -> None:
    """Run workers on the queues until they are empty, mirroring them to MLflow meanwhile."""
    from paribus import views
    from paribus.jobs.plans import queued
    from paribus.jobs.pool import drain
    from paribus.jobs.queue import entries
    from paribus.tracking.live import Mirroring

    def statuses() -> list[str]:
        return [entry.status for _, entry in entries(store, names)]

    plans = queued(project, store, names)
    with views.Display(store, statuses) as display, Mirroring(project, store, plans):
        drain(project, store, names, workers, runtime, display.look)


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
    allow_other_code: OtherCode = False,
) -> None:
    """Queue, work and print the table, in the foreground.  Example: paribus run masking --seeds 3 --workers 2"""
    from paribus.jobs.plans import queued
    from paribus.jobs.queue import entries
    from paribus.plan.plan import again
    from paribus.spec.run import Runtime
    from paribus.tracking.live import Mirroring

    project = _project()
    store = _store(project)
    found = _plan(project, experiment, scale, seeds, sets)
    store.prepare()
    done = store.keys()
    if found.untuned or any(stage.key not in done for stage in found.stages()):
        _enqueue(found, store, again=True)
        runtime = Runtime(
            device=device,
            threads=threads,
            checkpoint_seconds=checkpoint_seconds,
            micro_batch_rows=micro_batch_rows,
            allow_other_code=allow_other_code,
        )
        _work(project, store, [found.name], workers, runtime)
        found = again(found, project, store)
        keys = {run.key for run in [*found.trials, *found.runs]}
        stands = [(name, entry) for name, entry in entries(store, [found.name]) if entry.run in keys]
        if {entry.status for _, entry in stands} == {"failed"} and len({entry.reason for _, entry in stands}) == 1:
            raise ParibusError(stands[0][1].reason)
    else:
        stands = []
        print(f"{found.name}: everything is done, nothing is computed again", file=sys.stderr)
        with Mirroring(project, store, queued(project, store, [found.name])):
            pass
    _print_tables(project, store, experiment, scale, seeds, sets, "text", files=True)
    _fail_on_failures(stands)


@app.command()
def cancel(queues: Queues = None) -> None:
    """Cancel what waits and stop what runs.  Example: paribus cancel masking@tiny"""
    from paribus.jobs.queue import Queue, names

    store = _store(_project())
    for name in names(store, queues):
        print(f"{name}: {Queue(store, name).cancel()} runs cancelled")


@app.command()
def retry(queues: Queues = None) -> None:
    """Queue again what failed, diverged or was cancelled.  Example: paribus retry masking@tiny"""
    from paribus.jobs.queue import Queue, names

    store = _store(_project())
    for name in names(store, queues):
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
    check: Annotated[
        bool, typer.Option("--check", help="Exit 1 unless every claim of the experiment (`claims`) is met.")
    ] = False,
    allow_undecided: Annotated[
        bool, typer.Option("--allow-undecided", help="With --check: only a claim that is not met counts.")
    ] = False,
) -> None:
    """The paper's table with our numbers beside it.  Example: paribus table roberta-table1 --format tex"""
    project = _project()
    claims = _print_tables(project, _store(project), name, scale, seeds, sets, format, files)
    if check:
        if not claims:
            raise ParibusError(f"--check: {name} declares no `claims`")
        for claim in claims:
            print(claim.sentence, file=sys.stderr)
        if any(claim.outcome not in ("met", *(["undecided"] if allow_undecided else [])) for claim in claims):
            raise typer.Exit(1)


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
    from paribus.tables.power import needed, notes, rows
    from paribus.tables.table import experiment_table

    if effect is not None and (metric is None or effect <= 0):
        raise ParibusError(f"--effect {effect:g}: expected a size above 0 in the unit of one column, and its --metric")
    if not 0.05 < wanted < 1:
        raise ParibusError(f"--power {wanted:g}: expected a share above 0.05 and below 1")
    project = _project()
    store = _store(project)
    found = needed(experiment_table(_plan(project, experiment, scale, seeds, sets), store), effect, metric, wanted)
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
) -> "list[Checked]":
    from paribus.jobs.queue import entries, names
    from paribus.spec.load import parse_override
    from paribus.store.store import writing
    from paribus.tables.render import FORMATS, render, write_all
    from paribus.tables.table import tables_for

    if format not in ("text", *FORMATS):
        raise ParibusError(f"--format {format}: expected one of text, {', '.join(FORMATS)}")
    overrides = dict(parse_override(text) for text in sets or ())
    queued = entries(store, names(store, None))
    failed = [entry.run for _, entry in queued if entry.status == "failed"]
    finished: dict[str, dict[str, int]] = {}
    for queue, entry in queued:
        if entry.status == "done" and not entry.trial:
            finished.setdefault(queue, {})[entry.run] = entry.seed
    claims: list[Checked] = []
    for found in tables_for(project, store, name, scale, seeds, overrides, failed, finished):
        claims += found.claims
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
    return claims


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
    from paribus.jobs.plans import queued
    from paribus.jobs.queue import names
    from paribus.tracking.mirror import sync as bring
    from paribus.tracking.mirror import tracking_uri

    project = _project()
    store = _store(project)
    for found in queued(project, store, names(store, queues)):
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


@bench.command("queue")
def bench_queue(
    runs: Annotated[int, typer.Option(min=10)] = 400,
    workers: Annotated[int, typer.Option(min=1)] = 8,
    storage: Annotated[str | None, typer.Option(help="Also postgresql://...; default: PARIBUS_STORAGE.")] = None,
) -> None:
    """Runs that do nothing, drained a second, and the time of one claim: journal and PostgreSQL."""
    from paribus.bench.queue import measure as measure_queue

    measure_queue(runs, workers, storage or os.environ.get("PARIBUS_STORAGE"))


@bench.command("calibration")
def bench_calibration(
    experiments: Annotated[int, typer.Option(min=10, help="Simulated experiments of each kind.")] = 1000,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """How often verdicts are false where nothing differs, intervals cover, and effects are found as promised."""
    from paribus.bench.calibration import measure as measure_verdicts

    measure_verdicts(experiments, seed)


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
