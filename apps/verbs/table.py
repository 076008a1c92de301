"""The verbs that are done here or in the user's server."""

from __future__ import annotations

from edge.apps.serve.connection import ASK as _ASK
from edge.apps.serve.connection import MODELS as _MODELS
from edge.apps.serve.connection import SEARCH as _SEARCH
from edge.apps.verbs.verb import Verb

SEARCH = Verb("search", "requests:Search", "searching:search", _SEARCH)
ASK = Verb("ask", "requests:Ask", "answering:ask", _ASK, streams=True)
RERANK = Verb("rerank", "requests:Rerank", "ranking:rerank", _MODELS)
EMBED = Verb("embed", "requests:Embed", "ranking:embed", _MODELS)

REMEMBER = Verb("memory add", "memories:Remember", "remembering:remember", _SEARCH, writes=True)
RECALL = Verb("memory search", "memories:Recall", "remembering:recall", _SEARCH)
LIST_MEMORIES = Verb("memory list", "memories:ListMemories", "remembering:list_memories", _SEARCH)
GET_MEMORY = Verb("memory get", "memories:OneMemory", "remembering:get", _SEARCH)
CHANGE = Verb("memory update", "memories:Change", "remembering:change", _SEARCH, writes=True)
DELETE = Verb("memory delete", "memories:Delete", "remembering:delete", _SEARCH, writes=True)
SUPERSEDE = Verb("memory supersede", "memories:Supersede", "remembering:supersede", _SEARCH, writes=True)
HISTORY = Verb("memory history", "memories:History", "remembering:history", _SEARCH)

VERBS = (
    SEARCH, ASK, RERANK, EMBED, REMEMBER, RECALL, LIST_MEMORIES, GET_MEMORY, CHANGE, DELETE, SUPERSEDE, HISTORY
)  # fmt: skip
