"""A report as a badge: JSON for the endpoint of shields.io."""

from __future__ import annotations

import json

from guideway_conformance.report import Report

__all__ = ["badge"]

COLORS = {"certified": "brightgreen", "failed": "red", "incomplete": "lightgrey", "known failures": "orange"}


def badge(report: Report) -> str:
    """The contract and the levels granted, never a share: a share does not say what works."""
    message = "+".join(level for level in report.levels if level != "smoke")
    if report.verdict != "certified":
        message = report.verdict
    content = {
        "schemaVersion": 1,
        "label": f"guideway {report.contract}",
        "message": message,
        "color": COLORS[report.verdict],
    }
    return json.dumps(content, indent=2) + "\n"
