"""English function words and question words. They say how a question is asked, not what it is about."""

from __future__ import annotations

FUNCTION_WORDS = frozenset({
    "a", "after", "all", "an", "and", "any", "are", "as", "at", "be", "been", "before", "but", "by", "can", "could",
    "did", "do", "does", "each", "far", "for", "from", "had", "has", "have", "he", "her", "him", "his", "how", "i",
    "if", "in", "is", "it", "its", "long", "many", "may", "me", "might", "more", "much", "must", "my", "no", "not",
    "of", "often", "old", "on", "once", "or", "our", "shall", "she", "should", "so", "some", "than", "that", "the",
    "their", "them", "then", "there", "these", "they", "this", "those", "to", "too", "until", "us", "very", "was",
    "we", "were", "what", "when", "where", "which", "while", "who", "whom", "whose", "why", "will", "with", "would",
    "you", "your",
})  # fmt: skip
