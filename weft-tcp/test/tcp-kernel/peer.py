"""The kernel's side of the tests: sends and receives a known pattern.

peer.py get  HOST PORT N     read to the end, expect N bytes of the pattern
peer.py put  HOST PORT N     send N bytes, shut down the sending direction, expect their number as the answer
peer.py both HOST PORT N     send N bytes while reading them back
peer.py serve HOST PORT COUNT  for each connection: read to the end, answer with what was read
peer.py slow HOST PORT N SECONDS  as get, but stop reading for a while in the middle
peer.py reset HOST PORT      connect, then reset
peer.py again HOST PORT N    get twice, from the same port
peer.py meet HOST PORT OWN   connect from the port OWN, exchange a message with the peer, which connects at the same time
peer.py crossing HOST PORT FILE   receive a message, and close when the file is there
"""
import hashlib, os, socket, struct, sys, threading, time

BLOCK = bytes((i * 7 + i // 251) % 256 for i in range(251 * 256))


def pattern(n):
    whole, rest = divmod(n, len(BLOCK))
    for _ in range(whole):
        yield BLOCK
    yield BLOCK[:rest]


def expected(n):
    h = hashlib.md5()
    for part in pattern(n):
        h.update(part)
    return h.hexdigest()


def connect(host, port):
    s = socket.create_connection((host, port), timeout=200)
    return s


def read_all(s, pause_at=None, pause=0.0):
    h, n = hashlib.md5(), 0
    while True:
        b = s.recv(262144)
        if not b:
            return n, h.hexdigest()
        h.update(b)
        n += len(b)
        if pause_at is not None and n >= pause_at:
            pause_at = None
            time.sleep(pause)


def main():
    what, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if what == "serve":
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        l = socket.socket(family, socket.SOCK_STREAM)
        l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        l.bind((host, port))
        l.listen(100)
        print("ready", flush=True)
        for _ in range(int(sys.argv[4])):
            c, _ = l.accept()
            data = bytearray()
            while True:
                b = c.recv(262144)
                if not b:
                    break
                data += b
            c.sendall(bytes(data))
            c.close()
        return
    if what == "again":
        for _ in range(2):
            s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("", 40123))
            s.settimeout(60)
            s.connect((host, port))
            s.sendall(b"%d\n" % int(sys.argv[4]))
            assert read_all(s)[0] == int(sys.argv[4])
            s.close()
            time.sleep(0.3)
        return
    if what == "meet":
        s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("", int(sys.argv[4])))
        s.settimeout(200)
        s.connect((host, port))
        s.sendall(b"from the kernel")
        s.shutdown(socket.SHUT_WR)
        got = b"".join(iter(lambda: s.recv(1000), b""))
        assert got == b"from the stack", got
        return
    s = connect(host, port)
    if what == "crossing":
        assert s.recv(100) == b"close"
        while not os.path.exists(sys.argv[4]):
            time.sleep(0.01)
        s.sendall(b"bye")
        s.shutdown(socket.SHUT_WR)
        assert s.recv(100) == b""
        return
    if what == "reset":
        time.sleep(0.3)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()
        return
    n = int(sys.argv[4])
    if what == "get":
        s.sendall(b"%d\n" % n)
        got = read_all(s)
    elif what == "slow":
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        s.sendall(b"%d\n" % n)
        got = read_all(s, n // 2, float(sys.argv[5]))
    elif what == "put":
        for part in pattern(n):
            s.sendall(part)
        s.shutdown(socket.SHUT_WR)
        answer = s.recv(100)
        assert answer == b"%d" % n, (answer, n)
        return
    elif what == "both":
        def feed():
            for part in pattern(n):
                s.sendall(part)
            s.shutdown(socket.SHUT_WR)
        t = threading.Thread(target=feed)
        t.start()
        got = read_all(s)
        t.join()
    assert got == (n, expected(n)), (got, n)


main()
