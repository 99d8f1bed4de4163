"""A server over one executable: requests of every shape, a session for each client, and constant memory.

    python examples/serve.py model.onnx --dim batch=1..4 --dim new=1..64 --dim past=0..448 --state past=present

A request is a POST of an .npz file with the inputs, and the answer an .npz file with the outputs. The path names the
client: clients have a state of their own. The server answers on this machine alone.
"""

import argparse
import io
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

import sublet

MOST_SESSIONS = 8
MOST_BYTES = 1 << 26


class Sessions:
    """The sessions of the latest clients; each holds the bytes of its state."""

    def __init__(self, executable):
        self.executable = executable
        self.by_client = OrderedDict()

    def of(self, client):
        session = self.by_client.pop(client, None) or self.executable.session()
        self.by_client[client] = session
        while len(self.by_client) > MOST_SESSIONS:
            self.by_client.popitem(last=False)
        return session


def handler_of(executable, has_state):
    sessions = Sessions(executable)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            length = int(self.headers.get("Content-Length", 0))
            if not 0 < length <= MOST_BYTES:
                return self.answer(413, b"expected an .npz file of at most 64 MiB")
            try:
                with np.load(io.BytesIO(self.rfile.read(length)), allow_pickle=False) as inputs:
                    call = sessions.of(self.path) if has_state else executable
                    outputs = call(dict(inputs))
            except (sublet.SubletError, ValueError, OSError) as error:
                return self.answer(400, str(error).encode())
            content = io.BytesIO()
            np.savez(content, **outputs)
            return self.answer(200, content.getvalue())

        def answer(self, status, content):
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    return Handler


def server_of(model, dims, state, port=0):
    """Return a server on this machine; port 0 is any free port."""
    executable = sublet.compile_ranges(model, dims, state=state)
    print(executable)
    return ThreadingHTTPServer(("127.0.0.1", port), handler_of(executable, bool(state)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--dim", action="append", default=[])
    parser.add_argument("--state", action="append", default=[])
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    dims = dict(text.rpartition("=")[::2] for text in options.dim)
    dims = {name: int(text) if text.isdigit() else text for name, text in dims.items()}
    state = dict(text.rpartition("=")[::2] for text in options.state)
    with server_of(options.model, dims, state, options.port) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
