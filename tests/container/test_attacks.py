# SPDX-License-Identifier: MIT
"""The installed service under each attack that tests/system/test_hostile.py lists, with a
daemon that has sanitizers: package, unit, sandbox and users are real, and nothing is
reported.

Environment: as test_service.py; KVD_SANITIZED_KVD: the daemon that takes the place of the
package's.
"""
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))

import kvdtest  # noqa: E402
import samepid  # noqa: E402
import test_service as service  # noqa: E402
from kvdtest import Skip, equal, limit, until  # noqa: E402

KVD = os.environ.get("KVD_SANITIZED_KVD", os.path.join(kvdtest.ROOT, "build-asan", "daemon", "kvd"))
TIME = kvdtest.seconds(2)
VERBS = ("noread", "sqfull", "scribble", "sqes", "packets", "halves", "seals", "punch", "keep",
         "uffd", "locks", "fds", "deaf", "connects", "flip", "bells", "positions")
GREEDY = os.path.join(kvdtest.BUILD, "tests", "system", "greedy")
# As tests/system/test_neighbours.py has them; some at a time, of one user.
GREEDY_VERBS = (("nops", "lists", "keeps"), ("texts", "opens", "waits"),
                ("ids", "closes", "scores"), ("forks", "stats", "queues"),
                ("decodes", "unread", "takesback"), ("draws", "flushes", "waiters"),
                ("floods", "longtexts", "silent"))
REPORT = re.compile(r"Sanitizer|runtime error:|Assertion")
ASK = ("generate", "--raw", "--json", "--max-tokens", "8", "--temperature", "0.8", "--seed", "3",
       "Once upon a time there was")
# Nothing of the sandbox has to be loosened for sanitizers.
DROP_IN = """
# An error ends the process, with its report in the journal. Leaks are looked for outside:
# that takes ptrace, which the filter refuses.
Environment=ASAN_OPTIONS=detect_leaks=0:abort_on_error=1
Environment=UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:abort_on_error=1
"""
# A step lasts ten times as long as without sanitizers, and the neighbour waits for it.
SHORT_STEPS = "[scheduler]\nmax_num_batched_tokens = 64\nmax_num_seqs = 32\n[quota]\nmax_running = 32\n"

want = None


def reports(since):
    return [e["MESSAGE"] for e in service.entries(since) if REPORT.search(str(e["MESSAGE"]))]


def at_rest(folder):
    """Descriptors in a folder of /proc, once the daemon's only client is the one that asks."""
    def even():
        s = service.stats()
        cache = s["cache"]
        return (s["clients"] == 1 and not s["requests"]["running"] + s["requests"]["waiting"] and
                cache["blocks_free"] + cache["blocks_cached"] == cache["blocks_total"])

    until(even, 60, lambda: f"nothing active is left: {service.stats()}")
    return min(len(os.listdir(folder)) for _ in range(10) if not time.sleep(0.03))


class Neighbour:
    """alice asks the same thing again and again, and compares."""

    def __init__(self):
        self.stop = threading.Event()
        self.count = 0
        self.problem = None
        self.thread = threading.Thread(target=self.loop)

    def loop(self):
        while not self.stop.is_set():
            try:
                got = json.loads(service.kvctl(*ASK, who="alice").out)
                equal(got["tokens"], want, "the neighbour's tokens")
            except Exception as problem:  # pylint: disable=broad-except
                self.problem = problem
                return
            self.count += 1

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, kind, value, trace):
        self.stop.set()
        self.thread.join()
        if self.problem:
            raise self.problem


@contextlib.contextmanager
def no_report():
    """Nothing is reported meanwhile; what the journal says goes with any failure."""
    since = service.cursor()
    try:
        yield
    finally:
        found = reports(since)
        if found or sys.exc_info()[0]:
            said = "\n".join(str(e["MESSAGE"]) for e in service.entries(since))
            print(f"# --- journal of kvd\n{said[-8000:]}", file=sys.stderr)
        equal(found, [], "reports of the sanitizers")


def unharmed(attack):
    """The same process without a report, with as much in hand as before the attack, and a
    neighbour that was answered all the while."""
    with no_report():
        pid = service.main_pid()
        folder = f"/proc/{service.machine.host_pid(pid)}/fd"
        before = at_rest(folder)
        with Neighbour() as neighbour:
            attack()
            count = neighbour.count
            until(lambda: neighbour.count > count or neighbour.problem, 60,
                  "the neighbour is answered")
        equal(service.main_pid(), pid, "the daemon's process")
        equal(at_rest(folder), before, "descriptors of the daemon")
    print(f"# {neighbour.count} answers to the neighbour")


def libraries():
    """Of the sanitizers, for a tree that has no compiler."""
    out = subprocess.run(["ldd", KVD], stdout=subprocess.PIPE, check=True, encoding="utf-8").stdout
    return re.findall(r"=> (/\S*/lib[a-z]+san\.so\S*)", out)


def test_install():
    """The package, its answer, and the other daemon in its place."""
    global want
    service.test_install()
    service.test_model_fetch()
    want = json.loads(service.kvctl(*ASK, who="alice").out)["tokens"]
    service.machine.sh("cp --remove-destination /sanitized/kvd /usr/libexec/kvd/kvd && "
                       "cp /sanitizers/* /usr/lib/x86_64-linux-gnu/")
    since = service.cursor()
    service.drop_in(DROP_IN)
    service.machine.write(service.CONFIG, SHORT_STEPS)
    with no_report():
        service.systemctl("restart", "kvd")
        service.answers()
    pid = service.machine.host_pid(service.main_pid())
    with open(f"/proc/{pid}/maps", encoding="utf-8") as f:
        assert "libasan" in f.read(), "the daemon has no sanitizer"
    equal(service.entries(since, service.SANDBOX_WEAK), [], "entries that the sandbox is weak")


def test_a_report_is_found():
    """What the others look for is where they look for it."""
    since, pid = service.cursor(), service.main_pid()
    os.kill(service.machine.host_pid(pid), signal.SIGSEGV)
    service.new_daemon(pid, 60)
    assert any("AddressSanitizer: SEGV" in text for text in reports(since)), reports(since)
    service.answers("alice")


def play(verb):
    """Two of bob's, for a while."""
    children = [service.machine.spawn("env", "KVD_SOCKET=/run/kvd/kvd.sock", "/hostile", verb,
                                      str(TIME), str(seed), user=service.user("bob"))
                for seed in (1, 2)]
    for child in children:
        out, err = child.communicate(timeout=TIME + 120)
        equal(child.returncode, 0, f"exit status of the hostile client: {out}{err}")


def play_greedy(verbs):
    """Of a user that has its limits; one that finds them reached has nothing to do (status 1)."""
    children = [service.machine.spawn("env", "KVD_SOCKET=/run/kvd/kvd.sock", "/greedy", verb,
                                      str(TIME), user=service.user("bob")) for verb in verbs]
    for child in children:
        out, err = child.communicate(timeout=TIME + 120)
        assert child.returncode in (0, 1), f"a greedy client: {child.returncode}: {out}{err}"


@limit(600)
def test_greedy():
    for verbs in GREEDY_VERBS:
        print(f"# {' '.join(verbs)}")
        unharmed(lambda verbs=verbs: play_greedy(verbs))


def row(verb):
    @limit(300)
    def test():
        unharmed(lambda: play(verb))

    return test


for name in VERBS:
    globals()[f"test_{name}"] = row(name)


def test_another_process_of_that_id():
    """A connection of alice's whose process id is root's now has alice's rights."""
    def attack():
        child = service.machine.spawn(
            "python3", "/system/samepid.py", "/run/kvd/kvd.sock", "2001",
            service.gid("kvd-clients"), "uid:2002", stdin=subprocess.PIPE)
        line = child.stdout.readline()
        if not line.startswith("{") and child.wait(60) == 77:
            raise Skip(f"process ids cannot be chosen here: {line}")
        equal(json.loads(line), samepid.REFUSED, "what the daemon answered")
        listed = json.loads(service.kvctl("clients", "--json").out)["clients"]
        equal([c["uid"] for c in listed if c["name"] == "samepid"], [2001], "its uid")
        out, err = child.communicate(timeout=60)
        equal(child.returncode, 0, f"exit status: {out}{err}")

    unharmed(attack)


def main():
    for path in (KVD, kvdtest.HOSTILE, GREEDY):
        if not os.access(path, os.X_OK):
            print(f"1..0 # SKIP {path} is not built; ./dev test container does it")
            return
    service.main(globals(), [
        (kvdtest.HOSTILE, "/hostile"),
        (GREEDY, "/greedy"),
        (os.path.dirname(KVD), "/sanitized"),
        (os.path.dirname(samepid.__file__), "/system"),
        *((path, f"/sanitizers/{os.path.basename(path)}") for path in libraries())])


if __name__ == "__main__":
    main()
