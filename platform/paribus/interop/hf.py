"""Folders of `transformers`: a run's encoder written as one, and one read in place of a pretraining.

Ours are ids 0 to 4 for [PAD], [CLS], [SEP], [MASK], [UNK] whatever the tokenizer, so an imported vocabulary is
renumbered, its rows of the token table and of the output bias with it.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file

from paribus.data import vocabulary as vocabularies
from paribus.errors import DataError
from paribus.interop.config import config_of, encoder_of, family_of
from paribus.interop.names import Weights, prefix_of, renamed, rules, to_ours, to_theirs
from paribus.nn.build import build_encoder, build_head
from paribus.objectives.module import named, part
from paribus.project import CONFIG, Project, new_folder
from paribus.spec import model as spec
from paribus.spec.data import Imported, SentencePieceUnigram
from paribus.spec.load import build
from paribus.spec.objective import Mlm, Rtd
from paribus.spec.run import Run

CLASSES = {"bert": "Bert", "roberta": "Roberta", "electra": "Electra", "deberta": "Deberta", "deberta-v2": "DebertaV2"}
SPECIALS = dict(zip(("pad", "cls", "sep", "mask", "unk"), vocabularies.SPECIALS, strict=True))


def transformers() -> Any:
    """The package, or what to install."""
    try:
        import transformers as found
    except ImportError:
        raise DataError("this needs the package transformers: pip install 'paribus[hf]'") from None
    return found


# --- a run written as a folder ---------------------------------------------------------------------------------------


def export(run: Run, pretrained: Path, vocabulary: Path, folder: Path, generator: bool = False) -> list[str]:
    """Write config.json, model.safetensors and the tokenizer's files. Returns what differs there, a sentence each.

    `pretrained` and `vocabulary` are finished stages. After replaced-token detection the discriminator is written, or
    the `generator`. DataError where transformers has no model or tokenizer that computes the same.
    """
    library = transformers()
    if run.pretrained:
        raise DataError(f"the encoder was imported from {run.pretrained.path}, a folder of transformers already")
    if generator and not isinstance(run.objective, Rtd):
        raise DataError(f"--generator: the objective is {run.objective.kind!r}, which has none")
    encoder, weights, heads, detects = _part(run, pretrained, generator)
    family = family_of(encoder, detects)
    architecture, differs = _architecture(run, encoder, family, detects, generator)
    if architecture:
        lost = () if architecture == "BertForPreTraining" else ("sentence_head.",)
        weights |= {name: tensor for name, tensor in heads.items() if not name.startswith(lost)}
    found = to_theirs(weights, rules(family, encoder, pad=0, discriminator=detects))
    if not architecture:
        architecture = f"{CLASSES[family]}Model"
        found = {name.removeprefix(prefix_of(family)): tensor for name, tensor in found.items()}
    size, length = len(vocabularies.load(vocabulary)), run.packing.length
    config = library.AutoConfig.for_model(family, **config_of(encoder, family, size, length))
    config.architectures = [architecture]
    tokenizer = _tokenizer(run, vocabulary, encoder.segments, library)
    if isinstance(run.tokenizer, SentencePieceUnigram):
        differs.append(
            "of two cuts of a sentence that cost the same, transformers may take the other one than sentencepiece, "
            "in one sentence of some thousands"
        )
    new_folder(folder)
    config.save_pretrained(folder)
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(folder)
    # By the name that its version 4 knows too.
    path = folder / "tokenizer_config.json"
    told = json.loads(path.read_text("utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return differs


def _part(run: Run, pretrained: Path, generator: bool) -> tuple[spec.Encoder, Weights, Weights, bool]:
    """What is written: an encoder, its weights, those of its heads, and whether it tells replaced tokens."""
    heads, objective = load_file(pretrained / "heads.safetensors"), run.objective
    if not isinstance(objective, Rtd):
        return run.encoder, load_file(pretrained / "encoder.safetensors"), heads, False
    name = "generator_head" if generator else "head" if objective.detects else "vocabulary_head"
    its = {f"head.{key}": tensor for key, tensor in part(name, heads).items()}
    if generator:
        return objective.generator.encoder(run.encoder), load_file(pretrained / "generator.safetensors"), its, False
    return run.encoder, load_file(pretrained / "encoder.safetensors"), its, objective.detects


def _architecture(
    run: Run, encoder: spec.Encoder, family: str, detects: bool, generator: bool
) -> tuple[str, list[str]]:
    """The class with a head that computes the same, "" where there is none, and what is lost, a sentence each."""
    name, objective = CLASSES[family], run.objective
    if isinstance(objective, Rtd) and detects:
        if family == "electra" and objective.head == "electra":
            return "ElectraForPreTraining", []
        return "", [f"{name} of transformers has no head {objective.head!r} for replaced-token detection"]
    if isinstance(encoder.head, spec.EnhancedMaskDecoder):
        return "", ["transformers has no enhanced mask decoder, so the vocabulary head is left out"]
    if isinstance(objective, Mlm) and objective.kinds_of_pair:
        if family == "bert" and objective.kinds_of_pair == 2:
            return "BertForPreTraining", []
        return f"{name}ForMaskedLM", [f"{name} has no head for the sentence objective {objective.sentence!r}"]
    if isinstance(objective, Rtd) and objective.discriminator == "all-tokens-mlm" and not generator:
        return f"{name}ForMaskedLM", [f"{name} of transformers cannot copy its input; its logits are those of p_MLM"]
    return f"{name}ForMaskedLM", []


def _tokenizer(run: Run, vocabulary: Path, segments: int, library: Any) -> Any:
    """The tokenizer of a finished stage with [CLS] A [SEP] B [SEP] around it."""
    from tokenizers import AddedToken, Tokenizer, processors

    if isinstance(run.tokenizer, Imported):
        raise DataError(f"tokenizer.kind {run.tokenizer.kind!r}: its ids were renumbered, so its files do not fit")
    fast = vocabulary / "tokenizer.json"
    trained = Tokenizer.from_file(str(fast)) if fast.is_file() else _sentencepiece(vocabulary)
    trained.add_special_tokens([AddedToken(special, special=True) for special in SPECIALS.values()])
    second = 1 if segments == 2 else 0
    trained.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=f"[CLS] $A [SEP] $B:{second} [SEP]:{second}",
        special_tokens=[("[CLS]", vocabularies.CLS), ("[SEP]", vocabularies.SEP)],
    )
    return library.PreTrainedTokenizerFast(
        tokenizer_object=trained,
        model_max_length=run.packing.length,
        model_input_names=["input_ids", *(["token_type_ids"] if segments == 2 else []), "attention_mask"],
        clean_up_tokenization_spaces=False,
        **{f"{name}_token": special for name, special in SPECIALS.items()},
    )


def _sentencepiece(vocabulary: Path) -> Any:
    """A model of `sentencepiece` as one of `tokenizers`: the same normaliser, pieces and merges in their order."""
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString((vocabulary / "tokenizer.model").read_bytes())
    scores = {piece.piece: piece.score for piece in proto.pieces[1:]}  # the first is <unk>
    unigram = proto.trainer_spec.model_type == sentencepiece_model_pb2.TrainerSpec.UNIGRAM
    model: Any
    if unigram:
        model = models.Unigram([*((special, 0.0) for special in SPECIALS.values()), *scores.items()], vocabularies.UNK)
    else:
        ids = {piece: id for id, piece in enumerate([*SPECIALS.values(), *scores])}
        in_turn = sorted(scores, key=lambda piece: -scores[piece])
        cuts = ((piece[:at], piece[at:]) for piece in in_turn for at in range(1, len(piece)))
        merges = [(left, right) for left, right in cuts if left in scores and right in scores]
        model = models.BPE(ids, merges, unk_token="[UNK]", fuse_unk=True)
    trained = Tokenizer(model)
    charsmap = normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
    trained.normalizer = normalizers.Sequence([charsmap, normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")])
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=not unigram)
    return trained


# --- a folder read in place of a pretraining -------------------------------------------------------------------------


def describe(project: Project, folder: Path) -> dict[str, Any]:
    """What a run takes to start from the checkpoint in `folder`: the paths of a factor's level and their values."""
    encoder, config = read_config(folder)
    tokenizer = _read_tokenizer(folder)
    path = str(folder.resolve())
    if folder.resolve().is_relative_to(project.data.resolve()):
        path = str(folder.resolve().relative_to(project.data.resolve()))
    told = {"path": path, "vocabulary_size": config["vocab_size"], "lowercase": _lowercases(tokenizer)}
    imported = build(Imported, told, f"{folder / CONFIG}: tokenizer")
    _order(tokenizer, imported, folder)
    return {
        "pretrained": {"path": path, "sha256": project.checksums.of(project.checkpoint_files(path))},
        "tokenizer": {**imported.model_dump(), "sha256": project.checksums.of(project.tokenizer_files(path))},
        "encoder": encoder.model_dump(),
        "objective": {"kind": "mlm", "masking": {"kind": "dynamic"}},
    }


def write_factor(project: Project, folder: Path, name: str) -> Path:
    """A factor `name` of two levels: `trained`, the run as its base says, and `imported`, from the checkpoint."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise DataError(f"--name: found {name!r}, expected letters, digits, '.', '_' and '-'")
    path = project.root / "ablations" / f"{name}.yaml"
    if name in project.factors.paths:
        raise DataError(f"{project.factors.paths[name]}: is there already; take another --name")
    content = {
        "source": f"imported from {folder.name} by `paribus import hf`",
        "base": "trained",
        "levels": {"trained": {}, "imported": describe(project, folder)},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), "utf-8")
    return path


def read_config(folder: Path) -> tuple[spec.Encoder, dict[str, Any]]:
    """The encoder that a folder's config.json describes, and all of it, defaults included."""
    where = folder / CONFIG
    if not where.is_file():
        raise DataError(f"{where}: no such file; expected a folder that transformers saved")
    try:
        config = transformers().AutoConfig.from_pretrained(folder, local_files_only=True).to_dict()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{where}: transformers cannot read it ({str(error).splitlines()[0]})") from None
    return encoder_of(config, str(where)), config


def bring(encoder: spec.Encoder, folder: Path, files: Sequence[Path], vocabulary: Path) -> dict[str, Weights]:
    """The weights of a checkpoint as a pretrain stage keeps them, by file; `heads` only where one fits.

    `files` hold its weights, `vocabulary` is the finished stage of its tokenizer.
    """
    described, config = read_config(folder)
    if described != encoder:
        raise DataError(f"{folder / CONFIG}: describes another encoder than the run's; import the folder again")
    family, pad, where = config["model_type"], config["pad_token_id"], str(folder)
    theirs: Weights = {}
    for file in files:
        theirs |= load_file(file) if file.suffix == ".safetensors" else torch.load(file, "cpu", weights_only=True)
    theirs = renamed(theirs, family)
    with torch.device("meta"):
        module = build_encoder(encoder, config["vocab_size"])
        head = named("head", build_head(encoder, module))
    known = list(rules(family, encoder, pad))
    trunk = to_ours(theirs, known, module.state_dict(), where)
    _refuse_unread(theirs, trunk, known, family, where)
    order = torch.tensor(json.loads((vocabulary / "vocabulary.json").read_text("utf-8"))["ids"])
    trunk["tokens.weight"] = trunk["tokens.weight"][order]
    found = {"encoder": trunk}
    if all(other in theirs for rule in known if rule.ours in head for other in rule.theirs):
        found["heads"] = to_ours(theirs, known, head, where)
        found["heads"]["head.bias"] = found["heads"]["head.bias"][order]
    return found


def _refuse_unread(theirs: Weights, trunk: Weights, known: Sequence[Any], family: str, where: str) -> None:
    """A tensor of the trunk that has no place in ours would be lost in silence."""
    read = {other for rule in known if rule.ours in trunk for other in rule.theirs}
    parts = tuple(prefix_of(family) + part for part in ("embeddings", "encoder."))
    for name in theirs:
        if name.startswith(parts) and name not in read and not name.endswith("_ids"):
            raise DataError(f"{where}: tensor {name!r} has no place in the encoder that its config.json describes")


def bring_tokenizer(tokenizer: Imported, folder: Path, out: Path) -> vocabularies.Vocabulary:
    """Write the tokenizer of a checkpoint as a vocabulary stage: without special tokens, its ids in our order."""
    theirs = _read_tokenizer(folder)
    if _lowercases(theirs) != tokenizer.lowercase:
        raise DataError(
            f"tokenizer.lowercase: found {tokenizer.lowercase}, but the tokenizer in {folder} says otherwise"
        )
    order = _order(theirs, tokenizer, folder)
    backend = theirs.backend_tokenizer
    pieces = [*vocabularies.SPECIALS, *(backend.id_to_token(id) or f"[row {id}]" for id in order[len(SPECIALS) :])]
    data = json.loads(backend.to_str())
    # Special tokens are told apart by id alone: typed in a text they are text, as with every other tokenizer here.
    data["added_tokens"] = [token for token in data["added_tokens"] if not token["special"]]
    data |= {"post_processor": None, "truncation": None, "padding": None}
    (out / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False), "utf-8")
    head = {"kind": tokenizer.kind, "pieces": pieces, "ids": order}
    (out / "vocabulary.json").write_text(json.dumps(head, ensure_ascii=False), "utf-8")
    return vocabularies.load(out)


def _read_tokenizer(folder: Path) -> Any:
    library = transformers()
    try:
        found = library.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise DataError(f"{folder}: transformers cannot read its tokenizer ({str(error).splitlines()[0]})") from None
    if not hasattr(found, "backend_tokenizer"):
        raise DataError(f"{folder}: its tokenizer, {type(found).__name__}, is none of the package tokenizers")
    return found


def _lowercases(theirs: Any) -> bool:
    normalizer = theirs.backend_tokenizer.normalizer
    return normalizer is not None and "A" not in normalizer.normalize_str("A")


def _order(theirs: Any, tokenizer: Imported, folder: Path) -> list[int]:
    """Their id for each of ours: the special ones first, then the others as they come."""
    special = [getattr(theirs, f"{name}_token_id") for name in SPECIALS]
    for name, id in zip(SPECIALS, special, strict=True):
        if id is None or special.count(id) > 1:
            raise DataError(f"{folder}: its tokenizer has no {name}_token of its own, which an encoder here needs")
    size = tokenizer.vocabulary_size
    if len(theirs) > size:
        raise DataError(f"{folder}: its tokenizer has {len(theirs)} ids, its config.json {size} (vocab_size)")
    return [*special, *(id for id in range(size) if id not in special)]
