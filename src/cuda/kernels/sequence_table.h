// What kernels know about the sequences of a batch. Device data: it changes without a new capture
// of the graph.
#pragma once

namespace adder::cuda {

// A run of consecutive tokens of one sequence in a batch. Its rows of the activation buffers are
// [row, row + tokens).
struct SequenceRun {
  float* recurrent;  // the sequence's slot: conv rings and SSM states of all layers
  char** pages;      // its KV pages, page_positions positions each
  int position;      // of the run's first token
  int row;
  int tokens;
  int settled;  // Mamba-2 states have all tokens before this position; see mamba2_deferred.h
};

}  // namespace adder::cuda
