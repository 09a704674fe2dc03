"""Errors between a remote environment and its gateway."""

from __future__ import annotations


class RemoteError(RuntimeError):
    """The gateway or the environment refused; the message is theirs."""


class SessionLostError(RemoteError):
    """The environment is gone: it failed, its session expired, or the gateway began anew.

    ``reset()`` begins a new episode, with a new session where it takes one.
    """


class UnknownSessionError(SessionLostError):
    """The gateway does not know the session."""


class ServerUnavailableError(ConnectionError):
    """The gateway cannot be reached, or does not let this client in; the message states what to do."""
