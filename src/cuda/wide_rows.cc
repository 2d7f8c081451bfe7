// Ops of WideOps that norm, mix and join rows.
#include "cuda/kernels/rms_norm.h"
#include "cuda/op_params.h"
#include "cuda/wide_ops.h"

namespace adder::cuda {

void WideOps::NormRows(const RmsNorm& norm, BufferId id, int rows, const float* input,
                       float* output) {
  RowUpdateParams update;
  update.norm = MakeRowNorm(norm, program_, weights_);
  update.input = input;
  update.input_stride = update.output_stride = Stride(id);
  update.rows = rows;
  update.width = Width(id);
  update.output = output;
  LaunchRowUpdate(update, stream_.get());
}

void WideOps::UpdateRows(BufferId input, int rows, BufferId output, int column,
                         RowUpdateParams rules) {
  rules.input = WidenedValues(input, rows);
  rules.input_stride = Stride(input);
  rules.rows = rows;
  rules.width = Width(input);
  rules.output = F32Values(output) + column;
  rules.output_stride = Stride(output);
  LaunchRowUpdate(rules, stream_.get());
}

void WideOps::Launch(const JoinOp& op, const Slice& slice) {
  int column = 0;
  for (const BufferId input : op.inputs) {
    UpdateRows(input, slice.rows, op.output, column, {});
    column += Width(input);
  }
}

void WideOps::Launch(const UpdateOp& op, const Slice& slice) {
  UpdateRows(op.input, slice.rows, op.output, 0, RulesOf(op, program_, weights_));
}

void WideOps::Launch(const NormAddOp& op, const Slice& slice) {
  if (op.norm.centered || op.norm.weight == kNoId) {
    RowUpdateParams update;
    update.norm = MakeRowNorm(op.norm, program_, weights_);
    update.scale = op.scale;
    update.keep = 1;
    return UpdateRows(op.input, slice.rows, op.output, 0, update);
  }
  RmsNormParams params;
  params.input = Values(op.input);
  params.stride = Stride(op.input);
  params.rows = slice.rows;
  params.width = Width(op.input);
  params.groups = static_cast<int>(op.norm.groups);
  params.weight = weights_.vector(op.norm.weight);
  params.eps = op.norm.eps;
  params.epilogue = NormEpilogue::kAdd;
  params.scale = op.scale;
  params.output = F32Values(op.output);
  LaunchRmsNorm(params, stream_.get());
}

}  // namespace adder::cuda
