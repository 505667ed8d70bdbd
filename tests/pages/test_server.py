"""In a real browser, over a real server."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from paribus.pages.web import PREFIX, Site
from paribus.plan.plan import plan
from paribus.project import Project
from paribus.store.store import Store

EXPERIMENT = f"{PREFIX}/experiments/{quote('masks@debug')}"


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A tab that fails the test for anything the console calls an error."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    errors: list[str] = []
    tab.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: errors.append(str(error)))
    yield tab
    context.close()
    assert errors == []


@pytest.mark.parametrize("path", ["/", "/experiments/masks%40debug", "/experiments/hostile%40debug", "/papers"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_loads_and_fits(page: Any, server: str, path: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(f"{server}{PREFIX}{path}")
    assert page.locator("h1").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize(("width", "drawn"), [(390, "narrow"), (1280, "wide")])
def test_charts_come_after_the_page_in_the_width_that_fits(page: Any, server: str, width: int, drawn: str) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(f"{server}{EXPERIMENT}")
    images = page.locator("figure img")
    assert images.count() == 3
    for image in images.all():
        found = image.evaluate("async i => (await i.decode(), [i.currentSrc, i.naturalWidth, i.alt])")
        assert found[0].endswith(f"/{drawn}") and found[1] > 200 and found[2]


def test_a_click_on_a_column_sorts_by_its_numbers_and_another_turns_it(page: Any, server: str) -> None:
    page.goto(f"{server}{EXPERIMENT}")
    arms = "[...document.querySelectorAll('table.sortable tbody')].find(b => b.innerText.includes('dynamic'))"
    names = f"() => [...{arms}.rows].filter(row => row.cells.length > 1).map(row => row.cells[0].innerText.trim())"
    head = page.locator("table.sortable thead th button", has_text="MLM loss").first
    head.click()
    first = page.evaluate(names)
    assert page.locator("th[aria-sort=descending]").count() == 1
    head.click()
    assert page.evaluate(names) == first[::-1] and page.locator("th[aria-sort=ascending]").count() == 1


def test_the_sorting_buttons_are_reached_and_pressed_by_keyboard(page: Any, server: str) -> None:
    page.goto(f"{server}{EXPERIMENT}")
    page.locator("table.sortable thead th button").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("th[aria-sort]").count() == 1


def test_a_run_leads_to_its_own_page_in_mlflow(page: Any, server: str, project: Project, store: Store) -> None:
    run = plan(project, "masks", "debug", None, None, store).runs[0]
    page.goto(f"{server}{EXPERIMENT}")
    link = page.locator(f'a[href="{PREFIX}/runs/{run.key}"]')
    assert link.count() == 1
    with urllib.request.urlopen(f"{server}{PREFIX}/runs/{run.key}") as answer:
        experiment, _, id = answer.url.partition("#/experiments/")[2].partition("/runs/")
    with urllib.request.urlopen(f"{server}/api/2.0/mlflow/runs/get?run_id={id}") as answer:
        found = json.load(answer)["run"]
    assert found["info"]["experiment_id"] == experiment
    assert {"key": "paribus.run", "value": run.key} in found["data"]["tags"]


def test_a_cell_leads_to_its_runs_and_they_to_mlflow_by_keyboard(page: Any, server: str) -> None:
    page.goto(f"{server}{EXPERIMENT}")
    page.get_by_role("link", name="n=3, runs of dynamic").first.focus()
    page.keyboard.press("Enter")
    row = page.locator("tr:target")
    assert row.locator("th").inner_text() == "dynamic"
    assert row.evaluate(
        "row => { const box = row.getBoundingClientRect(); return box.top >= 0 && box.bottom <= innerHeight }"
    )
    page.keyboard.press("Tab")
    assert "/runs/run-" in page.evaluate("document.activeElement.href")


def test_mlflow_itself_is_served_beside_with_a_link_to_the_pages(browser: Any, server: str) -> None:
    tab = browser.new_page()
    tab.goto(server)
    tab.wait_for_selector(f'a[href="{PREFIX}/"]')
    tab.close()


@pytest.mark.parametrize(
    ("view", "charts"), [("paribus-arms", "table/mlm.loss/mean"), ("paribus-curves", "train/loss")]
)
def test_a_published_view_opens_in_mlflow_with_its_charts_first(
    browser: Any, server: str, view: str, charts: str
) -> None:
    with urllib.request.urlopen(
        f"{server}/api/2.0/mlflow/experiments/get-by-name?experiment_name={quote('hostile@debug')}"
    ) as answer:
        experiment = json.load(answer)["experiment"]["experiment_id"]
    tab = browser.new_page(viewport={"width": 1500, "height": 900})
    tab.goto(f"{server}/#/experiments/{experiment}/runs?viewStateShareKey={view}&compareRunsMode=CHART")
    tab.wait_for_selector(f"text={charts}")
    assert tab.locator("text=You're viewing a shared view").is_visible()
    first = tab.locator(f"text={charts}").first.bounding_box()
    assert first and first["y"] < 600  # above all that MLflow shows of itself
    tab.close()


def test_a_hostile_name_runs_nothing(browser: Any, server: str) -> None:
    tab = browser.new_page()
    dialogs: list[object] = []
    tab.on("dialog", lambda dialog: dialogs.append(dialog))
    tab.goto(f"{server}{PREFIX}/experiments/hostile%40debug")
    assert "<script>alert(1)</script>" in tab.inner_text("body") and dialogs == []
    tab.close()


@pytest.mark.parametrize(
    "path",
    [
        "/experiments/..%2f..%2fetc%2fpasswd",
        "/papers/..%2f..%2fparibus.toml",
        "/runs/..%2fmlflow.db",
        "/experiments/nothing",
        "/runs/run-0'%20OR%201",
        "/charts/masks%40debug/pie/wide",
        "/charts/masks%40debug/cost/..%2f..",
        "/charts/nothing/cost/wide",
    ],
)
def test_what_is_not_there_is_not_served(server: str, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{server}{PREFIX}{path}")
    assert refused.value.code == 404


def test_the_address_without_its_last_slash_leads_to_the_overview(server: str) -> None:
    with urllib.request.urlopen(f"{server}{PREFIX}") as answer:
        assert answer.url == f"{server}{PREFIX}/" and answer.status == 200


def test_a_foreign_host_is_refused(server: str) -> None:
    asked = urllib.request.Request(f"{server}{PREFIX}/", headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(asked)
    assert refused.value.code == 403


def test_a_report_opens_from_disk_without_network(page: Any, project: Project, store: Store, saved: Any) -> None:
    saved.write_text(Site(project, store, served=False).experiment(plan(project, "masks", "debug", None, None, store)))
    page.context.set_offline(True)
    page.goto(saved.as_uri())
    assert page.locator("svg").first.is_visible() and page.locator("table").first.is_visible()
    runs = page.get_by_role("region", name="Runs of dynamic")
    assert not runs.is_visible()
    page.get_by_role("link", name="n=3, runs of dynamic").first.click()
    assert runs.is_visible() and runs.locator("tbody tr").count() == 4
    assert not page.locator(".narrow").first.is_visible()
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.locator(".narrow").first.is_visible()
