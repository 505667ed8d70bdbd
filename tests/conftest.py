"""What tests of several packages share: the repository, a little English, a vocabulary of it, small specs, a store."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import paribus
from paribus import nvidia
from paribus.data import packing
from paribus.data import vocabulary as vocabularies
from paribus.data.corpus import texts, to_document
from paribus.data.document import Document
from paribus.data.vocabulary import Vocabulary
from paribus.plan import estimate
from paribus.plan.stages import Pretraining, make
from paribus.spec.base import Spec
from paribus.spec.data import FullSentences, Sotu, WordPiece
from paribus.spec.load import build
from paribus.spec.model import Encoder
from paribus.store.store import Store, Work

os.environ.pop("PARIBUS_STORE", None)
os.environ.pop("PARIBUS_DATA", None)
os.environ.pop("PARIBUS_STORAGE", None)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # small tensors: more threads only wait for each other
if not nvidia.ask("name"):  # before anything loads triton
    os.environ.setdefault("TRITON_INTERPRET", "1")
settings.register_profile("paribus", deadline=None)
settings.load_profile("paribus")

VOCABULARY_SIZE = 512
DRILLS_UNTIL = float(os.environ.get("DRILLS_UNTIL", "inf"))  # seconds since 1970


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever drills take longest are begun first, so that two workers end at about the same time."""
    items.sort(key=lambda item: not any(mark.kwargs.get("first") for mark in item.iter_markers("drill")))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A drill is begun only while there is time, so that a slow machine says which were left out instead of none."""
    if item.get_closest_marker("drill") and time.time() > DRILLS_UNTIL:
        pytest.skip("no drill is begun after DRILLS_UNTIL")


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository, which is itself a project."""
    return Path(__file__).parent.parent


@pytest.fixture(scope="session")
def shared(root: Path) -> Path:
    """The development data: real corpora and tasks, which nothing that ships needs."""
    folder = Path(os.environ.get("PARIBUS_SHARED_DATA") or root.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip("needs the development data in ../shared/data, or in PARIBUS_SHARED_DATA")
    return folder


@pytest.fixture(scope="session")
def documents() -> list[Document]:
    """The 20 shortest addresses, of 1,100 to 2,100 words each."""
    return [to_document(text, "rules") for text in sorted(texts(Sotu(), []), key=len)[:20]]


@pytest.fixture(scope="session")
def vocabulary(documents: list[Document], tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    """A WordPiece vocabulary of 512 ids."""
    sentences = [sentence for document in documents for sentence in document.sentences]
    tokenizer = WordPiece(vocabulary_size=VOCABULARY_SIZE)
    return vocabularies.make(tokenizer, sentences, tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(scope="session")
def packed(documents: list[Document], vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack stage: rows of 32 tokens, a hundred or so a split."""
    folder = tmp_path_factory.mktemp("pack")
    for split, document in zip(("train", "validation", "test"), documents, strict=False):
        rows, words = (
            packing.pack(FullSentences(length=32), [document], vocabulary, None),
            packing.pack_words([document], vocabulary, 32),
        )
        packing.save([rows], folder, split, VOCABULARY_SIZE)
        packing.save([words], folder, f"{split}.words", VOCABULARY_SIZE)
    return folder


class Postgres:
    """A PostgreSQL server of the tests' own."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self._folder, self._binaries = folder, binaries
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._run("initdb", "--auth=trust", "--username=paribus", "--no-sync", "-D", str(folder / "data"))
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://paribus@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        options = f"-p {self.port} -k {self._folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        self._run("pg_ctl", "start", "-w", "-D", "data", "-l", "log", "-o", options)

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "-w", "-m", "immediate", "-D", "data")

    def drop(self) -> None:
        """Forget every queue."""
        self._run("psql", "-q", "-d", self.url, "-c", "DROP SCHEMA public CASCADE; CREATE SCHEMA public")

    def _run(self, program: str, *arguments: str) -> None:
        # PostgreSQL refuses to run as root.
        other = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}
        command = [str(self._binaries / program), *arguments]
        done = subprocess.run(command, cwd=self._folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **other)
        assert done.returncode == 0, done.stdout.decode()


@pytest.fixture(scope="session")
def _postgres() -> Iterator[Postgres]:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    here = found[-1].parent if found else None
    if here is None and (initdb := shutil.which("initdb")):
        here = Path(initdb).resolve().parent
    if here is None:
        pytest.skip("needs PostgreSQL's programs on this machine (Debian: apt-get install postgresql)")
    # Not below pytest's own folder, which nobody else may enter; a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="paribus-pg") as folder:
        if os.getuid() == 0:
            shutil.chown(folder, "nobody", "nogroup")
        server = Postgres(Path(folder), here)
        yield server
        server.stop()


@pytest.fixture
def postgres(_postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Postgres:
    """A running PostgreSQL without any queue, which PARIBUS_STORAGE names."""
    from paribus.jobs import storage  # brings Optuna, which most tests do without

    _postgres.drop()
    storage._connect.cache_clear()
    monkeypatch.setenv("PARIBUS_STORAGE", _postgres.url)
    return _postgres


ENCODER = {
    "layers": 2,
    "width": 16,
    "heads": 2,
    "position": {"kind": "absolute", "max_length": 32},
    "attention": {"kind": "full", "dropout": 0.0},
    "norm": "post",
    "feed_forward": {"kind": "gelu", "width": 32},
    "dropout": 0.0,
}
PRETRAINING = {
    "objective": {"kind": "mlm", "masking": "dynamic"},
    "encoder": ENCODER,
    "optimizer": {"kind": "adamw", "lr": 1e-2},
    "schedule": "linear",
    "budget": {"train_tokens": 2560, "batch_tokens": 256},
    "precision": "fp32",
}


@pytest.fixture(scope="session")
def encoder() -> Callable[..., Encoder]:
    """A small encoder without dropout; keywords replace fields."""
    return lambda **changes: build(Encoder, {**ENCODER, **changes}, "encoder")


@pytest.fixture(scope="session")
def pretraining() -> Callable[..., Pretraining]:
    """A small pretraining of ten steps without dropout; keywords replace fields."""
    return lambda **changes: build(Pretraining, {**PRETRAINING, **changes}, "pretraining")


@pytest.fixture
def killed(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Computes a stage undisturbed and killed 20 times on the way; both must leave the same files. See killed.py."""

    def run(kind: str, spec: Spec, steps: int, kills: int = 20, **told: Any) -> dict[str, Any]:
        asked = {"kind": kind, "spec": spec.model_dump(mode="json"), "steps": steps, "kills": kills, "seed": 0}
        asked |= {"folder": str(tmp_path), "runtime": {}, **told}
        environment = {**os.environ, "PYTHONPATH": str(Path(paribus.__file__).parents[1])}
        command = [sys.executable, str(Path(__file__).parent / "killed.py")]
        done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        said: dict[str, Any] = json.loads(done.stdout)
        files = [
            {path.name: path.read_bytes() for path in (tmp_path / name / "stages" / said["key"]).iterdir()}
            for name in ("undisturbed", "killed")
        ]
        for found in files:
            found.pop("stage.json")
            points = [json.loads(line) for line in found.pop("curve.jsonl").splitlines()]
            found["losses"] = [(point["step"], point["train/loss"]) for point in points]  # type: ignore[assignment]
        assert files[0].keys() == files[1].keys()
        assert [name for name in files[0] if files[0][name] != files[1][name]] == []
        left = [path.name for part in ("doing", "leases") for path in (tmp_path / "killed" / part).glob("[!.]*")]
        assert left == []
        return said

    return run


@pytest.fixture
def begin(tmp_path: Path) -> Callable[..., Work]:
    """Claims a stage of a store of the test's own: begin(kind, spec, seed)."""
    store = Store(tmp_path / "store")
    store.prepare()

    def claim(kind: str, spec: Spec, seed: int = 0, **inputs: Any) -> Work:
        work = store.claim(make(kind, spec, inputs, seed))
        assert work
        return work

    return claim


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs are counted in this process, where torch is loaded once: a process of their own takes seconds a test."""
    from paribus.nn.count import answer  # brings torch, which most tests do without

    monkeypatch.setattr(estimate, "_count", lambda questions, _: [answer(question) for question in questions])
