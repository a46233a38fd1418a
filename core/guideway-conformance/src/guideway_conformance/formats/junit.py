"""A report as JUnit XML: one test case per obligation."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from guideway_conformance.formats.rules import rule_of
from guideway_conformance.report import Report

__all__ = ["junit"]

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: Report) -> str:
    """The suite is the plugin. JUnit has no word for known failures and absent hardware: both are skipped there, with
    the reason, and the property ``verdict`` says what they mean."""
    outcomes = [result.outcome for result in report.results]
    suite = ElementTree.Element(
        "testsuite",
        name=_text(report.plugin),
        tests=str(len(outcomes)),
        failures=str(outcomes.count("fail")),
        errors=str(outcomes.count("error")),
        skipped=str(outcomes.count("known_failure") + outcomes.count("not_run")),
        time=f"{sum(result.seconds for result in report.results):.3f}",
    )
    properties = ElementTree.SubElement(suite, "properties")
    facts = {"verdict": report.verdict, "levels": " ".join(report.levels), "contract": report.contract}
    for name, value in {**facts, **report.environment}.items():
        ElementTree.SubElement(properties, "property", name=_text(name), value=_text(value))
    for result in report.results:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=_text(report.plugin),
            name=f"{result.obligation.check}-{result.obligation.mode}",
            time=f"{result.seconds:.3f}",
        )
        if result.outcome == "pass":
            continue
        tag = {"fail": "failure", "error": "error"}.get(result.outcome, "skipped")
        element = ElementTree.SubElement(case, tag, message=_text(result.detail), type=result.outcome)
        element.text = _text(f"{rule_of(result.obligation)}\n{result.detail}")
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=False) + "\n"


def _text(value: str) -> str:
    """Return the part of what a plugin said that XML can hold."""
    return _NOT_XML.sub(lambda found: ascii(found[0])[1:-1], value)
