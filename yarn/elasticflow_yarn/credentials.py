"""The certificate by which Skein's parts know each other, in ``~/.skein``, for this user alone.

Skein's own begins in the moment in which it is made, so that a node whose clock is a little behind takes it
for one of the future, and after a year nothing can be submitted. So it is made here.
"""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

BEFORE, VALID, LEFT = timedelta(days=2), timedelta(days=3650), timedelta(days=30)
"""It begins so long before it is made, ends so long after, and is replaced when there is so little left."""


def ensure(folder: Path, now: datetime | None = None) -> str:
    """Has one be there that is valid for long enough. Returns what to tell people; "": nothing.

    folder: Skein's. Each application has a copy of its own, so those that run need no new one.
    """
    import skein

    now, both = now or datetime.now(timezone.utc), (folder / "skein.crt", folder / "skein.pem")
    ends, is_there = None, any(path.exists() for path in both)
    # One that was killed, or found the disk full, may have left a part, which Skein would take for good.
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
        ends = _ends(*(path.read_bytes() for path in both))
    if ends is not None and ends - now >= LEFT:
        return ""
    certificate, key = _made(now)
    with contextlib.suppress(FileExistsError):  # another process has made one meanwhile
        skein.Security(cert_bytes=certificate, key_bytes=key).to_directory(str(folder), force=is_there)
    if ends is None:
        return ""
    told = f"{folder}: Skein's certificate ends on {ends:%Y-%m-%d}, and is replaced"
    return f"{told}; a 'skein driver' that runs has to be started again."


def _ends(certificate: bytes, key: bytes) -> datetime:
    """When the certificate does. Raises ValueError or TypeError if it is none, or that is not its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    found: Any = x509.load_pem_x509_certificate(certificate)
    if _public(found) != _public(load_pem_private_key(key, None)):
        raise ValueError("the key of another certificate")
    if hasattr(found, "not_valid_after_utc"):
        return found.not_valid_after_utc  # type: ignore[no-any-return]
    ends: datetime = found.not_valid_after.replace(tzinfo=timezone.utc)
    return ends


def _public(owner: Any) -> bytes:
    """The public key of a certificate, or of a private key."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    found: bytes = owner.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return found


def _made(now: datetime) -> tuple[bytes, bytes]:
    """A certificate and its key, as Skein makes them, but for its dates."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.x509.oid import NameOID

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "skein-internal")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - BEFORE).not_valid_after(now + VALID)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    return (
        builder.sign(key, hashes.SHA256()).public_bytes(pem),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain),
    )
