"""A device that finds nothing. The time of a search on it is the core's own overhead."""

from __future__ import annotations

from edge.devices.cpu import HostMemory
from edge.ivf.device import Candidates, SearchRequest


class NullDevice(HostMemory):
    """Holds lists in host memory and takes requests, but scans no rows. Lists are planned, read and transferred as for
    any other device, so that only scanning and rescoring are missing."""

    name = "null"

    def search(self, request: SearchRequest) -> Candidates:
        return request.seen
