"""Texts made by rule, the same for every system and every run: of a given length; and memories, questions and tasks."""

from __future__ import annotations

import random
from dataclasses import dataclass

from edge.models.tokenizer import PairTokenizer

_TEXT = (
    "memory layer weight query answer river stone window budget candidate cluster reading disk signal garden "
    "history theory engine market number letter motion island winter supply bridge copper forest circle record"
)
_WORDS = _TEXT.split()


def documents(tokenizer: PairTokenizer, query: str, count: int, tokens: int, seed: int = 0) -> list[str]:
    """`count` random texts, each as long as fits into `tokens` tokens together with `query`."""
    generator = random.Random(seed)
    texts = []
    for _ in range(count):
        low, high = 1, tokens
        words = generator.choices(_WORDS, k=tokens)
        while low < high:  # the largest number of words that still fits
            middle = (low + high + 1) // 2
            batch = tokenizer.encode_pairs(query, [" ".join(words[:middle])], tokens + 64)
            if len(batch.prefix) + int(batch.lengths[0]) <= tokens:
                low = middle
            else:
                high = middle - 1
        texts.append(" ".join(words[:low]))
    return texts


_NAMES = ("Ann", "Bo", "Carla", "Deniz", "Elif", "Femi", "Goran", "Hana", "Ivo", "Jun", "Kaya", "Lena", "Mo", "Nia")
_DID = ("bought", "lost", "repaired", "lent me", "sold", "found", "returned", "ordered", "painted", "hid", "admired")
_WHAT = (
    "a red bicycle", "the old piano", "two concert tickets", "a box of spices", "the garden chairs", "a silver ring",
    "the camping stove", "a first edition", "the blue kayak", "her father's watch", "a bag of seeds", "the router",
    "a wool coat", "the spare keys", "a jar of honey", "the projector", "a chess set", "the sewing machine",
)  # fmt: skip
_WHERE = (
    "in Rome", "at the station", "near the harbour", "in the attic", "at the market", "behind the school", "in Oslo",
    "on the ferry", "at the clinic", "in the library", "by the lake", "at the office", "in Lisbon", "on the roof",
)  # fmt: skip
_WHY = (
    "before the storm", "after the exam", "during the strike", "on a rainy day", "for the wedding", "by mistake",
    "without telling anyone", "while it snowed", "on the first day of school", "when the power failed",
)  # fmt: skip


def memories(count: int) -> list[str]:
    """`count` different sentences."""
    choose = random.Random(0)
    made: dict[str, None] = {}
    while len(made) < count:
        words = [choose.choice(part) for part in (_NAMES, _DID, _WHAT, _WHERE, _WHY)]
        made[f"{words[0]} {words[1]} {words[2]} {words[3]} {words[4]} in {choose.randrange(1990, 2026)}"] = None
    return list(made)


def questions(count: int) -> list[str]:
    """`count` questions about the sentences of `memories`."""
    choose = random.Random(1)
    return [
        f"where was {choose.choice(_NAMES)} when {choose.choice(_WHAT)} was {choose.choice(('lost', 'sold', 'found'))} "
        f"{choose.choice(_WHY)}?"
        for _ in range(count)
    ]


@dataclass(frozen=True, slots=True)
class Task:
    """A task for an agent: its text, the state that the agent sees, and the intent behind it."""

    text: str
    state: str
    intent: str


_APPS = (
    ("messages", "send {contact} a message saying I will be {number} minutes late"),
    ("music", "play the album {thing} on the kitchen speaker"),
    ("maps", "show the way to {place} avoiding motorways"),
    ("calendar", "put lunch with {contact} at {number} o'clock into my calendar"),
    ("shop", "order {number} bottles of {thing} to my address"),
    ("bank", "transfer {number} euros to {contact}"),
    ("mail", "forward the last mail from {contact} to the accountant"),
    ("photos", "share the pictures from {place} with {contact}"),
    ("settings", "turn the screen off after {number} seconds"),
    ("tickets", "book {number} train seats to {place} for tomorrow morning"),
    ("notes", "make a list called {thing} with {number} empty lines"),
    ("weather", "tell me whether it will rain in {place} this weekend"),
)
_SLOTS = {
    "contact": _NAMES,
    "number": tuple(map(str, range(2, 30))),
    "thing": ("Blue Hour", "Olive Grove", "Winter Sun", "Paper Boats", "Green Tea", "Night Train"),
    "place": ("Porto", "Graz", "Malmö", "Leeds", "Turin", "Ghent", "Split", "Bergen"),
}
_FORMS = (
    "{}", "please {}", "could you {}?", "I need you to {}", "{}, would you?", "{} as soon as you can",
    "would you mind: {}", "hey, {} for me",
)  # fmt: skip
_REWORDED = (
    ("send", "text"), ("show the way", "navigate"), ("put", "add"), ("order", "buy"), ("transfer", "send"),
    ("share", "send"), ("turn the screen off", "switch the display off"), ("book", "reserve"), ("make", "create"),
    ("tell me whether it will rain", "check for rain"), ("forward", "pass on"), ("play", "put on"),
)  # fmt: skip


def tasks(intents: int, *, seed: int) -> list[list[Task]]:
    """Groups of tasks, of which each is one intent in several wordings. The first wording is the one to store. Intents
    of one app differ only in a name, a number or a place, as real ones do."""
    choose = random.Random(seed)
    made: dict[str, list[Task]] = {}
    while len(made) < intents:
        app, pattern = choose.choice(_APPS)
        plain = pattern.format(**{slot: choose.choice(values) for slot, values in _SLOTS.items()})
        reworded = plain
        for word, other in _REWORDED:
            if plain.startswith(word):
                reworded = other + plain[len(word) :]
        wordings = [plain, *(form.format(text) for form in choose.sample(_FORMS[1:], 3) for text in (plain, reworded))]
        made[plain] = [Task(text, f"{app} app, start page", plain) for text in dict.fromkeys(wordings)]
    return list(made.values())
