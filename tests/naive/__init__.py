"""Slow, plain twins of the clever parts, used as oracles; and a stand-in for the disk that tests can hold and break."""
