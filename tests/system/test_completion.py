# SPDX-License-Identifier: MIT
"""Completion of kvctl's command line, as bash does it: verbs, options, names."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

import kvdtest
from kvdtest import Daemon, Skip, equal

SCRIPT = os.path.join(kvdtest.ROOT, "etc", "completions", "kvctl.bash")


def complete(line, **env):
    """What bash offers at the end of a command line."""
    words = line.split(" ")
    array = " ".join(f"'{w}'" for w in words)
    script = (f"source {SCRIPT}; COMP_WORDS=({array}); COMP_CWORD={len(words) - 1}; _kvctl; "
              "printf '%s\\n' \"${COMPREPLY[@]}\"")
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(kvdtest.KVCTL, os.path.join(folder, "kvctl"))
        path = folder + ":" + os.environ["PATH"]
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=30,
                              env={**os.environ, "PATH": path, **env}, check=True)
    equal(done.stderr, "", "messages")
    return set(done.stdout.split())


def need_bash():
    if not shutil.which("bash"):
        raise Skip("no bash here")


def test_verbs_and_options():
    """Every verb of the table, and every option of a verb, out of kvctl's own help."""
    need_bash()
    with open(os.path.join(kvdtest.ROOT, "client", "kvctl", "main.c"), encoding="utf-8") as f:
        verbs = set(re.findall(r'^\t\{"([a-z]+)", cmd_', f.read(), re.M))
    equal(complete("kvctl "), verbs, "verbs")
    equal(complete("kvctl tok"), {"tokenize"}, "verbs with tok")
    equal(complete("kvctl -s /x --timeout 3 tok"), {"tokenize"}, "verbs after options")
    assert {"--max-tokens", "--seed", "--json", "--socket"} <= complete("kvctl generate --")
    equal(complete("kvctl generate --max"), {"--max-tokens"}, "options with --max")
    equal(complete("kvctl top --sort "), {"id", "client", "pid", "user", "state", "tok", "ttft", "hit",
                                          "blocks", "wait", "err"}, "keys of top")
    equal(complete("kvctl model "), {"fetch"}, "what follows model")
    assert "flush" in complete("kvctl cache "), complete("kvctl cache ")


def test_names():
    """Models and domains from the daemon; nothing, and no message, where there is none."""
    need_bash()
    equal(complete("kvctl cache flush --model ", KVD_SOCKET="/nonexistent"), set(), "names")
    with Daemon({"cache.kv_cache_memory": "32M", "model.name": "tiny"}) as d:
        equal(complete("kvctl cache flush --model ", KVD_SOCKET=d.socket), {"tiny"}, "models")
        equal(complete("kvctl cache flush --domain uid", KVD_SOCKET=d.socket),
              {f"uid:{os.getuid()}"}, "domains")


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
