"""Without Triton the tests of its kernels are not collected."""

from making.interpreted_triton import HERE, load

collect_ignore_glob = [] if HERE else ["test_fused_search.py"]
load()
