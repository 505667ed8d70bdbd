"""The pages as HTML: each a function of a project and its store. Served by server.py, or written as one file."""

import base64
import hashlib
from collections import Counter
from datetime import datetime
from functools import cache
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from paribus import __version__
from paribus.errors import ParibusError
from paribus.jobs.plans import queued
from paribus.jobs.queue import ended
from paribus.jobs.storage import queues
from paribus.pages import charts
from paribus.pages.content import Content
from paribus.plan.plan import Plan
from paribus.project import PACKAGE, Project
from paribus.spec.load import suggest
from paribus.store.store import Store
from paribus.tables import certificate
from paribus.tables.experiment import reproducing
from paribus.tables.published import paper_table, unreproduced
from paribus.tables.render import page

PREFIX = "/paribus"
FOLDER = PACKAGE / "dashboards" / "pages"
WIDTHS = {"wide": 620, "narrow": 230}
"""Pixels of a chart's plotting area on a desk and on a phone."""
ALTERNATIVES = {
    "forest": "Forest plot; its numbers are in the table above",
    "curves": "Line chart of the training loss, a line an arm",
    "cost": "Bar chart of minutes a run, a bar an arm",
    "tuning": "Line chart of the validation loss by value tried, a line an arm",
}
"""What a screen reader says of a chart that is an image."""


def content(project: Project, store: Store, plan: Plan) -> Content:
    """What the pages of `plan` show now."""
    failed, finished = ended(store, [plan.name])
    return Content(plan, store, project, failed, finished.get(plan.name, {}))


class Site:
    """Every page of one project. `served`: by a server, so that pages link to each other and to MLflow."""

    def __init__(self, project: Project, store: Store, served: bool = True) -> None:
        self.project, self.store, self.served = project, store, served
        self._last: Content | None = None

    def warm(self) -> None:
        """Load what the first page would: the project's files, the queues, and what intervals are computed with."""
        import scipy.special  # noqa: F401

        self.experiments()

    def experiments(self) -> str:
        """What was queued, with its progress; and what could be."""
        problems: list[str] = []
        rows, known = [], set()
        for found in self.plans(problems):
            known.add(found.experiment_name)
            states = content(self.project, self.store, found).states
            rows.append(
                {
                    "name": found.label,
                    "question": found.experiment.question,
                    "arms": len(found.arms),
                    "seeds": found.seeds,
                    "runs": len(states),
                    "done": sum(state == "done" for state in states.values()),
                    "state": summary(states.values()),
                }
            )
        idle = [(name, self.project.experiments.get(name).question) for name in self.project.experiments]
        idle = [(name, question) for name, question in idle if name not in known]
        return self._page("experiments.html", "Experiments", "experiments", rows=rows, idle=idle, problems=problems)

    def experiment(self, found: Plan) -> str:
        """One experiment: question and expectation first, then the table, the charts and the runs."""
        shown = self._last = content(self.project, self.store, found)
        states = shown.states
        runs = {at: run.key for at, run in shown.runs.items()}
        cells = [
            (arm.label, [(states[arm.label, seed], runs.get((arm.label, seed))) for seed in range(found.seeds)])
            for arm in found.arms
        ]
        return self._page(
            "experiment.html",
            found.label,
            "experiments",
            name=found.label,
            experiment=found.experiment,
            baseline=found.baseline.label,
            state=summary(states.values()),
            done=sum(state == "done" for state in states.values()),
            runs=len(states),
            table=Markup(page.fragment(shown.table)),
            forest=self._chart("forest", shown),
            curves=self._chart("curves", shown),
            cost=self._chart("cost", shown),
            tuning=self._chart("tuning", shown),
            warnings=shown.table.warnings,
            claims=[claim.sentence for claim in shown.table.claims],
            certificates=[
                (arm, found.mark, [line for line in found.lines if line.status != "equal"])
                for arm, found in shown.certificates.items()
            ],
            told=certificate.shown,
            seeds=range(found.seeds),
            grid=cells,
            anchor=page.anchor,
            listed=None if self.served else Markup(page.runs(shown.table)),
            command=f"paribus run {found.command}",
            command_table=f"paribus table {found.command} --format tex",
        )

    def papers(self) -> str:
        """Every table of the papers."""
        by: dict[str, list[str]] = {}
        for name in self.project.experiments:
            for table in self.project.experiments.get(name).reproduces:
                by.setdefault(table, []).append(name)
        tables = [self.project.tables.get(name) for name in self.project.tables]
        rows = [
            {
                "id": table.id,
                "title": table.title,
                "paper": f"{table.paper.authors} {table.paper.year or ''}{table.paper.place}",
                "kind": table.kind,
                "experiments": ", ".join(by.get(table.id, ())),
            }
            for table in tables
        ]
        return self._page("papers.html", "Paper tables", "papers", rows=rows)

    def paper(self, name: str) -> str:
        """A table of a paper, beside it each experiment that was queued to reproduce it."""
        found: list[dict[str, Any]] = []
        for planned in self.plans([]):
            if name in planned.experiment.reproduces:
                table = content(self.project, self.store, planned).beside(self.project.tables.get(name))
                link = f"{PREFIX}/experiments/{quote(planned.label)}"
                found.append({"table": table, "name": planned.label, "link": link})
        if not found:
            paper, others = self.project.tables.get(name), reproducing(self.project, name)
            notes = [f"There are no runs of {other} yet; this makes them: `paribus run {other}`" for other in others]
            found = [{"table": paper_table(paper, *(notes or [unreproduced(paper)])), "name": name, "link": ""}]
        tables = [
            {
                "title": told["table"].title,
                "question": told["table"].question,
                "expect": told["table"].expect,
                "name": told["name"],
                "link": told["link"],
                "warnings": told["table"].warnings,
                "html": Markup(page.fragment(told["table"], told["link"])),
            }
            for told in found
        ]
        return self._page("paper.html", tables[0]["title"], "papers", tables=tables)

    def plan(self, label: str) -> Plan:
        """The queued plan of a label. ParibusError where there is none."""
        there, name = queues(self.store), label.partition("+")[0]
        if name not in there:
            raise ParibusError(f"nothing is queued as {label!r}" + suggest(label, there))
        problems: list[str] = []
        found = {each.label: each for each in queued(self.project, self.store, [name], problems.append)}
        if label not in found:
            raise ParibusError("; ".join(problems) or f"nothing is queued as {label!r}" + suggest(label, found))
        return found[label]

    def plans(self, problems: list[str]) -> list[Plan]:
        """What was queued, planned again; what no longer plans is said in `problems`."""
        return queued(self.project, self.store, queues(self.store), problems.append)

    def chart(self, label: str, kind: str, width: str) -> str:
        """An SVG of what the page of `label` shows: as it did, if it was the last. ParibusError where there is none."""
        shown = self._last
        if shown is None or shown.plan.label != label:
            shown = content(self.project, self.store, self.plan(label))
        spec = charts.KINDS[kind](shown, WIDTHS[width]) if kind in charts.KINDS and width in WIDTHS else None
        if spec is None:
            raise ParibusError(f"{label}: no chart {kind!r} of width {width!r}")
        # An image does not see the style of the page that it is in.
        style = f"<style>{page.style()} svg {{ color: var(--ink); }}</style>"
        return charts.draw(spec, "svg", charts.SCREEN).decode().replace(">", f">{style}", 1)

    def _chart(self, kind: str, shown: Content) -> Markup | None:
        """A chart in both widths, of which one is seen. Served, it is drawn when the page was seen and asks for it."""
        if not charts.drawable(shown, kind):
            return None
        if self.served:
            return Markup(
                '<picture><source media="screen and (max-width: 40rem)" srcset="{0}/narrow">'
                '<img src="{0}/wide" alt="{1}"></picture>'
            ).format(f"{PREFIX}/charts/{quote(shown.plan.label)}/{kind}", ALTERNATIVES[kind])
        drawn = []
        for name, width in WIDTHS.items():
            spec = charts.KINDS[kind](shown, width)
            assert spec
            svg = charts.draw(spec, "svg", charts.SCREEN).decode()
            drawn.append(Markup('<div class="{}">{}</div>').format(name, Markup(svg)))
        return Markup("").join(drawn)

    def _page(self, template: str, title: str, here: str, **values: Any) -> str:
        return (
            _environment()
            .get_template(template)
            .render(
                title=title,
                here=here,
                served=self.served,
                prefix=PREFIX,
                style=Markup(page.style()),
                script=Markup(script()),
                version=__version__,
                now=datetime.now().strftime("%Y-%m-%d %H:%M"),
                **values,
            )
        )


def summary(states: Any) -> str:
    """'3 done, 1 diverged' of states."""
    return ", ".join(f"{count} {state}" for state, count in Counter(states).most_common())


@cache
def script() -> str:
    """The one script: it sorts tables."""
    return (FOLDER / "sort.js").read_text(encoding="utf-8")


@cache
def policy() -> str:
    """What a page may load: nothing but what is in it, and its charts."""
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    allowed = f"style-src 'unsafe-inline'; img-src 'self' data:; script-src 'sha256-{digest}'"
    return f"default-src 'none'; {allowed}; base-uri 'none'"


@cache
def _environment() -> Environment:
    def figure(caption: str, drawing: Markup) -> Markup:
        return Markup('<figure role="group" aria-label="{0}">{1}<figcaption>{0}</figcaption></figure>').format(
            caption, drawing
        )

    found = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals["figure"] = figure
    return found
