"""What holds for every test: helpers can be imported (`packages`), a skip can be a failure, and ballast is held."""

import atexit
import gc
import importlib.util
import os
import runpy
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

runpy.run_path(str(Path(__file__).with_name("packages.py")))["load"]()

# With a test process for each core, threads of BLAS and OpenMP wait for each other at full speed: half of the time
# of some tests. Both read the variables when they are loaded. The programs that tests start have as many as elsewhere.
if "PYTEST_XDIST_WORKER" in os.environ:
    _threads = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS") if name not in os.environ}
    os.environ.update(_threads)
    for _name in ("numpy", "faiss"):
        importlib.import_module(_name)
    for _name in _threads:
        del os.environ[_name]

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would every program that they start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where Python may write no bytecode into the tree, it goes to a folder of this user that stays: to rewrite the
# assertions of all tests takes a process 15 s, and a program that a test starts would compile the package each time.
if sys.dont_write_bytecode and "PYTHONPYCACHEPREFIX" not in os.environ:
    _user = os.getuid() if hasattr(os, "getuid") else 0
    _compiled = Path(tempfile.gettempdir()) / f"edge-tests-compiled-{_user}"
    _compiled.mkdir(mode=0o700, exist_ok=True)
    if _compiled.stat().st_uid == _user:
        sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(_compiled)
        sys.dont_write_bytecode = False
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Reports of errors that tests provoke belong to no user. A worker ends without its exit functions, so its folder lies
# in that of the process that began it.
if (_worker := os.environ.get("PYTEST_XDIST_WORKER")) is None:
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="edge-tests-state-")
    atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)
else:
    os.environ["XDG_STATE_HOME"] = str(Path(os.environ["XDG_STATE_HOME"]) / _worker)

# A busy machine makes single examples slow; that is no failure.
# CI tries the same examples every time: it judges a change, and new examples are for work on the code.
settings.register_profile(
    "edge", deadline=None, database=None, print_blob=True, derandomize=os.environ.get("CI") == "true"
)
settings.load_profile("edge")


@pytest.fixture(scope="session", autouse=True)
def unflushed() -> None:
    """See `naive.unflushed`."""
    from naive.unflushed import leave_unflushed

    leave_unflushed()


@pytest.fixture(scope="session", autouse=True)
def reference_runtime() -> None:
    """See `naive.numpy_runtime`."""
    from naive.numpy_runtime import register

    register()


def chromium() -> str:
    """The program that the tests of the server's page are run in; empty without one, or without Playwright."""
    if importlib.util.find_spec("playwright") is None:
        return ""
    return next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
    )


def axe() -> str:
    """The file of axe-core, which judges how accessible the page is; empty unless `EDGE_AXE` names it."""
    return os.environ.get("EDGE_AXE", "")


def webgpu() -> bool:
    """Whether wgpu and a driver for it are there. Linux lists its Vulkan drivers in folders, or in a variable."""
    folders = [Path("/usr/share/vulkan/icd.d"), Path("/etc/vulkan/icd.d")]
    named = "VK_DRIVER_FILES" in os.environ
    drivers = sys.platform != "linux" or named or any(any(folder.glob("*.json")) for folder in folders)
    return drivers and importlib.util.find_spec("wgpu") is not None


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Says which tests are run that need a browser or a driver: without it they are not skipped, but not collected."""
    browser = chromium()
    page = "page: not tested in a browser, as Chromium or Playwright is missing"
    if browser:
        page = f"page: tested in {browser}" + ("" if axe() else "; not by axe-core, as EDGE_AXE names no axe.min.js")
    return [page, "webgpu: " + ("tested" if webgpu() else "not tested, as wgpu or a driver for Vulkan is missing")]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="A skipped test fails: every extra must be installed.")
    parser.addoption("--cases", type=int, default=0, help="Cases of each attack of the campaign, instead of a few.")
    parser.addoption("--first-case", type=int, default=1, help="The number of the first of them.")
    parser.addoption("--seed", type=int, default=1, help="Of everything that the campaign chooses by chance.")
    parser.addoption("--ballast", type=int, default=0, help="Megabytes that each test process holds from its start.")


_ballast = pytest.StashKey[bytearray]()


def pytest_configure(config: pytest.Config) -> None:
    """Holds the ballast. A test that passes only in a small process fails then. Without it the test would fail later,
    when earlier tests have imported more libraries."""
    size = config.getoption("--ballast") << 20
    config.stash[_ballast] = held = bytearray(size)
    held[::4096] = b"1" * len(range(0, size, 4096))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Takes the objects of the collected tests out of garbage collection. Closing a model collects garbage, and would
    look through all of them each time."""
    _freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Takes what a file of tests has left out of garbage collection, too: modules, and the tools' own notes."""
    yield
    if nextitem is not None and nextitem.path != item.path:
        _freeze()


def _freeze() -> None:
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _strict(item.config, (yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _strict(collector.config, (yield))


def _strict(config: pytest.Config, report: Report) -> Report:
    if report.skipped and config.getoption("--no-skips"):
        report.outcome = "failed"
        report.longrepr = f"skipped, but --no-skips asks for every test: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a random model; the same options give the same file."""
    from making.random_gguf import RandomModel

    folder = tmp_path_factory.mktemp("gguf")
    made: dict[str, Path] = {}

    def make(**options: Any) -> Path:
        key = repr(sorted(options.items()))
        if key not in made:
            made[key] = RandomModel(**options).write(folder / f"model-{len(made)}.gguf")
        return made[key]

    return make
