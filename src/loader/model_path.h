// Where a model named on the command line lies.
#pragma once

#include <filesystem>
#include <string>

namespace adder {

// A directory is taken as it is. A name such as "ibm-granite/granite-4.0-h-350m" that is no
// directory is looked up in the local cache of Hugging Face's tools; nothing is downloaded. Throws
// Error saying where it looked.
std::filesystem::path ResolveModelPath(const std::string& name);

// Whether `name` has the form owner/name of the hub: two parts of letters, digits and "-_.",
// neither beginning or ending with "." or "-" or holding "..", "--".
bool IsHubName(const std::string& name);

// HF_HUB_CACHE, else HF_HOME/hub, else XDG_CACHE_HOME/huggingface/hub, else
// ~/.cache/huggingface/hub (https://huggingface.co/docs/huggingface_hub, environment variables).
// Empty when none of the variables nor HOME is set.
std::filesystem::path HubCacheDirectory();

}  // namespace adder
