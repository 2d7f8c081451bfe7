"""adder template: the prompt that a conversation becomes."""

from __future__ import annotations

import json
import unittest
from pathlib import Path

from cli_support import DEMO, ERROR, SHARED, USAGE, CommandTest, needs_demo

KIT = SHARED / "chat_templates"

TEMPLATE = """{{ bos_token }}{% for message in messages %}
<{{ message.role }}>{{ message.content }}{{ eos_token }}
{% endfor %}
{% if tools %}tools: {{ tools | map(attribute='name') | join(', ') }}
{% endif %}
{% if add_generation_prompt %}<assistant>{% if not enable_thinking | default(true) %}<quiet>{% endif %}{% endif %}
"""
MESSAGES = [{"role": "user", "content": "Grüße\n"}, {"role": "assistant", "content": "Hi"}]
TURNS = "<s><user>Grüße\n</s>\n<assistant>Hi</s>\n"


class TemplateTest(CommandTest):
    """A directory with nothing but a template and its tokens."""

    def setUp(self) -> None:
        super().setUp()
        self.file("tokenizer_config.json", json.dumps({
            "bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "pad_token": None,
            "added_tokens_decoder": {}, "chat_template": TEMPLATE}))
        self.messages = self.file("messages.json", json.dumps(MESSAGES))

    def render(self, *arguments: object, messages: object = None, **options: object) -> str:
        return self.succeed("template", "-m", self.folder, "--messages",
                            self.messages if messages is None else messages, *arguments, **options)

    def test_prints_the_prompt_and_nothing_else(self) -> None:
        self.assertEqual(self.render(), TURNS)
        self.assertEqual(self.render("--add-generation-prompt"), TURNS + "<assistant>")

    def test_tools_variables_and_other_templates(self) -> None:
        tools = self.file("tools.json", '[{"name": "a"}, {"name": "b"}]')
        self.assertEqual(self.render("--tools", tools), TURNS + "tools: a, b\n")
        kwargs = '{"enable_thinking": false, "bos_token": "!"}'
        self.assertEqual(self.render("--add-generation-prompt", "--template-kwargs", kwargs),
                         TURNS.replace("<s>", "!") + "<assistant><quiet>")
        other = self.file("other.jinja", "{{ messages | length }}{{ eos_token }}\n")
        self.assertEqual(self.render("--chat-template", other), "2</s>")

    def test_conversations_from_objects_and_standard_input(self) -> None:
        conversation = json.dumps({"messages": MESSAGES, "tools": [{"name": "c"}]})
        path = self.file("conversation.json", conversation)
        self.assertEqual(self.render(messages=path), TURNS + "tools: c\n")
        self.assertEqual(self.render(messages="-", stdin=conversation), TURNS + "tools: c\n")

    def test_integers_are_exact_or_refused(self) -> None:
        def with_content(number: str) -> Path:
            return self.file("number.json", f'[{{"role": "user", "content": {number}}}]')

        self.assertIn("9223372036854775807", self.render(messages=with_content("9223372036854775807")))
        for number in ("18446744073709551615", "1" + "0" * 30):
            self.fail_with(ERROR, [number, "64 bits"], "template", "-m", self.folder, "--messages",
                           with_content(number))

    def test_which_template_counts(self) -> None:
        named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
        self.file("tokenizer_config.json", json.dumps({"chat_template": named}))
        tools = self.file("tools.json", "[]")
        self.assertEqual(self.render(), "plain")
        self.assertEqual(self.render("--tools", tools), "with tools")
        self.file("chat_template.json", json.dumps({"chat_template": "from json"}))
        self.assertEqual(self.render(), "from json")
        self.file("chat_template.jinja", "from jinja\n")
        self.assertEqual(self.render(), "from jinja")

    def test_tokens_of_an_old_configuration(self) -> None:
        self.file("tokenizer_config.json", json.dumps({"chat_template": "{{ bos_token }}{{ unk_token }}"}))
        self.file("special_tokens_map.json", json.dumps({"bos_token": {"content": "[B]"}, "unk_token": "[U]"}))
        self.assertEqual(self.render(), "[B][U]")

    def fail_to_render(self, words: list[str], messages: str, template: str = "{{ messages }}") -> None:
        self.file("chat_template.jinja", template)
        path = self.file("bad.json", messages)
        self.fail_with(ERROR, words, "template", "-m", self.folder, "--messages", path)

    def test_errors(self) -> None:
        self.fail_with(USAGE, ["--messages"], "template", "-m", self.folder)
        self.fail_with(ERROR, ["missing.json"], "template", "-m", self.folder, "--messages",
                       self.folder / "missing.json")
        self.fail_to_render(["bad.json", "JSON"], "[")
        self.fail_to_render(["array of messages"], "{}")
        self.fail_to_render(["array of objects"], "3")
        self.fail_to_render(["Message 0", "object"], "[3]")
        self.fail_to_render(["Message 1", "role"], '[{"role": "user"}, {"content": "x"}]')
        self.fail_to_render(["role should be a string"], '[{"role": 1}]')
        self.fail_to_render(["chat_template.jinja, line 2", "no more"], "[]",
                            "\n{{ raise_exception('no more') }}")
        self.fail_to_render(["chat_template.jinja, line 1", "not closed"], "[]", "{% if x %}")
        for kwargs, word in (("[]", "object"), ("{", "JSON"), ('{"messages": 1}', "messages")):
            self.file("chat_template.jinja", "x")
            self.fail_with(ERROR, [word], "template", "-m", self.folder, "--messages", self.messages,
                           "--template-kwargs", kwargs)

    @needs_demo
    def test_a_model_without_a_template(self) -> None:
        self.fail_with(ERROR, ["no chat template", "--chat-template"], "template", "-m", DEMO,
                       "--messages", self.messages)

    @unittest.skipUnless(KIT.exists(), f"no chat templates at {KIT} (ADDER_SHARED)")
    def test_agrees_with_the_reference(self) -> None:
        cases = json.loads((KIT / "cases.json").read_text(encoding="utf-8"))["cases"]
        name = "ibm-granite-granite-4.0"
        expected = json.loads((KIT / f"expected/{name}.json").read_text(encoding="utf-8"))
        compared = 0
        for case in cases:
            if "text" not in expected[case["name"]]:
                continue
            path = self.file("case.json", json.dumps({"messages": case["messages"], "tools": case["tools"]}))
            flags = ["--add-generation-prompt"] if case["add_generation_prompt"] else []
            text = self.render("--chat-template", Path(KIT / f"{name}.jinja"), *flags,
                               "--template-kwargs", json.dumps(case["kwargs"]), messages=path)
            self.assertEqual(text, expected[case["name"]]["text"])
            compared += 1
        self.assertGreater(compared, 10)


if __name__ == "__main__":
    unittest.main()
