"""The interface of devices for packages that provide one, and the function that opens devices.

A device is one class with the methods of `Place`, and with those of `Search` and `Profile` if it has these
capabilities. The package registers the class in the entry-point group `edge.devices`, and tests it with
`edge.devices.testing`.
"""

from __future__ import annotations

from edge.ivf.device import (
    GROUP,
    Candidates,
    Estimate,
    ListScan,
    Place,
    Profile,
    Search,
    SearchPlace,
    SearchRequest,
    capabilities,
    open_device,
    parse_device,
)

__all__ = [
    "GROUP", "Candidates", "Estimate", "ListScan", "Place", "Profile", "Search", "SearchPlace", "SearchRequest",
    "capabilities", "open_device", "parse_device",
]  # fmt: skip
