"""Makes the reader's examples: ``python -m edge.models.training.examples --explorer DIR --data DIR ... --out DIR``.

It writes ``train.gz``, and ``held.gz`` for the probability: articles and passages of which training sees nothing.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from . import forms, spans
from .corpora import Corpus, load
from .spans import Example

_WORDS = (25, 35, 45, 55, 70, 90, 150)
_HELD = 20
"""One article or domain in so many is held back."""


def _squad(
    pages: Path, source: str, rng: random.Random, without: float, barred: Collection[str]
) -> Iterator[list[Example]]:
    for title, found in spans.explorer(pages, source):
        if title in barred:
            continue
        paragraphs = list(dict.fromkeys(example.passage for example in found))
        asked = [example for example in found if example.spans]
        found += spans.unanswered(rng.sample(asked, int(without * len(asked))), paragraphs, rng)
        yield [_dressed(example, title, rng) for example in found]


def _test_titles(corpus: Corpus) -> set[str]:
    titles = dict(zip(corpus.ids, corpus.titles, strict=True))
    return {titles[document] for grades in corpus.test.values() for document in grades}


def _judged(corpus: Corpus, rng: random.Random, without: float) -> list[Example]:
    seen = corpus.without_test_documents()
    titles = dict(zip(seen.texts, seen.titles, strict=True))
    found = spans.judged(seen, "train")
    found += spans.unanswered(rng.sample(found, int(without * len(found))), seen.texts, rng)
    return [_dressed(example, titles[example.passage], rng) for example in found]


def _forms(path: Path, rng: random.Random, most: int, without: float) -> Iterator[list[Example]]:
    domains: dict[str, list[forms.Passage]] = {}
    for passage in forms.passages(path):
        domains.setdefault(passage.domain, []).append(passage)
    for passages in domains.values():
        contexts = {passage.text: passage.context for passage in passages}
        found = [example for passage in passages for example in forms.questions(passage, rng)]
        found = rng.sample(found, min(most, len(found)))
        found += spans.unanswered(rng.sample(found, int(without * len(found))), list(contexts), rng)
        yield [_dressed(example, contexts[example.passage], rng) for example in found]


def _dressed(example: Example, title: str, rng: random.Random) -> Example:
    """The example as a search may show it: a shorter or longer passage, in half of the cases below its title; one
    question in seven as people type it into a search."""
    example = spans.window(example, rng, rng.choice(_WORDS))
    if rng.random() < 0.15:
        example = replace(example, question=example.question.lower().rstrip("?"))
    return spans.titled(example, title if rng.random() < 0.5 else "")


def _divided(groups: Iterable[list[Example]]) -> tuple[list[Example], list[Example]]:
    train: list[Example] = []
    held: list[Example] = []
    for number, group in enumerate(groups):
        (held if number % _HELD == _HELD - 1 else train).extend(group)
    return train, held


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the files."""
    parser = argparse.ArgumentParser(prog="edge.models.training.examples", description=__doc__)
    parser.add_argument("--explorer", type=Path, required=True, help="explorer pages of SQuAD's training articles")
    parser.add_argument("--impossible", type=Path, help="explorer pages with questions that have no answer")
    parser.add_argument("--data", type=Path, nargs="*", default=[], help="judged sets with answers, in BEIR layout")
    parser.add_argument("--passages", type=Path, help="passages of documents (see forms)")
    parser.add_argument("--most", type=int, default=6000, help="questions of one domain of documents")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    rng = random.Random(options.seed)
    corpora = [load(directory) for directory in options.data]
    barred = {title for corpus in corpora for title in _test_titles(corpus)}
    train, held = _divided(_squad(options.explorer, "squad-train", rng, 0.25, barred))
    if options.impossible is not None:
        for group in _squad(options.impossible, "squad-impossible", rng, 0, barred):
            train += [example for example in group if not example.spans]
    for corpus in corpora:
        train += _judged(corpus, rng, 0.25)
    if options.passages is not None:
        train += [example for group in _forms(options.passages, rng, options.most, 0.4) for example in group]
    rng.shuffle(train)
    options.out.mkdir(parents=True, exist_ok=True)
    print(spans.write(options.out / "train.gz", train), spans.write(options.out / "held.gz", held))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
