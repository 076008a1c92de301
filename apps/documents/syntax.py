"""Reads source code and splits it by its syntax: into functions, types and modules, as tree-sitter's parsers report
them.

The parsers come with the extra `code`. Without it, and for languages without a parser, `code` splits source code by its
layout.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from edge.apps.documents.base import Block, Document, Reason, Skipped
from edge.apps.documents.code import code_blocks, whole_lines
from edge.apps.documents.file_types import LANGUAGES
from edge.apps.documents.opened import OpenedFile

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
"""Packages and their functions, by language (see `file_types`)."""

_OTHERS = {".tsx": ("tree_sitter_typescript", "language_tsx"), ".fish": None}
"""Suffixes that need another parser than their language, or none."""

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
_WHOLE_LINES = 40
"""A class or module with no more lines stays one block."""

_DEEPEST = 8
_MINIFIED_LINE = 500
"""Code whose lines have more characters on average is minified."""


def extract(file: OpenedFile) -> Document:
    """Reads a source file.

    Raises:
        Skipped: it is minified, and therefore not readable as text.
    """
    decoded = file.text()
    lines = decoded.text.split("\n")
    full = [line for line in lines if line.strip()]
    if full and sum(map(len, full)) > _MINIFIED_LINE * len(full):
        raise Skipped(Reason.UNSUPPORTED, "minified or generated code")
    blocks = syntax_blocks(decoded.text, file.suffix)
    if blocks is None:
        blocks = list(code_blocks(lines, 0, len(lines), ()))
    return Document("", blocks, decoded.encoding)


def syntax_blocks(text: str, suffix: str) -> list[Block] | None:
    """The blocks of a source file with all its visible characters; None if no parser for it is installed.

    Args:
        suffix: of the file's name, lower case, with the dot.
    """
    parser = _parser(suffix)
    if parser is None:
        return None
    root = parser.parse(text.encode("utf-8", "replace")).root_node
    lines = text.split("\n")
    return list(_blocks(lines, root.named_children, 0, len(lines), (), 0))


@cache
def _parser(suffix: str) -> Any:
    """The parser for a suffix; None if there is none, or the extra `code` is not installed."""
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


def _blocks(
    lines: Sequence[str], nodes: Sequence[Any], first: int, end: int, path: tuple[str, ...], depth: int
) -> Iterator[Block]:
    """Blocks of lines `first` up to `end` (counted from 0), which contain `nodes`."""
    done = first
    for at, node in enumerate(nodes):
        found = _definition(node)
        if found is None:
            continue
        inner, name = found
        start = _start(nodes, at)
        stop = min(end, node.end_point[0] + (1 if node.end_point[1] else 0))
        if start < done or stop <= start:
            continue  # several definitions on one line
        yield from code_blocks(lines, done, start, path) if done < start else ()
        below = (*path, name)
        body = _body(inner)
        if body is not None and stop - start > _WHOLE_LINES and depth < _DEEPEST and _holds(body):
            yield from _blocks(lines, body.named_children, start, stop, below, depth + 1)
        else:
            yield from whole_lines(lines, start, stop, below)
        done = stop
    yield from code_blocks(lines, done, end, path) if done < end else ()


def _definition(node: Any) -> tuple[Any, str] | None:
    """The function, type or module that a node is or wraps, with its name; None if there is none."""
    waiting = [(node, 0)]
    while waiting:
        found, depth = waiting.pop(0)
        if found.type in _DEFINITIONS and (name := _name(found)):
            return found, name
        if found.type == "variable_declarator":
            value = found.child_by_field_name("value")
            if value is not None and value.type in _FUNCTIONS and (name := _name(found)):
                return value, name
        if depth < 3 and (found.type in _WRAPPERS or found.type == "variable_declarator"):
            waiting += [(child, depth + 1) for child in found.named_children]
    return None


def _name(node: Any) -> str:
    """The name of a definition; empty if it has none."""
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
    """The part of a definition that may contain further definitions."""
    body = node.child_by_field_name("body")
    return body if body is not None else next((child for child in node.named_children if child.type in _BODIES), None)


def _holds(body: Any) -> bool:
    return any(_definition(child) is not None for child in body.named_children)


def _start(nodes: Sequence[Any], at: int) -> int:
    """The first line of a definition (counted from 0), including comments and attributes directly above."""
    start = int(nodes[at].start_point[0])
    while at and nodes[at - 1].type in _ABOVE and _last_line(nodes[at - 1]) >= start - 1:
        at -= 1
        start = min(start, int(nodes[at].start_point[0]))
    return start


def _last_line(node: Any) -> int:
    """The line of a node's last character. The nodes of some comments include their line end."""
    return int(node.end_point[0]) - (0 if node.end_point[1] else 1)
