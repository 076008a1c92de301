"""Readers of marked-up text: prose stays, markup goes."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from edge.models.training.markup import folded, html, manual, markdown, xml

BODY = "The lake is deep and the river brings it cold water from the stones all the year."


def test_white_space_is_folded() -> None:
    assert folded("  a\n\tb  c ") == "a b c"


def test_markdown_takes_its_title_from_the_first_heading_or_from_the_front_matter() -> None:
    assert markdown(f"# On lakes\n{BODY}\n\n## Depth\n{BODY}\n") == ("On lakes", [("On lakes", BODY), ("Depth", BODY)])
    assert markdown(f"On lakes\n========\n{BODY}\n")[0] == "On lakes"
    assert markdown(f'---\ntitle: "Named above"\n---\n## Depth\n{BODY}\n') == ("Named above", [("Depth", BODY)])
    assert markdown("") == ("", [])


def test_manual_pages_lose_their_macros_and_keep_their_words() -> None:
    source = r""".TH LAKE 1 "today"
.SH NAME
lake \- measure water
.SH SYNOPSIS
.B lake
[-d]
.SH "DESCRIPTION"
.PP
The \fBlake\fP command measures\&.
.\" a comment
Use \(aqdeep\(aq with
.BR river (1).
.SH "SEE ALSO"
river(1)
"""
    title, found = manual(source)
    assert title == "lake - measure water"
    assert found == [("Description", "The lake command measures. Use 'deep' with river (1).")]


def test_html_keeps_paragraphs_under_their_headings_and_drops_code_and_navigation() -> None:
    source = f"""<html><head><title>All &amp; lakes</title><style>p {{}}</style></head><body>
<nav><p>Home and other words to skip</p></nav><h1>Depth<a>¶</a></h1><p>{BODY}</p><p>Too short.</p>
<pre>code that nobody asks for here</pre><h2>Rivers</h2><ul><li>{BODY}</li></ul></body></html>"""
    assert html(source) == ("All & lakes", [("Depth", BODY), ("Rivers", BODY)])


def test_xml_reads_chapters_articles_and_glossaries() -> None:
    chapter = f"""<document xmlns="http://example.org/c"><title>Lakes</title><content><para>{BODY}
<math>x</math></para><section><title>Depth</title><para>{BODY}</para><table><para>no prose</para></table></section>
</content><glossary><definition><term>lake</term><meaning>standing <em>water</em></meaning></definition></glossary>
</document>"""
    assert xml(chapter) == ("Lakes", [("Lakes", BODY), ("Depth", BODY)], [("lake", "standing water")])
    article = f"""<article><front><article-title>On rivers</article-title><abstract><p>Short account.</p></abstract>
</front><body><sec><title>Results</title><p>{BODY}<xref>[1]</xref></p></sec></body></article>"""
    assert xml(article) == ("On rivers", [("Abstract", "Short account."), ("Results", BODY)], [])
    with pytest.raises(ElementTree.ParseError):
        xml("no xml")
