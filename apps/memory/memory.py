"""`Memory`: an agent's local long-term memory with mem0's verbs and scopes; `docs/mem0.md` lists the differences."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from edge.apps.memory.arguments import (
    SCOPE_FIELDS,
    Clock,
    Scope,
    check_metadata,
    check_path,
    check_text,
    default_path,
    local_now,
)
from edge.apps.memory.filters import Condition, compile_filters, names_scope
from edge.apps.memory.records import Record, find_record, read_history, read_links, stored
from edge.apps.memory.searching import DEPTH, Searcher
from edge.apps.memory.selection import Count, Selection, fitting, select
from edge.apps.memory.store import MemoryStore, TextEmbedder, TextReranker
from edge.apps.memory.transcripts import ImportReport, import_transcripts
from edge.apps.memory.transfer import export_jsonl, extract, held_nbytes, import_jsonl, read_entries, texts_of
from edge.apps.memory.validity import chain, time_meant
from edge.apps.memory.writing import Eraser, Writer, check_validity
from edge.apps.pool import Held
from edge.apps.store.failures import Health
from edge.apps.store.lexical import bounded_query
from edge.apps.store.models import opened_budget
from edge.apps.store.rebuilding import Progress
from edge.apps.verbs.memories import ChangeOptions, ListOptions, RecallOptions, RememberOptions, WhichOptions
from edge.budget import MemoryBudget
from edge.config import Config, parse_size
from edge.errors import CapabilityError, InputError
from edge.ivf.base import MaintenanceReport
from edge.public_calls import checked_arguments
from edge.resident import Closing
from edge.runtimes.generation.base import Generator
from edge.trace import Trace

NO_SCOPE = "name a scope: user_id, agent_id or run_id, in the call, in its filters, or in Memory(...)"


@checked_arguments
class Memory(Closing):
    """Long-term memory of agents: statements of users and findings of agents, in scopes isolated from each other.

    Every call names a scope by `user_id`, `agent_id` and `run_id`, alone or together; a call without a scope is
    refused. Ids given to the constructor bind the whole object: it then sees and changes nothing outside their scope.

    Thread-safe; any number of processes may use the same directory. No data leaves the machine.

    Examples:
        >>> with Memory("memory", user_id="alice", memory="300MB") as memory:
        ...     memory.add("I am allergic to peanuts", metadata={"category": "health"})
        ...     for hit in memory.search("what can I cook for her?", 3)["results"]:
        ...         print(hit["score"], hit["memory"])
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        user_id: str | int | None = None,
        agent_id: str | int | None = None,
        run_id: str | int | None = None,
        memory: str | int | None = None,
        embedder: str | Path | TextEmbedder | Held[Any] | None = None,
        reranker: str | Path | TextReranker | Held[Any] | None = None,
        generator: Generator | None = None,
        clock: Clock = local_now,
        config: Config | None = None,
        budget: MemoryBudget | None = None,
        trace: Trace | None = None,
    ) -> None:
        """Opens the memory in the directory `path`, or creates one there. Models are opened on first use.

        Args:
            path: by default the platform's folder for the user's data.
            user_id: with `agent_id` and `run_id` the scope that the object is bound to; none of them leaves it unbound.
            agent_id: see `user_id`.
            run_id: see `user_id`.
            memory: limit of the whole process, such as `300MB`; by default the configuration's.
            embedder: a name or path, or an open model, which the caller closes. By default, an existing memory uses the
                embedder that made its vectors. The embedder cannot change once there are memories.
            reranker: likewise.
            generator: extracts facts for `add(..., infer=True)`; the caller closes it.
            clock: returns the present moment. Its day decides which memories have expired.
            budget: a budget shared with other parts of the program, instead of `memory`.

        Raises:
            InputError: an id or the path is not valid.
            StorageError: the memory cannot be opened, or a newer version wrote it.
            BudgetExceeded: the limit is too small. The message names the smallest limit that works.
        """
        self.bound = Scope.of({"user_id": user_id, "agent_id": agent_id, "run_id": run_id})
        self.path = check_path(path).expanduser().absolute() if path is not None else default_path()
        config = config or Config.load()
        self.trace = trace or Trace()
        limit = config.memory if memory is None else parse_size(memory)
        self.budget = budget or opened_budget(
            "the memory", limit, config, embedder=embedder, reranker=reranker, candidates=DEPTH, writes=True
        )
        self._clock = clock
        self._generator = generator
        self.store = MemoryStore(
            self.path, budget=self.budget, config=config, trace=self.trace, embedder=embedder, reranker=reranker
        )
        self._searcher = Searcher(self.store, clock)
        self._writer = Writer(self.store, clock)
        self._eraser = Eraser(self.store, self._writer)

    # Writing

    def add(
        self,
        messages: str | Mapping[str, Any] | list[Any],
        *,
        user_id: str | int | None = None,
        agent_id: str | int | None = None,
        run_id: str | int | None = None,
        infer: bool = False,
        prompt: str | None = None,
        options: RememberOptions | None = None,
        **named: Any,
    ) -> dict[str, Any]:
        """Remembers a text, a message, or a list of either, as one transaction.

        Args:
            messages: a text, or `{"role": ..., "content": ...}` as for chat models. System messages are left out.
            infer: let the generator extract facts, and store those. If the extraction fails, the messages are stored
                unchanged, and `result["extraction"]` gives the reason.
            prompt: instructions for the extraction.
            options: see `RememberOptions`; each may be named, too.

        Returns:
            `{"results": [{"id", "memory", "event", ...}]}`. The event is ADD, or NONE if the same memory (text, role,
            metadata, dates) already exists in this scope. `similar` names earlier memories that resemble it, and
            `supersedes` those that it ended.

        Raises:
            InputError: the scope is missing, or a value cannot be stored.
            CapabilityError: `infer` without a generator.
            ModelError, BudgetExceeded, StorageError: nothing was stored.
        """
        scope = self._scope(user_id, agent_id, run_id)
        if not scope:
            raise InputError(NO_SCOPE)
        asked = RememberOptions.of(options, **named)
        shared = Record(metadata=check_metadata(asked.metadata), **stored(asked))
        check_validity(shared.valid_from, shared.valid_until)
        texts = texts_of(messages)
        held = held_nbytes(texts)
        self.store.check_room(texts, held)
        with self.budget.reserve("texts to remember", held):
            entries, failure = read_entries(messages, shared), None
            if infer and entries:
                if self._generator is None:
                    raise CapabilityError("infer=True needs a generator: Memory(..., generator=...), or infer=False")
                entries, failure = extract(self._generator, entries, shared, prompt)
            added = self._writer.add(entries, scope, supersede=asked.supersede)
            result: dict[str, Any] = {"results": [one.to_json(explain=asked.explain) for one in added]}
        if failure is not None:
            logging.getLogger(__name__).warning("stored as it came, because %s", failure)
            result["extraction"] = {"stored": "messages", "reason": failure}
        return result

    def update(
        self,
        memory_id: str,
        text: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        data: str | None = None,
        options: ChangeOptions | None = None,
        **named: Any,
    ) -> dict[str, Any]:
        """Changes the given fields of a memory (see `ChangeOptions`). A memory without `valid_until` is superseded by
        none."""
        given = {"text": data if text is None else text, "metadata": metadata}
        asked = ChangeOptions.of(
            options, **{name: value for name, value in given.items() if value is not None}, **named
        )
        changes = stored(asked)
        if asked.text is not None:
            changes["text"] = check_text(asked.text, "text")
        if asked.metadata is not None:
            changes["metadata"] = check_metadata(asked.metadata)
        marked = asked.pinned is not None or asked.forgotten is not None
        if not changes and not marked:
            raise InputError("nothing to update: give text, metadata, importance, a date or a mark")
        if changes:
            with self.budget.reserve("texts to remember", held_nbytes([asked.text or ""])):
                self.store.check_room()
                self._writer.update(memory_id, self.bound, changes)
        if asked.pinned is not None:
            self.pin(memory_id, asked.pinned)
        if asked.forgotten is not None:
            self.forget(memory_id, asked.forgotten)
        return {"message": "Memory updated successfully!"}

    def delete(self, memory_id: str, *, purge: bool = False) -> dict[str, Any]:
        """Deletes a memory; its history stays, unless `purge`, which erases both, also where the memory was deleted
        before. The result then says what was erased, and what was not reached, such as backups."""
        if purge:
            return {"message": "Memory erased", **self._eraser.erase(memory_id, self.bound).to_json()}
        self._writer.delete(memory_id, self.bound)
        return {"message": "Memory deleted successfully!"}

    def delete_all(
        self,
        user_id: str | int | None = None,
        agent_id: str | int | None = None,
        run_id: str | int | None = None,
        *,
        purge: bool = False,
    ) -> dict[str, Any]:
        """Deletes every memory of a scope; the histories stay, unless `purge`, as in `delete`."""
        scope = self._scope(user_id, agent_id, run_id)
        if not scope:
            raise InputError(f"{NO_SCOPE}; reset() deletes everything")
        if purge:
            return {"message": "Memories erased", **self._eraser.erase_all(scope).to_json()}
        self._writer.delete_all(scope)
        return {"message": "Memories deleted successfully!"}

    def reset(self) -> None:
        """Erases everything: all memories of all scopes, and their history. Not for a bound object."""
        if self.bound:
            raise InputError(f"this memory was opened for {self.bound}; delete_all() deletes that, reset() everything")
        self._eraser.reset()

    def pin(self, memory_id: str, pinned: bool = True) -> dict[str, Any]:
        """Pins a memory, so that it neither expires nor ages. `pinned=False` removes the pin."""
        self._writer.mark(memory_id, self.bound, "PIN" if pinned else "UNPIN", pinned=pinned)
        return {"message": f"Memory {'pinned' if pinned else 'unpinned'} successfully!"}

    def supersede(self, memory_id: str, by: str | None) -> dict[str, Any]:
        """Ends a memory where another one takes its place: `search` returns it no more, unless `as_of` a moment at
        which it held. Nothing is deleted.

        Args:
            by: the id of the memory that takes its place, of the same user and agent. None undoes it.

        Raises:
            InputError: there is no such memory in this scope, or `by` was itself superseded by it.
        """
        self._writer.supersede(memory_id, by, self.bound)
        return {"message": f"Memory {'superseded' if by is not None else 'reinstated'} successfully!"}

    def forget(self, memory_id: str, forgotten: bool = True) -> dict[str, Any]:
        """Hides a memory from `search` and `get_all` without deleting it. `forgotten=False` shows it again."""
        self._writer.mark(memory_id, self.bound, "FORGET" if forgotten else "RECALL", forgotten=forgotten)
        return {"message": f"Memory {'forgotten' if forgotten else 'recalled'} successfully!"}

    # Reading

    def search(
        self,
        query: str,
        top_k: int | None = None,
        *,
        user_id: str | int | None = None,
        agent_id: str | int | None = None,
        run_id: str | int | None = None,
        options: RecallOptions | None = None,
        **named: Any,
    ) -> dict[str, Any]:
        """The memories of a scope most relevant to `query`, best first.

        Args:
            options: see `RecallOptions`; each may be named, too.

        Returns:
            `{"results": [{"id", "memory", "score", "timestamp", "metadata", ...}]}`. `score` can be compared between
            queries. It is the probability that the memory helps to answer, or without reranking the cosine with the
            query. Only the probability falls down the results, unless `recency` or `importance` orders them, too.

        Raises:
            InputError: the scope is missing, the query is empty, an operator is unknown, or a number is out of range.
            ModelError, BudgetExceeded: a model is missing or does not fit.
        """
        wanted = RecallOptions.of(options, **(named if top_k is None else {**named, "top_k": top_k}))
        scope, whose = self._whose(user_id, agent_id, run_id, wanted=wanted)
        check_text(bounded_query(query), "the query")
        asked = time_meant(query, wanted.as_of, self._clock(), at_any_time=wanted.show_expired)
        candidates, told = self._searcher.search(query, scope, whose, wanted, asked)
        results = [candidate.to_json(explain=wanted.explain) for candidate in candidates]
        if wanted.neighbours:
            for candidate, result in zip(candidates, results, strict=True):
                around = self._searcher.neighbours(
                    candidate.record, wanted.neighbours, show_expired=wanted.show_expired
                )
                result["neighbours"] = [{"offset": offset, **record.to_json()} for offset, record in around]
        document: dict[str, Any] = {"results": results} | ({"conversations": told} if wanted.conversations else {})
        if wanted.max_tokens is not None:
            document = fitting(document, wanted.max_tokens)
        if wanted.order == "time":
            said = {one.record.uuid: one.record.timestamp or one.record.created_at for one in candidates}
            document["results"].sort(key=lambda result: said[result["id"]])
        return document

    def get(self, memory_id: str) -> dict[str, Any] | None:
        """One memory, hidden or ended or not, with `links` to similar memories; None if there is none in this scope."""
        with self.store.read() as db:
            record = find_record(db, memory_id, self.bound)
            if record is None:
                return None
            links = read_links(db, record)
        return record.to_json() | ({"links": links} if links else {})

    def get_all(
        self,
        *,
        user_id: str | int | None = None,
        agent_id: str | int | None = None,
        run_id: str | int | None = None,
        options: ListOptions | None = None,
        **named: Any,
    ) -> dict[str, Any]:
        """The memories of a scope, newest first. Memories that hold no more are among them; they have `valid_until`,
        and `superseded_by` if another took their place.

        Args:
            options: see `ListOptions`; each may be named, too.

        Raises:
            InputError: as `search`.
        """
        wanted = ListOptions.of(options, **named)
        _, whose = self._whose(user_id, agent_id, run_id, wanted=wanted)
        records = self._searcher.listed(whose, wanted.count, wanted.offset)
        return {"results": [record.to_json() for record in records]}

    def history(self, memory_id: str, *, whole_chain: bool = False) -> list[dict[str, Any]]:
        """Every change of a memory, also of a deleted one, oldest first and in mem0's form. The events are ADD, UPDATE,
        DELETE, PIN, UNPIN, FORGET, RECALL, SUPERSEDE, REINSTATE and IMPORT.

        Args:
            whole_chain: with the changes of the memories that it superseded and that superseded it.
        """
        check_text(memory_id, "an id")
        with self.store.read() as db:
            return read_history(db, chain(db, memory_id, self.bound) if whole_chain else [memory_id], self.bound)

    # Other uses

    def select(
        self,
        text: str | Sequence[Mapping[str, Any]],
        query: str,
        budget_tokens: int,
        *,
        rerank: bool = True,
        count: Count | None = None,
    ) -> Selection:
        """Selects the parts of a long text or conversation most relevant to `query`, within `budget_tokens` and in
        their original order; see `edge.apps.memory.selection`.

        Args:
            count: counts the tokens of a text, best as the model that will read it. By default the generator counts,
                or the reranker if there is no generator.
        """
        count = count or (self._generator.count if self._generator is not None else self.store.models.count)
        return select(self.store.models, text, query, budget_tokens, rerank=rerank, count=count)

    def export_jsonl(self, target: str | os.PathLike[str] | TextIO) -> int:
        """Writes all memories of the bound scope to a JSON Lines file or an open stream, with hidden memories and all
        histories. An unbound object writes the memories of all scopes. Returns the number of memories."""
        return export_jsonl(self.store, self.bound, target)

    def import_jsonl(self, source: str | os.PathLike[str] | BinaryIO | TextIO) -> int:
        """Imports an exported file, or lines of mem0's `get_all`, from a path or an open stream. Memories whose ids
        exist already stay unchanged. Returns the number of new memories.

        Raises:
            InputError: a line holds no memory, or one of another scope than the bound one. The lines before it are
                kept.
        """
        return import_jsonl(self.store, self.bound, source, self._clock)

    def import_transcripts(self, source: str | os.PathLike[str], *, dry_run: bool = False) -> ImportReport:
        """Takes in conversations of coding agents and assistants, memories of mem0, and notes; see
        `edge.apps.memory.transcripts` for the formats. A conversation becomes a run. Whatever is there already is not
        taken again, so an interrupted import is continued by the next one. Keys and tokens are left out of the texts.

        Args:
            source: a file, or a folder of files.
            dry_run: only count what would come.

        Raises:
            InputError: no scope is bound, or there is nothing of a known format.
            StorageError: a file cannot be read. What was read before is kept.
        """
        if not self.bound:
            raise InputError("name whose turns they are: Memory(..., user_id=...), or memory.within(Scope(...))")
        return import_transcripts(self.store, self.bound, check_path(source), self._clock, dry_run=dry_run)

    # The memory as a whole

    def within(self, scope: Scope) -> Memory:
        """This memory for one scope only, as if it had been opened for it. It shares everything, and is not closed."""
        narrowed = copy(self)
        narrowed.bound = scope.within(self.bound)
        return narrowed

    def check_known(self) -> None:
        """Raises `InputError` if nothing was ever added for the ids that this memory is bound to, and something for
        others."""
        condition, params = self.bound.condition("t")
        deleted_too = f"SELECT 1 FROM memories t WHERE {condition} UNION ALL SELECT 1 FROM history t WHERE {condition}"
        with self.store.read() as db:
            own = db.execute(f"{deleted_too} LIMIT 1", [*params, *params]).fetchone()
            if own is None and db.execute("SELECT 1 FROM memories LIMIT 1").fetchone():
                raise InputError(
                    f"nothing was ever added for {self.bound}, only for others: if that is not meant, name the right "
                    "ids, such as `edge mcp memory --user-id NAME`"
                )

    def health(self, *, thorough: bool = False) -> Health:
        """The known damage and unfinished work of the memory, in all scopes; `thorough` also counts the vectors."""
        return self.store.health(thorough=thorough)

    def check_room(self) -> None:
        """Checks that adding and searching fit the limit, before they are asked for."""
        self.store.models.check_room("the memory", rerank=True, candidates=DEPTH, writes=True)

    def maintain(self, *, full: bool = False) -> MaintenanceReport | None:
        """Maintains the vector index now instead of in the background; None if nothing was ever stored."""
        return self.store.upkeep.maintain(full=full)

    def rebuild(self, *, progress: Progress | None = None) -> int:
        """Embeds the stored texts of all memories of all scopes again; for damaged vectors. An interrupted
        rebuild goes on with the next call, or in the background after the next writes.

        Args:
            progress: called with the number of texts done, and of all texts.

        Returns:
            The number of texts embedded.

        Raises:
            ModelError, BudgetExceeded, StorageError: the vectors made before the error are kept.
        """
        with self.store.read() as db:
            holds_any = self.store.count(db) > 0
        index = self.store.claimed_index() if holds_any else self.store.index
        if index is None:
            return 0
        self.store.models.describe()  # checks that the right embedder is there, before any vector is dropped
        self.store.rebuilding.begin(index)
        made = self.store.rebuilding.finish(index, progress)
        self.maintain()
        return made

    def close(self) -> None:
        """Closes models and files. Closing twice is harmless."""
        self._searcher.close()
        self.store.close()

    def _scope(self, *ids: object) -> Scope:
        return Scope.of(dict(zip(SCOPE_FIELDS, ids, strict=True))).within(self.bound)

    def _whose(
        self, user_id: object, agent_id: object, run_id: object, wanted: WhichOptions
    ) -> tuple[Scope, Condition]:
        """The scope of a call, and the condition for a memory to be returned."""
        scope, filters = self._scope(user_id, agent_id, run_id), wanted.filters or {}
        condition = compile_filters(filters)
        named = {name: value for name, value in filters.items() if isinstance(value, str | int) and value != "*"}
        Scope.of(named).within(self.bound)  # refuses an id of another scope
        if not scope and not names_scope(filters):
            raise InputError(NO_SCOPE)
        return scope, self._searcher.shown(scope, condition, show_expired=wanted.show_expired)
