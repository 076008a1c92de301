"""Arguments are compared with their annotations at the door, and those that fit pass."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pytest

import edge
from edge.errors import ArgumentError, EdgeError, InputError, RangeError
from edge.public_calls import checked_arguments


class Duck(Protocol):
    def quack(self) -> None: ...


@checked_arguments
class Door:
    def __init__(self, path: str | Path | None = None) -> None:
        self.path = path

    def take(
        self,
        text: str = "",
        texts: Sequence[str] = (),
        count: int = 0,
        share: float | None = None,
        flag: bool = False,
        mode: Literal["a", "b"] = "a",
        mapping: Mapping[str, Any] | None = None,
        call: Callable[[], None] | None = None,
        many: Iterable[str] = (),
        listed: list[int] | None = None,
        anything: object = None,
        duck: Duck | None = None,
        unknown: NotLoaded | None = None,  # type: ignore[name-defined]  # noqa: F821
        *more: Any,
        **others: Any,
    ) -> str:
        return "taken"

    @staticmethod
    def stand(path: str) -> str:
        return path

    def _inner(self, text: str) -> str:
        return text


FITS: dict[str, list[Any]] = {
    "text": ["a"], "texts": [["a"], ("a",), [], deque(["a"])], "count": [3, np.int64(3)],
    "share": [3, 0.5, np.float32(0.5), None], "flag": [True, np.bool_(True)], "mode": ["a", "z"], "mapping": [{}, None],
    "call": [print, None], "many": [iter(["a"]), {"a"}, ["a"]], "listed": [[1], None], "anything": [None, 1, object()],
    "duck": [object(), None], "unknown": [1],
}  # fmt: skip
ODD = [range(3), bytearray(b"x"), memoryview(b"x"), deque([1]), np.array(["a", "b"]), np.zeros((2, 2)), np.array("a")]
"""Sequences whose items are no texts, and arrays, whose truth is ambiguous."""

UNFIT: dict[str, list[Any]] = {
    "text": [None, 1, b"a", ["a"]], "texts": ["a", b"a", None, {"a": 1}, 1, ["a", 1], {1: 2}.keys(), iter(["a"]), *ODD],
    "count": ["3", 3.5, None, True], "share": ["3", 1j, True], "flag": [1, "yes", None], "mode": [1, None],
    "mapping": [[], "a"], "call": [1], "many": ["a", 1, [1], {1}, *ODD], "listed": [(1,), ["a"]],
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in FITS.items() for value in values])
def test_what_fits_passes(name: str, value: Any) -> None:
    assert Door().take(**{name: value}) == "taken"


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in UNFIT.items() for value in values])
def test_what_does_not_fit_is_an_error_of_ours_and_a_type_error(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"Door\.take: {name} must be .*, not {type(value).__name__}") as caught:
        Door().take(**{name: value})
    assert isinstance(caught.value, InputError | EdgeError)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(("path", "why"), [("a\0b", "a NUL"), ("\ud800", "half of a character")])
def test_what_can_be_no_path_is_refused(path: str, why: str) -> None:
    for given in (path, Path(path)):
        with pytest.raises(ArgumentError, match=f"is no path: it holds {why}"):
            Door(given)
    assert Door("\udcff").path == "\udcff"  # a name that is not UTF-8
    assert Door().take(text=path) == "taken"


def test_calls_that_do_not_match_the_signature() -> None:
    for call in (lambda: Door().take(**{"absent": 1}), lambda: Door().take("a", [], 0, None, False, "a")):
        assert call() == "taken"
    for call in (lambda: Door(1), lambda: Door("a", "b"), lambda: Door.stand(), lambda: Door.stand(1)):  # type: ignore[arg-type, call-arg, misc]
        with pytest.raises(ArgumentError, match=r"^Door\."):
            call()
    assert Door("a").path == "a"
    assert Door.stand("a") == "a"
    assert Door()._inner(1) == 1  # type: ignore[arg-type]
    with pytest.raises(RangeError, match="count has more than 63 bits"):
        Door().take(count=2**63)
    assert Door().take(count=2**63 - 1) == "taken"
    assert (Door.take.__name__, Door.take.__annotations__["text"]) == ("take", "str"), "it looks like what it guards"


@pytest.mark.parametrize("name", ["Reranker", "Embedder", "Collection", "Memory", "Assistant", "Client"])
def test_every_call_of_a_public_class_is_checked(name: str) -> None:
    kind = getattr(edge, name)
    for called, member in inspect.getmembers(kind, inspect.isfunction):
        if called == "__init__" or not called.startswith("_"):
            assert hasattr(member, "__wrapped__"), called
    with pytest.raises(ArgumentError, match=rf"{name}\.__init__"):
        kind(no_such_argument=1)
