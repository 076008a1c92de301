"""Pages of indexed PDFs as pictures, by a real server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.apps.serve.conftest import Running


def page(papers: Running, **asked: Any) -> Any:
    with papers.client() as client:
        return client.post("/v1/page", json=asked)


@pytest.fixture(scope="module")
def path(papers: Running) -> str:
    with papers.client() as client:
        hits = client.post("/v1/search", json={"query": "snow", "top_k": 5}).json()["results"]
    return next(str(hit["path"]) for hit in hits if hit["path"].endswith(".pdf"))


def test_a_page_comes_as_a_picture_with_a_passage_marked(papers: Running, path: str) -> None:
    plain, marked = page(papers, path=path, page=1), page(papers, path=path, page=1, first=2, last=3)
    for answer in (plain, marked):
        assert (answer.status_code, answer.headers["content-type"], answer.headers["edge-pages"]) == (
            200,
            "image/png",
            "2",
        )
        assert answer.content.startswith(b"\x89PNG")
    assert plain.content != marked.content
    endless = page(papers, path=path, page=1, first=1, last=10**12)  # no list of so many numbers is made
    assert endless.content == page(papers, path=path, page=1, first=1, last=99).content
    to_the_end = page(papers, path=path, page=1, first=2, last=1)  # the passage ends on the next page
    assert to_the_end.content == page(papers, path=path, page=1, first=2, last=99).content


def test_only_an_indexed_pdf_that_has_not_changed_is_opened(papers: Running, path: str) -> None:
    secret = papers.folder / "secret.pdf"
    secret.write_bytes(Path(path).read_bytes())
    note = str(Path(path).with_name("note.md"))
    for asked, status, said in (
        ({"path": str(secret)}, 422, "is not indexed in this collection"),
        ({"path": f"{path}/../../secret.pdf"}, 422, "is not indexed in this collection"),
        ({"path": note}, 422, "has no pages"),
        ({"path": path, "page": 3}, 422, "there is no page 3; the document has 2"),
        ({"page": 1}, 422, "`path`"),
    ):
        answer = page(papers, **asked)
        assert (answer.status_code, said in answer.json()["detail"]) == (status, True), answer.text
    before = os.stat(path)
    try:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))
        answer = page(papers, path=path)
        assert (answer.status_code, "has changed since it was indexed" in answer.json()["detail"]) == (409, True)
        Path(path).rename(secret)
        assert "cannot be read now" in page(papers, path=path).json()["detail"]
    finally:
        if not Path(path).exists():
            secret.rename(path)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert page(papers, path=path).status_code == 200
