# SPDX-License-Identifier: MIT
"""The installed package as a service: units, sockets, rights, sandbox, restarts, journal.

One container is booted for all tests; each begins with the service as it was installed,
with the default model, and no drop-in. Environment: KVD_DEBS (folder of the packages),
KVD_CONTAINER_TREES and KVD_CONTAINER_TREE (folder and name of the root tree), KVD_MODEL.
"""
import ctypes
import glob
import json
import os
import re
import signal
import socket
import statistics
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))

import kvdtest  # noqa: E402
from kvdtest import Skip, equal, limit, rounds, until  # noqa: E402
from nsboot import Container  # noqa: E402

TREE_NAME = os.environ.get("KVD_CONTAINER_TREE", "bookworm")
TREE = os.path.join(os.environ.get("KVD_CONTAINER_TREES") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "kvd", "containers"),
    TREE_NAME)
DEBS = os.environ.get("KVD_DEBS", os.path.join(kvdtest.ROOT, "build-deb"))
MODEL = "/var/lib/kvd/models/SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTION = ("generate", "--max-tokens", "20", "What is the capital of France?")
ANSWER = "The capital of France is Paris."
DROP_IN = "/run/systemd/system/kvd.service.d/60-test.conf"
CONFIG = "/etc/kvd/kvd.conf.d/60-test.conf"

STARTED = "e1c30038ee3446ccbb9b9c5c75f969da"
CONFIG_BAD = "9d8671a3dd334812881e7728d5748e7c"
CONFIG_RELOADED = "c0ffe2d68b734e50a393f840988f60c0"
IO_URING_REFUSED = "3ae78eafce75463281abb1b6a833bade"
MODEL_BAD = "d2415b26edda4a79964ada0cf547116c"
CLIENT_PROTOCOL = "c3c5cb7897264ce0b62fd82aae9b65b1"
CLIENT_REFUSED = "5099896cc7a74b1e8da5ff980e61edaf"
SANDBOX_WEAK = "9d6f5c029f224c42b9876c0100f672f3"
RLIMIT_SMALL = "ffea88df22e047cca0459196b5016074"
WARM_START = "2103b159a0464c35866dd0fbbb5e0ec9"
COLD_START = "13990343a3d54dfe90c81e26a4c2b46f"
AFFINITY_REFUSED = "d05f577ad414454c87d578fca5f1f970"
STEP_STALLED = "9c14281a5bbd4e3ca17e9a23bb102c8e"

# name: (uid, groups)
USERS = {"alice": (2001, "kvd-clients"), "bob": (2002, "kvd-clients"),
         "carol": (2003, "kvd-admin"), "dave": (2004, None)}

machine = None


def packages():
    debs = [p for name in ("kvd", "libkvclient0") for p in glob.glob(f"{DEBS}/{name}_*.deb")]
    return sorted(debs)


def user(name):
    """setpriv's options for one of USERS, as of a login."""
    uid, group = USERS[name]
    groups = f"--groups={gid(group)}" if group else "--clear-groups"
    return [f"--reuid={uid}", f"--regid={uid}", groups]


def gid(group):
    return machine.run("getent", "group", group).out.split(":")[2]


def show(prop, unit="kvd.service"):
    return machine.run("systemctl", "show", "-P", prop, unit).out.strip()


def main_pid():
    return int(show("MainPID"))


def systemctl(*args, status=0):
    return machine.run("systemctl", *args, status=status)


def kvctl(*args, status=0, who=None, text=""):
    return machine.run("kvctl", *args, status=status, user=user(who) if who else None, text=text)


def stats(who=None):
    return json.loads(kvctl("stats", "--json", who=who).out)


def cursor():
    machine.run("journalctl", "--sync")
    return machine.sh("journalctl -n 0 --show-cursor | sed -n 's/^-- cursor: //p'").out.strip()


def entries(since, message_id=None):
    """Entries of the unit since a cursor, as dicts of fields."""
    machine.run("journalctl", "--sync")
    # Matches are made here: with some, journalctl leaves out the first entry after a cursor.
    out = machine.run("journalctl", "-o", "json", "--no-pager", f"--after-cursor={since}").out
    found = [json.loads(line) for line in out.splitlines() if line]
    return [e for e in found if e.get("_SYSTEMD_UNIT") == "kvd.service" and
            (not message_id or e.get("MESSAGE_ID") == message_id)]


def one_entry(since, message_id, needle=""):
    found = entries(since, message_id)
    equal(len(found), 1, f"entries of {message_id}: {[e['MESSAGE'] for e in found]}")
    assert needle in found[0]["MESSAGE"], found[0]["MESSAGE"]
    return found[0]


def drop_in(text):
    machine.write(DROP_IN, "[Service]\n" + text)
    systemctl("daemon-reload")


def fresh():
    """The service as it was installed, running, with its model."""
    machine.run("rm", "-f", DROP_IN, CONFIG)
    systemctl("daemon-reload")
    systemctl("reset-failed")
    systemctl("restart", "kvd.socket", "kvd-admin.socket", "kvd.service")
    answers()


def answers(who=None):
    equal(kvctl(*QUESTION, who=who).out.strip(), ANSWER, "the answer")


def new_daemon(old, timeout=30):
    """The process that has taken the place of another one, once it serves."""
    def other():
        pid = main_pid()
        return pid if pid not in (0, old) and show("ActiveState") == "active" else None

    return until(other, timeout, lambda: f"a new daemon; the unit is {show('ActiveState')}")


def shm():
    return machine.run("ls", "-la", "/dev/shm").out


def is_old_news(line):
    """A key of kvd.service that systemd knows from 254 on, and passes over before."""
    return TREE_NAME == "bookworm" and "FileDescriptorStorePreserve" in line


# --- tests


def test_install():
    """What the package makes: users, folders, sockets, a daemon without a model."""
    machine.run("dpkg", "-i", *[f"/debs/{os.path.basename(p)}" for p in packages()], timeout=300)
    for name, (uid, group) in USERS.items():
        more = ["-G", group] if group else []
        machine.run("useradd", "-u", str(uid), *more, name)
    equal(systemctl("is-active", "kvd.service", "kvd.socket", "kvd-admin.socket").out.split(),
          ["active"] * 3, "units after the installation")
    listing = machine.sh("stat -c '%A %U:%G %n' /run/kvd /run/kvd/kvd.sock /run/kvd/admin.sock "
                         "/var/lib/kvd /var/lib/kvd/models /var/cache/kvd").out
    equal(listing.splitlines(), [
        "drwxr-xr-x root:root /run/kvd",
        "srw-rw---- root:kvd-clients /run/kvd/kvd.sock",
        "srw-rw---- root:kvd-admin /run/kvd/admin.sock",
        "drwx------ kvd:kvd /var/lib/kvd",
        "drwxr-xr-x root:root /var/lib/kvd/models",
        "drwx------ kvd:kvd /var/cache/kvd"], "folders and sockets")
    done = machine.run("systemd-analyze", "verify", "--man=no", "kvd.service", "kvd.socket",
                       "kvd-admin.socket", "kvd.slice")
    complaints = [line for line in (done.out + done.err).splitlines()
                  if "kvd" in line and not is_old_news(line)]
    equal(complaints, [], "complaints about the units")
    equal(show("Slice"), "kvd.slice", "slice")
    # systemd's own complaints about the units: unknown keys and the like.
    log = machine.sh("journalctl -b --no-pager | grep -iE 'kvd.*(unknown|ignoring|failed)'",
                     status=None).out
    equal([line for line in log.splitlines() if not is_old_news(line)], [],
          "complaints in the journal")


def test_without_a_model():
    """It starts, says so, serves what needs no model, and names the remedy."""
    assert "no model" in show("StatusText") and "kvctl model fetch" in show("StatusText"), \
        show("StatusText")
    equal(json.loads(kvctl("latency", "--count", "20", "--json").out)["count"], 20, "NOPs")
    equal(stats()["model"]["arch"], "", "architecture")
    kvctl("clients")
    done = kvctl("generate", "Hello", status=5)
    assert "model" in done.err, done.err
    kvctl("tokenize", "Hello", status=5)


def test_model_fetch():
    """A model from a file that is here; a wrong one is refused; then it answers."""
    machine.run("cp", "/etc/passwd", "/tmp/no-model.gguf")
    done = kvctl("model", "fetch", "--from", "/tmp/no-model.gguf", status=1)
    assert "SHA-256" in done.err, done.err
    done = machine.run("kvctl", "model", "fetch", user=user("alice"), status=4)
    assert "Permission denied" in done.err, done.err
    kvctl("model", "fetch", "--from", "/model/default.gguf")
    assert MODEL in machine.run("cat", "/etc/kvd/kvd.conf.d/50-default-model.conf").out
    again = kvctl("model", "fetch")
    assert "as it should be" in again.err, again.err
    systemctl("restart", "kvd")
    answers()
    until(lambda: re.search(r"^serves \S.* on cpu-\S+$", show("StatusText")), 15,
          lambda: f"status {show('StatusText')!r}")


def test_rights():
    """Two users in kvd-clients, one in kvd-admin, one in none: what the manual says."""
    fresh()
    answers("alice")
    answers("bob")
    for socket_path in ("/run/kvd/kvd.sock", "/run/kvd/admin.sock"):
        equal(kvctl("-s", socket_path, "status", who="dave", status=4).out, "", "for dave")
    kvctl("-s", "/run/kvd/admin.sock", "status", who="alice", status=4)
    # In kvd-admin only: by the administrators' socket, which kvctl takes by itself.
    kvctl("-s", "/run/kvd/kvd.sock", "status", who="carol", status=4)
    kvctl("status", who="carol")
    alice = machine.spawn("kvctl", "latency", "--count", "1000", "--interval", "100",
                          user=user("alice"))
    try:
        until(lambda: stats()["clients"] >= 2, 10, "alice is connected")

        def seen_by(who):
            listed = json.loads(kvctl("clients", "--json", who=who).out)["clients"]
            return {c["uid"] for c in listed}

        equal(seen_by("bob"), {2002}, "uids that bob sees")
        assert {2001, 2003} <= seen_by("carol"), seen_by("carol")
        kvctl("cache", "flush", "--yes", "--domain", "uid:2001", who="bob", status=4)
        kvctl("cache", "flush", "--yes", "--domain", "uid:2002", who="bob")
        kvctl("cache", "flush", "--yes", "--domain", "uid:2001", who="carol")
    finally:
        machine.kill(alice)


def test_users_share_nothing():
    """The daemon sees the real uids: the same prompt of two users is no hit."""
    fresh()
    prompt = "The quick brown fox jumps over the lazy dog. " * 8

    def cached(who):
        done = kvctl("generate", "--raw", "--json", "--max-tokens", "2", prompt, who=who)
        return json.loads(done.out)["cached_tokens"]

    equal(cached("alice"), 0, "tokens cached for alice at first")
    equal(cached("bob"), 0, "tokens cached for bob at first")
    assert cached("alice") > 32, "no hit for alice"


def test_socket_activation():
    """The first client starts the daemon, by either socket; so does the first after a stop."""
    fresh()
    for socket_path in ("/run/kvd/kvd.sock", "/run/kvd/admin.sock"):
        machine.sh("systemctl stop kvd.service 2>&1")
        equal(show("ActiveState"), "inactive", "state after stop")
        kvctl("-s", socket_path, "latency", "--count", "3")
        equal(show("ActiveState"), "active", "state after the first client")
        # Whichever came first, each socket means what it should.
        features = [json.loads(kvctl("-s", path, "clients", "--json", who=who).out)
                    for path, who in (("/run/kvd/kvd.sock", "alice"),
                                      ("/run/kvd/admin.sock", "carol"))]
        equal(len(features[0]["clients"]), 1, "clients that alice sees")
    answers("alice")


def exposure():
    score = machine.run("systemd-analyze", "security", "--no-pager", "kvd.service").out
    return float(re.search(r"exposure level for kvd.service: ([\d.]+)", score).group(1)), score


def test_sandbox():
    """Nothing that the unit forbids is permitted, and the score is as measured before."""
    since = cursor()
    fresh()
    equal(entries(since, SANDBOX_WEAK), [], "entries that say the sandbox is weak")
    unit = machine.run("systemctl", "cat", "kvd.service").out
    unit = re.sub(r"(?m)^(ExecStart=\S+).*", r"\1 --selftest-sandbox", unit)
    unit = re.sub(r"(?m)^(Type=).*", r"\1oneshot", unit)
    unit = re.sub(r"(?m)^(WatchdogSec|ExecReload|Sockets|Restart|Requires|After|RestartSec)=.*\n",
                  "", unit)
    machine.write("/run/systemd/system/kvd-selftest.service", unit)
    systemctl("daemon-reload")
    done = systemctl("start", "kvd-selftest.service", status=None)
    text = machine.run("journalctl", "-u", "kvd-selftest", "-o", "cat", "--no-pager").out
    equal(done.status, 0, f"status of the self-test: {text}")
    assert text.count("refused ") >= 15 and "PERMITTED" not in text, text
    machine.run("rm", "/run/systemd/system/kvd-selftest.service")
    got, score = exposure()
    assert got <= 0.4, score
    # The suite vm shows why: strict takes /dev/null away where device rules bind.
    equal(show("DevicePolicy"), "closed", "device policy")
    # No port, not even a socket of a network family.
    tables = machine.sh("for table in tcp udp tcp6 udp6; do "
                        "cat /proc/$(systemctl show -P MainPID kvd)/net/$table; done",
                        status=None).out
    assert "local_address" in tables, f"no table could be read: {tables}"
    equal([line for line in tables.splitlines() if "local_address" not in line], [],
          "sockets of a network")


def test_io_uring():
    """By io_uring, or by epoll where a call of it is refused; no further ring in either case."""
    for refused in ("", "io_uring_setup", "io_uring_register", "io_uring_enter"):
        fresh()
        since = cursor()
        drop_in(f"SystemCallFilter=~{refused}\n" if refused else "# nothing\n")
        systemctl("restart", "kvd")
        one_entry(since, STARTED, "with epoll" if refused else "with io_uring")
        equal(len(entries(since, IO_URING_REFUSED)), int(bool(refused)), "entries about epoll")
        equal(entries(since, SANDBOX_WEAK), [], "entries that say the sandbox is weak")
        files = machine.sh("ls -l /proc/$(systemctl show -P MainPID kvd)/fd").out
        equal(files.count("[io_uring]"), int(not refused), "rings of the daemon")
        answers()


def test_affinity():
    """[cpu] affinity without its system call, by drop-ins, and what these cost; CPUAffinity=."""
    fresh()
    first = str(min(os.sched_getaffinity(0)))

    def masks():
        """Of the threads that compute: not the loop's, nor those that spare it a wait."""
        pid = show("MainPID")
        text = machine.sh(f"cd /proc/{pid}/task && grep -LE '^kvd-(encoder|pages)$' */comm | "
                          f"grep -v '^{pid}/' | sed s/comm/status/ | xargs grep Cpus_allowed_l").out
        return {line.split()[-1] for line in text.splitlines()}

    def row():
        checks = json.loads(kvctl("doctor", "--json").out)["checks"]
        return [(c["state"], c["fix"]) for c in checks if c["name"] == "affinity"]

    everywhere = masks()
    machine.write(CONFIG, f"[cpu]\naffinity = {first}\n")
    since = cursor()
    systemctl("restart", "kvd")
    one_entry(since, AFFINITY_REFUSED, "50-affinity.conf")
    (state, fix), = row()
    assert state == "warn" and "50-affinity.conf" in fix, (state, fix)
    equal(masks(), everywhere, "CPUs of the threads, refused")
    answers()

    for name, most in (("50-affinity.conf", 0.5), ("50-gpu.conf", 0.7)):
        drop_in(machine.run("cat", f"/usr/share/kvd/{name}").out.split("[Service]")[1])
        since = cursor()
        systemctl("restart", "kvd")
        got, score = exposure()
        assert got <= most, score
        equal(entries(since, AFFINITY_REFUSED), [], f"refusals with {name}")
        equal(entries(since, SANDBOX_WEAK), [], f"complaints about the sandbox with {name}")
        equal((row(), masks()), ([], {first}), f"with {name}")
        answers()

    fresh()
    drop_in(f"CPUAffinity={first}\n")
    systemctl("restart", "kvd")
    equal((row(), masks()), ([], {first}), "with CPUAffinity=")
    answers()


def test_weak_sandbox_is_named():
    """Each setting that a drop-in loosens is named, in one entry; the daemon serves."""
    fresh()
    since = cursor()
    drop_in("MemoryDenyWriteExecute=no\nRestrictAddressFamilies=AF_UNIX AF_INET\n"
            "SystemCallFilter=process_vm_readv\nProtectHome=no\n")
    systemctl("restart", "kvd")
    text = one_entry(since, SANDBOX_WEAK)["MESSAGE"]
    for what in ("MemoryDenyWriteExecute=", "RestrictAddressFamilies=", "reach into other processes",
                 "ProtectHome="):
        assert what in text, text
    for what in ("NoNewPrivileges=", "NoExecPaths=", "ProtectSystem="):
        assert what not in text, text
    answers()


def test_short_of_everything():
    """Little memlock, few files, no io_uring, a small or no /dev/shm (cases 27, 44)."""
    fresh()
    since = cursor()
    machine.run("mount", "-o", "remount,size=64M", "/dev/shm")
    machine.write(CONFIG, "[cpu]\naffinity = 0-63\nhuge_pages = never\n")
    drop_in("LimitMEMLOCK=4K\nLimitNOFILE=256\nSystemCallFilter=~io_uring_setup\n"
            "InaccessiblePaths=\n")
    systemctl("restart", "kvd")
    one_entry(since, IO_URING_REFUSED, "epoll")
    one_entry(since, RLIMIT_SMALL, "LimitNOFILE=")
    answers()
    children = [machine.spawn("kvctl", "generate", "--raw", "--max-tokens", "30", f"Story {i}:")
                for i in range(4)]
    for child in children:
        out, err = child.communicate(timeout=120)
        equal(child.returncode, 0, f"client under small limits: {err}")
        assert out.strip(), "an empty answer"


def test_reload():
    """What may change changes at once; the rest is named; mistakes change nothing."""
    fresh()
    pid = main_pid()
    since = cursor()
    machine.write(CONFIG, "[daemon]\nlog_level = debug\nmax_clients = 1\n"
                          "[cache]\nkv_cache_memory = 100M\n")
    systemctl("reload", "kvd")
    # the command ends when the signal is sent
    until(lambda: entries(since, CONFIG_RELOADED), 10, "the reload is logged")
    one_entry(since, CONFIG_RELOADED, "[cache] kv_cache_memory")
    equal(main_pid(), pid, "process after the reload")
    holder = machine.spawn("kvctl", "latency", "--count", "100", "--interval", "200",
                           user=user("alice"))
    try:
        until(lambda: any("2001" == e.get("KVD_UID") for e in entries(since)), 10,
              "debug entry of alice's connection")
        done = kvctl("status", who="bob", status=7)
        assert "max_clients" in done.err, done.err
        # An administrator gets in all the same.
        kvctl("status", who="carol")
    finally:
        machine.kill(holder)
    entry = one_entry(since, CLIENT_REFUSED)
    equal((entry["KVD_UID"], entry["_UID"] != "0"), ("2002", True), "fields")
    since = cursor()
    machine.write(CONFIG, "[daemon]\nmax_clients = many\n")
    systemctl("reload", "kvd", status=1)
    equal((main_pid(), show("ActiveState")), (pid, "active"), "daemon after a bad reload")
    one_entry(since, CONFIG_BAD, "60-test.conf:2")
    machine.run("rm", CONFIG)
    since = cursor()
    systemctl("reload", "kvd")
    until(lambda: entries(since, CONFIG_RELOADED), 10, "the second reload is logged")
    answers("bob")


def test_bad_configuration_at_the_start():
    """One entry that names file and line, no second attempt, and mended it starts."""
    fresh()
    since = cursor()
    machine.write(CONFIG, "[cache]\nblock_sise = 16\n")
    systemctl("restart", "kvd", status=1)
    equal((show("ActiveState"), show("ExecMainStatus"), show("NRestarts")),
          ("failed", "78", "0"), "state, exit status, restarts")
    one_entry(since, CONFIG_BAD, "block_size")
    machine.run("rm", CONFIG)
    systemctl("start", "kvd")
    answers()


@limit(120)
def test_what_comes_late():
    """A model that is not there yet: it is tried again until it is (case 58)."""
    fresh()
    since = cursor()
    machine.write(CONFIG, "[model]\npath = /var/lib/kvd/models/late.gguf\n")
    systemctl("restart", "kvd", status=1)
    until(lambda: len(entries(since, MODEL_BAD)) >= 2, 30, "a second attempt")
    assert "late.gguf" in entries(since, MODEL_BAD)[0]["MESSAGE"]
    machine.run("ln", MODEL, "/var/lib/kvd/models/late.gguf")
    until(lambda: show("ActiveState") == "active", 30, "the daemon serves")
    answers()
    assert stats()["backend"].startswith("cpu-"), stats()["backend"]
    machine.run("rm", "/var/lib/kvd/models/late.gguf")


def test_restart():
    """systemctl restart and daemon-reexec: right answers afterwards, clients wait."""
    fresh()
    for what in (["restart", "kvd"], ["daemon-reexec"], ["restart", "kvd.socket", "kvd"]):
        systemctl(*what)
        answers("alice")
    # Who connects while it restarts waits in the socket.
    pid = main_pid()
    systemctl("--no-block", "restart", "kvd")
    answers("alice")
    assert main_pid() != pid, "the same process"


def ask_again(generation, cached, want, what):
    """The daemon of that generation, the same tokens as before, and hits or none."""
    equal(stats()["generation"], generation, f"generation after {what}")
    got = json.loads(kvctl(*LONG_PROMPT, who="alice").out)
    equal(got["tokens"], want["tokens"], f"tokens after {what}")
    assert (got["cached_tokens"] > 0) == cached, f"{got['cached_tokens']} hits after {what}"


def ends():
    """Ways of the daemon's end, after each of which the service manager starts it again."""
    def by_signal(sig, patience=30):
        pid = main_pid()
        os.kill(machine.host_pid(pid), sig)
        new_daemon(pid, patience)

    def reexec():
        systemctl("daemon-reexec")
        by_signal(signal.SIGKILL)

    return {"systemctl restart": lambda: systemctl("restart", "kvd"),
            "kill -9": lambda: by_signal(signal.SIGKILL),
            "abort": lambda: by_signal(signal.SIGABRT),
            "the watchdog": lambda: by_signal(signal.SIGSTOP),
            "daemon-reexec and kill -9": reexec}


LONG_PROMPT = ("generate", "--raw", "--json", "--max-tokens", "8", "Once upon a time " * 60)


@limit(300)
def test_warm_restart():
    """Each row of the table: the pool is back, tokens are right, the journal says so once."""
    fresh()
    drop_in("WatchdogSec=2\n")
    systemctl("restart", "kvd")
    want = json.loads(kvctl(*LONG_PROMPT, who="alice").out)
    generation = stats()["generation"]
    for what, end in ends().items():
        since = cursor()
        end()
        generation += 1
        ask_again(generation, True, want, what)
        one_entry(since, WARM_START, "blocks are back")
        equal(entries(since, COLD_START), [], "entries of a cold start")
    # Stopped: the store is emptied, unless systemd knows better.
    since = cursor()
    systemctl("stop", "kvd")
    systemctl("start", "kvd")
    if TREE_NAME == "bookworm":
        equal(entries(since, WARM_START), [], "entries of a warm start after stop")
        ask_again(stats()["generation"], False, want, "stop and start")
        return
    one_entry(since, WARM_START, "blocks are back")
    ask_again(generation + 1, True, want, "stop and start")
    systemctl("stop", "kvd")
    systemctl("clean", "--what=fdstore", "kvd")
    systemctl("start", "kvd")
    ask_again(stats()["generation"], False, want, "a clean")


@limit(300)
def test_cold_for_a_reason():
    """Another format: one line, and neither a crash nor the old pool again."""
    fresh()
    kvctl(*LONG_PROMPT, who="alice")
    since = cursor()
    machine.write(CONFIG, "[cache]\nkv_cache_dtype = int8\n")
    systemctl("restart", "kvd")
    one_entry(since, COLD_START, "kv_cache_dtype")
    want = json.loads(kvctl(*LONG_PROMPT, who="alice").out)
    equal(want["cached_tokens"], 0, "hits after a cold start")
    since = cursor()
    systemctl("restart", "kvd")
    one_entry(since, WARM_START, "blocks are back")
    ask_again(stats()["generation"], True, want, "the restart after")
    equal(show("NRestarts"), "0", "restarts by the manager")


@limit(300)
def test_kill_daemon():
    """kill -9 of the daemon, again and again: back at once, right answers, nothing left
    behind in /dev/shm (case 26)."""
    fresh()
    machine.write("/run/systemd/system/kvd.service.d/59-limit.conf",
                  "[Unit]\nStartLimitBurst=1000\n")
    systemctl("daemon-reload")
    before, gaps = shm(), []
    for _ in range(rounds(12)):
        client = machine.spawn("kvctl", "generate", "--raw", "--max-tokens", "200", "Once")
        time.sleep(0.15)
        pid = main_pid()
        begin = time.monotonic()
        os.kill(machine.host_pid(pid), signal.SIGKILL)
        kvctl("latency", "--count", "1", who="alice")
        gaps.append(time.monotonic() - begin)
        new_daemon(pid)
        out, err = client.communicate(timeout=60)
        # Its request is lost with the daemon; it is told so, and not left waiting.
        assert client.returncode in (0, 3), f"exit {client.returncode}: {err}"
    answers("alice")
    print(f"# gap over kill -9, with one kvctl: p50 {statistics.median(gaps) * 1000:.0f} ms, "
          f"max {max(gaps) * 1000:.0f} ms, n={len(gaps)}")
    equal(shm(), before, "listing of /dev/shm")
    machine.run("rm", "/run/systemd/system/kvd.service.d/59-limit.conf")


@limit(300)
def test_kill_clients():
    """kill -9 of clients: their neighbour's answer is the same, all is given back (25, 26)."""
    fresh()
    long = ("generate", "--raw", "--json", "--max-tokens", "60", "--seed", "7",
            "--temperature", "0.8", "Once upon a time there was")
    want = json.loads(kvctl(*long, who="bob").out)["tokens"]
    before = shm()
    for i in range(rounds(15)):
        victim = machine.spawn("kvctl", "generate", "--raw", "--ignore-eos", "--max-tokens",
                               "400", f"{i} is", user=user("alice"))
        neighbour = machine.spawn("kvctl", *long, user=user("bob"))
        time.sleep(0.1 + 0.02 * i)
        machine.kill(victim)
        out, err = neighbour.communicate(timeout=60)
        equal(neighbour.returncode, 0, f"neighbour: {err}")
        equal(json.loads(out)["tokens"], want, "the neighbour's tokens")

    def idle():
        s = stats()
        return s["clients"] == 1 and s["requests"]["running"] == 0 and \
            s["cache"]["blocks_active"] == 0

    until(idle, 10, "all that the victims held is given back")
    equal(shm(), before, "listing of /dev/shm")


@limit(120)
def test_watchdog_of_a_stopped_daemon():
    """SIGSTOP: killed and started again; right answers."""
    fresh()
    drop_in("WatchdogSec=2\n")
    systemctl("restart", "kvd")
    pid = main_pid()
    begin = time.monotonic()
    os.kill(machine.host_pid(pid), signal.SIGSTOP)
    new_daemon(pid, 30)
    print(f"# replaced after {time.monotonic() - begin:.1f} s with WatchdogSec=2")
    answers()
    # Idle for longer than any period is no reason (case 19).
    pid = main_pid()
    done = json.loads(kvctl("latency", "--count", "2", "--interval", "5000", "--json").out)
    equal((done["count"], main_pid()), (2, pid), "round trips and process after idle time")


PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207


def stop_worker(pid):
    """Stops one thread of the daemon for good, as a device that hangs would."""
    host = machine.host_pid(pid)
    for tid in os.listdir(f"/proc/{host}/task"):
        with open(f"/proc/{host}/task/{tid}/comm", encoding="ascii") as f:
            if f.read().strip() == "kvd-worker":
                libc = ctypes.CDLL(None, use_errno=True)
                libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p,
                                        ctypes.c_void_p]
                for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
                    if libc.ptrace(request, int(tid), None, None):
                        raise Skip(f"ptrace: {os.strerror(ctypes.get_errno())}")
                os.waitpid(int(tid), 0x40000000)  # __WALL
                return
    raise AssertionError("no thread named kvd-worker")


@limit(120)
def test_watchdog_of_a_stuck_worker():
    """A worker that hangs while the loop turns: noticed, logged once, started again."""
    fresh()
    since = cursor()
    drop_in("WatchdogSec=2\n")
    systemctl("restart", "kvd")
    pid = main_pid()
    stop_worker(pid)
    client = machine.spawn("kvctl", "generate", "--raw", "--max-tokens", "8", "Once")
    # The loop itself still answers.
    kvctl("latency", "--count", "3")
    new_daemon(pid, 60)
    one_entry(since, STEP_STALLED, "no progress")
    client.communicate(timeout=60)
    equal(client.returncode, 3, "exit status of the client whose daemon went away")
    answers()


def hello(version):
    """A handshake by hand, from the host. Return: type, status and text of the reply."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.settimeout(10)
        s.connect(f"/proc/{machine.leader}/root/run/kvd/kvd.sock")
        s.send(struct.pack("<IHHIiIIQ64s", 16 + 16 + 64, 1, 0, 1, 0, 0x3144564b, version, 0,
                           b"test"))
        got = s.recv(65536)
    _, kind, _, _, status = struct.unpack_from("<IHHIi", got)
    return kind, status, got[24:].split(b"\0", 1)[0].decode(errors="replace")


def test_another_version():
    """A client of another ABI gets a clear refusal, and costs nobody else (case 43)."""
    fresh()
    kind, status, _ = hello(1)
    equal((kind, status), (0x8001, 0), "reply to the right version")
    for version in (0, 2, 99):
        kind, status, text = hello(version)
        equal(kind, 0xfffd, f"reply to version {version}")
        assert status < 0 and "version" in text, (status, text)
    answers()


def test_journal():
    """Fields of an entry, the catalog's text for it, and nothing of a prompt."""
    fresh()
    since = cursor()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.connect(f"/proc/{machine.leader}/root/run/kvd/kvd.sock")
        s.send(b"nonsense\nKVD_UID=77")
        until(lambda: entries(since, CLIENT_PROTOCOL), 10, "an entry about the bad packet")
    entry = one_entry(since, CLIENT_PROTOCOL)
    equal((entry["KVD_UID"], entry["PRIORITY"], entry["SYSLOG_IDENTIFIER"]), ("0", "4", "kvd"),
          "fields")
    assert int(entry["KVD_CLIENT"]) > 0 and entry["CODE_FUNC"] == "session_fault", entry
    text = machine.sh(f"journalctl -x --no-pager MESSAGE_ID={CLIENT_PROTOCOL}").out
    assert "broke the contract" in text and "of user 0 sent" in text, text
    listed = machine.run("journalctl", "--list-catalog", "--no-pager").out
    with open(os.path.join(kvdtest.ROOT, "daemon", "msgid.h"), encoding="utf-8") as f:
        for message_id in re.findall(r'"([0-9a-f]{32})"', f.read()):
            assert message_id in listed, f"{message_id} is not in the catalog"
    kvctl("generate", "--max-tokens", "4", "canary-4711 secret")
    kvctl("tokenize", "canary-4711")
    everything = machine.sh("journalctl -b -o export --no-pager").out
    assert "canary-4711 secret" not in everything, "a prompt is in the journal"


def test_names_that_go():
    """The sockets' names removed or renamed, a second daemon, a user's IPC removed: who is
    connected goes on, and a restart of the sockets mends the rest (cases 28, 29)."""
    fresh()
    running = machine.spawn("kvctl", "latency", "--count", "60", "--interval", "100", "--json",
                            user=user("alice"))
    until(lambda: stats()["clients"] >= 2, 10, "alice is connected")
    machine.run("systemd-run", "-q", "--unit=kvd-second", "--uid=bob", "/usr/libexec/kvd/kvd",
                "--config", "/dev/null", "-o", "daemon.socket=/tmp/second.sock")
    until(lambda: machine.run("test", "-S", "/tmp/second.sock", status=None).status == 0, 20,
          "a second daemon")
    kvctl("-s", "/tmp/second.sock", "latency", "--count", "3", who="bob")
    equal(json.loads(kvctl("-s", "/tmp/second.sock", "stats", "--json", who="bob").out)["clients"],
          1, "clients of the second daemon")
    machine.run("mv", "/run/kvd/kvd.sock", "/run/kvd/other.sock")
    machine.run("rm", "/run/kvd/admin.sock")
    kvctl("-s", "/run/kvd/other.sock", "latency", "--count", "3", who="bob")
    done = kvctl("status", who="bob", status=3)
    assert "systemctl" in done.err, done.err
    # What logind does when the last session of a user ends.
    machine.run("systemd-run", "--wait", "-q", "-p", "User=alice", "-p", "RemoveIPC=yes", "true")
    systemctl("stop", "kvd-second")
    out, err = running.communicate(timeout=60)
    equal(running.returncode, 0, f"alice's client: {err}")
    equal(json.loads(out)["count"], 60, "alice's round trips")
    machine.run("rm", "-f", "/run/kvd/other.sock", "/tmp/second.sock")
    systemctl("restart", "kvd.socket", "kvd-admin.socket", "kvd.service")
    answers("bob")


def test_debian_test():
    """The package's own test, as autopkgtest would run it."""
    fresh()
    with open(os.path.join(kvdtest.ROOT, "etc", "debian", "tests", "service"),
              encoding="utf-8") as f:
        machine.write("/tmp/debian-test", f.read(), 0o755)
    machine.sh("KVD_TEST_MODEL=/model/default.gguf /tmp/debian-test 2>&1")


def test_removal():
    """dpkg --purge: the daemon is stopped, sockets and units are gone; data stays."""
    fresh()
    machine.run("dpkg", "--purge", "kvd", timeout=120)
    equal(machine.run("systemctl", "is-active", "kvd", "kvd.socket", status=None).out.split(),
          ["inactive", "inactive"], "units after the removal")
    equal(machine.run("ls", "/run/kvd").out, "", "what is left in /run/kvd")
    machine.run("test", "-f", MODEL)


def main(tests, binds=()):
    """Boot the container and run the functions of a script, with more folders in it."""
    global machine
    why = None
    if os.geteuid() != 0:
        why = "needs root"
    elif not os.path.exists(os.path.join(TREE, "usr/lib/systemd/systemd")):
        why = f"no root tree at {TREE}; ./dev test container makes it"
    elif len(packages()) != 2:
        why = f"no packages in {DEBS}; ./dev deb builds them"
    elif not os.access(kvdtest.MODEL, os.R_OK):
        why = "no model; ./dev test fetches it"
    if why:
        print(f"1..0 # SKIP {why}")
        return
    try:
        binds = [*binds, (DEBS, "/debs"), (kvdtest.MODEL, "/model/default.gguf")]
        machine = Container(TREE, binds)
    except (OSError, RuntimeError) as error:
        # Where containers may not be nested. A tree that does not boot anywhere would show
        # on machines where they may.
        print(f"1..0 # SKIP no container here: {' '.join(str(error).split())[-200:]}")
        return
    with machine:
        kvdtest.run(tests)


if __name__ == "__main__":
    main(globals())
