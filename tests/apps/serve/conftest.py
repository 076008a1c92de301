"""A real server in a process of its own, on tiny random models and a small collection."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from naive.program import EDGE, config_of, environment_of
from naive.waiting import PATIENCE_S

from edge.apps.collection.collection import Collection
from edge.apps.serve.limits import Limits
from edge.apps.serve.server import HttpServer, ServerOptions
from edge.resident import anonymous_resident
from tests.apps.documents.conftest import pdf_bytes
from tests.apps.serve import every_request
from tests.conftest import axe, chromium

collect_ignore = [
    *([] if chromium() else ["test_page_browser.py", "test_page_views.py"]),
    *([] if chromium() and axe() else ["test_page_axe.py"]),
    *([] if os.environ.get("EDGE_HINDSIGHT") else ["test_serve_hindsight.py"]),
    *([] if os.environ.get("EDGE_MCP_CONFORMANCE") else ["test_serve_conformance.py"]),
]

TEXTS = {
    "river.md": "# The river\n\nThe river floods every spring when the snow melts in the hills.\n\n"
    "The bridge was closed for nine days last year.\n",
    "garden.md": "# The garden\n\nTomatoes need six hours of sun a day.\n\nWater them in the morning.\n",
    "office.md": "# The office\n\nThe office opens at eight and closes at six.\n",
}


class Running:
    """A server that runs."""

    def __init__(self, process: subprocess.Popen[str], url: str, environment: dict[str, str], folder: Path) -> None:
        self.process = process
        self.url = url
        self.environment = environment
        self.folder = folder
        self.pid = process.pid

    def client(self, **options: Any) -> Any:
        """An HTTP client of the server."""
        import httpx

        return httpx.Client(base_url=self.url, timeout=60, **options)

    def stop(self) -> tuple[int, str]:
        """Ends it as Ctrl-C does; its exit code, and what it wrote to stderr."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            _, errors = self.process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            _, errors = self.process.communicate()
        return self.process.returncode, errors


@pytest.fixture(scope="session")
def served_settings(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a server: folders of its own, the tiny models, a collection of three files."""
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    base = tmp_path_factory.mktemp("served")
    runtime = base / "run"
    runtime.mkdir(mode=0o700)
    index(base, "documents", TEXTS, "collection", tiny_models)
    return environment_of(base, EDGE_MODELS_DIR=str(tiny_models), XDG_RUNTIME_DIR=str(runtime))


def index(base: Path, folder: str, texts: Mapping[str, str | bytes], collection: str, models: Path) -> None:
    """Writes documents into a new folder, and indexes them."""
    (base / folder).mkdir()
    for name, text in texts.items():
        (base / folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    with Collection(base / collection, config=config_of(models, base / "scratch")) as made:
        made.index([base / folder])


@pytest.fixture(scope="session")
def start_server(served_settings: dict[str, str]) -> Iterator[Callable[..., Running]]:
    """Starts `edge serve` with further arguments and waits until it answers. `first`: lines that its program begins
    with."""
    httpx = pytest.importorskip("httpx")
    base = Path(served_settings["EDGE_SCRATCH_DIR"]).parent
    started: list[Running] = []

    def start(
        *arguments: str, runtime: Path | None = None, usual: bool = True, first: str = "", **environment: str
    ) -> Running:
        settings = {**served_settings, **environment}
        if runtime is not None:
            runtime.mkdir(mode=0o700, exist_ok=True)
            settings["XDG_RUNTIME_DIR"] = str(runtime)
        usually = ("--port", "0", "-c", str(base / "collection"), "--memory-path", str(base / "memory"))
        python, option, program = EDGE
        command = [python, option, first + program, "serve", *(usually if usual else ()), *arguments]
        process = subprocess.Popen(
            command, env=settings, cwd=base, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        if found is None:
            process.wait(PATIENCE_S)
            assert process.stderr is not None
            pytest.fail(f"the server did not start: {line}{process.stderr.read()}")
        started.append(Running(process, found[0], settings, base))
        httpx.get(f"{found[0]}/health", timeout=60)  # its sockets listen from the start, and it answers when it serves
        return started[-1]

    yield start
    for running in started:  # all at once
        if running.process.poll() is None:
            running.process.send_signal(signal.SIGINT)
    for running in started:
        running.stop()


@pytest.fixture(scope="session")
def server(start_server: Callable[..., Running]) -> Running:
    """A server for all tests that leave it as it is."""
    return start_server()


@pytest.fixture
def here(tiny_models: Path, tmp_path: Path) -> Iterator[every_request.Site]:
    """A server inside this process, and a request of each kind."""
    pytest.importorskip("starlette")
    pytest.importorskip("httpx")
    with every_request.site(tiny_models, tmp_path) as found:
        yield found


@pytest.fixture
def inside(tiny_models: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[HttpServer]:
    """A server inside this process that waits long for bodies, with as much memory as the parameter says."""
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    room: int = getattr(request, "param", 10**9)
    config = config_of(tiny_models, tmp_path / "scratch", memory=anonymous_resident() + room)
    limits = Limits(body=64 << 20, body_s=600, pause_s=600)
    with HttpServer(config, ServerOptions(limits, memory=tmp_path / "memory")) as found:
        yield found


BEGINNING = "The river floods every spring [1]"
ENDLESS = "!"


class Writer(ThreadingHTTPServer):
    """A language model's server that writes until nobody reads any more. `asked`: an answer is being written; `left`:
    the reader of an answer has gone; `last`: the last request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Writing)
        self.asked = threading.Event()
        self.left = threading.Event()
        self.closing = threading.Event()
        self.last: dict[str, Any] = {}


class _Writing(BaseHTTPRequestHandler):
    server: Writer

    def do_POST(self) -> None:
        self.server.last = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        text = BEGINNING
        try:
            while not self.server.closing.wait(0.01):
                event = {"choices": [{"delta": {"content": text}, "finish_reason": None}]}
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                self.server.asked.set()
                text = ENDLESS
        except OSError:
            self.server.left.set()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def writer() -> Iterator[Writer]:
    with Writer() as writer:
        thread = threading.Thread(target=writer.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield writer
        writer.closing.set()
        writer.shutdown()
        thread.join()


@pytest.fixture
def writing(start_server: Callable[..., Running], tmp_path: Path, writer: Writer) -> Iterator[Running]:
    """A server whose language model is the writer."""
    running = start_server(runtime=tmp_path / "run", EDGE_LLM=f"http://127.0.0.1:{writer.server_address[1]}/v1")
    yield running
    running.stop()


# The page, in a browser

SETTLED = re.compile(r"results? in \d")
"""What the page says when a search has ended."""

HOSTILE = {
    "<img src=x onerror=pwned=1>.md": "# <script>pwned=1</script>\n\nThe quarry <img src=x onerror=pwned=1> opens "
    "[here](javascript:pwned=1) and [there](https://example.com/).\n\n<svg onload=pwned=1></svg>\n\n"
    "<iframe srcdoc='<script>parent.pwned=1</script>'></iframe>\n",
    "quarry.html": "<h1>The quarry</h1><script>pwned=1</script><p onclick=pwned=1>The quarry &lt;script&gt;pwned=1"
    "&lt;/script&gt; is deep.</p><img src=https://example.com/x.png>",
    "drawing.txt": "<svg xmlns='http://www.w3.org/2000/svg' onload='pwned=1'>\nThe quarry is drawn.\n</svg>\n",
    "source.py": '"""The quarry."""\n\nNAME = "</script><script>pwned=1</script>"\n\n\ndef quarry():\n    pass\n',
}
"""Documents, and one name, that would run a script if the page took them for HTML."""


@pytest.fixture(scope="session")
def site(start_server: Callable[..., Running], served_settings: dict[str, str], tiny_models: Path) -> Running:
    """A server with a second collection, of hostile documents."""
    base = Path(served_settings["EDGE_SCRATCH_DIR"]).parent
    index(base, "hostile", {**HOSTILE, "blob.bin": b"\0\1\2" * 100}, "hostile-collection", tiny_models)
    return start_server(
        "-c", str(base / "hostile-collection"), "--memory-path", str(base / "page-memory"), runtime=base / "run-page"
    )


RECIPES = {
    "pasta.md": "# Fresh pasta\n\nTake **00 flour**, `salt`, *eggs* (see [eggs](https://eggs.example/a) and\n"
    "[mine](eggs.md), ![a bowl](https://eggs.example/bowl.png)).\n\n"
    "## Cooking times\n\n| Shape | Minutes |\n|---|---|\n| Lasagne | 5 |\n\n"
    "1. Knead it.\n2. Wait:\n   - half an hour\n\n> Pasta waits\n> for nobody.\n\n"
    "```sh\nboil water\n\nsalt it\n```\n\n- [x] bought\n\n[x](javascript:pwned=1)\n",
    "pasta.html": "<nav><a href='/'>Home</a></nav><h1>Fresh pasta</h1><p>Take <b>00 flour</b>,\nsalt.</p>"
    "<h2>Cooking times</h2><table><tr><th>Shape<th>Minutes<tr><td>Lasagne<td>5</table><ul><li>Knead it.<li>Wait.</ul>"
    "<pre>boil water\n\nsalt it</pre>",
}
RENDERED = {
    "pasta.md": "<h3>Fresh pasta</h3><p>Take <strong>00 flour</strong>, <code>salt</code>, <em>eggs</em> (see "
    '<a href="https://eggs.example/a" title="https://eggs.example/a" target="_blank" rel="noopener noreferrer">eggs</a>'
    " and <span>mine</span>, a bowl).</p><h4>Cooking times</h4>"
    '<div class="scroll"><table><thead><tr><th scope="col">Shape</th><th scope="col">Minutes</th></tr></thead>'
    "<tbody><tr><td>Lasagne</td><td>5</td></tr></tbody></table></div>"
    '<ol><li value="1">Knead it.</li><li value="2">Wait:</li></ol><ul><li data-depth="1">half an hour</li></ul>'
    "<blockquote><p>Pasta waits for nobody.</p></blockquote>"
    "<pre><code>boil water\n\nsalt it</code></pre><ul><li>☑ bought</li></ul><p><span>x</span></p>",
    "pasta.html": "<h3>Fresh pasta</h3><p>Take 00 flour, salt.</p><h4>Cooking times</h4>"
    '<div class="scroll"><table><thead><tr><th scope="col">Shape</th><th scope="col">Minutes</th></tr></thead>'
    "<tbody><tr><td>Lasagne</td><td>5</td></tr></tbody></table></div><ul><li>Knead it.</li><li>Wait.</li></ul>"
    "<pre><code>boil water\n\nsalt it</code></pre>",
}
"""A recipe as Markdown and as HTML, and the elements that the page makes of each."""


@pytest.fixture(scope="session")
def papers(start_server: Callable[..., Running], served_settings: dict[str, str], tiny_models: Path) -> Running:
    """A server with a collection of a PDF of two pages, a note, and a recipe in Markdown and in HTML."""
    base = Path(served_settings["EDGE_SCRATCH_DIR"]).parent
    first = [(72, 720, 20, "Rivers"), (72, 690, 11, "They rise in spring,"), (72, 676, 11, "when the snow melts.")]
    rivers = pdf_bytes([first, [(72, 720, 11, "The bridge is closed then.")]])
    texts = {"rivers.pdf": rivers, "note.md": "# A note\n\nThe garden is dry.\n", **RECIPES}
    index(base, "papers", texts, "paper-collection", tiny_models)
    arguments = ("--port", "0", "-c", str(base / "paper-collection"), "--memory-path", str(base / "paper-memory"))
    return start_server(*arguments, runtime=base / "run-papers", usual=False)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The browser that the page is tested in."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=30_000)
    with sync_playwright() as playwright:
        # Root, as which containers run, has no sandbox of Chromium's.
        launched = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield launched
        launched.close()


def stream(*events: tuple[str, Any]) -> str:
    """The body of an answer of server-sent events."""
    return "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events)


class Opened:
    """The page in a tab of its own. `complaints`: errors of scripts, breaches of the policy; `elsewhere`: addresses
    that were asked for outside of the server."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.url = url
        self.complaints: list[str] = []
        self.elsewhere: list[str] = []
        self.context = browser.new_context(**{"reduced_motion": "reduce", **options})
        self.page = self.context.new_page()
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        self.page.on("request", self._asked)

    def go(self, view: str) -> Any:
        """Goes to a view, and returns Playwright's page."""
        self.page.goto(f"{self.url}/#{view}")
        self.page.locator(f"#view-{view.partition('?')[0]}").wait_for()
        return self.page

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.elsewhere.append(request.url)


@pytest.fixture
def tab(browser: Any) -> Iterator[Callable[..., Opened]]:
    """Opens the page of a server in a tab; nothing may go wrong in it, unless it is `troubled`."""
    made: list[tuple[Opened, bool]] = []

    def open_one(url: str, *, troubled: bool = False, **options: Any) -> Opened:
        made.append((Opened(browser, url, **options), troubled))
        return made[-1][0]

    yield open_one
    for each, _ in made:
        each.context.close()
    assert not [one for each, troubled in made if not troubled for one in (*each.complaints, *each.elsewhere)]


@pytest.fixture
def opened(tab: Callable[..., Opened], site: Running) -> Opened:
    return tab(site.url)
