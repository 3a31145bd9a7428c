"""Checks one response per status and media type with httplint.

    responses.py DOCUMENT HOST KEY FREE_KEY

Fails if httplint reports a fault, or if a documented status and media type is missing that a client can provoke.
"""

import http.client
import json
import re
import subprocess
import sys
import uuid
from pathlib import Path

from images import png

document, host, key, free_key = sys.argv[1:]
API = "/api/v3"
httplint = Path(sys.executable).with_name("httplint")
# A client cannot provoke these: they need a service that is broken, overloaded or slow.
NOT_PROVOKED = {"408", "500", "503", "507"}
# Findings of httplint that are wrong, or that the status implies.
ACCEPTED = (
    # RFC 6749 §5.1 requires it in responses of token endpoints.
    '"Pragma" isn\'t valid in a response.',
    # RFC 9110 §12.5.1 and §15.5.16: with 415 it lists the accepted media types.
    '"Accept" isn\'t valid in a response.',
    # RFC 9110 §12.5.3: with 415 it lists the accepted codings of an encoded body.
    '"Accept-Encoding" isn\'t valid in a response.',
    # The meaning of 414, which one of the requests provokes.
    "The server won't accept a URI this long",
)
seen = {}


def send(method, path, body=b"", **fields):
    """Sends a request unchanged, checks the response with httplint, and returns the response with its body."""
    fields = {name.replace("_", "-") if name != "api_key" else name: value for name, value in fields.items()}
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.putrequest(method, path, skip_accept_encoding=True)
    for name, value in {"Content-Length": str(len(body)), **fields}.items():
        connection.putheader(name, value)
    connection.endheaders(body)
    response = connection.getresponse()
    content = response.read()
    head = "".join(f"{name}: {value}\r\n" for name, value in response.getheaders() if name.lower() != "transfer-encoding")
    raw = f"HTTP/1.1 {response.status} {response.reason}\r\n{head}\r\n".encode("latin-1") + content
    kind = (str(response.status), (response.getheader("content-type") or "").split(";")[0])
    if kind not in seen:
        # Immediately, since httplint compares Date with the current time.
        report = subprocess.run([httplint, "-n"], input=raw, capture_output=True, check=True).stdout.decode()
        notes = [line for line in report.splitlines() if re.match(r"\* \[(BAD|WARN)\]", line)]
        seen[kind] = (f"{method} {path}"[:60], [note for note in notes if not any(it in note for it in ACCEPTED)])
    return response, content


def send_api(method, path, body=None, credential=key, media_type="application/json", **fields):
    """Does the same for a path of the API."""
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    if body is not None:
        fields["Content_Type"] = media_type
    if credential:
        fields["api_key"] = credential
    return send(method, API + path, body or b"", **fields)


def send_all():
    form = "application/x-www-form-urlencoded"
    name = f"ada-{uuid.uuid4()}"
    response, content = send_api("POST", "/pet", {"name": "Rex"})
    pet, tag = f"/pet/{json.loads(content)['id']}", response.getheader("ETag")
    send_api("GET", pet)
    send_api("GET", pet, If_None_Match=tag)
    send_api("PATCH", pet, {"status": "pending"}, If_Match='"0"')
    send_api("PUT", pet, {"name": "Rex"})
    send_api("PUT", "/pet", {"name": ""})
    send_api("GET", pet, credential=None)
    send_api("GET", "/pet/9007199254740991")
    send_api("GET", "/pet/findByStatus?status=available&limit=1")
    send_api("GET", "/pet?name=r&limit=1")
    send_api("GET", "/changes")
    send_api("GET", "/changes?after=1")
    send_api("POST", "/pet", {"id": json.loads(content)["id"], "name": "Rex"})
    send_api("POST", "/pet", b"x", media_type="text/plain")
    send_api("POST", "/pet", b" " * (2 << 20))
    send_api("GET", "/pet/findByTags?tags=" + "x" * 9_000)
    send_api("GET", pet, X_Long="x" * 20_000)
    send_api("POST", "/pet", b"0\r\n\r\n", Transfer_Encoding="gzip, chunked")
    send_api("DELETE", "/pet")
    once = str(uuid.uuid4())
    for it in ("a", "b"):
        send_api("POST", "/pet", {"name": it}, Idempotency_Key=once)
    _, content = send_api("POST", f"{pet}/uploadImage", png(8, 8, 1), media_type="image/png")
    image = f"{pet}/images/{json.loads(content)['imageId']}"
    response, _ = send_api("GET", image, credential=None)
    send_api("GET", image, credential=None, If_None_Match=response.getheader("ETag"))
    send_api("GET", image, credential=None, Range="bytes=0-3")
    send_api("GET", image, credential=None, Range="bytes=9999-")
    account = {"username": name, "password": "correct horse"}
    send_api("POST", "/user", account, credential=None)
    send_api("POST", "/user/login", account, credential=None)
    send("POST", "/oauth/token", b"grant_type=client_credentials", Content_Type=form)
    send("POST", "/oauth/token", b"grant_type=client_credentials", Content_Type="text/plain")
    send("GET", "/.well-known/oauth-authorization-server")
    for path in ("/", "/docs", "/docs/", "/docs/swagger-ui.css", "/docs/swagger-initializer.js", "/livez", "/nothing"):
        send("GET", path)
    send("GET", f"{API}/openapi.json")
    _, content = send_api("POST", "/admin/webhooks", {"url": "https://localhost/", "kinds": ["session"]})
    webhook = f"/admin/webhooks/{json.loads(content)['id']}"
    send_api("POST", f"{webhook}/test")
    send_api("GET", f"{webhook}/attempts")
    send_api("POST", f"{webhook}/rotate", {})
    send_api("POST", f"{webhook}/rotate", {}, Idempotency_Key=once)
    send_api("POST", f"{webhook}/deliveries/retry")
    send_api("DELETE", pet)
    # A user may not create other accounts.
    _, content = send_api("POST", "/user/login", account, credential=None)
    send("POST", f"{API}/user/createWithList", b"[]", Authorization=f"Bearer {json.loads(content)}", Content_Type="application/json")
    for _ in range(61):
        response, _ = send_api("GET", "/pet/1", credential=free_key)
    assert response.status == 429, response.status


def documented_kinds():
    kinds = set()
    described = json.loads(Path(document).read_text())
    for item in described["paths"].values():
        for operation in item.values():
            if "responses" not in operation:
                continue
            for status, response in operation["responses"].items():
                if "$ref" in response:
                    response = described["components"]["responses"][response["$ref"].rsplit("/", 1)[1]]
                kinds |= {(status, media_type) for media_type in response.get("content", {})}
    return {kind for kind in kinds if kind[0] not in NOT_PROVOKED}


send_all()
# One image type stands for all: the service treats them alike.
missing = {kind for kind in documented_kinds() - set(seen) if not re.fullmatch("image/(jpeg|gif|webp)", kind[1])}
faults = [f"no response with {status} {media_type}" for status, media_type in sorted(missing)]
for (status, media_type), (request, notes) in sorted(seen.items()):
    print(f"{status} {media_type or '-'} ({request}): {'; '.join(notes) or 'no findings'}")
    faults += [f"{status} {media_type}, {request}: {note}" for note in notes if "[BAD]" in note]
print(f"httplint: {len(seen)} kinds of responses, {len(faults)} faults")
for fault in faults:
    print("FAULT", fault)
sys.exit(bool(faults))
