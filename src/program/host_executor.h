// What executors whose sequence states lie in host memory have in common: the interpreter and the
// CPU executor. They differ in how they run ops.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "program/executor.h"
#include "program/host_state.h"

namespace adder {

class HostExecutor : public Executor {
 public:
  const Program& program() const override { return program_; }

  SequenceId CreateSequence() override { return state_.Create(); }
  void FreeSequence(SequenceId sequence) override { state_.Free(sequence); }
  void ResetSequence(SequenceId sequence) override { state_.Reset(sequence); }
  int64_t Position(SequenceId sequence) const override { return state_.Position(sequence); }
  SequenceId CopySequence(SequenceId sequence) override { return state_.Copy(sequence); }
  std::vector<std::byte> ExportSequence(SequenceId sequence) const override {
    return state_.Export(sequence);
  }
  SequenceId ImportSequence(std::span<const std::byte> bytes) override {
    return state_.Import(bytes);
  }
  int64_t StateBytes() const override { return state_.Bytes(); }

 protected:
  // Verifies the program; throws Error when it is not sound.
  explicit HostExecutor(Program program);

  // Bytes of the weights that every host executor keeps as f32: norms, biases, conv weights.
  int64_t VectorBytes() const;

  const Program program_;
  HostState state_;
};

}  // namespace adder
