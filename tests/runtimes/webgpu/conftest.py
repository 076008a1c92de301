"""Without wgpu or a driver these tests are not collected."""

from tests.conftest import webgpu

collect_ignore_glob = [] if webgpu() else ["test_*.py"]
