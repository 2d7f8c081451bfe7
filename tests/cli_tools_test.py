"""The adder command's tools: tokenize, inspect, perplexity, quantize, synthesize, bench,
audit."""

from __future__ import annotations

import csv
import json
import math
import unittest

from cli_support import (CASE, DEMO, ERROR, GEOMETRY, TOKENIZERS, USAGE, CommandTest, adder,
                         needs_demo, needs_kit, read_tensors)


class TokenizeTest(CommandTest):
    """adder tokenize, on a folder that holds a tokenizer and nothing else."""

    @needs_kit
    def test_agrees_with_the_reference(self) -> None:
        folder = next(path for path in sorted(TOKENIZERS.iterdir()) if path.is_dir())
        expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
        for case in expected["cases"][:6]:
            if not case["text"] or "\0" in case["text"]:
                continue
            path = self.folder / "text"
            path.write_bytes(case["text"].encode())
            for flags, key in (((), "ids"), (("--no-special",), "ids_no_special")):
                ids = [int(i) for i in self.succeed("tokenize", "-m", folder, "--file", path,
                                                    "--ids", *flags).split()]
                self.assertEqual(ids, case[key])
                lines = self.succeed("tokenize", "-m", folder, "--text", case["text"], *flags)
                first = [int(line.split("\t")[0]) for line in lines.rstrip("\n").split("\n")]
                self.assertEqual(first, case[key])
            listed = ",".join(map(str, case["ids_no_special"]))
            text = self.succeed("tokenize", "-m", folder, "--decode", listed)
            self.assertEqual(text, case["decoded"] + "\n")

    @needs_demo
    def test_file_bytes_as_they_are(self) -> None:
        def ids(data: bytes) -> str:
            path = self.folder / "text"
            path.write_bytes(data)
            return self.succeed("tokenize", "-m", DEMO, "--file", path, "--ids", "--no-special")

        def text(line: str) -> str:
            return self.succeed("tokenize", "-m", DEMO, "--decode", ",".join(line.split()))

        self.assertEqual(ids(b""), "\n")
        for data in (b" king \n\n", b"\r\nking\t", b"a\0b", b"\xef\xbb\xbfking"):
            line = ids(data)
            self.assertRegex(line, r"^\d+( \d+)*\n$")
            self.assertEqual(text(line).encode(), data + b"\n")
        # Each longest stretch that begins no character becomes one U+FFFD.
        for data, same in ((b"a\xffb", "a\ufffdb"), (b"\xf0\x9f\x98", "\ufffd"),
                           (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd")):
            self.assertEqual(ids(data), ids(same.encode()))
        with_special = self.succeed("tokenize", "-m", DEMO, "--text", "king", "--ids").split()
        plain = self.succeed("tokenize", "-m", DEMO, "--text", "king", "--ids", "--no-special").split()
        self.assertEqual([i for i in with_special if i in plain], plain)
        report = json.loads(self.succeed("bench", "tokenize", "-m", DEMO, "--file",
                                         DEMO / "heldout_sample.txt", "--repeat", "1", "--json"))
        self.assertEqual(report["bytes"], (DEMO / "heldout_sample.txt").stat().st_size)
        self.assertGreater(report["megabytes_per_second_min"], 0)

    @needs_demo
    def test_errors(self) -> None:
        self.fail_with(USAGE, ["--text"], "tokenize", "-m", DEMO)
        self.fail_with(USAGE, [], "tokenize", "-m", DEMO, "--text", "x", "--decode", "1")
        self.fail_with(ERROR, ["missing"], "tokenize", "-m", DEMO, "--file",
                       self.folder / "missing")
        self.fail_with(ERROR, ["abc"], "tokenize", "-m", DEMO, "--decode", "1,abc")
        self.fail_with(ERROR, ["tokenizer.json"], "tokenize", "-m", self.folder, "--text", "x")
        (self.folder / "tokenizer.json").write_text('{"model": ')
        self.fail_with(ERROR, ["tokenizer.json"], "tokenize", "-m", self.folder, "--text", "x")


class InspectTest(CommandTest):
    """adder inspect."""

    @needs_demo
    def test_json(self) -> None:
        facts = json.loads(self.succeed("inspect", "-m", DEMO, "--json"))
        config = json.loads((DEMO / "config.json").read_text())
        self.assertEqual(facts["family"], "granitemoehybrid")
        self.assertEqual(facts["vocab"], config["vocab_size"])
        self.assertEqual(facts["hidden"], config["hidden_size"])
        self.assertEqual(len(facts["layers"]), config["num_hidden_layers"])
        attention = config["layer_types"].count("attention")
        head_dim = config["hidden_size"] // config["num_attention_heads"]
        kv = 2 * attention * config["num_key_value_heads"] * head_dim * 4
        self.assertEqual(facts["kv_bytes_per_token"], kv)
        inner = config["mamba_n_heads"] * config["mamba_d_head"]
        channels = inner + 2 * config["mamba_n_groups"] * config["mamba_d_state"]
        floats = inner * config["mamba_d_state"] + (config["mamba_d_conv"] - 1) * channels
        mamba = config["num_hidden_layers"] - attention
        state = facts["state_bytes_per_sequence"]
        # Each state begins at a multiple of 16 floats.
        self.assertGreaterEqual(state, 4 * mamba * floats)
        self.assertLess(state, 4 * mamba * (floats + 32))
        size = (DEMO / "model.safetensors").stat().st_size
        # Everything is read, vectors as f32, and one row of the embedding besides.
        self.assertLess(facts["bytes_read_per_token"], 1.02 * size)
        self.assertGreater(facts["bytes_read_per_token"], size // 2)

    @needs_demo
    def test_text(self) -> None:
        text = self.succeed("inspect", "-m", DEMO)
        self.assertIn("Mamba2", text)
        self.assertNotIn("layers.0.mamba2.in_proj", text)
        plan = self.succeed("inspect", "-m", DEMO, "--plan")
        for word in ("residual_scale", "layers.0.mamba2.in_proj", "layers.3.attention.attend"):
            self.assertIn(word, plan)


@needs_demo
class PerplexityTest(CommandTest):
    """adder perplexity, checked against log-probabilities from adder logits."""

    def test_definition(self) -> None:
        text = "Once upon a time there was a king \N{EM DASH} he had three sons.\n"
        path = self.file("text.txt", text)
        ids = [int(i) for i in self.succeed("tokenize", "-m", DEMO, "--file", path, "--ids",
                                            "--no-special").split()]
        window = 7
        windows = [ids[i : i + window] for i in range(0, len(ids), window)]
        begin = json.loads((DEMO / "config.json").read_text())["bos_token_id"]
        prompts = self.file("p.json", json.dumps({"prompts": [[begin, *w[:-1]] for w in windows]}))
        self.succeed("logits", "-m", DEMO, "--prompts", prompts, "--output",
                     self.folder / "logits", "--compute", "f32")
        tensors = read_tensors(self.folder / "logits")
        nats = 0.0
        for i, targets in enumerate(windows):
            (rows, vocab), values = tensors[f"logits_{i}"]
            self.assertEqual(rows, len(targets))
            for row, target in enumerate(targets):
                logits = values[row * vocab : (row + 1) * vocab]
                largest = max(logits)
                log_sum = largest + math.log(sum(math.exp(x - largest) for x in logits))
                nats += log_sum - logits[target]
        result = json.loads(self.succeed("perplexity", "-m", DEMO, "--file", path, "--window",
                                         window, "--compute", "f32", "--json"))
        size = len(text.encode())
        self.assertEqual((result["tokens"], result["bytes"]), (len(ids), size))
        self.assertAlmostEqual(result["nats_per_token"], nats / len(ids), delta=1e-4)
        self.assertAlmostEqual(result["perplexity"], math.exp(nats / len(ids)), delta=1e-2)
        self.assertAlmostEqual(result["bits_per_byte"], nats / math.log(2) / size, delta=1e-4)

    def test_errors(self) -> None:
        empty = self.file("empty", "")
        self.fail_with(ERROR, ["no tokens"], "perplexity", "-m", DEMO, "--file", empty)
        path = self.file("text", "Some text.")
        self.fail_with(ERROR, ["window"], "perplexity", "-m", DEMO, "--file", path,
                       "--window", "0")
        self.fail_with(ERROR, ["missing"], "perplexity", "-m", DEMO, "--file",
                       self.folder / "missing")


class WriteCheckpointTest(CommandTest):
    """adder quantize and adder synthesize."""

    @needs_kit
    def test_quantize(self) -> None:
        output = self.folder / "q"
        self.succeed("quantize", "-m", CASE, "--output", output, "--bits", "8",
                     "--group-size", "32")
        config = json.loads((output / "config.json").read_text())
        self.assertEqual((config["quantization"]["bits"], config["quantization"]["group_size"]),
                         (8, 32))
        prompts = self.file("p.json", '{"prompts": [[5, 9, 100, 3]]}')
        rows = []
        for model in (CASE, output):
            self.succeed("logits", "-m", model, "--prompts", prompts, "--output",
                         self.folder / "out", "--compute", "f32")
            rows.append(read_tensors(self.folder / "out")["logits_0"][1])
        worst = max(abs(a - b) for a, b in zip(*rows))
        # 8 bits change the logits, whose standard deviation is about 3, but little.
        self.assertGreater(worst, 0)
        self.assertLess(worst, 0.5)
        self.fail_with(ERROR, [str(output)], "quantize", "-m", CASE, "--output", output)
        self.fail_with(ERROR, ["quantised"], "quantize", "-m", output, "--output",
                       self.folder / "twice")
        self.fail_with(USAGE, ["--bits"], "quantize", "-m", CASE, "--output", self.folder / "n",
                       "--bits", "7")

    @unittest.skipUnless(GEOMETRY.exists(), f"no geometry at {GEOMETRY}")
    def test_synthesize(self) -> None:
        config = json.loads(GEOMETRY.read_text())
        small = {**config, "num_hidden_layers": 2, "n_layer": 2}
        path = self.file("geometry.json", json.dumps(small))
        texts = []
        for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
            text = self.succeed("synthesize", "--geometry", path, "--output", self.folder / name,
                                "--seed", seed)
            self.assertIn("random", text)
            texts.append(self.succeed("generate", "-m", self.folder / name, "--tokens", "1,2,3",
                                      "-n", "8", "--ignore-eos"))
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])
        self.fail_with(ERROR, ["missing.json"], "synthesize", "--geometry",
                       self.folder / "missing.json", "--output", self.folder / "d")


@needs_demo
class BenchTest(CommandTest):
    """adder bench decode."""

    def test_report_and_csv(self) -> None:
        table = self.folder / "bench.csv"
        flags = ("bench", "decode", "-m", DEMO, "--prompt-tokens", "16", "-n", "4",
                 "--repeat", "2", "--warmup", "0", "--csv", table)
        report = json.loads(self.succeed(*flags, "--json"))
        text = self.succeed(*flags)
        for word in ("prefill", "decode", "bytes per token", "GB/s", "peak memory"):
            self.assertIn(word, text)
        with table.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(len(rows), 2)
        for row in rows:
            self.assertEqual(row["prompt_tokens"], "16")
            for column in ("version", "commit", "simd_target", "threads", "date"):
                self.assertTrue(row[column], column)
        low, middle, high = (report[f"decode_tokens_per_second_{kind}"]
                             for kind in ("min", "median", "max"))
        self.assertTrue(0 < low <= middle <= high)
        attained = middle * sum(report[f"{kind}_bytes_per_step"]
                                for kind in ("weight", "state", "kv"))
        self.assertAlmostEqual(report["attained_bytes_per_second"] / attained, 1, places=6)
        self.assertGreater(report["read_bandwidth_bytes_per_second"], 1e8)
        self.assertGreater(report["peak_resident_bytes"], 1 << 20)
        self.assertEqual(report["state_dtype"], "f32")

    def test_profile(self) -> None:
        flags = ("-m", DEMO, "--device", "cpu", "--json")
        bench = ("bench", "decode", *flags, "--prompt-tokens", "8", "-n", "4", "--repeat", "2",
                 "--warmup", "0")
        self.assertNotIn("profile", json.loads(self.succeed(*bench)))
        for options, variables in ((("--profile",), {}), (("--profile=full",), {}),
                                   ((), {"ADDER_PROFILE_PIPELINE_DETAIL": "1"})):
            profile = json.loads(self.succeed(*bench, *options, env=variables))["profile"]
            self.assertEqual(len(profile["tokens"]), 8)
            for token in profile["tokens"]:
                self.assertGreater(token["forward_seconds"], 0)
                self.assertGreater(token["sample_seconds"], 0)
        text = self.succeed(*(flag for flag in bench if flag != "--json"), "--profile=full")
        for word in ("prepare", "forward", "sample", "wait", "--device cuda"):
            self.assertIn(word, text)
        generate = ("generate", *flags, "-p", "Once", "-n", "5", "--ignore-eos", "--profile")
        report = json.loads(self.succeed(*generate))
        self.assertEqual(len(report["profile"]["tokens"]), report["timings"]["decode_tokens"])
        chart = self.folder / "chart.svg"
        self.fail_with(ERROR, ["--profile-chart", "--device cuda"], *bench, "--profile-chart",
                       chart)
        self.assertFalse(chart.exists())
        self.fail_with(USAGE, ["--profile"], *bench, "--profile=most")

    def test_errors(self) -> None:
        self.fail_with(ERROR, ["repeat"], "bench", "decode", "-m", DEMO, "--repeat", "0")
        self.fail_with(ERROR, ["prompt tokens"], "bench", "decode", "-m", DEMO,
                       "--prompt-tokens", "0")
        other = self.file("other.csv", "a,b\n1,2\n")
        self.fail_with(ERROR, ["other.csv"], "bench", "decode", "-m", DEMO, "--prompt-tokens", "4",
                       "-n", "1", "--repeat", "1", "--warmup", "0", "--csv", other)


class GpuToolsTest(CommandTest):
    """What looks at a GPU says so where there is none."""

    def either_works_or_names_cuda(self, *arguments: object) -> None:
        done = adder(*arguments)
        if done.returncode == 0:
            json.loads(done.stdout)
        else:
            self.fail_with(ERROR, ["CUDA"], *arguments)

    @needs_demo
    def test_audit(self) -> None:
        self.either_works_or_names_cuda("audit", "-m", DEMO, "--steps", "4", "--json")
        for flag, word in (("--steps", "steps"), ("--batch", "sequences"),
                           ("--prompt-tokens", "prompt tokens")):
            self.fail_with(ERROR, [word], "audit", "-m", DEMO, flag, "0")
        self.fail_with(USAGE, ["--steps"], "audit", "-m", DEMO, "--steps", "many")
        self.fail_with(USAGE, ["--tokens"], "audit", "-m", DEMO, "--tokens", "1",
                       "--prompt-tokens", "4")
        self.fail_with(USAGE, ["--model"], "audit")

    def test_bench_conv(self) -> None:
        self.either_works_or_names_cuda("bench", "conv", "--shape", "40x4", "--json")
        for shape in ("4", "x", "0x4", "64x1", "64x9"):
            self.fail_with(ERROR, [f'"{shape}"', "1792x4"], "bench", "conv", "--shape", shape)
        self.fail_with(USAGE, ["--dtype"], "bench", "conv", "--dtype", "f64")


if __name__ == "__main__":
    unittest.main()
