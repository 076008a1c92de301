"""The rules of the house: directions of imports, heavy libraries, lengths of files, and independence of one machine."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest
from naive.program import printed

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {
    "edge": set(),
    "models": {"edge"},
    "devices": {"edge"},
    "runtimes": {"models", "edge"},
    "apps": {"runtimes", "devices", "models", "edge"},
}
HEAVY = {
    "onnxruntime", "onnx", "faiss", "torch", "triton", "mlx", "llama_cpp", "transformers", "starlette", "tokenizers",
}  # fmt: skip
LONGEST = 600
TEXT = {"", ".py", ".pyi", ".toml", ".md", ".txt", ".cfg", ".ini", ".yml", ".yaml", ".json", ".sh", ".html", ".js"}


def sources() -> list[Path]:
    """Every file that git has or would take; without git, every file outside hidden folders."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
    except (OSError, subprocess.CalledProcessError):
        listed = [str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if not any(x[0] == "." for x in p.parts[1:])]
    return sorted(path for name in listed if name and (path := ROOT / name).is_file())


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


OUTSIDE = "models/training/"
"""The folder of code that is not installed. It is imported from a checkout alone, as `edge.models.training`."""

PYTHON = [path for path in sources() if path.suffix in (".py", ".pyi")]
CODE = [path for path in PYTHON if path.relative_to(ROOT).parts[0] in ROOMS and path.suffix == ".py"]
INSTALLED = [path for path in CODE if not name_of(path).startswith(OUTSIDE)]


def package_of(path: Path) -> list[str]:
    """The import package a file is part of: `models/manifest.py` is in `edge.models`."""
    folders = list(path.relative_to(ROOT).parent.parts)
    return folders if folders[0] == "edge" else ["edge", *folders]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), name_of(path))


@cache
def nodes_of(path: Path) -> tuple[list[ast.AST], list[ast.AST]]:
    """The nodes of a module: those in use, and those for type checkers alone."""
    used: list[ast.AST] = []
    for_types: list[ast.AST] = []
    typed = "TYPE_CHECKING" in path.read_text("utf-8")
    waiting: list[tuple[ast.AST, list[ast.AST]]] = [(tree_of(path), used)]
    while waiting:
        node, nodes = waiting.pop()
        if typed and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += [(child, for_types) for child in node.body] + [(child, nodes) for child in node.orelse]
            continue
        nodes.append(node)
        waiting += [(child, nodes) for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr_context)]
    return used, for_types


@pytest.fixture(scope="module", autouse=True)
def trees_are_forgotten() -> Iterator[None]:
    """They take 170 MB, and other tests compare the process's memory with a limit."""
    yield
    for each in (tree_of, nodes_of, imported):
        each.cache_clear()


@cache
def imported(path: Path, *, in_use: bool = False) -> list[tuple[ast.stmt, str]]:
    """Absolute names of everything a file imports, wherever in it; or only what is not for type checkers alone."""
    used, for_types = nodes_of(path)
    found: list[tuple[ast.stmt, str]] = []
    for node in used if in_use else chain(used, for_types):
        if isinstance(node, ast.Import):
            found += [(node, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = package_of(path)
            base = package[: len(package) - node.level + 1] if node.level else []
            for alias in node.names:  # `from edge import models` imports a room as well
                found.append((node, ".".join([*base, *([node.module] if node.module else []), alias.name])))
    return found


def room_of(module: str) -> str | None:
    """Which room an imported name lies in, if it is one of ours."""
    parts = module.split(".")
    if parts[0] != "edge":
        return parts[0] if parts[0] in ROOMS else None
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else "edge"


def test_python_is_started_by_its_helper() -> None:
    """It keeps the working directory, which may hold foreign modules, out of the import path."""
    found = {name_of(path) for path in CODE if "sys.executable" in path.read_text("utf-8")}
    assert found == {"edge/interpreter.py", "apps/console.py"}


def test_the_rules_see_the_whole_house() -> None:
    """A rule that looks at nothing is kept by everybody."""
    names = {name_of(path) for path in CODE}
    assert {"edge/budget.py", "models/spec.py", "runtimes/base.py"} <= names
    assert {room.split("/")[0] for room in names} == set(ROOMS)
    assert {room_of(m) for _, m in imported(ROOT / "runtimes" / "base.py")} >= {"models", "edge"}


def test_rooms_import_only_whom_they_may() -> None:
    wrong: list[str] = []
    for path in CODE:
        room = path.relative_to(ROOT).parts[0]
        for statement, module in imported(path):
            other, place = room_of(module), f"{name_of(path)}:{statement.lineno}"
            if other is not None and other != room and other not in ROOMS[room]:
                wrong.append(f"{place} imports {module}: {room} may import {sorted(ROOMS[room]) or 'nothing'}")
            if module.split(".")[0] in ROOMS and module.split(".")[0] != "edge":
                wrong.append(f"{place}: installed, {module} is called edge.{module}")
    assert not wrong, "\n".join(wrong)


MODULES = {".".join([*package_of(path), path.stem]).removesuffix(".__init__"): path for path in CODE}
MODULE_NAME = re.compile(r"(edge(?:\.\w+)*)(?::\w+)?")
"""A module, or `module:attribute`, as lazy commands and public classes are named in strings."""


def module_of(name: str) -> str | None:
    """The module of the house that an imported name is, or lies in."""
    parts = name.split(".")
    return next((module for n in range(len(parts), 0, -1) if (module := ".".join(parts[:n])) in MODULES), None)


def test_what_is_installed_imports_nothing_that_is_not() -> None:
    """Training and the helpers of tests lie in a checkout alone."""
    missing = {"naive", "making", "campaign", "bench", "tests"}
    wrong = [
        f"{name_of(path)}:{statement.lineno} imports {module}"
        for path in INSTALLED
        for statement, module in imported(path)
        if module.split(".")[0] in missing or module.startswith("edge.models.training")
    ]
    assert not wrong, "\n".join(wrong)


def test_no_modules_import_each_other() -> None:
    """Also not through others, or in a function. Types alone may go both ways."""
    imports = {
        name: {other for _, module in imported(path, in_use=True) if (other := module_of(module)) not in (None, name)}
        for name, path in MODULES.items()
    }
    assert {"edge.budget", "edge.config"} <= imports["edge.apps.options"] | imports["edge.runtimes.reranker"]
    while free := [name for name, others in imports.items() if not others & set(imports)]:
        for name in free:
            del imports[name]
    while free := set(imports) - set().union(*imports.values()):
        for name in free:
            del imports[name]
    assert not imports, f"these import each other: {sorted(imports)}"


@cache
def reached() -> frozenset[str]:
    """The modules that an application gets to, by imports and by names in strings: from the command line, the public
    classes, the adapters for frameworks, and the installed plug-ins."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    plugins = [entry for group in project["entry-points"].values() for entry in group.values()]
    waiting = ["edge", *project["scripts"].values(), *plugins]
    waiting += [name for name in MODULES if name.startswith("edge.apps.adapters.")]
    found: set[str] = set()
    while waiting:
        name = waiting.pop().partition(":")[0]
        while name and name not in MODULES:  # an imported name may be a class of a module
            name = name.rpartition(".")[0]
        if not name or name in found:
            continue
        found.add(name)
        waiting += [module for _, module in imported(MODULES[name], in_use=True)]
        nodes = nodes_of(MODULES[name])[0]
        texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        waiting += [match[1] for text in texts if (match := MODULE_NAME.fullmatch(text))]
    return frozenset(found)


def of_the_core(name: str) -> bool:
    return MODULES[name].relative_to(ROOT).parts[0] == "edge" and MODULES[name].stem != "__init__"


def test_every_module_of_the_core_is_reached_by_an_application() -> None:
    found = reached()
    assert {"edge.apps.cli", "edge.apps.serve.command", "edge.apps.plan.profile", "edge.ivf.index"} <= found
    unreached = {name for name in MODULES if of_the_core(name)} - found
    assert not unreached, f"only tests use {sorted(unreached)}"


def test_every_public_name_of_the_core_is_used_by_an_application() -> None:
    """By its name alone, so that two things of one name pass for each other."""
    found = sorted(reached())
    used: set[str] = set()
    for node in chain.from_iterable(nodes_of(MODULES[name])[0] for name in found):
        if isinstance(node, ast.Name):
            used.add(node.id)
        elif isinstance(node, ast.Attribute):
            used.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            used.add(node.value)
    definitions = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef
    unused = [
        f"{name}: {node.name}"
        for name in found
        if of_the_core(name)
        for node in chain(*nodes_of(MODULES[name]))
        if isinstance(node, definitions) and not node.name.startswith("__") and node.name not in used
    ]
    assert not unused, f"only tests use {unused}"


def fresh(code: str, folder: Path) -> list[str]:
    """The words that code prints in a new interpreter, started outside the repository."""
    return printed(code, folder=folder).split()


def test_importing_the_package_loads_nothing_heavy(tmp_path: Path) -> None:
    loaded = fresh("import edge, sys; print(*sys.modules)", tmp_path)
    assert "edge" in loaded
    assert not {"numpy", *HEAVY} & {module.split(".")[0] for module in loaded}
    assert not [module for module in loaded if room_of(module) not in (None, "edge")]


def test_importing_the_whole_core_loads_nothing_heavy_and_no_other_room(tmp_path: Path) -> None:
    core = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in (ROOT / "edge").rglob("*.py")]
    names = ", ".join(sorted(module.removesuffix(".__init__") for module in core))
    loaded = fresh(f"import {names}, sys; print(*sys.modules)", tmp_path)
    assert "edge.budget" in loaded
    assert not HEAVY & {module.split(".")[0] for module in loaded}
    assert not [module for module in loaded if room_of(module) not in (None, "edge")]


def test_importing_any_module_loads_nothing_heavy(tmp_path: Path) -> None:
    """Plug-ins are looked up by importing their module; only using one may cost. Kernels are written in Triton, and the
    accelerator and adapters are classes of libraries of extras."""
    left = {"__init__", "kernels", "accelerator", "langchain", "llama_index"}
    wanted = [path for path in INSTALLED if path.stem not in left]
    names = [".".join([*package_of(path), path.stem]) for path in wanted]
    loaded = fresh(f"import {', '.join(names)}, sys; print(*sys.modules)", tmp_path)
    assert not HEAVY & {module.split(".")[0] for module in loaded}


def test_onnxruntime_is_imported_in_one_place() -> None:
    """Elsewhere it would start before its switch is set, and send figures."""
    found = {name_of(path) for path in CODE for _, module in imported(path) if module.split(".")[0] == "onnxruntime"}
    assert found == {"runtimes/onnx_layer.py"}


def test_every_code_folder_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    listed = set(project["tool"]["setuptools"]["packages"])
    found = {".".join(package_of(path)) for path in INSTALLED if path.name == "__init__.py"}
    assert found == listed
    assert any(name_of(path).startswith(OUTSIDE) for path in CODE)
    homeless = {name_of(path.parent) for path in CODE if not (path.parent / "__init__.py").exists()}
    assert not homeless, f"folders without __init__.py are not installed: {homeless}"
    mapping = project["tool"]["setuptools"]["package-dir"]
    assert {room if room == "edge" else f"edge.{room}" for room in ROOMS} <= set(mapping)
    for name, folder in mapping.items():
        # The core's own packages lie in its folder, the other rooms beside it.
        assert folder in (name.removeprefix("edge.").replace(".", "/"), name.replace(".", "/"))


def test_no_module_defines_a_name_twice() -> None:
    """Files that are joined may have the same name for different things; the second one would stand for both."""
    twice = []
    for path in CODE:
        names: list[str] = []
        for statement in tree_of(path).body:
            if isinstance(statement, (ast.Assign, ast.AnnAssign)):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                names += [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
            elif isinstance(statement, (ast.FunctionDef, ast.ClassDef)) and not statement.decorator_list:
                names.append(statement.name)
        twice += [f"{name_of(path)}: {name}" for name in sorted({name for name in names if names.count(name) > 1})]
    assert twice == []


def test_no_file_is_too_long() -> None:
    lengths = {name_of(path): path.read_text("utf-8").count("\n") for path in PYTHON}
    long = [
        f"{name} has {lines} lines; find the second noun in it" for name, lines in lengths.items() if lines > LONGEST
    ]
    assert not long, "\n".join(long)


def test_no_source_names_a_place_of_the_machine_it_was_written_on() -> None:
    wrong: list[str] = []
    for path in sources():
        if path.suffix in TEXT:
            text = path.read_text("utf-8", errors="replace")
            wrong += [
                f"{name_of(path)} names a path under /{place}" for place in ("work", "root") if f"/{place}/" in text
            ]
    assert not wrong, "\n".join(wrong)
