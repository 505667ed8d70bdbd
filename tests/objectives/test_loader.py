"""From packed rows to optimizer steps."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from paribus.data.document import Document
from paribus.data.packing import CONTINUES, Rows, documents_of, load, pack
from paribus.data.vocabulary import MASK, PAD, SEP, UNK, Vocabulary
from paribus.errors import DataError
from paribus.nn.build import build_encoder
from paribus.nn.init import initialise
from paribus.nn.unpadded import Unpadded
from paribus.objectives.batch import IGNORED
from paribus.objectives.loader import Steps, make_micro
from paribus.plan.stages import Pretraining
from paribus.spec.data import FullSentences
from paribus.spec.load import build
from paribus.spec.model import Encoder
from paribus.spec.objective import Mlm

Make = Callable[..., Pretraining]
SIZE = 512


def objective(**fields: object) -> dict[str, object]:
    return {"kind": "mlm", "masking": "dynamic", **fields}


@pytest.fixture
def rows(packed: Path) -> Rows:
    return load(packed, "train")


def test_a_step_does_not_depend_on_where_one_begins(rows: Rows, pretraining: Make) -> None:
    steps = Steps(rows, pretraining(), SIZE, 0, None)
    whole = list(steps)
    assert len(whole) == 10
    steps.first = 6
    for late, early in zip(steps, whole[6:], strict=True):
        assert torch.equal(late.micros[0].tokens_BT, early.micros[0].tokens_BT)
        assert torch.equal(late.micros[0].places_M, early.micros[0].places_M)


@pytest.mark.parametrize("micro_rows", [1, 3, 1000])
def test_micro_batches_are_the_step_cut_into_pieces(rows: Rows, pretraining: Make, micro_rows: int) -> None:
    whole = Steps(rows, pretraining(), SIZE, 0, None).step(3)
    cut = Steps(rows, pretraining(), SIZE, 0, micro_rows).step(3)
    assert (cut.predicted, cut.rows, cut.tokens) == (whole.predicted, whole.rows, whole.tokens)
    assert all(len(micro.tokens_BT) <= micro_rows for micro in cut.micros)
    assert sum(len(micro.places_M) for micro in cut.micros) == whole.predicted
    targets = torch.cat([micro.targets_M for micro in cut.micros])
    assert torch.equal(targets, whole.micros[0].targets_M)
    tokens = torch.cat([micro.tokens_BT[micro.tokens_BT != PAD] for micro in cut.micros])
    assert torch.equal(tokens, whole.micros[0].tokens_BT[whole.micros[0].tokens_BT != PAD])


def test_targets_are_the_tokens_that_stood_at_the_places(rows: Rows, pretraining: Make) -> None:
    replaced = objective(replacement={"mask": 1.0, "random": 0.0})
    steps = Steps(rows, pretraining(objective=replaced), SIZE, 0, None)
    (micro,) = steps.step(0).micros
    filled = micro.tokens_BT.flatten().clone()
    assert (filled[micro.places_M] == MASK).all()
    filled[micro.places_M] = micro.targets_M
    numbers, _ = steps._batches.rows(0)
    width = micro.tokens_BT.shape[1]
    assert torch.equal(filled.view(-1, width), torch.from_numpy(rows.tokens[numbers][:, :width].astype(np.int64)))


def test_rows_are_cut_to_the_longest_in_eights_and_not_beyond_their_length() -> None:
    lengths = np.array([3, 9, 20], dtype=np.int32)
    tokens = np.where(np.arange(20)[None, :] < lengths[:, None], 7, PAD).astype(np.uint16)
    nothing = np.zeros((3, 20), dtype=bool)
    rows = Rows(tokens, tokens.astype(np.uint8), lengths, np.zeros(3, np.int32), np.zeros(3, np.int8))
    for numbers, width, padded in (([0], 8, True), ([0, 1], 16, True), ([0, 2], 20, True), ([2], 20, False)):
        micro = make_micro(rows, np.array(numbers), tokens[numbers], tokens[numbers], nothing[numbers])
        assert micro.tokens_BT.shape[1] == width
        assert (micro.padding_BT is not None) == padded
        if micro.padding_BT is not None:
            assert torch.equal(micro.padding_BT, micro.tokens_BT == PAD)


def test_the_second_segment_is_marked_up_to_the_end_of_its_row() -> None:
    lengths, second = np.array([6, 8], dtype=np.int32), np.array([3, 0], dtype=np.int32)
    tokens = np.where(np.arange(8)[None, :] < lengths[:, None], 7, PAD).astype(np.uint16)
    rows = Rows(tokens, tokens.astype(np.uint8), lengths, second, np.array([1, 0], np.int8))
    numbers, nothing = np.array([0, 1]), np.zeros((2, 8), dtype=bool)
    micro = make_micro(rows, numbers, tokens, tokens, nothing)
    assert micro.segments_BT is not None and micro.labels_B is None
    assert micro.segments_BT.tolist() == [[0, 0, 0, 1, 1, 1, 0, 0], [0] * 8]
    alone = make_micro(rows, np.array([1]), tokens[1:], tokens[1:], nothing[1:])
    assert alone.segments_BT is None
    sop = build(Mlm, objective(sentence="sop"), "objective")
    labelled = make_micro(rows, numbers, tokens, tokens, nothing, sop)
    assert labelled.labels_B is not None and labelled.labels_B.tolist() == [1, 0]


def test_static_masks_come_again_and_dynamic_ones_do_not(rows: Rows, pretraining: Make) -> None:
    tokens = int(rows.lengths.sum())
    budget = {"train_tokens": 4 * tokens, "batch_tokens": tokens}

    def masks(masking: str) -> list[dict[int, bytes]]:
        steps = Steps(rows, pretraining(budget=budget, objective=objective(masking=masking)), SIZE, 0, 1)
        return [
            dict(
                zip(
                    steps._batches.rows(epoch)[0].tolist(),
                    (m.tokens_BT.numpy().tobytes() for m in s.micros),
                    strict=True,
                )
            )
            for epoch, s in enumerate(steps)
        ]

    static, dynamic = masks("static"), masks("dynamic")
    assert static[0] == static[1] == static[2] == static[3] == dynamic[0]
    # A row of a few tokens may by chance draw the same again.
    assert sum(dynamic[0][row] != dynamic[1][row] for row in dynamic[0]) > 0.9 * len(rows)


@pytest.mark.parametrize("masking", ["static", "dynamic"])
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_forty_passes_show_ten_static_or_forty_dynamic_masks_whoever_draws_them(
    rows: Rows, pretraining: Make, masking: str, workers: int
) -> None:
    tokens = int(rows.lengths.sum())
    # At 30 % no row of 30 tokens draws one mask twice by chance.
    asked = objective(masking=masking, rate=0.3)
    spec = pretraining(budget={"train_tokens": 40 * tokens, "batch_tokens": tokens}, objective=asked)
    # As the processes of a data loader would: each its own iterator, every so many steps.
    drawers = [Steps(rows, spec, SIZE, 0, 1) for _ in range(workers)]
    seen: dict[int, list[bytes]] = {}
    for number in range(40):
        drawer = drawers[number % workers]
        for row, micro in zip(drawer._batches.rows(number)[0].tolist(), drawer.step(number).micros, strict=True):
            seen.setdefault(row, []).append(micro.tokens_BT.numpy().tobytes() + micro.places_M.numpy().tobytes())
    full = [masks for row, masks in seen.items() if rows.lengths[row] >= 30]  # a short row has few masks
    assert len(full) > 40 and all(len(masks) == 40 for masks in seen.values())
    for masks in full:
        if masking == "static":
            assert masks == masks[:10] * 4 and len(set(masks)) == 10
        else:
            assert len(set(masks)) == 40
    resumed = Steps(rows, spec, SIZE, 0, 1)
    resumed.first = 38
    last = [m.tokens_BT.numpy().tobytes() + m.places_M.numpy().tobytes() for step in resumed for m in step.micros]
    assert sorted(last) == sorted(mask for masks in seen.values() for mask in masks[38:])


def test_masks_that_would_be_seen_too_rarely_are_refused(rows: Rows, pretraining: Make) -> None:
    masking = {"kind": "static", "duplicates": 50}
    long = {"train_tokens": 100 * int(rows.lengths.sum()), "batch_tokens": 1024}
    with pytest.raises(DataError, match="objective.masking.duplicates: found 50"):
        Steps(rows, pretraining(objective=objective(masking=masking), budget=long), SIZE, 0, None)


def test_a_step_chooses_whole_words_by_the_flags_of_its_rows(rows: Rows, pretraining: Make) -> None:
    steps = Steps(rows, pretraining(objective=objective(unit="whole-word")), SIZE, 0, None)
    numbers, _ = steps._batches.rows(0)
    (micro,) = steps.step(0).micros
    width = micro.tokens_BT.shape[1]
    chosen = np.zeros(micro.tokens_BT.numel(), dtype=bool)
    chosen[micro.places_M.numpy()] = True
    chosen = chosen.reshape(-1, width)
    tokens, flags = rows.tokens[numbers][:, :width], rows.flags[numbers][:, :width]
    # A token that goes on with the word before it is chosen if and only if that one is.
    inside = (flags[:, 1:] & CONTINUES > 0) & (tokens[:, :-1] >= UNK)
    assert inside.any() and (chosen[:, 1:] == chosen[:, :-1])[inside].all()


def test_arms_of_different_units_see_the_same_rows(rows: Rows, pretraining: Make) -> None:
    arms = [Steps(rows, pretraining(objective=objective(unit=unit)), SIZE, 0, None) for unit in ("token", "span")]
    for step in range(3):
        one, other = (arm.step(step) for arm in arms)
        assert (one.rows, one.tokens) == (other.rows, other.tokens)
        assert other.predicted == pytest.approx(one.predicted, rel=0.1) and other.predicted <= one.predicted
        assert not torch.equal(one.micros[0].places_M, other.micros[0].places_M)


@pytest.fixture
def isolated(documents: list[Document], vocabulary: Vocabulary) -> Rows:
    """Rows of short documents, several a row."""
    short = [Document(f"{d.id}{n}", ((s[:24],),)) for d in documents[:3] for n, s in enumerate(d.sentences[:12])]
    return pack(FullSentences(length=32, isolation="document"), short, vocabulary, None)


@torch.no_grad()
@pytest.mark.parametrize("position", ["absolute", "relative-bias"])
def test_an_isolated_token_sees_its_own_document_and_no_other(
    isolated: Rows, encoder: Callable[..., Encoder], position: str
) -> None:
    module = build_encoder(encoder(position=position), SIZE).eval()
    initialise(module, 0, 0.5)
    found = 0
    for row in range(8):
        number = np.array([row])
        documents = documents_of(isolated.flags[number], isolated.lengths[number])[0]
        tokens = isolated.tokens[number]
        micro = make_micro(isolated, number, tokens, tokens, np.zeros_like(tokens, dtype=bool))
        ids = micro.tokens_BT
        before = module(ids, micro.segments_BT, micro.unseen)
        assert before.isfinite().all()
        for document in sorted(set(documents.tolist()) - {-1}):
            inside = torch.from_numpy(documents[: ids.shape[1]] == document)
            after = module(torch.where(inside & (ids > UNK), ids.flip(0) % 7 + 400, ids), None, micro.unseen)
            changed = (after != before).any(-1)[0]
            assert changed[inside].any() and not changed[~inside].any()
            found += 1
    assert found > 16


def test_documents_begin_after_their_separator_and_cls_goes_with_the_first(isolated: Rows) -> None:
    documents = documents_of(isolated.flags, isolated.lengths)
    assert (documents[:, 0] == documents[:, 1]).all()
    assert ((documents == -1) == (isolated.tokens == PAD)).all()
    begins = np.diff(documents, axis=1) == 1
    assert (
        begins.any() and (isolated.tokens[:, :-1][begins] == SEP).all() and (isolated.tokens[:, 1:][begins] > SEP).all()
    )


def test_rows_that_are_not_isolated_have_no_mask_of_their_own(
    rows: Rows, pretraining: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paribus.nn.unpadded.MOST", 2.0)
    (micro,) = Steps(rows, pretraining(), SIZE, 0, None).step(0).micros
    assert micro.blocked_BTT is None and isinstance(micro.unseen, Unpadded)
    assert micro.unseen.unseen is micro.padding_BT


@pytest.mark.parametrize("kind", ["mlm", "rtd"])
def test_units_that_exceed_what_is_asked_of_a_row_keep_all_their_places_in_fixed_shapes(
    rows: Rows, pretraining: Make, kind: str
) -> None:
    unit = {"kind": "n-gram", "longest": 4, "truncation": "left-to-right"}
    spec = pretraining(objective={"kind": kind, "masking": "dynamic", "unit": unit})
    beyond = 0
    for number in range(spec.budget.steps):
        whole, fixed = (Steps(rows, spec, SIZE, 0, 4, fixed=how).step(number) for how in (False, True))
        for one, other in zip(whole.micros, fixed.micros, strict=True):
            asked_M = other.targets_M != IGNORED
            assert sorted(one.targets_M.tolist()) == sorted(other.targets_M[asked_M].tolist())
            beyond += len(other.targets_M) > len(other.tokens_BT) * round(0.15 * other.tokens_BT.shape[1])
    assert beyond


def test_a_random_token_that_is_padding_by_chance_is_a_token_still(rows: Rows, pretraining: Make) -> None:
    replacement = {"mask": 0.0, "random": 1.0, "pool": "all"}
    spec = pretraining(objective=objective(replacement=replacement, rate=0.9))
    by_chance = 0
    for number in range(spec.budget.steps):
        for micro in Steps(rows, spec, SIZE, 0, None).step(number).micros:
            assert micro.padding_BT is not None and not micro.padding_BT.flatten()[micro.places_M].any()
            by_chance += int((micro.tokens_BT.flatten()[micro.places_M] == PAD).sum())
    assert by_chance
