"""A small cluster in this process, beside one collection that holds everything."""

from __future__ import annotations

import random
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from edge.apps.cluster.calling import ShardDocument
from edge.apps.cluster.catalogue import Replica
from edge.apps.cluster.cluster import Cluster
from edge.apps.cluster.places import LocalPlaces
from edge.apps.cluster.shard import put
from edge.apps.collection.catalog import Catalog, passage
from edge.apps.collection.collection import Collection, Together
from edge.apps.documents.chunking import chunks_of
from edge.apps.documents.plain import text_blocks
from edge.config import Config
from edge.ivf.base import IndexOptions

SMALL = IndexOptions(flat_limit=60, pending_limit=10, list_rows=16, grace_seconds=0)
WORDS = ["river", "bread", "ice", "old", "spring", "blue", "3", "17", "flood", "time", "is", "the"]
QUERIES = (
    "lex: bread river vec: when does it flood",
    "old ice",
    "the rivver of sprinng",
    "lex: 3 17 bread",
    '"old ice"',
)


def invented(seed: int, count: int) -> dict[str, str]:
    """Texts by name, some of them equal, and some equal but for their layout."""
    chance = random.Random(seed)
    texts = [" ".join(chance.choices(WORDS, range(1, len(WORDS) + 1), k=chance.randint(3, 60))) for _ in range(count)]
    for at in range(0, count, 5):
        texts[at] = chance.choice(texts).replace(" ", " " * chance.randint(1, 2))
    names = [f"text-{number}" for number in range(count)]
    chance.shuffle(names)
    return dict(zip(names, texts, strict=True))


class Small:
    """A cluster of some shards in this process, and the collection that holds everything."""

    def __init__(
        self, folder: Path, config: Config, shards: int, *, copies: int = 1, lists: bool = False, places: Any = None,
        on: Sequence[str] = ("here",),
    ) -> None:  # fmt: skip
        """With `lists`, the shards are trained when they have more than a few vectors."""
        self.folder, self.config, self.on = folder, config, on
        self.options = SMALL if lists else IndexOptions()
        self.places: Any = places or LocalPlaces(config=config)
        self.whole = Collection(folder / "whole", config=config)
        self.whole.models.claim()
        self.cluster = self.opened()
        self.cluster.create([self.replica(f"s{n}", copy) for n in range(shards) for copy in range(copies)])
        self.share()

    def opened(self) -> Cluster:
        """Another object for the same catalogue."""
        return Cluster(self.folder / "catalogue", self.places, config=self.config, options=self.options)

    def replica(self, shard: str, number: int = 0) -> Replica:
        place = self.on[int(shard[1:]) % len(self.on)]
        return Replica(shard, number, place, str(self.folder / f"{shard}-{number}"), 10**11)

    def documents(self, texts: dict[str, str]) -> list[ShardDocument]:
        found = []
        for name, text in texts.items():
            chunks = tuple(chunks_of(text_blocks(text), ""))
            vectors = self.cluster.models.embed([passage(chunk.context, chunk.text) for chunk in chunks])
            digest = blake2b(text.encode(), digest_size=16).digest()
            found.append(ShardDocument(name, "", "text", "", digest, chunks, vectors))
        return found

    def add(self, texts: dict[str, str]) -> None:
        documents = self.documents(texts)
        self.cluster.put(documents)
        index = self.whole.vectors
        assert index is not None
        with self.whole.database.write() as db:
            put(db, Catalog(), index, documents)

    def remove(self, names: Sequence[str]) -> None:
        assert self.cluster.remove(names) == len(names)
        self.whole.delete(names)

    def share(self) -> int:
        """Gives the whole collection the quantizer of the shards; returns its number of lists."""
        quantizer, index = self.cluster.catalogue.quantizer(), self.whole.vectors
        assert quantizer is not None
        assert index is not None
        index.install_quantizer(self.whole.database.write, quantizer)
        return len(quantizer.centroids)

    def check(self, queries: Sequence[str] = QUERIES, *, cluster: Cluster | None = None, **options: Any) -> None:
        """Both give the same results, to the bit."""
        for query in queries:
            found = (cluster or self.cluster).search(query, 20, **options)
            assert (cluster or self.cluster).spelled(query) == Together({"": self.whole}).spelled(query)
            assert [told(hit) for hit in found] == [told(hit) for hit in self.whole.search(query, 20, **options)]

    def close(self) -> None:
        self.cluster.close()
        self.places.close()
        self.whole.close()


def told(hit: Any) -> tuple[Any, ...]:
    """Everything but the numbers that a hit has in its own database."""
    return (hit.path, hit.ordinals, hit.score, hit.stages, hit.text, hit.snippet, hit.marks, hit.line)


def nodes(*places: str) -> Any:
    """A node of Ray on this machine for each place."""
    from ray.cluster_utils import Cluster as Nodes

    from edge.apps.cluster.places import OBJECT_STORE_NBYTES

    found = Nodes()
    for number, place in enumerate(places):
        head = {"include_dashboard": False} if not number else {}
        found.add_node(num_cpus=1, resources={place: 1}, object_store_memory=OBJECT_STORE_NBYTES, **head)
    return found
