"""What a package that brings a device imports: the contract, and how devices are opened.

A device is one class with the methods of `Place`, and of `Search` and `Profile` where it has these capabilities. Its
package names the class in the entry-point group `edge.devices`. `edge.devices.testing` checks it.
"""

from __future__ import annotations

from edge.ivf.device import Candidates, Estimate, ListScan, Place, Profile, Search, SearchPlace, SearchRequest
from edge.ivf.opening import GROUP, capabilities, open_device, parse_device

__all__ = [
    "GROUP", "Candidates", "Estimate", "ListScan", "Place", "Profile", "Search", "SearchPlace", "SearchRequest",
    "capabilities", "open_device", "parse_device",
]  # fmt: skip
