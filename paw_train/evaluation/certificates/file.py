"""The file of a certificate: JSON in one canonical form, hashed and signed.

Fields: ``format``, ``claims`` (an object), ``episodes`` (zlib, base64: one JSON record a line), ``signer``
(the public key or null), ``signature`` (Ed25519 over the canonical form of those four) and ``sha256`` (over
the canonical form of all the others). The canonical form is ``json.dumps`` with sorted keys and an indent of
1, in ASCII; a file in another form is not accepted, so that no byte can change unnoticed.
"""

from __future__ import annotations

import binascii
import hashlib
import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paw_gym.files import write_text
from paw_train.evaluation.certificates.episodes import CertifiedEpisode
from paw_train.evaluation.certificates.keys import Signer, can_verify, is_signed_by

FORMAT = "paw-certificate/1"
_LARGEST = 1 << 30
"""bytes of episodes that are unpacked at most: a small file must not fill the memory"""
_FIELDS = {"format", "claims", "episodes", "signer", "signature", "sha256"}


@dataclass(frozen=True)
class Certificate:
    """What a file holds."""

    claims: Mapping[str, Any]
    episodes: tuple[CertifiedEpisode, ...]
    signer: str | None
    signature: str | None
    signed: bytes
    """what the signature is over"""
    problems: tuple[str, ...] = ()
    """why the file is not as it was written"""

    @property
    def signature_holds(self) -> bool | None:
        """Whether the signature is the signer's; ``None``: not signed, or ``cryptography`` is missing."""
        if self.signer is None or not can_verify():
            return None
        return is_signed_by(self.signer, self.signature or "", self.signed)


def write_certificate(
    path: Path,
    claims: Mapping[str, Any],
    episodes: Sequence[CertifiedEpisode],
    signer: Signer | None,
) -> None:
    """Writes a certificate, whole or not at all.

    Args:
        path: the file.
        claims: JSON values.
        episodes: the records.
        signer: ``None``: without a signature.
    """
    lines = "".join(json.dumps(e.to_dict(), sort_keys=True) + "\n" for e in episodes)
    packed = b64encode(zlib.compress(lines.encode(), 9)).decode()
    body = {
        "format": FORMAT,
        "claims": dict(claims),
        "episodes": packed,
        "signer": signer.public if signer else None,
    }
    signature = signer.sign(_canonical(body).encode()) if signer else None
    content = {**body, "signature": signature}
    write_text(path, _canonical({**content, "sha256": _hash(content)}))


def read_certificate(path: Path) -> Certificate:
    """Reads a certificate. One that was changed is read as far as it can be; see ``problems``.

    Raises:
        ValueError: there is no such file, or it is no certificate of this version.
    """
    try:
        text = path.read_bytes().decode("ascii")
        data = json.loads(text)
    except FileNotFoundError:
        raise ValueError(
            f"There is no certificate {path}; `paw certify RESULT` writes one."
        ) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no certificate, or it is damaged ({error}).") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT or set(data) != _FIELDS:
        raise ValueError(
            f"{path} is no certificate of the form {FORMAT} (`paw certify` writes one)."
        )
    kinds = {"claims": dict, "episodes": str, "sha256": str}
    for name, kind in kinds.items():
        if not isinstance(data[name], kind):
            raise ValueError(
                f"{path} is damaged: its field {name!r} is not of type {kind.__name__}."
            )
    content = {name: value for name, value in data.items() if name != "sha256"}
    body = {name: value for name, value in content.items() if name != "signature"}
    problems = []
    if _hash(content) != data["sha256"] or _canonical(data) != text:
        problems.append("The file was changed after it was written: its SHA-256 does not match.")
    return Certificate(
        data["claims"],
        _unpacked(data["episodes"], path),
        _text(data["signer"]),
        _text(data["signature"]),
        _canonical(body).encode(),
        tuple(problems),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _canonical(data: Mapping[str, Any]) -> str:
    return json.dumps(data, sort_keys=True, indent=1, allow_nan=False) + "\n"


def _hash(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(data).encode()).hexdigest()


def _unpacked(packed: str, path: Path) -> tuple[CertifiedEpisode, ...]:
    try:
        stream = zlib.decompressobj()
        text = stream.decompress(b64decode(packed, validate=True), _LARGEST)
        if not stream.eof:
            raise ValueError(f"it is cut short, or holds more than {_LARGEST >> 20} MiB")
        records = [json.loads(line) for line in text.decode().split("\n") if line]
    except (ValueError, binascii.Error, zlib.error, RecursionError) as error:
        raise ValueError(f"{path} is damaged: its episodes cannot be read ({error}).") from None
    return tuple(
        CertifiedEpisode.from_dict(record, f"{path}, episode {number}")
        for number, record in enumerate(records)
    )
