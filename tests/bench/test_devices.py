"""The benchmark of several devices measures real pretrainings."""

import pytest

from paribus.bench.devices import measure, random_rows
from paribus.data.vocabulary import CLS, FIRST_ORDINARY, SEP
from paribus.spec.run import Runtime


def test_random_rows_are_like_text_in_their_frequencies_only() -> None:
    rows = random_rows(64, 512)
    inside = rows.tokens[:, 1:-1]
    assert (rows.tokens[:, 0] == CLS).all() and (rows.tokens[:, -1] == SEP).all()
    assert inside.min() == FIRST_ORDINARY and 500 < inside.max() < 512 and (rows.lengths == 64).all()
    assert 5 < (inside == FIRST_ORDINARY).sum() / (inside == FIRST_ORDINARY + 9).sum() < 11


def test_one_device_and_two_are_timed_on_the_same_batches(capsys: pytest.CaptureFixture[str]) -> None:
    measure("debug", [1, 2], 10, Runtime(device="cpu", micro_batch_rows=8))
    head, one, two = capsys.readouterr().out.splitlines()
    assert head.startswith("masking@debug on cpu: 10 steps of 1,024 tokens, rows of 32, fp32")
    assert one.startswith("1 x: ") and " tokens/s, loss 6.2" in one
    apart = float(two.partition("losses at most ")[2].split()[0])
    assert two.startswith("2 x ddp: ") and "% of linear" in two and apart < 0.05
