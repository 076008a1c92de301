"""Source code by its syntax, where the parsers are installed, and without them."""

from __future__ import annotations

import sys

import pytest

from edge.apps.documents import code
from edge.apps.documents.base import DocumentBlocks
from edge.apps.documents.code import syntax_blocks
from tests.apps.documents.conftest import Read

pytest.importorskip("tree_sitter", reason="the extra `code` is not installed")


SOURCES = {
    "a.js": (
        "import x from 'x'\n\n// Adds.\nexport class Adder {\n  add(a, b) { return a + b }\n}\n\n"
        "const twice = async (x) => {\n  return x * 2\n}\nfunction last() {}\n",
        {("Adder",), ("twice",), ("last",)},
    ),
    "a.ts": (
        "export interface Shape { area(): number }\nexport abstract class Base<T> {\n  private m(): void {}\n}\n"
        "namespace Inner { export function q() {} }\n",
        {("Shape",), ("Base",), ("Inner",)},
    ),
    "a.tsx": ("export const View = () => { return <p>Hi</p> }\n", {("View",)}),
    "A.java": ("package a;\n\n/** Says so. */\n@X public class A {\n  int f;\n  void m() {}\n}\n", {("A",)}),
    "a.go": (
        "package a\n\n// M does.\nfunc (r *R) M() {}\n\ntype T struct { a int }\n\nfunc F() {\n\treturn\n}\n",
        {("M",), ("T",), ("F",)},
    ),
    "a.rs": (
        "#[derive(Debug)]\npub struct S { a: u8 }\n\nimpl Show for S {\n  fn x(&self) {}\n}\n\nmod m { fn a() {} }\n",
        {("S",), ("Show for S",), ("m",)},
    ),
    "a.c": ("#include <a.h>\n\nstatic int f(int a)\n{\n  return a;\n}\n\nchar *g(void) {}\n", {("f",), ("g",)}),
    "a.cpp": (
        "namespace n {\nclass A { void m(); };\n}\ntemplate<class T> T f(T a) { return a; }\nvoid A::m() {}\n",
        {("n",), ("f",), ("A::m",)},
    ),
    "a.cs": ("using X;\nnamespace N {\n  class A { void M() {} }\n}\n", {("N",)}),
    "a.rb": ("module M\n  class A\n    def m; end\n  end\nend\n", {("M",)}),
    "a.php": ("<?php\nclass A { function m() {} }\nfunction f() {}\n", {("A",), ("f",)}),
    "a.sh": ("set -e\nf() {\n  echo\n}\nfunction g { echo; }\n", {("f",), ("g",)}),
    "a.scala": ("object O { def f = 1 }\nclass C { }\n", {("O",), ("C",)}),
    "a.kt": ("class A { fun m() {} }\nfun f() {}\nobject O\n", {("A",), ("f",), ("O",)}),
    "b.js": ("function a() {\n}  function b() {\n}\n", {("a",)}),  # the second begins on a line of the first
    "a.lua": ("local function f() end\nfunction M.g() end\n", {("f",), ("M.g",)}),
}  # fmt: skip


def covered(document: DocumentBlocks, text: str) -> None:
    """Every line that shows something is in exactly one block, and is where the block says."""
    lines = text.split("\n")
    seen = [0] * (len(lines) + 1)
    for block in document.blocks:
        for number, line in enumerate(block.text.split("\n"), block.line_start):
            assert line.rstrip() == lines[number - 1].rstrip()
            seen[number] += 1
        assert number == block.line_end
    assert [n for n, line in enumerate(lines, 1) if line.strip() and seen[n] != 1] == []


@pytest.mark.parametrize("name", SOURCES)
def test_definitions_are_blocks_with_their_names(read: Read, name: str) -> None:
    text, names = SOURCES[name]
    document = read(name, text)
    document = DocumentBlocks(document.title, list(document.blocks))
    found = {block.path for block in document.blocks}
    assert names <= found
    assert found - names <= {(), ("a",)}  # lines between definitions are named as before: `package a`
    covered(document, text)


def test_long_classes_are_cut_between_methods_and_comments_belong_to_what_follows(read: Read) -> None:
    methods = "".join(f"\n  // Method {i}.\n  m{i}() {{\n    return {i}\n\n  }}\n" for i in range(20))
    text = f"// The class.\nclass Long {{\n  field = 1\n{methods}}}\n\n\nfoo()\n"
    document = read("long.js", text)
    document = DocumentBlocks(document.title, list(document.blocks))
    covered(document, text)
    (seventh,) = [block for block in document.blocks if block.path == ("Long", "m7")]
    assert seventh.text == "  // Method 7.\n  m7() {\n    return 7\n\n  }"
    assert document.blocks[0].text.startswith("// The class.\nclass Long {\n  field = 1")
    assert document.blocks[-1].path == ()


def test_what_does_not_parse_loses_nothing(read: Read) -> None:
    for name, (text, _) in SOURCES.items():
        broken = text[: len(text) // 2] + "\n%% }} (( \x00".replace("\x00", "") + text[len(text) // 2 :]
        document = read(name, broken)
        covered(DocumentBlocks("", list(document.blocks)), broken)


def test_without_the_extra_code_is_cut_as_before(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    text, _ = SOURCES["a.go"]
    monkeypatch.setitem(sys.modules, "tree_sitter", None)
    code._parser.cache_clear()
    try:
        assert syntax_blocks(text, ".go") is None
        document = DocumentBlocks("", list(read("a.go", text).blocks))
        covered(document, text)
        assert {block.path for block in document.blocks} >= {("T",), ("F",)}
    finally:
        code._parser.cache_clear()
    assert syntax_blocks("[a]\n", ".ini") is None  # there is no parser for it


def test_deep_nesting_ends(read: Read) -> None:
    text = "class A {\n" * 300 + "}\n" * 300
    covered(DocumentBlocks("", list(read("a.java", text).blocks)), text)
