"""What all parts of the assistant share: vectors, the relevance that answers a question, and the exceptions that end a
pipeline early."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]

MIN_RELEVANCE = 0.1
"""The relevance below which a passage does not answer a question. It applies to rerankers without a fitted probability
model (see `evidence`), where the reranker's probability alone decides."""


class Cancelled(Exception):
    """The question was withdrawn while it was being answered. The text written so far is kept."""


class NotInDocuments(Exception):
    """No passage answers the question. This is not an error: the answer is that the documents do not say."""
