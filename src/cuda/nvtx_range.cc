#include "cuda/nvtx_range.h"

#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <string>

namespace adder::cuda {
namespace {

// Null when no profiler is attached.
nvtxDomainHandle_t Domain() {
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("adder");
  return domain;
}

}  // namespace

NvtxRange::NvtxRange(std::string_view op_name) {
  if (Domain() == nullptr) return;
  constexpr std::string_view kLayers = "layers.";
  std::string text = op_name.starts_with(kLayers)
                         ? std::string("layer.").append(op_name.substr(kLayers.size()))
                         : std::string(op_name);
  std::replace(text.begin(), text.end(), '.', ' ');
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = text.c_str();
  nvtxDomainRangePushEx(Domain(), &attributes);
}

NvtxRange::~NvtxRange() {
  if (Domain() != nullptr) nvtxDomainRangePop(Domain());
}

}  // namespace adder::cuda
