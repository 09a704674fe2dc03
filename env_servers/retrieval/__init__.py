"""A retriever over HTTP. ``create_app`` makes the server; ``paw serve retriever`` starts it."""

from __future__ import annotations

from env_servers.retrieval.app import Batcher, create_app

__all__ = ["Batcher", "create_app"]
