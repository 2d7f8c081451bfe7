"""The adder command as a person uses it: models, errors, exit codes, generate and logits."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import unittest

from cli_support import (ADDER, CASE, DEMO, ERROR, LIMIT_SECONDS, USAGE, CommandTest, adder,
                         needs_demo, needs_kit, read_tensors)


class ProgramTest(CommandTest):
    """What needs no model."""

    def test_version(self) -> None:
        text = self.succeed("--version")
        self.assertRegex(text, r"^adder \d+\.\d+\.\d+\n")
        for word in ("commit", "compiler", "SIMD", "CUDA: "):
            self.assertIn(word, text)

    def test_help(self) -> None:
        text = self.succeed("--help")
        commands = "run chat generate logits inspect tokenize perplexity quantize synthesize bench audit"
        for command in (*commands.split(), "families"):
            self.assertIn(command, text)
            self.succeed(command, "--help")
        self.assertIn("generation_config.json", self.succeed("generate", "--help"))

    def test_families(self) -> None:
        text = self.succeed("families")
        for family in ("bamba", "granitemoehybrid", "granite", "llama", "mamba", "mamba2"):
            self.assertIn(family, text)

    def test_usage_errors(self) -> None:
        self.fail_with(USAGE, [])
        self.fail_with(USAGE, ["transmogrify"], "transmogrify")
        self.fail_with(USAGE, ["--model"], "generate", "-p", "x")
        self.fail_with(USAGE, ["--frobnicate"], "generate", "-m", "x", "-p", "x", "--frobnicate")
        self.fail_with(USAGE, ["many"], "generate", "-m", "x", "-p", "x", "-n", "many")
        self.fail_with(USAGE, [str(2**80)], "generate", "-m", "x", "-p", "x", "-n", 2**80)
        self.fail_with(USAGE, ["--prompt"], "generate", "-m", "x")
        self.fail_with(USAGE, ["--device"], "generate", "-m", "x", "-p", "x", "--device", "abacus")
        self.fail_with(USAGE, ["--state-dtype"], "generate", "-m", "x", "-p", "x",
                       "--state-dtype", "f8")

    def test_closed_output_is_quiet(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "wb") as output:
            done = subprocess.run([ADDER, "families"], stdout=output, stderr=subprocess.PIPE,
                                  timeout=LIMIT_SECONDS, check=False)
        self.assertEqual(done.returncode, -signal.SIGPIPE)
        self.assertEqual(done.stderr, b"")

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full")
    def test_full_disk(self) -> None:
        with open("/dev/full", "wb") as full:
            done = subprocess.run([ADDER, "families"], stdout=full, stderr=subprocess.PIPE,
                                  timeout=LIMIT_SECONDS, check=False)
        self.assertEqual(done.returncode, ERROR)
        self.assertIn(b"No space left", done.stderr)


class ModelPathTest(CommandTest):
    """-m: a directory or a name of the Hugging Face cache."""

    def test_says_where_it_looked(self) -> None:
        hub = self.folder / "hub"
        self.fail_with(ERROR, ["someone/something", str(hub)],
                       "inspect", "-m", "someone/something", env={"HF_HUB_CACHE": str(hub)})
        self.fail_with(ERROR, [str(self.folder / "home/hub")], "inspect", "-m", "someone/something",
                       env={"HF_HUB_CACHE": "", "HF_HOME": str(self.folder / "home")})
        self.fail_with(ERROR, ["nowhere"], "inspect", "-m", "nowhere")
        self.fail_with(ERROR, ["empty"], "inspect", "-m", "")

    def test_a_file_is_no_model(self) -> None:
        path = self.file("weights", "x")
        self.fail_with(ERROR, [str(path)], "inspect", "-m", path)

    def test_an_empty_directory_is_no_model(self) -> None:
        self.fail_with(ERROR, ["config.json"], "inspect", "-m", self.folder)

    def test_names_do_not_leave_the_cache(self) -> None:
        hub = self.folder / "hub"
        (hub / "models--a--b/refs").mkdir(parents=True)
        (self.folder / "config.json").write_text("{}")
        for name in ("a/..", "../a", "a/b/../..", "a/b/c", "/a", "a//b"):
            self.fail_with(ERROR, [name], "inspect", "-m", name, env={"HF_HUB_CACHE": str(hub)})
        for revision in ("../../..", "/etc", ".", ""):
            (hub / "models--a--b/refs/main").write_text(revision)
            self.fail_with(ERROR, ["refs/main"], "inspect", "-m", "a/b",
                           env={"HF_HUB_CACHE": str(hub)})

    @needs_demo
    def test_cached_model(self) -> None:
        entry = self.folder / "models--some.one--tiny_model"
        (entry / "refs").mkdir(parents=True)
        (entry / "refs/main").write_text("0123abcd\n")
        (entry / "snapshots").mkdir()
        os.symlink(DEMO, entry / "snapshots/0123abcd")
        text = self.succeed("inspect", "-m", "some.one/tiny_model",
                            env={"HF_HUB_CACHE": str(self.folder)})
        self.assertIn("granitemoehybrid", text)


class BadModelTest(CommandTest):
    """Checkpoints that are damaged: a message that names the file, never a crash."""

    def copy_of_case(self) -> Path:
        copy = self.folder / "model"
        shutil.copytree(CASE, copy)
        return copy

    @needs_kit
    def test_truncated_weights(self) -> None:
        model = self.copy_of_case()
        weights = (model / "model.safetensors").read_bytes()
        for size in (0, 7, 8, 100, len(weights) - 1):
            (model / "model.safetensors").write_bytes(weights[:size])
            self.fail_with(ERROR, ["model.safetensors"],
                           "generate", "-m", model, "--tokens", "1", "-n", "1")

    @needs_kit
    def test_missing_files(self) -> None:
        for name in ("model.safetensors", "config.json"):
            model = self.copy_of_case()
            (model / name).unlink()
            self.fail_with(ERROR, [name], "generate", "-m", model, "--tokens", "1", "-n", "1")
            shutil.rmtree(model)

    @needs_kit
    def test_config_and_generation_config(self) -> None:
        model = self.copy_of_case()
        config = json.loads((model / "config.json").read_text())
        config["hidden_size"] = -(2**60)
        (model / "config.json").write_text(json.dumps(config))
        self.fail_with(ERROR, ["config.json", "hidden_size"], "inspect", "-m", model)
        (model / "config.json").write_text('{"model_type": "abacus"}')
        self.fail_with(ERROR, ["abacus", "granitemoehybrid"], "inspect", "-m", model)
        shutil.copy(CASE / "config.json", model / "config.json")
        (model / "generation_config.json").write_text('{"do_sample": true, "temperature": -1}')
        self.fail_with(ERROR, ["generation_config.json", "temperature"],
                       "generate", "-m", model, "--tokens", "1", "-n", "1")


@needs_demo
class GenerateTest(CommandTest):
    """adder generate on the demo model."""

    def generate(self, *arguments: object) -> dict:
        return json.loads(self.succeed("generate", "-m", DEMO, "--json", *arguments))

    def test_streams_text_and_speed(self) -> None:
        done = adder("generate", "-m", DEMO, "-p", "Once upon a time", "-n", "12",
                     "--temperature", "0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(len(done.stdout.split()), 5)
        last = done.stderr.rstrip("\n").split("\n")[-1]
        self.assertRegex(last, r"prompt: .* tok/s.*: .* tok/s$")

    def test_json(self) -> None:
        result = self.generate("-p", "Once upon a time", "-n", "12", "--temperature", "0",
                               "--ignore-eos")
        self.assertEqual(result["finish_reason"], "length")
        self.assertEqual(len(result["output_tokens"]), 12)
        ids = self.succeed("tokenize", "-m", DEMO, "--text", "Once upon a time", "--ids")
        self.assertEqual(result["prompt_tokens"], [int(i) for i in ids.split()])
        text = self.succeed("generate", "-m", DEMO, "-p", "Once upon a time", "-n", "12",
                            "--temperature", "0", "--ignore-eos")
        self.assertEqual(text, result["text"] + "\n")
        self.assertGreater(result["timings"]["decode_tokens_per_second"], 0)
        self.assertGreater(result["timings"]["prompt_tokens_per_second"], 0)

    def test_seed(self) -> None:
        flags = ("-p", "The old house", "-n", "32", "--temperature", "1.1", "--ignore-eos")
        first = self.generate(*flags, "--seed", "7", "--threads", "1")
        again = self.generate(*flags, "--seed", "7", "--threads", "2")
        other = self.generate(*flags, "--seed", "8")
        self.assertEqual(first["output_tokens"], again["output_tokens"])
        self.assertNotEqual(first["output_tokens"], other["output_tokens"])

    def test_unstated_seed_can_be_repeated(self) -> None:
        flags = ("-p", "The old house", "-n", "24", "--temperature", "1.1")
        first = self.generate(*flags)
        again = self.generate(*flags, "--seed", first["sampling"]["seed"])
        self.assertEqual(first["output_tokens"], again["output_tokens"])

    def test_top_k_of_one_is_greedy(self) -> None:
        flags = ("-p", "She said", "-n", "16", "--ignore-eos")
        greedy = self.generate(*flags, "--temperature", "0")
        one = self.generate(*flags, "--temperature", "3", "--top-k", "1", "--seed", "1")
        self.assertEqual(greedy["output_tokens"], one["output_tokens"])

    def test_stop_strings(self) -> None:
        flags = ("-p", "Once upon a time", "-n", "40", "--temperature", "0", "--ignore-eos")
        text = self.generate(*flags)["text"]
        stop = text[9:13]  # begins and ends inside tokens
        result = self.generate(*flags, "--stop", "never in the text \N{SNOWMAN}", "--stop", stop)
        self.assertEqual(result["finish_reason"], "stop_string")
        self.assertEqual(result["text"], text[: text.index(stop)])
        self.fail_with(ERROR, ["stop string"],
                       "generate", "-m", DEMO, "-p", "x", "-n", "1", "--stop", "")

    def test_bad_values(self) -> None:
        for flag, value in (("--temperature", "-1"), ("--temperature", "nan"), ("--top-p", "1.5"),
                            ("--top-p", "0"), ("--min-p", "-0.1"), ("--top-k", "-3"),
                            ("--repeat-penalty", "0"), ("-n", "-1")):
            done = adder("generate", "-m", DEMO, "-p", "x", flag, value)
            self.assertEqual(done.returncode, ERROR, f"{flag} {value}: {done.stderr}")
            self.assertRegex(done.stderr, r"^adder: .*\.\n$")
        for tokens in ("1,x", "-1", str(2**60), "1.5", ",", "4096", "99999"):
            self.fail_with(ERROR, [], "generate", "-m", DEMO, f"--tokens={tokens}", "-n", "1")
        self.fail_with(ERROR, ["CUDA"], "generate", "-m", DEMO, "-p", "x", "--device", "cuda")
        self.fail_with(ERROR, ["CPU", "--state-dtype bf16"], "generate", "-m", DEMO, "-p", "x",
                       "--device", "cpu", "--state-dtype", "bf16")

    @needs_kit
    def test_tokens_without_a_tokenizer(self) -> None:
        expected = read_tensors(CASE / "expected.safetensors")
        prompt = ",".join(map(str, expected["prompt_0"][1]))
        done = adder("generate", "-m", CASE, "--tokens", prompt, "-n", "8", "--ignore-eos",
                     "--compute", "f32")
        self.assertEqual(done.returncode, 0, done.stderr)
        ids = [int(i) for i in done.stdout.replace(",", " ").split()]
        self.assertEqual(ids, list(expected["greedy_0"][1][:8]))
        self.fail_with(ERROR, ["tokenizer.json"], "generate", "-m", CASE, "-p", "x")

    @needs_kit
    def test_state_dtype_of_a_model_without_such_states(self) -> None:
        self.fail_with(ERROR, ["llama", "--state-dtype f16"], "generate", "-m",
                       CASE.parent / "llama", "--tokens", "1", "-n", "1", "--state-dtype", "f16")


class LogitsTest(CommandTest):
    """adder logits."""

    def logits(self, prompts: list[list[int]], *flags: object) -> dict:
        path = self.file("prompts.json", json.dumps({"prompts": prompts}))
        output = self.folder / "out.safetensors"
        self.succeed("logits", "-m", CASE, "--prompts", path, "--output", output, *flags)
        return read_tensors(output)

    @needs_kit
    def test_matches_the_reference_in_every_mode(self) -> None:
        expected = read_tensors(CASE / "expected.safetensors")
        prompts = [list(expected["prompt_0"][1]), list(expected["prompt_1"][1])]
        atol = json.loads((CASE / "case.json").read_text())["suggested_atol"]["fp32_engine"]
        for flags in ((), ("--chunk", "3"), ("--step",), ("--device", "reference")):
            got = self.logits(prompts, "--compute", "f32", *flags)
            self.assertEqual(sorted(got), ["logits_0", "logits_1"])
            for i in range(2):
                shape, values = expected[f"prefill_logits_{i}"]
                self.assertEqual(got[f"logits_{i}"][0], shape)
                worst = max(abs(a - b) for a, b in zip(got[f"logits_{i}"][1], values))
                self.assertLessEqual(worst, atol, flags)

    @needs_kit
    def test_stop_after(self) -> None:
        names = self.succeed("logits", "-m", CASE, "--list-ops").split()
        self.assertEqual([names[0], names[-1]], ["embed", "head"])
        # The embedding of a token does not depend on the others; a scan's output does.
        tensors = self.logits([[5, 9, 5]], "--stop-after", "embed", "--compute", "f32")
        shape, values = tensors["output_0"]
        self.assertEqual(shape, [3, 64])
        self.assertEqual(values[:64], values[128:])
        self.assertNotEqual(values[:64], values[64:128])
        whole = self.logits([[5, 9, 5]], "--stop-after", names[2], "--compute", "f32")
        pieces = self.logits([[5, 9, 5]], "--stop-after", names[2], "--compute", "f32", "--step")
        for a, b in zip(whole["output_0"][1], pieces["output_0"][1]):
            self.assertAlmostEqual(a, b, delta=1e-4)
        path = self.file("p.json", '{"prompts": [[1]]}')
        self.fail_with(ERROR, ["embdd"], "logits", "-m", CASE, "--prompts", path, "--output",
                       self.folder / "o", "--stop-after", "embdd")

    @needs_kit
    def test_bad_prompts(self) -> None:
        bad = ['{"prompts": [[1], [-1]]}', f'{{"prompts": [[{2**60}]]}}', '{"prompts": [[1.5]]}',
               '{"prompts": [[]]}', '{"prompts": []}', '{"prompts": [["1"]]}', "[]", "{", "",
               "[" * 100000, '{"prompts": [[225]]}', '{"prompts": [[NaN]]}', '{"promts": [[1]]}']
        for text in bad:
            path = self.file("prompts.json", text)
            self.fail_with(ERROR, ["prompts.json"], "logits", "-m", CASE, "--prompts", path,
                           "--output", self.folder / "out")
            self.assertFalse((self.folder / "out").exists(), text)
        self.fail_with(ERROR, ["missing.json"], "logits", "-m", CASE, "--prompts",
                       self.folder / "missing.json", "--output", self.folder / "out")
        path = self.file("prompts.json", '{"prompts": [[1]]}')
        self.fail_with(ERROR, ["nowhere"], "logits", "-m", CASE, "--prompts", path,
                       "--output", self.folder / "nowhere/out")
        self.fail_with(USAGE, ["--chunk"], "logits", "-m", CASE, "--prompts", path,
                       "--output", self.folder / "out", "--chunk", "0")


if __name__ == "__main__":
    unittest.main()
