#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Quality of the KV formats, through private daemons and as an ordinary client.

usage: eval.py [--quick|--full] [--json] [--plot FILE] [--formats A,B] [--only PART,...]

Parts: kl peers text choice code speed model. The last line of --json is one object:
{"formats": {NAME: {"bytes_ratio", "kl_mean", "kl_p99", "ppl_ratio", "top1", ...}},
 "model": {"kl_mean", "logprob_error", ...}, "peers", "unavailable", "musts"}.
KVD_EVAL_DATA is the folder with the packages that `./dev eval` fetches.
"""
import argparse
import json
import os
import resource
import signal
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "system"),
                os.path.join(os.path.dirname(HERE), "unit", "model")]
# pylint: disable=wrong-import-position
import binding  # noqa: E402
import data  # noqa: E402
import measures  # noqa: E402
import report  # noqa: E402
import sandbox  # noqa: E402
from kvdtest import BUILD, MODEL, SHARED, Daemon  # noqa: E402

FORMATS = ["fp16", "int8", "fp8_e4m3", "k=int8,v=int4", "int4"]
PARTS = ["kl", "peers", "text", "choice", "code", "speed", "model"]
WINDOW = 512
SIZES = {  # what a part takes; windows are those of the project's targets in both
    "quick": {"windows": 8, "prompts": 16, "tokens": 96, "questions": 57, "problems": 16,
              "code_tokens": 160, "rounds": 3, "truth": 1},
    "full": {"windows": 16, "prompts": 64, "tokens": 192, "questions": 281, "problems": 164,
             "code_tokens": 320, "rounds": 7, "truth": 4},
}
START = time.monotonic()


def say(text):
    print(f"eval: {time.monotonic() - START:5.0f} s  {text}", file=sys.stderr, flush=True)


class Evaluation:
    """The daemons of a run, what was measured of them, and what could not be."""

    def __init__(self, args):
        self.args = args
        self.size = SIZES["full" if args.full else "quick"]
        self.cache = os.environ.get("KVD_EVAL_DATA", os.path.join(
            os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "kvd", "eval"))
        self.daemons, self.clients = {}, {}
        self.formats, self.unavailable, self.skipped = {}, {}, {}
        self.peers, self.model = {}, {}
        self.figures = {}

    def wants(self, part):
        return not self.args.only or part in self.args.only.split(",")

    def open(self, name, options=None, model=MODEL):
        """Start a daemon and connect. Return: the client, or None with the reason noted."""
        daemon = Daemon({"cache.kv_cache_memory": "256M", **(options or {})}, model=model,
                        start=False)
        self.daemons[name] = daemon
        try:
            daemon.start()
        except AssertionError:
            self.unavailable[name] = measures.last_line(daemon.log())
            say(f"{name} is not available: {self.unavailable[name]}")
            self.daemons.pop(name).close()
            return None
        return self.connect(name, daemon)

    def connect(self, name, daemon):
        stats = daemon.stats()
        n_vocab = stats["model"].get("n_vocab") or self.args.n_vocab
        client = binding.Client(os.path.join(BUILD, "client", "libkvclient.so"),
                                daemon.socket, n_vocab)
        self.clients[name] = client
        return client

    def close(self, name):
        self.clients.pop(name).close()
        with self.daemons.pop(name):
            pass

    def start(self):
        wanted = self.args.formats.split("+") if self.args.formats else FORMATS
        for name in wanted if "fp16" in wanted else ["fp16"] + wanted:
            say(f"starting a daemon with {name}")
            if not self.open(name, {"cache.kv_cache_dtype": name}):
                continue
            if not self.answers(name):
                continue
            cache = self.daemons[name].stats()["cache"]
            self.formats[name] = {"bytes_per_token": cache["bytes_per_token"],
                                  "block_bytes": cache["block_bytes"],
                                  "block_tokens": cache["block_tokens"]}
        if "fp16" not in self.formats:
            raise SystemExit("eval: fp16 did not start; nothing to compare with")
        base = self.formats["fp16"]
        for entry in self.formats.values():
            entry["bytes_ratio"] = entry["bytes_per_token"] / base["bytes_per_token"]
            entry["pool_ratio"] = (entry["block_bytes"] / entry["block_tokens"] /
                                   base["block_bytes"] * base["block_tokens"])

    def answers(self, name):
        """Does it score and generate at all? Else it is left out, and the rest goes on."""
        try:
            self.clients[name].score(list(range(1000, 1040)))
            self.clients[name].generate(list(range(1000, 1040)), 4, ignore_eos=True)
            return True
        except RuntimeError as e:
            self.unavailable[name] = f"it starts, but a request fails: {e}"
            say(f"{name}: {self.unavailable[name]}")
            self.clients.pop(name).close()
            self.daemons.pop(name).close()
            return False

    def read_texts(self):
        """Tokens of each text; windows come from their starts, prompts from behind."""
        texts = []
        for name, load in (("Debian FAQ", lambda: data.faq(self.cache)),
                           ("law", lambda: data.law(SHARED))):
            try:
                texts.append(self.clients["fp16"].tokenize(load()))
            except data.Missing as e:
                self.skipped[name] = str(e)
                say(f"without the text {name}: {e}")
        if not texts:
            raise SystemExit("eval: no text to evaluate on")
        each = self.size["windows"] // len(texts)
        windows = [t[i * WINDOW:(i + 1) * WINDOW] for t in texts for i in range(each)]
        rest = [t[each * WINDOW:] for t in texts]
        return [w for w in windows if len(w) == WINDOW], rest

    @staticmethod
    def slices(rest, n, length):
        """n runs of tokens, spread over what the windows left."""
        out = []
        for k in range(n):
            text = rest[k % len(rest)]
            room = len(text) - length
            out.append(text[room * (k // len(rest)) // max(1, (n - 1) // len(rest) + 1):][:length])
        return out

    # --- parts

    def run_kl(self, folder, windows):
        sockets = {n: self.daemons[n].socket for n in self.formats}
        say(f"distributions of {len(windows)} windows of {WINDOW} tokens, {len(sockets)} formats")
        self.figures = measures.divergences(BUILD, folder, windows, sockets, say)
        for name, figures in self.figures.items():
            self.formats[name].update(measures.summary(figures, self.figures["fp16"]))

    def run_peers(self, folder, windows):
        say("llama.cpp's formats on the same windows, emulated")
        found = measures.peers(BUILD, folder, MODEL, windows, say)
        if self.figures and found["fp16"]["nll"] != self.figures["fp16"]["nll"]:
            say("the emulation's fp16 is not the daemon's, bit for bit: not comparable")
        self.figures.update({n: f for n, f in found.items() if n != "fp16"})
        self.peers = {n: measures.summary(f, found["fp16"])
                      for n, f in found.items() if n != "fp16"}

    def run_text(self, rest):
        prompts = self.slices(rest, self.size["prompts"], 64)
        reference = None
        for name in self.formats:
            say(f"{len(prompts)} greedy answers: {name}")
            answers = measures.continuations(self.clients[name], prompts, self.size["tokens"])
            reference = reference or answers
            self.formats[name]["text"] = measures.generation(
                self.clients[name], prompts, answers, reference)

    def run_choice(self):
        questions = data.questions(self.cache)[:self.size["questions"]]
        client = self.clients["fp16"]
        letters = [client.tokenize(" " + letter)[-1] for letter in "ABCD"]
        reference = None
        for name in self.formats:
            say(f"{len(questions)} multiple-choice questions: {name}")
            choices = measures.multiple_choice(self.clients[name], questions, letters)
            reference = reference or choices
            self.formats[name]["choice"] = measures.against(choices, reference)
        for entry in self.formats.values():
            del entry["choice"]["chosen"], entry["choice"]["margins"]

    def run_code(self):
        command = sandbox.prefix()
        if not command:
            raise data.Missing("no namespace without network here (unshare), so no code runs")
        problems = data.problems(self.cache)
        problems = problems[::max(1, len(problems) // self.size["problems"])]
        problems = problems[:self.size["problems"]]
        for name in self.formats:
            say(f"{len(problems)} programs: {name}")
            self.formats[name]["code"] = measures.code(
                self.clients[name], problems, self.size["code_tokens"], command)

    def run_speed(self, rest):
        prompts = self.slices(rest, self.size["rounds"] + 1, WINDOW)
        # A prefix of its own for each round, so that nothing of it is cached.
        prompts = [[100 + i] + p for i, p in enumerate(prompts)]
        clients = {n: self.clients[n] for n in self.formats}
        say(f"time to first token and decode rate, {self.size['rounds']} rounds in turn")
        measures.speed(clients, prompts[:1], 8)
        for name, figures in measures.speed(clients, prompts[1:], 64).items():
            self.formats[name]["speed"] = figures

    def run_model(self, folder, windows):
        path = os.path.join(SHARED, "cases", "golden.json")
        if not os.path.exists(path):
            raise data.Missing(f"no {path}; KVD_SHARED names the folder")
        with open(path, encoding="utf-8") as f:
            golden = json.load(f)
        say("logprobs against the reference's")
        self.model = measures.logprob_error(self.clients["fp16"], golden)
        try:
            import requantize  # pylint: disable=import-outside-toplevel
            import gguf  # pylint: disable=import-outside-toplevel
        except (ImportError, SystemExit):
            raise data.Missing("no Python package gguf to make the float32 weights with") from None
        exact = os.path.join(folder, "f32.gguf")
        say("the model with float32 weights, which are multiplied in float32")
        requantize.requantize(MODEL, exact, gguf.GGMLQuantizationType.F32)
        client = self.open("float32", {"cache.kv_cache_dtype": "fp16"}, exact)
        if not client:
            raise data.Missing(self.unavailable["float32"])
        self.model["float32_logprob_error"] = measures.logprob_error(
            client, {"score": golden["score"][:1]})["logprob_error"]
        # The last windows of law and FAQ say as much as the first ones, and fit the time.
        some = windows[::max(1, len(windows) // self.size["truth"])][:self.size["truth"]]
        found = measures.divergences(BUILD, folder, some, {
            "float32": self.daemons["float32"].socket, "kvd": self.daemons["fp16"].socket}, say)
        self.model.update({k: v for k, v in measures.summary(
            found["kvd"], found["float32"]).items() if k in ("kl_mean", "kl_mean_ci", "kl_p99",
                                                             "top1", "positions")})
        self.close("float32")
        os.unlink(exact)

    def run(self):
        self.start()
        windows, rest = self.read_texts()
        with tempfile.TemporaryDirectory(prefix="kvd-eval.") as folder:
            for part, fn in (("kl", lambda: self.run_kl(folder, windows)),
                             ("peers", lambda: self.run_peers(folder, windows)),
                             ("text", lambda: self.run_text(rest)),
                             ("choice", self.run_choice), ("code", self.run_code),
                             ("speed", lambda: self.run_speed(rest)),
                             ("model", lambda: self.run_model(folder, windows))):
                if not self.wants(part):
                    continue
                try:
                    fn()
                except data.Missing as e:
                    self.skipped[part] = str(e)
                    say(f"without part {part}: {e}")
        for name in list(self.clients):
            self.close(name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="under five minutes (default)")
    size.add_argument("--full", action="store_true", help="larger samples")
    parser.add_argument("--json", action="store_true", help="one object as the last line")
    parser.add_argument("--plot", metavar="FILE", help="write quality against bytes as PNG")
    parser.add_argument("--formats", help="such as int8+k=int8,v=int4; fp16 is always there")
    parser.add_argument("--only", help="some parts: " + ",".join(PARTS))
    parser.add_argument("--n-vocab", type=int, default=49152, help=argparse.SUPPRESS)
    args = parser.parse_args()
    for part in (args.only or "kl").split(","):
        if part not in PARTS:
            parser.error(f"no part '{part}'; there are: {' '.join(PARTS)}")
    evaluation = Evaluation(args)
    try:
        evaluation.run()
    finally:
        for daemon in evaluation.daemons.values():
            daemon.close()
    musts = report.musts(evaluation)
    report.tables(evaluation, musts)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    say(f"done; {used.ru_utime + used.ru_stime:.0f} s of CPU time, the daemons' included")
    if args.plot:
        report.plot(evaluation, args.plot, say)
    if args.json:
        print(json.dumps({"formats": evaluation.formats, "model": evaluation.model,
                          "peers": evaluation.peers, "unavailable": evaluation.unavailable,
                          "skipped": evaluation.skipped, "musts": musts}))
    return 1 if any(m["pass"] is False for m in musts) else 0


if __name__ == "__main__":
    # Being told to stop is an ordinary end: daemons and folders are cleaned away.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
