"""The Jinja engine against Python's jinja2: the kit's templates, and random ones.

Random templates come from a grammar (expressions, filters, tests, methods, loops, macros, white
space control, ...), always the same ones. For more of them:
    ADDER_JINJA_TEMPLATES=200000 ADDER_JINJA_SEED=7 python -m pytest tests/jinja_difference_test.py
"""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import unittest
import warnings
from datetime import datetime
from pathlib import Path

from cli_support import ADDER, SHARED

try:
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    jinja2 = None

DRIVER = ADDER.parent.parent.parent / "tests/jinja_driver"
KIT = SHARED / "chat_templates"
NOW = datetime(2025, 6, 15, 12, 34, 56)
TEMPLATES = int(os.environ.get("ADDER_JINJA_TEMPLATES", "2000"))
SEED = int(os.environ.get("ADDER_JINJA_SEED", "1"))


def make_environment():
    """jinja2 as transformers sets it up."""

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body
                                          ).set_lineno(line)

        def _render(self, caller):
            return caller()

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = NOW.strftime
    return environment


class Driver:
    """The engine, one request after the other."""

    def __init__(self):
        self.process = subprocess.Popen([str(DRIVER)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)

    def render(self, template: str, variables: dict) -> dict:
        request = json.dumps({"template": template, "variables": variables})
        self.process.stdin.write(request.encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait()


VARIABLES = {
    "s": "Hello, World", "e": "", "u": "Größe ΣΑΣ İ 你好 \U0001f600", "w": "  a b\t c\n\n",
    "m": "line one\n  line two\r\nthree", "h": "<b> & \"q\" 'a'", "p": "%s and %d%%", "n": 3,
    "z": 0, "k": -7, "f": 2.5, "g": -0.1, "big": 1e16, "t": True, "o": None,
    "l": [1, 2, 3], "le": [], "ls": ["b", "A", "c", "a"], "lm": [1, "a", None, 2.0, [3]],
    "d": {"a": 1, "b": {"c": [1, {"x": "y"}]}, "items": 5}, "de": {}, "dn": {"B": 2, "a": 1, "c": 0},
    "messages": [
        {"role": "user", "content": "Hi there", "n": 2},
        {"role": "assistant", "content": None, "n": 1, "tool_calls": [
            {"function": {"name": "f", "arguments": {"x": 1.5, "é": [True, None]}}}]},
        {"role": "User", "content": [{"type": "text", "text": "part"}], "n": 2},
    ],
}


class Grammar:
    """Random templates. Most of what is generated has a sense, some is wrong on purpose."""

    NAMES = [*VARIABLES, "undefined_name", "x", "y", "i"]
    NUMERIC = ["n", "z", "k", "f", "g", "n", "l|length", "d.a", "messages[0].n", "1", "2", "10", "3"]
    TEXTUAL = ["s", "e", "u", "w", "m", "h", "messages[0].content", "messages[2].role", "s[0]", "ls[1]"]
    LISTS = ["l", "le", "ls", "messages", "range(4)", "ls + ls", "d", "dn", "[1, 2] + l", "s.split()"]
    NUMERIC_FILTERS = ["abs", "float", "int", "round", "filesizeformat", "default", "string", "tojson"]
    TEXTUAL_FILTERS = ["capitalize", "center", "default", "e", "escape", "first", "forceescape",
                       "indent", "int", "float", "last", "length", "list", "lower", "replace", "reverse",
                       "safe", "string", "title", "tojson", "trim", "truncate", "upper", "urlencode",
                       "wordcount"]
    LIST_FILTERS = ["batch", "count", "first", "join", "last", "length", "list", "map", "max", "min",
                    "reject", "rejectattr", "reverse", "select", "selectattr", "slice", "sort",
                    "string", "sum", "tojson", "unique", "groupby", "default", "dictsort", "items"]
    TEXTUAL_METHODS = ["upper", "lower", "title", "capitalize", "swapcase", "casefold", "strip", "lstrip",
                       "rstrip", "split", "rsplit", "splitlines", "startswith", "endswith", "replace",
                       "find", "rfind", "count", "zfill", "center", "ljust", "rjust", "isdigit", "isalpha",
                       "isalnum", "isspace", "isupper", "islower", "istitle", "isnumeric", "isdecimal",
                       "isidentifier", "isascii", "isprintable", "removeprefix", "removesuffix",
                       "partition", "rpartition", "expandtabs"]
    STRINGS = ["''", "'a'", "\"it's\"", "', '", "'%s|%r'", "'{0}-{x}'", "'Ab c'", "'\\n'", "'é\\u4f60'",
               "'a' 'b'", "'x\\ty'", "'12'", "'-3.5'", "' 7 '", "'0x1f'", "'a,b,,c'", "'<i>'"]
    NUMBERS = ["0", "1", "2", "-1", "3", "10", "1.5", "0.1", "1e3", "1_000", "7", "-4", "0x1F", "100"]
    BINARY = ["+", "-", "*", "/", "//", "%", "**", "~", "+", "~", "==", "!=", "<", "<=", ">", ">=",
              "in", "not in", "and", "or"]
    TESTS = ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number",
             "integer", "float", "boolean", "true", "false", "odd", "even", "lower", "upper",
             "callable", "escaped"]
    OPERAND_TESTS = ["divisibleby", "eq", "ne", "lt", "le", "gt", "ge", "in", "sameas", "equalto",
                     "greaterthan", "lessthan", "=="]
    METHODS = {
        "upper": 0, "lower": 0, "title": 0, "capitalize": 0, "swapcase": 0, "casefold": 0,
        "strip": "?s", "lstrip": "?s", "rstrip": "?s", "split": "?s?n", "rsplit": "?s?n",
        "splitlines": "?b", "startswith": "s", "endswith": "s", "replace": "ss?n", "find": "s?n",
        "rfind": "s?n", "index": "s", "count": "s", "join": "e", "zfill": "n", "center": "n?c",
        "ljust": "n?c", "rjust": "n?c", "isdigit": 0, "isalpha": 0, "isalnum": 0, "isspace": 0,
        "isupper": 0, "islower": 0, "istitle": 0, "isnumeric": 0, "isdecimal": 0,
        "isidentifier": 0, "isascii": 0, "isprintable": 0,
        "removeprefix": "s", "removesuffix": "s", "partition": "s", "rpartition": "s",
        "format": "ee", "expandtabs": "?n", "items": 0, "keys": 0, "values": 0, "get": "s?e",
        "copy": 0, "append": "e", "pop": 0, "update": "e", "bit_length": 0, "is_integer": 0,
    }
    FILTERS = {
        "abs": "", "attr": "s", "batch": "n?e", "capitalize": "", "center": "?n", "count": "",
        "default": "?e?b", "d": "?e", "dictsort": "?b", "e": "", "escape": "", "filesizeformat": "?b",
        "first": "", "float": "?e", "forceescape": "", "format": "ee", "groupby": "a", "indent": "?n?b?b",
        "int": "?e", "items": "", "join": "?s", "last": "", "length": "", "list": "", "lower": "",
        "map": "F", "max": "", "min": "", "reject": "T", "rejectattr": "aT", "replace": "ss?n",
        "reverse": "", "round": "?n", "safe": "", "select": "T", "selectattr": "aT", "slice": "n?e",
        "sort": "?b?b", "string": "", "sum": "", "title": "", "tojson": "", "trim": "?s",
        "truncate": "n?b?s", "unique": "?b", "upper": "", "urlencode": "", "wordcount": "",
    }
    # Results that cannot be printed alike in both, such as iterators, become lists.
    LAZY = {"batch", "items", "map", "reject", "rejectattr", "reverse", "select", "selectattr",
            "slice", "unique"}
    ATTRIBUTES = ["role", "content", "n", "a", "b", "items", "x", "missing", "index", "last", "real"]

    def __init__(self, seed: int):
        self.random = random.Random(seed)

    def one_of(self, *choices):
        return self.random.choice(choices)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def arguments(self, kinds, depth: int) -> list[str]:
        values = []
        optional = False
        for kind in kinds or "":
            if kind == "?":
                optional = True
                continue
            if optional and self.chance(0.5):
                break
            optional = False
            if kind == "s":
                values.append(self.random.choice(self.STRINGS) if self.chance(0.85)
                              else self.expression(depth - 1))
            elif kind == "n":
                values.append(self.random.choice(self.NUMBERS[:6]))
            elif kind == "b":
                values.append(self.one_of("true", "false"))
            elif kind == "c":
                values.append(self.one_of("'*'", "'é'", "'ab'"))
            elif kind == "a":
                values.append(self.one_of("'role'", "'n'", "'content'", "0", "'a.b'"))
            elif kind == "F":
                if self.chance(0.4):
                    values.append(f"attribute='{self.random.choice(self.ATTRIBUTES[:5])}'")
                    if self.chance(0.3):
                        values.append("default='none'")
                else:
                    values.append(self.one_of("'upper'", "'string'", "'length'", "'abs'", "'trim'",
                                              "'tojson'", "'first'", "'int'", "'list'"))
            elif kind == "T":
                if self.chance(0.7):
                    values.append(f"'{self.random.choice(self.TESTS)}'")
                    if self.chance(0.3):
                        values[-1] = f"'{self.random.choice(self.OPERAND_TESTS)}'"
                        values.append(self.random.choice(self.NUMBERS + self.STRINGS))
            else:
                values.append(self.expression(depth - 1))
        return values

    def sensible(self, depth: int) -> str:
        """An expression whose types fit, mostly."""
        kind = self.random.randrange(9)
        text = self.random.choice(self.TEXTUAL)
        number = self.random.choice(self.NUMERIC)
        if kind == 0:
            return f"({number}) {self.one_of('+', '-', '*', '//', '/', '%', '<', '>=', '==', '!=')} " \
                   f"({self.random.choice(self.NUMERIC)})"
        if kind == 1:
            return f"{text} {self.one_of('+', '~', '<', '==', 'in', 'not in', '>')} " \
                   f"{self.random.choice(self.TEXTUAL + self.STRINGS)}"
        if kind == 2:
            return self.filtered(f"({number})", depth, self.NUMERIC_FILTERS)
        if kind == 3:
            return self.filtered(f"({text})", depth, self.TEXTUAL_FILTERS)
        if kind == 4:
            return self.filtered(f"({self.random.choice(self.LISTS)})", depth, self.LIST_FILTERS)
        if kind == 5:
            method = self.random.choice(self.TEXTUAL_METHODS)
            return f"{text}.{method}({', '.join(self.arguments(self.METHODS[method], 0))})"
        if kind == 6:
            index = self.one_of("0", "-1", "1:", ":-1", "::-1", "1:3", "::2", "-2:", "9", "-1:0:-1", "n:", "k")
            return f"({self.random.choice(self.TEXTUAL + self.LISTS[:6])})[{index}]"
        if kind == 7:
            return self.formatted()
        return f"{self.random.choice(self.NAMES)} is {self.one_of('', 'not ')}{self.random.choice(self.TESTS)}"

    def formatted(self) -> str:
        """A value through a format, of either kind."""
        value = self.random.choice(["n", "k", "f", "g", "big", "s", "u", "t", "o", "12345.678", "99.995", "0"])
        if self.chance(0.4):
            specification = (self.one_of("", "-", "0", "+", " ", "#") + self.one_of("", "5", "12")
                             + self.one_of("", ".0", ".2", ".12") + self.one_of(*"dsrfegxXoEGFica"))
            return f"'%{specification}|' % ({value},)"
        specification = (self.one_of("", "<", ">", "^", "=", "*<", "é^", "0>") + self.one_of("", "+", "-", " ")
                         + self.one_of("", "#") + self.one_of("", "0") + self.one_of("", "5", "12")
                         + self.one_of("", ",", "_") + self.one_of("", ".0", ".1", ".3")
                         + self.one_of("", *"dfeg%xboXsnGEc"))
        return f"'{{:{specification}}}|'.format({value})"

    def filtered(self, value: str, depth: int, names: list[str] | None = None) -> str:
        name = self.random.choice(names or list(self.FILTERS))
        arguments = self.arguments(self.FILTERS[name], depth)
        if name == "tojson" and self.chance(0.5):
            arguments = [self.one_of("indent=2", "ensure_ascii=true", "separators=(',', ':')",
                                     "sort_keys=true", "indent=1, sort_keys=true")]
        if name in ("sort", "unique", "min", "max") and self.chance(0.3):
            arguments = [f"attribute={self.one_of(chr(39) + 'role' + chr(39), '0', chr(39) + 'n' + chr(39))}"]
        if name == "dictsort" and self.chance(0.3):
            arguments = [self.one_of("by='value'", "reverse=true", "true, 'value'")]
        if name == "round" and self.chance(0.3):
            arguments = ["1", self.one_of("'ceil'", "'floor'", "'common'")]
        call = f"{value}|{name}" + (f"({', '.join(arguments)})" if arguments else "")
        return f"{call}|list" if name in self.LAZY else call

    def primary(self, depth: int) -> str:
        if depth <= 0 or self.chance(0.35):
            return self.one_of(self.random.choice(self.NAMES), self.random.choice(self.STRINGS),
                               self.random.choice(self.NUMBERS), self.random.choice(self.NAMES),
                               self.one_of("true", "false", "none", "True", "None"))
        kind = self.random.randrange(10)
        inner = lambda: self.expression(depth - 1)
        if kind == 0:
            return "[" + ", ".join(inner() for _ in range(self.random.randrange(4))) + "]"
        if kind == 1:
            return "(" + ", ".join(inner() for _ in range(self.random.randrange(3))) + self.one_of("", ",") + ")"
        if kind == 2:
            keys = [self.one_of("'a'", "'b'", "1", "none", "s", "1.0", "true")
                    for _ in range(self.random.randrange(4))]
            return "{" + ", ".join(f"{key}: {inner()}" for key in keys) + "}"
        if kind in (3, 4):
            return f"{self.postfixed(depth)}.{self.random.choice(self.ATTRIBUTES)}"
        if kind in (5, 6):
            method = self.random.choice(list(self.METHODS))
            arguments = ", ".join(self.arguments(self.METHODS[method], depth))
            return f"{self.postfixed(depth)}.{method}({arguments})"
        if kind == 7:
            index = self.one_of("0", "-1", "'a'", "1:", ":-1", "::-1", "1:3", "::2", "-2:", "5", "n",
                                "'role'", "-1:0:-1", "3::-2")
            return f"{self.postfixed(depth)}[{index}]"
        if kind == 8:
            return self.one_of("range(3)", "range(1, 6, 2)", "range(3, 0, -1)|list", "dict(a=1, b=s)",
                               "namespace(a=1)", "joiner()", "range(n)", "dict(d, z=2)",
                               "strftime_now('%d %b %Y')", "cycler(1, 2).next()")
        return f"({inner()})"

    def postfixed(self, depth: int) -> str:
        # Not a literal: Python warns of those.
        return self.random.choice(self.NAMES) if self.chance(0.7) else f"({self.sensible(depth - 1)})"

    def expression(self, depth: int) -> str:
        if self.chance(0.55):
            return self.sensible(depth)
        if depth <= 0:
            return self.primary(0)
        kind = self.random.randrange(12)
        if kind < 4:
            return self.primary(depth)
        if kind < 7:
            return self.filtered(self.primary(depth - 1), depth - 1)
        if kind < 9:
            parts = [self.primary(depth - 1) for _ in range(self.random.randrange(2, 4))]
            text = parts[0]
            for part in parts[1:]:
                text += f" {self.random.choice(self.BINARY)} {part}"
            return text
        if kind == 9:
            if self.chance(0.6):
                test = self.random.choice(self.TESTS)
            else:
                test = f"{self.random.choice(self.OPERAND_TESTS[:-1])}({self.primary(0)})"
            return f"{self.primary(depth - 1)} is {self.one_of('', 'not ')}{test}"
        if kind == 10:
            other = f" else {self.expression(depth - 1)}" if self.chance(0.8) else ""
            return f"{self.primary(depth - 1)} if {self.expression(depth - 1)}{other}"
        return f"{self.one_of('not ', '-', '+')}{self.primary(depth - 1)}"

    def tag(self, text: str) -> str:
        return f"{{%{self.one_of('', '', '', '-', '+')} {text} {self.one_of('', '', '', '-', '+')}%}}"

    def text(self) -> str:
        return self.one_of("a", " ", "\n", "  \n", "text\n", "\n\n  ", "<|im_start|>", "é", "x\t", "\r\n",
                           "{# c #}", "{#- c -#}\n", "{% raw %}{{ x }}{% endraw %}", " { ", "%}", "\n  ")

    def body(self, depth: int, in_loop: bool) -> str:
        return "".join(self.statement(depth - 1, in_loop) for _ in range(self.random.randrange(1, 4)))

    def statement(self, depth: int, in_loop: bool = False) -> str:
        kind = self.random.randrange(20) if depth > 0 else self.random.randrange(7)
        if kind < 2:
            return self.text()
        if kind < 6:
            return f"{{{{{self.one_of('', '', '-')} {self.expression(2)} {self.one_of('', '', '-')}}}}}"
        if kind == 6:
            name = self.one_of("x", "y", "i", "s", "x, y", "ns.a", "ns.b")
            return self.tag(f"set {name} = {self.expression(2)}")
        if kind in (7, 8, 9):
            target = self.one_of("i", "x", "i", "x, y", "s")
            iterable = self.one_of("l", "ls", "messages", "d", "range(3)", "dn.items()", "e", "undefined_name",
                                   "lm", "s", self.expression(1), "[(1, 2), (3, 4)]", "d|items")
            condition = f" if {self.expression(1)}" if self.chance(0.25) else ""
            recursive = " recursive" if self.chance(0.08) else ""
            text = self.tag(f"for {target} in {iterable}{condition}{recursive}") + self.body(depth, True)
            if self.chance(0.3):
                text += self.one_of("{{ loop.cycle('a', 'b') }}{{ loop.changed(i) }}", "{{ loop.previtem }}",
                                    "{{ loop.revindex }}{{ loop.depth }}", "{{ loop.last }}", "{{ loop.index0 }}/{{ loop.length }}", "{{ loop }}",
                                    "{{ loop.first }}{{ loop.nextitem }}", "{{ x }}{{ y }}{{ i }}")
            if self.chance(0.2):
                text += self.tag("else") + self.body(depth, in_loop)
            return text + self.tag("endfor")
        if kind in (10, 11, 12):
            text = self.tag(f"if {self.expression(2)}") + self.body(depth, in_loop)
            if self.chance(0.3):
                text += self.tag(f"elif {self.expression(1)}") + self.body(depth, in_loop)
            if self.chance(0.4):
                text += self.tag("else") + self.body(depth, in_loop)
            return text + self.tag("endif")
        if kind == 13:
            filters = self.one_of("", "|upper", "|trim", "|length", "|replace('a', 'b')")
            name = self.one_of("x", "y", "ns.a")
            return self.tag(f"set {name}{filters}") + self.body(depth, in_loop) + self.tag("endset")
        if kind == 14:
            signature = self.one_of("", "a", "a, b=2", "x=s", "a, x=a")
            uses = self.one_of("", "{{ varargs }}", "{{ kwargs }}", "{{ caller() }}", "{{ a }}", "{{ b }}")
            call = self.one_of("m()", "m(1)", "m(1, 2)", "m(a=3)", "m(1, 2, 3)", "m(z=4)", "m")
            return (self.tag(f"macro m({signature})") + uses + self.body(depth, False) + self.tag("endmacro")
                    + f"{{{{ {call} }}}}")
        if kind == 15:
            return (self.tag("macro c(a=1)") + "[{{ caller(a) }}]" + self.tag("endmacro")
                    + self.tag(f"call{self.one_of('', '(q)', '(x)', '(q=1, w=2)')} c({self.one_of('', '5', 's')})")
                    + self.body(depth, False) + self.tag("endcall"))
        if kind == 16:
            name = self.one_of("upper", "trim", "replace('a', 'b')", "indent(2)", "title", "length")
            return self.tag(f"filter {name}") + self.body(depth, in_loop) + self.tag("endfilter")
        if kind == 17:
            return (self.tag(f"with {self.one_of('x', 'y')} = {self.expression(1)}") + self.body(depth, in_loop)
                    + self.tag("endwith"))
        if kind == 18:
            return self.tag("generation") + self.body(depth, False) + self.tag("endgeneration")
        if in_loop:
            return self.tag(self.one_of("break", "continue"))
        return "{% set ns = namespace(a=0, b='') %}"

    def template(self) -> str:
        start = "{% set ns = namespace(a=0, b='') %}" if self.chance(0.6) else ""
        return start + "".join(self.statement(3) for _ in range(self.random.randrange(1, 5)))


@functools.lru_cache(maxsize=1)
def compile_reference(environment, template: str):
    """The template in jinja2; the last one is kept, which the kit renders many times."""
    return environment.from_string(template)


def render_reference(environment, template: str, variables: dict) -> dict:
    """What jinja2 makes of a template."""
    try:
        text = compile_reference(environment, template).render(**variables)
        text.encode()
        return {"text": text}
    except RecursionError as error:
        return {"error": f"RecursionError: {error}"}
    except Exception as error:  # whatever the template provokes
        return {"error": f"{type(error).__name__}: {error}"}


# What differs by design: addresses of objects, integers beyond 64 bits, sizes beyond the limits; and
# slices of constant numbers, which jinja2's constant folding makes undefined.
DIFFERENT_BY_DESIGN = ("does not fit", "more than the limit", "is too large", "cannot be sliced")


def is_comparable(expected: dict, actual: dict) -> bool:
    if " at 0x" in expected.get("text", "").lower():
        return False
    if "error" in expected and "int too large" in expected["error"]:
        return False
    return not any(words in actual.get("error", "") for words in DIFFERENT_BY_DESIGN)


@unittest.skipUnless(jinja2 is not None, "no jinja2; install tools/requirements-test.txt")
@unittest.skipUnless(DRIVER.exists(), f"no {DRIVER}; build the target jinja_driver")
class JinjaDifferenceTest(unittest.TestCase):
    """Both engines, the same templates."""

    def setUp(self):
        # Python warns of random code such as 5[0], which jinja2 compiles to just that.
        warnings.simplefilter("ignore", SyntaxWarning)
        self.environment = make_environment()
        self.driver = Driver()

    def tearDown(self):
        self.assertEqual(self.driver.close(), 0)

    @unittest.skipUnless(KIT.exists(), f"no templates at {KIT} (ADDER_SHARED)")
    def test_every_template_of_the_kit(self):
        cases = json.loads((KIT / "cases.json").read_text(encoding="utf-8"))["cases"]
        texts = 0
        for path in sorted(KIT.glob("*.jinja")):
            template = path.read_bytes().decode()
            for case in cases:
                variables = {"messages": case["messages"], "tools": case["tools"], "documents": None,
                             "add_generation_prompt": case["add_generation_prompt"],
                             "bos_token": "<s>", "eos_token": "</s>", **case["kwargs"]}
                expected = render_reference(self.environment, template, variables)
                actual = self.driver.render(template, variables)
                with self.subTest(template=path.name, case=case["name"]):
                    self.assertEqual(actual.get("text"), expected.get("text"), actual)
                texts += "text" in expected
        self.assertGreater(texts, 1000)

    def test_random_templates(self):
        compared = texts = 0
        differences = []
        for number in range(TEMPLATES):
            template = Grammar(SEED * 10_000_000 + number).template()
            expected = render_reference(self.environment, template, VARIABLES)
            actual = self.driver.render(template, VARIABLES)
            if not is_comparable(expected, actual):
                continue
            compared += 1
            texts += "text" in expected
            if actual.get("text") != expected.get("text"):
                differences.append(f"template {template!r}\n  jinja2: {expected}\n  adder: {actual}")
        self.assertEqual(differences[:20], [], f"{len(differences)} of {compared} differ")
        self.assertGreater(compared, TEMPLATES * 0.9)
        self.assertGreater(texts, TEMPLATES * 0.2)


if __name__ == "__main__":
    unittest.main()
