"""A generator's text is checked against the passages before it is shown as certain."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.assistant import prompts
from edge.apps.assistant.answer import Answer, AnswerStats, notices
from edge.apps.assistant.assistant import Turn, standalone
from edge.apps.assistant.grounding import GivenPassage, Grounding, Judge, Unsupported, missing
from edge.apps.assistant.steps import SMALL_MODEL
from edge.apps.collection.hits import Hit
from edge.runtimes.generation.llama_cpp import LlamaGenerator

LEASE = (
    "# Lease\n\n## Rent\n\nThe monthly rent is 870 euros, due in June.\nA late payment costs a fee of 30 euros.\n\n"
    "## Deposit\n\nThe tenant pays a deposit of three months' rent to Ms Brandt.\n"
)
ASKED = "How much is the deposit?"
QUOTED = '"The tenant pays a deposit of three months\' rent to Ms Brandt."'


STAFF = (
    "Ada Weiss wrote the report on the harbour. It has forty pages. The mayor praised it. The council read it in May. "
    "Bo Krall painted the old lighthouse. The bridge never opens on Sundays."
)


@pytest.mark.parametrize(
    ("statement", "facts"),
    [
        ("The report on the harbour was written by Ada Weiss.", []),
        ("The report on the harbour was written by Bo Krall.", ["Bo", "Krall"]),
        ("The old lighthouse was painted by Krall.", []),
        ("The report on the harbour, praised by the mayor, is by Weiss.", []),
        ("The mayor did not praise the report on the harbour.", ["not"]),
        ("The bridge does not open on Sundays.", []),
    ],
)
def test_a_name_in_place_of_another_and_a_denial_are_noticed(statement: str, facts: list[str]) -> None:
    """A name stands at or beside the sentence that says the same, and so does a negation."""
    passages = [GivenPassage.of(STAFF), GivenPassage.of("Nobody knows.")]
    assert missing(statement, "What do you know?", passages) == facts
    asked = statement.replace(".", "?")
    assert missing(statement, asked, passages) == [], "the question's own words are no claim of the answer"
    assert missing("In 1951 it was 4 m.", "How long was it in 1951?", passages) == ["4 m"], "nor are its numbers"


REPORT = "Labour won Poland's cup in Germany. The smaller house burned; Mr Brandt left for Ireland by ship."
AMOUNTS = "The rent is 1,140 euros cold, plus 210 euros for heating.\nDeposit paid: 2,280 euros, at the bank."
FLAT = GivenPassage.of("The rent is 1,140 euros.", (), "Flat in Linden Row")
TICKETS = GivenPassage.of("Tickets are exchanged once. They are not refunded after that. The hut takes no cards.")
Facts = list[str]
Given = list[GivenPassage]
MISSING: list[tuple[Given, str, dict[str, Facts]]] = [
    # Numbers and names stand in a passage.
    ([GivenPassage.of(LEASE)], ASKED, {
        "The deposit is 30 euros.": ["30 euros"],
        "The deposit is 3 months' rent.": [],
        "The deposit is four months' rent.": ["four months"],
        "The rent is 870.00 euros.": [],
        "The rent is €870.": [],
        "The rent is 870 dollars.": ["870 dollars"],
        "It goes to Ms Brandt.": [],
        "It goes to Mr Brand and to Mr Miller.": ["Brand", "Miller"],
        "The deposit is due in July.": ["July"],
        "It is a deposit.": [],
        "It is due:\n1. to Ms Brandt\n2) in June": [],
        "": [],
    }),
    # A heading alone does not tell what a number is, if the statement says it, and the passage says nothing of it.
    ([FLAT], "How much is the down payment for the flat?", {
        "The down payment is 1,140 euros.": ["1,140 euros"], "The rent is 1,140 euros.": [], "It is 1,140 euros.": [],
    }),
    # What the first passage that holds the word only denies is not affirmed. A question that asks when or where says it
    # already.
    *(([TICKETS, GivenPassage.of("A card, and a refund to pay by card.")], question, said) for question, said in (
        ("May we decide not to travel?", {
            "If you travel, we provide a refund.": ["refund"], "It is not refunded.": [],
        }),
        ("What of tickets?", {"They are not refunded after that.": []}),
        ("Which card?", {"The card is blue.": []}),
        ("Can we pay by card?", {"You can pay by card.": ["card"]}),
        ("Where are cards taken?", {"Cards are taken.": []}),
    )),
    # Forms of names, and words that count nothing, are no facts.
    ([GivenPassage.of(REPORT)], "What happened?", {
        "The winner was Labour's cup in Poland.": [],
        "The cup was Polynesian.": ["Polynesian"],
        "He left for Ireland by ship, with the Milan cup.": ["Milan"],
        "Mr Brandt left the first one, the smaller one, for this one.": [],
        "Mr Brandt left one of them, and these two houses burned.": [],
        "Mr Brandt left two houses.": ["two houses"],
    }),
    ([GivenPassage.of("The ship sailed from South Korea.")], "From where?",
     {"The ship sailed from North Korea.": ["North"]}),
    # One amount of a note is not shown in place of another.
    ([GivenPassage.of(AMOUNTS)], "How much is it for the flat?", {
        "The deposit is 1,140 euros.": ["1,140 euros"],
        "The deposit is 2,280 euros.": [],
        "The rent is 1,140 euros.": [],
        "The heating is 1,140 euros.": ["1,140 euros"],
        "The heating is 210 euros.": [],
    }),
]  # fmt: skip


@pytest.mark.parametrize(
    ("passages", "question", "statement", "facts"),
    [(passages, question, *pair) for passages, question, said in MISSING for pair in said.items()],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_facts_that_no_passage_holds_are_missing(passages: Given, question: str, statement: str, facts: Facts) -> None:
    assert missing(statement, question, passages) == facts


DOGS = "Dogs must always be kept on a short leash outside."


@pytest.mark.parametrize(
    ("statement", "asked", "facts"),
    [
        (DOGS, ASKED, ["Dogs", "always", "kept", "short", "leash", "outside"]),
        ("A deposit is given to the owner before moving in.", ASKED, ["given", "owner", "moving"]),
        ("A deposit is given by the tenant, in rent.", ASKED, []),
        ("Dogs bark outside.", ASKED, ["Dogs", "bark", "outside"]),
        ("Delete.", ASKED, []),
        ("Hunde sollten immer draussen angeleint sein.", "Wie hoch ist die Kaution?", []),
    ],
)
def test_a_sentence_about_something_else_is_told_by_its_words_and_then_by_the_reranker(
    statement: str, asked: str, facts: list[str]
) -> None:
    """One new word is not enough, nor words of another language than the passages'."""
    judged: list[tuple[str, tuple[str, ...]]] = []

    def judge(relation: float) -> Judge:
        def related(statement: str, texts: Sequence[str]) -> list[float]:
            judged.append((statement, tuple(texts)))
            return [0.0] * (len(texts) - 1) + [relation]

        return Judge(lambda: None, related)

    passages = [GivenPassage.of("Nobody knows."), GivenPassage.of(LEASE)]
    assert missing(statement, asked, passages, (), judge(0.09)) == facts
    assert judged == ([(statement, ("Nobody knows.", LEASE))] if facts else []), "most sentences are not judged"
    assert missing(statement, asked, passages, (), judge(0.1)) == []
    assert missing(statement, asked, passages) == []


DENTAL = GivenPassage.of(
    "The dental cover pays 80 % of crowns for Marta. The yearly fee is 23 euros.", (), "Dental cover, Castor"
)
LIABILITY = GivenPassage.of(
    "Covers the family and the dog, up to 10 million euros. It costs 89 euros a year. Ask Ms Nair.", (), "Liability"
)


@pytest.mark.parametrize(
    ("statement", "question", "facts"),
    [
        ("The dental cover pays 89 euros a year.", "What does it pay of a crown?", ["89 euros"]),
        ("The dental cover pays 80 % of crowns.", "What does it pay of a crown?", []),
        ("The dental cover of crowns is for Nair.", "Who is it for?", ["Nair"]),
        ("The dental cover pays for Marta, and the liability of the dog costs 89 euros.", "How much is it?", []),
        ("The liability of the dog costs 89 euros, and the dental cover of crowns is paid by Nair.", "Who?", ["Nair"]),
    ],
)
def test_a_fact_belongs_to_the_passage_that_treats_what_is_said(
    statement: str, question: str, facts: list[str]
) -> None:
    assert missing(statement, question, [DENTAL, LIABILITY]) == facts
    assert missing(statement, question, [LIABILITY, DENTAL]) == facts
    if facts:
        assert missing(statement, question, [LIABILITY], [DENTAL]) == facts, "also if it cites the other passage"


BRANCH = GivenPassage.of("A service must answer in time. The branch in Sutro opens at ten.")
HOURS = GivenPassage.of("The webhook of a skill and its URL are checked for an hour.")


@pytest.mark.parametrize(
    ("statement", "facts"),
    [
        ("For webhook and URL of a skill checked for an hour the branch in Sutro opens at ten.", []),
        ("The webhook of a skill and its URL are checked for an hour in Sutro.", ["Sutro"]),
        ("For a skill: 1. Check the webhook 2. Check the URL", []),
        ("For a skill: 1. Check 3 webhooks", ["3 webhooks"]),
    ],
)
def test_a_run_of_a_passages_own_words_is_supported_and_numbers_of_items_are_no_facts(
    statement: str, facts: list[str]
) -> None:
    assert missing(statement, "How do I get help?", [BRANCH, HOURS]) == facts


NOTES = (
    "Household policy HM-40917\nYearly premium 128 euros, due on 1 April.\nIn the hut: it takes no cards.\n"
    "No running for Jonas until 15 June."
)


@pytest.mark.parametrize(
    ("question", "statement", "found"),
    [
        ("What is the number of our household policy?", "The number of the household policy is HM-40917.", False),
        ("Can we pay by card in the hut?", "You can only pay by card.", True),
        ("Can we pay by card in the hut?", "The hut takes no card.", False),
        ("When may Jonas jog again?", "Jonas has no plans to jog again.", True),
        ("When may Jonas jog again?", "No running until 15 June.", False),
        ("Wo?", "Der Beitrag der Police ist der Beitrag, " * 5, True),
    ],
)
def test_what_a_small_model_makes_up_is_noticed(hit: Any, question: str, statement: str, found: bool) -> None:
    """What is denied or affirmed against the passages, and a clause that comes again and again."""
    grounding = Grounding(question, [hit(1, NOTES, title="")])
    shown = grounding.feed(statement) + grounding.finish()
    assert bool(grounding.unsupported) == found, shown
    assert grounding.loops == ("Beitrag" in statement)


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("The report on the harbour has forty pages.", True),
        ("Ada Weiss wrote the report on the harbour.", False),
        ("The mayor praised it, Ada Weiss wrote the report.", True),
        ("The mayor wrote the report.", True),
        ("The report is as follows:", True),
        ("The answer is: no.", True),
        ("The report is the report.", True),
    ],
)
def test_a_small_model_may_only_copy(hit: Any, generator: Any, steps: Any, statement: str, found: bool) -> None:
    """Each clause of one sentence, and something that the question lacks."""
    check = Grounding("What is the report?", [hit(1, STAFF, title="")], copied=True)
    check.feed(statement + " ")
    check.finish()
    assert bool(check.unsupported) == found
    judge = Judge(lambda: (1, LEASE), Mock())
    elsewhere = Grounding("What is the report?", [hit(1, LEASE), hit(2, STAFF)], judge, copied=True)
    elsewhere.feed(statement + " ")
    elsewhere.finish()
    assert elsewhere.unsupported, "it is no better than the quotation of another passage"
    loose = Grounding("What is the report?", [hit(1, STAFF, title="")])
    loose.feed(statement + " ")
    loose.finish()
    assert loose.unsupported == []


@pytest.mark.parametrize(("weights", "copied"), [(SMALL_MODEL - 1, True), (SMALL_MODEL, False)])
def test_the_size_of_the_weights_tells_a_small_model(steps: Any, hit: Any, weights: int, copied: bool) -> None:
    model = Mock(spec=LlamaGenerator, follows_instructions=True, memory=Mock(weights=weights))
    made = steps(model)
    shown = made.shown("The mayor wrote the report.", [hit(1, STAFF, title="")], "Who wrote it?")
    assert (shown != "The mayor wrote the report.") == copied
    assert made.small == copied


def test_an_echo_of_a_question_with_a_number_is_no_answer(hit: Any) -> None:
    check = Grounding("the beans, Garden 2025?", [hit(1, "2 May: planted beans.", title="Garden 2025")], copied=True)
    assert (check.feed("The beans, Garden 2025?") + check.finish()).startswith('"2 May: planted beans."')


def test_a_small_model_does_not_rewrite_what_is_asked(steps: Any, generator: Any) -> None:
    turns = [Turn("Who wrote it?", "Who wrote it?", Answer("Ada Weiss.", (), AnswerStats()))]
    made = steps(generator(lambda messages, documents: "Who wrote the report?"))
    assert standalone("What ate the lettuces?", turns, made) == "Who wrote the report?"
    made.small = True
    assert standalone("What ate the lettuces?", turns, made) == "Who wrote it, What ate the lettuces?"


@pytest.fixture
def checked(hit: Callable[..., Hit]) -> Callable[..., str]:
    def check(*pieces: str, question: str = ASKED, text: str = LEASE) -> str:
        grounding = Grounding(question, [hit(1, "Bread needs flour.", title=""), hit(2, text, title="")])
        return "".join(map(grounding.feed, pieces)) + grounding.finish()

    return check


def test_a_sentence_is_said_once(hit: Callable[..., Hit], checked: Callable[..., str]) -> None:
    loop = "The rent is 870 euros. [2]\n\n"
    assert checked(loop, loop, "It is due in June. [2]") == f"{loop}It is due in June. [2]"
    assert checked("Yes. Yes. Yes.", question="Is it?") == "Yes. Yes. Yes.", "short ones may be items of a list"
    rent = "The rent is 870 euros."
    assert checked(f"1. {rent}\n2. {rent}\n3. It is due in June.") == f"1. {rent}\n3. It is due in June."
    grounding = Grounding(ASKED, [hit(1, LEASE, title="")])
    grounding.feed(loop + loop + "x")
    assert not grounding.loops
    grounding.feed(loop + loop + "x")
    assert grounding.loops, "it says the same again and again"


def test_an_unsupported_sentence_is_replaced_by_the_passages_own(checked: Callable[..., str]) -> None:
    said = "The deposit is 30 euros. [2] The rent is 870 euros. [2]"
    assert checked(said) == f"{QUOTED} [2] The rent is 870 euros. [2]"
    assert checked(*said) == checked(said), "however it streams"
    assert checked("The deposit is 30 euros [2].") == f"{QUOTED} [2]"
    assert checked("The deposit is 30 euros.") == f"{QUOTED} [2]", "nothing is cited: all passages are asked"


def test_code_is_left_alone(checked: Callable[..., str]) -> None:
    text = "Run this:\n```\nx = 99 apples. Bananas\n```\nThat is all. [1]"
    assert checked(text) == text


@given(st.text(alphabet="aB 3.€[1]\n`'", max_size=60))
def test_what_holds_no_facts_is_passed_on_unchanged(text: str) -> None:
    grounding = Grounding("3", [])
    shown = "".join(map(grounding.feed, text)) + grounding.finish()
    assert grounding.unsupported or shown == text


def test_the_assistant_checks_every_generator_but_those_that_quote(steps: Any, generator: Any, library: Any) -> None:
    written = generator(lambda messages, documents: "The river floods in autumn of 1950 [1].")
    made = steps(written)
    question = "When does the river Ombra flood its valley?"
    passages = made.retrieve(question)
    shown = "".join(made.answer(prompts.answer(question), passages))
    assert "1950" not in shown
    assert "The river Ombra floods its valley in spring" in shown
    assert [found.facts for found in made.showing.unsupported] == [("1950",)]
    made = steps(written, min_relevance=None)
    library.judged, library.best = (0.9, 0.8), (2, "What the judge finds best.")
    passages = made.retrieve(question)
    assert "".join(made.answer(prompts.answer(question), passages)) == '"What the judge finds best." [1]'
    assert made.showing.citations.of("[1]")[0].path == passages[1].path
    made = steps(written, check=False)
    assert "1950" in "".join(made.answer(prompts.answer(question), made.retrieve(question)))
    assert made.showing.unsupported == ()


def test_planted_errors_are_found_and_right_answers_left_alone() -> None:
    """The set is this project's own, and the limits are below the figures reached, so that a wording may change."""
    folder = Path(__file__).parents[2] / "bench" / "answers_set"
    rows = [json.loads(line) for line in (folder / "statements.jsonl").read_text("utf-8").splitlines()]
    caught = alarms = 0
    for row in rows:
        passage = (folder / "documents" / row["file"]).read_text("utf-8")
        caught += bool(missing(row["wrong"], row["question"], [GivenPassage.of(passage)]))
        alarms += bool(missing(row["right"], row["question"], [GivenPassage.of(passage)]))
    assert caught >= 0.8 * len(rows)
    assert alarms <= 0.1 * len(rows)


def test_a_loop_ends_the_generation(
    generator: Callable[..., Any], steps: Callable[..., Any], hit: Callable[..., Hit]
) -> None:
    loop = "The tenant pays a deposit to Ms Brandt. "
    writer = generator(lambda messages, documents: loop * 20)
    made = steps(writer)
    shown = "".join(made.answer(prompts.answer(ASKED), [hit(1, LEASE, title="")]))
    assert shown.strip() == loop.strip()
    assert writer.stats.new_tokens < 5 * len(loop.split()), "it is not waited for"
    assert writer.closed == 1


def test_a_quotation_replaces_several_sentences_once(hit: Callable[..., Hit]) -> None:
    check = Grounding(ASKED, [hit(1, LEASE)])
    shown = check.feed("The deposit is 30 euros. The deposit is 40 euros. ") + check.finish()
    assert shown.count(QUOTED) == 1
    assert [found.facts for found in check.unsupported] == [("30 euros",), ("40 euros",)]


@pytest.mark.parametrize(("count", "lines"), [(0, 0), (1, 1), (2, 2), (3, 3), (12, 3)])
def test_a_person_sees_few_of_many_unsupported_sentences(count: int, lines: int) -> None:
    found = tuple(Unsupported(f"Number {i}.", ("number",), "") for i in range(count))
    told = list(notices(Answer("", (), AnswerStats(generator="tiny"), unsupported=found)))
    assert len(told) == lines
    assert sum(f"Number {i}." in line for i in range(count) for line in told) == min(count, 2)
    assert count < 3 or f"{count - 2} further sentence" in told[-1]
