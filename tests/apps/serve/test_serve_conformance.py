"""The conformance suite of the Model Context Protocol, from the folder `EDGE_MCP_CONFORMANCE` in which `npm install
@modelcontextprotocol/conformance node@22` was run. The other scenarios of the suite want tools, prompts and resources
of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.apps.serve.conftest import Running

SUITE = Path(os.environ["EDGE_MCP_CONFORMANCE"]) / "node_modules"


@pytest.mark.parametrize("path", ["/mcp", "/mcp/memory"])
@pytest.mark.parametrize(
    "scenario",
    ["server-initialize", "ping", "tools-list", "tools-call-error", "resources-list", "prompts-list",
     "dns-rebinding-protection"],
)  # fmt: skip
def test_the_servers_tools_conform(server: Running, path: str, scenario: str, tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
    program = SUITE / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    done = subprocess.run(
        [SUITE / "node" / "bin" / "node", program, "server", "--url", server.url + path, "--scenario", scenario],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed" in done.stdout
    assert "Passed: 0" not in done.stdout
