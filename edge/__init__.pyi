from edge.apps.assistant.answer import Answer as Answer
from edge.apps.assistant.assistant import Assistant as Assistant
from edge.apps.collection.collection import Collection as Collection
from edge.apps.collection.hits import Hit as Hit
from edge.apps.memory.memory import Memory as Memory
from edge.apps.serve.client import Client as Client
from edge.budget import MemoryBudget as MemoryBudget
from edge.config import Config as Config
from edge.errors import EdgeError as EdgeError
from edge.runtimes.embedder import Embedder as Embedder
from edge.runtimes.reranker import Ranked as Ranked
from edge.runtimes.reranker import Reranker as Reranker

REPORTS_OFF: dict[str, str]
