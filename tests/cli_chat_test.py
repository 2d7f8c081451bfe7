"""adder chat: at the end of a pipe and at a terminal, with small templates on the demo model."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import unittest
from pathlib import Path

from cli_support import (
    ADDER,
    CTRL_C,
    CTRL_D,
    DEMO,
    ERROR,
    LIMIT_SECONDS,
    USAGE,
    CommandTest,
    Terminal,
    adder,
    needs_demo,
)

# Writes every turn as it was. With enable_thinking the prompt opens the reasoning.
PLAIN = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {{ '<think>\n' if enable_thinking }}{% endif %}"
)
# Leaves out what earlier answers said.
FORGETFUL = PLAIN.replace("{{ m.content }}", "{{ '...' if m.role == 'assistant' else m.content }}")
GREEDY = ("--temperature", "0", "--compute", "f32")


def render(messages: list[dict[str, str]], forget: bool = False, prompt: bool = True) -> str:
    """What the templates above write."""
    text = ""
    for message in messages:
        forgotten = forget and message["role"] == "assistant"
        text += f"{message['role']}: {'...' if forgotten else message['content']}\n"
    return text + ("assistant: " if prompt else "")


def common_length(one: list[int], two: list[int]) -> int:
    """The length of the longest common prefix."""
    pairs = zip(one, two)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(two)))


@needs_demo
class ChatTest(CommandTest):
    """Helpers: templates as files, and ids."""

    def template(self, text: str = PLAIN) -> Path:
        return self.file("template.jinja", text)

    def chat(self, stdin: str, *arguments: object, template: str = PLAIN) -> str:
        return self.succeed("chat", "-m", DEMO, "--chat-template", self.template(template),
                            *arguments, stdin=stdin)

    def generate(self, prompt: str, tokens: int) -> dict:
        return json.loads(self.succeed("generate", "-m", DEMO, "-p", prompt, "-n", tokens, *GREEDY,
                                       "--json"))


class PipeTest(ChatTest):
    """Standard input that is no terminal."""

    def check_turns(self, template: str, forget: bool) -> None:
        """Every answer is what the rendered prompt gives, and only new tokens are run."""
        saved = self.folder / "saved.json"
        output = self.chat(f"Tell me a tale.\nAnd then?\n/stats\n/save {saved}\n", "-n", 12, *GREEDY,
                           "--system", "You are old.", template=template)
        messages = json.loads(saved.read_text())
        self.assertEqual([m["role"] for m in messages],
                         ["system", "user", "assistant", "user", "assistant"])
        first = self.generate(render(messages[:2], forget), 12)
        second = self.generate(render(messages[:4], forget), 12)
        self.assertEqual(messages[2]["content"], first["text"])
        self.assertEqual(messages[4]["content"], second["text"])
        self.assertTrue(output.startswith(first["text"]))

        ended = first["prompt_tokens"] + first["output_tokens"]
        conversation = self.generate(render(messages[:2], forget, prompt=False), 1)["prompt_tokens"]
        reused = common_length(first["prompt_tokens"], conversation)
        if second["prompt_tokens"][: len(ended)] == ended:
            reused = len(ended) - 1  # the last token was chosen, not run
        self.assertGreater(reused, 8)
        self.assertIn(f"reused   {reused} tokens", output)
        run = len(second["prompt_tokens"]) - reused
        self.assertIn(f"(last reply, {run} tokens)", output)

    def test_turns_that_extend_each_other(self) -> None:
        self.check_turns(PLAIN, forget=False)

    def test_a_template_that_rewrites_the_last_answer(self) -> None:
        self.check_turns(FORGETFUL, forget=True)

    def test_reasoning_is_hidden_unless_asked_for(self) -> None:
        flags = ("-n", 8, *GREEDY, "--template-kwargs", '{"enable_thinking": true}')
        thought = self.generate("user: Tell me a tale.\nassistant: <think>\n", 8)["text"].strip()
        self.assertTrue(thought)
        self.assertEqual(self.chat("Tell me a tale.\n", *flags), "")
        self.assertEqual(self.chat("Tell me a tale.\n", *flags, "--show-reasoning").strip(), thought)
        # Not taken for reasoning when told so.
        self.assertEqual(self.chat("Tell me a tale.\n", *flags, "--reasoning-parser", "none").strip(),
                         thought)
        saved = self.folder / "saved.json"
        self.chat(f"Tell me a tale.\n/save {saved}\n", *flags)
        answer = json.loads(saved.read_text())[-1]
        self.assertEqual(answer["content"], "")
        self.assertEqual(answer["reasoning_content"].strip(), thought)

    def test_commands(self) -> None:
        saved = self.folder / "saved.json"
        output = self.chat(
            f"/help\n\n/nonsense\n/system Be brief.\nTell me.\n/save {saved}\n/exit\n/stats\n",
            "-n", 2, *GREEDY, "--system", "Be long.")
        self.assertIn("/system TEXT", output)
        self.assertIn("There is no command /nonsense", output)
        self.assertNotIn("tok/s", output)
        messages = json.loads(saved.read_text())
        self.assertEqual(messages[0], {"role": "system", "content": "Be brief."})
        self.assertEqual(len(messages), 3)
        for reset in ("/reset", "/clear"):
            output = self.chat(f"Tell me.\n{reset}\n/stats\n/save {saved}\n/quit\n/help\n", "-n", 2,
                               *GREEDY, "--system", "Be long.")
            self.assertIn("tokens   0 in this text", output)
            self.assertNotIn("/system TEXT", output)
            self.assertEqual(json.loads(saved.read_text()),
                             [{"role": "system", "content": "Be long."}])

    def test_answers_differ_and_follow_from_the_seed(self) -> None:
        flags = ("-n", 16, "--temperature", "1", "--seed", "5")
        script = "Tell me a tale.\n/reset\nTell me a tale.\n"
        output = self.chat(script, *flags)
        one, two = output.split("Begun anew.\n")
        self.assertNotEqual(one, two)
        self.assertEqual(self.chat(script, *flags), output)

    def test_template_of_the_model(self) -> None:
        model = self.folder / "model"
        shutil.copytree(DEMO, model)
        (model / "chat_template.jinja").write_text(PLAIN)
        self.assertEqual(self.succeed("chat", "-m", model, "-n", 8, *GREEDY, stdin="Tell me.\n"),
                         self.chat("Tell me.\n", "-n", 8, *GREEDY))

    def test_no_template(self) -> None:
        self.fail_with(ERROR, ["no chat template", "adder run", "--chat-template"], "chat", "-m",
                       DEMO, stdin="x\n")

    def test_bad_values(self) -> None:
        def refuse(words: list[str], *arguments: object, template: str = PLAIN,
                   stdin: str = "x\n") -> None:
            self.fail_with(ERROR, words, "chat", "-m", DEMO, "--chat-template",
                           self.template(template), *arguments, stdin=stdin)

        refuse(["max-tokens"], "-n", "0")
        refuse(["--template-kwargs", "JSON"], "--template-kwargs", "{")
        refuse(["--template-kwargs", "object"], "--template-kwargs", "[1]")
        refuse(["nonsense", "hermes"], "--tool-call-parser", "nonsense")
        refuse(["nonsense", "qwen3"], "--reasoning-parser", "nonsense")
        refuse(["template.jinja"], template="{% if %}")
        refuse(["No, thanks."], template="{{ raise_exception('No, thanks.') }}")
        refuse(["/save"], stdin="/save\n")
        self.fail_with(ERROR, ["missing.jinja"], "chat", "-m", DEMO, "--chat-template",
                       "missing.jinja", stdin="")
        self.assertEqual(adder("chat").returncode, USAGE)

    def test_conversation_longer_than_the_model(self) -> None:
        long = "word " * 1100
        self.fail_with(ERROR, ["1024 positions", "/reset"], "chat", "-m", DEMO, "--chat-template",
                       self.template(), stdin=f"{long}\n")

    def test_wrong_bytes_become_replacement_characters(self) -> None:
        saved = self.folder / "saved.json"
        script = b"/system a\xff\nTell \xed\xa0me.\r\n/save " + str(saved).encode() + b"\r\n"
        done = subprocess.run(
            [ADDER, "chat", "-m", DEMO, "--chat-template", self.template(), "-n", "2", *GREEDY],
            input=script, capture_output=True, timeout=LIMIT_SECONDS, check=False)
        self.assertEqual(done.stderr, b"")
        self.assertEqual(done.returncode, 0)
        messages = json.loads(saved.read_text())
        self.assertEqual(messages[0]["content"], "a\ufffd")
        self.assertRegex(messages[1]["content"], "^Tell \ufffd+me\\.$")

    def test_interrupted_at_a_pipe(self) -> None:
        """Ctrl-C during an answer ends the answer; the rest of the input is still read."""
        self.interrupt(b"Tell me a tale.\n", "chat", "-m", DEMO, "--chat-template",
                       self.template(), "-n", "900", "--temperature", "1", "--seed", "3")


class TerminalTest(ChatTest):
    """Keys, colours, and remarks."""

    def open(self, *arguments: str) -> Terminal:
        terminal = Terminal("chat", "-m", str(DEMO), "--chat-template", str(self.template()),
                            *arguments, env={"XDG_STATE_HOME": str(self.folder / "state")})
        self.addCleanup(terminal.close)
        terminal.wait_for(b"> ")
        return terminal

    def test_reasoning_is_dimmed_or_one_word(self) -> None:
        thinking = ("-n", "4", "--temperature", "0", "--template-kwargs",
                    '{"enable_thinking": true}')
        terminal = self.open(*thinking)
        terminal.send(b"Tell me a tale.\n")
        at = terminal.wait_for("\x1b[2mthinking…\x1b[0m".encode())
        at = terminal.wait_for(b"\r\x1b[K", at)
        terminal.wait_for(b"stopped after 4 tokens", at)
        terminal = self.open(*thinking, "--show-reasoning")
        terminal.send(b"Tell me a tale.\n")
        at = terminal.wait_for(b"\x1b[2m", terminal.wait_for(b"Tell me a tale."))
        shown = terminal.wait_for(b"\x1b[0m", at)
        self.assertRegex(terminal.output[at:shown], rb"\w")
        self.assertNotIn("thinking…".encode(), terminal.output)

    def test_control_c_stops_an_answer_and_control_d_ends(self) -> None:
        terminal = self.open("-n", "900", "--temperature", "1", "--seed", "3")
        terminal.send(b"Tell me a tale.\n")
        at = terminal.wait_for(b"\n", terminal.wait_for(b"Tell me a tale."))
        while len(terminal.output) < at + 20:
            self.assertTrue(terminal.read_some(LIMIT_SECONDS))
        terminal.send(CTRL_C)
        at = terminal.wait_for(b"> ", terminal.wait_for(b"[stopped]", at))
        terminal.send(b"/stats\n")
        at = terminal.wait_for(b"> ", terminal.wait_for(b"reused", at))
        self.assertIsNotNone(re.search(rb"tokens   \d+ in this text", terminal.output))
        terminal.send(CTRL_D)
        self.assertEqual(terminal.exit_code(), 0)

    def test_wrong_bytes_do_not_swallow_the_line_break(self) -> None:
        terminal = self.open("-n", "4")
        terminal.send(b"/st\xffats\xc3\n")
        terminal.wait_for(b"tok/s")

    def test_an_error_is_no_end(self) -> None:
        terminal = self.open("-n", "4")
        terminal.send(b"/save\n")
        at = terminal.wait_for(b"> ", terminal.wait_for(b"needs the name of a file"))
        terminal.send(b"/exit\n")
        self.assertEqual(terminal.exit_code(), 0)
        self.assertGreater(at, 0)


if __name__ == "__main__":
    unittest.main()
