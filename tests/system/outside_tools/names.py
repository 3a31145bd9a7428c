"""Runs a program in a network of its own, where names resolve to what this script says.

    names.py CONNECTIONS PROGRAM ARGUMENT…

It needs an empty network namespace. `mixed.test` has a public address and one of this machine, `rebinding.test` a public one in every
other response. Each connection to port 443 of this machine adds a line to the file CONNECTIONS.
"""

import ctypes
import fcntl
import itertools
import signal
import socket
import struct
import subprocess
import sys
import threading

connections, program = sys.argv[1], sys.argv[2:]
PUBLIC, PRIVATE = "1.1.1.1", "127.0.0.1"
# The network is empty: nothing is sent to the public address.
rebinding = itertools.cycle([[PUBLIC], [PRIVATE]])
NAMES = {"mixed.test": lambda: [PUBLIC, PRIVATE], "rebinding.test": lambda: next(rebinding)}
A, IN, HEADER = 1, 1, struct.Struct("!6H")


def main():
    enable_loopback()
    server = socket.create_server((PRIVATE, 443))
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names.bind((PRIVATE, 53))
    threading.Thread(target=count, args=[server], daemon=True).start()
    threading.Thread(target=resolve, args=[names], daemon=True).start()
    sys.exit(subprocess.run(program, preexec_fn=end_with_parent).returncode)


def end_with_parent():
    """Lets the program be killed when this script is (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def enable_loopback():
    """Sets the flag IFF_UP of `lo`, as `ip link set lo up` does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))


def count(server):
    while True:
        connection, _ = server.accept()
        connection.close()
        with open(connections, "a") as lines:
            print("connection", file=lines)


def resolve(names):
    """Responds to queries of DNS (RFC 1035, section 4)."""
    while True:
        query, client = names.recvfrom(512)
        number, *_ = HEADER.unpack_from(query)
        labels, place = [], HEADER.size
        while length := query[place]:
            labels.append(query[place + 1 : place + 1 + length].decode())
            place += 1 + length
        question = query[HEADER.size : place + 5]
        kind, _ = struct.unpack_from("!2H", query, place + 1)
        find = NAMES.get(".".join(labels).lower())
        addresses = find() if find and kind == A else []
        answers = [struct.pack("!3HIH", 0xC00C, A, IN, 0, 4) + socket.inet_aton(it) for it in addresses]
        flags = 0x8180 if find else 0x8183
        names.sendto(HEADER.pack(number, flags, 1, len(answers), 0, 0) + question + b"".join(answers), client)


main()
