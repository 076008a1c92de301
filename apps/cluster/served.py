"""`ServedCluster`: a collection in shards with the calls that a server and its assistants make of collections."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from edge.apps.cluster.cluster import Cluster
from edge.apps.collection.collection import Together
from edge.apps.collection.excerpts import MOST_BYTES, Excerpt, NotIndexed
from edge.apps.collection.filters import Filters
from edge.apps.collection.hits import Hit
from edge.apps.collection.models import Searchable
from edge.apps.collection.report import CollectionStatus, IndexedFile
from edge.apps.collection.searching import Floats, Seen, Within, is_nonsense, misspelled
from edge.apps.store.failures import Health, Trouble
from edge.apps.verbs.requests import SearchOptions
from edge.errors import CapabilityError, InputError

_NUMBER = re.compile(r"#([0-9]{1,18})")
_PATTERN = re.compile(r"[*?[]")


class ServedCluster(Searchable, Together):
    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self._name, self._partial = cluster, "", False
        self.models, self.trace, self.config, self.budget = (
            cluster.models, cluster.trace, cluster.config, cluster.budget,
        )  # fmt: skip
        self.path = cluster.catalogue.database.path.parent
        self.collections: Any = {"": self}
        self._missing: tuple[str, ...] = ()

    def view(self, name: str, *, partial: bool) -> ServedCluster:
        """For one request, whose hits get a name. With `partial`, if a shard is lost, `health` names it."""
        made = copy(self)
        made._name, made._partial = name, partial
        return made

    @property
    def first(self) -> Any:
        return self.collections[""]

    @property
    def database(self) -> Any:
        """The page and the tool `get` read documents from a database."""
        raise CapabilityError(f"the documents in {self.path} are in shards; /v1/documents and get_documents read them")

    def search(
        self, query: str, top_k: int | None = None, *, options: SearchOptions | None = None, seen: Seen | None = None,
        spelled: Mapping[str, str] | None = None, **named: Any,
    ) -> list[Hit]:  # fmt: skip
        """The cluster spells each query itself, with figures that come with the first trip."""
        found = self.cluster.search(query, top_k, options=options, partial=self._partial, seen=seen, **named)
        self._missing = found.missing
        return [replace(hit, collection=self._name) for hit in found.hits]

    def candidates(
        self, words: Sequence[str], vectors: Sequence[Sequence[Floats | None]], k: int, *, where: Filters,
        within: Within,
    ) -> list[list[Hit]]:  # fmt: skip
        find = self.cluster.candidates
        return self.cluster.asked(
            lambda version, sources: find(version, sources, words, vectors[0], k, where, within), "", k
        )[0]  # fmt: skip

    def spelled(self, query: str) -> dict[str, str]:
        fan = self.cluster.fan
        return self.cluster.asked(lambda _, sources: misspelled(query, [*sources.values()], self.models, fan), query)[0]

    def is_nonsense(self, query: str) -> bool:
        return self.cluster.asked(lambda _, sources: is_nonsense(query, [*sources.values()], self.models), query)[0]

    def lookahead(self, queries: Floats, **named: Any) -> None:
        """The lists are in the shards."""

    def health(self) -> Health:
        lost = ", ".join(self._missing)
        told = f"shard {lost} is missing, and these are the results of the others"
        return Health((Trouble("missing shard", told, ""),) if lost else ())

    def status(self) -> CollectionStatus:
        """`edge cluster status` describes their indexes."""
        found = self.cluster.each("status")
        whole: dict[str, Any] = {name: sum(one[name] for one in found) for name in _SUMS}
        kinds = Counter[str]()
        for one in found:
            kinds.update(one["kinds"])
        return CollectionStatus(
            path=self.path, roots=sorted({root for one in found for root in one["roots"]}), kinds=dict(kinds),
            incomplete=(), skipped=(), failed=(), embedder=self.identity, vectors=None, health=self.health(),
            resident_nbytes=0, database_nbytes=sum(one["database_bytes"] for one in found),
            source_nbytes=sum(one["source_bytes"] for one in found), list_hits=0, list_misses=0, **whole,
        )  # fmt: skip

    def descriptions(self) -> Mapping[str, str]:
        return {path: text for one in self.cluster.each("descriptions") for path, text in one.items()}

    def files(self) -> list[IndexedFile]:
        found = [IndexedFile(**file) for one in self.cluster.each("files") for file in one]
        return sorted(found, key=lambda file: file.path)

    def read(
        self,
        targets: Sequence[str],
        *,
        lines: int | None = None,
        max_bytes: int | None = None,
        missing: list[str] | None = None,
    ) -> list[Excerpt]:
        """A passage's number is that of a search in the same version."""
        left = MOST_BYTES if max_bytes is None else max_bytes
        found: list[Excerpt] = []
        for target in targets:
            if found and left <= 0:
                break
            try:
                excerpts = self._excerpts(target, lines, left)
            except InputError as error:
                if missing is None:
                    raise
                missing.append(str(error))
                continue
            for one in excerpts:
                if left > 0:
                    found.append(one)
                    left -= len(one.text.encode())
        return found

    def _excerpts(self, target: str, lines: int | None, most: int) -> list[Excerpt]:
        number, count = _NUMBER.fullmatch(target), self.cluster.count
        asked = f"#{int(number[1]) // count}" if number else target
        answers = self.cluster.each("read", target=asked, lines=lines, max_bytes=most)
        if number:
            answers = [answers[int(number[1]) % count]]
        found = [Excerpt(**one) for answer in answers if isinstance(answer, list) for one in answer]
        if not found:
            raise NotIndexed(str(answers[0]).replace(asked, target))  # a shard has numbers of its own
        paths = {one.path for one in found}
        if len(paths) > 1 and not _PATTERN.search(target):
            raise InputError(f"several files match {target}: {', '.join(sorted(paths)[:3])}")
        return sorted(found, key=lambda one: (one.path, one.line_start))

    def close(self) -> None:
        self.cluster.close()


_SUMS = ("indexed", "pending", "chunks")
