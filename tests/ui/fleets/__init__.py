"""Pictures of fleets for tests of what people see: calm, busy, broken and big.

The fleet is the one of the first article: four groups on one cloud, large and small language
models, embeddings, and a speech model that was given 1 GB and needs 4. Everything is fixed, so that
a screen can be compared letter by letter.
"""

from .big import big
from .broken import broken
from .busy import busy
from .calm import calm
from .rows import AT, LEAK, PARLER, SILENT
from .stories import incident_page, request_story

__all__ = [
    "AT",
    "LEAK",
    "PARLER",
    "SILENT",
    "big",
    "broken",
    "busy",
    "calm",
    "incident_page",
    "request_story",
]
