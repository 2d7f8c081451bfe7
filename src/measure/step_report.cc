#include "measure/step_report.h"

#include <algorithm>
#include <map>

#include "core/error.h"
#include "measure/svg_bars.h"
#include "measure/text_table.h"

namespace adder {
namespace {

constexpr int64_t kFloatBytes = 4;

void Add(const StepRow& row, StepRow& sum) {
  sum.ops += row.ops;
  sum.launches += row.launches;
  sum.bytes += row.bytes;
  sum.seconds += row.seconds;
}

std::string KindOfRow(const Program& program, const StepRow& row) {
  return row.op < 0 ? row.name : KindOfOp(program.ops[static_cast<size_t>(row.op)]);
}

double Share(const StepRow& row, const StepRow& total) {
  return total.seconds > 0 ? row.seconds / total.seconds : 0;
}

std::vector<std::string> Cells(const StepRow& row, const StepRow& total) {
  return {row.name,
          std::to_string(row.ops),
          std::to_string(row.launches),
          FixedDigits(static_cast<double>(row.bytes) / 1e6, 3),
          FixedDigits(row.seconds * 1e6, 2),
          FixedDigits(row.seconds * 1e6 / static_cast<double>(std::max<int64_t>(row.ops, 1)), 2),
          FixedDigits(row.bytes_per_second() / 1e9, 0),
          FixedDigits(100 * Share(row, total), 1) + "%"};
}

std::string Table(const std::vector<StepRow>& rows, const StepRow& total) {
  std::vector<std::vector<std::string>> cells{
      {"op", "ops", "launches", "MB", "us", "us each", "GB/s", "share"}};
  for (const StepRow& row : rows) cells.push_back(Cells(row, total));
  cells.push_back(Cells(total, total));
  return TextTable(cells);
}

Json RowJson(const StepRow& row, const StepRow& total) {
  Json json = {{"name", row.name},
               {"launches", row.launches},
               {"predicted_bytes", row.bytes},
               {"seconds", row.seconds},
               {"bytes_per_second", row.bytes_per_second()},
               {"share", Share(row, total)}};
  if (row.op >= 0) json["op"] = row.op;
  if (row.layer >= 0) json["layer"] = row.layer;
  if (row.op < 0) json["ops"] = row.ops;
  return json;
}

Json RowsJson(const std::vector<StepRow>& rows, const StepRow& total) {
  Json json = Json::array();
  for (const StepRow& row : rows) json.push_back(RowJson(row, total));
  return json;
}

}  // namespace

std::string KindOfOp(const Op& op) {
  if (op.layer < 0) return op.name;
  const std::string prefix = Concat("layers.", op.layer, ".");
  return op.name.starts_with(prefix) ? op.name.substr(prefix.size()) : op.name;
}

StepBytes BytesOfOp(const Program& program, int op, int64_t batch, int64_t context,
                    const StateTraffic& traffic) {
  const OpCost cost = CostOf(program, op, batch, batch, context);
  const OpBody& body = program.ops[static_cast<size_t>(op)].body;
  // Costs count keys and values as f32.
  if (std::holds_alternative<AttentionOp>(body)) {
    return {cost.weight_bytes, 0, cost.state_bytes / kFloatBytes * traffic.kv_element_bytes};
  }
  // And that every step writes states.
  if (const auto* mamba = std::get_if<Mamba2Op>(&body)) {
    const int64_t written = batch * mamba->mixer.inner() * mamba->mixer.d_state *
                            static_cast<int64_t>(DTypeSize(program.layout.mamba2_dtype));
    const int64_t spared = written - written / traffic.steps_per_mamba2_write;
    return {cost.weight_bytes, cost.state_bytes - spared, 0};
  }
  return {cost.weight_bytes, cost.state_bytes, 0};
}

StepReport MakeStepReport(const Program& program, const std::vector<StepPart>& parts, int64_t batch,
                          int64_t context, const StateTraffic& traffic) {
  if (parts.size() != program.ops.size() + 1) {
    Fail("A step of ", program.ops.size(), " ops and a choice of tokens cannot have ", parts.size(),
         " parts.");
  }
  StepReport report;
  report.total.name = "total";
  report.total.ops = 0;
  std::map<std::string, StepRow> groups;
  for (size_t i = 0; i < parts.size(); ++i) {
    StepRow row;
    row.launches = parts[i].launches;
    row.seconds = parts[i].seconds;
    if (i < program.ops.size()) {
      row.op = static_cast<int>(i);
      row.layer = program.ops[i].layer;
      row.name = program.ops[i].name;
      row.bytes = BytesOfOp(program, row.op, batch, context, traffic).sum();
    } else {
      row.name = "sample";
      row.bytes = batch * program.plan->vocab * kFloatBytes;
    }
    StepRow& group = groups[KindOfRow(program, row)];
    if (group.name.empty()) {
      group.name = KindOfRow(program, row);
      group.ops = 0;
    }
    Add(row, group);
    Add(row, report.total);
    report.rows.push_back(std::move(row));
  }
  for (const auto& [kind, group] : groups) report.groups.push_back(group);
  std::stable_sort(report.groups.begin(), report.groups.end(),
                   [](const StepRow& a, const StepRow& b) { return a.seconds > b.seconds; });
  return report;
}

std::string StepReportText(const StepReport& report, bool full) {
  const std::string groups = Table(report.groups, report.total);
  return full ? Concat(Table(report.rows, report.total), "\n", groups) : groups;
}

Json StepReportJson(const StepReport& report) {
  return {{"groups", RowsJson(report.groups, report.total)},
          {"ops", RowsJson(report.rows, report.total)},
          {"total", RowJson(report.total, report.total)}};
}

std::string StepReportSvg(const StepReport& report, const std::string& title) {
  std::vector<SvgBar> bars;
  for (const StepRow& group : report.groups) {
    bars.push_back({group.name, group.seconds,
                    Concat(FixedDigits(group.seconds * 1e6, 1), " us, ",
                           FixedDigits(100 * Share(group, report.total), 1), "%, ", group.ops,
                           " ops, ", FixedDigits(group.bytes_per_second() / 1e9, 0), " GB/s")});
  }
  return SvgBars(title, bars);
}

}  // namespace adder
