from __future__ import annotations

import inspect
import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from edge.apps.documents.base import MAX_FILE_BYTES, FoundFile, Reason, SkippedFile, printable
from edge.apps.documents.scanner import fingerprint, scan
from edge.errors import InputError


def listed(*roots: Path, **options: object) -> tuple[list[str], dict[str, Reason]]:
    """Names of files found, in order, and reasons by name of skipped files; relative to the first root."""
    base = roots[0].resolve()
    found, skipped = [], {}
    for item in scan(roots, **options):  # type: ignore[arg-type]
        name = os.path.relpath(item.path, base)
        if isinstance(item, FoundFile):
            found.append(name)
        else:
            assert isinstance(item, SkippedFile)
            assert item.detail
            assert name not in skipped
            skipped[name] = item.reason
    return found, skipped


def write(folder: Path, *names: str, data: bytes = b"text") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def test_files_come_depth_first_by_their_bytes(tmp_path: Path) -> None:
    write(tmp_path, "b/2", "b/10", "a", "B", "c.d/x", "c/x", "é")
    found, skipped = listed(tmp_path)
    assert found == ["B", "a", "b/10", "b/2", "c/x", "c.d/x", "é"]
    assert skipped == {}
    assert listed(tmp_path)[0] == found


def _rewritten(folder: Path) -> None:
    before = (folder / "a.txt").stat()
    write(folder, "a.txt", data=b"next")
    os.utime(folder / "a.txt", ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda folder: None, True),
        (_rewritten, False),
        (lambda folder: write(folder, "sub/deep/new.txt"), False),
        (lambda folder: (folder / "sub/b.txt").unlink(), False),
        (lambda folder: (folder / "sub/b.txt").rename(folder / "sub/c.txt"), False),
        (lambda folder: (folder / "sub").rename(folder / "other"), False),
        (lambda folder: (folder / "a.txt").chmod(0), False),
        (lambda folder: write(folder, ".gitignore", data=b"*.txt\n"), False),
        (lambda folder: write(folder, "sub/.edgeignore", data=b"*.txt\n"), False),
        (lambda folder: write(folder.parent, ".git/info/exclude", data=b"*.txt\n"), False),
        (lambda folder: write(folder.parent, ".gitignore", data=b"a.txt\n"), False),
        (lambda folder: write(folder, ".hidden/new.txt", "built/deep/new.txt", "../.git/index"), True),
    ],
)
def test_a_fingerprint_changes_with_what_a_scan_takes(
    tmp_path: Path, change: Callable[[Path], None], same: bool
) -> None:
    folder = tmp_path.resolve() / "project"
    write(folder, "a.txt", "sub/b.txt", "built/deep/x", ".hidden/y", "../.git/info/y")
    write(folder, ".gitignore", data=b"built\n")
    os.utime(folder / "sub/b.txt", ns=(1, 5 * 10**18))
    left_out = {item.path.as_posix() for item in scan([folder]) if isinstance(item, SkippedFile)}
    before, newest = fingerprint(folder, left_out)
    assert newest == 5 * 10**18
    change(folder)
    assert (fingerprint(folder, left_out)[0] == before) is same


def test_everything_that_is_left_out_has_its_reason(tmp_path: Path) -> None:
    write(tmp_path, "kept.txt", ".hidden", ".folder/inside", "sub/.edge/edge.db", "collection/edge.db", "skip.log")
    write(tmp_path, ".gitignore", data=b"*.log\n")
    write(tmp_path, "empty", data=b"")
    write(tmp_path, "large.txt")
    os.truncate(tmp_path / "large.txt", MAX_FILE_BYTES + 1)
    write(tmp_path, "binary.txt", data=b"\x7fELF\0\0\0")
    write(tmp_path, "old.dot", data=b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(100))
    write(tmp_path, "fake.pdf", data=b"no PDF")
    found, skipped = listed(tmp_path, exclude=[tmp_path / "collection"])
    assert found == ["kept.txt"]
    assert skipped == {
        ".hidden": Reason.HIDDEN, ".folder": Reason.HIDDEN, ".gitignore": Reason.HIDDEN, "sub/.edge": Reason.EXCLUDED,
        "collection": Reason.EXCLUDED, "skip.log": Reason.IGNORED, "empty": Reason.EMPTY,
        "large.txt": Reason.TOO_LARGE, "binary.txt": Reason.BINARY, "old.dot": Reason.UNSUPPORTED,
        "fake.pdf": Reason.UNSUPPORTED,
    }  # fmt: skip


KEY = b"-----BEGIN OPENSSH PRIVATE KEY-----\n" + b"b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQ" * 3 + b"\n-----END"


def test_secrets_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    names = ["server.pem", "a/id_rsa", "Keys.KDBX", "prod.env", "a/store.p12", ".env"]
    write(tmp_path, *names, "id_rsa.pub", "environment.txt", "key.md", "tokens.md")
    write(tmp_path, "backup.txt", data=b"My key:\n" + KEY)
    write(tmp_path, "old.txt", data=KEY.replace(b"KEY-----\n", b"KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: x\n\n"))
    write(tmp_path, "token", data=b"ghp_" + b"a1" * 20 + b"\n")
    write(tmp_path, "notes.md", data=b"A key begins with -----BEGIN PRIVATE KEY-----\nand a token with ghp_abc.\n")
    found, skipped = listed(tmp_path)
    assert found == ["backup.txt", "environment.txt", "id_rsa.pub", "key.md", "notes.md", "tokens.md"]
    assert skipped == {
        **dict.fromkeys([*names[:-1], "old.txt", "token"], Reason.SECRET), ".env": Reason.HIDDEN,
    }  # fmt: skip
    write(tmp_path, ".edgeignore", data=b"!server.pem\n!old.txt\n")
    assert {"server.pem", "old.txt"} <= set(listed(tmp_path)[0])
    assert listed(tmp_path / "a" / "id_rsa") == (["."], {})


@pytest.mark.parametrize(
    ("patterns", "included"),
    [
        ("!*.txt\n!*\n!**\n!*/\n", set()),
        ("!server.pem\n", {"server.pem"}),
        ("!*.pem\n", {"server.pem"}),
        ("*\n!*/\n!*.txt\n!*.pem\n", {"server.pem"}),
        ("!/sub/key.txt\n!*.pem\n*.pem\n", {"sub/key.txt"}),
    ],
)
def test_a_pattern_asks_for_secrets_if_it_names_them(tmp_path: Path, patterns: str, included: set[str]) -> None:
    write(tmp_path, "server.pem", "sub/key.txt", "token.txt", data=KEY)
    write(tmp_path, ".edgeignore", data=patterns.encode())
    assert set(listed(tmp_path)[0]) == included


def test_a_secret_that_is_known_leaves(tmp_path: Path) -> None:
    write(tmp_path, "server.pem", "kept.txt")
    assert listed(tmp_path, unchanged=lambda found: True) == (["kept.txt"], {"server.pem": Reason.SECRET})
    (said,) = [item.detail for item in scan([tmp_path]) if isinstance(item, SkippedFile)]
    assert said == "may hold secrets; a line !server.pem in .edgeignore includes it"


def test_symlinks_are_never_followed(tmp_path: Path) -> None:
    write(tmp_path, "outside/secret.txt", "root/real/a.txt")
    root = tmp_path / "root"
    for name, target in (
        ("out", "../outside"), ("file", "../outside/secret.txt"), ("loop", "."), ("real/up", ".."), ("dead", "nowhere"),
    ):  # fmt: skip
        (root / name).symlink_to(target)
    found, skipped = listed(root)
    assert found == ["real/a.txt"]
    assert skipped == dict.fromkeys(["out", "file", "loop", "real/up", "dead"], Reason.SYMLINK)
    (tmp_path / "link").symlink_to("root")
    assert [item.path for item in scan([tmp_path / "link"]) if isinstance(item, FoundFile)] == [
        root.resolve() / "real/a.txt"
    ]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no such files")
def test_pipes_and_sockets_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)  # a socket's name may not be long
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        assert listed(tmp_path) == ([], {"pipe": Reason.SPECIAL, "socket": Reason.SPECIAL})
    assert [type(item) for item in scan([tmp_path / "pipe"])] == [SkippedFile]


def test_what_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in for the system: permissions do not stop a superuser."""
    write(tmp_path, "a/1", "b", "c")
    real_scan, real_open = os.scandir, os.open

    def scandir(path: Path) -> object:
        if Path(path).name == "a":
            raise PermissionError(13, "Permission denied")
        return real_scan(path)

    def opened(path: Path, flags: int, *arguments: int) -> int:
        if Path(path).name == "b":
            raise PermissionError(13, "Permission denied")
        return real_open(path, flags, *arguments)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(os, "open", opened)
    assert listed(tmp_path) == (["c"], {"a": Reason.UNREADABLE, "b": Reason.UNREADABLE})


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="names are Unicode there")
def test_names_that_are_no_text(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/d\xff"
    os.mkdir(folder)
    for name in (b"/\xfe.txt", b"/new\nline", b"/tab\t", b"/.gitignore"):
        with open(folder + name, "wb") as file:
            file.write(b"*\t\n" if name == b"/.gitignore" else b"text")
    found, skipped = listed(tmp_path)
    assert [os.fsencode(name) for name in found] == [b"d\xff/new\nline", b"d\xff/\xfe.txt"]
    assert {os.fsencode(name) for name in skipped} == {b"d\xff/.gitignore", b"d\xff/tab\t"}
    assert printable(found[1]) == "d\\xff/\\xfe.txt"


def test_roots_that_overlap_give_each_file_once(tmp_path: Path) -> None:
    write(tmp_path, "a", "sub/b", "sub/.deep/c", "sub/.deep/d.txt")
    roots: Sequence[Path] = (
        tmp_path, tmp_path / "sub", tmp_path, tmp_path / "sub" / ".deep" / "c", tmp_path / "sub" / "..",
    )  # fmt: skip
    found, skipped = listed(*roots)
    assert sorted(found) == ["a", "sub/.deep/c", "sub/b"]
    assert skipped == {"sub/.deep": Reason.HIDDEN}


def test_a_root_that_is_hidden_or_ignored_is_walked(tmp_path: Path) -> None:
    write(tmp_path, ".notes/a.txt", ".notes/build/b.txt")
    (tmp_path / ".notes/.gitignore").write_text("build\n")
    assert listed(tmp_path / ".notes")[0] == ["a.txt"]
    assert listed(tmp_path / ".notes" / "build")[0] == ["b.txt"]


def test_a_missing_root_is_an_error_before_anything_is_walked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere cannot be indexed"):
        scan([tmp_path, tmp_path / "nowhere"])
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match="loop cannot be indexed"):
        scan([tmp_path / "loop"])


def test_files_that_are_known_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a", "b")
    opened = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest: opened.append(Path(path).name) or real(path, *rest))
    assert listed(tmp_path, unchanged=lambda found: found.path.name == "a")[0] == ["a", "b"]
    assert opened == ["b"]


def test_only_some_names_of_a_folder(tmp_path: Path) -> None:
    write(tmp_path, "a", "sub/b", "sub/c", "sub/deep/d", "other/e")
    root = str(tmp_path.resolve())
    only = {root: {"sub", "gone"}, os.path.join(root, "sub"): {"b", "deep"}}
    assert listed(tmp_path, only=only) == (["sub/b", "sub/deep/d"], {})


def test_folders_deeper_than_the_interpreter_recurses(tmp_path: Path) -> None:
    limit = 150
    folder = tmp_path.joinpath(*["d"] * (limit + 50))
    folder.mkdir(parents=True)
    (folder / "a").write_text("text")
    items = scan([tmp_path])
    depth = len(inspect.stack())
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + limit)
    try:
        found = [item for item in items if isinstance(item, FoundFile)]
    finally:
        sys.setrecursionlimit(before)
    assert len(found) == 1
