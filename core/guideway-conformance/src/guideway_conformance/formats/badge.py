"""A report as a badge: an image, or JSON for the endpoint of shields.io."""

from __future__ import annotations

import json
from html import escape

from guideway_conformance.report import Report

__all__ = ["badge", "svg"]

COLORS = {"certified": "brightgreen", "failed": "red", "incomplete": "lightgrey", "known failures": "orange"}


FILLS = {"certified": "#1a7f37", "failed": "#cf222e", "incomplete": "#6e7781", "known failures": "#9a6700"}
"""White text on these has a contrast of at least 4.5 to 1."""

PER_CHARACTER, MARGIN = 6.6, 12
"""Pixels: of a character at 11 pixels, and what a text has around it."""


def badge(report: Report) -> str:
    """The contract and the levels granted, never a share: a share does not say what works."""
    label, message = _words(report)
    content = {"schemaVersion": 1, "label": label, "message": message, "color": COLORS[report.verdict]}
    return json.dumps(content, indent=2) + "\n"


def svg(report: Report) -> str:
    """The same as an image, which needs no server."""
    label, message = _words(report)
    widths = [round(len(text) * PER_CHARACTER) for text in (label, message)]
    left, right = (width + MARGIN for width in widths)
    texts = "".join(
        f'<text x="{x + MARGIN / 2:g}" y="14" textLength="{width}">{escape(text)}</text>'
        for x, width, text in ((0, widths[0], label), (left, widths[1], message))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{escape(f"{label}: {message}")}">\n'
        f'<clipPath id="r"><rect width="{left + right}" height="20" rx="3"/></clipPath>\n'
        f'<g clip-path="url(#r)"><rect width="{left}" height="20" fill="#444c56"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{FILLS[report.verdict]}"/></g>\n'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">{texts}</g>\n</svg>\n'
    )


def _words(report: Report) -> tuple[str, str]:
    message = "+".join(level for level in report.levels if level != "smoke")
    return f"guideway {report.contract}", message if report.verdict == "certified" else report.verdict
