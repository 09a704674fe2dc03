"""A retriever over HTTP. ``create_app`` makes the server; ``paw serve retriever`` starts it."""

from __future__ import annotations

from env_servers.retrieval.app import create_app
from env_servers.retrieval.batching import Batcher

__all__ = ["Batcher", "create_app"]
