"""`Own`: what the command line and the library of the server's own user ask for. Answered over the Unix socket only.

The answers hold everything that a command prints, so that it prints the same whoever did the work.
"""

from __future__ import annotations

import base64
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edge.apps.assistant.answer import figures as answer_figures
from edge.apps.assistant.answer import notices
from edge.apps.assistant.base import AskOptions
from edge.apps.assistant.stream import AnswerStream
from edge.apps.collection.collection import Collection
from edge.apps.collection.filters import Filters
from edge.apps.collection.together import Together
from edge.apps.files.searching import figures, look
from edge.apps.memory.arguments import default_path
from edge.apps.memory.scope import Scope
from edge.apps.memory.served import READS, WRITES
from edge.apps.serve.answers import written
from edge.apps.serve.connection import PROGRAM, settings_of
from edge.apps.serve.endpoint import Call
from edge.apps.serve.events import EventResponse, Events
from edge.apps.serve.json_values import Fields
from edge.apps.serve.library import Library, installed_names
from edge.apps.serve.limits import Limits
from edge.apps.serve.metrics import EngineRoom
from edge.apps.serve.place import read_note
from edge.apps.serve.refusals import Refusal
from edge.apps.serve.search import failed
from edge.models.registry import DEFAULT_EMBEDDER, DEFAULT_RERANKER
from edge.resident import anonymous_resident
from edge.runtimes.stats import RunStats
from edge.scheduling.urgency import PERSON

_MOST_TEXTS = 100_000
"""Texts of the user's own programs. A program with more does its work itself."""


class Own:
    """The endpoints of one server."""

    def __init__(self, library: Library, limits: Limits, room: EngineRoom) -> None:
        self._library = library
        self._limits = limits
        self._room = room
        self._started = time.time()
        self._answers: dict[str, AnswerStream] = {}
        """Answers that are being written, by the names that the programs gave them."""

    async def hello(self, call: Call) -> dict[str, Any]:
        """What this server is, so that a program can tell whether it does what the program would do alone."""
        budget = self._library.pool.budget
        return {
            "program": PROGRAM,
            "pid": os.getpid(),
            "started": self._started,
            "settings": settings_of(self._library.pool.config),
            "memory": {"limit": budget.limit, "resident": anonymous_resident()},
            "body": self._limits.body,
            "seconds": self._limits.request_s,
        }

    async def status(self, call: Call) -> dict[str, Any]:
        """`edge serve --status`: what this server is, holds and does."""
        room, note = self._room.state(), read_note() or {}
        return {
            **await self.hello(call),
            "url": note.get("url", "") if note.get("pid") == os.getpid() else "",
            "requests": room["requests"],
            "models": [model for model in room["models"] if model["open"]],
            "collections": [
                {"name": name, "path": str(path), "exists": Collection.exists(path)}
                for name, path in self._library.names().items()
            ],
            "memory_path": str(self._library.memory_path or default_path()),
        }

    async def search(self, call: Call) -> dict[str, Any]:
        """`edge search`: results with the state of each collection and the figures. The figures of the stages are
        those of the server in that time, other requests included."""
        fields = Fields(await call.json())
        chosen = _places(fields)
        asked: dict[str, Any] = {
            "query": fields.text("query"),
            "top_k": fields.whole("top_k"),
            "rerank": fields.flag("rerank", True),
            "min_score": fields.number("min_score", 0.0),
            "min_blended": fields.number("min_blended", 0.0),
            "where": Filters.parse(fields.texts("filters", [])),
        }

        def search() -> dict[str, Any]:
            started, pool = time.perf_counter(), self._library.pool
            before = pool.trace.snapshot()
            found = look(self._together(chosen), **asked)
            seconds = time.perf_counter() - started
            after = pool.trace.snapshot()
            found.figures.update(figures(after, before, seconds, anonymous_resident(), pool.budget.limit))
            return found.to_json()

        done: dict[str, Any] = await call.done(search, call.urgency(PERSON))
        return done

    async def rerank(self, call: Call) -> dict[str, Any]:
        """`edge rerank`: places, scores and relevance, best first, with the figures of the pass."""
        fields = Fields(await call.json())
        query, texts = fields.text("query"), fields.texts("texts", most=_MOST_TEXTS)
        top_k = fields.optional_whole("top_k")
        name = self._installed(fields.text("model", ""))
        mode, threshold = fields.text("mode"), fields.text("threshold")
        retrieved = fields.flag("retrieved", False)
        if mode not in ("ranked", "top-k"):
            raise Refusal(422, f"the mode is `ranked` or `top-k`, not {mode[:40]!r}")

        def rerank() -> dict[str, Any]:
            reranker = self._library.reranker(name or DEFAULT_RERANKER)
            found = reranker.explain(query, texts, top_k, retrieved=retrieved, mode=mode, threshold=threshold)
            return {
                "results": [[result.index, result.score, result.relevance] for result in found.results],
                "stats": found.stats.to_json(),
            }

        done: dict[str, Any] = await call.done(rerank, call.urgency(PERSON))
        return done

    async def embed(self, call: Call) -> dict[str, Any]:
        """`edge embed`: the vectors as float32 in base64, with the figures of the last pass."""
        fields = Fields(await call.json())
        texts, query = fields.texts("texts", most=_MOST_TEXTS), fields.flag("query", False)
        if not texts:
            raise Refusal(422, "the field `texts` holds no text")
        embedder = self._library.embedder(self._installed(fields.text("model", "")) or DEFAULT_EMBEDDER)
        passes: list[RunStats] = []

        def embed() -> dict[str, Any]:
            vectors = embedder.embed(texts, query=query, watch=passes.append)
            call.requests.hold(call.lease, call.lease.nbytes + 4 * vectors.nbytes)  # base64, JSON, and its bytes
            encoded = base64.b64encode(vectors.astype("<f4").tobytes()).decode("ascii")
            return {"vectors": encoded, "stats": passes[-1].to_json()}

        done: dict[str, Any] = await call.done(embed, call.urgency(PERSON))
        return done

    async def ask(self, call: Call) -> Any:
        """`edge ask`: an event `text` for each piece of the answer, then `answer` with all that is printed of it."""
        fields = Fields(await call.json())
        question, place, pipeline = fields.text("question"), Path(fields.path("collection")), fields.text("pipeline")
        values, where = fields.raw("options"), Filters.parse(fields.texts("filters", []))
        if not isinstance(values, dict) or "where" in values:
            raise Refusal(422, "the field `options` is an object, and the files are chosen by `filters`")
        options = AskOptions(**values, where=where)
        urgency, name = call.urgency(PERSON), fields.text("name")

        def ask(events: Events) -> None:
            with self._library.assistant_in(place, pipeline) as assistant:
                health = assistant.collection.health()
                troubles = [str(trouble) for trouble in health]
                stream = assistant.chat(options=options).stream(question)
                self._answers[name] = stream
                try:
                    answer = written(stream, lambda text: events.put("text", {"text": text, "troubles": troubles}))
                finally:
                    del self._answers[name]
            events.put("answer", {
                "document": answer.to_json() | {"health": health.to_json()},
                "citations": [asdict(citation) for citation in answer.citations],
                "notices": list(notices(answer)),
                "figures": list(answer_figures(answer.stats)),
                "troubles": troubles,
            })  # fmt: skip

        return EventResponse(call.workers, urgency, ask, failed)

    async def end(self, call: Call) -> dict[str, Any]:
        """Ctrl-C in `edge ask`: ends the answer of this name before its next token. Its request then gets the answer
        as written so far. `ended` is false if no answer of this name is being written."""
        stream = self._answers.get(Fields(await call.json()).text("name"))
        if stream is not None:
            stream.cancel()
        return {"ended": stream is not None}

    async def memory(self, call: Call) -> dict[str, Any]:
        """`edge memory`: what one verb of the memory returns, with the state of the memory."""
        fields = Fields(await call.json())
        verb, place, arguments = fields.text("verb"), Path(fields.path("path")), fields.list_of("arguments")
        named, ids = fields.raw("named"), fields.raw("scope")
        if verb not in READS | WRITES or not isinstance(named, dict) or not isinstance(ids, dict):
            raise Refusal(422, f"{verb[:40]!a} is not called in this way")
        if place != (self._library.memory_path or default_path()).absolute():
            raise Refusal(404, f"the memory in {place} is not served")

        def work() -> dict[str, Any]:
            memory = self._library.memory().within(Scope.of(ids))
            result = getattr(memory, verb)(*arguments, **named)
            return {"result": result, "health": [asdict(trouble) for trouble in memory.health()]}

        done: dict[str, Any] = await call.done(work, call.urgency(PERSON))
        return done

    def _together(self, chosen: dict[Path, str]) -> Together:
        return Together({name: self._library.collection_in(path) for path, name in chosen.items()})

    def _installed(self, model: str) -> str:
        """The name of an installed model; empty for the one that a program takes if nobody says.

        Raises:
            Refusal: it is not installed, or is a path.
        """
        if model and model not in installed_names(self._library):
            raise Refusal(404, f"it has no model {model[:80]!a}")
        return model


def _places(fields: Fields) -> dict[Path, str]:
    """The names of the collections that a program searches, by their directories; the program sends pairs of both."""
    found: dict[Path, str] = {}
    for pair in fields.list_of("collections"):
        if not isinstance(pair, list) or len(pair) != 2:
            raise Refusal(422, "an entry of `collections` is a pair of name and directory")
        each = Fields({"name": pair[0], "directory": pair[1]})
        found.setdefault(Path(each.path("directory")), each.text("name"))
    if not found:
        raise Refusal(422, "the field `collections` names no collection")
    return found
