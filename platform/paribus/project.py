"""A project: a folder with paribus.toml, and the shipped files beside the user's own.

A name (of an experiment, factor, base, scale, protocol, task or paper table) is looked up in both; two files of one
name are an error, never a silent choice.
"""

import hashlib
import importlib.util
import os
import sys
import tarfile
import tomllib
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from paribus.errors import DataError, ParibusError, SpecError
from paribus.files import read_cache, sha256, write_cache
from paribus.spec.base import Slot, Spec
from paribus.spec.data import Corpus, Imported, Jsonl, Parquet, TextFiles
from paribus.spec.experiment import Base, Experiment, Factor, Scale
from paribus.spec.finetuning import Protocol
from paribus.spec.load import apply, build, load, suggest
from paribus.spec.run import Run
from paribus.spec.table import PaperTable
from paribus.spec.task import Folder, Hub, Task, TaskData

PACKAGE = Path(__file__).parent
S = TypeVar("S", bound=Spec)

# Folder of each kind of file, below a project and below the package.
FOLDERS = {
    "experiment": "experiments",
    "base": "experiments/bases",
    "scale": "experiments/scales",
    "protocol": "experiments/protocols",
    "factor": "ablations",
    "task": "tasks",
    "table": "dashboards/papers",
}

TOML = "paribus.toml"

# What a checkpoint of `transformers` holds.
CONFIG = "config.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "*.model",
)

# Endings that a corpus folder is searched for.
ENDINGS = {"jsonl": (".jsonl", ".jsonl.gz", ".jsonl.zst"), "parquet": (".parquet",), "text": (".txt",)}


class Settings(BaseModel):
    """paribus.toml: where a project keeps things. Paths are relative to the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    store: str = "results"
    """Folder of finished stages, the queue and the tables."""
    data: str = "data"
    """Folder that tasks and corpora of kind folder/jsonl/parquet/text are relative to."""
    tracking: str | None = None
    """MLflow tracking URI; null is mlflow.db inside the store."""
    variants: str | None = None
    """A Python file of the user's with Spec subclasses and a function `modules()` that maps them to nn.Modules."""
    lease_seconds: float = Field(60.0, ge=1, le=86_400)
    """A worker that nobody has heard of for so many seconds has lost its work to the next one; a dead one on the same
    machine at once. It must be longer than a shared folder takes to show one machine what another wrote."""


def _named(path: Path) -> Path:
    """`path`, the name of which is text: what is not can be in no record, no queue and no table."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise SpecError(f"{path}: the name is not UTF-8; rename it") from None
    return path


class Library(Generic[S]):
    """The files of one kind by name, shipped and the user's."""

    def __init__(self, kind: str, model: type[S], project: "Project") -> None:
        folder = FOLDERS[kind]
        self.kind, self.model, self._project = kind, model, project
        self._folders = [PACKAGE / folder, project.root / folder]

    @cached_property
    def paths(self) -> dict[str, Path]:
        """Name to file. Two different files of one name are an error."""
        found: dict[str, Path] = {}
        for folder in self._folders:
            for path in sorted(folder.glob("*.yaml")):
                other = found.setdefault(_named(path).stem, path)
                if other.resolve() != path.resolve():
                    raise SpecError(f"two {self.kind}s are called {path.stem!r}: {other} and {path}; rename one")
        return found

    def path(self, name: str, asked_by: str = "") -> Path:
        """The file of `name`; `asked_by` says who asked, for the error."""
        if name not in self.paths:
            where = f"{asked_by}: " if asked_by else ""
            hint = suggest(name, self.paths) or f"; `paribus list {self.kind}s` shows them"
            raise SpecError(f"{where}no {self.kind} is called {name!r}{hint}{self._project.alone}")
        return self.paths[name]

    def get(self, name: str, asked_by: str = "") -> S:
        """The spec called `name`."""
        return load(self.model, self.path(name, asked_by))

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.paths))


@dataclass(frozen=True)
class Project:
    """Where files come from and results go to."""

    root: Path
    settings: Settings

    @property
    def alone(self) -> str:
        """What an error about a name adds where there is no paribus.toml: it may well be known somewhere else."""
        return "" if (self.root / TOML).is_file() else f" (no {TOML} here or above: only what ships is known)"

    def paper(self, experiment: Experiment, asked_by: str = "") -> PaperTable | None:
        """The table that an experiment reproduces, the first of several, if it does."""
        name = next(iter(experiment.reproduces), None)
        return self.tables.get(name, asked_by) if name else None

    @cached_property
    def experiments(self) -> Library[Experiment]:
        return Library("experiment", Experiment, self)

    @cached_property
    def bases(self) -> Library[Base]:
        return Library("base", Base, self)

    @cached_property
    def scales(self) -> Library[Scale]:
        return Library("scale", Scale, self)

    @cached_property
    def protocols(self) -> Library[Protocol]:
        return Library("protocol", Protocol, self)

    @cached_property
    def factors(self) -> Library[Factor]:
        return Library("factor", Factor, self)

    @cached_property
    def tasks(self) -> "Tasks":
        return Tasks("task", TaskFile, self)

    @cached_property
    def tables(self) -> Library[PaperTable]:
        return Library("table", PaperTable, self)

    @property
    def store(self) -> Path:
        """The store's folder: PARIBUS_STORE, else what paribus.toml says."""
        return _named(Path(os.environ.get("PARIBUS_STORE") or self.root / self.settings.store))

    @property
    def data(self) -> Path:
        """The folder that users' corpora and tasks are relative to: PARIBUS_DATA, else what paribus.toml says."""
        return _named(Path(os.environ.get("PARIBUS_DATA") or self.root / self.settings.data))

    def base(self, name: str, asked_by: str = "") -> Run:
        """The run that the base called `name` stands for."""
        base, path = self.bases.get(name, asked_by), self.bases.path(name)
        if base.of is None:
            return build(Run, base.run, f"{path}: run")
        if self.bases.get(base.of, f"{path}: of").of:
            raise SpecError(f"{path}: of: got {base.of!r}, expected a base that is written out (`run`)")
        data = self.base(base.of).model_dump()
        apply(data, base.set, f"{path}: set")
        return build(Run, data, f"{path}: set")

    def task(self, name: str, asked_by: str = "") -> Task:
        """The task called `name`."""
        data = self.tasks.get(name, asked_by).model_dump()
        path, members = self.tasks.path(name), data.pop("members")
        member = name.removeprefix(f"{path.stem}-")
        if member in members:
            apply(data, members[member], f"{path}: members.{member}")
        return build(Task, {**data, "name": name}, str(path))

    @cached_property
    def checksums(self) -> "Checksums":
        return Checksums(self.store / "checksums.json")

    def corpus_files(self, corpus: Corpus) -> list[Path]:
        """The files of a corpus in the user's own files; none for an embedded one."""
        if not isinstance(corpus, Jsonl | Parquet | TextFiles):
            return []
        return expand(self.data, corpus.paths, ENDINGS[corpus.kind], "corpus.paths")

    def checkpoint_files(self, path: str) -> list[Path]:
        """config.json and the weights of a checkpoint of `transformers` at `path`."""
        folder = self.data / path
        if not (folder / CONFIG).is_file():
            raise DataError(f"pretrained.path: {folder / CONFIG}: no such file")
        weights = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
        if not weights:
            raise DataError(f"pretrained.path: {folder}: has neither *.safetensors nor pytorch_model*.bin")
        return [folder / CONFIG, *weights]

    def tokenizer_files(self, path: str) -> list[Path]:
        """The files of the tokenizer of a checkpoint of `transformers` at `path`."""
        folder = self.data / path
        files = sorted(file for pattern in TOKENIZER_FILES for file in folder.glob(pattern))
        if not files:
            raise DataError(f"tokenizer.path: {folder}: has none of {', '.join(TOKENIZER_FILES)}")
        return files

    def task_files(self, data: TaskData) -> "dict[str, Source]":
        """The train and dev files of a task in a folder of the user's, as far as it has any; none for a built one."""
        found = {}
        if isinstance(data, Folder):
            for split, name in (("train", data.train), ("dev", data.dev)):
                if name is not None:
                    found[split] = locate(self.data / data.path, name)
        return found

    def pinned(self, run: Run) -> Run:
        """`run` with the checksum of every file of the user's it reads: the content is its identity, not the path."""
        updates: dict[str, Any] = {}
        corpus = self._pin(run.corpus, self.corpus_files(run.corpus), "corpus")
        if corpus is not run.corpus:
            updates["corpus"] = corpus
        if isinstance(run.tokenizer, Imported):
            files = self.tokenizer_files(run.tokenizer.path)
            updates["tokenizer"] = self._pin(run.tokenizer, files, "tokenizer")
        if run.pretrained:
            files = self.checkpoint_files(run.pretrained.path)
            updates["pretrained"] = self._pin(run.pretrained, files, "pretrained")
        tasks = tuple(self._pin_task(task) for task in run.evaluation.tasks)
        if tasks != run.evaluation.tasks:
            updates["evaluation"] = run.evaluation.model_copy(update={"tasks": tasks})
        self.checksums.save()
        return run.model_copy(update=updates) if updates else run

    def _pin_task(self, task: Task) -> Task:
        if isinstance(task.data, Hub) and importlib.util.find_spec("datasets") is None:
            raise DataError(f"task {task.name}: data.kind hub needs a package more: pip install 'paribus[datasets]'")
        try:
            sources = self.task_files(task.data)
        except DataError as error:
            where = f"task {task.name} ({self.tasks.path(task.name)})"
            raise DataError(f"{where}: {error}; `paribus data list` says where it can be had") from None
        data = self._pin(task.data, all_files(sources), f"task {task.name}")
        return task if data is task.data else task.model_copy(update={"data": data})

    def _pin(self, spec: Any, files: list[Path], what: str) -> Any:
        if not files:
            return spec
        found = self.checksums.of(files)
        if spec.sha256 not in (None, found):
            raise DataError(f"{what}: sha256 is {found}, expected {spec.sha256}; the files have changed")
        return spec.model_copy(update={"sha256": found})


class TaskFile(Spec):
    """A task's file: a Task without its name, which is the file's. The Task itself is validated by `Project.task`."""

    model_config = ConfigDict(frozen=True, extra="allow")

    members: dict[str, dict[str, Any]] = {}
    """Tasks FILE-MEMBER that differ from the file in these paths: one file for the languages of XNLI."""


class Tasks(Library[TaskFile]):
    """The task files; a file with members is a task a member, called FILE-MEMBER, and none by itself."""

    @cached_property
    def paths(self) -> dict[str, Path]:
        """Name to file, members of a file under their own names."""
        found: dict[str, Path] = {}
        for stem, path in super().paths.items():
            members = load(TaskFile, path).members
            for name in [f"{stem}-{member}" for member in members] or [stem]:
                if name in found:
                    raise SpecError(f"two tasks are called {name!r}: {found[name]} and {path}; rename one")
                found[name] = path
        return found


def new_folder(folder: Path) -> None:
    """Make a folder that a user named for files to be written; it must be new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder}: it is there and not empty; name a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot be made ({error.strerror})") from None


def find(start: Path | None = None) -> Project:
    """The project `start` (default: the working directory) lies in; without a paribus.toml, the shipped files."""
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        path = folder / TOML
        if path.is_file():
            return _open(folder, path)
    return Project(start, Settings())


def _open(root: Path, path: Path) -> Project:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: not TOML ({error})") from None
    settings = build(Settings, data, str(path))
    if settings.variants:
        add_variants(root / settings.variants)
    return Project(root, settings)


def add_variants(path: Path) -> Any:
    """Import a user's Python file of variants; its Spec classes join the unions, its text joins their keys."""
    name = f"paribus_user_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise SpecError(f"{path}: named as `variants` in paribus.toml, but there is no such file")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    text = path.read_bytes()  # once, and not by a .pyc: that is known by time and size, which edited code may share
    try:
        exec(compile(text, path, "exec"), module.__dict__)
    except ParibusError:
        raise
    except Exception as error:
        del sys.modules[name]
        raise SpecError(f"{path}: cannot be imported ({type(error).__name__}: {error})") from error
    code = hashlib.sha256(text).hexdigest()[:16]
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Slot) and value.__module__ == name:
            value.code = code
            try:
                _refuse_kind(value, path)
            except SpecError:
                del sys.modules[name]
                raise
    return module


def _refuse_kind(variant: type[Slot], path: Path) -> None:
    """A variant is chosen by its kind, so it has one, and no other of its slot has it."""
    if Slot in variant.__bases__:  # a slot itself
        return
    kind = variant.model_fields["kind"].default
    if not isinstance(kind, str):
        raise SpecError(f'{path}: class {variant.__name__}: no kind; expected a line as kind: Literal["own"] = "own"')
    for other in chain.from_iterable(slot.__subclasses__() for slot in variant.__bases__ if issubclass(slot, Slot)):
        if other.model_fields["kind"].default == kind and other.__module__ != variant.__module__:
            raise SpecError(f"{path}: class {variant.__name__}: kind {kind!r} is {other.__name__}'s; choose another")


def user_modules() -> dict[type[Spec], Any]:
    """What every imported variants file maps its specs to: a spec class to an nn.Module class."""
    found: dict[type[Spec], Any] = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("paribus_user_") and hasattr(module, "modules"):
            found.update(module.modules())
    return found


# --- checksums of users' files --------------------------------------------------------------------------------------


def expand(folder: Path, patterns: tuple[str, ...], endings: tuple[str, ...], key: str) -> list[Path]:
    """The files that `patterns` (files, folders or globs, relative to `folder`) name, in order of name."""
    found: list[Path] = []
    for pattern in patterns:
        path = Path(pattern) if Path(pattern).is_absolute() else folder / pattern
        if path.is_dir():
            matches = sorted(p for p in path.rglob("*") if p.is_file() and p.name.endswith(endings))
        elif path.is_file():
            matches = [path]
        else:
            matches = sorted(p for p in path.parent.glob(path.name) if p.is_file())
        if not matches:
            raise DataError(f"{key}: no file matches {pattern!r} (looked in {path.parent})")
        found += [_named(match) for match in matches if match not in found]
    return found


@dataclass(frozen=True, slots=True)
class Source:
    """A file, a folder, or what lies under `inside` in an archive."""

    path: Path
    inside: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.inside}" if self.inside else str(self.path)

    def files(self) -> list[Path]:
        """The files on disk that its content is in."""
        return sorted(p for p in self.path.rglob("*") if p.is_file()) if self.path.is_dir() else [self.path]


def locate(folder: Path, name: str) -> Source:
    """What `name` in `folder` is: itself, itself with `.gz`, or a part of an archive there."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return Source(path)
    for path in sorted(path for path in folder.glob("*") if path.name.endswith((".tar.gz", ".tgz", ".zip"))):
        if any(f"{member}/".startswith(f"{name}/") for member in _members(path, path.stat().st_mtime_ns)):
            return Source(path, name)
    raise DataError(f"{folder} has no {name}, neither as it is, with .gz, nor in an archive")


@cache
def _members(archive: Path, changed: int) -> list[str]:
    """The names in an archive; none in one that is damaged."""
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as found:
                return found.namelist()
        with tarfile.open(archive) as packed:
            return packed.getnames()
    except (EOFError, OSError, tarfile.TarError, zipfile.BadZipFile, zlib.error):
        return []


def all_files(sources: dict[str, Source]) -> list[Path]:
    """The files on disk of a task, in order of its splits; that of an archive once."""
    return list(dict.fromkeys(file for source in sources.values() for file in source.files()))


def _combined(checksums: list[str]) -> str:
    """One checksum for files in order; of a single file its own."""
    return checksums[0] if len(checksums) == 1 else hashlib.sha256("".join(checksums).encode()).hexdigest()


@contextmanager
def unchanged(files: list[Path], planned: str | None, what: str) -> Iterator[None]:
    """Read `files` inside: DataError if they are not, before and after, those that the checksum `planned` was taken of.

    A file may be edited between planning and working, and even while it is read; its content is what a key stands for.
    """
    for when in ("", " while they were read"):
        if files and _combined([sha256(file) for file in files]) != planned:
            raise DataError(f"{what}: {', '.join(map(str, files))} changed{when} since the run was planned; plan again")
        if not when:
            yield


class Checksums:
    """sha256 of files, remembered by path, size and time of change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, str] = read_cache(path)
        self._changed = False

    def of(self, files: list[Path]) -> str:
        """One checksum over the contents of `files`, in order."""
        return _combined([self._one(file) for file in files])

    def _one(self, file: Path) -> str:
        stat = file.stat()
        key = f"{file.resolve()}|{stat.st_ino}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ctime_ns}"
        if key not in self._known:
            self._known[key] = sha256(file)
            self._changed = True
        return self._known[key]

    def save(self) -> None:
        """Write what was learnt."""
        if self._changed:
            write_cache(self._path, self._known)
