"""Calls of the public classes with arguments of every wrong type, made from their signatures."""

from __future__ import annotations

import inspect
import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from campaign.base import HELD, Attack, Case, Outcome, failed

_WRONG: list[tuple[str, Callable[[], Any]]] = [
    ("None", lambda: None), ("a number", lambda: 7), ("a negative number", lambda: -1), ("a fraction", lambda: 0.5),
    ("no number", lambda: float("nan")), ("a complex number", lambda: 1j), ("a huge number", lambda: 10**30),
    ("True", lambda: True), ("an empty text", lambda: ""), ("a text", lambda: "text"), ("bytes", lambda: b"bytes"),
    ("half a character", lambda: "\ud800"), ("a NUL", lambda: "a\0b"), ("an empty list", list),
    ("a list of numbers", lambda: [1, 2]), ("a list of lists", lambda: [["a"], ["b"]]),
    ("a list of None", lambda: [None]), ("a mapping", lambda: {"a": 1}), ("a mapping of numbers", lambda: {1: {2: 3}}),
    ("a set", lambda: {"a"}),
    ("a generator", lambda: (each for each in "ab")), ("an object", object), ("a class", lambda: dict),
    ("a function", lambda: len), ("a path", lambda: Path("no/such/file")), ("an exception", lambda: ValueError("x")),
]  # fmt: skip
_CALLBACKS = {"progress", "count", "clock", "shrink", "watch"}
_LEFT_OUT = {"close", "interrupt"}
_VALID: dict[str, Any] = {
    "query": "river", "question": "river", "docs": ["the river floods", "bread"], "texts": ["river", "bread"],
    "queries": ["river"], "text": "the river", "messages": "the river", "memory_id": "x", "user_id": "ann",
    "owner": "campaign", "nbytes": 100, "limit": 10**9, "items": ["x"], "paths": [], "hits": [], "scope": "ann",
}  # fmt: skip


class PythonCalls(Attack):
    name = "python-calls"
    promise = "An argument of a wrong type raises an error of ours, and the object goes on."
    quick = 400

    def prepare(self, place: Path) -> None:
        from making.synth import synth

        from edge import Assistant, Collection, Embedder, Memory, Reranker
        from edge.config import Config

        # A text may be a path: files made there stay in the campaign's folder.
        (place / "here").mkdir()
        self.opened = ExitStack()
        self.opened.callback(os.chdir, Path.cwd())
        os.chdir(place / "here")
        synth("tiny-bert", place / "models" / "tiny").close()
        synth("tiny-bert-embedder", place / "models" / "tiny-embedder").close()
        settings = {"reranker": "tiny", "embedder": "tiny-embedder", "models_dir": str(place / "models")}
        config = Config.load(flags={**settings, "memory": "10GB", "scratch_dir": str(place / "scratch")})
        (place / "docs").mkdir()
        (place / "docs" / "river.md").write_text("The river floods in spring.\n", encoding="utf-8")
        enter = self.opened.enter_context
        self.collection = enter(Collection(place / "collection", config=config))
        self.collection.index([place / "docs"])
        memory = enter(Memory(place / "memory", config=config))
        memory.add("I like rivers", user_id="ann")
        self.objects: dict[str, Any] = {
            "Reranker": enter(Reranker(config=config)), "Embedder": enter(Embedder(config=config)),
            "Collection": self.collection, "Memory": memory,
            "Assistant": enter(Assistant(self.collection, config=config)),
        }  # fmt: skip
        self.classes: dict[str, Any] = {
            "Reranker": Reranker, "Embedder": Embedder, "Collection": Collection, "Memory": Memory,
            "Assistant": Assistant,
        }  # fmt: skip
        self.config = config

    def cases(self, chance: random.Random) -> Iterator[Case]:
        calls = []
        for owner, target in self.objects.items():
            for name, method in inspect.getmembers(type(target), callable):
                if not name.startswith("_") and name not in _LEFT_OUT:
                    calls += [(owner, name, parameter) for parameter in list(inspect.signature(method).parameters)[1:]]
        for owner, kind in self.classes.items():
            calls += [(owner, "", parameter) for parameter in inspect.signature(kind).parameters]
        every = [(call, wrong) for call in calls for wrong in range(len(_WRONG))]
        chance.shuffle(every)
        for (owner, name, parameter), wrong in every:
            if parameter in _CALLBACKS and callable(_WRONG[wrong][1]()):
                continue  # errors of a caller's own function are the caller's affair
            yield Case(f"{owner}.{name}({parameter}={_WRONG[wrong][0]})", (owner, name, parameter, wrong))

    def attempt(self, case: Case, place: Path) -> Outcome:
        from edge.errors import EdgeError

        owner, name, parameter, wrong = case.data
        function = getattr(self.objects[owner], name) if name else self.classes[owner]
        arguments = _arguments(function, parameter, _WRONG[wrong][1]())
        if not name and owner != "Assistant" and parameter != "config":
            arguments.setdefault("config", self.config)
        if not name and owner in ("Collection", "Memory") and parameter != "path":
            arguments["path"] = place / "unused"
        if not name and owner == "Assistant" and parameter != "collection":
            arguments["collection"] = self.collection
        positional = arguments.pop("*", ())
        try:
            _use(function(*positional, **arguments), closes=not name)
        except EdgeError as error:
            return HELD if str(error) else failed(f"{type(error).__name__} says nothing")
        except Exception as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            where = trace.tb_frame.f_code.co_qualname if hasattr(trace.tb_frame.f_code, "co_qualname") else ""  # type: ignore[union-attr]
            return failed(f"{type(error).__name__} in {where}: {error}")
        return HELD

    def close(self) -> None:
        self.opened.close()


def _arguments(function: Any, parameter: str, value: Any) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, each in inspect.signature(function).parameters.items():
        if each.kind is inspect.Parameter.VAR_POSITIONAL:
            if name == parameter:
                given["*"] = (value,)
        elif each.kind is inspect.Parameter.VAR_KEYWORD:
            if name == parameter:
                given["user_id"] = value
        elif name == parameter:
            given[name] = value
        elif each.default is inspect.Parameter.empty:
            given[name] = _VALID.get(name, "x")
    return given


def _use(result: Any, *, closes: bool) -> None:
    """Takes the late parts of a result, and closes the opened objects."""
    if inspect.isgenerator(result) or hasattr(result, "__next__"):
        for _ in zip(range(50), result, strict=False):
            pass
    if closes or hasattr(result, "release"):
        for name in ("close", "release"):
            if hasattr(result, name):
                getattr(result, name)()
                return
