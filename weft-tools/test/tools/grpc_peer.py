"""A server and a client of gRPC, by Debian's python3-grpcio. Messages are strings of bytes, without protocol buffers.

    grpc_peer.py serve PORT                  the methods of weft.Test; prints a line when it listens
    grpc_peer.py load PORT AUTHORITY         calls of both kinds by 8 threads, until standard input ends; prints the number
                                             of the first 100 that succeeded, then the statuses that there were, and
                                             whether calls succeed again"""

import os
import sys
import threading
import time
from concurrent import futures

# It prints what is wrong with answers that are not gRPC's, as the proxy's own are.
os.environ["GRPC_VERBOSITY"] = "NONE"

import grpc

LIMIT = 60


def total(messages):
    sizes = [len(m) for m in messages]
    return b"%d %d" % (len(sizes), sum(sizes))


METHODS = {
    "Echo": grpc.unary_unary_rpc_method_handler(lambda message, context: message),
    "Count": grpc.unary_stream_rpc_method_handler(lambda message, context: (b"%d" % i for i in range(1, int(message) + 1))),
    "Sum": grpc.stream_unary_rpc_method_handler(lambda messages, context: total(messages)),
    "Talk": grpc.stream_stream_rpc_method_handler(lambda messages, context: messages),
}


def serve(port):
    server = grpc.server(futures.ThreadPoolExecutor(32), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("weft.Test", METHODS),))
    if server.add_insecure_port("127.0.0.1:" + port) == 0:
        sys.exit("the port is taken")
    server.start()
    print("listens", flush=True)
    server.wait_for_termination()


def load(port, authority):
    with open(authority, "rb") as file:
        credentials = grpc.ssl_channel_credentials(file.read())
    statuses = {}
    lock = threading.Lock()
    ended = threading.Event()
    begun = threading.Semaphore(0)
    with grpc.secure_channel("localhost:" + port, credentials, [("grpc.enable_http_proxy", 0)]) as channel:
        echo = channel.unary_unary("/weft.Test/Echo")
        talk = channel.stream_stream("/weft.Test/Talk")

        def call(i):
            try:
                if i % 2 == 0:
                    right = echo(b"%d" % i, timeout=LIMIT) == b"%d" % i
                else:
                    right = list(talk(iter([b"a", b"%d" % i]), timeout=LIMIT)) == [b"a", b"%d" % i]
                return "OK" if right else "WRONG"
            except grpc.RpcError as e:
                return e.code().name

        def work():
            i = 0
            while not ended.is_set():
                status = call(i)
                with lock:
                    statuses[status] = statuses.get(status, 0) + 1
                begun.release()
                i += 1
                if status != "OK":
                    time.sleep(0.01)

        def until_answered():
            end = time.monotonic() + LIMIT
            while call(0) != "OK" and time.monotonic() < end:
                time.sleep(0.05)

        # The server may be starting.
        until_answered()
        threads = [threading.Thread(target=work) for _ in range(8)]
        for t in threads:
            t.start()
        for _ in range(100):
            begun.acquire()
        with lock:
            print("begun", sorted(statuses), flush=True)
        sys.stdin.read()
        ended.set()
        for t in threads:
            t.join()
        until_answered()
        print("statuses", " ".join(sorted(statuses)))
        print("again", [call(i) for i in range(4)])


if __name__ == "__main__":
    {"serve": serve, "load": load}[sys.argv[1]](*sys.argv[2:])
