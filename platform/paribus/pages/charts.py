"""Charts as Vega-Lite, drawn without a browser: of one table, one plan, what the store measured."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from paribus.errors import ParibusError
from paribus.pages.content import Content
from paribus.spec.load import suggest
from paribus.tables.render import digits

Spec = dict[str, Any]

ROW = 22  # pixels of an arm's row
# Okabe and Ito's colours, which the colour-blind tell apart; the baseline comes first.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
STATES = {"done": "#009e73", "running": "#56b4e9", "missing": "#bbbbbb", "untuned": "#bbbbbb"}
BAD = "#d55e00"
VERDICTS = {"helps": "#009e73", "hurts": "#d55e00", "equivalent": "#0072b2", "": "#7f7f7f"}
SHAPES = {"helps": "triangle-up", "hurts": "triangle-down", "equivalent": "square", "not judged": "cross", "": "circle"}

# A mark at a place of its own; with the arms' data it would be drawn once for each.
ONCE: Spec = {"data": {"values": [{}]}}


@dataclass(frozen=True)
class Theme:
    """Colours and font of what is neither data nor arm."""

    ink: str
    rule: str
    font: str


SCREEN = Theme("currentColor", "var(--rule)", "var(--sans)")
"""For a page: the colours are the page's own, so that dark mode and print need no second chart."""
PAPER = Theme("#111", "#ddd", "Helvetica, Arial, sans-serif")


def forest(content: Content, width: int) -> Spec | None:
    """The difference of each arm to the baseline with its interval, a panel a column; None where there is none."""
    table = content.table
    points: list[Spec] = [
        {
            "column": f"{column.label}{digits.unit(column)}",
            "better": column.higher_is_better,
            "arm": content.short[row.label],
            "mean": cell.difference.mean,
            "low": cell.difference.low,
            "high": cell.difference.high,
            "sesoi": cell.verdict.sesoi if cell.verdict else None,
            "verdict": cell.verdict.kind if cell.verdict else "not judged",
        }
        for index, column in enumerate(table.columns)
        for row in table.rows
        if (cell := row.cells[index]) is not None and cell.difference is not None
    ]
    if not points:
        return None
    panels = []
    for title in dict.fromkeys(point["column"] for point in points):
        mine = [point for point in points if point["column"] == title]
        way = {"True": "right is better", "False": "left is better"}.get(str(mine[0]["better"]), "")
        y = {"field": "arm", "type": "nominal", "sort": None, "title": None}
        panels.append(
            {
                "title": {"text": title, "subtitle": way},
                "width": width,
                "height": {"step": ROW},
                "data": {"values": mine},
                "layer": [
                    *([_band(mine[0]["sesoi"])] if mine[0]["sesoi"] else []),
                    {**ONCE, "mark": {"type": "rule", "strokeDash": [3, 3]}, "encoding": {"x": {"datum": 0}}},
                    {
                        "transform": [{"filter": "datum.low !== null"}],
                        "mark": {"type": "rule", "size": 2},
                        "encoding": {"y": y, "x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"}},
                    },
                    {
                        "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
                        "encoding": {
                            "y": y,
                            "x": {"field": "mean", "type": "quantitative", "title": None},
                            "color": _verdicts([point["verdict"] for point in points]),
                            "shape": _verdicts([point["verdict"] for point in points], SHAPES),
                        },
                    },
                ],
            }
        )
    return {"vconcat": panels, "spacing": 18}


def _band(sesoi: float) -> Spec:
    """Where differences are smaller than the smallest effect of interest."""
    return {
        **ONCE,
        "mark": {"type": "rect", "opacity": 0.12, "color": COLOURS[0]},
        "encoding": {"x": {"datum": -sesoi}, "x2": {"datum": sesoi}},
    }


def _verdicts(there: Sequence[str], table: Mapping[str, str] | None = None) -> Spec:
    known = list(dict.fromkeys(there))
    return {
        "field": "verdict",
        "type": "nominal",
        "scale": {"domain": known, "range": [(table or VERDICTS).get(kind, (table or VERDICTS)[""]) for kind in known]},
        "legend": {"title": None, "orient": "bottom"},
    }


def _arms(arms: Sequence[str], width: int) -> Spec:
    """Each arm in a colour of its own, as the line of that colour in the legend."""
    return {
        "field": "arm",
        "type": "nominal",
        "sort": None,
        "scale": {"domain": arms, "range": [COLOURS[index % len(COLOURS)] for index in range(len(arms))]},
        "legend": {
            "title": None,
            "orient": "bottom",
            "columns": 1 if width < 400 else 3,
            "symbolType": "stroke",
            "symbolOpacity": 1,
        },
    }


def tuning(content: Content, width: int) -> Spec | None:
    """What each trial of an arm scored at its value: the sensitivity curve."""
    accounts = content.table.tuned
    points: list[Spec] = [
        {
            "arm": content.short[account.arm],
            "value": trial.value,
            "loss": trial.loss,
            "trial": "pruned" if trial.pruned else "chosen" if trial.value == account.chosen else "trained",
        }
        for account in accounts
        for trial in account.tried
        if trial.loss is not None
    ]
    if not points:
        return None
    log = content.plan.tunings[0].tune.log
    x = {
        "field": "value",
        "type": "quantitative",
        "title": accounts[0].path,
        "scale": {"type": "log" if log else "linear"},
    }
    y = {"field": "loss", "type": "quantitative", "title": "validation loss (nats)", "scale": {"zero": False}}
    colour = _arms(list(dict.fromkeys(point["arm"] for point in points)), width)
    shape = {"field": "trial", "type": "nominal", "legend": {"title": None, "orient": "bottom"}}
    return {
        "width": width,
        "height": 240,
        "data": {"values": points},
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 1}, "encoding": {"x": x, "y": y, "color": colour}},
            {"mark": {"type": "point", "size": 60}, "encoding": {"x": x, "y": y, "color": colour, "shape": shape}},
        ],
    }


def curves(content: Content, width: int) -> Spec | None:
    """The training loss of each arm over tokens."""
    return learning({content.short[label]: curve for label, curve in content.curves.items()}, width)


def learning(curves: Mapping[str, Sequence[tuple[float, Sequence[float]]]], width: int) -> Spec | None:
    """By name, the losses of the seeds at each number of tokens: their mean, with the band from lowest to highest."""
    points = [
        {"arm": name, "tokens": tokens, "loss": sum(losses) / len(losses), "low": min(losses), "high": max(losses)}
        for name, curve in curves.items()
        for tokens, losses in curve
    ]
    if not points:
        return None
    colour = _arms([*curves], width)
    x = {"field": "tokens", "type": "quantitative", "title": "tokens trained on", "axis": {"format": "~s"}}
    x["scale"] = {"nice": False}
    y = {"type": "quantitative", "scale": {"zero": False}}
    return {
        "width": width,
        "height": 280,
        "data": {"values": points},
        "layer": [
            {
                "mark": {"type": "area", "opacity": 0.18},
                "encoding": {
                    "x": x,
                    "y": {**y, "field": "low", "title": "training loss (nats)"},
                    "y2": {"field": "high"},
                    "color": colour,
                },
            },
            {
                "mark": {"type": "line", "strokeWidth": 1.6},
                "encoding": {"x": x, "y": {**y, "field": "loss"}, "color": colour},
            },
        ],
    }


def cost(content: Content, width: int) -> Spec | None:
    """What a run of each arm took, in minutes of one worker: pretraining, evaluation, fine-tuning."""
    points = [
        {"arm": content.short[label], "part": part, "minutes": seconds / 60, "order": order}
        for label, parts in content.seconds.items()
        for order, (part, seconds) in enumerate(parts.items())
    ]
    if not points:
        return None
    return {
        "width": width,
        "height": {"step": ROW},
        "data": {"values": points},
        "mark": "bar",
        "encoding": {
            "y": {"field": "arm", "type": "nominal", "sort": None, "title": None},
            "x": {"field": "minutes", "type": "quantitative", "title": "minutes a run, median over seeds"},
            "color": {
                "field": "part",
                "type": "nominal",
                "sort": None,
                "scale": {"range": list(COLOURS)},
                "legend": {"title": None, "orient": "bottom", "columns": 2 if width < 400 else 4},
            },
            "order": {"field": "order"},
        },
    }


def grid(content: Content, width: int) -> Spec | None:
    """Each run as a cell, arms by seeds, coloured by its state."""
    cells: list[Spec] = [
        {"arm": content.short[arm], "seed": seed, "state": state} for (arm, seed), state in content.states.items()
    ]
    known = list(dict.fromkeys(cell["state"] for cell in cells))
    axes = {
        "x": {"field": "seed", "type": "ordinal", "axis": {"labelAngle": 0, "orient": "top"}},
        "y": {"field": "arm", "type": "nominal", "sort": None, "title": None},
    }
    return {
        "width": {"step": max(ROW, min(70, width // max(1, content.plan.seeds)))},
        "height": {"step": ROW},
        "data": {"values": cells},
        "mark": {"type": "rect", "stroke": "white"},
        "encoding": {
            **axes,
            "color": {
                "field": "state",
                "type": "nominal",
                "scale": {"domain": known, "range": [STATES.get(state, BAD) for state in known]},
                "legend": {"title": None, "orient": "bottom"},
            },
        },
    }


KINDS: Mapping[str, Callable[[Content, int], Spec | None]] = {
    "forest": forest,
    "curves": curves,
    "cost": cost,
    "tuning": tuning,
    "grid": grid,
}
FORMATS = ("svg", "pdf", "png")


def drawable(content: Content, kind: str) -> bool:
    """Whether one of KINDS has anything to show, told without what only drawing it takes."""
    return content.learns if kind == "curves" else KINDS[kind](content, 0) is not None


def draw(spec: Spec, format: str = "svg", theme: Theme = PAPER) -> bytes:
    """A chart as a file's content."""
    axis = {"labelColor": theme.ink, "titleColor": theme.ink, "domainColor": theme.ink, "tickColor": theme.rule}
    title = {"color": theme.ink, "subtitleColor": theme.ink, "anchor": "start", "fontSize": 13, "fontWeight": 600}
    complete = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "background": "white" if format == "png" else None,
        **spec,
        "config": {
            "font": theme.font,
            # Vega cuts a long label in the middle of a character; ours are short (Content.short).
            "axis": {**axis, "gridColor": theme.rule, "labelFontSize": 12, "titleFontSize": 12, "labelLimit": 0},
            "title": title,
            "legend": {"labelColor": theme.ink, "labelFontSize": 12, "labelLimit": 0},
            "view": {"stroke": None},
            "rule": {"color": theme.ink},
            "point": {"color": theme.ink},
        },
    }
    return _convert(json.dumps(complete), format)


@lru_cache(maxsize=100)
def _convert(chart: str, format: str) -> bytes:
    import vl_convert  # half a second, the first chart another half

    if format == "svg":
        return vl_convert.vegalite_to_svg(chart).encode()
    if format == "pdf":
        return bytes(vl_convert.vegalite_to_pdf(chart))
    return bytes(vl_convert.vegalite_to_png(chart, scale=2))


def plot(content: Content, kind: str, format: str) -> bytes:
    """One of KINDS as a file's content. ParibusError where there is nothing to draw."""
    if kind not in KINDS:
        raise ParibusError(f"--kind {kind}: no such chart" + suggest(kind, KINDS))
    if format not in FORMATS:
        raise ParibusError(f"--out: found a file ending in .{format}, expected one of .{', .'.join(FORMATS)}")
    spec = KINDS[kind](content, 520)
    if kind == "tuning" and not content.plan.experiment.tune:
        raise ParibusError(f"{content.plan.name}: the experiment tunes nothing (it has no `tune`), so nothing to draw")
    if spec is None:
        raise ParibusError(f"{content.plan.name}: nothing to draw as {kind} yet")
    return draw(spec, format)
