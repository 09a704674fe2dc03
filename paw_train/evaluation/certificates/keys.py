"""Ed25519 keys that sign certificates: read, or created on first use (RFC 8032, by ``cryptography``)."""

from __future__ import annotations

import os
import sys
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

PREFIX = "ed25519:"
"""stands before a public key in text"""
_LENGTH = 32
"""bytes of a public key"""


def config_dir() -> Path:
    """``$PAW_CONFIG_DIR``, or ``paw-gym`` in the user's folder for configuration. It need not exist yet."""
    chosen = os.environ.get("PAW_CONFIG_DIR")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("APPDATA", "~/AppData/Roaming")
    elif sys.platform == "darwin":
        base = "~/Library/Application Support"
    else:
        base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "paw-gym"


def default_key() -> Path:
    """The file of the user's own key."""
    return config_dir() / "certificate-key.pem"


class Signer:
    """A private key.

    Args:
        key: an ``Ed25519PrivateKey``.
    """

    def __init__(self, key: Any) -> None:
        self._key = key

    @property
    def public(self) -> str:
        """The public key as text."""
        return PREFIX + b64encode(self._key.public_key().public_bytes_raw()).decode()

    def sign(self, data: bytes) -> str:
        """The signature of ``data``, 64 bytes in base64."""
        return b64encode(self._key.sign(data)).decode()


def open_key(path: Path | None) -> tuple[Signer, bool]:
    """The key of a file, or the user's own, which is created if there is none yet.

    Args:
        path: a private key (PEM, PKCS #8, not encrypted); ``None``: the user's own.

    Returns:
        (the key, whether it was created now)

    Raises:
        ImportError: ``cryptography`` is not installed.
        ValueError: there is no such file, or it holds no Ed25519 key.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    place = default_key() if path is None else path
    if path is None and not place.exists():
        return Signer(_created(place)), True
    if not place.is_file():
        raise ValueError(f"There is no key file {place}. Without --key one is created for you.")
    try:
        key = load_pem_private_key(place.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{place} is no private key in PEM form without a password.") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(
            f"{place} holds a {type(key).__name__}; a certificate is signed by Ed25519."
        )
    return Signer(key), False


def _created(place: Path) -> Any:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    place.parent.mkdir(parents=True, exist_ok=True)
    # readable by its owner alone from the first byte; never over a key that is there
    handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(text)
    return key


def can_verify() -> bool:
    """Whether ``cryptography`` is installed."""
    import importlib.util

    return importlib.util.find_spec("cryptography") is not None


def is_signed_by(public: str, signature: str, data: bytes) -> bool:
    """Whether ``signature`` is that of ``data`` by the key ``public``; malformed ones are not."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = Ed25519PublicKey.from_public_bytes(
            b64decode(public.removeprefix(PREFIX), validate=True)
        )
        key.verify(b64decode(signature, validate=True), data)
    except (InvalidSignature, ValueError):
        return False
    return True


def read_public(text: str) -> str:
    """A public key as text: itself, or the content of the file that ``text`` names.

    Raises:
        ValueError: it is neither.
    """
    if not text.startswith(PREFIX) and Path(text).is_file():
        text = Path(text).read_text(encoding="utf-8").strip()
    try:
        if (
            text.startswith(PREFIX)
            and len(b64decode(text.removeprefix(PREFIX), validate=True)) == _LENGTH
        ):
            return text
    except ValueError:
        pass
    raise ValueError(
        f"{text[:80]!r} is no public key: expected {PREFIX} and 44 characters of base64, as `paw certify` "
        "prints it, or a file that holds them."
    )
