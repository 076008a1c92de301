"""The page in a real browser, on a real server: every view, by keyboard and pointer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.apps.serve.conftest import SETTLED, Opened, Running, stream


def search(page: Page, query: str) -> None:
    page.locator("#query").fill(query)
    expect(page.locator("#search-state")).to_have_text(SETTLED)


def answering(page: Page, path: str, body: str) -> None:
    """Lets the browser see this answer in place of the server's."""

    def answer(route: Route) -> None:
        route.fulfill(status=200, content_type="text/event-stream; charset=utf-8", body=body)

    page.route(f"**{path}", answer)


def held(page: Page, path: str, body: str) -> None:
    """Lets the page see this answer in place of the server's, of which no more comes and which does not end."""
    page.evaluate(
        """([path, body]) => {
          const usual = (window.usual ||= window.fetch);
          const start = (stream) => stream.enqueue(new TextEncoder().encode(body));
          window.fetch = (asked, ...options) =>
            asked === path ? Promise.resolve(new Response(new ReadableStream({ start }))) : usual(asked, ...options);
        }""",
        [path, body],
    )


def test_results_come_while_typing_and_end_in_the_reranker_s_order(opened: Opened, site: Running) -> None:
    page = opened.go("search")
    page.locator("#query").press_sequentially("river", delay=20)
    expect(page.locator("#search-state")).to_have_text(SETTLED)
    with site.client() as client:
        named = client.get("/v1/collections").json()["collections"]
        chosen = [found["name"] for found in {found["path"]: found for found in reversed(named)}.values()][::-1]
        body = {"query": "river", "collections": chosen}
        results = client.post("/v1/search", json=body).json()["results"]
    assert len(results) > 1
    expect(page.locator(".hit .name")).to_have_text([Path(result["path"]).name for result in results])
    first = page.locator(".hit", has_text="river.md")
    expect(first.locator("mark").first).to_have_text("river")
    expect(first.locator(".facts")).to_contain_text(re.compile(r"documents · line \d+ · .*20\d\d · relevance \d\.\d\d"))
    expect(page).to_have_url(re.compile(r"#search\?q=river$"))
    expect(page.locator("#hits")).not_to_have_attribute("aria-busy", "true")


def test_the_order_settles_layer_by_layer(opened: Opened, site: Running) -> None:
    """A candidate that the fused results did not hold comes up, too, with its text from the index."""
    with site.client() as client:
        hits = client.post("/v1/search", json={"query": "river garden office", "rerank": False}).json()["results"]
    first, second, third = hits[:3]

    def layer(number: int, *order: dict[str, Any]) -> tuple[str, Any]:
        found = [{"id": hit["id"], "collection": hit.get("collection", ""), "score": 0.5} for hit in order]
        return "layer", {"layer": number, "active": len(order), "dropped": 0, "results": found}

    page = opened.go("search")
    names = [Path(hit["path"]).name for hit in (first, second, third)]
    for layers, expected in (
        ([], [names[0], names[1]]),
        ([layer(1, second, first)], [names[1], names[0]]),
        ([layer(1, second, first), layer(2, third, first, second)], [names[2], names[0], names[1]]),
    ):
        held(page, "/v1/search", stream(("fused", {"results": [first, second]}), *layers))
        page.locator("#query").fill(f"query {len(layers)}")
        expect(page.locator(".hit .name")).to_have_text(expected)
        if layers:
            expect(page.locator("#search-state")).to_contain_text("putting the best first")
            expect(page.locator("#hits")).to_have_attribute("aria-busy", "true")
    expect(page.locator(".hit").first.locator(".snippet")).to_contain_text(third["text"].split("\n")[0])


def test_the_keyboard_is_enough(opened: Opened) -> None:
    page = opened.go("search")
    expect(page.locator("#query")).to_be_focused()
    search(page, "river")
    keyboard = page.keyboard
    keyboard.press("ArrowDown")
    expect(page.locator(".hit .open").nth(0)).to_be_focused()
    keyboard.press("ArrowDown")
    second = page.locator(".hit .open").nth(1)
    expect(second).to_be_focused()
    keyboard.press("Enter")
    expect(page.locator("#document h2")).to_be_focused()
    expect(page.locator("#document .passage").first).to_be_visible()
    keyboard.press("Escape")
    expect(page.locator("#document")).to_be_hidden()
    expect(second).to_be_focused()
    keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    keyboard.press("Escape")
    expect(page.locator("#help")).to_be_hidden()
    keyboard.press("ArrowUp")
    keyboard.press("ArrowUp")
    expect(page.locator("#query")).to_be_focused()
    keyboard.press("Escape")
    expect(page.locator("#query")).to_have_value("")
    expect(page.locator(".hit")).to_have_count(0)
    page.locator("#help-button").focus()
    for key, view in zip("23451", ("ask", "memory", "collections", "engine", "search"), strict=True):
        page.locator("#help-button").focus()
        keyboard.press(key)
        expect(page.locator(f"#view-{view}")).to_be_visible()
        expect(page.locator("#views > section:visible")).to_have_count(1)
        expect(page.locator("#tabs [aria-current]")).to_have_attribute("href", f"#{view}")
    page.locator("#help-button").focus()
    keyboard.press("/")
    expect(page.locator("#query")).to_be_focused()
    keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    keyboard.press("Escape")
    keyboard.type("2?")
    expect(page.locator("#query")).to_have_value("2?")
    keyboard.press("Escape")
    expect(page.locator("#query")).to_have_value("")
    keyboard.press("Escape")
    expect(page.locator("#query")).not_to_be_focused()
    keyboard.press("3")
    expect(page.locator("#view-memory")).to_be_visible()


def test_a_question_is_answered_and_followed_up(opened: Opened) -> None:
    page = opened.go("ask")
    for number, question in enumerate(("When does the river flood?", "And the bridge?"), 1):
        page.locator("#question").fill(question)
        page.locator("#question").press("Enter")
        expect(page.locator(".how")).to_have_count(number)
    last = page.locator(".turn").last
    expect(last.locator("h3")).to_have_text("And the bridge?")
    expect(last).not_to_have_attribute("aria-busy", "true")
    last.locator("summary", has_text="How this was answered").click()
    expect(last.locator(".facts-list")).to_contain_text("plain")
    expect(last.locator(".facts-list")).to_contain_text("sentences of the documents")
    expect(last.locator(".rounds q").first).not_to_be_empty()
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator(".turn")).to_have_count(0)


def test_citations_open_their_passages_and_turns_are_sent(opened: Opened, site: Running) -> None:
    with site.client() as client:
        asked = {"query": "melts", "rerank": False, "filters": ["path:river.md"]}
        hit = client.post("/v1/search", json=asked).json()["results"][0]
    citation = {**hit, "number": 1, "score": 0.9, "title": "The river", "line": 3, "page": None}
    stats = {
        "pipeline": "plain", "generator": "a model", "question": "q?", "seconds": 1.5, "search_s": 0.1, "rerank_s": 0.2,
        "generate_s": 1.1,
    }  # fmt: skip
    answer = {
        "text": "It floods every spring. [1] Not [7].", "citations": [citation], "stats": stats, "found": True,
        "unsupported": [], "rounds": [], "uncertain": True,
    }  # fmt: skip
    page = opened.go("ask")
    answering(
        page,
        "/v1/ask",
        stream(("text", {"text": "It floods"}), ("text", {"text": " every spring. [1]"}), ("answer", answer)),
    )
    page.locator("#question").fill("When?")
    page.locator("#ask-button").click()
    expect(page.locator(".said")).to_have_text("It floods every spring. 1 Not [7].")
    expect(page.locator(".turn.guess .doubt")).to_contain_text("read it before you rely on it")
    page.get_by_role("button", name="Citation 1: river.md, line 3").click()
    expect(page.locator("#document .passage", has_text="floods every spring")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".cite")).to_be_focused()
    with page.expect_request("**/v1/ask") as asked:
        page.locator("#question").fill("And then?")
        page.locator("#question").press("Enter")
    body = asked.value.post_data_json
    assert body["turns"] == [{"question": "When?", "answer": answer["text"], "standalone": "q?"}]
    assert body["stream"]


@pytest.mark.parametrize(
    ("kind", "answer", "said"),
    [
        ("answer", {"text": "In May."}, "In May."),
        ("guess", {"text": "The nearest passage:\nIn May.", "uncertain": True}, "In May."),
        ("without", {"text": "This is not in the documents.", "found": False}, "This is not in the documents."),
    ],
)
def test_an_answer_looks_different_from_a_guess(opened: Opened, kind: str, answer: dict[str, Any], said: str) -> None:
    stats = {"pipeline": "plain", "generator": "extractive"}
    stats |= dict.fromkeys(("seconds", "search_s", "rerank_s", "generate_s"), 0)
    usual = {"citations": [], "stats": stats, "found": True, "unsupported": [], "rounds": [], "uncertain": False}
    nearest = [] if answer.get("found", True) else ["/notes/beds.md:7", "/notes/a.pdf p. 3"]
    page = opened.go("ask")
    answering(page, "/v1/ask", stream(("answer", {**usual, "nearest": nearest, **answer})))
    page.locator("#question").fill("When?")
    page.locator("#ask-button").click()
    turn = page.locator(f".turn.{kind}")
    expect(turn.locator(".said")).to_have_text(said)
    expect(turn.locator(".doubt")).to_have_count(int(kind == "guess"))
    expect(turn.locator(".plain .open")).to_have_text(["beds.md, line 7", "a.pdf, page 3"] if nearest else [])


def test_an_answer_can_be_stopped_and_an_error_is_said(opened: Opened) -> None:
    page = opened.go("ask")
    page.route("**/v1/ask", lambda route: None)  # never answered
    page.locator("#question").fill("When?")
    page.locator("#question").press("Enter")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".turn")).to_contain_text("Stopped.")
    page.unroute_all()
    answering(
        page, "/v1/ask", stream(("text", {"text": "It"}), ("error", {"status": 500, "detail": "the model is broken"}))
    )
    page.locator("#question").fill("When?")
    page.locator("#question").press("Enter")
    expect(page.get_by_role("alert")).to_have_text("the model is broken")


@pytest.fixture
def no_memories(site: Running) -> None:
    """Empties the memory of `site`, in which other tests may have left something."""
    with site.client() as client:
        for scope in client.get("/v1/scopes").raise_for_status().json()["scopes"]:
            ids = {name: value for name, value in scope.items() if name.endswith("_id") and value is not None}
            client.delete("/memories", params=ids).raise_for_status()


def test_memories_are_added_changed_pinned_forgotten_and_found(opened: Opened, no_memories: None) -> None:
    page = opened.go("memory")
    cards = page.locator("#memories .card")
    expect(page.locator("#memory-state")).not_to_be_empty()
    for number, text in enumerate(("The user likes <b>tea</b>.", "Deploys are on Tuesdays."), 1):
        page.locator("#memory-text").fill(text)
        page.get_by_role("button", name="Add").click()
        expect(cards).to_have_count(number)
    expect(page.locator("#scope")).to_contain_text("user default (2)")
    tea = cards.filter(has_text="<b>tea</b>")
    tea.get_by_role("button", name="Edit").click()
    page.get_by_label("Text of the memory").fill("The user likes coffee.")
    page.get_by_role("button", name="Save").click()
    coffee = cards.filter(has_text="likes coffee")
    coffee.get_by_role("button", name="Pin").click()
    expect(coffee.locator(".tag")).to_have_text("pinned")
    coffee.get_by_role("button", name="Forget").click()
    expect(cards).to_have_count(1)
    page.get_by_label("Forgotten and expired, too").check()
    expect(cards).to_have_count(2)
    coffee.get_by_role("button", name="Recall").click()
    expect(coffee.locator(".tag")).to_have_text(["pinned"])
    coffee.get_by_role("button", name="History").click()
    expect(coffee.locator(".history .tag")).to_have_text(["add", "update", "pin", "forget", "recall"])
    page.locator("#memory-query").fill("Deploys Tuesdays")
    expect(page.locator("#announcement")).to_have_text(re.compile("memor"))
    expect(page.locator("#memories")).to_contain_text("Deploys are on Tuesdays.")
    page.keyboard.press("Escape")
    expect(cards).to_have_count(2)
    coffee.get_by_role("button", name="Delete").click()
    coffee.get_by_role("button", name="Keep").click()
    coffee.get_by_role("button", name="Delete").click()
    coffee.get_by_role("button", name="Delete for good").click()
    expect(cards).to_have_count(1)


def test_collections_say_what_they_hold_and_what_was_left_out(opened: Opened) -> None:
    page = opened.go("collections")
    card = page.locator("#collections .card", has_text="hostile-collection")
    expect(card.locator(".tag")).to_have_text("ready")
    expect(card).to_contain_text("4 documents")
    card.locator("summary", has_text="1 file skipped").click()
    expect(card).to_contain_text("the file is binary")
    card.locator("summary", has_text="4 documents").click()
    card.get_by_label("Filter the documents").fill("SOURCE")
    expect(card.locator(".files li")).to_have_count(1)
    card.locator(".files button").click()
    expect(page.locator("#document")).to_contain_text("def quarry")
    page.keyboard.press("Escape")
    expect(card.locator(".files button")).to_be_focused()


def test_a_folder_is_added_with_the_token(
    tab: Callable[..., Opened], start_server: Callable[..., Running], tiny_models: Path, tmp_path: Path
) -> None:
    base, data = tmp_path, str(tmp_path / "data")
    for name in ("first", "more"):
        (base / name).mkdir()
        (base / name / f"{name}.md").write_text(f"# The {name} harbour\n\nThe {name} quay is long.\n")
    arguments = ("--port", "0", "-c", str(base / "c"), "--add-folders", "--memory-path", str(base / "memory"))
    server = start_server(*arguments, runtime=base / "run", usual=False, XDG_DATA_HOME=data)
    body = {"path": str(base / "more")}
    with server.client() as client:
        assert client.post("/v1/folders", json=body).status_code == 401
    assert server.process.stderr is not None
    token = next(line for line in server.process.stderr if "once only" in line).rpartition(": ")[2].strip()
    seen = tab(server.url, troubled=True)
    seen.context.add_init_script(f"sessionStorage.setItem('edge-token', '{token}')")
    page = seen.go("collections")
    (base / "id_rsa").write_text("a key")
    for name, said in (
        ("none", "does not exist"), ("id_rsa", "is no folder"), ("more", "1 file added"), ("first", "1 file added"),
    ):  # fmt: skip
        page.locator("#folder").fill(str(base / name))
        page.locator("#folder").press("Enter")
        expect(page.locator("#collections .add")).to_contain_text(said)
    expect(page.locator("#collections .card")).to_contain_text("2 documents, 2 passages")


def test_only_a_server_that_says_so_adds_folders(site: Running, tmp_path: Path) -> None:
    with site.client() as client:
        answer = client.post("/v1/folders", json={"path": str(tmp_path)})
    assert (answer.status_code, "--add-folders" in answer.json()["detail"]) == (501, True)


def test_a_row_opens_its_result_and_marks_no_function_words(opened: Opened) -> None:
    page = opened.go("search")
    search(page, "what is the quarry")
    row = page.locator(".hit", has_text="source.py")
    marks = [text.lower() for text in page.locator(".hit mark").all_inner_texts()]
    assert set(marks) == {"quarry"}
    row.locator(".facts").click()
    expect(page.locator("#document")).to_contain_text("def quarry")


def test_all_collections_are_searched_and_filters_narrow_them(opened: Opened) -> None:
    page = opened.go("search")
    search(page, "quarry river")
    expect(page.locator(".hit", has_text="source.py")).to_have_count(1)
    expect(page.locator(".hit", has_text="river.md")).to_have_count(1)
    expect(page.locator("#filters")).to_be_hidden()
    page.get_by_role("button", name="Options").click()
    page.locator("#filters").fill("type:markdown path:**/river.md")
    page.keyboard.press("Enter")
    expect(page.locator(".hit")).to_have_count(1)
    page.locator("#filters").fill("nonsense:x")
    page.keyboard.press("Enter")
    expect(page.locator("#hits .problem")).to_contain_text("nonsense")


def test_views_begin_with_what_this_person_has(opened: Opened) -> None:
    page = opened.go("search")
    heading = page.locator("#search-examples a").first.inner_text()
    page.locator("#search-examples a").first.click()
    expect(page.locator("#query")).to_have_value(heading)
    page = opened.go("ask")
    expect(page.locator("#pipeline")).to_be_hidden()  # without a language model there is one
    page.locator("#ask-examples a").first.click()
    expect(page.locator("#question")).to_have_value(f"What does “{heading}” say?")


def test_damage_of_a_collection_is_shown_and_lists_in_memory_are_no_part_of_those_on_disk(opened: Opened) -> None:
    def told(route: Route) -> None:
        answer = route.fetch()
        trouble = {"kind": "damaged", "text": "page 7 is damaged.", "remedy": "edge repair", "since": ""}
        changed = {
            "health": {"state": "damaged", "troubles": [trouble]},
            "failed": [{"path": "/x/y.pdf", "reason": "it is encrypted"}],
            "tiers": {"resident_bytes": 27_000_000, "disk_bytes": 12_900_000},
        }
        route.fulfill(response=answer, json={**answer.json(), **changed})

    opened.page.route(re.compile(r"/v1/collections/[^/]+$"), told)
    card = opened.go("collections").locator("#collections .card").first
    expect(card.locator(".tag")).to_have_text("damaged")
    expect(card.locator(".problem")).to_have_text("page 7 is damaged. edge repair")
    expect(card).to_contain_text("it is encrypted")
    expect(card).to_contain_text("27.0 MB; 12.9 MB on disk")


def test_the_engine_room_shows_bytes_and_the_last_reranking(opened: Opened, tmp_path: Path) -> None:
    page = opened.go("search")
    search(page, "the river and the garden")
    page = opened.go("engine")
    memory = page.get_by_role("group", name="Memory")
    expect(memory.locator("tr", has_text="weights")).to_contain_text("kB")
    expect(memory.locator("tr", has_text="free")).to_contain_text("%")
    picture = page.get_by_role("img")
    expect(picture).to_have_attribute("aria-label", re.compile(r"tiny: \d+ candidates"))
    expect(picture.locator("rect").first).to_be_visible()
    served = memory.locator("p")
    before = served.inner_text()
    expect(served).not_to_have_text(before)  # live: its own requests are counted
    with page.expect_download() as download:
        page.get_by_role("button", name="Save this state").click()
    download.value.save_as(tmp_path / "state.json")
    state = json.loads((tmp_path / "state.json").read_text())
    assert sum(state["memory"]["holders"].values()) == state["memory"]["used"]


def test_a_trace_is_recorded_and_saved(opened: Opened, tmp_path: Path) -> None:
    page = opened.go("engine")
    trace = page.get_by_role("group", name="Trace")
    expect(trace).to_contain_text("Nothing is recorded")
    page.get_by_role("button", name="Record a trace").click()
    expect(trace).to_contain_text("0 events recorded")
    asked = {"query": "river", "documents": ["a", "b"]}
    assert opened.context.request.post(f"{opened.url}/v1/rerank", data=asked).ok
    expect(trace).to_contain_text(re.compile(r"[1-9]\d* events recorded"))
    with page.expect_download() as download:
        page.get_by_role("button", name="Save the trace").click()
    assert download.value.suggested_filename == "edge-trace.json"
    download.value.save_as(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {"thread_name", "embed", "layer 0"} <= {event["name"] for event in events}
    expect(trace).to_contain_text("Nothing is recorded")
    expect(page.get_by_role("button", name="Record a trace")).to_be_enabled()


def test_light_and_dark_follow_the_person_s_choice(tab: Callable[..., Opened], site: Running) -> None:
    found = {}
    for scheme in ("light", "dark"):
        colours = (
            tab(site.url, color_scheme=scheme)
            .go("search")
            .evaluate("() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")
        )
        found[scheme] = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours]
    assert found["light"][0] > 700 > 200 > found["light"][1]
    assert found["dark"][0] < 200 < 600 < found["dark"][1]


def test_the_page_asks_for_the_token(
    tab: Callable[..., Opened], start_server: Callable[..., Running], tmp_path: Path
) -> None:
    runtime, data = tmp_path / "run", str(tmp_path / "data")
    first = start_server("--new-token", runtime=runtime, XDG_DATA_HOME=data)
    token = first.stop()[1].rpartition("once only: ")[2].split()[0]
    server = start_server("--token", runtime=runtime, XDG_DATA_HOME=data)
    page = tab(server.url, troubled=True).page
    page.goto(f"{server.url}/#search?q=river")
    for given in ("wrong", token):
        page.locator("#token-text").fill(given)
        page.locator("#token-text").press("Enter")
    expect(page.locator("#search-state")).to_have_text(SETTLED)
    expect(page.locator("#token")).to_be_hidden()
