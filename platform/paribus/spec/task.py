"""Tasks: labelled data in a standard format, a kind of head, metrics."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from paribus.spec.base import Slot, location


class TaskData(Slot):
    """Where labelled items come from. A source gives `train` and `dev`; `select` is held out of train by item hash."""


class Built(TaskData):
    """Made from the run's own corpus by a builder: train items of its train documents, dev items of its test ones."""

    kind: Literal["built"] = "built"
    builder: Literal["acceptability", "minimal-pairs", "order", "cloze", "truecasing"]
    train: int | None = Field(None, ge=8)
    """Items to draw for training (and `select`); none for minimal pairs."""
    dev: int = Field(ge=8)
    """Items to draw for reporting."""


Column = str | int
"""A column of a table by its name in the header or, without a header, by its number from 0; in JSON a dotted path."""
Columns = dict[str, Column | tuple[Column, ...]]
"""Which columns an item's fields are read from. `options` of a multiple choice takes several, or one that is a list."""


class Format(Slot):
    """How files are laid out. Each kind of task has one of its own, which need not be named."""

    makes: ClassVar[tuple[str, ...]]
    """The kinds of task whose items can be read from it."""


class Tsv(Format):
    """Cells parted by tabs, as GLUE has them: quotes are plain characters, and no string stands for a missing value."""

    makes = ("sentence", "pair", "regression", "multiple-choice")
    kind: Literal["tsv"] = "tsv"
    columns: Columns
    header: bool = True
    """Whether the first line names the columns."""
    where: dict[str, str] = {}
    """Only rows with these values in these columns; a file without the column is read whole. XNLI: one language."""

    @model_validator(mode="after")
    def _numbers_without_a_header(self) -> "Tsv":
        if self.header:
            return self
        for field, named in self.columns.items():
            for column in named if isinstance(named, tuple) else (named,):
                if not isinstance(column, int) or column < 0:
                    raise ValueError(f"columns.{field}: without a header a column is a number from 0, found {column!r}")
        if self.where:
            raise ValueError(f"where: needs a header that names {', '.join(map(repr, self.where))}")
        return self


class Csv(Format):
    """Comma-separated cells with a header, quoted as in RFC 4180: SWAG's."""

    makes = Tsv.makes
    kind: Literal["csv"] = "csv"
    columns: Columns


class JsonLines(Format):
    """One JSON object a line, SuperGLUE's. Labels true and false are called True and False."""

    makes = Tsv.makes
    kind: Literal["jsonl"] = "jsonl"
    columns: Columns


class Squad(Format):
    """SQuAD's JSON, 1.1 and 2.0. Rajpurkar et al. 2016, arXiv:1606.05250, and 2018, arXiv:1806.03822."""

    makes = ("span-qa",)
    kind: Literal["squad"] = "squad"


class Conll(Format):
    """A word a line, a blank line after a sentence. Columns are parted by tabs or blanks; the word is the first."""

    makes = ("tagging",)
    kind: Literal["conll"] = "conll"
    label: int = -1
    """The label's column, from 0; -1 is the last."""


class Race(Format):
    """RACE's folders of one JSON object a passage. Lai et al. 2017, arXiv:1704.04683."""

    makes = ("multiple-choice",)
    kind: Literal["race"] = "race"
    levels: tuple[Literal["middle", "high"], ...] = Field(("middle", "high"), min_length=1)


class Copa(Format):
    """COPA in SuperGLUE. The question is "What was the CAUSE of this?" or "What happened as a RESULT?".

    Wang et al. 2019, arXiv:1905.00537; the wording is that of the original set, Roemmele et al. 2011.
    """

    makes = ("multiple-choice",)
    kind: Literal["copa"] = "copa"


class MultiRc(Format):
    """MultiRC in SuperGLUE as pairs: the passage, and "question answer" for each answer option; a group a question.

    Khashabi et al. 2018, N18-1023; the pairs are those of jiant and of the SuperGLUE baselines.
    """

    makes = ("pair",)
    kind: Literal["multirc"] = "multirc"


class Record(Format):
    """ReCoRD in SuperGLUE as pairs: the passage, and the query with an entity for "@placeholder"; a group a query.

    One pair for each different text among the passage's entities, label True where it is an answer. "@highlight" lines
    become sentences of the passage. Zhang et al. 2018, arXiv:1810.12885; the pairs are those of jiant.
    """

    makes = ("pair",)
    kind: Literal["record"] = "record"


class Wic(Format):
    """WiC in SuperGLUE as pairs: "word: sentence1", and sentence2.

    Pilehvar and Camacho-Collados 2019, arXiv:1808.09121. A pooled state alone cannot tell which word is meant, so the
    word is written first; the SuperGLUE baseline adds the two marked words' states instead.
    """

    makes = ("pair",)
    kind: Literal["wic"] = "wic"


class Wsc(Format):
    """WSC in SuperGLUE as pairs: the text with the pronoun in stars ("*he*"), and the noun phrase it may stand for.

    Levesque et al. 2012. The stars are T5's encoding (Raffel et al. 2020, arXiv:1910.10683, appendix B); the SuperGLUE
    baseline joins the two spans' states instead.
    """

    makes = ("pair",)
    kind: Literal["wsc"] = "wsc"


class Winograd(Format):
    """The Winograd schemas as distributed (WSCollection.xml): the text, and the two noun phrases to choose from."""

    makes = ("multiple-choice",)
    kind: Literal["winograd"] = "winograd"


class Blimp(Format):
    """BLiMP's JSON lines, a file a paradigm. Warstadt et al. 2020, arXiv:1912.00582."""

    makes = ("minimal-pair",)
    kind: Literal["blimp"] = "blimp"


class Folder(TaskData):
    """Files in a folder of the user's. Their identity is their content (`sha256`, filled in).

    A name that the folder lacks may be there with `.gz`, or inside a `.tar.gz`, `.tgz` or `.zip` of the folder.
    """

    kind: Literal["folder"] = "folder"
    path: str = location()
    """Relative to the project's `data` folder (see paribus.toml)."""
    format: Format | None = None
    """null: the kind's own, which its description names."""
    train: str | None = None
    """File name of the train items. A task without train items cannot be fine-tuned on."""
    dev: str | None = None
    """File name of the items to report on."""
    test: str | None = location(None)
    """File name of items that may lack labels: `paribus data check` reads them, nothing is ever scored on them."""
    test_format: Format | None = location(None)
    """Where the test file is laid out in another way, as CoLA's is."""
    official: dict[Literal["train", "dev", "test"], int] = location({})
    """How many items (of grouped ones: groups) the distribution has: what `paribus data check` compares with."""
    obtain: str = location("")
    """Where the files can be had: what `paribus data list` says of missing ones."""
    sha256: str | None = None


class Hub(TaskData):
    """A set of the Hugging Face Hub by its name; needs the package `datasets` and a network: paribus[datasets]."""

    kind: Literal["hub"] = "hub"
    name: str = Field(pattern=r"^\w[\w.-]*(/\w[\w.-]*)?$")
    """NAME or OWNER/NAME."""
    config: str | None = None
    """Which of the set's configurations, if it has several: glue's sst2."""
    revision: str = Field(pattern="^[0-9a-f]{40}$")
    """The commit of the set: what it holds cannot change under a key."""
    columns: Columns
    train: str = "train"
    """The set's own name for the split to train on."""
    dev: str = "validation"
    """The set's own name for the split to report on."""


Metric = Literal[
    "accuracy",
    "f1",
    "macro-f1",
    "mcc",
    "f1a",
    "group-em",
    "record-f1",
    "record-em",
    "pearson",
    "spearman",
    "em",
    "span-f1",
    "entity-f1",
    "phenomenon-accuracy",
]


def _distinct(labels: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(labels)) < len(labels):
        raise ValueError(f"a label is named twice: {', '.join(labels)}")
    return labels


Labels = Annotated[tuple[str, ...], Field(min_length=2), AfterValidator(_distinct)]
"""What a classifier chooses from."""


class Task(Slot):
    """A downstream task."""

    accepts: ClassVar[tuple[Metric, ...]]
    """The metrics of the kind; paribus.evaluate.metrics computes them."""
    trains: ClassVar[bool] = True
    """Whether there are items to train on."""
    own: ClassVar[Format | None] = None
    """The format of files of which nothing else is said."""
    fields: ClassVar[tuple[str, ...]] = ()
    """The fields that columns must be named for, where the format is a table."""
    optional: ClassVar[tuple[str, ...]] = ()
    """The fields that columns may be named for as well; `id` is one of every kind."""

    name: str = location()
    """What tables call it. A label: two names for the same data and recipe are the same work."""
    source: str
    """The paper or distribution that defines it."""
    data: TaskData
    metrics: tuple[Metric, ...] = Field(min_length=1)
    """The first chooses among learning rates on `select`."""
    select: float = Field(0.1, gt=0, lt=0.5)
    """Share of the train items held out for choosing."""

    @model_validator(mode="after")
    def _metrics_of_the_kind(self) -> "Task":
        for metric in self.metrics:
            if metric not in self.accepts:
                accepted = ", ".join(self.accepts)
                raise ValueError(f"metrics: {metric!r} is not for kind {self.kind!r}; accepted: {accepted}")
        return self

    @model_validator(mode="after")
    def _trains_or_does_not(self) -> "Task":
        train = getattr(self.data, "train", None)
        if train is not None and not self.trains:
            raise ValueError(f"data.train: found {train!r}, but nothing is trained in kind {self.kind!r}")
        if train is None and self.trains and isinstance(self.data, Built):
            raise ValueError(f"data.train: missing; say how many items to train on for kind {self.kind!r}")
        return self

    @model_validator(mode="after")
    def _format_of_the_kind(self) -> "Task":
        if isinstance(self.data, Hub):
            if self.kind not in Tsv.makes:
                raise ValueError(f"data: kind 'hub' is not for kind {self.kind!r}; accepted: {', '.join(Tsv.makes)}")
            self._check_columns("data.columns", self.data.columns, self.fields)
        if not isinstance(self.data, Folder):
            return self
        if self.data.format is None and self.own is None:
            raise ValueError(f"data.format: kind {self.kind!r} has none of its own; name one")
        for key in ("format", "test_format"):
            named = getattr(self.data, key)
            if named is None:
                continue
            if self.kind not in named.makes:
                accepted = ", ".join(kind for kind, format in Format.variants().items() if self.kind in format.makes)
                raise ValueError(f"data.{key}: {named.kind!r} is not for kind {self.kind!r}; accepted: {accepted}")
            wanted = self.fields if key == "format" else tuple(set(self.fields) - {"label", "score"})
            if isinstance(named, Tsv | Csv | JsonLines):
                self._check_columns(f"data.{key}.columns", named.columns, wanted)
        return self

    def _check_columns(self, key: str, columns: Columns, wanted: Sequence[str]) -> None:
        if missing := [field for field in wanted if field not in columns]:
            raise ValueError(f"{key}: no column for {missing[0]!r}; needed: {', '.join(wanted)}")
        known = (*self.fields, *self.optional, "id")
        for field, column in columns.items():
            if field not in known:
                raise ValueError(f"{key}.{field}: kind {self.kind!r} has no such field; accepted: {', '.join(known)}")
            if isinstance(column, tuple) and field != "options":
                raise ValueError(f"{key}.{field}: found {list(column)}, but only `options` takes several columns")


class Sentence(Task):
    """One sentence, one label. Its own format is CoLA's TSV (source, label, star, sentence; no header)."""

    accepts = ("accuracy", "f1", "macro-f1", "mcc")
    own = Tsv(columns={"source": 0, "label": 1, "note": 2, "sentence": 3}, header=False)
    fields = ("sentence", "label")
    optional = ("source", "note")
    kind: Literal["sentence"] = "sentence"
    labels: Labels = ("0", "1")


class Pair(Task):
    """Two sentences, one label. Its own format is TSV with a header (index, sentence1, sentence2, label).

    f1a, group-em: F1 over the answer options of all questions, and the share of questions all of whose options are
    right (MultiRC). record-f1, record-em: of the option of each group that is thought likeliest (ReCoRD).
    """

    accepts = ("accuracy", "f1", "macro-f1", "mcc", "f1a", "group-em", "record-f1", "record-em")
    own = Tsv(columns={"id": "index", "sentence1": "sentence1", "sentence2": "sentence2", "label": "label"})
    fields = ("sentence1", "sentence2", "label")
    optional = ("group", "option")
    kind: Literal["pair"] = "pair"
    labels: Labels


class Regression(Task):
    """Two sentences (or one), one number. Its own format is TSV with a header (index, sentence1, sentence2, score)."""

    accepts = ("pearson", "spearman")
    own = Tsv(columns={"id": "index", "sentence1": "sentence1", "sentence2": "sentence2", "score": "score"})
    fields = ("sentence1", "score")
    optional = ("sentence2",)
    kind: Literal["regression"] = "regression"


class SpanQa(Task):
    """A question and a passage, the answer a span of it. Its own format is SQuAD's JSON."""

    accepts = ("em", "span-f1")
    own = Squad()
    kind: Literal["span-qa"] = "span-qa"
    unanswerable: bool = False
    """Whether questions may have no answer, as in SQuAD 2.0."""


class Tagging(Task):
    """A label for each word. Its own format is CoNLL's columns, the word first and the label last."""

    accepts = ("accuracy", "f1", "entity-f1")
    own = Conll()
    kind: Literal["tagging"] = "tagging"
    labels: Labels


class MultipleChoice(Task):
    """One of several options goes with a context and a question; either may be empty. It has no format of its own."""

    accepts = ("accuracy",)
    fields = ("options", "label")
    optional = ("context", "question", "part")
    kind: Literal["multiple-choice"] = "multiple-choice"


class MinimalPairs(Task):
    """The more acceptable of two sentences; nothing is trained. Its own format is BLiMP's JSON lines.

    accuracy: the mean over paradigms; phenomenon-accuracy: over phenomena. Both are measured.
    """

    accepts = ("accuracy", "phenomenon-accuracy")
    trains = False
    own = Blimp()
    kind: Literal["minimal-pair"] = "minimal-pair"
    metrics: tuple[Metric, ...] = Field(("accuracy", "phenomenon-accuracy"), min_length=1)
    """The first is the one that tables show."""
