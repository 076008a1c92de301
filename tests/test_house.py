"""The rules of the house: who imports whom, what may be heavy, how long a file gets, and that it builds anywhere."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {
    "edge": set(),
    "models": {"edge"},
    "devices": {"edge"},
    "runtimes": {"models", "edge"},
    "apps": {"runtimes", "devices", "models", "edge"},
}
HEAVY = {
    "onnxruntime", "onnx", "faiss", "torch", "mlx", "llama_cpp", "transformers", "starlette", "tokenizers",
}  # fmt: skip
LONGEST = 400
TEXT = {"", ".py", ".pyi", ".toml", ".md", ".txt", ".cfg", ".ini", ".yml", ".yaml", ".json", ".sh", ".html", ".js"}


def sources() -> list[Path]:
    """Every file that git has or would take; without git, every file outside hidden folders."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
    except (OSError, subprocess.CalledProcessError):
        listed = [str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if not any(x[0] == "." for x in p.parts[1:])]
    return sorted(path for name in listed if name and (path := ROOT / name).is_file())


PYTHON = [path for path in sources() if path.suffix in (".py", ".pyi")]
CODE = [path for path in PYTHON if path.relative_to(ROOT).parts[0] in ROOMS and path.suffix == ".py"]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def package_of(path: Path) -> list[str]:
    """The import package a file is part of: `models/training/loss.py` is in `edge.models.training`."""
    folders = list(path.relative_to(ROOT).parent.parts)
    return folders if folders[0] == "edge" else ["edge", *folders]


def imported(path: Path) -> Iterator[tuple[ast.stmt, str]]:
    """Absolute names of everything a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"), name_of(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            package = package_of(path)
            base = package[: len(package) - node.level + 1] if node.level else []
            for alias in node.names:  # `from edge import models` imports a room as well
                yield node, ".".join([*base, *([node.module] if node.module else []), alias.name])


def room_of(module: str) -> str | None:
    """Which room an imported name lies in, if it is one of ours."""
    parts = module.split(".")
    if parts[0] != "edge":
        return parts[0] if parts[0] in ROOMS else None
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else "edge"


def runs_on_import(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run when the module is imported: not those in functions or under TYPE_CHECKING."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        if isinstance(node, ast.stmt):
            yield node
        waiting += ast.iter_child_nodes(node)


def test_the_rules_see_the_whole_house() -> None:
    """A rule that looks at nothing is kept by everybody."""
    names = {name_of(path) for path in CODE}
    assert {"edge/budget.py", "models/spec.py", "runtimes/base.py"} <= names
    assert {room.split("/")[0] for room in names} == set(ROOMS)
    assert {room_of(m) for _, m in imported(ROOT / "runtimes" / "base.py")} >= {"models", "edge"}


@pytest.mark.parametrize("path", CODE, ids=name_of)
def test_rooms_import_only_whom_they_may(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0]
    for statement, module in imported(path):
        other = room_of(module)
        assert other is None or other == room or other in ROOMS[room], (
            f"{name_of(path)}:{statement.lineno} imports {module}: {room} may import {sorted(ROOMS[room]) or 'nothing'}"
        )
        assert module.split(".")[0] not in ROOMS or module.split(".")[0] == "edge", (
            f"{name_of(path)}:{statement.lineno}: installed, {module} is called edge.{module}"
        )


NOT_YET_REACHED = {
    "edge.curve": "times of search by batch size, for placement",
    "edge.drift": "when a placement has aged",
    "edge.hit_rates": "the smallest hit rate of a batch, for placement",
    "edge.placement": "the split of memory between lists and states",
    "edge.speculation": "prefill on the early results of a staged search",
}
"""Modules of the core that only tests and benchmarks use so far. The list may only get shorter."""


def test_every_module_of_the_core_is_reached_by_an_application() -> None:
    """By imports, wherever in a file, from every application but the benchmarks, and from the installed plug-ins."""
    modules = {".".join([*package_of(path), path.stem]).removesuffix(".__init__"): path for path in CODE}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    plugins = [entry for group in project["entry-points"].values() for entry in group.values()]
    waiting = [name for name in modules if name.startswith("edge.apps.") and not name.startswith("edge.apps.bench")]
    waiting += [entry.partition(":")[0] for entry in plugins]
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        while name and name not in modules:  # an imported name may be a class of a module
            name = name.rpartition(".")[0]
        if name and name not in reached:
            reached.add(name)
            waiting += [module for _, module in imported(modules[name])]
    core = {name for name, path in modules.items() if path.relative_to(ROOT).parts[0] == "edge"}
    unreached = {name for name in core - reached if modules[name].stem != "__init__"}
    assert unreached == set(NOT_YET_REACHED), "reached modules leave the list, unreached ones leave the core"


@pytest.mark.parametrize("path", CODE, ids=name_of)
def test_heavy_libraries_are_imported_where_they_are_needed(path: Path) -> None:
    if name_of(path).startswith("models/training/"):
        return  # never imported by the product
    tree = ast.parse(path.read_text("utf-8"), name_of(path))
    for statement in runs_on_import(tree):
        names = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
        if isinstance(statement, ast.ImportFrom) and not statement.level:
            names = [statement.module or ""]
        heavy = HEAVY & {name.split(".")[0] for name in names}
        assert not heavy, f"{name_of(path)}:{statement.lineno} imports {heavy} at module level; do it in the function"


def fresh(code: str, folder: Path) -> list[str]:
    """What a new interpreter prints, started outside the repository."""
    run = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_importing_the_package_loads_nothing_heavy(tmp_path: Path) -> None:
    loaded = fresh("import edge, sys; print(*sys.modules)", tmp_path)
    assert "edge" in loaded
    assert not HEAVY & {module.split(".")[0] for module in loaded}
    assert not [module for module in loaded if room_of(module) not in (None, "edge")]


def test_importing_the_whole_core_loads_nothing_heavy_and_no_other_room(tmp_path: Path) -> None:
    core = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in (ROOT / "edge").rglob("*.py")]
    names = ", ".join(sorted(module.removesuffix(".__init__") for module in core))
    loaded = fresh(f"import {names}, sys; print(*sys.modules)", tmp_path)
    assert "edge.budget" in loaded
    assert not HEAVY & {module.split(".")[0] for module in loaded}
    assert not [module for module in loaded if room_of(module) not in (None, "edge")]


def test_importing_models_and_runtimes_loads_nothing_heavy(tmp_path: Path) -> None:
    """Plug-ins are looked up by importing their module; only using one may cost."""
    wanted = [p for p in CODE if p.suffix == ".py" and p.relative_to(ROOT).parts[0] in ("models", "runtimes")]
    names = [".".join([*package_of(p), p.stem]) for p in wanted if "training" not in p.parts and p.stem != "__init__"]
    loaded = fresh(f"import {', '.join(names)}, sys; print(*sys.modules)", tmp_path)
    assert not HEAVY & {module.split(".")[0] for module in loaded}


def test_every_code_folder_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    listed = set(project["tool"]["setuptools"]["packages"])
    found = {".".join(package_of(path)) for path in CODE if path.name == "__init__.py"}
    assert found == listed
    homeless = {name_of(path.parent) for path in CODE if not (path.parent / "__init__.py").exists()}
    assert not homeless, f"folders without __init__.py are not installed: {homeless}"
    mapping = project["tool"]["setuptools"]["package-dir"]
    assert {room if room == "edge" else f"edge.{room}" for room in ROOMS} <= set(mapping)
    for name, folder in mapping.items():
        # The core's own packages lie in its folder, the other rooms beside it.
        assert folder in (name.removeprefix("edge.").replace(".", "/"), name.replace(".", "/"))


@pytest.mark.parametrize("path", PYTHON, ids=name_of)
def test_no_file_is_too_long(path: Path) -> None:
    lines = path.read_text("utf-8").count("\n")
    assert lines <= LONGEST, f"{name_of(path)} has {lines} lines; find the second noun in it"


@pytest.mark.parametrize("path", [p for p in sources() if p.suffix in TEXT], ids=name_of)
def test_no_source_names_a_place_of_the_machine_it_was_written_on(path: Path) -> None:
    text = path.read_text("utf-8", errors="replace")
    for place in ("work", "root"):
        assert f"/{place}/" not in text, f"{name_of(path)} names a path under /{place}"
