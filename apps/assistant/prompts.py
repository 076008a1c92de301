"""All prompts of the assistant, one function per prompt, and how the replies are read: `read_...` takes the nearest
meaning, and returns None where there is none. Generation times are learned, and replayed texts recorded, under a
prompt's name. Documents are given to the generator separately, so that their KV states can be reused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from edge.runtimes.generation.base import Message

REFUSAL = "NOT IN THE DOCUMENTS"
"""The reply that the generator is told to give when the passages do not hold the answer."""

_READ = (
    "You answer questions from numbered passages of the user's own documents. Use only what the passages say. "
    "After each statement give the number of the passage it comes from in square brackets, like [2]. Be brief and "
    f"exact. If the passages do not hold the answer, reply with exactly: {REFUSAL}"
)
_WRITE = "You help to search a collection of documents. Reply with what is asked for and nothing else."
_JUDGE = "You judge texts. Reply with one word."


@dataclass(frozen=True, slots=True)
class StepPrompt:
    """One request to the generator. A last message of the assistant is the beginning of its reply. `max_tokens`: None
    for the user's limit; `question`: what the reply is to answer from passages, empty if it is no answer."""

    name: str
    messages: tuple[Message, ...]
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    question: str = ""


def answer(question: str, *, name: str = "answer", begun: str = "", max_tokens: int | None = None) -> StepPrompt:
    """Asks for an answer from passages. `begun` is the beginning of the answer, which the generator continues."""
    return replace(_prompt(name, _READ, question, begun, max_tokens), question=question)


def combined(question: str, findings: Sequence[tuple[str, str]]) -> StepPrompt:
    """Asks for an answer from passages and from findings about parts of the question, (part, finding) pairs."""
    user = f"Found out so far:\n{_listed(findings)}\n\nQuestion: {question}"
    return replace(_prompt("answer", _READ, user), question=question)


def _listed(findings: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"- {part}\n  {finding}" for part, finding in findings)


def condensed(turns: Sequence[tuple[str, str]], question: str) -> StepPrompt:
    talk = "\n".join(f"User: {asked}\nAssistant: {said}" for asked, said in turns)
    user = (
        f"Conversation:\n{talk}\n\nFollow-up question: {question}\n\n"
        "Rewrite the follow-up question so that it can be understood without the conversation. "
        "Replace words such as it, they or there by what they stand for. If it stands alone already, repeat it."
    )
    return _prompt("condense", _WRITE, user, max_tokens=64, stop=("\n",))


def hypothetical(question: str) -> StepPrompt:
    """Asks for a passage such as a document with the answer might contain (HyDE, Gao et al. 2022)."""
    user = (
        f"Write a short passage, as it might stand in a document, that answers this question.\n\nQuestion: {question}"
    )
    return _prompt("passage", _WRITE, user, max_tokens=128)


def sub_questions(question: str, most: int) -> StepPrompt:
    """Asks for simpler questions whose answers together answer the question."""
    user = (
        f"Break this question into at most {most} simpler questions that can each be looked up on their own, "
        f"one per line.\n\nQuestion: {question}"
    )
    return _prompt("sub-questions", _WRITE, user, max_tokens=128)


def narrower(question: str, findings: Sequence[tuple[str, str]]) -> StepPrompt:
    user = (
        f"Question: {question}\n\nFound out so far:\n{_listed(findings) or '- nothing yet'}\n\n"
        "Write the one narrower question to look up next in order to answer the question."
    )
    return _prompt("narrower", _WRITE, user, max_tokens=64, stop=("\n",))


def enough(question: str, findings: Sequence[tuple[str, str]]) -> StepPrompt:
    user = (
        f"Question: {question}\n\nFound out so far:\n{_listed(findings)}\n\n"
        "Does this answer the question completely? yes or no"
    )
    return _prompt("enough", _JUDGE, user, max_tokens=4)


def needs_documents(question: str) -> StepPrompt:
    """Asks whether a message needs information from the documents (Self-RAG's Retrieve)."""
    user = (
        f"Message: {question}\n\nDoes the message ask for information that should be looked up in documents? "
        "A greeting or thanks does not. yes or no"
    )
    return _prompt("retrieve?", _JUDGE, user, max_tokens=4)


def supported(question: str, statement: str) -> StepPrompt:
    """Asks how far the passages support an answer (Self-RAG's IsSup): fully, partly or not."""
    user = (
        f"Question: {question}\nAnswer: {statement}\n\n"
        "Do the passages support every statement of the answer? Reply fully, partly or no."
    )
    return _prompt("supported?", "You judge answers by numbered passages. Reply with one word.", user, max_tokens=4)


def useful(question: str, statement: str) -> StepPrompt:
    """Asks how well an answer answers its question (Self-RAG's IsUse): 1 to 5."""
    user = (
        f"Question: {question}\nAnswer: {statement}\n\n"
        "How well does the answer answer the question, from 1 (not at all) to 5 (completely)? Reply with the number."
    )
    return _prompt("useful?", _JUDGE, user, max_tokens=4)


def small_talk(message: str) -> StepPrompt:
    system = "You are the assistant of a collection of documents. Reply in one sentence; claim nothing about the world."
    return _prompt("answer", system, message, max_tokens=64)


def _prompt(
    name: str, system: str, user: str, begun: str = "", max_tokens: int | None = None, stop: tuple[str, ...] = ()
) -> StepPrompt:
    messages = [Message("system", system), Message("user", user)]
    if begun:
        messages.append(Message("assistant", begun))
    return StepPrompt(name, tuple(messages), max_tokens, stop)


_WORD = re.compile(r"[^\W_]+")
_NUMBER = re.compile(r"\d+")
_BULLET = re.compile(r"^\s*(?:[-*•–]|\(?\d{1,2}[.):]|[a-z][.)])\s+", re.IGNORECASE)
_LABEL = re.compile(r"^\s*(?:sub-?question|question|query|q)\s*(?:\d+\s*)?[:.)]\s*", re.IGNORECASE)

_YES = {"yes", "y", "true", "correct", "fully", "full", "completely", "sure"}
_NO = {"no", "n", "false", "not", "none", "never", "incorrect"}
_PARTLY = {"partly", "partially", "partial", "somewhat"}


def read_verdict(reply: str) -> bool | None:
    """True for yes, False for no; None when the reply is neither."""
    for word in _words(reply)[:4]:
        if word in _YES:
            return True
        if word in _NO:
            return False
    return None


def read_support(reply: str) -> float | None:
    """1 for fully, 0.5 for partly, 0 for not supported; None when the reply is none of these."""
    for word in _words(reply)[:4]:
        for value, names in ((0.5, _PARTLY), (0.0, _NO), (1.0, _YES)):
            if word in names:
                return value
    return None


def read_grade(reply: str) -> int | None:
    """The first number of a reply; None if there is none, or it is not one of 1 to 5."""
    match = _NUMBER.search(reply)
    return int(match[0]) if match and 1 <= int(match[0]) <= 5 else None


def is_refusal(reply: str) -> bool:
    return REFUSAL in " ".join(reply.split()).upper()


def read_questions(reply: str, most: int) -> list[str]:
    """The questions of a list, without numbers, bullets and duplicates. Introductory lines are left out."""
    found: list[str] = []
    lines = [line for line in reply.splitlines() if line.strip()]
    asked = [line for line in lines if line.rstrip().endswith("?")] or [
        x for x in lines if not x.rstrip().endswith(":")
    ]
    for line in asked:
        text = _LABEL.sub("", _BULLET.sub("", line)).strip().strip('"*').strip()
        if _words(text) and text.casefold() not in {known.casefold() for known in found}:
            found.append(text)
    return found[:most]


def read_line(reply: str) -> str:
    """The first line that has words, without label and quotes; for replies that should be a single question."""
    for line in reply.splitlines():
        text = _LABEL.sub("", _BULLET.sub("", line)).strip().strip('"').strip()
        if _words(text):
            return text
    return ""


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text)]
