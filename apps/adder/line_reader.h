// Lines from a person at a terminal, with editing and history, or from a pipe.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>

namespace adder::cli {

// While it lives, Ctrl-C (SIGINT) sets a flag instead of ending the program. One at a time.
class InterruptFlag {
 public:
  InterruptFlag();
  ~InterruptFlag();
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;

  static const std::atomic<bool>& raised() { return raised_; }
  // Lowers the flag; returns whether it was raised.
  static bool Take() { return raised_.exchange(false); }

 private:
  static std::atomic<bool> raised_;
};

class LineReader {
 public:
  enum class Outcome { kLine, kInterrupted, kEnd };

  // Edits lines when standard input and output are terminals, and keeps `history` there: the
  // folder is made when it is missing, and a file that cannot be written is no error.
  LineReader(std::string prompt, std::filesystem::path history);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  bool interactive() const { return editor_ != nullptr; }
  // The next line without its end. kInterrupted: Ctrl-C was pressed and the line is dropped.
  // An InterruptFlag must live.
  Outcome Read(std::string& line);

 private:
  struct Editor;
  std::string prompt_;
  std::unique_ptr<Editor> editor_;
};

// $XDG_STATE_HOME/adder/history, else ~/.local/state/adder/history; empty without a home.
std::filesystem::path HistoryFile();

}  // namespace adder::cli
