# SPDX-License-Identifier: MIT
"""What the lint scripts know about C: functions, where each is defined, and who names it.

No preprocessor and no compiler, so that a tree without a build is enough: a line of code is
read as tokens, a function is a name with parameters and a body outside all braces. All
branches of an #if are read. A static function is known in its file, one of a header where the
header is included; of other functions with one name, which two programs may have, the one in
the nearest folder is meant. Names that macros make (the kernels' bundles) are not seen.
"""
import os
import re
import subprocess

TOKEN = re.compile(r"""
    (?P<comment>/\*.*?\*/|//[^\n]*)
  | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
  | (?P<name>[A-Za-z_]\w*)
  | (?P<number>\.?\d(?:[\w.]|[eEpP][+-])*)
  | (?P<space>\s+)
  | (?P<arrow>->)
  | (?P<other>.)""", re.X | re.S)
DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(\w+)(.*)$", re.S)
# Where installed headers lie, by the first part of their name.
INSTALLED = {"kvclient.h": "client/include/", "kvd": "ipc/include/"}
# What makes a function one of its file alone; the macro is of kernels/x86/.
STATIC = {"static", "INLINE"}
# Before the name of a member or a type.
NOT_A_FUNCTION = {".", "->", "struct", "union", "enum", "goto"}
KEYWORDS = {"if", "for", "while", "switch", "return", "sizeof", "do", "else", "case", "typeof",
            "__typeof__", "_Alignof", "alignof", "_Static_assert", "static_assert", "defined",
            "__attribute__", "_Generic", "__asm__", "asm"}


def tracked(root, *patterns):
    """Files that git tracks or would, sorted, that exist."""
    out = subprocess.run(
        ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard",
         *patterns], check=True, stdout=subprocess.PIPE).stdout.decode()
    return sorted({name for name in out.split("\0")
                   if name and os.path.isfile(os.path.join(root, name))})


def product(root):
    """The C files and headers that are installed or linked into what is."""
    return [name for name in tracked(root, "*.c", "*.h") if not name.startswith("tests/")]


class Source:
    """One file: includes (as written), functions defined, names used.

    functions: {name: is_static}
    calls:     {function or "": {names before a parenthesis in its body}}
    uses:      {function or "": {all names in it}}; "" is what stands outside of functions,
               initializers and the bodies of macros
    """

    def __init__(self, root, name):
        self.name = name
        self.includes = []
        self.functions = {}
        self.calls = {"": set()}
        self.uses = {"": set()}
        with open(os.path.join(root, name), encoding="utf-8") as f:
            self._read(f.read())

    def _names(self, tokens, inside):
        calls = self.calls.setdefault(inside, set())
        uses = self.uses.setdefault(inside, set())
        for i, (kind, text) in enumerate(tokens):
            before = tokens[i - 1][1] if i else ""
            if kind != "name" or text in KEYWORDS or before in NOT_A_FUNCTION:
                continue
            uses.add(text)
            if i + 1 < len(tokens) and tokens[i + 1][1] == "(":
                calls.add(text)

    def _directive(self, line):
        found = DIRECTIVE.match(line)
        if not found:
            return
        word, rest = found.groups()
        if word == "include":
            self.includes.append(rest.strip())
        elif word == "define":
            self._names(lex(rest)[1:], "")

    def _read(self, text):
        # Comments go first, so that a directive within one is none; strings stay, for
        # "/*" may stand in them.
        text = "".join(
            re.sub(r"[^\n]", "", m.group()) + " " if m.lastgroup == "comment" else m.group()
            for m in TOKEN.finditer(text))
        code = []
        for line in text.replace("\\\n", " ").split("\n"):
            if line.lstrip().startswith("#"):
                self._directive(line)
            else:
                code.append(line)
        self._functions(lex("\n".join(code)))

    def _functions(self, tokens):
        depth = 0
        head = []
        body = []
        inside = ""
        for token in tokens:
            text = token[1]
            if depth:
                body.append(token)
                depth += {"{": 1, "}": -1}.get(text, 0)
                if depth == 0:
                    self._names(body, inside)
                    if inside:
                        head, inside = [], ""
                continue
            if text == "{":
                inside = self._defined(head)
                depth, body = 1, []
                if not inside:
                    self._names(head, "")
            elif text == ";":
                self._names(head, "") if "=" in [t for _, t in head] else None
                head = []
            else:
                head.append(token)

    def _defined(self, head):
        """The name of the function whose head this is, or ""."""
        texts = [text for _, text in head]
        if "=" in texts or "typedef" in texts:
            return ""
        depth = 0
        for i, (kind, text) in enumerate(head):
            if text == "(" and depth == 0 and i and head[i - 1][0] == "name" \
                    and head[i - 1][1] not in KEYWORDS:
                name = head[i - 1][1]
                if texts[closing(texts, i) + 1:][:1] == ["("]:
                    # BUNDLE(name)(parameters), in a header that is a template
                    name += "()"
                self.functions[name] = not STATIC.isdisjoint(texts[:i])
                self._names(head[i + 1:], name)
                return name
            depth += {"(": 1, ")": -1}.get(text, 0)
        return ""


def lex(text):
    return [(m.lastgroup, m.group()) for m in TOKEN.finditer(text)
            if m.lastgroup not in ("space", "comment", "string")]


def closing(texts, at):
    """Where the parenthesis that opens at @at closes."""
    depth = 0
    for i in range(at, len(texts)):
        depth += {"(": 1, ")": -1}.get(texts[i], 0)
        if depth == 0:
            return i
    return len(texts)


class Tree:
    """All sources of a list, and where each function is."""

    def __init__(self, root, names):
        self.sources = {name: Source(root, name) for name in names}
        self._home = {}
        self._seen = {}
        for name, source in self.sources.items():
            for function, is_static in source.functions.items():
                if not is_static:
                    self._home.setdefault(function, []).append(name)

    def included(self, name):
        """The files of the list that @name includes itself."""
        paths = (INSTALLED.get(text.strip("<>\"").split("/")[0], "") + text.strip("<>\"")
                 for text in self.sources[name].includes)
        return [path for path in paths if path in self.sources]

    def sees(self, name):
        """All files that come with @name, itself too."""
        if name not in self._seen:
            self._seen[name] = seen = {name}
            todo = [name]
            while todo:
                new = set(self.included(todo.pop())) - seen
                seen |= new
                todo += new
        return self._seen[name]

    def find(self, name, function):
        """The file that defines what @name means by @function, or None."""
        if function in self.sources[name].functions:
            return name
        for header in sorted(self.sees(name)):
            if function in self.sources[header].functions:
                return header
        homes = self._home.get(function, [])
        return max(homes, key=lambda home: len(os.path.commonprefix([home, name])), default=None)
