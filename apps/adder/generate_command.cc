// adder generate: continues a prompt.
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <memory>

#include "command.h"
#include "core/error.h"
#include "engine/token_lists.h"
#include "interactive.h"
#include "profile.h"

namespace adder::cli {
namespace {

struct Options {
  ModelOptions model;
  SamplingOptions sampling;
  std::optional<std::string> prompt;
  std::optional<std::string> tokens;
  int64_t max_tokens = 128;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  ProfileOptions profile;
  bool json = false;
};

std::vector<int32_t> PromptTokens(const Options& options, const LoadedModel& model) {
  if (options.tokens) return ParseTokenList(*options.tokens, "--tokens");
  std::string prompt = *options.prompt;
  if (prompt == "-") {
    prompt.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  std::vector<int32_t> ids = RequireTokenizer(model).Encode(prompt, /*add_special_tokens=*/true);
  // An empty prompt asks for a text from its beginning.
  if (ids.empty() && model.begin_id >= 0) ids.push_back(model.begin_id);
  return ids;
}

// As it was given: 0.8, not the digits of the nearest float.
double Decimal(float value) { return std::strtod(Concat(value).c_str(), nullptr); }

Json SamplingJson(const SamplingParameters& sampling) {
  return {{"temperature", Decimal(sampling.temperature)},
          {"top_k", sampling.top_k},
          {"top_p", Decimal(sampling.top_p)},
          {"min_p", Decimal(sampling.min_p)},
          {"repeat_penalty", Decimal(sampling.repeat_penalty)},
          {"seed", sampling.seed}};
}

Json ResultJson(const LoadedModel& model, const std::vector<int32_t>& prompt,
                const SamplingParameters& sampling, const GenerationResult& result) {
  const GenerationTimings& timings = result.timings;
  Json json = {{"model", model.directory.string()},
               {"family", model.plan->family},
               {"device", model.executor->Description()},
               {"prompt_tokens", prompt},
               {"output_tokens", result.tokens},
               {"text", model.tokenizer ? Json(result.text) : Json()},
               {"finish_reason", FinishReasonName(result.finish)}};
  if (result.finish == FinishReason::kStopString) json["stop_string"] = result.stop_string;
  json["sampling"] = SamplingJson(sampling);
  json["timings"] = {{"load_seconds", model.load_seconds},
                     {"prompt_tokens", timings.prompt_tokens},
                     {"prompt_seconds", timings.prompt_seconds},
                     {"prompt_tokens_per_second", timings.PromptRate()},
                     {"decode_tokens", timings.decode_steps},
                     {"decode_seconds", timings.decode_seconds},
                     {"decode_tokens_per_second", timings.DecodeRate()}};
  return json;
}

// The host's times of what was generated, and the parts of the step that would follow.
ProfileResult ProfileAfter(const LoadedModel& model, const GenerationSession& session) {
  return MakeProfile(model, session.result().step_times, session.ProfileStep(), 1,
                     static_cast<int64_t>(session.tokens_run()));
}

void Run(const Options& options) {
  CheckMaxTokens(options.max_tokens);
  const LoadedModel model = Load(options.model);
  const std::vector<int32_t> prompt = PromptTokens(options, model);
  GenerationOptions generation;
  generation.max_tokens = options.max_tokens;
  generation.sampling = ResolveSampling(model.sampling, options.sampling);
  generation.stop_strings = options.stop;
  generation.keep_times = options.profile.wanted();
  if (!options.ignore_eos) generation.end_ids = model.end_ids;

  // The last token is written, not read, so it takes no position.
  CheckPositions(*model.plan, static_cast<int64_t>(prompt.size()), options.max_tokens - 1,
                 "shorten the prompt or lower --max-tokens.");
  GenerationSession session(*model.executor, model.tokenizer.get());
  session.Begin(prompt, generation);
  // Without a tokenizer the ids are the text.
  const char* separator = "";
  while (std::optional<GeneratedPiece> piece = session.Next()) {
    if (options.json) continue;
    if (model.tokenizer) {
      if (!piece->text.empty()) Print(piece->text);
    } else {
      Print(Concat(separator, piece->token));
      separator = ",";
    }
  }
  const GenerationResult& result = session.result();
  std::optional<ProfileResult> profile;
  if (options.profile.wanted()) profile = ProfileAfter(model, session);
  if (options.json) {
    Json json = ResultJson(model, prompt, generation.sampling, result);
    if (profile) json["profile"] = ProfileJson(*profile);
    PrintJson(json);
  } else {
    Print("\n");
    // The text may go to a file.
    if (profile) std::cerr << ProfileText(*profile, options.profile) << "\n";
  }
  if (profile) WriteProfileChart(*profile, options.profile);
  const GenerationTimings& timings = result.timings;
  std::cerr << "prompt: " << timings.prompt_tokens << " tokens, " << Fixed(timings.PromptRate(), 1)
            << " tok/s; decode: " << timings.decode_steps << " tokens, "
            << Fixed(timings.DecodeRate(), 1) << " tok/s\n";
}

}  // namespace

void AddGenerateCommand(CLI::App& program) {
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand("generate", "Continue a prompt");
  AddModelOption(*command, options->model.model)->required();
  CLI::Option* prompt =
      command->add_option("-p,--prompt", options->prompt, "Text to continue; -: standard input");
  CLI::Option* tokens =
      command->add_option("--tokens", options->tokens, "Token ids to continue, such as 1,2,3");
  prompt->excludes(tokens);
  command->add_option("-n,--max-tokens", options->max_tokens, "How many tokens to write at most")
      ->check(CheckWholeNumber)
      ->capture_default_str();
  AddSamplingOptions(*command, options->sampling);
  command->add_option("--stop", options->stop, "End before this text; may be given several times")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
  command->add_flag("--ignore-eos", options->ignore_eos, "Go on after the end-of-text token");
  AddDeviceOptions(*command, options->model);
  AddProfileOptions(*command, options->profile);
  command->add_flag("--json", options->json, "Print one JSON object instead of the text");
  command->callback([options] {
    if (!options->prompt && !options->tokens) {
      throw CLI::RequiredError("generate: one of --prompt and --tokens");
    }
    Run(*options);
  });
}

}  // namespace adder::cli
