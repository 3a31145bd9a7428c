"""What of wapiti's report is a finding.

    wapiti.py REPORT
"""

import json
import sys

# What it says that is not so here.
ACCEPTED = {
    # Content-Security-Policy's frame-ancestors, which every page has, says it, and browsers go by that (CSP3 §6.4.2).
    "X-Frame-Options is not set",
    # Not to be sent over plain HTTP (RFC 6797 §7.2): whoever ends TLS in front of the service sends it.
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
