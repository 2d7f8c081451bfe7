// For tests of what ValidatePlan refuses.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "model/plan.h"

namespace adder::test {

// Expects that `plan` is refused with a message that holds `words`.
inline void ExpectRefused(const Plan& plan, const std::string& words) {
  try {
    ValidatePlan(plan);
    ADD_FAILURE() << "accepted; expected a message with " << words;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos)
        << "\"" << words << "\" is not in: " << error.what();
  }
}

}  // namespace adder::test
