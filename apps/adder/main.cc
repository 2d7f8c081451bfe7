// adder: fast inference for hybrid (state-space + attention) language models.
#include <csignal>
#include <exception>
#include <iostream>
#include <new>

#include "adder_version.h"
#include "command.h"
#include "core/error.h"
#include "cpu/cpu_executor.h"
#ifdef ADDER_HAS_CUDA
#include "cuda/cuda_executor.h"
#include "cuda/driver_version.h"
#endif

namespace adder::cli {

namespace {

std::string CudaText() {
#ifdef ADDER_HAS_CUDA
  return Concat(CudaToolkitVersion(), CudaAvailable(nullptr) ? Concat(", driver ", DriverVersion())
                                                             : std::string(", no device"));
#else
  return "none";
#endif
}

}  // namespace

std::string VersionText() {
  return Concat("adder ", ADDER_VERSION, "\ncommit: ", ADDER_COMMIT, "\ncompiler: ", ADDER_COMPILER,
                "\nSIMD target: ", CpuSimdTarget(), "\nCUDA: ", CudaText());
}

namespace {

constexpr int kExitError = 1;
constexpr int kExitUsage = 2;

int Main(int argc, char** argv) {
  CLI::App program("adder runs hybrid (state-space + attention) language models.", "adder");
  // None at all is looked at below: CLI11 would say so of a misspelt one too.
  program.require_subcommand(0, 1);
  program.set_version_flag("--version", [] { return VersionText(); });
  program.failure_message([](const CLI::App* app, const CLI::Error& error) {
    return Concat("adder: ", error.what(), "\nSee ", app->get_name(), " --help.\n");
  });
  AddRunCommand(program);
  AddChatCommand(program);
  AddGenerateCommand(program);
  AddLogitsCommand(program);
  AddInspectCommand(program);
  AddTokenizeCommand(program);
  AddTemplateCommand(program);
  AddPerplexityCommand(program);
  AddQuantizeCommand(program);
  AddSynthesizeCommand(program);
  AddBenchCommand(program);
  AddAuditCommand(program);
  AddFamiliesCommand(program);
  try {
    program.parse(argc, argv);
    if (program.get_subcommands().empty()) {
      std::cerr << "adder: A command is missing.\n" << program.help();
      return kExitUsage;
    }
    return 0;
  } catch (const CLI::ParseError& error) {
    return program.exit(error) == 0 ? 0 : kExitUsage;
  } catch (const Error& error) {
    std::cerr << "adder: " << error.what() << "\n";
  } catch (const std::bad_alloc&) {
    std::cerr << "adder: Out of memory. A smaller model, fewer tokens or a smaller --chunk needs "
                 "less.\n";
  } catch (const std::exception& error) {
    std::cerr << "adder: " << error.what() << "\n";
  }
  return kExitError;
}

}  // namespace
}  // namespace adder::cli

int main(int argc, char** argv) {
  // A reader that goes away (adder generate | head) ends the program without a message, also where
  // the parent process had told its children to ignore the signal.
  std::signal(SIGPIPE, SIG_DFL);
  return adder::cli::Main(argc, argv);
}
