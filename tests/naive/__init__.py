"""Slow, plain twins of the clever parts, used as oracles; and helpers that several folders of tests share: a stand-in
for the disk that tests can hold and break, programs in processes of their own, and waiting for other threads."""
