"""Define the security headers of every answer to a browser."""

from __future__ import annotations

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Allows nothing from other sites and no inline script or style; img-src data: is for icons in style sheets."""

SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""Headers of every answer. The sender adds ``Cache-Control``: NO_STORE for data, the asset's own for files."""

RUN_HEADER = "Rollcast-Run"
"""Header with the run's id in every answer of a coordinator."""

NO_STORE = {"Cache-Control": "no-store"}
