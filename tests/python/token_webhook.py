"""A server that is asked whose tokens are. What it does is said by the token; it writes down what it was asked.

    token_webhook.py LOG [TOKEN]     LOG: a file; TOKEN: what must be shown to it
"""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

seen = {}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        wanted = sys.argv[2] if len(sys.argv) > 2 else None
        shown = self.headers.get("Authorization")
        token = body["spec"]["token"]
        with open(sys.argv[1], "a") as log:
            log.write(json.dumps({"shown": shown, "as": self.headers.get("Impersonate-User"), "body": body}) + "\n")
        if wanted and shown != "Bearer " + wanted:
            return self.answer(401, b"{}")
        seen[token] = seen.get(token, 0) + 1
        if token == "hang":
            time.sleep(60)
        if token == "moody" and seen[token] == 1:
            return self.answer(500, b"{}")
        if token == "gone":
            return self.answer(404, b"{}")
        if token == "nonsense":
            return self.answer(200, b"<html>what?</html>")
        if token == "huge":
            return self.answer(200, b"[" + b"0," * 2_000_000 + b"0]")
        if token == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"{")
            return
        status = {"authenticated": True, "user": {"username": token, "uid": "u", "groups": ["g"], "extra": {"k": ["v"]}}}
        if token == "bad":
            status = {"authenticated": False, "user": {"username": "admin", "groups": ["system:masters"]}}
        if token == "nobody":
            status = {"authenticated": True, "user": {}}
        if token == "meant-for-others":
            status["audiences"] = ["others"]
        review = {"kind": "TokenReview", "apiVersion": body["apiVersion"], "status": status}
        if token == "liar":
            review["kind"] = "SubjectAccessReview"
        self.answer(200, json.dumps(review).encode())

    def answer(self, code, body):
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
