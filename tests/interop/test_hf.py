"""Folders of transformers: a run's encoder and tokenizer written and loaded there, and a checkpoint taken as an arm."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paribus.cli import app
from paribus.data import vocabulary as vocabularies
from paribus.data.corpus import texts
from paribus.data.document import Document
from paribus.data.vocabulary import Vocabulary
from paribus.errors import DataError, SpecError
from paribus.execute import Context, execute
from paribus.interop.hf import bring, bring_tokenizer, export, read_config, write_factor
from paribus.jobs.queue import Queue
from paribus.jobs.runs import remember
from paribus.jobs.worker import work
from paribus.nn.build import build_encoder, build_head
from paribus.nn.init import initialise
from paribus.objectives.module import part
from paribus.objectives.pretrain import build_objective
from paribus.plan.plan import plan
from paribus.plan.stages import Pretraining
from paribus.project import Project, find
from paribus.spec.data import Imported, Sotu
from paribus.spec.load import apply, build
from paribus.spec.run import Run, Runtime
from paribus.store.store import Store
from paribus.tables.experiment import experiment_table
from paribus.tables.table import Cell

transformers = pytest.importorskip("transformers", reason="needs the extra paribus[hf]")

CPU = Runtime(device="cpu")
SMALL: dict[str, Any] = {
    "tokenizer.vocabulary_size": 512,
    "packing.length": 32,
    "encoder.layers": 2,
    "encoder.width": 32,
    "encoder.heads": 2,
    "encoder.feed_forward.width": 64,
    "finetuning.length": 32,
}
ABSOLUTE = {"encoder.position.max_length": 40}
TEXTS = ["The Congress of the United States, 1850!", "a", "Peace; ünd  naïve «war»", "Fellow-citizens of the Senate:\n"]

Finished = Callable[..., tuple[Run, Path, Path]]


@pytest.fixture(scope="module")
def finished(root: Path, documents: list[Document], tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run of a shipped base, made small, with a trained tokenizer and random weights: finished(base, path=value)."""

    def make(base: str, **changes: Any) -> tuple[Run, Path, Path]:
        project, folder = find(root), tmp_path_factory.mktemp("run")
        data = project.base(base).model_dump()
        apply(data, {**SMALL, **{key.replace("__", "."): value for key, value in changes.items()}}, base)
        run = build(Run, data, base)
        (folder / "vocabulary").mkdir()
        sentences = [sentence for document in documents for sentence in document.sentences]
        vocabularies.make(run.tokenizer, sentences, folder / "vocabulary")
        names = ("objective", "encoder", "optimizer", "schedule", "budget", "precision")
        module = build_objective(Pretraining(**{name: getattr(run, name) for name in names}), 512, 0)
        initialise(module, 0, 0.2)
        for name, weights in module.files().items():
            save_file(weights, folder / f"{name}.safetensors")
        return run, folder, folder / "vocabulary"

    return make


def loaded(folder: Path, kind: str) -> Any:
    """The model that transformers finds in a folder, without a tensor too few or too many."""
    model, said = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    assert not any(said.values()), said
    return model.eval()


def tokens(segments: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    found = torch.randint(5, 512, (2, 31), generator=torch.Generator().manual_seed(0))
    padding = torch.arange(31) >= torch.tensor([[31], [20]])
    kinds = (torch.arange(31) > 9).long().expand(2, 31) * (segments > 1)
    return found.masked_fill(padding, 0), kinds, padding


MLM = {
    "BERT": ("bert", "BertForMaskedLM", ABSOLUTE),
    "RoBERTa": ("roberta", "RobertaForMaskedLM", ABSOLUTE),
    "ELECTRA's generator": ("electra", "ElectraForMaskedLM", ABSOLUTE),
    "an encoder that predicts what a generator replaced": (
        "electra",
        "BertForMaskedLM",
        {**ABSOLUTE, "objective.discriminator": "replace-mlm", "objective.discriminator_weight": 1.0},
    ),
    "DeBERTa without its mask decoder": ("deberta", "DebertaForMaskedLM", {"encoder.head": {"kind": "bert"}}),
    "DeBERTa v3 without its mask decoder": (
        "deberta-v3",
        "DebertaV2ForMaskedLM",
        {"encoder.head": {"kind": "bert"}, "encoder.attention.max_distance": 8, "encoder.attention.buckets": 4},
    ),
}


@pytest.mark.parametrize("case", MLM)
@torch.no_grad()
def test_an_exported_run_gives_the_same_logits(finished: Finished, tmp_path: Path, case: str) -> None:
    base, architecture, changes = MLM[case]
    run, pretrained, vocabulary = finished(base, **changes)
    predicts = "objective.discriminator" in changes
    generator = base in ("electra", "deberta-v3") and not predicts
    differs = export(run, pretrained, vocabulary, tmp_path / "out", generator=generator)
    assert len(differs) == (base == "deberta-v3")  # which has a tokenizer of sentencepiece
    assert json.loads((tmp_path / "out/config.json").read_text())["architectures"] == [architecture]
    model = loaded(tmp_path / "out", "AutoModelForMaskedLM")
    encoder = run.objective.generator.encoder(run.encoder) if generator else run.encoder  # type: ignore[attr-defined]
    ours = build_encoder(encoder, 512).eval()
    head = build_head(encoder, ours).eval()
    ours.load_state_dict(load_file(pretrained / f"{'generator' if generator else 'encoder'}.safetensors"))
    name = "generator_head" if generator else "vocabulary_head" if predicts else "head"
    head.load_state_dict(part(name, load_file(pretrained / "heads.safetensors")))
    ids, segments, padding = tokens(encoder.segments)
    expected = head(ours.states(ids, segments, padding), torch.arange(ids.numel())).view(2, 31, 512)
    found = model(ids, attention_mask=(~padding).long(), token_type_ids=segments).logits
    assert expected.std() > 0.3
    assert torch.allclose(found[~padding], expected[~padding], rtol=0, atol=1e-5)


@torch.no_grad()
def test_an_exported_discriminator_says_the_same(finished: Finished, tmp_path: Path) -> None:
    run, pretrained, vocabulary = finished("electra", **ABSOLUTE)
    assert export(run, pretrained, vocabulary, tmp_path / "out") == []
    model = loaded(tmp_path / "out", "ElectraForPreTraining")
    pretraining = Pretraining(**{name: getattr(run, name) for name in Pretraining.model_fields})
    ours = build_objective(pretraining, 512, 0).model.eval()  # type: ignore[union-attr]
    ours.encoder.load_state_dict(load_file(pretrained / "encoder.safetensors"))
    ours.head.load_state_dict(part("head", load_file(pretrained / "heads.safetensors")))
    ids, segments, padding = tokens(2)
    expected = ours.detect(ids, segments, padding)
    found = model(ids, attention_mask=(~padding).long(), token_type_ids=segments).logits
    assert torch.allclose(found[~padding], expected[~padding], rtol=0, atol=1e-5)


@torch.no_grad()
def test_next_sentence_prediction_goes_along_with_bert(finished: Finished, tmp_path: Path) -> None:
    pairs = {"packing": {"kind": "segment-pairs", "length": 32}, "objective.sentence": "nsp"}
    run, pretrained, vocabulary = finished("bert", **ABSOLUTE, **pairs)
    assert export(run, pretrained, vocabulary, tmp_path / "out") == []
    model = loaded(tmp_path / "out", "BertForPreTraining")
    pretraining = Pretraining(**{name: getattr(run, name) for name in Pretraining.model_fields})
    ours = build_objective(pretraining, 512, 0).eval()
    ours.encoder.load_state_dict(load_file(pretrained / "encoder.safetensors"))  # type: ignore[union-attr]
    head = ours.sentence_head
    head.load_state_dict(part("sentence_head", load_file(pretrained / "heads.safetensors")))  # type: ignore[union-attr]
    ids, segments, padding = tokens(2)
    found = model(ids, attention_mask=(~padding).long(), token_type_ids=segments).seq_relationship_logits
    expected = head(ours.encoder(ids, segments, padding))  # type: ignore[union-attr,operator]
    assert torch.allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("base", ["deberta", "deberta-v3"])
@torch.no_grad()
def test_an_encoder_goes_alone_where_transformers_has_no_head_like_ours(
    finished: Finished, tmp_path: Path, base: str
) -> None:
    run, pretrained, vocabulary = finished(base, encoder__layers=4)
    assert any("has no" in sentence for sentence in export(run, pretrained, vocabulary, tmp_path / "out"))
    model = loaded(tmp_path / "out", "AutoModel")
    ours = build_encoder(run.encoder, 512).eval()
    ours.load_state_dict(load_file(pretrained / "encoder.safetensors"))
    ids, _, padding = tokens(0)
    found = model(ids, attention_mask=(~padding).long()).last_hidden_state
    assert torch.allclose(found[~padding], ours(ids, None, padding)[~padding], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "kind", ["wordpiece", "bpe", "byte-bpe", "unigram", "sentencepiece-bpe", "sentencepiece-unigram"]
)
def test_an_exported_tokenizer_gives_the_same_ids(
    finished: Finished, tmp_path: Path, documents: list[Document], kind: str
) -> None:
    for segments in (1, 2):
        changes = {**ABSOLUTE, "tokenizer": {"kind": kind, "vocabulary_size": 512}, "encoder.segments": segments}
        run, pretrained, vocabulary = finished("bert", **changes)
        export(run, pretrained, vocabulary, tmp_path / str(segments))
        theirs, ours = (
            transformers.AutoTokenizer.from_pretrained(tmp_path / str(segments)),
            vocabularies.load(vocabulary),
        )
        sentences = [*TEXTS, *(sentence for document in documents for sentence in document.sentences)]
        found = theirs(sentences)["input_ids"]
        assert found == [[1, *encoded.ids, 2] for encoded in ours.encode_all(sentences)]
        first, second = (ours.encode(text).ids for text in TEXTS[:2])
        pair = theirs(*TEXTS[:2])
        assert pair["input_ids"] == [1, *first, 2, *second, 2]
        if segments == 2:
            assert pair["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
        assert (theirs.pad_token_id, theirs.mask_token_id, theirs.unk_token_id) == (0, 3, 4)


def test_what_cannot_be_written_is_refused_before_anything_is(finished: Finished, tmp_path: Path) -> None:
    run, pretrained, vocabulary = finished("bert-relative")
    with pytest.raises(DataError, match="encoder.norm.kind: 'pre' has no counterpart"):
        export(run, pretrained, vocabulary, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    run, pretrained, vocabulary = finished("bert", **ABSOLUTE)
    with pytest.raises(DataError, match="--generator: the objective is 'mlm', which has none"):
        export(run, pretrained, vocabulary, tmp_path / "out", generator=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("")
    with pytest.raises(DataError, match="mine.txt: it is there and not empty"):
        export(run, pretrained, vocabulary, tmp_path / "full" / "mine.txt")
    with pytest.raises(DataError, match="it is there and not empty"):
        export(run, pretrained, vocabulary, tmp_path / "full")


def test_without_transformers_one_line_says_what_to_install(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, pretrained, vocabulary = finished("bert", **ABSOLUTE)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(DataError, match=r"pip install 'paribus\[hf\]'"):
        export(run, pretrained, vocabulary, tmp_path / "out")


# --- import ----------------------------------------------------------------------------------------------------------


def checkpoint(folder: Path, vocabulary: Vocabulary, family: str, kind: str, **changes: Any) -> Any:
    """A random model of transformers with a tokenizer whose special ids are those of RoBERTa; more rows than ids."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    pieces = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", *vocabulary.pieces[5:], "[MASK]"]
    backend = Tokenizer(models.WordPiece({piece: id for id, piece in enumerate(pieces)}, unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "cls", "sep", "mask", "unk")}
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(folder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    config = transformers.AutoConfig.for_model(
        family, **{**sizes, "vocab_size": len(pieces) + 3, "pad_token_id": 1, "max_position_embeddings": 40, **changes}
    )
    model = getattr(transformers, kind).from_config(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # which would start from 0
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    model.save_pretrained(folder)
    return model


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project of the test's own, whose data stages need no process of theirs."""
    monkeypatch.setattr("paribus.execute.DATA", {})
    (tmp_path / "paribus.toml").write_text("")
    (tmp_path / "data").mkdir()
    return find(tmp_path)


EXPERIMENT = """
question: "?"
expect: "?"
base: bert
factors: [theirs]
seeds: 2
tasks: [short, pairs]
set:
  corpus: {kind: jsonl, paths: [short.jsonl]}
  packing.train_tokens: 900
  budget: {train_tokens: 2048, batch_tokens: 1024}
  finetuning.seeds: 1
"""
TASK = """
kind: sentence
source: my own
data: {kind: built, builder: acceptability, train: 48, dev: 16}
labels: ["0", "1"]
metrics: [mcc]
"""
PAIRS = """
kind: minimal-pair
source: my own
data: {kind: built, builder: minimal-pairs, dev: 20}
"""


def taken(project: Project, folder: Path) -> Project:
    """The project with an experiment on the checkpoint in `folder`."""
    write_factor(project, folder, "theirs")
    speeches = sorted(texts(Sotu(), []), key=len)[:10]
    paragraphs = [paragraph for speech in speeches for paragraph in speech.split("\n\n")]
    lines = (json.dumps({"text": "\n\n".join(paragraphs[at : at + 4])}) for at in range(0, len(paragraphs), 4))
    (project.data / "short.jsonl").write_text("".join(line + "\n" for line in lines))
    for name in ("experiments", "tasks"):
        (project.root / name).mkdir()
    (project.root / "tasks" / "short.yaml").write_text(TASK)
    (project.root / "tasks" / "pairs.yaml").write_text(PAIRS)
    (project.root / "experiments" / "mine.yaml").write_text(EXPERIMENT)
    return find(project.root)


def test_a_checkpoint_is_an_arm_from_queue_to_table(project: Project, vocabulary: Vocabulary) -> None:
    model = checkpoint(project.data / "theirs", vocabulary, "roberta", "AutoModelForMaskedLM", type_vocab_size=1)
    project = taken(project, project.data / "theirs")
    planned = plan(project, "mine", "debug")
    store = Store(project.store)
    store.prepare()
    for run in planned.runs:
        execute(Context(project, store, CPU, run.arm.run), run.stages)
    first, second = (run for run in planned.runs if run.arm.label == "imported")
    assert first.pretrained == second.pretrained and first.pretrained.kind == "import" and first.key != second.key

    table = experiment_table(planned, store)
    rows = {row.key: row for row in table.rows}
    assert all(cell is not None and cell.difference is None for cell in rows["imported"].cells)
    notes = " ".join(table.notes)
    assert planned.arms[1].run.pretrained and planned.arms[1].run.pretrained.sha256
    assert f"of theirs, sha256 {planned.arms[1].run.pretrained.sha256[:16]}" in notes
    assert "so no difference between them is shown" in notes
    assert rows["imported"].cells[-1] == Cell("✗ origin")

    words = vocabularies.load(store.verified(first.pretrained.inputs["vocabulary"]))
    weights = load_file(store.verified(first.pretrained.key) / "encoder.safetensors")
    ours = build_encoder(first.arm.run.encoder, len(words)).eval()
    ours.load_state_dict(weights)
    head = build_head(first.arm.run.encoder, ours).eval()
    head.load_state_dict(part("head", load_file(store.verified(first.pretrained.key) / "heads.safetensors")))
    folder = store.verified(first.pretrained.inputs["vocabulary"])
    order = json.loads((folder / "vocabulary.json").read_text())["ids"]
    theirs = transformers.AutoTokenizer.from_pretrained(project.data / "theirs")
    for text in TEXTS:
        their_ids = theirs(text, add_special_tokens=False)["input_ids"]
        our_ids = words.encode(text).ids
        assert [words.pieces[id] for id in our_ids] == theirs.convert_ids_to_tokens(their_ids)
        with torch.no_grad():
            expected = model(torch.tensor([[0, *their_ids, 2]]), output_hidden_states=True)
            states = ours.states(torch.tensor([[1, *our_ids, 2]]))
            logits = head(states, torch.arange(len(our_ids) + 2))
            assert torch.allclose(states.last_BTD, expected.hidden_states[-1], rtol=0, atol=1e-5)
            assert torch.allclose(logits, expected.logits[0, :, order], rtol=0, atol=1e-5)


def test_an_encoder_without_a_vocabulary_head_is_fine_tuned_all_the_same(
    project: Project, vocabulary: Vocabulary
) -> None:
    checkpoint(project.data / "theirs", vocabulary, "electra", "AutoModelForPreTraining", embedding_size=16)
    project = taken(project, project.data / "theirs")
    planned = plan(project, "mine", "debug", 1)
    run = next(run for run in planned.runs if run.arm.label == "imported")
    store = Store(project.store)
    store.prepare()
    remember(store, planned)
    queue = Queue(store, planned.name)
    queue.add([run])
    work(project, store, [planned.name], CPU)
    assert [entry.status for entry in queue.entries()] == ["done"]
    assert not store.rows(run.stage("evaluate").key) and not store.rows(run.stage("minimal-pairs").key)
    notes = experiment_table(plan(project, "mine", "debug", 1), store).notes
    assert any(note.startswith("No held-out loss and no score of pairs of imported: ") for note in notes)
    assert {row["split"] for row in store.rows(run.stage("finetune").key)} == {"select", "dev"}


def test_a_checkpoint_that_changed_since_is_refused_when_planning(project: Project, vocabulary: Vocabulary) -> None:
    folder = project.data / "theirs"
    checkpoint(folder, vocabulary, "bert", "AutoModelForMaskedLM")
    project = taken(project, folder)
    assert plan(project, "mine", "debug").runs
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-5}))
    with pytest.raises(DataError, match="pretrained: sha256 is .* the files have changed"):
        plan(find(project.root), "mine", "debug")
    (folder / "config.json").unlink()
    with pytest.raises(DataError, match=r"pretrained.path: .*config.json: no such file"):
        plan(find(project.root), "mine", "debug")


def test_an_import_needs_its_own_tokenizer_and_masked_tokens(project: Project, vocabulary: Vocabulary) -> None:
    checkpoint(project.data / "theirs", vocabulary, "bert", "AutoModelForMaskedLM")
    project = taken(project, project.data / "theirs")
    run = plan(project, "mine", "debug").arms[1].run
    data = run.model_dump()
    with pytest.raises(SpecError, match="pretrained needs the checkpoint's own tokenizer"):
        build(Run, {**data, "tokenizer": {"kind": "wordpiece", "vocabulary_size": 512}}, "x")
    with pytest.raises(SpecError, match="pretrained needs objective"):
        build(Run, {**data, "objective": {**data["objective"], "sentence": "nsp"}}, "x")


def test_an_import_is_not_tuned(project: Project, vocabulary: Vocabulary) -> None:
    checkpoint(project.data / "theirs", vocabulary, "bert", "AutoModelForMaskedLM")
    project = taken(project, project.data / "theirs")
    path = project.root / "experiments" / "mine.yaml"
    path.write_text(path.read_text() + "tune: {path: optimizer.lr, low: 1e-4, high: 1e-3, trials: 2}\n")
    with pytest.raises(SpecError, match="arm 'imported' is imported, not pretrained"):
        plan(find(project.root), "mine", "debug")


def test_a_checkpoint_with_too_few_rows_or_a_missing_token_is_refused(
    project: Project, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    folder = project.data / "theirs"
    checkpoint(folder, vocabulary, "bert", "AutoModelForMaskedLM")
    asked = Imported(path="theirs", vocabulary_size=100)
    with pytest.raises(DataError, match="its tokenizer has 512 ids, its config.json 100"):
        bring_tokenizer(asked, folder, tmp_path)
    told = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in told.items() if k != "mask_token"}))
    with pytest.raises(DataError, match="has no mask_token of its own"):
        bring_tokenizer(asked, folder, tmp_path)


@pytest.mark.parametrize("layout", ["vocab.txt", "vocab.json and merges.txt", "spm.model"])
def test_a_tokenizer_is_read_from_the_files_that_public_checkpoints_have(
    documents: list[Document], vocabulary: Vocabulary, tmp_path: Path, layout: str
) -> None:
    """BERT's, RoBERTa's and DeBERTa-v3's, which has a [MASK] behind the pieces of its model and rows behind that."""
    sentences = [sentence for document in documents for sentence in document.sentences]
    folder, out, size = tmp_path / "theirs", tmp_path / "out", 600
    folder.mkdir()
    out.mkdir()
    if layout == "vocab.txt":
        pieces = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *vocabulary.pieces[5:]]
        (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
        config = transformers.BertConfig(vocab_size=size)
    elif layout == "spm.model":
        import sentencepiece

        special = {f"{name}_id": id for id, name in enumerate(("pad", "bos", "eos", "unk"))}
        named = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
        with (folder / "spm.model").open("wb") as stream:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(sentences), model_writer=stream, vocab_size=580, **special, **named
            )
        (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False, "vocab_type": "spm"}))
        config = transformers.DebertaV2Config(vocab_size=size)
    else:
        from tokenizers import ByteLevelBPETokenizer

        trained = ByteLevelBPETokenizer()
        trained.train_from_iterator(
            sentences, 590, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"], show_progress=False
        )
        trained.save_model(str(folder))
        config = transformers.RobertaConfig(vocab_size=size)
    config.save_pretrained(folder)
    asked = Imported(path="theirs", vocabulary_size=size, lowercase=layout == "vocab.txt")
    words, theirs = bring_tokenizer(asked, folder, out), transformers.AutoTokenizer.from_pretrained(folder)
    assert len(words) == size and len(theirs) < size
    ids = json.loads((out / "vocabulary.json").read_text())["ids"]
    assert sorted(ids) == list(range(size))
    assert ids[:5] == [getattr(theirs, f"{name}_token_id") for name in ("pad", "cls", "sep", "mask", "unk")]
    for text in [*TEXTS, *sentences[:200]]:
        assert [ids[id] for id in words.encode(text).ids] == theirs(text, add_special_tokens=False)["input_ids"]


def test_weights_are_read_under_their_old_names(project: Project, vocabulary: Vocabulary) -> None:
    folder = project.data / "theirs"
    model = checkpoint(folder, vocabulary, "bert", "AutoModelForMaskedLM")
    (folder / "model.safetensors").unlink()
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in model.state_dict().items()
    }
    torch.save(old | {"bert.embeddings.position_ids": torch.arange(40)}, folder / "pytorch_model.bin")
    encoder, _ = read_config(folder)
    (folder / "stage").mkdir()
    words = bring_tokenizer(Imported(path="theirs", vocabulary_size=515), folder, folder / "stage")
    found = bring(encoder, folder, project.checkpoint_files("theirs")[1:], folder / "stage")
    ours = build_encoder(encoder, len(words)).eval()
    ours.load_state_dict(found["encoder"])
    theirs = [0, 9, 2]
    ids = [1, words.pieces.index(vocabulary.pieces[9 + 1]), 2]  # they have four special ids before the ordinary ones
    with torch.no_grad():
        expected = model.bert(torch.tensor([theirs])).last_hidden_state
        assert torch.allclose(ours(torch.tensor([ids])), expected, rtol=0, atol=1e-5)
    torch.save(old | {"bert.encoder.layer.0.adapter.weight": torch.zeros(2)}, folder / "pytorch_model.bin")
    with pytest.raises(DataError, match="tensor 'bert.encoder.layer.0.adapter.weight' has no place in the encoder"):
        bring(encoder, folder, project.checkpoint_files("theirs")[1:], folder / "stage")


def test_the_commands_write_a_folder_and_take_it_back(
    finished: Finished, project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, pretrained, vocabulary = finished("bert", **ABSOLUTE)
    export(run, pretrained, vocabulary, project.root / "out")
    monkeypatch.chdir(project.root)
    app(["import", "hf", "out", "--name", "mine"], standalone_mode=False)
    assert capsys.readouterr().out == "ablations/mine.yaml\n"
    levels = find(project.root).factors.get("mine").levels
    assert (
        levels["trained"] == {} and build(Run, {**run.model_dump(), **levels["imported"]}, "x").encoder == run.encoder
    )
    with pytest.raises(DataError, match="mine.yaml: is there already; take another --name"):
        app(["import", "hf", "out", "--name", "mine"], standalone_mode=False)
    with pytest.raises(DataError, match="config.json: no such file; expected a folder that transformers saved"):
        app(["import", "hf", "nowhere"], standalone_mode=False)
