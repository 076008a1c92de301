"""The page: its files lie in the folder `page` beside this module, and are served as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "page"
INDEX = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""By suffix. What the system believes about suffixes is not asked: a browser runs no module of another type."""


def page_routes(folder: Path = FOLDER) -> list[Any]:
    """Routes of the page, `/` and `/page/NAME`: one for each file that is there now; none where there is no page."""
    from starlette.routing import Route

    if not (folder / INDEX).is_file():
        return []
    files = sorted(path for path in folder.iterdir() if path.suffix in TYPES)
    routes = [Route(f"/page/{path.name}", _served(path), methods=["GET"]) for path in files]
    return [Route("/", _served(folder / INDEX), methods=["GET"]), *routes]


def _served(path: Path) -> Any:
    """An endpoint that answers with a file."""
    from starlette.responses import FileResponse

    async def file(request: Any) -> Any:
        return FileResponse(path, media_type=TYPES[path.suffix], headers={"Cache-Control": "no-cache"})

    return file
