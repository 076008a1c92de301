"""How many passages there will be, estimated while files are read."""

from __future__ import annotations

from pathlib import Path

from edge.apps.collection.indexing import Advance
from edge.trace import Trace


def files(folder: Path, sizes: dict[str, int]) -> list[str]:
    for name, size in sizes.items():
        (folder / name).write_bytes(b"x" * size)
    return [str(folder / name) for name in sizes]


def test_the_estimate_follows_what_was_read_and_ends_exact(tmp_path: Path) -> None:
    said: list[tuple[int, int, str]] = []
    paths = files(tmp_path, {**{f"{i}.pdf": 100_000 for i in range(10)}, **{f"{i}.txt": 10_000 for i in range(10)}})
    advance = Advance(lambda *told: said.append(told), [*paths, str(tmp_path / "gone")], Trace(), 6)
    for path in paths:  # a PDF of 100 kB has 5 passages, a text of 10 kB has 12
        pdf = path.endswith(".pdf")
        advance.read(path, 100_000 if pdf else 10_000, 5 if pdf else 12)
    first, second = f"{said[0][1]:,} passages searchable", f"{said[1][1]:,} passages searchable"
    assert said[0][0::2] == (0, f"0 of 21 files read, 0 of about {first}")
    assert said[1][2] == f"1 of 21 files read, 0 of about {second}: 0.pdf"
    totals = [total for _, total, _ in said]
    assert totals[-1] == 170
    assert all(100 < total < 350 for total in totals[3:])  # after three files it is near, and stays near
    with advance.embedding():
        for done in (100, 170):
            advance.embedded(done, 170)
    assert said[-2:] == [(done, 170, f"20 of 21 files read, {done} of 170 passages searchable") for done in (100, 170)]


def test_layers_move_it_within_a_batch(tmp_path: Path) -> None:
    said: list[int] = []
    trace = Trace()
    advance = Advance(lambda done, total, place: said.append(done), files(tmp_path, {"a.txt": 1000}), trace, 4)
    advance.read(str(tmp_path / "a.txt"), 1000, 8)
    with advance.embedding():
        for _ in range(4):
            trace.count("forward.evaluations", 8)
        advance.embedded(8, 16)
        trace.count("forward.evaluations", 8)
        for _ in range(9):  # some of them another search's
            trace.count("forward.evaluations", 8)
    trace.count("forward.evaluations", 8)  # nobody listens any more
    assert said[2:] == [2, 4, 6, 8, 8, 10, 12, 14, *[16] * 7]
