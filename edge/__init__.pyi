from edge.budget import MemoryBudget as MemoryBudget
from edge.config import Config as Config
from edge.errors import EdgeError as EdgeError
from edge.runtimes.embedder import Embedder as Embedder
from edge.runtimes.reranker import Ranked as Ranked
from edge.runtimes.reranker import Reranker as Reranker
