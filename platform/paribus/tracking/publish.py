"""Named views inside stock MLflow: the charts and filters of its run page, as one tag of the experiment each.

The tag's format is MLflow's own and undocumented: a test opens the views in a browser.
"""

import base64
import json
import zlib
from typing import Any

from paribus.errors import ParibusError
from paribus.plan.plan import Plan
from paribus.tables.table import Table
from paribus.tracking.mirror import connect

VIEW = "mlflow.sharedViewState."


def publish(plan: Plan, table: Table, uri: str) -> dict[str, str]:
    """Write the views of a plan that was synced: name to the address, which follows the server's own.

    `arms`: a bar an arm for each judged column; `curves`: the training loss of every run, coloured and averaged by arm.
    ParibusError where MLflow has nothing of the plan.
    """
    client = connect(uri)
    experiment = client.get_experiment_by_name(plan.name)
    if experiment is None:
        raise ParibusError(f"{plan.name}: MLflow has nothing of it; `paribus run {plan.command}` makes its runs first")
    measured = [column for column in table.columns if column.judged]
    bars = [_chart("BAR", f"table/{column.key}/mean", f"{column.label}, mean over seeds") for column in measured]
    other = plan.label.removeprefix(plan.name).replace("+", "-")  # with overrides it has views of its own
    views = {
        f"paribus-arms{other}": _state(_only("arm", plan), bars),
        f"paribus-curves{other}": _state(_only("pretrain", plan), [_line("train/loss", "Training loss")]),
    }
    for name, state in views.items():
        packed = base64.b64encode(zlib.compress(json.dumps(state).encode(), 9)).decode()
        client.set_experiment_tag(experiment.experiment_id, VIEW + name, f"deflate;{packed}")
    where = f"#/experiments/{experiment.experiment_id}/runs"
    return {name: f"/{where}?viewStateShareKey={name}&compareRunsMode=CHART" for name in views}


def _only(kind: str, plan: Plan) -> str:
    quote = '"' if "'" in plan.label else "'"
    return f"tags.`paribus.kind` = '{kind}' and tags.`paribus.plan` = {quote}{plan.label}{quote}"


def _line(metric: str, title: str) -> dict[str, Any]:
    return {
        **_chart("LINE", metric, title),
        "selectedMetricKeys": [metric],
        "lineSmoothness": 0,
        "scaleType": "linear",
        "xAxisKey": "step",
        "xAxisScaleType": "linear",
        "selectedXAxisMetricKey": "",
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "range": {},
        "ignoreOutliers": False,
        "useGlobalXaxisKey": False,
        "useGlobalLineSmoothing": False,
    }


def _chart(kind: str, metric: str, title: str) -> dict[str, Any]:
    return {
        "uuid": f"{kind}-{metric}",
        "type": kind,
        "runsCountToCompare": 100,
        "metricSectionId": "paribus",
        "deleted": False,
        "isGenerated": False,
        "displayName": title,
        "metricKey": metric,
    }


def _state(only: str, charts: list[dict[str, Any]]) -> dict[str, Any]:
    """The state of MLflow's run page: a filter, its charts, and the runs of one arm taken together."""
    arms = [{"mode": "tag", "groupByData": "paribus.arm"}]
    return {
        "searchFilter": only,
        "orderByKey": "attributes.start_time",
        "orderByAsc": True,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": ["tags.`paribus.arm`", "tags.`paribus.seed`"],
        "columnOrder": [],
        "columnWidths": {},
        "runsExpanded": {},
        "runsPinned": [],
        "runsHidden": [],
        "runsVisibilityMap": {},
        "runsHiddenMode": "SHOWALL",
        "compareRunCharts": charts,
        "compareRunSections": [{"uuid": "paribus", "name": "paribus", "display": True, "isReordered": False}],
        "viewMaximized": False,
        "runListHidden": False,
        "isAccordionReordered": True,  # ours first, before those that MLflow makes of every metric
        "groupBy": {"aggregateFunction": "average", "groupByKeys": arms},
        "groupsExpanded": {},
        "autoRefreshEnabled": True,
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
        "chartsSearchFilter": "",
        "compareRunsMode": "CHART",
    }
