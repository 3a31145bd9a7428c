"""One answer of every kind that the service gives, looked at by httplint: each status with each media type.

    answers.py DOCUMENT HOST KEY FREE_KEY

Fails when one has a fault, or lacks a kind that can be asked for from outside.
"""

import http.client
import json
import re
import subprocess
import sys
import uuid
from pathlib import Path

from pictures import png

document, host, key, free_key = sys.argv[1:]
API = "/api/v3"
httplint = Path(sys.executable).with_name("httplint")
# Nobody can ask for these from outside: they need the service to be out of order, full, or slow.
NOT_ASKED_FOR = {"408", "500", "503", "507"}
# What httplint says that is not so, or is what the status means.
ACCEPTED = (
    # RFC 6749 §5.1 demands it of the answers of token endpoints.
    '"Pragma" isn\'t valid in a response.',
    # RFC 9110 §12.5.1 and §15.5.16: with 415 it says what would have been taken.
    '"Accept" isn\'t valid in a response.',
    # RFC 9110 §12.5.3: so it does with 415 where the body was encoded.
    '"Accept-Encoding" isn\'t valid in a response.',
    # That is 414, and it was asked for.
    "The server won't accept a URI this long",
)
seen = {}


def answer(method, path, body=b"", **fields):
    """Sends a request as it stands and gives the answer's head and body, as they came."""
    fields = {name.replace("_", "-") if name != "api_key" else name: value for name, value in fields.items()}
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.putrequest(method, path, skip_accept_encoding=True)
    for name, value in {"Content-Length": str(len(body)), **fields}.items():
        connection.putheader(name, value)
    connection.endheaders(body)
    got = connection.getresponse()
    content = got.read()
    head = "".join(f"{name}: {value}\r\n" for name, value in got.getheaders() if name.lower() != "transfer-encoding")
    raw = f"HTTP/1.1 {got.status} {got.reason}\r\n{head}\r\n".encode("latin-1") + content
    kind = (str(got.status), (got.getheader("content-type") or "").split(";")[0])
    if kind not in seen:
        # At once, since it also compares clocks.
        said = subprocess.run([httplint, "-n"], input=raw, capture_output=True, check=True).stdout.decode()
        notes = [line for line in said.splitlines() if re.match(r"\* \[(BAD|WARN)\]", line)]
        seen[kind] = (f"{method} {path}"[:60], [note for note in notes if not any(it in note for it in ACCEPTED)])
    return got, content


def asked(method, path, body=None, credential=key, media_type="application/json", **fields):
    """The same of the API."""
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    if body is not None:
        fields["Content_Type"] = media_type
    if credential:
        fields["api_key"] = credential
    return answer(method, API + path, body or b"", **fields)


def ask_for_everything():
    form = "application/x-www-form-urlencoded"
    name = f"ada-{uuid.uuid4()}"
    got, content = asked("POST", "/pet", {"name": "Rex"})
    pet, tag = f"/pet/{json.loads(content)['id']}", got.getheader("ETag")
    asked("GET", pet)
    asked("GET", pet, If_None_Match=tag)
    asked("PATCH", pet, {"status": "pending"}, If_Match='"0"')
    asked("PUT", pet, {"name": "Rex"})
    asked("PUT", "/pet", {"name": ""})
    asked("GET", pet, credential=None)
    asked("GET", "/pet/9007199254740991")
    asked("GET", "/pet/findByStatus?status=available&limit=1")
    asked("POST", "/pet", {"id": json.loads(content)["id"], "name": "Rex"})
    asked("POST", "/pet", b"x", media_type="text/plain")
    asked("POST", "/pet", b" " * (2 << 20))
    asked("GET", "/pet/findByTags?tags=" + "x" * 9_000)
    asked("GET", pet, X_Long="x" * 20_000)
    asked("DELETE", "/pet")
    once = str(uuid.uuid4())
    for it in ("a", "b"):
        asked("POST", "/pet", {"name": it}, Idempotency_Key=once)
    _, content = asked("POST", f"{pet}/uploadImage", png(8, 8, 1), media_type="image/png")
    image = f"{pet}/images/{json.loads(content)['imageId']}"
    got, _ = asked("GET", image, credential=None)
    asked("GET", image, credential=None, If_None_Match=got.getheader("ETag"))
    asked("GET", image, credential=None, Range="bytes=0-3")
    asked("GET", image, credential=None, Range="bytes=9999-")
    account = {"username": name, "password": "correct horse"}
    asked("POST", "/user", account, credential=None)
    asked("POST", "/user/login", account, credential=None)
    answer("POST", "/oauth/token", b"grant_type=client_credentials", Content_Type=form)
    answer("POST", "/oauth/token", b"grant_type=client_credentials", Content_Type="text/plain")
    answer("GET", "/.well-known/oauth-authorization-server")
    for path in ("/", "/docs", "/docs/", "/docs/swagger-ui.css", "/docs/swagger-initializer.js", "/livez", "/nothing"):
        answer("GET", path)
    answer("GET", f"{API}/openapi.json")
    asked("DELETE", pet)
    # Who may sign up may not make others' accounts.
    _, content = asked("POST", "/user/login", account, credential=None)
    answer("POST", f"{API}/user/createWithList", b"[]", Authorization=f"Bearer {json.loads(content)}", Content_Type="application/json")
    for _ in range(61):
        got, _ = asked("GET", "/pet/1", credential=free_key)
    assert got.status == 429, got.status


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
    return {kind for kind in kinds if kind[0] not in NOT_ASKED_FOR}


ask_for_everything()
# Of images one kind stands for all: they are told apart by their first bytes alone.
missing = {kind for kind in documented_kinds() - set(seen) if not re.fullmatch("image/(jpeg|gif|webp)", kind[1])}
faults = [f"no answer that is {status} {media_type}" for status, media_type in sorted(missing)]
for (status, media_type), (request, notes) in sorted(seen.items()):
    print(f"{status} {media_type or '-'} ({request}): {'; '.join(notes) or 'well'}")
    faults += [f"{status} {media_type}, {request}: {note}" for note in notes if "[BAD]" in note]
print(f"httplint: {len(seen)} kinds of answers, {len(faults)} faults")
for fault in faults:
    print("FAULT", fault)
sys.exit(bool(faults))
