"""A peer that no stack was shaped for: segments made by scapy, from an address that the kernel does not own, so that
the kernel answers none of them; and odd programs on the kernel's sockets.

strange.py NAME   runs the case of that name (the keys of CASES) against 10.99.0.2: echo on 7, a count on 9, a source on 19
strange.py        exits with 0 if scapy is there
"""
import logging, random, socket, struct, sys, threading, time

logging.getLogger("scapy").setLevel(logging.ERROR)
from scapy.all import ICMP, IP, TCP

HOST, PEER = "10.99.0.2", "10.99.0.77"


class Link:
    """Raw packets into the device and out of it."""

    def __init__(self):
        self.out = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
        self.tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
        self.tap.bind(("weft0", 0))

    def put(self, packet):
        self.out.sendto(bytes(packet), (HOST, 0))

    def hear(self, port, seconds, most):
        """Segments of the stack to a port of the peer's, until there are so many or the time is over."""
        found, end = [], time.time() + seconds
        while len(found) < most and time.time() < end:
            self.tap.settimeout(max(0.01, end - time.time()))
            try:
                p = IP(self.tap.recv(65535))
            except socket.timeout:
                break
            if p.src == HOST and p.dst == PEER and TCP in p and p[TCP].dport == port:
                found.append(p[TCP])
        return found


class Peer:
    """A connection from the peer, opened."""

    def __init__(self, link, port, mss=1460):
        self.link, self.to, self.port = link, port, random.randint(20000, 60000)
        self.seq, self.ack = random.getrandbits(32), 0
        link.put(self.segment("S", options=[("MSS", mss)]))
        answers = link.hear(self.port, 3, 1)
        assert answers and answers[0].flags == "SA", answers
        self.seq, self.ack = self.seq + 1, answers[0].seq + 1
        self.say("A")

    def segment(self, flags, data=b"", at=0, ack=0, window=65535, options=()):
        """From so many bytes behind what was said; the acknowledgment is so many bytes ahead."""
        acked = (self.ack + ack) % 2**32 if "A" in flags else 0
        return IP(src=PEER, dst=HOST) / TCP(sport=self.port, dport=self.to, flags=flags, seq=(self.seq + at) % 2**32, ack=acked, window=window, options=list(options)) / data

    def say(self, *args, **named):
        self.link.put(self.segment(*args, **named))

    def hear(self, seconds=1.0, most=4):
        return self.link.hear(self.port, seconds, most)


def data_of(segments):
    return b"".join(bytes(s.payload) for s in segments)


def echoes():
    s = socket.create_connection((HOST, 7), timeout=10)
    s.sendall(b"hello")
    assert s.recv(100) == b"hello"
    s.close()


def resets():
    for _ in range(2000):
        s = socket.create_connection((HOST, 7), timeout=10)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()
    echoes()


def single_bytes():
    s = socket.create_connection((HOST, 7), timeout=30)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sent, got = bytes(random.getrandbits(8) for _ in range(20000)), bytearray()

    def read():
        while len(got) < len(sent):
            b = s.recv(65536)
            if not b:
                break
            got.extend(b)

    reader = threading.Thread(target=read)
    reader.start()
    for b in sent:
        s.send(bytes([b]))
    reader.join(30)
    assert bytes(got) == sent


def tiny_mss():
    p = Peer(Link(), 19, mss=1)
    p.say("PA", b"3000\n")
    sizes = [len(s.payload) for s in p.hear(1, 40)]
    assert 0 < max(sizes) <= 88, sizes


def fin_first():
    p = Peer(Link(), 9)
    p.say("FPA", b"world", at=5)
    p.hear(0.5, 2)
    p.say("PA", b"hello")
    answers = p.hear()
    assert b"10" in data_of(answers), answers
    assert (p.seq + 11) % 2**32 in [s.ack for s in answers], answers


def blind():
    p = Peer(Link(), 7)
    for guess in (p.segment("R", at=100), p.segment("S", at=200), p.segment("PA", b"x", at=5000000)):
        p.link.put(guess)
        assert [str(s.flags) for s in p.hear(1, 1)] == ["A"]
    p.say("PA", b"ab")
    assert b"ab" in data_of(p.hear())


def fragments():
    p = Peer(Link(), 7)
    body = bytes(p.segment("PA", b"A" * 64))[20:]

    def fragment(at, end, number):
        more = "MF" if end < len(body) else 0
        p.link.put(IP(src=PEER, dst=HOST, proto=6, id=number, flags=more, frag=at // 8) / body[at:end])

    for at, end in ((0, 48), (40, 64), (64, len(body))):
        fragment(at, end, 7)
    assert p.hear(0.5) == []
    for at, end in ((64, len(body)), (0, 40), (40, 64)):
        fragment(at, end, 8)
    assert b"A" * 64 in data_of(p.hear())


def datagrams():
    over = []

    def flood():
        u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for _ in range(200000):
            if over:
                return
            try:
                u.sendto(b"x" * random.randint(0, 1400), (HOST, random.randint(1, 65535)))
            except OSError:
                pass

    flooding = threading.Thread(target=flood)
    flooding.start()
    for _ in range(20):
        echoes()
    over.append(True)
    flooding.join()


def zero_window():
    p = Peer(Link(), 19)
    p.say("PA", b"5000\n", window=0)
    p.seq += 5
    probes = [len(s.payload) for s in p.hear(3.5, 20)]
    assert len(probes) >= 3 and max(probes) <= 1, probes
    p.say("A")
    assert len(data_of(p.hear(3, 5))) > 1000


def acknowledgments():
    p = Peer(Link(), 7)
    for _ in range(2000):
        p.say("A", ack=1000000)
    assert 1 <= len(p.hear(1.5, 3000)) <= 20


def small_path():
    p = Peer(Link(), 19)
    p.say("PA", b"20000\n")
    p.seq += 6
    quoted = p.hear(1, 1)[0]
    header = bytes(IP(src=HOST, dst=PEER) / TCP(sport=19, dport=p.port, seq=quoted.seq, flags="A"))[:28]
    p.link.put(IP(src="10.99.0.1", dst=HOST) / ICMP(type=3, code=4, nexthopmtu=68) / header)
    p.hear(0.5, 100)
    sizes = [len(s.payload) for s in p.hear(3, 5)]
    assert sizes and max(sizes) >= 500, sizes


def garbage():
    link = Link()
    for _ in range(20000):
        body = bytes(random.getrandbits(8) for _ in range(random.randint(0, 100)))
        try:
            link.put(IP(src=PEER, dst=HOST, proto=random.choice([0, 1, 6, 17, 58, 255])) / body)
        except OSError:
            pass
    echoes()


CASES = {f.__name__: f for f in (resets, single_bytes, tiny_mss, fin_first, blind, fragments, datagrams, zero_window, acknowledgments, small_path, garbage)}

if len(sys.argv) > 1:
    CASES[sys.argv[1]]()
