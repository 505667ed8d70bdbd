import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from paribus.jobs.plans import enqueue
from paribus.jobs.queue import Queue
from paribus.pages import charts
from paribus.pages.content import Content
from paribus.pages.web import Site
from paribus.plan.plan import Plan, plan
from paribus.project import Project
from paribus.store.store import Store
from paribus.tracking.mirror import table_of


class Elements(HTMLParser):
    """The start tags of a page with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture(params=["masks", "hostile"])
def report(request: pytest.FixtureRequest, project: Project, store: Store, planned: Callable[[str], Plan]) -> str:
    return Site(project, store, served=False).experiment(planned(request.param))


def test_a_report_loads_nothing_from_elsewhere(report: str) -> None:
    for tag, attributes in Elements(report).found:
        for name in ("src", "href", "xlink:href", "action", "data"):
            target = attributes.get(name)
            assert target is None or target.startswith(("#", "data:")), (tag, target)
    assert "@import" not in report and "url(" not in report.replace("url(#", "")


def test_a_report_runs_one_script_and_no_other(report: str) -> None:
    tags = Elements(report).found
    assert sum(tag == "script" for tag, _ in tags) == 1
    assert not any(name.startswith("on") for _, attributes in tags for name in attributes)


def test_a_report_begins_with_question_and_expectation(
    project: Project, store: Store, planned: Callable[[str], Plan]
) -> None:
    found = planned("masks")
    text = Site(project, store, served=False).experiment(found)
    places = [text.index(part) for part in (found.experiment.question, found.experiment.expect, "<table", "<svg")]
    assert places == sorted(places)


def test_a_served_page_is_there_before_its_charts_and_curves_are_read(
    project: Project, store: Store, planned: Callable[[str], Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> bytes:
        raise AssertionError("drawn while somebody waits for the page")

    site = Site(project, store)
    with monkeypatch.context() as patch:
        patch.setattr(charts, "draw", never)
        patch.setattr(Content, "curves", property(never))
        sources = [
            attributes["src"] for tag, attributes in Elements(site.experiment(planned("masks"))).found if tag == "img"
        ]
    kinds = [str(source).split("/")[-2] for source in sources]
    assert kinds == ["forest", "curves", "cost"]
    for kind in kinds:
        drawn = site.chart("masks@debug", kind, "wide")
        assert "dynamic" in drawn and drawn == Site(project, store).chart("masks@debug", kind, "wide")


def test_a_page_opens_no_record_of_a_stage_that_the_index_has(
    project: Project, store: Store, planned: Callable[[str], Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = planned("masks")
    (took, *_) = Content(found, store, project).seconds["dynamic"].items()
    monkeypatch.setattr(Store, "record", lambda *_: pytest.fail("opened again"))
    content = Content(found, store, project)
    assert took in content.seconds["dynamic"].items() and took[1] > 0
    assert any(row.arm for row in content.table.rows)


def test_missing_and_diverged_runs_are_counted(project: Project, store: Store, planned: Callable[[str], Plan]) -> None:
    site = Site(project, store)
    assert "7 done, 1 missing" in site.experiment(planned("masks"))
    assert "8 done, 1 diverged" in site.experiment(planned("hostile"))


def test_a_run_that_diverged_is_in_no_learning_curve(project: Project, tmp_path: Path) -> None:
    """Where it ends the mean over seeds would jump."""
    store, found = Store(tmp_path), plan(project, "hostile", "debug")
    store.prepare()
    for run in found.runs:
        work = store.claim(run.pretrained)
        assert work
        with work:
            lost = run.seed == 0
            points = [{"train/tokens": 10 * step, "train/loss": 9.0 if lost else 5.0} for step in range(9 - 6 * lost)]
            (work.out / "curve.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
            work.commit("provenance", outcome="diverged" if lost else "done")
    curves = Content(found, store, project).curves
    assert all(losses == [5.0, 5.0] for points in curves.values() for _, losses in points) and len(curves) == 3


def test_page_and_mlflow_say_that_finished_runs_are_not_shown(project: Project, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.prepare()
    before = plan(project, "masks", "debug", None, None, store)
    enqueue(before, store)
    claim = Queue(store, before.name).claim()
    assert claim
    claim.done(0.0)
    now = plan(project, "masks", "debug", None, {"optimizer.lr": 0.0123}, store)
    (told,) = table_of(now, project, store).warnings
    assert told.startswith("1 finished run of masks@debug in the store, of an older version")
    assert told in Site(project, store, served=False).experiment(now)


def test_the_list_shows_what_was_queued_and_what_could_be(project: Project, store: Store) -> None:
    text = Site(project, store).experiments()
    assert "masks@debug" in text and "7 of 8" in text
    assert "<code>deberta-components</code>" in text and "<code>masks</code>" not in text


def test_every_paper_table_has_a_page(project: Project, store: Store) -> None:
    site = Site(project, store)
    overview = site.papers()
    for name in project.tables:
        assert f'href="/paribus/papers/{name}"' in overview
        assert project.tables.get(name).rows[0].label.split()[0] in site.paper(name)


def test_a_paper_table_shows_our_runs_beside(project: Project, store: Store) -> None:
    text = Site(project, store).paper("roberta-table1")
    assert 'href="/paribus/experiments/masks%40debug"' in text and "Not finished: of 8 runs 1 missing" in text


def _places(text: str) -> tuple[list[str], list[str]]:
    """The ids of a page, and where its links within pages lead."""
    tags = [attributes for _, attributes in Elements(text).found]
    ids = [str(attributes["id"]) for attributes in tags if "id" in attributes]
    return ids, [href for attributes in tags if "#runs-" in (href := str(attributes.get("href")))]


def test_a_report_leads_from_each_cell_to_its_runs_in_the_same_file(report: str) -> None:
    ids, links = _places(report)
    assert links and {link.removeprefix("#") for link in links} <= set(ids) and len(ids) == len(set(ids))


def test_served_pages_lead_from_each_cell_to_the_runs_of_its_arm(
    project: Project, store: Store, planned: Callable[[str], Plan]
) -> None:
    site = Site(project, store)
    ids, links = _places(site.experiment(planned("masks")))
    assert links and {link.removeprefix("#") for link in links} <= set(ids) and len(ids) == len(set(ids))
    _, of_paper = _places(site.paper("roberta-table1"))
    assert {link.partition("#")[0] for link in of_paper} == {"/paribus/experiments/masks%40debug"}
    assert {link.partition("#")[2] for link in of_paper} <= set(ids)


def test_every_figure_and_table_says_what_it_is(report: str) -> None:
    tags = Elements(report).found
    for tag, attributes in tags:
        if tag == "figure":
            assert attributes["aria-label"]
        if tag == "th":
            assert attributes.get("scope")
    headings = [int(tag[1]) for tag, _ in tags if tag in ("h1", "h2", "h3")]
    assert headings[0] == 1 and headings.count(1) == 1
