"""A store of one's own, stages to compute in it, and processes that can be killed or stopped on the way."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from paribus.plan.stages import Stage, make
from paribus.spec.data import Sotu
from paribus.store.store import Store

Spawn = Callable[..., "subprocess.Popen[str]"]

# What every process of these tests begins with: the store, one stage, and a word to the test at each step.
PREAMBLE = """
import sys
from pathlib import Path
from paribus.errors import LostLease
from paribus.plan.stages import make
from paribus.spec.data import Sotu
from paribus.store.store import Store

store = Store(Path(sys.argv[1]), lease_seconds=float(sys.argv[2]))
stage = make("corpus", Sotu(), {})

def say(word):
    print(word, flush=True)
    return input()

"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "store", lease_seconds=0.4)
    found.prepare()
    return found


@pytest.fixture
def stage() -> Stage:
    """The stage that PREAMBLE calls `stage`."""
    return make("corpus", Sotu(), {})


@pytest.fixture
def spawn(store: Store) -> Iterator[Spawn]:
    """Start a process that runs PREAMBLE and the script given; whatever is left of it dies with the test."""
    with ExitStack() as stack:

        def start(script: str) -> "subprocess.Popen[str]":
            command = [sys.executable, "-c", PREAMBLE + script, str(store.root), str(store.lease_seconds)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process

        yield start
