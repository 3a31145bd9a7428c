"""Checks newman's reports of runs of the collection: each request of the document has succeeded.

    collection.py OPENAPI.json REPORT.json...
"""

import json
import sys

document, *reports = sys.argv[1:]
# A collection has no file to upload, so the variable of its identifier is not set.
WITHOUT_FILE = {"Upload an image of a pet", "Get an image", "Delete an image"}
# They are for a store without pets, and for a delivery that has failed.
LEFT_OUT = {"Add the sample store", "Send a delivery again"}

with open(document) as file:
    items = json.load(file)["paths"].values()
operations = {operation["summary"] for item in items for operation in item.values()}
for report in reports:
    with open(report) as file:
        executions = json.load(file)["run"]["executions"]
    status = {it["item"]["name"]: it["response"]["code"] for it in executions}
    assert set(status) == operations - LEFT_OUT, set(status) ^ operations
    failed = {name for name, code in status.items() if not 200 <= code < 300}
    assert failed == WITHOUT_FILE, {name: status[name] for name in failed}
