"""The judge of memories keeps to what its page promises, on both halves of its set."""

from __future__ import annotations

from bench.supersession import FOLDER, complaints, counts, pairs

RIGHT, RIGHT_IN_COMPLAINTS = 0.85, 0.4
"""Less than is found today, so that a model that is fitted again passes."""


def test_the_set_has_pairs_of_each_kind() -> None:
    found = list(pairs())
    assert len(found) >= 200
    assert len({(pair.old, pair.new) for pair in found}) == len(found)
    assert {(pair.half, pair.language, pair.ends) for pair in found} == {
        (half, language, ends)
        for half in ("open", "sealed")
        for language in ("en", "de", "fr", "es", "it")
        for ends in (True, False)
    }


def test_the_complaints_are_about_many_memories_and_a_third_is_in_other_languages() -> None:
    told = complaints()
    assert len(told) >= 50
    assert len({one.about for one in told}) >= 6
    assert sum(one.language != "en" for one in told) >= len(told) / 3
    assert {one.half for one in told} == {"open", "sealed"}
    assert all(len(one.misses) == 2 for one in told)


def test_the_facts_are_of_one_person_and_most_are_asked_for() -> None:
    lines = [line.split("\t") for line in (FOLDER / "facts.tsv").read_text("utf-8").splitlines()]
    assert len({fact for fact, _ in lines}) == len(lines) == 60
    assert len({question for _, question in lines} - {"-"}) == 40


def test_endings_are_found_and_few_are_wrong() -> None:
    told = [pair for one in complaints() for pair in one.pairs()]
    for judged, least in ((list(pairs()), RIGHT), (told, RIGHT_IN_COMPLAINTS)):
        for half, row in counts(judged).items():
            assert row["right_share"] >= least, half
            assert row["wrong_share"] <= 0.04, half
