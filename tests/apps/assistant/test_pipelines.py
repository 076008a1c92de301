"""Every pipeline's control flow, on a collection and a generator small enough to think through."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from edge.apps.assistant.answer import NotInDocuments
from edge.apps.assistant.pipelines import INTERVAL, PIPELINES
from edge.apps.assistant.prompts import REFUSAL
from edge.apps.assistant.steps import Steps
from edge.errors import CapabilityError
from edge.runtimes.generation.base import Document, Message
from edge.scheduling.predictor import Seconds

READ = "You answer questions"
"""In the system message of every prompt for an answer, and of no other."""

QUESTION = "When does the river Ombra flood its valley?"

Script = dict[str, str | list[str]]


def scripted(script: Script) -> Callable[[Sequence[Message], Sequence[Document]], str]:
    """Replies by a word of the prompt; a list is replied one after the other, its last again and again."""
    told = {key: iter(value) for key, value in script.items() if isinstance(value, list)}
    last: dict[str, str] = {}

    def reply(messages: Sequence[Message], documents: Sequence[Document]) -> str:
        asked = "\n".join(message.content for message in messages if message.role != "assistant")
        for key, value in script.items():
            if key in asked:
                if isinstance(value, str):
                    return value
                last[key] = next(told[key], last.get(key, ""))
                return last[key]
        raise AssertionError(f"nothing to say to {asked!r}")

    return reply


def answered(name: str, steps: Steps, question: str = QUESTION) -> str:
    return "".join(PIPELINES[name](question, steps))


def begun(messages: Sequence[Message]) -> str:
    """The part of an answer that stands already."""
    return messages[-1].content if messages[-1].role == "assistant" else ""


Make = Callable[..., Steps]


@pytest.fixture(autouse=True)
def no_second_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine even these replies would take long enough for one."""
    monkeypatch.setattr("edge.apps.assistant.retrieval._LEAST_S", 1e6)


PLACES = "When does the Ombra flood its valley, and who was born in the town of Kell?"


@pytest.mark.parametrize(
    ("writes", "small", "replies"),
    [
        (True, False, {PLACES: "In spring [1]. Anna [2]."}),
        (False, False, {"flood its valley?": "In spring [1].", "who": "Anna [1]."}),
        (True, True, {"flood its valley?": "In spring [1].", "who": "Anna [1]."}),
    ],
)
def test_a_question_of_two_places_is_answered_from_both(
    steps: Make, generator: Any, writes: bool, small: bool, replies: Script
) -> None:
    """A language model writes one answer from the best passages of both parts; sentences are picked for each part, or
    written by a small model, and the numbers of their citations go on."""
    said = generator(scripted(replies))
    said.follows_instructions = writes
    made = steps(said, passages=3)
    made.small = small
    assert answered("plain", made, PLACES).split() == ["In", "spring", "[1].", "Anna", "[2]."]
    assert [entry.question for entry in made.rounds] == [
        "When does the Ombra flood its valley?", "who was born in the town of Kell?"
    ]  # fmt: skip
    paths = [citation.path for citation in made.showing.citations.of("In spring [1]. Anna [2].")]
    assert paths == ["/notes/0.md", "/notes/2.md"]


def test_a_part_without_an_answer_leaves_the_question_whole(steps: Make, generator: Any, library: Any) -> None:
    whole = "When does the Ombra flood its valley, and who paints volcanoes there?"
    made = steps(generator(scripted({whole: "In spring [1]."})))
    assert answered("plain", made, whole) == "In spring [1]."
    assert made.rounds[-1].question == whole
    assert made.probability == made.rounds[-1].best


@pytest.mark.parametrize("reply", [REFUSAL, f" {REFUSAL.lower()}. ", f'"{REFUSAL}"', "Not in\nthe documents"])
def test_a_refusal_of_the_generator_is_not_shown(steps: Make, generator: Any, reply: str) -> None:
    shown: list[str] = []
    with pytest.raises(NotInDocuments):
        shown.extend(PIPELINES["plain"](QUESTION, steps(generator(scripted({QUESTION: reply})))))
    assert shown == []


def test_hyde_looks_near_the_passage_and_prefetches_near_the_question(
    steps: Make, generator: Any, library: Any
) -> None:
    said = generator(scripted({"short passage": "Snow melts, water rises.", READ: "In spring [1]."}))
    assert answered("hyde", steps(said, "hyde")) == "In spring [1]."
    kinds = [name for name, _ in library.log]
    assert kinds == ["embed", "lookahead", "embed", "search", "rerank"]
    assert library.calls("embed") == [(QUESTION,), ("Snow melts, water rises.",)], "each text once"
    ((words, _, _, _),) = library.calls("search")
    assert words == QUESTION, "words are looked for as they were asked"
    assert library.calls("rerank")[0][0] == QUESTION
    assert library.aheads[0].cancelled, "when the passage is written, the search takes over"


def test_subquestion_searches_all_parts_as_one_batch(steps: Make, generator: Any, library: Any) -> None:
    parts = "1. Who built the bridge over the Ombra?\n2. Where was Anna Berg born?"
    said = generator(scripted({"simpler questions": parts, READ: "By Anna Berg [1], born in Kell [2]."}))
    made = steps(said, "subquestion", pool=8)
    assert answered("subquestion", made, "Where was the builder of the bridge born?").endswith("[2].")
    assert library.calls("embed")[1] == ("Who built the bridge over the Ombra?", "Where was Anna Berg born?")
    assert [call[0] for call in library.calls("rerank")] == list(library.calls("embed")[1])
    assert [call[1] for call in library.calls("rerank")] == [4, 4], "the pool is shared"
    assert {c.path for c in made.showing.citations.of("")} == {"/notes/1.md", "/notes/2.md"}
    assert len(made.rounds) == 2


def test_iterative_narrows_until_it_is_enough(steps: Make, generator: Any, library: Any) -> None:
    said = generator(
        scripted(
            {
                "answer the question completely": ["no", "yes"],
                "look up next": ["Who built the bridge?", "Where was Anna Berg born?"],
                "Found out so far": "In Kell [2].",
                "Who built the bridge?": "Anna Berg [1].",
                "Where was Anna Berg born?": "In Kell [1].",
            }
        )
    )
    made = steps(said, "iterative", rounds=5, passages=2)
    assert answered("iterative", made, "Where was the builder of the bridge born?") == "In Kell [1]."
    assert [r.question for r in made.rounds] == ["Who built the bridge?", "Where was Anna Berg born?"]
    assert "Anna Berg [1]." in said.users()[3], "what was found out is told"
    assert len(library.calls("lookahead")) == 6, "each generation before a retrieval looks ahead"


def test_iter_retgen_searches_with_its_own_drafts(steps: Make, generator: Any, library: Any) -> None:
    said = generator(scripted({QUESTION: ["It floods [1].", "Snow melts [1].", "In spring [1]."]}))
    made = steps(said, "iter-retgen", rounds=3)
    assert answered("iter-retgen", made) == "In spring [1]."
    assert [call[0] for call in library.calls("search")] == [
        QUESTION, f"{QUESTION} It floods [1].", f"{QUESTION} Snow melts [1].",
    ]  # fmt: skip
    assert {call[0] for call in library.calls("rerank")} == {QUESTION}
    assert len(library.calls("lookahead")) == 2, "not while the last answer is written"


def test_flare_retrieves_for_uncertain_sentences_only(steps: Make, generator: Any, library: Any) -> None:
    first = "The Ombra floods in spring [1]."
    doubted, better = "Its bridge was built in 1900 [1].", "The bridge was built in 1821 [2]."
    said = generator(scripted({QUESTION: [f"{first} {doubted}", f"{first} {doubted}", f"{first} {better}"]}))
    said.sure = lambda word: math.log(0.2) if word == "1900" else 0.0
    made = steps(said, "flare")
    assert answered("flare", made) == f"{first} {better}"
    searches = [call[0] for call in library.calls("search")]
    assert searches == [QUESTION, "Its bridge was built in [1]."], "what was doubted is not looked for"
    assert library.calls("lookahead"), "clusters are fetched while a sentence is drafted"


def test_flare_stops_retrieving_after_its_rounds(steps: Make, generator: Any, library: Any) -> None:
    said = generator(lambda messages, documents: " ".join(f"The river is {i} long." for i in range(9)))
    said.sure = lambda word: math.log(0.1)
    answered("flare", steps(said, "flare", rounds=2, max_tokens=20, check=False))
    assert len(library.calls("search")) == 3, "one for the question, two for doubts"


def test_flare_counts_the_tokens_it_writes(steps: Make, generator: Any) -> None:
    counted = iter("abc")
    said = generator(lambda messages, documents: f"{begun(messages)} So [9][9] {next(counted)} is. On".lstrip())
    text = answered("flare", steps(said, "flare", max_tokens=10))
    assert text == "So a is. So b is. So"
    assert [sampling.max_tokens for _, _, sampling in said.requests] == [10, 6, 2]


@pytest.mark.parametrize(
    ("reply", "requests"), [("In spring it floods [1].", 1), ("In spring it floods [1]. Snow melts then [1].", 2)]
)
def test_flare_ends_on_a_server_that_begins_anew_instead_of_continuing(
    steps: Make, generator: Any, reply: str, requests: int
) -> None:
    said = generator(lambda messages, documents: f"{begun(messages)} {reply}".lstrip())
    assert answered("flare", steps(said, "flare")) == "In spring it floods [1]."
    assert len(said.requests) == requests


@pytest.mark.parametrize("logprob", [1000.0, math.inf, -math.inf, math.nan])
def test_flare_takes_whatever_a_server_says_of_a_token(
    steps: Make, generator: Any, library: Any, logprob: float
) -> None:
    said = generator(lambda messages, documents: f"{begun(messages)} In spring [1].".lstrip())
    said.sure = lambda word: logprob
    assert answered("flare", steps(said, "flare")) == "In spring [1]."
    assert len(library.calls("search")) == (1 if logprob > 0 else 2), "what is no probability is no certainty"


def test_flare_shows_sentences_that_come_in_one_piece(steps: Make, generator: Any) -> None:
    whole = "It is spring [1]. Snow melts [1]."
    said = generator(lambda messages, documents: whole)
    said.tokens = lambda text: [text] if text.strip() else []
    assert answered("flare", steps(said, "flare")) == whole


def test_flare_needs_probabilities(steps: Make, generator: Any) -> None:
    said = generator(scripted({QUESTION: "In spring [1]."}))
    said.sure = lambda word: None
    with pytest.raises(CapabilityError, match="how probable"):
        answered("flare", steps(said, "flare"))


def self_rag_script(**changes: str | list[str]) -> Script:
    return {
        "looked up in documents": "yes", "support every statement": "fully", "from 1 (not at all)": "4",
        **{READ: "In spring [1].", **changes},
    }  # fmt: skip


def test_self_rag_keeps_the_best_supported_draft(steps: Make, generator: Any, library: Any) -> None:
    script: Script = {
        "Answer: In summer [1].\n\nDo": "no",
        "Answer: In autumn [1].\n\nDo": "partly",
        **self_rag_script(),
        READ: ["In summer [1].", "In spring [1].", "In autumn [1]."],
    }
    made = steps(generator(scripted(script)), "self-rag", min_relevance=0.0)
    assert answered("self-rag", made) == "In spring [1]."
    (citation,) = made.showing.citations.of("In spring [1].", made.given)
    assert citation.id == made.rounds[0].passages[1].id, "the second passage's draft was kept"
    assert len(library.calls("lookahead")) == 1


def test_self_rag_refuses_what_nothing_supports(steps: Make, generator: Any) -> None:
    said = generator(scripted(self_rag_script(**{"support every statement": "no"})))
    with pytest.raises(NotInDocuments):
        answered("self-rag", steps(said, "self-rag"))


def test_self_rag_answers_a_greeting_without_documents(steps: Make, generator: Any, library: Any) -> None:
    said = generator(scripted({"looked up in documents": "No.", "Hello": "Hello, ask me about your notes."}))
    made = steps(said, "self-rag")
    assert answered("self-rag", made, "Hello") == "Hello, ask me about your notes."
    assert library.calls("search") == []


def test_piperag_uses_a_query_one_interval_old(steps: Make, generator: Any, library: Any) -> None:
    text = " ".join(f"word{i}" for i in range(3 * INTERVAL + 5))
    said = generator(lambda messages, documents: text, seconds=0.001)
    made = steps(said, "piperag")
    assert answered("piperag", made) == text
    begun = [m[-1].content if m[-1].role == "assistant" else "" for m, _, _ in said.requests]
    assert [len(b.split()) for b in begun] == [0, INTERVAL, 2 * INTERVAL, 3 * INTERVAL]
    asked = [call for call in library.calls("search") if "word" in call[0]]
    # The last interval's is given up where the answer ends before it has begun.
    assert [call[0].split()[-1] for call in asked][:2] == [f"word{n * INTERVAL - 1}" for n in (1, 2)]
    assert made.trace.snapshot()["pipelining.searches"] >= 2


def test_piperag_searches_as_long_as_an_interval_takes(
    steps: Make, generator: Any, library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Less the time that embedding the query took and reranking will take."""
    text = " ".join(f"word{i}" for i in range(4 * INTERVAL))
    for rerank, reranking_s in ((True, 20.0), (False, 0.0)):
        library.log.clear()
        made = steps(generator(lambda messages, documents: text), "piperag", rerank=rerank)
        monkeypatch.setattr(made, "expect", lambda prompt, passages=(): Seconds(100.0))
        known = {"reranking": Seconds(20.0)}
        monkeypatch.setattr(made._predictor, "seconds", lambda work, units=1.0, known=known: known.get(work))
        answered("piperag", made)
        first, *behind = library.calls("search")
        assert first[2] is None, "the first is as wide as the recall target asks for"
        assert len(behind) in (2, 3), "the last interval's is given up where the answer ends before it has begun"
        for _, _, seconds, _ in behind:
            assert 90.0 - reranking_s < seconds < 100.0 - reranking_s


def test_results_are_the_same_with_and_without_lookahead(steps: Make, generator: Any, library: Any) -> None:
    scripts: dict[str, Script] = {
        "hyde": {"short passage": "Snow melts.", READ: "In spring [1]."},
        "subquestion": {"simpler": "When does the Ombra flood?\nWho built the bridge?", READ: "In spring [1]."},
        "iterative": {"completely": "yes", "look up next": QUESTION, "so far": "Spring [1].", READ: "In May [1]."},
        "iter-retgen": {QUESTION: ["It floods [1].", "Snow melts [1].", "In spring [1]."]},
        "flare": {QUESTION: "In spring [1]."},
        "self-rag": self_rag_script(),
    }
    for name, script in scripts.items():
        results = []
        for lookahead in (True, False):
            made = steps(generator(scripted(dict(script))), name, lookahead=lookahead)
            library.log.clear()
            text = answered(name, made)
            assert bool(library.calls("lookahead")) is lookahead
            found = [(r.queries, [(h.id, h.score) for h in r.passages]) for r in made.rounds]
            results.append((text, made.showing.citations.of(text, made.given), found))
        assert results[0] == results[1], name


@pytest.mark.parametrize(("name", "question"), [*((name, QUESTION) for name in PIPELINES), ("plain", PLACES)])
def test_what_replaces_a_sentence_is_looked_for_by_the_question_that_was_asked(
    steps: Make, generator: Any, library: Any, name: str, question: str
) -> None:
    """Whatever else was retrieved for."""
    library.judged, library.best = (0.9, 0.8), (1, "What the judge finds best.")
    replies = {"one per line": "the mill of Kell\nthe bridge of Anna Berg", "next in order to": "the mill of Kell"}

    def reply(messages: Sequence[Message], documents: Sequence[Document]) -> str:
        if messages[0].content.startswith(READ):
            return begun(messages) or "It was in autumn of 1950 [1]."
        return next((said for key, said in replies.items() if key in messages[-1].content), "yes, fully, 5")

    made = steps(generator(reply), name, min_relevance=None)
    assert "What the judge finds best." in answered(name, made, question)
    assert set(library.calls("quote")) == {question}
