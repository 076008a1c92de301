from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from apsw import Connection
from hypothesis import example, given
from hypothesis import strategies as st

from edge.apps.collection.catalog import TABLES
from edge.apps.collection.filters import MOST_ALTERNATIVES, Filters
from edge.errors import InputError


@dataclass(frozen=True)
class File:
    path: str
    kind: str
    size: int
    mtime: datetime


def passing(files: list[File], filters: Filters) -> list[str]:
    """The files that SQL lets through."""
    db = Connection(":memory:")
    db.execute(TABLES)
    db.executemany(
        "INSERT INTO files(path, root, size, mtime_ns, kind, status) VALUES (?, '/', ?, ?, ?, 'indexed')",
        [(f.path, f.size, round(f.mtime.timestamp() * 1e9), f.kind) for f in files],
    )
    clause, params = filters.where(db)
    found = [
        row[0]
        for row in db.execute(
            f"SELECT path FROM files LEFT JOIN mails ON file = files.id WHERE {clause} ORDER BY files.id", params
        )
    ]
    db.close()
    return found


def naive_glob(parts: list[str], pattern: list[str]) -> bool:
    """Part by part, as one would with a pencil."""
    if not pattern:
        return True  # the pattern named a folder above
    if pattern[0] == "**":
        if len(pattern) == 1:
            return bool(parts)
        return any(naive_glob(parts[i:], pattern[1:]) for i in range(len(parts)))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and naive_glob(parts[1:], pattern[1:])


def naive(file: File, filters: Filters) -> bool:
    parts = file.path.split("/")[1:]
    if filters.paths and not any(
        naive_glob(parts, glob.split("/")[1:])
        if glob.startswith("/")
        else any(naive_glob(parts[i:], glob.split("/")) for i in range(len(parts)))
        for glob in filters.paths
    ):
        return False
    if filters.kinds and not any(file.kind == k or file.path.endswith(f".{k}") for k in filters.kinds):
        return False
    return (
        (filters.after is None or file.mtime >= filters.after)
        and (filters.before is None or file.mtime < filters.before)
        and (filters.larger is None or file.size >= filters.larger)
        and (filters.smaller is None or file.size <= filters.smaller)
    )


names = st.sampled_from(["a", "b", "docs", "x.md", "y.pdf", "z.md.txt", "[b]", "deep"])
moments = st.datetimes(datetime(2020, 1, 1), datetime(2020, 1, 5)).map(lambda d: d.replace(microsecond=0))
files = st.lists(
    st.builds(
        File,
        st.lists(names, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts)),
        st.sampled_from(["pdf", "markdown", "text"]),
        st.integers(0, 5),
        moments,
    ),
    max_size=12,
    unique_by=lambda f: f.path,
)
part = st.sampled_from(["a", "b", "docs", "*", "*.md", "?", "x.*", "*.*d*", "[ab]", "**", "[!a]", "[[]b]", "y.pdf"])
globs = st.tuples(st.sampled_from(["", "/"]), st.lists(part, min_size=1, max_size=3)).map(
    lambda pair: pair[0] + "/".join(pair[1])
)
filters = st.builds(
    Filters,
    paths=st.lists(globs, max_size=2).map(tuple),
    kinds=st.lists(st.sampled_from(["pdf", "md", "text", "markdown"]), max_size=2).map(tuple),
    after=st.none() | moments,
    before=st.none() | moments,
    larger=st.none() | st.integers(0, 5),
    smaller=st.none() | st.integers(0, 5),
)


@given(files, filters)
@example([File("/a", "pdf", 0, datetime(2020, 1, 1))], Filters(paths=("*/a",)))
def test_what_passes_is_what_the_naive_twin_lets_pass(some: list[File], conditions: Filters) -> None:
    assert passing(some, conditions) == [f.path for f in some if naive(f, conditions)]


@pytest.mark.parametrize("text", ["type:md", "path:notes/x"])
def test_many_alternatives_are_refused_at_once(text: str) -> None:
    Filters.parse([text] * MOST_ALTERNATIVES)
    with pytest.raises(InputError, match="more than 100 paths, types, names or words"):
        Filters.parse([text] * 100_000)


def test_filters_are_written_as_key_and_value() -> None:
    found = Filters.parse(
        ["path:docs/**", "path:*.md", "type:pdf", "after:2024-01-31", "before:2024-02-01T12:30", "larger:1MB",
         "Smaller: 2MB"]
    )  # fmt: skip
    assert found == Filters(
        paths=("docs/**", "*.md"),
        kinds=("pdf",),
        after=datetime(2024, 1, 31),
        before=datetime(2024, 2, 1, 12, 30),
        larger=10**6,
        smaller=2 * 10**6,
    )
    assert not Filters.parse([])
    assert Filters.parse(["type:pdf"])


PLAIN = File("/a/README.Md", "markdown", 1, datetime(2020, 1, 1))


@pytest.mark.parametrize("path", ["/home/docs/a.md", "/home/docs/x/y/a.md", "/docs/z"])
def test_a_folder_s_pattern_holds_for_all_below_it(path: str) -> None:
    for pattern in ("docs", "docs/", "docs/**", "**"):
        assert passing([replace(PLAIN, path=path)], Filters(paths=(pattern,))) == [path]
    assert passing([replace(PLAIN, path=path)], Filters(paths=("doc", "ocs", "home/a.md"))) == []


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("./docs/**", ["here/docs/a.md", "here/docs/sub/b.md"]),
        ("./docs/", ["here/docs/a.md", "here/docs/sub/b.md"]),
        ("./*.md", ["here/c.md"]),
        (".", ["here/c.md", "here/docs/a.md", "here/docs/sub/b.md"]),
        ("./", ["here/c.md", "here/docs/a.md", "here/docs/sub/b.md"]),
        ("../x", ["x/docs/d.md"]),
        ("./.././x/docs", ["x/docs/d.md"]),
        ("./docs/../*.md", ["here/c.md"]),
        ("..", ["here/c.md", "here/docs/a.md", "here/docs/sub/b.md", "x/docs/d.md"]),
        ("docs/./sub", ["here/docs/sub/b.md"]),
        ("docs/../c.md", ["here/c.md"]),
        ("~/docs", ["x/docs/d.md"]),
        ("~/../here/*.md", ["here/c.md"]),
        ("~", ["x/docs/d.md"]),
        (".\\docs\\sub", ["here/docs/sub/b.md"]),
    ],
)
def test_globs_may_begin_where_one_is_or_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, glob: str, names: list[str]
) -> None:
    """Below a folder whose name would be a glob, and through a link to it."""
    top = tmp_path.resolve() / "[ab]*"
    for name in ("here", "x"):
        (top / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to(top)
    monkeypatch.chdir(tmp_path / "link" / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "link" / "x"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "link" / "x"))
    moment = datetime(2020, 1, 1)
    inside = ["here/c.md", "here/docs/a.md", "here/docs/sub/b.md", "x/docs/d.md"]
    files = [File(f"{top.as_posix()}/{name}", "markdown", 1, moment) for name in inside]
    files += [File(f"{tmp_path.resolve().as_posix()}/a/{name}", "markdown", 1, moment) for name in ("e.md", "x/d.md")]
    expected = [f"{top.as_posix()}/{name}" for name in names]
    assert passing(files, Filters(paths=(glob,))) == expected


def test_globs_may_begin_at_the_top(monkeypatch: pytest.MonkeyPatch) -> None:
    file = File("/a/b.md", "markdown", 1, datetime(2020, 1, 1))
    monkeypatch.chdir(Path("/").resolve())
    for glob in (".", "..", "./a", "/a/.", "/./a/../a/b.md", "/."):
        assert passing([file], Filters(paths=(glob,))) == ["/a/b.md"]
    assert passing([file], Filters(paths=("./b.md",))) == []


def test_a_working_directory_that_is_gone_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert Filters.parse(["path:docs/**"])
    with pytest.raises(InputError, match="working directory, which is gone"):
        Filters.parse(["path:./docs/**"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pdf", "no filter"),
        ("colour:red", "no filter"),
        ("type:", "no filter"),
        ("after:yesterday", "no date"),
        ("larger:huge", "not a size"),
        ("larger:0", "more than 0"),
        ("smaller:0MB", "more than 0"),
        ("path:[a", r"without a \]"),
        ("path:a//b", "empty"),
        ("path:.//b", "empty"),
        ("path:*/../b", r"a \.\. that follows no plain name"),
        ("path:a/../../b", r"a \.\. that follows no plain name"),
        ("path:/..", r"a \.\. that follows no plain name"),
        ("after:9999-12-31", "from 1678 to 2261, not 9999-12-31"),
        ("before:9999-12-31T23:59", "from 1678 to 2261"),
        ("after:0001-01-01", "from 1678 to 2261, not 0001-01-01"),
        ("before:0001-01-01T00:00+14:00", "from 1678 to 2261"),
        ("larger:99999999999999TB", "below 8 EiB"),
        ("path:half-\ud800", "not valid Unicode"),
        ("type:half-\ud800", "not valid Unicode"),
        (f"path:{'*a' * 3000}", "a path of 6,000 characters, and 4,096 are the most"),
    ],
)
def test_a_filter_that_makes_no_sense_is_said(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Filters.parse([text])


@pytest.mark.parametrize("stars", [99, 100, 402])
def test_a_glob_may_have_many_stars(stars: int) -> None:
    files = [File(f"/{'xa' * count}/b", "text", 1, datetime(2020, 1, 1)) for count in (stars - 1, stars)]
    assert passing(files, Filters(paths=("*a" * stars,))) == [files[1].path]


def test_no_glob_takes_long() -> None:
    """It took longer than anybody waits, so this test would not end."""
    for name in ("a" * 200, "a/" * 200):
        file = File(f"/{name}", "text", 1, datetime(2020, 1, 1))
        for glob in ("*a" * 20 + "zz", "**/a/" * 20 + "zz", "/" + "*a*" * 20 + "/z"):
            assert passing([file], Filters(paths=(glob,))) == []


@given(st.text(max_size=20))
def test_any_text_is_a_filter_or_an_input_error(text: str) -> None:
    for key in ("path:", "type:", "after:", "larger:", ""):
        with contextlib.suppress(InputError):
            passing([File("/a/b", "text", 1, datetime(2020, 1, 1))], Filters.parse([key + text]))


def test_kinds_and_suffixes_in_any_case_and_dates_at_the_ends() -> None:
    for kind in ("md", ".MD", "Markdown"):
        assert passing([PLAIN], Filters(kinds=(kind,))) == [PLAIN.path]
    assert passing([PLAIN], Filters(kinds=("d",))) == []
    assert passing([PLAIN], Filters.parse(["after:1678-01-01", "before:2261-12-31T23:59-12:00"])) == [PLAIN.path]


def test_a_language_stands_for_its_suffixes_and_an_unknown_type_is_refused() -> None:
    files = [File(f"/a/{name}", "code", 1, datetime(2020, 1, 1)) for name in ("a.py", "b.pyi", "c.cpp", "d.odd")]
    assert passing(files, Filters(kinds=("python",))) == ["/a/a.py", "/a/b.pyi"]
    assert passing(files, Filters(kinds=("C++", "py"))) == ["/a/a.py", "/a/c.cpp"]
    assert passing(files, Filters(kinds=("odd",))) == ["/a/d.odd"]  # not known, but there
    assert passing(files, Filters(kinds=("pdf",))) == []
    with pytest.raises(InputError, match=r"there is no type 'foo'.*markdown, .*this collection has code \(4\)"):
        passing(files, Filters(kinds=("foo",)))
    with pytest.raises(InputError, match="did you mean 'python'"):
        passing(files, Filters(kinds=("pyton",)))


def test_windows_paths_and_ids_of_texts() -> None:
    moment = datetime(2020, 1, 1)
    drive, text = File("C:\\docs\\a.md", "markdown", 1, moment), File("notes/a.md", "text", 1, moment)
    assert passing([drive], Filters(paths=("C:/docs",))) == [drive.path]
    assert passing([drive], Filters(paths=("docs\\*.md",))) == [drive.path]
    assert passing([File("/x/C:/docs/a", "text", 1, moment)], Filters(paths=("C:/docs",))) == []
    assert passing([text], Filters(paths=("notes",))) == [text.path]
    assert passing([text], Filters(paths=("/notes",))) == [], "an absolute glob names no relative path"
