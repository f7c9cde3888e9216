"""Dask over TLS, with certificates made on the spot."""

from __future__ import annotations

import datetime
import logging
import os

import pytest

import auqadmm as aq
from auqadmm import engines
from tests.engines.driven import problem, python_path, reference, rows

distributed = pytest.importorskip("distributed")
pytest.importorskip("cryptography")


def certificates(folder, name):
    """An authority and one certificate by it: their files."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.datetime.now(datetime.timezone.utc)

    def signed(subject, issuer, public, by, authority):
        names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, n)]) for n in (subject, issuer)]
        begun = x509.CertificateBuilder().subject_name(names[0]).issuer_name(names[1]).public_key(public)
        begun = begun.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(minutes=5))
        begun = begun.not_valid_after(now + datetime.timedelta(hours=1))
        begun = begun.add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        return begun.sign(by, hashes.SHA256())

    root, leaf = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    pem = serialization.Encoding.PEM
    key = leaf.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    contents = {
        "ca": signed(f"{name} ca", f"{name} ca", root.public_key(), root, True).public_bytes(pem),
        "cert": signed(name, f"{name} ca", leaf.public_key(), root, False).public_bytes(pem),
        "key": key,
    }
    paths = {what: folder / f"{name}-{what}.pem" for what in contents}
    for what, path in paths.items():
        path.write_bytes(contents[what])
    return {what: str(path) for what, path in paths.items()}


def security(files):
    roles = {
        f"tls_{role}_{what}": files[what] for role in ("client", "worker", "scheduler") for what in ("cert", "key")
    }
    return distributed.Security(tls_ca_file=files["ca"], require_encryption=True, **roles)


def test_with_certificates_it_works_and_with_others_it_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [python_path(), os.environ.get("PYTHONPATH")])))
    ours, theirs = (security(certificates(tmp_path, name)) for name in ("ours", "theirs"))
    quiet = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL}
    with distributed.LocalCluster(n_workers=1, security=ours, protocol="tls://", **quiet) as cluster:
        address = cluster.scheduler_address
        assert address.startswith("tls://")
        blocks = [rows(0), rows(1)]
        found = aq.solve(problem(blocks), "c-admm", engines.Dask(address, security=ours, timeout=60))
        assert found.v.numpy() == pytest.approx(reference(2).v.numpy(), abs=1e-9)
        with pytest.raises(ConnectionError, match="No way to the Dask scheduler at tls://"):
            aq.solve(problem(blocks), "c-admm", engines.Dask(address, security=theirs, timeout=2))
