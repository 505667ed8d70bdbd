"""The pages inside MLflow's own server: `mlflow server --app-name paribus` finds `create_app` by its entry point."""

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from html import escape
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, FastAPI
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from paribus.errors import ParibusError
from paribus.pages.web import FOLDER, PREFIX, Site, policy
from paribus.project import find
from paribus.store.store import Store

# First of all: MLflow's own scripts read what ours sets.
_TAG = f'<head><script src="{PREFIX}/nav.js"></script>'.encode()
_HEADERS = {"Content-Security-Policy": policy(), "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin"}

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]


def create_app() -> FastAPI:
    """MLflow's application with our pages below /paribus, of the project in the current folder."""
    from mlflow.server.fastapi_app import create_fastapi_app  # internal: pinned by a test

    app: FastAPI = create_fastapi_app()
    app.include_router(_router())
    # MLflow mounts its older Flask application at "/", which takes every path: it stays last.
    for mount in [route for route in app.router.routes if getattr(route, "path", None) in ("", "/")]:
        if type(mount).__name__ == "Mount":
            app.router.routes.remove(mount)
            app.router.routes.append(mount)
    app.add_middleware(_Linked)
    return app


def _router() -> APIRouter:
    project = find()
    site = Site(project, Store(project.store, project.settings.lease_seconds))
    router = APIRouter(prefix=PREFIX)
    with suppress(ParibusError):  # a page says what is wrong, and the others are shown
        site.warm()

    def shown(make: Callable[[], str]) -> HTMLResponse:
        try:
            return HTMLResponse(make(), headers=_HEADERS)
        except ParibusError as error:
            return HTMLResponse(f"<h1>Not shown</h1><p>{escape(str(error))}</p>", 404, headers=_HEADERS)

    @router.get("")
    def without_slash() -> RedirectResponse:
        return RedirectResponse(f"{PREFIX}/")

    @router.get("/")
    def experiments() -> HTMLResponse:
        return shown(site.experiments)

    @router.get("/experiments/{name}")
    def experiment(name: str) -> HTMLResponse:
        return shown(lambda: site.experiment(site.plan(name)))

    @router.get("/charts/{name}/{kind}/{width}")
    def chart(name: str, kind: str, width: str) -> Response:
        try:
            headers = {**_HEADERS, "Cache-Control": "no-store"}  # later it shows what its page then shows
            return Response(site.chart(name, kind, width), 200, headers, "image/svg+xml")
        except ParibusError as error:
            return Response(str(error), 404, _HEADERS, "text/plain")

    @router.get("/papers")
    def papers() -> HTMLResponse:
        return shown(site.papers)

    @router.get("/papers/{name}")
    def paper(name: str) -> HTMLResponse:
        return shown(lambda: site.paper(name))

    @router.get("/runs/{key}")
    def run(key: str) -> Response:
        found = _in_mlflow(key)
        if found is None:
            told = f"{escape(key)}: <code>paribus sync</code> mirrors what experiments ask for now."
            return HTMLResponse(f"<h1>Not in MLflow</h1><p>{told}</p>", 404, _HEADERS)
        experiment, id = found
        return RedirectResponse(f"/#/experiments/{quote(experiment)}/runs/{quote(id)}")

    @router.get("/nav.js")
    def nav() -> Response:
        return Response((FOLDER / "nav.js").read_text(encoding="utf-8"), media_type="text/javascript")

    return router


def _in_mlflow(key: str) -> tuple[str, str] | None:
    """Experiment and id of the MLflow run of a run's key."""
    from mlflow.entities import ViewType
    from mlflow.server.handlers import _get_tracking_store  # internal: pinned by a test

    if not key.removeprefix("run-").isalnum():
        return None
    store = _get_tracking_store()
    experiments = [each.experiment_id for each in store.search_experiments()]
    asked = f"tags.`paribus.run` = '{key}' AND tags.`paribus.kind` = 'run'"
    found = store.search_runs(experiments, asked, ViewType.ACTIVE_ONLY, 1)
    return (found[0].info.experiment_id, found[0].info.run_id) if found else None


class _Linked:
    """Puts our script into MLflow's page."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/":
            await self._app(scope, receive, send)
            return
        start: Scope = {}
        body = b""

        async def changed(message: Scope) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start":
                start = message
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                text = body.replace(b"<head>", _TAG, 1)
                headers = [(k, v) for k, v in start["headers"] if k.lower() not in (b"content-length", b"etag")]
                headers.append((b"content-length", str(len(text)).encode()))
                await send({**start, "headers": headers})
                await send({"type": "http.response.body", "body": text})

        await self._app(scope, receive, changed)
