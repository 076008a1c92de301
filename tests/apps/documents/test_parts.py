"""The kinds of parts, from a file to the units of its passages: what a reader of the file would say."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge.apps.assistant.units import Unit, units
from edge.apps.documents.base import Block, Outline
from edge.apps.documents.chunking import chunks_of
from edge.apps.documents.kinds import ITEM, packed_parts, parts_of, recognised, unpacked_parts
from edge.apps.documents.markdown import markdown_blocks
from tests.apps.documents.conftest import Cut

MARKDOWN = """# Lease

Rent\x20is due monthly.
It is 870 euros. See [the plan](plan.md).

Before you begin:

```sh
$ edge index
```

- one cat
  is allowed
- 2. nested
  > A quoted sentence. Another one.

| Tool | Time |
|---|---|
| ours | 0.7 s |

[Home](/) · [News](/news)

**Fees**

    let x = 1;

Notice
------
None.
"""

PYTHON = '''"""Parcels. All of one user."""

# Seconds between two requests.
PAUSE = 5


def ask(path):
    """Asks a carrier.

    A failed request is repeated. After the
    fourth failure it gives up.

    Args:
        path: the file; its
            folder must exist.
        other: nothing.
    """
    return f(path)
'''

TOML = """# Written once.

[mail]
# Mails are sent again
# after so many hours.
repeat_after = 6
KEEP=5  # old releases that stay
"""

HTML = (
    "<html><body><ul><li><a href=/a>Home</a></li><li><a href=/n>News</a></li></ul><h1>Levels</h1><p>The river rises.\n"
    "It falls.</p><ul><li>two eggs</li></ul><table><tr><th>Year</th><th>Level</th></tr><tr><td>1997</td><td>8.2 m</td>"
    "</tr></table><pre>x = 1\ny = 2</pre><p>Home | Visit | Contact</p></body></html>"
)

PLAIN = "Rent\n====\n\nIt is 870 euros a month and\ndue at once. Pay it.\n- by bank\n\ndentist: Tuesday 14:00\n"


OPTIONS = """\
    -k | --keep
        Keep the files. They
        stay.

    -a file ...
        Add it.

    --bwlimit=RATE      limit the
                        bandwidth
    --stop-after=MINS   stop after so many minutes
    --a-name-beyond-its-column=X and more
    -v

    1       No mail was
            there.
"""


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "a.md", MARKDOWN,
            [
                ("heading", "Lease", ""), ("sentence", "Rent is due monthly.", "Lease"),
                ("sentence", "It is 870 euros.", "Lease"), ("sentence", "See the plan.", "Lease"),
                ("sentence", "Before you begin:", "Lease"), ("setting", "`edge index`", "Lease"),
                ("item", "one cat is allowed", "Lease"), ("item", "nested", "Lease"),
                ("sentence", "A quoted sentence.", "Lease"), ("sentence", "Another one.", "Lease"),
                ("heading", "Tool, Time", "Lease"), ("row", "Tool: ours, Time: 0.7 s", "Lease"),
                ("navigation", "Home · News", "Lease"), ("heading", "Fees", ""),
                ("setting", "`let x = 1;`", "Lease > Fees"),
                ("heading", "Notice", ""), ("sentence", "None.", "Lease > Notice"),
            ],
        ),
        (
            "a.py", PYTHON,
            [
                ("docstring", "Parcels. All of one user.", ""),
                ("setting", "Seconds between two requests: `PAUSE = 5`", ""), ("code", "def ask(path):", ""),
                ("docstring", "Asks a carrier.", "ask"),
                ("docstring", "A failed request is repeated. After the fourth failure it gives up.", "ask"),
                ("docstring", "path: the file; its folder must exist.", "ask"), ("docstring", "other: nothing.", "ask"),
                ("code", "return f(path)", ""),
            ],
        ),
        (
            "a.toml", TOML,
            [
                ("sentence", "Written once.", ""), ("heading", "mail", ""),
                ("setting", "Mails are sent again after so many hours: `repeat_after = 6`", "mail"),
                ("setting", "old releases that stay: `KEEP=5`", "mail"),
            ],
        ),
        (
            "a.html", HTML,
            [
                ("heading", "Levels", ""),  # without the links above it
                ("sentence", "The river rises.", "Levels"), ("sentence", "It falls.", "Levels"),
                ("item", "two eggs", "Levels"), ("heading", "Year, Level", "Levels"),
                ("row", "Year: 1997, Level: 8.2 m", "Levels"), ("code", "x = 1\ny = 2", "Levels"),
                ("navigation", "Home | Visit | Contact", "Levels"),
            ],
        ),
        (
            "a.txt", PLAIN,
            [
                ("heading", "Rent", ""), ("sentence", "It is 870 euros a month and due at once.", "Rent"),
                ("sentence", "Pay it.", "Rent"), ("item", "by bank", "Rent"),
                ("setting", "dentist: Tuesday 14:00", "Rent"),
            ],
        ),
        (
            "a.csv", "year,level,note\n1997,8.2,high\n2013,8.8,\n",
            [
                ("heading", "year, level, note", ""), ("row", "year: 1997, level: 8.2, note: high", ""),
                ("row", "year: 2013, level: 8.8", ""),
            ],
        ),
        (
            "a.json", '[{"name": "Kim", "tags": ["a", "b"]}, {"name": "Lou"}]',
            [("row", "name: Kim, tags[0]: a, tags[1]: b", ""), ("row", "name: Lou", "")],
        ),
        (
            "b.json", '{"mail": {"port": 587, "host": "a.org"}}',
            [("setting", "mail.port: 587", ""), ("setting", "mail.host: a.org", "")],
        ),
        ("a.jsonl", '{"a": 1, "b": 2}\n', [("row", "a: 1, b: 2", "")]),
        ("a.rst", "Text::\n\n   x = f(y)\n   go()\n\nProse.\n",
         [("sentence", "Text::", ""), ("code", "x = f(y)\ngo()", ""), ("sentence", "Prose.", "")]),
        (
            "a.eml", "From: Ann <a@a.org>\nTo: b@b.org\nDate: x\nSubject: River\n\nIt floods.\n\n> He said so.\n",
            [
                ("setting", "From: Ann <a@a.org>", ""), ("setting", "To: b@b.org", ""), ("setting", "Date: x", ""),
                ("heading", "River", ""), ("sentence", "It floods.", "River"), ("sentence", "He said so.", "River"),
            ],
        ),
        (
            "b.eml", f"From: Ann <a@a.org>\nDate: x\nSubject: Ice\n\nIt melts.\n\n-- \nCall 0555.\n"
            f"{47 * '_'}\nIce mailing list\nhttp://a.org/ice\n",
            [
                ("setting", "From: Ann <a@a.org>", ""), ("setting", "Date: x", ""), ("heading", "Ice", ""),
                ("sentence", "It melts.", "Ice"),
                ("sentence", "Call 0555.", "Ice"), ("navigation", "Ice mailing list http://a.org/ice", "Ice"),
            ],
        ),
        (
            "c.eml", f"From: Ann <a@a.org>\nDate: x\nSubject: Ice\n\nIt melts.\n{30 * '-'}\n"
            "This mail is sponsored by us.\n",
            [
                ("setting", "From: Ann <a@a.org>", ""), ("setting", "Date: x", ""), ("heading", "Ice", ""),
                ("sentence", "It melts.", "Ice"), ("navigation", "This mail is sponsored by us.", "Ice"),
            ],
        ),
        (
            "d.txt", OPTIONS,
            [
                ("heading", "-k | --keep", ""), ("sentence", "Keep the files.", "-k | --keep"),
                ("sentence", "They stay.", "-k | --keep"),
                ("heading", "-a file ...", ""), ("sentence", "Add it.", "-a file ..."),
                ("item", "--bwlimit=RATE limit the bandwidth", "-a file ..."),
                ("item", "--stop-after=MINS stop after so many minutes", "-a file ..."),
                ("item", "--a-name-beyond-its-column=X and more", "-a file ..."), ("item", "-v", "-a file ..."),
                ("item", "1 No mail was there.", "-a file ..."),
            ],
        ),
        (
            "e.md", "# Hash\n\n<pre><code class='cmd'>hash\n  --fast</code></pre>\n\n<aside>\nSafe.\n</aside>\n\n"
            "<!-- hidden\ntext -->\n",
            [
                ("heading", "Hash", ""), ("code", "hash\n  --fast", "Hash"), ("sentence", "Safe.", "Hash"),
            ],
        ),
        (
            "c.rst", "..\n  Levels:\n\n  # for parts\n\nIce floats.\n\n.. TODO: more\n   of it\n\n.. note:: Cold.\n\n"
            "..\n\n   Quoted.\n\nText::\n\n   .. shown\n",
            [
                ("sentence", "Ice floats.", ""), ("sentence", "Cold.", ""), ("sentence", "Quoted.", ""),
                ("sentence", "Text::", ""), ("code", ".. shown", ""),
            ],
        ),
    ],
)  # fmt: skip
def test_the_kinds_of_a_text_file(cut: Cut, name: str, text: str, expected: list[tuple[str, str, str]]) -> None:
    assert [(unit.kind, unit.text, unit.heading) for unit in read_units(cut, name, text)] == expected


def read_units(cut: Cut, name: str, data: str | bytes) -> list[Unit]:
    """The units of all passages; each stands where it says it does."""
    found: list[Unit] = []
    for chunk in cut(name, data):
        last = 0
        for unit in units(chunk.text, unpacked_parts(chunk.kinds)):
            assert last <= unit.start < unit.end <= len(chunk.text)
            last = unit.start
            found.append(unit)
    return found


def test_a_list_of_options_is_cut_between_its_rows(cut: Cut) -> None:
    rows = [f"--option-{number}      does what its name says, in a few words" for number in "abcdefghijklmnopqrst"]
    text = "\n".join(rows)
    found = [chunk.text for chunk in cut("a.txt", text)]
    assert len(found) > 1
    assert "\n".join(found) == text


@pytest.mark.parametrize(
    "text", ["// Ice  floats on it\n// and  melts there", "port = 1    # of mails\nsize = 2    # of it"]
)
def test_comments_and_settings_that_are_aligned_are_no_list(text: str) -> None:
    assert ITEM not in {kind for kind, _ in recognised(text)}


def test_a_long_record_or_item_is_no_single_statement(cut: Cut) -> None:
    wide = "name," + ",".join(f"year {year}" for year in range(9)) + "\nA" + ",wet wet wet wet wet wet" * 9 + "\n"
    assert ("row", "name: A") in [(unit.kind, unit.text) for unit in read_units(cut, "a.csv", wide)]
    items = read_units(cut, "a.md", "- " + "Words are counted here. " * 20)
    assert {(unit.kind, unit.text) for unit in items} == {("item", "Words are counted here.")}


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 10**6)), max_size=30))
def test_packed_parts_are_read_as_they_were(pairs: list[tuple[int, int]]) -> None:
    end, parts = 0, []
    for kind, length in pairs:
        end += length
        parts.append((kind, end))
    assert unpacked_parts(packed_parts(parts)) == tuple(parts)
    assert unpacked_parts(None) == ()


@given(st.text(alphabet="aB .:?\n-(){};$1|#\"'= \t`>", max_size=200))
def test_a_chunk_has_the_parts_of_its_blocks(text: str) -> None:
    for kind in ("prose", "lines", "code", "settings", "table", "paragraph", "item", "fields", "row"):
        for chunk in chunks_of([Block(text, 1, text.count("\n") + 1, kind=kind)], "", max_tokens=40):
            ends = [end for _, end in unpacked_parts(chunk.kinds)]
            assert ends == sorted(ends)
            assert not ends or ends[-1] <= len(chunk.text)


SCRAPS = ["", "| a | b |", "| --- | --- |", "| ask; do not tell. | no |", "Some words. More.", "```", "# One", "---"]


@given(
    st.lists(st.tuples(st.sampled_from(["", "  ", "    ", "- ", "1. ", "> "]), st.sampled_from(SCRAPS)), max_size=24)
)
@example([("- ", ""), ("  ", "| a | b |"), ("  ", "| --- | --- |"), ("  ", "| ask; do not tell. | no |")])
def test_the_parts_of_markdown_follow_one_another(lines: list[tuple[str, str]]) -> None:
    for block in markdown_blocks([mark + scrap for mark, scrap in lines], Outline()):
        ends = [0, *(end for _, end in parts_of(block)), len(block.text)]
        assert ends == sorted(ends)


@pytest.mark.parametrize("text", ["x", "[", "a | ", " ", "(", "**", "- ", "#", "a:"])
def test_no_line_takes_long(text: str) -> None:
    assert recognised(text * 10**5 + ";") is not None


DIRECTIVES = """Secrets
=======

.. _secrets:

Use the following command to make one:

.. code-block:: console
   :caption: A key

    python -c 'import secrets'

.. warning:: Keep it secret. If it is lost,
   all sessions are lost.

.. py:data:: SECRET_KEY
   :type: str

   Signs the session.

.. versionadded:: 3.1
   Rotated keys.
.. image:: key.png
"""


def test_directives_say_what_stands_in_them_and_not_their_marks(cut: Cut) -> None:
    found = read_units(cut, "manual.rst", DIRECTIVES)
    assert [(unit.kind, unit.text) for unit in found] == [
        ("heading", "Secrets"),
        ("sentence", "Use the following command to make one:"),
        ("code", "python -c 'import secrets'"),
        ("sentence", "Keep it secret."),
        ("sentence", "If it is lost, all sessions are lost."),
        ("heading", "SECRET_KEY"),
        ("sentence", "Signs the session."),
        ("sentence", "3.1 Rotated keys."),
    ]
    assert found[-2].heading.endswith("SECRET_KEY")
