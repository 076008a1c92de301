"""Shared storage of collections and memories: the database, BM25, and the fusion of rankings."""
