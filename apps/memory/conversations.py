"""Conversations: how much each says about a query, and what it was about, without a model."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from edge.text.sentences import sentences

SHARE = 0.3
"""The weight of a conversation's score beside that of a turn's own. docs/decisions/search.md says how it was chosen."""

_COUNTED = 5
"""The best turns of a conversation that count in its score, each with half of the weight of the one before."""

READ = 300
"""The most turns of a conversation whose words are counted, evenly spaced."""

_CENTRAL = 3
"""The number of sentences that tell what a conversation was about."""

_LENGTH = 0.7
"""The power of a sentence's number of words that its weight is divided by: 1 prefers short sentences, 0 long ones."""


def conversation_scores(turns: Iterable[tuple[int, float]], first: Mapping[int, int]) -> dict[int, float]:
    """The score of each conversation: its best turns' scores, added up with falling weights.

    Args:
        turns: the ids of turns with their scores, best first.
        first: the conversation of each turn, as the id of its first turn.
    """
    scores: dict[int, float] = defaultdict(float)
    counted: Counter[int] = Counter()
    for turn, score in turns:
        conversation = first[turn]
        if counted[conversation] < _COUNTED:
            scores[conversation] += score * 0.5 ** counted[conversation]
            counted[conversation] += 1
    return scores


def beside_their_conversations(turns: Sequence[tuple[int, float]], first: Mapping[int, int]) -> list[tuple[int, float]]:
    """Turns with scores in 0 ... 1 that are mixed with their conversations', best first. A memory that belongs to no
    conversation keeps its score. The arguments are those of `conversation_scores`."""
    scores = conversation_scores(turns, first)
    mixed = [(turn, (1 - SHARE) * score + SHARE * scores[first[turn]]) for turn, score in turns]
    return [(turn, min(1.0, score)) for turn, score in sorted(mixed, key=lambda item: (-item[1], item[0]))]


def central_sentences(texts: Iterable[str], terms: Callable[[str], Iterable[str]]) -> list[str]:
    """The sentences that share most with the others, in their order.

    A word weighs much if several sentences have it, but not most of them. A chosen sentence takes away the weight of
    its words, so that the next one says something else (Nenkova and Vanderwende, "The Impact of Frequency on
    Summarization", 2005).
    """
    said = {sentence: dict.fromkeys(terms(sentence)) for text in texts for sentence in sentences(text)}
    counts = Counter(word for words in said.values() for word in words)
    weights = {word: math.log(1 + count) * math.log((1 + len(said)) / count) for word, count in counts.items()}
    chosen: set[str] = set()
    for _ in range(min(_CENTRAL, len(said))):
        best = max(
            (sentence for sentence in said if sentence not in chosen),
            key=lambda sentence: sum(map(weights.__getitem__, said[sentence])) / max(3, len(said[sentence])) ** _LENGTH,
        )
        chosen.add(best)
        weights |= dict.fromkeys(said[best], 0.0)
    return [sentence for sentence in said if sentence in chosen]
