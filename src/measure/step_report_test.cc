#include "measure/step_report.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "measure/svg_bars.h"
#include "measure/text_table.h"
#include "program/plan_builder_for_test.h"

namespace adder {
namespace {

// Part i takes i + 1 microseconds and one launch, attention two.
std::vector<StepPart> Parts(const Program& program) {
  std::vector<StepPart> parts;
  for (size_t i = 0; i <= program.ops.size(); ++i) {
    const bool attends =
        i < program.ops.size() && std::holds_alternative<AttentionOp>(program.ops[i].body);
    parts.push_back({attends ? 2 : 1, 1e-6 * static_cast<double>(i + 1)});
  }
  return parts;
}

TEST(StepReport, RowsGroupsAndTotal) {
  const Program program = test::TwoLayerPlan().Lower();
  const StepReport report = MakeStepReport(program, Parts(program), 2, 10, {});
  ASSERT_EQ(report.rows.size(), program.ops.size() + 1);
  EXPECT_EQ(report.rows[1].name, "layers.0.mamba2.in_proj");
  EXPECT_EQ(report.rows[1].layer, 0);
  const OpCost cost = CostOf(program, 1, 2, 2, 10);
  EXPECT_EQ(report.rows[1].bytes, cost.weight_bytes + cost.state_bytes);
  EXPECT_EQ(report.rows.back().name, "sample");
  EXPECT_EQ(report.rows.back().bytes, 2 * 4 * program.plan->vocab);

  int64_t launches = 0;
  double seconds = 0;
  int64_t ops = 0;
  for (size_t i = 0; i < report.groups.size(); ++i) {
    launches += report.groups[i].launches;
    seconds += report.groups[i].seconds;
    ops += report.groups[i].ops;
    if (i > 0) {
      EXPECT_GE(report.groups[i - 1].seconds, report.groups[i].seconds);
    }
    if (report.groups[i].name == "mlp.down") {
      EXPECT_EQ(report.groups[i].ops, 2);
      EXPECT_NEAR(report.groups[i].seconds, (9 + 14) * 1e-6, 1e-12);
    }
  }
  EXPECT_EQ(launches, report.total.launches);
  EXPECT_EQ(launches, static_cast<int64_t>(program.ops.size()) + 2);
  EXPECT_EQ(ops, report.total.ops);
  EXPECT_NEAR(seconds, report.total.seconds, 1e-12);
  EXPECT_THROW(MakeStepReport(program, {}, 1, 1, {}), Error);
}

TEST(StepReport, KeysAndValuesHaveTheBackendsSize) {
  const Program program = test::TwoLayerPlan().Lower();
  const int attend = program.FindOp("layers.1.attention.attend");
  const StepBytes wide = BytesOfOp(program, attend, 1, 100, {4, 1});
  const StepBytes narrow = BytesOfOp(program, attend, 1, 100, {2, 1});
  EXPECT_GT(wide.kv, 0);
  EXPECT_EQ(wide.kv, 2 * narrow.kv);
  const StepBytes scan = BytesOfOp(program, program.FindOp("layers.0.mamba2.scan"), 1, 100, {2, 1});
  EXPECT_GT(scan.recurrent, 0);
  EXPECT_EQ(scan.kv, 0);
}

TEST(StepReport, StatesAreWrittenAsOftenAsTheBackendSays) {
  const Program program = test::TwoLayerPlan().Lower();
  const int scan = program.FindOp("layers.0.mamba2.scan");
  const auto& mixer = std::get<Mamba2Op>(program.ops[static_cast<size_t>(scan)].body).mixer;
  const StepBytes always = BytesOfOp(program, scan, 3, 100, {4, 1});
  const StepBytes seldom = BytesOfOp(program, scan, 3, 100, {4, 4});
  const int64_t state = 3 * mixer.inner() * mixer.d_state * 4;
  EXPECT_EQ(always.recurrent - seldom.recurrent, state - state / 4);
  EXPECT_GT(seldom.recurrent, state);
  EXPECT_EQ(always.weights, seldom.weights);
}

TEST(StepReport, TextAndJson) {
  const Program program = test::TwoLayerPlan().Lower();
  const StepReport report = MakeStepReport(program, Parts(program), 1, 10, {});
  const std::string kinds = StepReportText(report, /*full=*/false);
  EXPECT_EQ(kinds.find("layers.0"), std::string::npos);
  EXPECT_NE(kinds.find("\nmlp.down "), std::string::npos);
  EXPECT_NE(kinds.find("\ntotal "), std::string::npos);
  EXPECT_NE(kinds.find("100.0%"), std::string::npos);
  EXPECT_NE(StepReportText(report, /*full=*/true).find("\nlayers.0.mamba2.scan "),
            std::string::npos);
  const Json json = StepReportJson(report);
  EXPECT_EQ(json["ops"].size(), report.rows.size());
  EXPECT_EQ(json["ops"][1]["layer"], 0);
  EXPECT_EQ(json["ops"][1]["op"], 1);
  EXPECT_EQ(json["groups"].size(), report.groups.size());
  EXPECT_EQ(json["total"]["share"], 1);
}

TEST(SvgBars, EscapesAndScales) {
  const std::string svg =
      SvgBars("a < b & c", {{"long", 4, "4 us"}, {"half", 2, ""}, {"no", -1, ""}});
  EXPECT_TRUE(svg.starts_with("<svg xmlns="));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_NE(svg.find("a &lt; b &amp; c"), std::string::npos);
  EXPECT_NE(svg.find("width=\"420\""), std::string::npos);
  EXPECT_NE(svg.find("width=\"210\""), std::string::npos);
  EXPECT_NE(svg.find("width=\"0\""), std::string::npos);
  // Nothing to draw is a file too.
  EXPECT_TRUE(SvgBars("", {}).ends_with("</svg>\n"));
}

TEST(TextTable, AlignsColumns) {
  EXPECT_EQ(TextTable({{"name", "n"}, {"a", "123"}, {"longer"}}),
            "name      n\na       123\nlonger\n");
  EXPECT_EQ(TextTable({}), "");
  EXPECT_EQ(FixedDigits(1.005, 1), "1.0");
}

}  // namespace
}  // namespace adder
