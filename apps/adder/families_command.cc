// adder families: the model types this build can run.
#include <algorithm>

#include "command.h"
#include "core/error.h"
#include "model/family.h"

namespace adder::cli {

void AddFamiliesCommand(CLI::App& program) {
  CLI::App* command = program.add_subcommand("families", "List the model families adder can run");
  command->callback([] {
    size_t width = 0;
    for (const Family* family : AllFamilies()) width = std::max(width, family->model_type.size());
    std::string text;
    for (const Family* family : AllFamilies()) {
      std::string name(family->model_type);
      name.resize(width, ' ');
      text += Concat(name, "  ", family->description, "\n");
    }
    Print(text);
  });
}

}  // namespace adder::cli
