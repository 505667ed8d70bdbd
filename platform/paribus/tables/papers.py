"""What must hold across the papers' tables, and their list. What must hold within one is in paribus.spec.table."""

from collections.abc import Iterator, Mapping

from paribus.spec.table import PaperTable

_LANGUAGES = "en fr es de el bg ru tr ar vi th zh hi sw ur avg avg7".split()

# Names of tasks, so that two tables call one task the same. Understanding, then the adaptation papers' tasks,
# generation, objectives, and others.
TASKS = {
    *"mnli_m mnli_mm qqp qnli sst2 cola stsb mrpc rte wnli squad1 squad2 race race_middle race_high swag".split(),
    *"conll2003 boolq cb copa multirc record wic wsc glue superglue".split(),
    *"snli scitail rocstories sst5 srl coref sicke sickr".split(),
    *"eli5 xsum convai2 cnndm wmt_ende wmt_enfr wmt_enro".split(),
    *"mlm nsp sop average ie_arabic wsd_se2 wsd_se3 wsd_s7_t7 wsd_s7_t17".split(),
    *(f"xnli_{language}" for language in _LANGUAGES),
}


def check(tables: Mapping[str, PaperTable], readme: str) -> list[str]:
    """What is wrong across `tables` (by file name) and with the list of them in `readme`; nothing when all is well."""
    return [*_names(tables), *_papers(tables), *_listed(tables, readme)]


def _names(tables: Mapping[str, PaperTable]) -> Iterator[str]:
    for name, table in tables.items():
        if table.id != name:
            yield f"{name}.yaml: id: found {table.id!r}, expected the name of the file"
        for column in table.columns:
            if column.task is not None and column.task not in TASKS:
                yield f"{name}.yaml: column {column.key}: no other table knows the task {column.task!r}"


def _papers(tables: Mapping[str, PaperTable]) -> Iterator[str]:
    described: dict[str, dict[str, str]] = {}
    for name, table in tables.items():
        content = table.paper.model_dump_json(exclude={"table"})
        described.setdefault(table.paper.key, {}).setdefault(content, name)
    for key, ways in described.items():
        if len(ways) > 1:
            yield f"paper {key} is described differently in {', '.join(f'{name}.yaml' for name in ways.values())}"


def _listed(tables: Mapping[str, PaperTable], readme: str) -> Iterator[str]:
    listed = [line for line in readme.splitlines() if line.startswith("| [")]
    wanted = index(tables).splitlines()[2:]
    yield from (f"README.md lacks or misstates: {line}" for line in wanted if line not in listed)
    yield from (f"README.md lists what is not here: {line}" for line in listed if line not in wanted)


def index(tables: Mapping[str, PaperTable]) -> str:
    """The list of `tables` as Markdown, as it stands in dashboards/papers/README.md."""
    lines = ["| id | title | kind | factor | rows x columns | paper |", "| --- | --- | --- | --- | --- | --- |"]
    for name, table in sorted(tables.items()):
        size = f"{len(table.rows)} x {len(table.columns)}"
        paper = f"{table.paper.key}{table.paper.place}"
        cells = (f"[{name}]({name}.yaml)", table.title, table.kind, table.factor or "", size, paper)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
