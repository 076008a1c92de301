"""What of the passages a generator's context holds: how many it will read, and what is said when it reads none."""

from __future__ import annotations

from collections.abc import Sequence

from edge.errors import InputError
from edge.runtimes.generation.base import Document, Generator, Message, Sampling, answer_room, numbered
from edge.runtimes.generation.llama_cpp import LlamaGenerator


def documents_read(
    generator: Generator, messages: Sequence[Message], documents: Sequence[Document], sampling: Sampling
) -> int:
    """How many of the documents an answer to these messages is given, from the first; known before it begins.

    Exact where the prompt is laid out here, and for servers, which estimate in the same way; for other generators as
    good as their `count`. What one really left out is in its `stats` afterwards.

    Raises:
        InputError: there are documents, and none of them fits; or the conversation alone does not.
    """
    if not documents:
        return 0
    used = sum(generator.count(message.content) for message in messages)
    least = generator.count(numbered(documents[0], 1))
    answer = answer_room(generator.context, sampling.max_tokens)
    if isinstance(generator, LlamaGenerator):
        names = {document.id for document in documents}
        read = sum(segment.id in names for segment in generator.path(messages, documents, sampling))
    else:
        room = generator.context - used - answer
        read = 0
        for number, document in enumerate(documents, 1):
            room -= generator.count(numbered(document, number))
            if room < 0:
                break
            read = number
    if read == 0:
        raise InputError(
            f"none of the {len(documents)} passages fits the context of {generator.name}, so that nothing could be "
            f"answered from them: it holds {generator.context:,} tokens, the question and what is asked with it take "
            f"about {used:,}, the answer {answer:,} and the first passage {least:,}; take a larger "
            f"context (--context, EDGE_CONTEXT), or a model that has one"
        )
    return read
