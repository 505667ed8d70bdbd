"""Bad input through the command line: one line on stderr, exit code 2, no traceback, nothing half-written."""

import gzip
import io
import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from paribus import cli
from paribus.jobs.worker import work

PLATFORM = Path(cli.__file__).parents[1]

EXPERIMENT: dict[str, Any] = {
    "question": "Is it told in one line?",
    "expect": "yes",
    "base": "bert-relative",
    "factors": ["masking-rate"],
    "levels": {"masking-rate": ["15"]},
    "seeds": 1,
    "set": {
        "corpus": {"kind": "jsonl", "paths": ["docs.jsonl"]},
        "tokenizer.vocabulary_size": 100,
        "budget": {"train_tokens": 8192, "batch_tokens": 1024},
    },
}


class Said(NamedTuple):
    code: int
    out: str
    err: str


Paribus = Callable[..., Said]


def text(number: int) -> str:
    """A document of forty sentences in a small language."""
    drawn = random.Random(number)
    words = [a + b + c for a in "bdgkm" for b in "aeiou" for c in ("n", "r", "st")]
    sentences = [" ".join(drawn.choice(words) for _ in range(8)).capitalize() + "." for _ in range(40)]
    return "\n".join(" ".join(sentences[start : start + 5]) for start in range(0, 40, 5))


def lines(documents: int = 8) -> list[str]:
    return [json.dumps({"text": text(number)}) for number in range(documents)]


def declare(**changes: object) -> None:
    """Write experiments/mine.yaml of the project in the working directory."""
    Path("experiments/mine.yaml").write_text(yaml.safe_dump({**EXPERIMENT, **changes}))


def corpus(**changes: object) -> None:
    """Declare the experiment on another corpus, or with another setting."""
    declare(set={**EXPERIMENT["set"], **changes})


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small project in the working directory, good until a test spoils it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PARIBUS_STORE", raising=False)
    monkeypatch.delenv("PARIBUS_DATA", raising=False)
    (tmp_path / "paribus.toml").touch()
    for folder in ("data", "experiments", "ablations"):
        (tmp_path / folder).mkdir()
    Path("data/docs.jsonl").write_text("\n".join(lines()))
    declare()
    return tmp_path


@pytest.fixture
def paribus(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Paribus:
    """The command line, its workers and their data stages in this process: starting others is what takes long."""

    class Here:
        def __init__(self, *asked: Any) -> None:
            self._asked = asked

        def work(self, look: Callable[[], None]) -> None:
            project, store, names, _, runtime = self._asked
            with redirect_stderr(io.StringIO()):  # a worker's own goes to the log of the run
                work(project, store, names, runtime)

    monkeypatch.setattr("paribus.jobs.pool.Pool", Here)
    monkeypatch.setattr("paribus.tracking.live.Mirroring._sync", lambda self, last=False: None)
    monkeypatch.setattr("paribus.execute.DATA", {})

    def call(*argv: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["paribus", *argv])
        capfd.readouterr()
        try:
            cli.main()
            code: Any = 0
        except SystemExit as error:
            code = error.code or 0
        return Said(code, *capfd.readouterr())

    return call


def refused(said: Said) -> str:
    """The one error line of a refusal."""
    errors = [line for line in said.err.splitlines() if line.startswith("error: ")]
    assert said.code == 2, said
    assert len(errors) == 1 and said.err.endswith(errors[0] + "\n"), said.err
    assert "Traceback" not in said.err + said.out
    return errors[0]


def nothing_half_written(store: Path, *finished: str) -> None:
    """Only stages of the kinds `finished` are there, and nothing is in progress."""
    assert {path.name.split("-")[0] for path in (store / "stages").glob("*")} == set(finished)
    assert list((store / "doing").glob("*")) == list((store / "leases").glob("*.json")) == []


# --- what planning refuses: nothing is written at all ---


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["plan", "maskin"], "no experiment is called 'maskin' (did you mean masking"),
        (["plan", "mine", "--scale", "debgu"], "no scale is called 'debgu' (did you mean debug?)"),
        (["show", "maskin"], "nothing is called 'maskin'"),
        (["list", "factor"], "list factor: no such kind (did you mean factors?)"),
        (["table", "roberta-tabel1"], "'roberta-tabel1' (did you mean roberta-table1?)"),
        (["table", "mine", "--format", "pdf"], "--format pdf: expected one of text, md"),
        (["plan", "zzzz"], "no experiment is called 'zzzz'; `paribus list experiments` shows them"),
        (["show", "zzzz"], "nothing is called 'zzzz'; `paribus list` shows what there is"),
        (["table", "zzzz"], "called 'zzzz'; `paribus list experiments` and `paribus list tables` show them"),
        (["status", "mine"], "no queue is called 'mine'"),
        (["status", "mine@tny"], "mine@tny: no scale is called 'tny' (did you mean tiny?)"),
        (["work", "mine@tny"], "mine@tny: no scale is called 'tny' (did you mean tiny?)"),
        (["data", "check", "/nonexist"], "data check /nonexist: neither a task nor a folder is called so; `paribus "),
        (["data", "check", "qqpp"], "neither a task nor a folder is called so (did you mean qqp?)"),
        (["cancel", "mine"], "no queue is called 'mine'"),
        (["retry", "mine@debug"], "no queue is called 'mine@debug'"),
        (["logs", "run-0"], "run-0: 0 runs begin so"),
        (["plan", "mine", "--scale", "debug", "--why", "zzz"], "--why zzz: 0 stages of mine@debug begin so"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(paribus: Paribus, argv: list[str], message: str) -> None:
    assert message in refused(paribus(*argv))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.lrr=1e-3", "optimizer.lrr: no such key for kind 'adamw' in optimizer (did you mean lr?)"),
        ("optimiser.lr=1e-3", "no such key in a run (did you mean optimizer?)"),
        ("optimizer.lr=fast", 'optimizer.lr: found "fast", but'),
        ("encoder.layers=0", "encoder.layers: found 0, but"),
        ("encoder.layers=two", 'encoder.layers: found "two", but'),
        ("encoder.position=[1]", "encoder.position"),
        ("corpus.kind=jsonnl", "corpus.kind: found \"jsonnl\", expected one of 'jsonl'"),
        ("optimizer.lr", "--set optimizer.lr: expected path=value"),
        ("optimizer.lr=[1", "--set optimizer.lr=[1"),
        ("optimizer.lr=\udcff", ": not YAML (unacceptable character #xdcff: special characters"),
        ("objective.rate=0.3", "cannot set objective.rate: the factor masking-rate varies objective.rate"),
        ("objective={kind: mlm}", "the factor masking-rate varies objective.rate"),
        ("objective.sentence=nsp", "needs packing.kind segment-pairs or sentence-pairs with negatives random-document"),
        ("packing.negatives=swapped", "packing.negatives: no such key for kind 'full-sentences' in packing"),
        ("objective.unit.kind=word", "objective.unit.kind: found \"word\", expected one of 'n-gram', 'span', 'token'"),
        ("budget.train_tokens=1", "train_tokens must be at least batch_tokens, found 1"),
        ("optimizer.lr=.inf", "optimizer.lr: found Infinity, but input should be a finite number"),
        (
            "finetuning.learning_rates=[.inf]",
            "finetuning.learning_rates.0: found Infinity, but input should be a finite",
        ),
        ("finetuning.tasks={colla: {length: 64}}", "finetuning.tasks: no task is called 'colla' (did you mean cola?)"),
        ("finetuning.start_from={rtee: mnli}", "finetuning.start_from: no task is called 'rtee' (did you mean rte?)"),
    ],
)
def test_a_misspelt_or_mistyped_override_is_refused(
    paribus: Paribus, project: Path, override: str, message: str
) -> None:
    assert message in refused(paribus("run", "mine", "--scale", "debug", "--set", override))
    assert not (project / "results" / "queue").exists()


def test_an_override_of_one_path_said_twice_is_refused(paribus: Paribus) -> None:
    twice = ("--set", "optimizer.lr=1", "--set", "optimizer.lr=2")
    for verb in (("plan", "mine"), ("table", "mine"), ("compare", "mine:15", "15")):
        assert "--set optimizer.lr: found twice, 1 and 2; expected once" in refused(paribus(*verb, *twice))


def test_without_a_project_an_unknown_name_may_be_known_in_one(paribus: Paribus) -> None:
    Path("paribus.toml").unlink()
    told = " (no paribus.toml here or above: only what ships is known)"
    for argv in (["plan", "zzzz"], ["plan", "maskin"], ["show", "zzzz"], ["table", "zzzz"]):
        assert refused(paribus(*argv)).endswith(told)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base": "bret"}, "no base is called 'bret' (did you mean bert?)"),
        ({"factors": ["masking-rat"]}, "no factor is called 'masking-rat' (did you mean masking-rate?)"),
        ({"levels": {"masking-rate": ["15", "16"]}}, "levels.masking-rate: no level '16'"),
        ({"levels": {"masking-rate": ["15", "15"]}}, "a level is named twice"),
        ({"levels": {"masking-rate": []}}, "levels.masking-rate: found none; there is 15, "),
        ({"factors": ["masking-rate", "masking-rate"]}, "factors: a factor is named twice"),
        ({"tasks": ["order", "order"]}, "tasks: a task is named twice"),
        ({"base_at": {"debgu": "bert"}}, "base_at: no scale is called 'debgu' (did you mean debug?)"),
        ({"levels": {"maskin": ["static"]}}, "levels.maskin: not a factor of this experiment"),
        ({"baseline": {"masking-rate": "30"}}, "baseline.masking-rate: '30' is not among the levels that run: 15"),
        ({"tasks": ["acceptabilty"]}, "no task is called 'acceptabilty' (did you mean acceptability?)"),
        ({"sedes": 3}, "sedes: no such key (did you mean seeds?)"),
        ({"seeds": 0}, "seeds: found 0, but"),
        ({"question": None}, "question: found null, but"),
        ({"set": {"encoder.withd": 3}}, "set: encoder.withd: no such key"),
        ({"set": {"encoder.head": "emd"}}, "encoder: head 'emd' needs relative attention"),
        ({"base": "deberta", "set": {"encoder.position": "absolute"}}, "head 'emd' brings the absolute positions"),
        ({"base": "deberta", "set": {"encoder.layers": 1}}, "head 'emd' needs layers of at least 2, found 1"),
        ({"base": "bert", "set": {"encoder.attention.p2c": False}}, "p2c: no such key for kind 'full' in encoder."),
        ({"set": {"corpus": {"kind": "jsonl", "paths": ["none.jsonl"]}}}, "no file matches 'none.jsonl'"),
    ],
)
def test_what_an_experiment_file_gets_wrong_names_file_and_key(
    paribus: Paribus, project: Path, changes: dict[str, Any], message: str
) -> None:
    declare(**changes)
    error = refused(paribus("run", "mine", "--scale", "debug"))
    assert message in error and "mine.yaml" in error
    assert not (project / "results" / "queue").exists()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("experiments/mine.yaml", b"question: [\n", "mine.yaml, line 2"),
        ("experiments/mine.yaml", b"question: a\nexpect: b\nquestion: c\n", "line 3: key 'question' is given twice"),
        ("experiments/mine.yaml", b"- a list\n", "mine.yaml: expected keys and values, found"),
        ("experiments/mine.yaml", b"", "mine.yaml: expected keys and values, found null"),
        ("experiments/mine.yaml", b"question: \xff\n", "mine.yaml: not UTF-8 (byte 10: 0xff)"),
        ("experiments/masking.yaml", b"question: mine\n", "two experiments are called 'masking'"),
        ("ablations/masking-rate.yaml", b"source: mine\n", "two factors are called 'masking-rate'"),
        ("paribus.toml", b'sotre = "results"\n', "paribus.toml: sotre: no such key (did you mean store?)"),
        ("paribus.toml", b"store = \n", "paribus.toml: not TOML"),
        ("paribus.toml", b"lease_seconds = 0.5\n", "lease_seconds: found 0.5, but input should be greater"),
        ("paribus.toml", b"lease_seconds = inf\n", "lease_seconds: found Infinity, but input should be a finite"),
        ("paribus.toml", b'variants = "mine.py"\n', "mine.py: named as `variants` in paribus.toml"),
        ("results/format.json", b'{"format": 2}', "this store has format 2, this version of paribus reads format 1"),
    ],
)
def test_a_file_that_cannot_be_read_as_what_it_is_is_named(
    paribus: Paribus, project: Path, file: str, content: bytes, message: str
) -> None:
    path = project / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    assert message in refused(paribus("plan", "mine", "--scale", "debug"))


@pytest.mark.parametrize("place", ["experiments/x\udcff.yaml", "data/x\udcff.jsonl", "x\udcff"])
def test_a_file_or_folder_whose_name_is_not_utf_8_is_named(
    paribus: Paribus, project: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    if place.startswith("x"):
        monkeypatch.setenv("PARIBUS_STORE", str(project / place))
    else:
        shutil.copy(project / Path(place).with_stem("mine" if "experiments" in place else "docs"), project / place)
        corpus(corpus={"kind": "jsonl", "paths": ["*.jsonl"]})
    told = refused(paribus("run", "mine", "--scale", "debug"))
    assert place.partition("\udcff")[0] in told and told.endswith(": the name is not UTF-8; rename it")
    assert not (project / "results" / "queue").exists()


def test_a_place_where_nothing_can_be_written_is_named(
    paribus: Paribus, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "paribus.toml: it is there and not empty" in refused(paribus("init", "paribus.toml"))
    assert "paribus.toml/new: cannot be made (Not a directory)" in refused(paribus("init", "paribus.toml/new"))
    monkeypatch.setenv("PARIBUS_STORE", str(project / "paribus.toml"))
    assert "paribus.toml: is no folder" in refused(paribus("run", "mine", "--scale", "debug"))
    monkeypatch.setenv("PARIBUS_STORE", str(project / "paribus.toml" / "results"))
    told = "paribus.toml/results: cannot be made (Not a directory); set PARIBUS_STORE to another folder"
    for argv in (["queue", "mine"], ["run", "mine"], ["publish", "mine"], ["ui"]):
        assert told in refused(paribus(*argv))


def test_a_file_is_written_into_no_folder_that_is_not_there(paribus: Paribus, project: Path) -> None:
    argv = ("report", "mine", "--scale", "debug", "--out", "none/x.html")
    assert "--out none/x.html: cannot be written (No such file or directory)" in refused(paribus(*argv))
    assert not (project / "none").exists()


def test_a_chart_of_tuning_needs_an_experiment_that_tunes(paribus: Paribus) -> None:
    told = refused(paribus("plot", "mine", "--scale", "debug", "--kind", "tuning"))
    assert told == "error: mine@debug: the experiment tunes nothing (it has no `tune`), so nothing to draw"


def test_a_port_in_use_is_told_before_anything_is_started(
    paribus: Paribus, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "execvpe", lambda *_: pytest.fail("started"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = paribus("ui", "--port", port)
    assert f"--port {port}: cannot be listened at (Address already in use); name another" in refused(said)
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("level", "told"),
    [
        (
            {"encoder.head": {"kind": "emd"}},
            "ablations/own.yaml: levels.bad (scale debug, arm bad): encoder: head 'emd' needs relative attention, "
            "{kind: disentangled} with c2p or p2c, found attention {'kind': 'full', 'dropout': 0.1}",
        ),
        (
            {
                "encoder.attention": {"kind": "disentangled", "c2p": False, "p2c": False},
                "encoder.head": {"kind": "emd"},
            },
            "encoder: head 'emd' needs relative attention, {kind: disentangled} with c2p or p2c, found attention",
        ),
        (
            {
                "encoder.attention": {"kind": "disentangled"},
                "encoder.position": {"kind": "absolute"},
                "encoder.head": {"kind": "emd"},
            },
            "encoder: head 'emd' brings the absolute positions, so the input takes none",
        ),
        (
            {"objective.sentence": "nsp"},
            "objective.sentence 'nsp' needs packing.kind segment-pairs or sentence-pairs with negatives "
            "random-document, found {'kind': 'full-sentences'}",
        ),
        (
            {"packing": {"kind": "doc-sentences", "length": 32}, "objective.sentence": "sop"},
            "objective.sentence 'sop' needs packing.kind segment-pairs or sentence-pairs with negatives swapped",
        ),
        (
            {"encoder.position": {"kind": "absolute"}, "encoder.attention.p2c": True},
            "ablations/own.yaml: levels.bad: encoder.attention.p2c: no such key for kind 'full' in encoder.attention",
        ),
        (
            {"tokenizer.kind": "byte-bpe"},
            "tokenizer.vocabulary_size: must be at least 261, 256 bytes and 5 special ids, found 100",
        ),
    ],
)
def test_a_level_that_the_base_cannot_take_is_refused_when_it_is_planned(
    paribus: Paribus, level: dict[str, Any], told: str
) -> None:
    factor = {"source": "mine", "base": "good", "levels": {"good": {"objective.rate": 0.15}, "bad": level}}
    Path("ablations/own.yaml").write_text(yaml.safe_dump(factor, sort_keys=False))
    declare(factors=["own"], levels={})
    line = refused(paribus("plan", "mine", "--scale", "debug"))
    assert told in line and "ablations/own.yaml: levels.bad" in line


def test_a_sequence_longer_than_the_positions_is_refused(paribus: Paribus) -> None:
    declare(base="bert")
    said = paribus("run", "mine", "--scale", "debug", "--set", "packing.length=64")
    assert "packing.length must be at most encoder.position.max_length, found 64 and 32" in refused(said)


def test_a_wrong_flag_is_explained(paribus: Paribus) -> None:
    for argv in (["plan", "mine", "--seeds", "0"], ["run"], ["nope"], ["work", "--workers", "many"]):
        said = paribus(*argv)
        assert said.code == 2 and "Error: " in said.err and "Traceback" not in said.err


# --- what a worker finds: the run fails, `run` says why ---


def truncated() -> None:
    whole = gzip.compress("\n".join(lines(400)).encode())
    Path("data/docs.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    corpus(corpus={"kind": "jsonl", "paths": ["docs.jsonl.gz"]})


def latin1_text() -> None:
    for number in range(4):
        Path(f"data/{number}.txt").write_text(text(number))
    Path("data/2.txt").write_bytes("Déjà vu.".encode("latin-1"))
    corpus(corpus={"kind": "text", "paths": ["*.txt"]})


def latin1_jsonl() -> None:
    Path("data/docs.jsonl").write_bytes("\n".join([*lines(2), '{"text": "Déjà vu."}']).encode("latin-1"))


def one_document_of_text() -> None:
    Path("data/one.txt").write_text(text(0))
    corpus(corpus={"kind": "text", "paths": ["one.txt"]})


def write_lines(content: list[str]) -> Callable[[], None]:
    return lambda: Path("data/docs.jsonl").write_text("\n".join(content)) and None


@pytest.mark.parametrize(
    ("spoil", "message", "finished"),
    [
        (write_lines([]), "docs.jsonl: found 0 documents; train, validation and test are split by document", []),
        (write_lines(lines(1)), "docs.jsonl: found 1 document;", []),
        (one_document_of_text, "one.txt: found 1 document;", []),
        (write_lines([*lines(2), '{"txt": "misspelt"}', *lines(1)]), "line 3: no text in field 'text'", []),
        (write_lines([*lines(2), '{"text": null}']), "line 3: no text in field 'text'", []),
        (write_lines([*lines(2), '{"text": "torn']), "line 3: not JSON", []),
        (latin1_jsonl, "docs.jsonl, line 3: not UTF-8", []),
        (latin1_text, "2.txt: not UTF-8 (byte 1: 0xe9)", []),
        (truncated, "docs.jsonl.gz: cut short or damaged after line", []),
        (
            lambda: corpus(**{"tokenizer.vocabulary_size": 30000}),
            "tokenizer.vocabulary_size: found 30000, but the train documents allow at most",
            ["corpus"],
        ),
        (
            lambda: corpus(**{"objective.masking": {"kind": "static", "duplicates": 100}}),
            "objective.masking.duplicates: found 100, but",
            ["corpus", "vocabulary", "pack"],
        ),
    ],
)
def test_what_is_wrong_with_the_data_is_said_in_one_line(
    paribus: Paribus, project: Path, spoil: Callable[[], None], message: str, finished: list[str]
) -> None:
    spoil()
    assert message in refused(paribus("run", "mine", "--scale", "debug"))
    nothing_half_written(project / "results", *finished)
    assert message in refused(paribus("run", "mine", "--scale", "debug"))  # asked again, it is told again


def test_a_reason_all_runs_share_is_told_once(paribus: Paribus) -> None:
    declare(levels={}, seeds=2)
    Path("data/docs.jsonl").write_text(lines(1)[0])
    said = paribus("run", "mine", "--scale", "debug")
    assert refused(said).count("found 1 document") == said.err.count("found 1 document") == 1


def test_a_device_that_is_not_there_is_refused_and_another_one_may_follow(paribus: Paribus, project: Path) -> None:
    assert "--device abacus: expected auto, cpu, cuda" in refused(
        paribus("run", "mine", "--scale", "debug", "--device", "abacus")
    )
    nothing_half_written(project / "results")
    said = paribus("run", "mine", "--scale", "debug", "--device", "cpu")
    assert said.code == 0, said
    nothing_half_written(project / "results", "corpus", "vocabulary", "pack", "pretrain", "evaluate")


def test_the_same_from_real_processes(project: Path) -> None:
    """As a user sees it: worker, data stages and mirror in processes of their own."""
    write_lines([*lines(2), '{"txt": "misspelt"}'])()
    said = run_cli(["run", "mine", "--scale", "debug"])
    assert "data/docs.jsonl, line 3: no text in field 'text' (the line has txt)" in refused(said)
    nothing_half_written(project / "results")


# --- a user's variants: in processes of their own, where classes that are refused stay no longer than they ---

VARIANT = """
from typing import Literal
from paribus.spec.model import FeedForward

class SquaredRelu(FeedForward):
    {kind}
    width: int

def modules():
    return {{}}
"""


@pytest.mark.parametrize(
    ("kind", "modules", "message"),
    [
        ("pass", "modules", "class SquaredRelu: no kind; expected a line as kind: Literal"),
        ('kind: Literal["gelu"] = "gelu"', "modules", "class SquaredRelu: kind 'gelu' is Gelu's; choose another"),
        ('kind: Literal["squared"] = "squared"', "modules", "modules() has no module for SquaredRelu"),
        ('kind: Literal["squared"] = "squared"', "others", "modules() has no module for SquaredRelu"),
    ],
)
def test_a_variant_that_cannot_be_chosen_or_built_is_told_with_its_file(
    project: Path, kind: str, modules: str, message: str
) -> None:
    Path("paribus.toml").write_text('variants = "variants.py"')
    Path("variants.py").write_text(VARIANT.format(kind=kind).replace("def modules", f"def {modules}"))
    declare(set={**EXPERIMENT["set"], "encoder.feed_forward": {"kind": "squared", "width": 32}})
    for verb in ("plan", "run"):
        assert f"{project}/variants.py: {message}" in refused(run_cli([verb, "mine", "--scale", "debug"]))


# --- disks ---


def run_cli(argv: list[str], before: str = "", **environment: str) -> Said:
    """The command line as a process, after the shell commands `before` in a mount namespace of its own."""
    command = [sys.executable, "-m", "paribus", *argv]
    if before:
        command = ["unshare", "-rm", "sh", "-c", f'{before} && exec "$@"', "sh", *command]
    paths = {"PYTHONPATH": str(PLATFORM), **environment}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **paths})
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A place to mount a small disk; skips where a user may not."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", str(place)]
    if not shutil.which("unshare") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs user namespaces to mount a small disk")
    yield place


def test_a_store_on_a_read_only_disk_can_be_planned_but_not_run(disk: Path) -> None:
    mount = f"mount -t tmpfs -o ro tmpfs {disk}"
    store = str(disk / "results")
    assert run_cli(["plan", "mine", "--scale", "debug"], mount, PARIBUS_STORE=store).code == 0
    error = refused(run_cli(["run", "mine", "--scale", "debug"], mount, PARIBUS_STORE=store))
    assert store in error and "cannot be written (Read-only file system); set PARIBUS_STORE" in error


def test_a_store_on_a_full_disk_says_so(disk: Path) -> None:
    mount = f"mount -t tmpfs -o size=16k tmpfs {disk}"
    said = run_cli(["run", "mine", "--scale", "debug"], mount, PARIBUS_STORE=str(disk))
    assert f"{disk}: no space left on the disk; free some and start again, nothing is lost" in refused(said)
