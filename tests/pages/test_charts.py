from collections.abc import Callable

import pytest

from paribus.errors import ParibusError
from paribus.pages import charts
from paribus.pages.web import content
from paribus.plan.plan import Plan
from paribus.project import Project
from paribus.store.store import Store

BEGINNINGS = {"svg": b"<svg", "pdf": b"%PDF", "png": b"\x89PNG"}


@pytest.mark.parametrize("format", charts.FORMATS)
@pytest.mark.parametrize("kind", [kind for kind in charts.KINDS if kind != "tuning"])
def test_every_chart_is_drawn_in_every_format(
    kind: str, format: str, project: Project, store: Store, planned: Callable[[str], Plan]
) -> None:
    drawn = charts.plot(content(project, store, planned("hostile")), kind, format)
    assert drawn.startswith(BEGINNINGS[format]) and len(drawn) > 3000


def test_the_forest_shows_the_numbers_of_the_table(
    project: Project, store: Store, planned: Callable[[str], Plan]
) -> None:
    shown = content(project, store, planned("masks"))
    chart = charts.forest(shown, 500)
    assert chart
    (row,) = [row for row in shown.table.rows if row.label == "dynamic"]
    (index,) = [index for index, column in enumerate(shown.table.columns) if column.key == "mlm.loss"]
    cell = row.cells[index]
    assert cell and cell.difference
    (point,) = chart["vconcat"][0]["data"]["values"]
    assert (point["mean"], point["low"], point["high"]) == (
        cell.difference.mean,
        cell.difference.low,
        cell.difference.high,
    )


def test_a_hostile_name_is_text_in_a_chart(project: Project, store: Store, planned: Callable[[str], Plan]) -> None:
    drawn = charts.plot(content(project, store, planned("hostile")), "grid", "svg").decode()
    assert "<script" not in drawn and "&lt;script&gt;" in drawn


def test_what_cannot_be_drawn_is_said(project: Project, store: Store, planned: Callable[[str], Plan]) -> None:
    shown = content(project, store, planned("masks"))
    with pytest.raises(ParibusError, match="no such chart"):
        charts.plot(shown, "pie", "svg")
    with pytest.raises(ParibusError, match=r"found a file ending in \.doc, expected one of \.svg, \.pdf, \.png"):
        charts.plot(shown, "forest", "doc")


def test_before_any_run_only_the_grid_can_be_drawn(
    project: Project, tmp_path: object, planned: Callable[[str], Plan]
) -> None:
    empty = content(project, Store(project.root / "empty"), planned("masks"))
    assert charts.grid(empty, 500)
    for kind in ("forest", "curves", "cost", "tuning"):
        with pytest.raises(ParibusError, match="nothing to draw"):
            charts.plot(empty, kind, "svg")
