#include "measure/svg_bars.h"

#include <algorithm>
#include <sstream>

namespace adder {
namespace {

// In pixels.
constexpr int kRow = 24;
constexpr int kBar = 16;
constexpr int kTitle = 40;
constexpr int kLabels = 220;
constexpr int kBars = 420;
constexpr int kNotes = 260;

std::string Escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::string SvgBars(const std::string& title, const std::vector<SvgBar>& bars) {
  double largest = 0;
  for (const SvgBar& bar : bars) largest = std::max(largest, bar.value);
  const int width = kLabels + kBars + kNotes;
  const int height = kTitle + kRow * static_cast<int>(bars.size()) + kRow / 2;
  std::ostringstream svg;
  svg << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << width << "\" height=\"" << height
      << "\" viewBox=\"0 0 " << width << ' ' << height
      << "\" font-family=\"sans-serif\" font-size=\"12\">\n"
      << "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      << "<text x=\"8\" y=\"24\" font-size=\"14\">" << Escaped(title) << "</text>\n";
  int y = kTitle;
  for (const SvgBar& bar : bars) {
    const int length =
        largest > 0 ? static_cast<int>(std::max(bar.value, 0.0) / largest * kBars) : 0;
    const int base = y + kBar - 4;
    svg << "<text x=\"" << kLabels - 8 << "\" y=\"" << base << "\" text-anchor=\"end\">"
        << Escaped(bar.label) << "</text>"
        << "<rect x=\"" << kLabels << "\" y=\"" << y << "\" width=\"" << length << "\" height=\""
        << kBar << "\" fill=\"#3b6ea5\"/>"
        << "<text x=\"" << kLabels + length + 6 << "\" y=\"" << base << "\">" << Escaped(bar.note)
        << "</text>\n";
    y += kRow;
  }
  svg << "</svg>\n";
  return svg.str();
}

}  // namespace adder
