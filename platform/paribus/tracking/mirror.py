"""Bringing MLflow up to date with the store, live and after the fact by one path. `wanted` says what it should hold.

    mirror.json   {uri: {"plans": {name: state}, "runs": {id: mark}}}: what was already sent

The marks save time and nothing else: they name MLflow's own run ids, so those of another database do not count, and an
unmarked run is compared and sent again. An MLflow experiment mirrors one store. Where the table is sent, at the end of
a command, what the experiment does not ask for any more is deleted: MLflow then holds what a new database would.
"""

import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from paribus.errors import ParibusError
from paribus.files import read_cache, write_atomically
from paribus.jobs.queue import ended
from paribus.plan.arms import spelled
from paribus.plan.plan import Plan
from paribus.project import Project
from paribus.spec.base import digest
from paribus.store.lease import exclusive
from paribus.store.store import Store, writing
from paribus.tables.certificate import count_costs
from paribus.tables.experiment import experiment_table
from paribus.tables.table import Table
from paribus.tracking.wanted import Content, Entry, Point, Wanted

STATUS = {"done": "FINISHED", "diverged": "FAILED", "pruned": "FINISHED", "running": "RUNNING", "missing": "SCHEDULED"}
"""MLflow's word for each outcome; what is missing waits for a worker, interrupted or not."""

TABLE, VERDICT = "table/", "paribus.verdict."
"""How the metrics and tags begin that a table gives an arm (`paribus.tables.summary`)."""

PAGE = 1000
"""Runs a request when looking up what MLflow has."""

# By default MLflow retries an unreachable server for four minutes, prints two lines a run and reports usage.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}


@dataclass
class Counts:
    """What a sync did, in MLflow runs."""

    created: int = 0
    updated: int = 0
    unchanged: int = 0
    removed: int = 0
    """Of an older version of the experiment, for one; MLflow keeps them among its deleted runs."""
    outage: str = ""
    """Why a live sync could not be done, in one line; the next one catches up."""


class Mark(NamedTuple):
    """What was sent: to which MLflow run, from which state of the store, and how many points with which digest."""

    run: str
    source: str
    """That of the entry, a space, and its parent's MLflow run."""
    points: int
    prefix: str

    @property
    def of(self) -> str:
        """The source of the entry alone."""
        return self.source.partition(" ")[0]


def tracking_uri(project: Project) -> str:
    """Where a project's mirror is: what paribus.toml says, else mlflow.db inside the store."""
    return project.settings.tracking or f"sqlite:///{project.store.resolve() / 'mlflow.db'}"


def table_of(plan: Plan, project: Project, store: Store) -> Table:
    """The table of `plan` as it is sent to MLflow: with what its queue knows of failed and older runs."""
    failed, finished = ended(store, [plan.name])
    count_costs(plan, project, store)
    return experiment_table(plan, store, project.paper(plan.experiment), failed, finished=finished.get(plan.name))


def artifact_folder(store: Store) -> Path:
    """Where artifacts go when MLflow's database is written without a server."""
    return store.root.resolve() / "mlartifacts"


def sync(plan: Plan, store: Store, uri: str, live: bool = False, table: Callable[[], Table] | None = None) -> Counts:
    """Bring MLflow at `uri` up to date with what the store has of `plan`; `table` makes its table, sent along.

    With `table`, what no longer belongs to the plan is deleted from MLflow.

    What stands in the way (MLflow that is away, a stage or a table that cannot be read) raises ParibusError; with
    `live` it is told in `Counts.outage` instead, so that the work goes on.
    """
    if not store.root.is_dir():
        return Counts()
    try:
        with writing(store.root), exclusive(store.root / "mirror.lock"):
            return _sync(plan, store, uri, live, table)
    except Exception as error:
        problem = str(error)
        if not isinstance(error, ParibusError):
            problem = f"{plan.name}: cannot be read for MLflow ({type(error).__name__}: {_cause(error)})"
        if live:
            return Counts(outage=problem)
        raise ParibusError(problem) from error


def _sync(plan: Plan, store: Store, uri: str, live: bool, table: Callable[[], Table] | None) -> Counts:
    wanted = Wanted(plan, store, table)
    entries = list(wanted.entries())
    sources = [entry.source for entry in entries]
    started = len(sources) - sources.count(None)
    path = store.root / "mirror.json"
    all_marks = read_cache(path)
    here = all_marks.setdefault(public(uri), {"plans": {}, "runs": {}})
    marks = {id: Mark(*mark) for id, mark in here["runs"].items()}
    sent = {marks[entry.id].run for entry in entries if entry.id in marks}
    state = digest(json.dumps([wanted.note, [entry.id for entry in entries], sources, table is not None]))
    asked = f"{plan.name} {spelled(plan.overrides)}"
    if here["plans"].get(asked) == state and (live or _all_there(uri, sent)):
        return Counts(unchanged=started)
    if not started and asked not in here["plans"]:
        return Counts()
    # Whatever ends this half-way: what is about to change counts as unknown until all is sent.
    here["plans"][asked] = ""
    changing = {e.id for e, source in zip(entries, sources, strict=True) if e.id in marks and marks[e.id].of != source}
    here["runs"] = {id: mark for id, mark in marks.items() if id not in changing}
    write_atomically(path, json.dumps(all_marks))
    try:
        mirror = _Mirror(uri, plan, artifact_folder(store), marks)
        mirror.client.set_experiment_tag(mirror.experiment, "mlflow.note.content", wanted.note)
        counts = mirror.update(entries, sources, whole=table is not None)
        here["plans"][asked] = state
        return counts
    except ParibusError:
        raise
    except Exception as error:
        raise ParibusError(public(f"{uri}: cannot be brought up to date ({_cause(error)})")) from error
    finally:
        here["runs"] = marks
        write_atomically(path, json.dumps(all_marks))


def _cause(error: BaseException) -> str:
    """What is at the bottom of an error, in one line: MLflow's own words wrap that of a connection several times."""
    if isinstance(error, ImportError):
        return "MLflow is not installed here"
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def public(text: str) -> str:
    """`text` without the user names and passwords of URIs in it."""
    return re.sub(r"//[^/@\s]*@", "//", text)


def _all_there(uri: str, runs: set[str]) -> bool:
    """Whether a SQLite database has all `runs`, without the seconds that importing MLflow takes."""
    try:
        database = Path(uri.removeprefix("sqlite:///")).resolve().as_uri()
        with closing(sqlite3.connect(f"{database}?mode=ro", uri=True)) as connection:
            found = connection.execute("SELECT run_uuid FROM runs WHERE lifecycle_stage = 'active'").fetchall()
        return runs <= {run for (run,) in found}
    except sqlite3.Error:
        return False


def connect(uri: str) -> Any:
    """An MlflowClient. MLflow is imported here and nowhere earlier."""
    # What fails is raised, and told in one line; MLflow would print the traceback as well.
    for name, value in {**ENVIRONMENT, "MLFLOW_LOGGING_LEVEL": "CRITICAL"}.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def _runs(client: Any, experiment_id: str) -> Iterator[Any]:
    """Every run of an experiment that is not deleted."""
    token = None
    while True:
        page = client.search_runs([experiment_id], max_results=PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _digest(points: Sequence[Point]) -> str:
    return digest(json.dumps(points))


def _name(key: str) -> str:
    """`key` in the characters and length that MLflow takes."""
    return re.sub(r"[^\w\-. :/]", "_", key)[:250]


def _follows(content: Content, mark: Mark) -> bool:
    """Whether `content` begins with the points sent before, or has yet to catch up after an older checkpoint."""
    catching_up = content.end is None and len(content.points) < mark.points
    return catching_up or _digest(content.points[: mark.points]) == mark.prefix


def _says_otherwise(run: Any, content: Content) -> bool:
    """Whether a table made `run` say what a later one (at a later step) would not replace."""
    if content.summary is None:
        return False
    now = {_name(point.key): (point.step, point.timestamp, point.value) for point in content.summary}
    said = {metric.key: (metric.step, metric.timestamp, metric.value) for metric in run.data.to_proto().metrics}
    return any(
        key not in now or (at[0] >= now[key][0] and at != now[key]) for key, at in said.items() if key.startswith(TABLE)
    )


def _outdated(run: Any, content: Content, tags: dict[str, str]) -> list[str]:
    """The tags of `run` that are ours and not among `tags`; a verdict stands where no table was made."""
    kept = {"paribus.id", *map(_name, tags)}
    ours = [key for key in run.data.tags if key.startswith("paribus.") and key not in kept]
    return [key for key in ours if content.summary is not None or not key.startswith(VERDICT)]


class _Mirror:
    """One MLflow experiment while it is brought up to date; `marks` changes along."""

    def __init__(self, uri: str, plan: Plan, artifacts: Path, marks: dict[str, Mark]) -> None:
        self.client, self.marks, self.label = connect(uri), marks, plan.label
        experiment = self.client.get_experiment_by_name(plan.name)
        if experiment is None:
            # A server keeps artifacts where it likes; without one they lie beside the store.
            location = None if uri.startswith("http") else artifacts.as_uri()
            self.experiment = self.client.create_experiment(plan.name, artifact_location=location)
        else:
            self.experiment = experiment.experiment_id
            if experiment.lifecycle_stage == "deleted":
                self.client.restore_experiment(self.experiment)
        self.runs = [run for run in _runs(self.client, self.experiment) if "paribus.id" in run.data.tags]
        self.found = {run.data.tags["paribus.id"]: run for run in self.runs}

    def update(self, entries: Sequence[Entry], sources: Sequence[str | None], whole: bool) -> Counts:
        """Send what is new of `entries`, whose `sources` are in the same order; if `whole`, they are all there is."""
        counts = Counts()
        if whole:
            started = {entry.id for entry, source in zip(entries, sources, strict=True) if source is not None}
            counts.removed = self._keep_only(started)
        for entry, source in zip(entries, sources, strict=True):
            run, mark = self.found.get(entry.id), self.marks.get(entry.id)
            if run is None or (mark and mark.run != run.info.run_id):
                mark = None  # sent to a database that is gone
            if source is None:
                if mark:  # given up before it left a checkpoint, or set aside as corrupt
                    self.client.delete_run(mark.run)
                    counts.removed += 1
                self.marks.pop(entry.id, None)
                continue
            parent = self.marks[entry.parent].run if entry.parent else ""
            source = f"{source} {parent}"
            if mark and mark.source == source:
                counts.unchanged += 1
                continue
            self.marks.pop(entry.id, None)  # if sending fails half-way, it is at neither
            self.marks[entry.id] = self._bring(entry, source, parent, run, mark)
            if run and self.marks[entry.id].run == run.info.run_id:
                counts.updated += 1
            else:
                counts.created += 1
        return counts

    def _keep_only(self, ids: set[str]) -> int:
        """Delete all else that was sent of the plan, and doubles (a deleted run that was restored); how many."""
        gone = [
            (id, run)
            for run in self.runs
            if run.data.tags.get("paribus.plan") == self.label
            and ((id := run.data.tags["paribus.id"]) not in ids or run is not self.found[id])
        ]
        for id, run in gone:
            self.client.delete_run(run.info.run_id)
            if run is self.found[id]:
                del self.found[id]
                self.marks.pop(id, None)
        return len(gone)

    def _bring(self, entry: Entry, source: str, parent: str, run: Any, mark: Mark | None) -> Mark:
        """Send `entry` to its MLflow run, made anew where there is none or where it cannot be mended."""
        content = entry.read()
        if mark and not _follows(content, mark):
            mark = None
        if run and self._is_at_odds(run, content, compare=mark is None):
            self.client.delete_run(run.info.run_id)
            run = mark = None
        if run is None:
            named = {"paribus.id": entry.id, "paribus.plan": self.label}
            run = self.client.create_run(self.experiment, content.start, named, entry.name)
        tags = content.tags | {"paribus.outcome": content.outcome}
        if parent:
            tags["mlflow.parentRunId"] = parent
        for key in _outdated(run, content, tags):
            self.client.delete_tag(run.info.run_id, key)
        self._send(run.info.run_id, content, tags, content.points[mark.points if mark else 0 :])
        now = Mark(run.info.run_id, source, len(content.points), _digest(content.points))
        return now._replace(points=mark.points, prefix=mark.prefix) if mark and mark.points > now.points else now

    def _is_at_odds(self, run: Any, content: Content, compare: bool) -> bool:
        """Whether `run` holds what MLflow cannot take back: a start, an end, or (found by `compare`) other points."""
        if run.info.start_time != content.start or (run.info.end_time and content.end is None):
            return True
        if _says_otherwise(run, content):
            return True
        known = {(_name(point.key), *point[1:]) for point in content.points}
        return compare and any(
            (metric.key, metric.value, metric.step, metric.timestamp) not in known
            for key in run.data.metrics
            if not key.startswith(TABLE)  # a summary, which may have said something else before
            for metric in self.client.get_metric_history(run.info.run_id, key)
        )

    def _send(self, run_id: str, content: Content, tags: dict[str, str], points: Sequence[Point]) -> None:
        from mlflow.entities import Metric, Param, RunTag

        self.client.log_batch(
            run_id,
            metrics=[
                Metric(_name(point.key), point.value, point.timestamp, point.step)
                for point in (*points, *(content.summary or ()))
            ],
            params=[Param(_name(key), value[:6000]) for key, value in content.params.items()],
            tags=[RunTag(_name(key), value[:8000]) for key, value in tags.items()],
        )
        for file, text in content.artifacts.items():
            self.client.log_text(run_id, text, file)
        # Last, so that a run that looks finished is complete.
        if content.end is None:
            self.client.update_run(run_id, STATUS[content.outcome])
        else:
            self.client.set_terminated(run_id, STATUS[content.outcome], content.end)


def content(uri: str, plan: Plan) -> dict[str, Any]:
    """Everything MLflow at `uri` holds of `plan`, by paribus.id, without what differs from one database to another."""
    client = connect(uri)
    experiment = client.get_experiment_by_name(plan.name)
    if experiment is None:
        return {}
    runs = list(_runs(client, experiment.experiment_id))
    ids = {run.info.run_id: run.data.tags["paribus.id"] for run in runs}
    found: dict[str, Any] = {"note": experiment.tags.get("mlflow.note.content"), "runs": {}}
    for run in runs:
        run_id, tags = run.info.run_id, dict(run.data.tags)
        parent = ids.get(tags.pop("mlflow.parentRunId", None))
        found["runs"][ids[run_id]] = {
            "name": run.info.run_name,
            "parent": parent,
            "status": run.info.status,
            "start": run.info.start_time,
            "end": run.info.end_time,
            "tags": tags,
            "params": dict(run.data.params),
            "metrics": {
                key: sorted((at.step, at.timestamp, at.value) for at in client.get_metric_history(run_id, key))
                for key in run.data.metrics
            },
            "artifacts": {
                file.path: Path(client.download_artifacts(run_id, file.path)).read_text()
                for file in client.list_artifacts(run_id)
            },
        }
    return found
