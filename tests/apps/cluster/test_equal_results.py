"""A collection in shards gives the results of one collection: order and scores, to the bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from naive.spread import Small, invented


@pytest.mark.parametrize("shards", [1, 2, 4, 8])
@pytest.mark.parametrize("lists", ["flat", "lists"])
def test_shards_are_searched_as_one_collection_would_be(small: Callable[..., Small], shards: int, lists: str) -> None:
    one = small(shards, lists=lists == "lists")
    texts = invented(shards, 220)
    names = list(texts)
    one.add({name: texts[name] for name in names[:150]})
    one.cluster.finish()
    assert (one.share() > 1) == (lists == "lists")
    one.add({name: texts[name] for name in names[150:]})
    one.remove(names[3:120:13])
    one.cluster.publish()
    one.check(rerank=False)
    one.check(rerank=True)
    if lists == "flat":
        one.check(where="type:text", rerank=False)
