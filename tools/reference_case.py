"""What the tools that make reference cases have in common: prompts, and the logits that an mlx-lm
model computes for them, in the form of the conformance kit's cases.
"""

import argparse
import json
import pathlib

import mlx.core as mx
import numpy as np

PROMPT_LENGTHS = [1, 2, 3, 7, 16, 37, 70]
GREEDY = 24
STEP_LOGITS = 8


def logits_of(model, tokens, cache):
    return np.array(model(mx.array([tokens]), cache=cache)[0].astype(mx.float32))


def expected_logits(model, vocab_size, rng, prompt_lengths=None):
    """The tensors of expected.safetensors, and how much cached and uncached logits differ."""
    expected = {}
    largest = 0.0
    for i, length in enumerate(prompt_lengths or PROMPT_LENGTHS):
        prompt = rng.integers(0, vocab_size, length).tolist()
        cache = make_cache(model)
        prefill = logits_of(model, prompt, cache)
        greedy, margins, steps = [], [], []
        row = prefill[-1]
        for step in range(GREEDY):
            order = np.argsort(row)
            greedy.append(int(order[-1]))
            margins.append(row[order[-1]] - row[order[-2]])
            if step < STEP_LOGITS:
                steps.append(row)
            row = logits_of(model, [greedy[-1]], cache)[0]
        # The same tokens at once: what rounding alone makes different.
        whole = logits_of(model, prompt + greedy, None)
        for step, logits in enumerate(steps):
            largest = max(largest, np.abs(whole[length - 1 + step] - logits).max())
        expected[f"prompt_{i}"] = mx.array(np.array(prompt, np.int32))
        expected[f"prefill_logits_{i}"] = mx.array(whole[:length])
        expected[f"greedy_{i}"] = mx.array(np.array(greedy, np.int32))
        expected[f"step_logits_{i}"] = mx.array(whole[length - 1 : length - 1 + STEP_LOGITS])
        expected[f"margins_{i}"] = mx.array(np.array(margins, np.float32))
        print(f"prompt of {length}: logits {prefill.std():.2f}, {len(set(greedy))} different greedy "
              f"tokens, least margin {min(margins):.4f}")
    print(f"cached against uncached: {largest:.2e}")
    return expected, float(largest)


def make_cache(model):
    if hasattr(model, "make_cache"):
        return model.make_cache()
    from mlx_lm.models.cache import make_prompt_cache
    return make_prompt_cache(model)


def write_case(directory, weights, expected, config, description, largest, file_format="pt"):
    """`description`: name, family, format, params and seed of case.json."""
    directory.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(directory / "model.safetensors"), weights,
                        metadata={"format": file_format})
    mx.save_safetensors(str(directory / "expected.safetensors"), expected, metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    lengths = [len(expected[f"prompt_{i}"].tolist())
               for i in range(sum(name.startswith("prompt_") for name in expected))]
    case = {
        **description,
        "prompt_lengths": lengths,
        "greedy_tokens": GREEDY,
        "step_logits": STEP_LOGITS,
        "reference": "mlx-lm, float32, CPU",
        "cache_vs_nocache_max_abs": largest,
        "suggested_atol": {"fp32_engine": max(2e-4, 30 * largest)},
    }
    (directory / "case.json").write_text(json.dumps(case, indent=1) + "\n")


def make_case(family, implementation, config, seed, random_weights, published,
              prompt_lengths=None):
    """The command line of a tool that makes a case: writes it to the folder that it is given.

    `implementation` is the family's module of mlx-lm; random_weights(model, rng) gives names and
    values, which published(...) brings into the layout of Hugging Face files.
    """
    parser = argparse.ArgumentParser(description=f"Makes a reference case of {family}.")
    parser.add_argument("directory", type=pathlib.Path)
    directory = parser.parse_args().directory
    mx.set_default_device(mx.cpu)
    rng = np.random.default_rng(seed)
    model = implementation.Model(implementation.ModelArgs.from_dict(config))
    weights = random_weights(model, rng)
    model.load_weights([(name, value.astype(mx.float32)) for name, value in weights])
    expected, largest = expected_logits(model, config["vocab_size"], rng, prompt_lengths)
    write_case(directory, published(weights), expected, config,
               {"name": family, "family": family, "format": "hf-safetensors",
                "params": int(sum(value.size for _, value in weights)), "seed": seed}, largest)
