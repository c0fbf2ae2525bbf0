"""Topic tags by clustering of keywords, as chunks come."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from typing import Final

from memsvc.client.ingest.keywords import keywords
from memsvc.domain.limits import MAX_LABEL_BYTES

MAX_TOPICS: Final = 512
"""Topics that are remembered; the one not met for longest is forgotten first."""
WORDS_OF_A_TOPIC: Final = 16
MAX_WORDS: Final = 50_000
"""Words whose frequency is remembered."""
JOIN_AT: Final = 0.35
"""Share of a chunk's keywords, weighed by rarity, that it must have in common with a topic."""


class TopicTagger:
    """Gives each chunk the tag of the topic that shares most of its rare words, or begins a
    topic named after the most telling word. Not safe for threads.

    The same chunks in the same order get the same tags; what a tag is depends on what came
    before, so it is a label for grouping and not a key.
    """

    def __init__(self) -> None:
        self._topics: OrderedDict[str, Counter[str]] = OrderedDict()
        self._frequency: Counter[str] = Counter()
        self._chunks = 0

    def tag(self, text: str) -> str:
        """The tag of a chunk, at most 256 bytes; "" when it has no telling word."""
        words = keywords(text)
        if not words:
            return ""
        self._chunks += 1
        self._frequency.update(words.keys())
        if len(self._frequency) > MAX_WORDS:
            self._frequency = Counter(dict(self._frequency.most_common(MAX_WORDS // 2)))
        weights = {word: self._weight(word) for word in words}
        label = self._nearest(weights)
        if not label:
            label = max(words, key=lambda word: (words[word] * weights[word], word))
            label = label.encode()[:MAX_LABEL_BYTES].decode(errors="ignore")
        topic = self._topics.setdefault(label, Counter())
        topic.update(words)
        if len(topic) > WORDS_OF_A_TOPIC:
            kept = sorted(topic, key=lambda word: (-topic[word] * self._weight(word), word))
            self._topics[label] = Counter({one: topic[one] for one in kept[:WORDS_OF_A_TOPIC]})
        self._topics.move_to_end(label)
        if len(self._topics) > MAX_TOPICS:
            self._topics.popitem(last=False)
        return label

    def _weight(self, word: str) -> float:
        return math.log(1 + self._chunks / (1 + self._frequency[word]))

    def _nearest(self, weights: dict[str, float]) -> str:
        whole = sum(weights.values())
        best, label = 0.0, ""
        for name, topic in self._topics.items():
            shared = sum(weight for word, weight in weights.items() if word in topic)
            if shared > best:
                best, label = shared, name
        return label if whole and best / whole >= JOIN_AT else ""
