"""Source code: split by Python's own parser, by tree-sitter's parsers (the extra `code`), or by its layout: blank
lines, indentation, and lines that look like the head of a function or type. Every line belongs to exactly one block.
Comments and decorators above a definition belong to it."""

from __future__ import annotations

import ast
import importlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

from edge.apps.documents.base import Block, DocumentBlocks, Reason, Skipped
from edge.apps.documents.file_types import LANGUAGES
from edge.apps.documents.kinds import NOTHING, Parts
from edge.apps.documents.opened import OpenedFile

_LONGEST_HEAD = 300
_KEYWORD = re.compile(
    r"(?:(?:export|default|public|private|protected|internal|static|final|abstract|async|inline|extern|unsafe|virtual"
    r"|override|open|sealed|data|pub(?:\([a-z]+\))?|const|local)\s+){0,6}"
    r"(?:class|struct|enum|union|trait|impl|interface|module|namespace|package|object|record|protocol|extension|type"
    r"|def|defmodule|defp|func|function|fun|fn|sub|proc|procedure|macro_rules!|macro|theorem|lemma|data|instance)"
    r"(?:<[^<>]{0,80}>)?\s+"
    r"(?:\([^()]{0,80}\)\s*)?(?:<[^<>]{0,80}>\s*)?([A-Za-z_$][\w$.:-]*)"
)
_CALLABLE = re.compile(r"(?:[A-Za-z_][\w:<>,\[\]~]*[\s*&]+){1,8}([A-Za-z_~][\w:~]*)\s*\([^;=]*$")
_BOUND = re.compile(r"(?:export\s+)?(?:const|let|var)\s+([A-Za-z_$][\w$]*)\s*=\s*(?:async\s*)?(?:function\b|\()")
_SECTION = re.compile(r"\[{1,2}([\w .:\"/-]{1,80})\]{1,2}\s*(?:[#;].*)?")
_CREATE = re.compile(
    r"create\s+(?:or\s+replace\s+)?(?:\w+\s+){0,2}?(?:table|view|function|procedure|trigger|index)\s+"
    r"(?:if\s+not\s+exists\s+)?([\w.\"`\[\]]+)",
    re.IGNORECASE,
)
_HEADS = (_KEYWORD, _BOUND, _CALLABLE, _SECTION, _CREATE)
_NOT_NAMES = frozenset({"if", "for", "while", "switch", "return", "else", "catch", "do", "new", "sizeof", "assert"})


def code_blocks(lines: Sequence[str], first: int, end: int, path: tuple[str, ...]) -> Iterator[Block]:
    """Blocks of the lines from `first` up to `end` (counted from 0), with all visible characters. A block begins after
    a blank line at the left margin, and its name comes from the first head in it."""
    start = first
    for at in range(first + 1, end + 1):
        if at == end or (not lines[at - 1].strip() and _begins(lines[at])):
            for block in whole_lines(lines, start, at, path):
                name = _head_name(block.text)
                yield replace(block, path=(*path, name)) if name else block
            start = at


def whole_lines(lines: Sequence[str], first: int, end: int, path: tuple[str, ...]) -> Iterator[Block]:
    """One block without surrounding blank lines; none if all are blank."""
    while first < end and not lines[first].strip():
        first += 1
    text = "\n".join(lines[first:end]).rstrip()
    if text:
        yield Block(text, first + 1, first + 1 + text.count("\n"), kind="code", path=path)


def _begins(line: str) -> bool:
    return bool(line) and not line[0].isspace() and line[0] not in ")]}"


def _head_name(text: str) -> str:
    for line in text.split("\n", 60)[:60]:
        if not line or line[0].isspace() or line[0] in "#/*;-%'\"" or len(line) > _LONGEST_HEAD:
            continue
        for head in _HEADS:
            found = head.match(line)
            if found and found[1] not in _NOT_NAMES:
                return found[1].strip()
    return ""


_QUOTED = re.compile(r"\s*[rRuU]?(\"\"\"|'''|[\"'])(.*?)\1\s*$", re.DOTALL)
_COOKIE = re.compile(rb"^[ \t\f]*#[^\n]{0,200}?coding[:=][ \t]*([-\w.]+)", re.MULTILINE)
_WHOLE_LINES = 40  # A class or module with no more lines stays one block.
_Cut = Callable[[Sequence[str], int, int, tuple[str, ...]], Iterator[Block]]
"""Cuts lines, from the first up to the end, under a path."""


def extract_python(file: OpenedFile) -> DocumentBlocks:
    cookie = _COOKIE.search(b"\n".join(file.head.split(b"\n", 2)[:2]))
    text = file.text(declared=cookie[1].decode("ascii") if cookie else None)
    lines = text.split("\n")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes in the file
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return DocumentBlocks("", list(code_blocks(lines, 0, len(lines), ())))
    docstrings = list(_docstrings(tree))
    found = _definition_blocks(lines, _python_definitions(lines, tree.body, 0), 0, len(lines), (), whole_lines)
    return DocumentBlocks("", [_with_docstrings(block, docstrings) for block in found])


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                yield first.lineno, first.end_lineno or first.lineno


def _with_docstrings(block: Block, docstrings: Sequence[tuple[int, int]]) -> Block:
    inside = sorted(pair for pair in docstrings if block.line_start <= pair[0] and pair[1] <= block.line_end)
    if not inside:
        return block
    parts = Parts(block.text)
    starts = [0, *(match.end() for match in re.finditer("\n", block.text)), len(block.text)]
    done = 0
    for first, last in inside:
        start, end = starts[first - block.line_start], starts[last - block.line_start + 1]
        quoted = _QUOTED.match(block.text, start, end)
        if quoted is None:  # it shares its line with other code
            continue
        parts.code(done, start)
        parts.docstring(quoted.start(2), quoted.end(2))
        parts.add(NOTHING, quoted.end(2), end)
        done = end
    parts.code(done, len(block.text))
    return replace(block, parts=tuple(parts.found))


class _Definition(NamedTuple):
    """A function, a type or a module: its lines from `start` up to `stop`, and those inside it."""

    name: str
    start: int
    stop: int
    inner: Callable[[], Iterable[_Definition]]


def _definition_blocks(
    lines: Sequence[str],
    definitions: Iterable[_Definition],
    first: int,
    end: int,
    path: tuple[str, ...],
    between: _Cut,
    depth: int = 0,
) -> Iterator[Block]:
    """A block of each definition, or of those inside a long one; `between` cuts the lines between them."""
    done = first
    for name, start, stop, inner in definitions:
        stop = min(end, stop)
        if start < done or stop <= start:
            continue  # several on one line
        yield from between(lines, done, start, path)
        below = (*path, name)
        found = list(inner()) if stop - start > _WHOLE_LINES and depth < _DEEPEST else []
        if found:
            yield from _definition_blocks(lines, found, start, stop, below, between, depth + 1)
        else:
            yield from whole_lines(lines, start, stop, below)
        done = stop
    yield from between(lines, done, end, path)


def _python_definitions(lines: Sequence[str], body: Sequence[ast.stmt], first: int) -> Iterator[_Definition]:
    done = first
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            start = min([statement.lineno, *(decorator.lineno for decorator in statement.decorator_list)]) - 1
            while start > done and lines[start - 1].lstrip().startswith("#"):
                start -= 1
            inner = statement.body if isinstance(statement, ast.ClassDef) else []
            done = statement.end_lineno or len(lines)
            yield _Definition(statement.name, start, done, partial(_python_definitions, lines, inner, start))


_GRAMMARS = {
    "javascript": ("tree_sitter_javascript", "language"),
    "typescript": ("tree_sitter_typescript", "language_typescript"),
    "java": ("tree_sitter_java", "language"),
    "go": ("tree_sitter_go", "language"),
    "rust": ("tree_sitter_rust", "language"),
    "c": ("tree_sitter_c", "language"),
    "cpp": ("tree_sitter_cpp", "language"),
    "csharp": ("tree_sitter_c_sharp", "language"),
    "ruby": ("tree_sitter_ruby", "language"),
    "php": ("tree_sitter_php", "language_php"),
    "shell": ("tree_sitter_bash", "language"),
    "scala": ("tree_sitter_scala", "language"),
    "kotlin": ("tree_sitter_kotlin", "language"),
    "lua": ("tree_sitter_lua", "language"),
}

_OTHERS = {".tsx": ("tree_sitter_typescript", "language_tsx"), ".fish": None}
"""Suffixes with another parser than their language, or none."""

_DEFINITIONS = frozenset({
    "abstract_class_declaration", "annotation_type_declaration", "class", "class_declaration", "class_definition",
    "class_specifier", "constructor_declaration", "enum_declaration", "enum_definition", "enum_item",
    "enum_specifier", "function_declaration", "function_definition", "function_item", "generator_function_declaration",
    "impl_item", "interface_declaration", "internal_module", "macro_definition", "method", "method_declaration",
    "method_definition", "mod_item", "module", "namespace_declaration", "namespace_definition", "object_declaration",
    "object_definition", "record_declaration", "singleton_method", "struct_declaration", "struct_item",
    "struct_specifier", "trait_declaration", "trait_definition", "trait_item", "type_alias_declaration",
    "type_declaration", "type_item", "type_spec", "union_item", "union_specifier",
})  # fmt: skip
_WRAPPERS = frozenset({
    "ambient_declaration", "declaration", "export_statement", "expression_statement", "lexical_declaration",
    "template_declaration", "type_declaration", "variable_declaration",
})  # fmt: skip
_FUNCTIONS = frozenset({"arrow_function", "class", "function", "function_expression", "generator_function"})
_ABOVE = frozenset({"attribute_item", "block_comment", "comment", "line_comment", "multiline_comment", "decorator"})
_BODIES = frozenset({"class_body", "declaration_list", "enum_class_body", "field_declaration_list", "template_body"})
_DEEPEST = 8
_SETTINGS = frozenset({".toml", ".yaml", ".yml", ".ini", ".cfg", ".conf", ".properties", ".desktop", ".service"})
_MINIFIED_LINE = 500  # Average characters of a line of minified code.


def extract(file: OpenedFile) -> DocumentBlocks:
    text = file.text()
    lines = text.split("\n")
    full = [line for line in lines if line.strip()]
    if full and sum(map(len, full)) > _MINIFIED_LINE * len(full):
        raise Skipped(Reason.UNSUPPORTED, "minified or generated code")
    blocks = syntax_blocks(text, file.suffix)
    if blocks is None:
        kind = "settings" if file.suffix in _SETTINGS else "code"
        blocks = [replace(block, kind=kind) for block in code_blocks(lines, 0, len(lines), ())]
    return DocumentBlocks("", blocks)


def syntax_blocks(text: str, suffix: str) -> list[Block] | None:
    """The blocks of a source file; None if no parser for it is installed."""
    parser = _parser(suffix)
    if parser is None:
        return None
    root = parser.parse(text.encode("utf-8", "replace")).root_node
    lines = text.split("\n")
    return list(_definition_blocks(lines, _node_definitions(root.named_children), 0, len(lines), (), code_blocks))


@cache
def _parser(suffix: str) -> Any:
    grammar = _OTHERS[suffix] if suffix in _OTHERS else _BY_SUFFIX.get(suffix)
    if grammar is None:
        return None
    try:
        tree_sitter = importlib.import_module("tree_sitter")
        module = importlib.import_module(grammar[0])
    except ImportError:
        return None
    return tree_sitter.Parser(tree_sitter.Language(getattr(module, grammar[1])()))


_BY_SUFFIX: dict[str, tuple[str, str]] = {}
for _language, _grammar in _GRAMMARS.items():
    for _suffix in LANGUAGES[_language].split():
        _BY_SUFFIX.setdefault(f".{_suffix}", _grammar)


def _node_definitions(nodes: Sequence[Any]) -> Iterator[_Definition]:
    for at, node in enumerate(nodes):
        if (found := _definition(node)) is not None:
            body = _body(found[0])
            inner = [] if body is None else body.named_children
            yield _Definition(found[1], _node_start(nodes, at), _behind(node), partial(_node_definitions, inner))


def _definition(node: Any) -> tuple[Any, str] | None:
    """The function, type or module that a node is or wraps, with its name; None if there is none."""
    waiting = [(node, 0)]
    while waiting:
        found, depth = waiting.pop(0)
        if found.type in _DEFINITIONS and (name := _node_name(found)):
            return found, name
        if found.type == "variable_declarator":
            value = found.child_by_field_name("value")
            if value is not None and value.type in _FUNCTIONS and (name := _node_name(found)):
                return value, name
        if depth < 3 and (found.type in _WRAPPERS or found.type == "variable_declarator"):
            waiting += [(child, depth + 1) for child in found.named_children]
    return None


def _node_name(node: Any) -> str:
    named = node.child_by_field_name("name")
    if named is None and node.type == "impl_item":
        trait, kind = node.child_by_field_name("trait"), node.child_by_field_name("type")
        parts = [part.text.decode("utf-8", "replace") for part in (trait, kind) if part is not None]
        return " for ".join(parts)
    if named is None:
        named = node
        while (inner := named.child_by_field_name("declarator")) is not None:
            named = inner
        if named is node:
            return ""
    return " ".join(named.text.decode("utf-8", "replace").split())[:100]


def _body(node: Any) -> Any:
    body = node.child_by_field_name("body")
    return body if body is not None else next((child for child in node.named_children if child.type in _BODIES), None)


def _node_start(nodes: Sequence[Any], at: int) -> int:
    start = int(nodes[at].start_point[0])
    while at and nodes[at - 1].type in _ABOVE and _behind(nodes[at - 1]) >= start:
        at -= 1
        start = min(start, int(nodes[at].start_point[0]))
    return start


def _behind(node: Any) -> int:
    """The line behind a node's last character. The nodes of some comments include their line end."""
    return int(node.end_point[0]) + bool(node.end_point[1])
