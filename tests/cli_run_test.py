"""adder run: at a terminal (a pseudo-terminal here) and at the end of a pipe."""

from __future__ import annotations

import unittest

from cli_support import (
    ADDER,
    CTRL_C,
    CTRL_D,
    DEMO,
    ERROR,
    LIMIT_SECONDS,
    CommandTest,
    Terminal,
    adder,
    needs_demo,
)


@needs_demo
class TerminalTest(CommandTest):
    """Keys and commands."""

    def open(self, *arguments: str) -> Terminal:
        terminal = Terminal("run", "-m", str(DEMO), *arguments,
                            env={"XDG_STATE_HOME": str(self.folder / "state")})
        self.addCleanup(terminal.close)
        terminal.wait_for(b"> ")
        return terminal

    def test_commands_and_history(self) -> None:
        terminal = self.open("-n", "4", "--seed", "1")
        terminal.send(b"/help\n")
        at = terminal.wait_for(b"/reset")
        terminal.send(b"Once upon a time\n")
        at = terminal.wait_for(b"\n> ", terminal.wait_for(b"Once upon a time", at))
        terminal.send(b"/stats\n")
        at = terminal.wait_for(b"tok/s", at)
        terminal.send(b"/nonsense\n")
        at = terminal.wait_for(b"/help", terminal.wait_for(b"/nonsense", at))
        terminal.send(b"/quit\n")
        self.assertEqual(terminal.exit_code(), 0)
        history = (self.folder / "state/adder/history").read_text()
        self.assertIn("upon", history)

    def test_control_c_stops_a_reply_not_the_program(self) -> None:
        terminal = self.open("-n", "1000", "--temperature", "1", "--seed", "3")
        terminal.send(b"Once upon a time\n")
        at = terminal.wait_for(b"\n", terminal.wait_for(b"Once upon a time"))
        while len(terminal.output) < at + 20:
            self.assertTrue(terminal.read_some(LIMIT_SECONDS))
        terminal.send(CTRL_C)
        at = terminal.wait_for(b"> ", at)
        self.assertLess(len(terminal.output[:at].split()), 900)
        terminal.send(b"/stats\n")
        terminal.wait_for(b"tok/s", at)
        terminal.send(b"/quit\n")
        self.assertEqual(terminal.exit_code(), 0)

    def test_control_c_clears_the_line_and_control_d_quits(self) -> None:
        terminal = self.open("-n", "4")
        terminal.send(b"/quit")
        at = terminal.wait_for(b"/quit")
        terminal.send(CTRL_C)
        at = terminal.wait_for(b"> ", at)
        # Were "/quit" still there, this would be an unknown command that begins with it.
        terminal.send(b"/help\n")
        at = terminal.wait_for(b"/reset", at)
        self.assertFalse(terminal.ended())
        # Before the prompt, while the program writes, the terminal takes the key for its own.
        terminal.wait_for(b"> ", at)
        terminal.send(CTRL_D)
        self.assertEqual(terminal.exit_code(), 0)

    def test_end_of_input_hands_over_what_was_written_during_a_reply(self) -> None:
        terminal = self.open("-n", "100")
        at = terminal.wait_for(b"> ")
        terminal.send(b"Once upon a time\n")
        at = terminal.wait_for(b"Once upon a time\r\n", at)
        # In the terminal's line mode Ctrl-D ends a line without a line break ...
        terminal.send(b"/nonsense" + CTRL_D)
        at = terminal.wait_for(b"There is no command /nonsense;", at)
        # ... and an empty one ends the input.
        at = terminal.wait_for(b"> ", at)
        terminal.send(b"Once upon a time\n")
        terminal.wait_for(b"Once upon a time\r\n", at)
        terminal.send(CTRL_D)
        self.assertEqual(terminal.exit_code(), 0)

    def test_end_of_input_typed_before_a_reply_hands_over_too(self) -> None:
        terminal = self.open("-n", "8")
        at = terminal.wait_for(b"> ")
        # All at once, while the terminal is still in the editor's mode.
        terminal.send(b"Once upon a time\n/nonsense" + CTRL_D)
        at = terminal.wait_for(b"There is no command /nonsense;", at)
        terminal.wait_for(b"> ", at)
        terminal.send(CTRL_D)
        self.assertEqual(terminal.exit_code(), 0)


@needs_demo
class PipeTest(CommandTest):
    """Standard input that is no terminal."""

    def test_lines_continue_one_sequence(self) -> None:
        flags = ("run", "-m", DEMO, "-n", "8", "--temperature", "0")
        one = self.succeed(*flags, stdin="Once upon a time\n")
        again = self.succeed(*flags, stdin="Once upon a time\n/reset\nOnce upon a time\n")
        self.assertEqual(again.count(one.strip()), 2)
        continued = self.succeed(*flags, stdin="Once upon a time\nOnce upon a time\n")
        self.assertTrue(continued.startswith(one.rstrip("\n")))
        self.assertNotEqual(continued.count(one.strip()), 2)

    def test_quit_and_end_of_input(self) -> None:
        self.assertNotIn("tok/s", self.succeed("run", "-m", DEMO, stdin="/quit\n/stats\n"))
        self.succeed("run", "-m", DEMO, stdin="")
        self.assertIn("tok/s", self.succeed("run", "-m", DEMO, stdin="/stats"))

    def test_demo_model_is_the_default(self) -> None:
        self.assertIn("/reset", self.succeed("run", stdin="/help\n"))
        self.assertIn("/reset", self.succeed("run", stdin="/help\n",
                                             env={"ADDER_DEMO_MODEL": str(DEMO)}))

    def test_interrupted_at_a_pipe(self) -> None:
        """Ctrl-C during a reply ends the reply; the rest of the input is still read."""
        self.interrupt(b"Once upon a time\n", "run", "-m", DEMO, "-n", "1000", "--seed", "3")

    def test_bad_values(self) -> None:
        self.fail_with(ERROR, ["max-tokens"], "run", "-m", DEMO, "-n", "0", stdin="")
        self.fail_with(ERROR, ["temperature"], "run", "-m", DEMO, "--temperature", "-1", stdin="x")
        self.assertEqual(adder("run", "-m", DEMO, "--threads", "-2").returncode, 2)


if __name__ == "__main__":
    unittest.main()
