// Templates against what Python's jinja2 3.1.6 makes of them, with transformers' settings.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "text/jinja/template.h"
#include "text/kit_for_test.h"

namespace adder::text::jinja {
namespace {

std::string Render(std::string_view source, std::string_view variables = "{}",
                   const Limits& limits = {}) {
  const Json json = ParseJson(variables, "variables");
  Template::Variables list;
  for (auto item = json.begin(); item != json.end(); ++item) list.emplace_back(item.key(), *item);
  return Template(source, "test").Render(list, KitClock, limits);
}

// The message of the Error that rendering ends in.
std::string FailureOf(std::string_view source, std::string_view variables = "{}",
                      const Limits& limits = {}) {
  try {
    return "rendered: " + Render(source, variables, limits);
  } catch (const Error& error) {
    return error.what();
  }
}

struct Case {
  std::string_view source;
  std::string_view expected;
};

void ExpectAll(const std::vector<Case>& cases, std::string_view variables = "{}") {
  for (const Case& item : cases) {
    SCOPED_TRACE(item.source);
    EXPECT_EQ(FailureOf(item.source, variables), Concat("rendered: ", item.expected));
  }
}

// Each source must fail, and the message must hold the words.
void ExpectFailures(const std::vector<Case>& cases, std::string_view variables = "{}") {
  for (const Case& item : cases) {
    SCOPED_TRACE(item.source);
    const std::string message = FailureOf(item.source, variables);
    EXPECT_FALSE(message.starts_with("rendered: ")) << message;
    EXPECT_NE(message.find(item.expected), std::string::npos) << message;
  }
}

TEST(Jinja, WhitespaceControl) {
  ExpectAll({
      {"a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"},
      {"a {%- if true -%} b {%- endif %} c", "ab c"},
      {"  {%+ if true +%}\nx{% endif %}", "  \nx"},
      {"a  {{- 1 -}}  b", "a1b"},
      {"  {{ 1 }}\n", "  1"},
      {"x\n\n", "x\n"},
      {"a {# note #} b\n  {# note #}\nc", "a  b\nc"},
      {"a {#- note -#} b", "ab"},
      {"{% raw %}{{ x }}{% endraw %}", "{{ x }}"},
      {"a {%- raw -%} {% if %} {%- endraw -%} b", "a{% if %}b"},
      {"a\r\nb\rc", "a\nb\nc"},
      {"{{ '}}' }}{{ {'a': {}} }}", "}}{'a': {}}"},
  });
}

TEST(Jinja, PrintsLikePython) {
  ExpectAll({
      {"{{ true }}{{ none }}{{ 1 }}{{ 1.0 }}{{ undefined }}", "TrueNone11.0"},
      {"{{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ 0.1 + 0.2 }} {{ -0.0 }}",
       "1e+16 1000000000000000.0 0.0001 1e-05 0.30000000000000004 -0.0"},
      {R"({{ ["it's", 'say "x"', '\'"', 'a\n\t\\', '\x01é\u200b'] }})",
       R"(["it's", 'say "x"', '\'"', 'a\n\t\\', '\x01é\u200b'])"},
      {"{{ (1,) }}{{ () }}{{ (1, 'a') }}{{ {'a': [1, {}]} }}", "(1,)()(1, 'a'){'a': [1, {}]}"},
      {"{{ {'a': 1}.items() }} {{ {'a': 1}.keys() }} {{ range(3) }} {{ range(1, 9, 2) }}",
       "dict_items([('a', 1)]) dict_keys(['a']) range(0, 3) range(1, 9, 2)"},
      {"{% set ns = namespace(a=1) %}{{ ns }}{% macro m() %}{% endmacro %}{{ m }}",
       "<Namespace {'a': 1}><Macro 'm'>"},
      {"{{ [none, undefined_name, true] }}", "[None, Undefined, True]"},
  });
}

TEST(Jinja, Arithmetic) {
  ExpectAll({
      {"{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 // -2 }} {{ -7 % 3 }} {{ 7 % -3 }}", "3 -4 -4 2 -2"},
      {"{{ 7 / 2 }} {{ 4 / 2 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}", "3.5 2.0 3.0 0.5"},
      {"{{ 2 ** 10 }} {{ 2 ** -1 }} {{ -2 ** 2 }} {{ 2 ** 3 ** 2 }}", "1024 0.5 4 64"},
      {"{{ 1 + 2 * 3 - 4 }} {{ (1 + 2) * 3 }} {{ true + 1 }} {{ 1_000 }} {{ 0x1f }}",
       "3 9 2 1000 31"},
      {"{{ 'a' * 3 }} {{ [1] * 2 }} {{ [1] + [2] }} {{ 'a' + 'b' }} {{ 1 ~ 'a' ~ none }}",
       "aaa [1, 1] [1, 2] ab 1aNone"},
      {"{{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 1 == 1.0 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }}",
       "True False True True True"},
      {"{{ 2 in [1, 2] }} {{ 'b' not in 'abc' }} {{ 'a' in {'a': 1} }} {{ not 1 }}",
       "True False True False"},
      {"{{ 1 and 0 or 'x' }} {{ none or 2 }} {{ 'a' if 0 else 'b' }}[{{ 'a' if 0 }}]", "x 2 b[]"},
      {"{{ 9007199254740993 == 9007199254740992.0 }}", "False"},
  });
  ExpectFailures({
      {"{{ 1 / 0 }}", "divided by zero"},
      {"{{ 9223372036854775807 + 1 }}", "does not fit in 64 bits"},
      {"{{ 2 ** 64 }}", "does not fit in 64 bits"},
      {"{{ 92233720368547758080 }}", "does not fit in 64 bits"},
      {"{{ 'a' + 1 }}", "str and int"},
      {"{{ 1 < 'a' }}", "int and str"},
      {"{{ none + 1 }}", "NoneType"},
  });
}

TEST(Jinja, StringsAreCodePoints) {
  ExpectAll(
      {
          {"{{ s | length }} {{ s[1] }} {{ s[-1] }} {{ s[::-1] }} {{ s[1:3] }} {{ s[4::-2] }}",
           "7 r 😀 😀 eßörG rö eöG"},
          {"{{ s.upper() }} {{ s | lower }} {{ 'ΑΣ ΣΑΣ'.lower() }} {{ 'ǆx'.title() }}",
           "GRÖSSE 😀 größe 😀 ας σας ǅx"},
          {"{{ s.find('e') }} {{ s.center(9, '·') }} {{ s.split('ö') }}",
           "4 ·Größe 😀· ['Gr', 'ße 😀']"},
          {"{% for c in 'äb' %}[{{ c }}]{% endfor %}", "[ä][b]"},
          {"{{ s[99] }}{{ s[1:99][-2:] }}", " 😀"},
      },
      R"({"s": "Größe 😀"})");
}

TEST(Jinja, StringMethods) {
  ExpectAll({
      {"{{ 'a b  c'.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }}",
       "['a', 'b', 'c'] ['a', 'b,c'] ['a,b', 'c']"},
      {"{{ ' a b c '.split(none, 1) }} {{ ' a b c '.rsplit(none, 1) }}",
       "['a', 'b c '] [' a b', 'c']"},
      {"[{{ '  a '.strip() }}][{{ 'xxaxx'.strip('x') }}][{{ 'ab'.lstrip('a') }}][{{ "
       "'ab\\n'.rstrip() }}]",
       "[a][a][b][ab]"},
      {"{{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.endswith('bc', 1) }} {{ 'abc'.startswith('b', "
       "1) }}",
       "True True True"},
      {"{{ 'aaa'.replace('a', 'b', 2) }} {{ 'ab'.replace('', '-') }} {{ 'abab'.rfind('ab') }}",
       "bba -a-b- 2"},
      {"{{ 'a-b'.partition('-') }} {{ 'a'.rpartition('-') }} {{ ', '.join(['a', 'b']) }}",
       "('a', '-', 'b') ('', '', 'a') a, b"},
      {"{{ '-5'.zfill(4) }} {{ 'ab'.ljust(4, '.') }} {{ 'ab'.center(5, '*') }} {{ "
       "'a\\tb'.expandtabs(4) }}",
       "-005 ab.. **ab* a   b"},
      {"{{ '12'.isdigit() }} {{ '²'.isdecimal() }} {{ 'aB'.isalpha() }} {{ ''.isspace() }} {{ 'Ab "
       "C'.istitle() }}",
       "True False True False True"},
      {"{{ 'a\\nb\\r\\nc'.splitlines(true) }} {{ \"it's\".title() }} {{ 'aBC'.swapcase() }}",
       "['a\\n', 'b\\r\\n', 'c'] It'S Abc"},
      {"{{ '一½'.isnumeric() }} {{ 'ªⅸⓐ'.islower() }} {{ 'ⅨⒶ'.isupper() }} {{ '¹'.isdigit() }}",
       "True True True True"},
      {"{{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }} {{ "
       "'banana'.count('an') }}",
       "x x 2"},
      {"{{ '{} {1}'.format(1, 2) if false else '{0:>4}|{1!r}|{x[a].b}'.format(7, 'q', x={'a': "
       "{'b': 2}}) }}",
       "   7|'q'|2"},
      {"{{ '{:08.3f} {:,} {:#x} {:^7} {:+d} {:%}'.format(3.14159, 1234567, 255, 'ab', 5, 0.5) }}",
       "0003.142 1,234,567 0xff   ab    +5 50.000000%"},
      {"{{ '%s %d %05.1f %x %r %%' % ('a', 3.9, 2.25, 255, 'q') }} {{ '%(a)s' % {'a': 1} }} {{ "
       "'%5s|%-5s|' % (1, 2) }}",
       "a 3 002.2 ff 'q' % 1     1|2    |"},
  });
  ExpectFailures({
      {"{{ 'a'.index('b') }}", "not there"},
      {"{{ 'a'.split('') }}", "separator is empty"},
      {"{{ ', '.join([1]) }}", "one is int"},
      {"{{ '%d' % 'a' }}", "takes a number"},
      {"{{ '%s %s' % 'a' }}", "too few values"},
      {"{{ '{'.format() }}", "not closed"},
      {"{{ '{a}'.format(1) }}", "'a'"},
  });
}

TEST(Jinja, FiltersOnTexts) {
  ExpectAll({
      {"{{ 'hello big-world (x)' | title }} {{ 'ABC dEf' | capitalize }} {{ ' x ' | trim }}",
       "Hello Big-World (X) Abc def x"},
      {"{{ 'a\\nb\\n\\nc' | indent(2) }}|{{ 'a\\nb' | indent('> ', true) }}",
       "a\n  b\n\n  c|> a\n> b"},
      {"{{ 'one two three' | truncate(9, leeway=0) }} {{ 'abcdefgh' | truncate(5, true, '.', 0) }}",
       "one... abcd."},
      {"{{ 'a b' | urlencode }} {{ {'a b': 'ä/'} | urlencode }} {{ \"it's 2 words\" | wordcount }}",
       "a%20b a+b=%C3%A4%2F 4"},
      {"{{ '<a>' | e }} {{ ('<a>' | e) ~ '<' }} {{ ('<' | safe) + '<' }} {{ '<' + ('a' | safe) }}",
       "&lt;a&gt; &lt;a&gt;< <&lt; &lt;a"},
      {"{{ '%s-%s' | format(1, 'a') }} {{ 'aXbX' | replace('X', '-', 1) }} {{ 5 | string + '1' }}",
       "1-a a-bX 51"},
  });
}

TEST(Jinja, ToJson) {
  ExpectAll(
      {
          {"{{ v | tojson }}",
           R"({"a": "é\"\\\n<b>", "b": [1, 2.0, 1e-05, null, true], "c": {}, "d": []})"},
          {"{{ v | tojson(ensure_ascii=true, separators=(',', ':')) }}",
           R"({"a":"\u00e9\"\\\n<b>","b":[1,2.0,1e-05,null,true],"c":{},"d":[]})"},
          {"{{ v | tojson(indent=1) }}",
           "{\n \"a\": \"é\\\"\\\\\\n<b>\",\n \"b\": [\n  1,\n  2.0,\n  1e-05,\n  null,\n  true\n "
           "],\n"
           " \"c\": {},\n \"d\": []\n}"},
          {"{{ {'b': 1, 'a': (1, 2), 3: none} | tojson }} {{ {'b': 1, 'a': 2} | "
           "tojson(sort_keys=true) }}",
           R"({"b": 1, "a": [1, 2], "3": null} {"a": 2, "b": 1})"},
          {"{{ '😀\\x7f\\x1f' | tojson(ensure_ascii=true) }}", R"("\ud83d\ude00\u007f\u001f")"},
          {"{{ (v.b[1] * 1e308 * 10) | tojson }} {{ v.b[1] * 1e308 * 10 }}", "Infinity inf"},
      },
      R"({"v": {"a": "é\"\\\n<b>", "b": [1, 2.0, 1e-5, null, true], "c": {}, "d": []}})");
  ExpectFailures({{"{{ undefined_name | tojson }}", "has no JSON form"},
                  {"{{ range(3) | tojson }}", "range"},
                  {"{{ {(1, 2): 3} | tojson }}", "tuple"}});
}

TEST(Jinja, FiltersOnSequences) {
  ExpectAll(
      {
          {"{{ l | sort }} {{ l | sort(reverse=true) }} {{ ['b', 'A'] | sort }} {{ ['b', 'A', 'a'] "
           "| sort(case_sensitive=true) }}",
           "[1, 2, 3] [3, 2, 1] ['A', 'b'] ['A', 'a', 'b']"},
          {"{{ l | first }} {{ l | last }} {{ [] | first }} {{ l | sum }} {{ l | min }} {{ l | max "
           "}}",
           "3 2  6 1 3"},
          {"{{ l | batch(2, 0) | list }} {{ range(5) | slice(3) | list }} {{ l | join('-') }}",
           "[[3, 1], [2, 0]] [[0, 1], [2, 3], [4]] 3-1-2"},
          {"{{ m | map(attribute='r') | join(',') }} {{ m | map(attribute='z', default=0) | list "
           "}} {{ ['a'] | map('upper') | list }}",
           "u,a,u [0, 0, 0] ['A']"},
          {"{{ m | selectattr('r', 'equalto', 'u') | map(attribute='n') | list }} {{ m | "
           "rejectattr('n') | list | length }}",
           "[1, 3] 1"},
          {"{{ [1, none, 2] | select | list }} {{ range(5) | reject('odd') | list }}",
           "[1, 2] [0, 2, 4]"},
          {"{% for g, items in m | groupby('r') %}{{ g }}:{{ items | length }} {% endfor %}",
           "a:1 u:2 "},
          {"{{ {'b': 1, 'A': 2} | dictsort }} {{ {'b': 1, 'a': 2} | dictsort(by='value', "
           "reverse=true) }}",
           "[('A', 2), ('b', 1)] [('a', 2), ('b', 1)]"},
          {"{{ ['a', 'B', 'A'] | unique | list }} {{ 'abc' | reverse }} {{ l | reverse | list }} "
           "{{ d | items | list }}",
           "['a', 'B'] cba [2, 1, 3] [('k', 1)]"},
          {"{{ x | default('n') }} {{ '' | default('n') }} {{ '' | d('n', true) }} {{ d.q | "
           "default }}",
           "n  n "},
          {"{{ m | sum('n') }} {{ m | max(attribute='n') }}", "4 {'r': 'u', 'n': 3}"},
      },
      R"({"l": [3, 1, 2], "d": {"k": 1}, "m": [{"r": "u", "n": 1}, {"r": "a", "n": 0}, {"r": "u", "n": 3}]})");
  ExpectFailures({{"{{ none | list }}", "NoneType"},
                  {"{{ 5 | length }}", "int"},
                  {"{{ [1, 'a'] | sort }}", "does not work on"},
                  {"{{ [1] | map('nothing') | list }}", "no filter nothing"}});
}

TEST(Jinja, FiltersOnNumbers) {
  ExpectAll({
      {"{{ '12' | int }} {{ '3.9' | int }} {{ 'x' | int(7) }} {{ '0x1f' | int(0, 16) }} {{ ' 1_0 ' "
       "| int }} {{ none | int }}",
       "12 3 7 31 10 0"},
      {"{{ '1e3' | float }} {{ 'x' | float(1.5) }} {{ 'inf' | float }} {{ -3 | abs }}",
       "1000.0 1.5 inf 3"},
      {"{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 42 | round }} {{ 2.1 | "
       "round(0, 'ceil') }} {{ 2.55 | round(1, 'floor') }}",
       "2.0 4.0 2.67 42 3.0 2.5"},
      {"{{ 1 | filesizeformat }} {{ 1500 | filesizeformat }} {{ 1048576 | filesizeformat(true) }}",
       "1 Byte 1.5 kB 1.0 MiB"},
  });
}

TEST(Jinja, Tests) {
  ExpectAll(
      {
          {"{{ a is defined }} {{ b is defined }} {{ b is undefined }} {{ a is none }} {{ n is "
           "none }}",
           "True False True False True"},
          {"{{ 1 is number }} {{ true is number }} {{ true is integer }} {{ 1.0 is float }} {{ "
           "true is boolean }}",
           "True True False True True"},
          {"{{ 'a' is string }} {{ {} is mapping }} {{ [] is sequence }} {{ {} is sequence }} {{ "
           "'a' is iterable }} {{ 1 is iterable }}",
           "True True True True True False"},
          {"{{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 'a' is in 'abc' }} {{ 1 is "
           "eq 1 }} {{ 2 is gt(1) }}",
           "True True True True True True"},
          {"{{ 'a' is lower }} {{ 'A' is upper }} {{ true is true }} {{ 1 is true }} {{ none is "
           "not none }} {{ 'upper' is filter }} {{ 'x' is test }}",
           "True True True False False True False"},
          {"{{ a is sameas a }} {{ range is callable }} {{ ('x' | safe) is escaped }}",
           "True True True"},
      },
      R"({"a": 1, "n": null})");
  ExpectFailures({{"{{ 1 is nothing }}", "line 1: There is no test nothing"}});
}

TEST(Jinja, Loops) {
  ExpectAll({
      {"{% for i in 'abc' %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ "
       "loop.last }}{{ loop.length }} {% endfor %}",
       "103TrueFalse3 212FalseFalse3 321FalseTrue3 "},
      {"{% for i in [1, 2, 3] %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}",
       "<1>2 1<2>3 2<3> "},
      {"{% for i in [1, 1, 2] %}{{ loop.changed(i) }}{{ loop.cycle('a', 'b') }} {% endfor %}",
       "Truea Falseb Truea "},
      {"{% for i in [] %}x{% else %}none{% endfor %}", "none"},
      {"{% for i in range(6) if i is odd %}{{ i }}{{ loop.last }}{% endfor %}",
       "1False3False5True"},
      {"{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break "
       "%}{% endif %}{{ i }}{% endfor %}",
       "013"},
      {"{% for a, b in {'x': 1}.items() %}{{ a }}{{ b }}{% endfor %}{% for a, (b, c) in [(1, (2, "
       "3))] %}{{ a + b + c }}{% endfor %}",
       "x16"},
      {"{% for i in [1, [2, [3]]] recursive %}{{ loop(i) if i is iterable else i }}{{ loop.depth "
       "}}{% endfor %}",
       "11223321"},
      {"{% set x = 0 %}{% for i in [1, 2] %}{{ x }}{% set x = i %}{% endfor %}{{ x }}", "000"},
      {"{% set ns = namespace(x=0) %}{% for i in [1, 2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ "
       "ns.x }}",
       "3"},
      {"{% for i in [1] %}{% for j in [1, 2] %}{{ loop.index }}{% endfor %}{{ loop.index }}{% "
       "endfor %}",
       "121"},
      // As jinja2 has it: a body that never ends in its last statement counts as no element.
      {"{% for i in [1] %}a{% continue %}{% else %}b{% endfor %}", "ab"},
      {"{% for i in undefined_name %}x{% endfor %}", ""},
  });
  ExpectFailures({{"{% for i in none %}{% endfor %}", "NoneType"},
                  {"{% for a, b in [1] %}{% endfor %}", "cannot be taken apart"},
                  {"{% for a, b in [[1]] %}{% endfor %}", "1 values for 2"},
                  {"{% break %}", "outside of a loop"},
                  {"{% for i in [1] %}{% set loop = 1 %}{% endfor %}", "\"loop\""}});
}

TEST(Jinja, ScopesFollowJinja2) {
  ExpectAll(
      {
          {"{{ x }}{% set x = 2 %}{{ x }}", "12"},
          {"{% if true %}{% set x = 2 %}{% endif %}{{ x }}", "2"},
          {"{% if false %}{% set x = 2 %}{% endif %}{{ x }}", "1"},
          {"{% macro m() %}{{ x }}{% endmacro %}{{ m() }}", "1"},
          {"{% macro m() %}{{ y }}{% endmacro %}{{ m() }}{% set y = 3 %}{{ m() }}", "3"},
          // Assigned to before it is read: the variable from outside is hidden from the start.
          {"{% macro m() %}[{{ x }}]{% endmacro %}{{ m() }}{% set x = 3 %}{{ m() }}", "[][3]"},
          {"{% with x = 5, y = x %}{{ x }}{{ y }}{% endwith %}{{ x }}", "511"},
          {"{% set a, b = 1, 2 %}{{ b }}{{ a }}", "21"},
          {"{% set t %}a{{ x }}{% set x = 9 %}{% endset %}{{ t }}{{ x }}", "a11"},
          {"{% set t | upper | replace('A', '-') %}ab{% endset %}{{ t }}", "-B"},
          {"{% filter upper %}a{% set x = 4 %}{{ x }}{% endfilter %}{{ x }}", "A41"},
          {"{% generation %}{% set x = 7 %}{{ x }}{% endgeneration %}{{ x }}", "71"},
          {"{% for x in [5] %}{{ x }}{% endfor %}{{ x }}", "51"},
          {"{% for i in [1, 2] %}{% if i == 1 %}{% set x = 8 %}{% endif %}{{ x }}{% endfor %}",
           "81"},
      },
      R"({"x": 1})");
}

TEST(Jinja, Macros) {
  ExpectAll({
      {"{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, c=3) }} {{ "
       "m(b=5, a=4) }}",
       "121 123 454"},
      {"{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}",
       "(1, 2){'x': 3}"},
      {"{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m() }}{{ m(*[1]) }}{{ m(**{'a': 2}) }}",
       "[][1][2]"},
      {"{% macro m(x) %}<{{ caller(x) }}>{% endmacro %}{% call(v) m(3) %}{{ v + 1 }}{% endcall %}",
       "<4>"},
      {"{% macro f(n) %}{{ n if n < 2 else f(n - 1) | int + f(n - 2) | int }}{% endmacro %}{{ "
       "f(10) }}",
       "55"},
      {"{% macro m() %}{% endmacro %}{{ m.name }} {{ m.arguments }}", "m ()"},
  });
  ExpectFailures({
      {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "at most 1"},
      {"{% macro m(a) %}{% endmacro %}{{ m(b=1) }}", "named b"},
      {"{% macro m(a=1, b) %}{% endmacro %}", "without a default"},
      {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested deeper"},
      {"{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "No caller defined"},
  });
}

TEST(Jinja, AttributesAndElements) {
  ExpectAll(
      {
          {"{{ d.a }} {{ d['a'] }} {{ d.items is callable }} {{ d['items'] }} {{ d.missing }}{{ "
           "d.missing is defined }}",
           "1 1 True 5 False"},
          {"{{ d.get('a') }} {{ d.get('q') }} {{ d.get('q', 3) }} {{ l.0 }} {{ l[-1] }} {{ l[9] }}",
           "1 None 3 10 30 "},
          {"{{ l[1:] }} {{ l[::-1] }} {{ l[:-1] }} {{ l[5:] }} {{ (1, 2, 3)[::2] }}",
           "[20, 30] [30, 20, 10] [10, 20] [] (1, 3)"},
          {"{{ {1: 'a', true: 'b'} }} {{ {1.0: 'x'}[1] }}", "{1: 'b'} x"},
          {"{{ l.index(20) }} {{ l.count(1) }} {{ l.append is defined }}", "1 0 False"},
          {"{{ d | attr('a') }}{{ 'x' | attr('upper') is callable }}", "True"},
      },
      R"({"d": {"a": 1, "items": 5}, "l": [10, 20, 30]})");
  ExpectFailures({{"{{ l.append(1) }}", "'append' of 'list' object is unsafe"},
                  {"{{ d.update({}) }}", "'update' of 'dict' object is unsafe"},
                  {"{{ d.x.y }}", "'dict object' has no attribute 'x'"},
                  {"{{ q.y }}", "'q' is undefined"},
                  {"{{ q() }}", "'q' is undefined"},
                  {"{{ {[]: 1} }}", "list cannot be a key"},
                  {"{{ 5() }}", "cannot be called"}},
                 R"({"d": {}, "l": []})");
}

TEST(Jinja, Globals) {
  ExpectAll({
      {"{{ range(5, 0, -2) | list }} {{ dict(a=1, **{'b': 2}) }} {{ dict([('a', 1)]) }}",
       "[5, 3, 1] {'a': 1, 'b': 2} {'a': 1}"},
      {"{% set j = joiner('|') %}{{ j() }}a{{ j() }}b{{ j() }}c", "a|b|c"},
      {"{% set c = cycler(1, 2) %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ "
       "c.reset() }}{{ c.current }}",
       "1212None1"},
      {"{{ strftime_now('%d %b %Y %H:%M') }} {{ strftime_now('%A %-d 100%') }}",
       "15 Jun 2025 12:34 Sunday 15 100%"},
  });
  ExpectFailures({{"{{ raise_exception('no system role') }}", "no system role"},
                  {"{{ range(1000000) }}", "100000"},
                  {"{{ lipsum() }}", "'lipsum' is undefined"}});
}

TEST(Jinja, ErrorsNameTemplateAndLine) {
  EXPECT_EQ(FailureOf("a\nb\n{{ x.y }}"), "test, line 3: 'x' is undefined.");
  EXPECT_EQ(FailureOf("a\n{% if true %}\n{{ 1 +\n 'a' }}{% endif %}"),
            "test, line 3: The operator + does not work on int and str.");
  ExpectFailures({
      {"\n\n{% if x %}", "line 3: The block {% if %} is not closed"},
      {"\n{% endif %}", "line 2: Unknown block {% endif %}"},
      {"{% for x in y %}\n{% endif %}", "line 2: Unknown block {% endif %}; {% for %} of line 1"},
      {"{% nothing %}", "Unknown block {% nothing %}"},
      {"{% include 'x' %}", "not supported"},
      {"\n{{ x | nothing }}", "line 2: There is no filter nothing"},
      {"{{ x | from_json }}", "cannot parse JSON"},
      {"{{ x", "ends inside of a tag"},
      {"{{ 'x }}", "not closed"},
      {"{# x", "not closed"},
      {"{% raw %}", "not closed"},
      {"{{ (1] }}", "where a ) should be"},
      {"{{ 1 2 }}", "Expected \"}}\""},
      {"{{ a ? b }}", "cannot stand here"},
      {"{{ }}", "Expected an expression"},
      {"{% set 1 = 2 %}", "Only names"},
      {"{{ '\\xZZ' }}", "hexadecimal"},
  });
  // In a condition the template may have asked first, as in jinja2.
  EXPECT_EQ(Render("{% if 'nothing' is filter %}{{ 1 | nothing }}{% else %}b{% endif %}"), "b");
}

TEST(Jinja, Bounds) {
  Limits limits;
  limits.steps = 20'000;
  limits.memory_bytes = 1 << 20;
  limits.text_bytes = 1 << 16;
  for (std::string_view source : {
           "{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}",
           "{{ 'x' * 1000000000 }}",
           "{{ 'x' * 9223372036854775807 }}",
           "{{ [0] * 1000000000000 }}",
           "{{ '%1000000000d' % 1 }}",
           "{{ '{:>999999999}'.format(1) }}",
           "{{ 'x'.center(9223372036854775807) }}",
           "{{ 'x' | indent(9223372036854775807, true) }}",
           "{{ [1] | batch(9223372036854775807, 0) | list }}",
           "{{ [1] | slice(9223372036854775807) | list }}",
           "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% "
           "endfor %}",
           "{% set ns = namespace(s=[]) %}{% for i in range(999) %}{% set ns.s = [ns.s] %}{% "
           "endfor %}",
           "{% set ns = namespace(s=[1]) %}{% for i in range(999) %}{% set ns.s = ns.s | "
           "map('abs') %}{% endfor %}{{ ns.s | list }}",
           "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}",
           "{% set ns = namespace() %}{% set ns.self = ns %}{{ ns }}",
           "{% for i in range(9999) %}xxxxxxxxxxxxxxxxxx{% endfor %}",
       }) {
    const std::string message = FailureOf(source, "{}", limits);
    EXPECT_TRUE(message.starts_with("test, line 1: "))
        << source << " gave " << message.substr(0, 200);
  }
  for (std::string_view part : {"(", "[", "{1:", "not ", "-", "a[", "f(", "'a' if "}) {
    std::string source = "{{ ";
    for (int i = 0; i < 100'000; ++i) source += part;
    EXPECT_TRUE(FailureOf(source).starts_with("test, line 1: ")) << part;
  }
  for (std::string_view part :
       {" + a", ".a", "|abs", "[0]", "()", " and a", " if a else a", "**a"}) {
    std::string source = "{{ a";
    for (int i = 0; i < 100'000; ++i) source += part;
    EXPECT_TRUE(FailureOf(source + "}}").starts_with("test, line 1: ")) << part;
  }
  std::string blocks;
  for (int i = 0; i < 100'000; ++i) blocks += "{% if a %}";
  EXPECT_NE(FailureOf(blocks).find("nested deeper"), std::string::npos);
}

TEST(Jinja, SearchesTakeLinearTime) {
  // With the sizes given, comparing at every place would take hours.
  const std::string head = "{% set a = 'a' * 3000000 %}{% set b = 'a' * 1500000 %}";
  const auto find = [&](const std::string& expression) {
    return FailureOf(head + "{{ " + expression + " }}");
  };
  EXPECT_EQ(find("(b ~ 'b') in a"), "rendered: False");
  EXPECT_EQ(find("(a ~ 'b').find(b ~ 'b')"), "rendered: 1500000");
  EXPECT_EQ(find("a.find(b ~ 'b')"), "rendered: -1");
  EXPECT_EQ(find("('b' ~ a).rfind('b' ~ b)"), "rendered: 0");
  EXPECT_EQ(find("a.rfind('b' ~ b)"), "rendered: -1");
  EXPECT_EQ(find("a.count(b ~ 'b')"), "rendered: 0");
  EXPECT_EQ(find("a.replace(b ~ 'b', '') | length"), "rendered: 3000000");
  EXPECT_EQ(find("a.rsplit('b' ~ b) | length"), "rendered: 1");
  ExpectAll({
      {"{{ ''.find('') }}{{ ''.rfind('') }}{{ 'ab'.rfind('') }}{{ 'ab'.find('', 2) }}", "0022"},
      {"{{ 'aXbXc'.rfind('X') }}{{ 'aXbXc'.rfind('XY') }}{{ 'a'.rfind('aa') }}", "3-1-1"},
      {"{{ ('a' * 500 ~ 'XX' ~ 'b' * 500).rfind('XX') }}", "500"},
      {"{{ 'aXbXc'.rsplit('X', 1) }}{{ 'aXbXc'.rpartition('X') }}",
       "['aXb', 'c']('aXb', 'X', 'c')"},
      {"{{ '' in '' }}{{ 'é' in 'aé' }}{{ 'b' in 'aé' }}", "TrueTrueFalse"},
  });
}

// A list that holds one list twice, again and again, has exponentially many elements.
TEST(Jinja, EqualityIsBounded) {
  const std::string head =
      "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(50) %}"
      "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}";
  Limits limits;
  limits.steps = 1'000'000;
  for (const std::string expression : {"ns.a == ns.b", "ns.b in [ns.a]", "[ns.a].index(ns.b)"}) {
    EXPECT_NE(FailureOf(head + "{{ " + expression + " }}", "{}", limits).find("steps"),
              std::string::npos)
        << expression;
  }
  EXPECT_EQ(FailureOf(head + "{{ ns.a == ns.a }}", "{}", limits), "rendered: True");
  EXPECT_NE(FailureOf("{% set s = 'a' * 1000000 %}{% set t = 'a' * 1000000 %}"
                      "{% for i in range(1000) %}{% set x = s == t %}{% endfor %}",
                      "{}", limits)
                .find("steps"),
            std::string::npos);
}

TEST(Jinja, CyclesAreReleased) {
  // Leak checkers would report what is not.
  EXPECT_EQ(Render("{% set ns = namespace() %}{% set ns.self = ns %}"
                   "{% macro m() %}{% macro inner() %}{{ ns }}{% endmacro %}{% set ns.f = inner "
                   "%}{% endmacro %}"
                   "{{ m() }}{% for i in [1] %}{% set ns.l = loop %}{% endfor %}{{ ns.l.index }}"),
            "1");
  EXPECT_EQ(Render("{% set ns = namespace(p=none) %}{% for i in range(100000) %}"
                   "{% set ns.p = namespace(p=ns.p) %}{% endfor %}done"),
            "done");
  ExpectFailures(
      {{"{% macro m() %}{% endmacro %}{% set ns = namespace(m=m) %}{% set ns.n = ns %}"
        "{% for i in [1] if m %}{% set ns.l = loop %}{{ 1 / 0 }}{% endfor %}",
        "divided by zero"}});
}

TEST(Jinja, WrongBytes) {
  EXPECT_EQ(Render("a\xff{{ '\xc3' }}b"),
            "a\xEF\xBF\xBD\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(Render("{{ '\\ud800' | length }}"), "1");
  EXPECT_EQ(Render(std::string_view("a\0b{{ '\\x00' }}", 15)), std::string("a\0b\0", 4));
  const Template parsed("{{ x }}{{ d }}", "test");
  EXPECT_EQ(parsed.Render({{"x", Json("\xff")}, {"d", Json{{"\xc3", 1}}}}),
            "\xEF\xBF\xBD{'\xEF\xBF\xBD': 1}");
}

TEST(Jinja, SeveralThreadsRenderAtOnce) {
  const Template parsed("{% for i in range(200) %}{{ 'ab' ~ i ~ x }}{% endfor %}", "test");
  const std::string expected = parsed.Render({{"x", Json(1)}});
  std::vector<std::string> results(4);
  std::vector<std::thread> threads;
  for (std::string& result : results) {
    threads.emplace_back([&] { result = parsed.Render({{"x", Json(1)}}); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& result : results) EXPECT_EQ(result, expected);
}

}  // namespace
}  // namespace adder::text::jinja
