"""Why a reachable broker refuses this device, and how long to wait before asking again."""

from __future__ import annotations

import socket
import ssl
import time

from sparsyedge.edge.protocol.tls import Tls, client_context

__all__ = ["ask_why", "explain", "retry_delay_s"]

FIRST_DELAY_S = 5.0
MAX_DELAY_S = 300.0
ANSWER_S = 2.0
"""A broker that refuses us does so within one round trip."""

# See X509_verify_cert_error_string(3ssl) for the full list.
NOT_YET_VALID, EXPIRED, HOSTNAME_MISMATCH, ADDRESS_MISMATCH = 9, 10, 62, 64

NEW_TOKEN = "ask the operator for a new token, then run `sparsyedge edge enrol FILE` here"


def retry_delay_s(tries: int) -> float:
    """Seconds to wait after that many refusals: nobody lifts a refusal in seconds, and a retrying fleet is a load."""
    return float(min(MAX_DELAY_S, FIRST_DELAY_S * 2 ** min(tries, 10)))


def ask_why(host: str, port: int, tls: Tls, *, timeout_s: float) -> str | None:
    """Why the broker refuses this device, in a sentence; None if it accepts us, gives no reason, or is down.

    Blocks for at most `timeout_s`, or ANSWER_S if nothing is wrong. Sends nothing: with TLS 1.3 a client learns of a
    refused certificate only after the handshake, and not at all once it has sent something.
    """
    try:
        with (
            socket.create_connection((host, port), timeout=timeout_s) as plain,
            client_context(tls).wrap_socket(plain, server_hostname=host) as connection,
        ):
            connection.settimeout(min(ANSWER_S, timeout_s))
            connection.recv(1)
    except ssl.SSLError as error:
        return explain(error, tls, host)
    except OSError:
        return None
    return None


def explain(error: ssl.SSLError, tls: Tls, host: str) -> str | None:
    """What a failed handshake means for this device, and what to do; None if the trouble may pass."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_server(error, tls, host)
    reason = error.reason or ""
    folder = (tls.certificate or tls.ca).parent
    if reason.endswith("CERTIFICATE_REVOKED"):
        return f"this device was revoked: the broker refuses the certificate in {folder}; {NEW_TOKEN}"
    if reason.endswith("CERTIFICATE_EXPIRED"):
        return f"this device's certificate in {folder} has expired; {NEW_TOKEN}"
    if reason.endswith("UNKNOWN_CA"):
        return (
            f"the broker does not know the authority that certified this device: the identity in {folder} may be from "
            f"another fleet, or from before this one's authority was replaced; check `broker` in the config, or "
            f"{NEW_TOKEN}"
        )
    if tls.certificate is None and reason.endswith(("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE")):
        return "the broker requires a certificate on this port; new devices enrol on another"
    return None


def _explain_server(error: ssl.SSLCertVerificationError, tls: Tls, host: str) -> str:
    clock = time.strftime("%Y-%m-%d %H:%M")
    if error.verify_code == EXPIRED:
        return (
            f"the broker's certificate has expired by this device's clock ({clock}); set the clock, or have the "
            f"operator give the broker a new certificate"
        )
    if error.verify_code == NOT_YET_VALID:
        return f"the broker's certificate is not valid yet by this device's clock ({clock}); set the clock"
    if error.verify_code in (HOSTNAME_MISMATCH, ADDRESS_MISMATCH):
        return (
            f"the broker's certificate is not valid for {host}; use a name or address that the operator gave to "
            f"`sparsyedge coordinator init --host`"
        )
    return (
        f"the broker's certificate is not from the authority trusted here: {tls.ca} may be from another fleet, or from "
        f"before this fleet's authority was replaced ({error.verify_message}); check host and port, or {NEW_TOKEN}"
    )
