#include "line_reader.h"

#include <histedit.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <iostream>
#include <utility>

#include "core/error.h"

namespace adder::cli {
namespace {

constexpr int kHistoryLines = 1000;
constexpr char kCtrlD = 4;

struct sigaction previous_action;

}  // namespace

std::atomic<bool> InterruptFlag::raised_{false};

InterruptFlag::InterruptFlag() {
  struct sigaction action {};
  action.sa_handler = [](int) { raised_.store(true); };
  // No SA_RESTART: a read that waits for a line has to return.
  sigaction(SIGINT, &action, &previous_action);
}

InterruptFlag::~InterruptFlag() { sigaction(SIGINT, &previous_action, nullptr); }

struct LineReader::Editor {
  EditLine* line = nullptr;
  History* history = nullptr;
  HistEvent event{};
  std::string prompt;
  std::string file;
  // Bytes that were typed before the terminal left its line mode, and are not read yet.
  int typed_ahead = 0;

  ~Editor() {
    if (line != nullptr) el_end(line);
    if (history != nullptr) history_end(history);
  }
  static Editor& Of(EditLine* line) {
    void* data = nullptr;
    el_get(line, EL_CLIENTDATA, &data);
    return *static_cast<Editor*>(data);
  }
  static char* Prompt(EditLine* line) { return Of(line).prompt.data(); }

  // Reads one character for libedit. libedit's own reader goes on after a signal; this one gives up
  // when Ctrl-C was pressed, so that Read can drop the line.
  static int ReadCharacter(EditLine* line, wchar_t* character) {
    int& typed_ahead = Of(line).typed_ahead;
    std::mbstate_t state{};
    for (;;) {
      if (InterruptFlag::raised()) return -1;
      char byte = 0;
      const ssize_t got = read(STDIN_FILENO, &byte, 1);
      if (got == 0) return 0;
      if (got < 0) {
        if (errno == EINTR) continue;
        return -1;
      }
      // A Ctrl-D of the line mode is kept as a zero, one typed just before that mode came as
      // itself. Either hands over the line written so far, or without one ends the input.
      const bool ahead = typed_ahead > 0;
      if (ahead) --typed_ahead;
      if (ahead && (byte == 0 || byte == kCtrlD)) {
        const LineInfo* info = el_line(line);
        if (info->lastchar == info->buffer) return 0;
        *character = L'\n';
        return 1;
      }
      size_t length = std::mbrtowc(character, &byte, 1, &state);
      if (length == static_cast<size_t>(-1)) {
        // The character before may have been cut off, and this byte be a good one.
        state = {};
        length = std::mbrtowc(character, &byte, 1, &state);
      }
      if (length == static_cast<size_t>(-2)) continue;  // more bytes of this character are to come
      if (length == static_cast<size_t>(-1)) {
        state = {};
        continue;
      }
      return 1;
    }
  }
};

LineReader::LineReader(std::string prompt, std::filesystem::path history)
    : prompt_(std::move(prompt)) {
  if (isatty(STDIN_FILENO) != 1 || isatty(STDOUT_FILENO) != 1) return;
  // libedit works on wide characters, which need a UTF-8 locale for what is typed.
  if (std::setlocale(LC_CTYPE, "") == nullptr || MB_CUR_MAX == 1) {
    std::setlocale(LC_CTYPE, "C.UTF-8");
  }
  auto editor = std::make_unique<Editor>();
  editor->prompt = prompt_;
  editor->line = el_init("adder", stdin, stdout, stderr);
  editor->history = history_init();
  if (editor->line == nullptr || editor->history == nullptr) return;
  el_set(editor->line, EL_CLIENTDATA, editor.get());
  el_set(editor->line, EL_PROMPT, &Editor::Prompt);
  el_set(editor->line, EL_EDITOR, "emacs");
  el_set(editor->line, EL_HIST, ::history, editor->history);
  el_set(editor->line, EL_GETCFN, &Editor::ReadCharacter);
  ::history(editor->history, &editor->event, H_SETSIZE, kHistoryLines);
  ::history(editor->history, &editor->event, H_SETUNIQUE, 1);
  if (!history.empty()) {
    std::error_code error;
    std::filesystem::create_directories(history.parent_path(), error);
    editor->file = history.string();
    ::history(editor->history, &editor->event, H_LOAD, editor->file.c_str());
  }
  editor_ = std::move(editor);
}

LineReader::~LineReader() = default;

LineReader::Outcome LineReader::Read(std::string& line) {
  line.clear();
  if (!editor_) {
    const bool got = static_cast<bool>(std::getline(std::cin, line));
    if (InterruptFlag::Take()) {
      std::cin.clear();
      std::clearerr(stdin);
      return Outcome::kInterrupted;
    }
    if (line.ends_with('\r')) line.pop_back();  // a text of Windows
    return got ? Outcome::kLine : Outcome::kEnd;
  }
  int count = 0;
  // Before the prompt: a Ctrl-D that answers it would otherwise reach the terminal in its line
  // mode, whose end of file libedit does not see.
  el_set(editor_->line, EL_PREP_TERM, 1);
  if (ioctl(STDIN_FILENO, FIONREAD, &editor_->typed_ahead) != 0) editor_->typed_ahead = 0;
  const char* text = el_gets(editor_->line, &count);
  if (InterruptFlag::Take()) {
    std::fputs("^C\n", stdout);
    std::fflush(stdout);
    el_reset(editor_->line);
    return Outcome::kInterrupted;
  }
  if (text == nullptr || count <= 0) return Outcome::kEnd;
  line.assign(text, static_cast<size_t>(count));
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  if (!line.empty()) {
    ::history(editor_->history, &editor_->event, H_ENTER, line.c_str());
    // At once, so that a line survives whatever ends the program.
    if (!editor_->file.empty()) {
      ::history(editor_->history, &editor_->event, H_SAVE, editor_->file.c_str());
    }
  }
  return Outcome::kLine;
}

std::filesystem::path HistoryFile() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state != '\0') {
    return std::filesystem::path(state) / "adder" / "history";
  }
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return {};
  return std::filesystem::path(home) / ".local" / "state" / "adder" / "history";
}

}  // namespace adder::cli
