"""Prints the findings of a report of wapiti, and fails if there are any.

    wapiti.py REPORT
"""

import json
import sys

# Findings that do not apply to this service.
ACCEPTED = {
    # Every page has Content-Security-Policy with frame-ancestors, which takes precedence (CSP3 §6.4.2).
    "X-Frame-Options is not set",
    # Must not be sent over plain HTTP (RFC 6797 §7.2): the proxy that terminates TLS sends it.
    "Strict-Transport-Security is not set",
}

with open(sys.argv[1]) as report:
    report = json.load(report)
findings = [
    f"{kind}: {it['path']}: {it['info']}"
    for part in ("vulnerabilities", "anomalies")
    for kind, all_of_kind in report[part].items()
    for it in all_of_kind
    if it["info"] not in ACCEPTED
]
print(*findings, sep="\n")
sys.exit(bool(findings))
