"""The benchmark of searching ahead: its medians, and that another result is noticed."""

from __future__ import annotations

from typing import Any

from bench.rehearsal import _AFTER, _AHEAD, figures, row


def report(first: float, after: float, found: str) -> dict[str, Any]:
    return {"first": first, "after": after, "processor": 1.0, "found": found}


def test_medians_of_both_arms_are_compared_and_so_is_what_they_found() -> None:
    slow = [report(3.0, 0.4, "a"), report(5.0, 0.2, "b"), report(4.0, 0.3, "c")]
    fast = [report(each["first"] - 1, each["after"] / 2, each["found"]) for each in slow]
    made = row({_AFTER: [slow], _AHEAD: [fast]})
    assert made["first"] == {_AFTER: 4.0, _AHEAD: 3.0}
    assert made["identical"]
    told = {(each.table, each.column): each.median for each in figures({"hyde": made})}
    assert told["gain", "searching is shorter"] == 2.0
    assert not row({_AFTER: [slow], _AHEAD: [[*fast[:2], report(1.0, 1.0, "d")]]})["identical"]
