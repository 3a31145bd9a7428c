"""Reads every form of the OpenAPI document that the service has.

    documents.py HOST
"""

import json
import sys
import urllib.request

import aiopenapi3
import openapi_spec_validator
import yaml

host = sys.argv[1]


def get(path):
    with urllib.request.urlopen(f"{host}{path}") as response:
        return response.read()


forms = {path.rsplit("/", 1)[1]: get(path) for path in json.loads(get("/api/v3"))["openapi"]}
document = json.loads(forms["openapi.json"])
# PyYAML reads YAML 1.1, in which an unquoted date or `no` is not a string.
assert yaml.safe_load(forms["openapi.yaml"]) == document
version_3_0 = json.loads(forms["openapi-3.0.json"])
for form in document, version_3_0:
    openapi_spec_validator.validate(form)
assert version_3_0["openapi"].startswith("3.0.")
assert version_3_0["paths"].keys() == document["paths"].keys()

for name in "openapi.json", "openapi-3.0.json":
    url = f"{host}/api/v3/{name}"
    api = aiopenapi3.OpenAPI.load_sync(url)
    api.authenticate(api_key="special-key")
    assert api._.getLimits().plan == "enterprise"
    added = api._.addPet(data={"name": "Rex", "tags": [{"id": -(2**53) + 1}]})
    assert api._.getPetById(parameters={"petId": added.id}).tags[0].id == -(2**53) + 1
    api._.deletePet(parameters={"petId": added.id})
