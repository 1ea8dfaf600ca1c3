// Reads a pickle as plain data. A pickle is a program for a small stack machine that can import
// modules and call functions. PyTorch writes its memory snapshots as pickles, although they contain
// only dicts, lists, numbers and strings. PickleDocument runs only the opcodes that build plain
// data. For any other opcode it throws an error with the reason. A snapshot from an untrusted
// source is therefore safe to open: nothing is imported or called, and time and memory are linear
// in the input's size. The caller can also set a limit on memory (`ReadingLimits`).
//
// Values are 16-byte handles into the document. Strings that the input stores verbatim are views
// into the input, so the input has to outlive the document. Several paths may lead to a container,
// and a container may contain itself; code that walks a document has to expect that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace plimsoll {

// Limits for reading an untrusted file.
struct ReadingLimits {
  // The most memory, in bytes, for the values of a document, not including the input itself.
  std::size_t memory = std::numeric_limits<std::size_t>::max();
  // Called at intervals, if it is set. It may throw, for example after a signal, to end the
  // reading.
  std::function<void()> poll;
};

// Thrown when reading needs more memory than the limits allow.
class ReadingLimitError : public std::runtime_error {
 public:
  ReadingLimitError() : std::runtime_error("reading takes more memory than it may") {}
};

class PickleError : public std::runtime_error {
 public:
  static constexpr std::size_t kUnknownOffset = static_cast<std::size_t>(-1);

  explicit PickleError(const std::string& message, std::size_t offset = kUnknownOffset)
      : std::runtime_error(message), offset_(offset) {}

  // Returns the offset of the offending opcode in the input. If an accessor met a value of the
  // wrong kind, returns kUnknownOffset.
  [[nodiscard]] std::size_t offset() const { return offset_; }

 private:
  std::size_t offset_;
};

class PickleValue {
 public:
  enum class Kind : std::uint8_t {
    none,
    boolean,
    integer,
    unsigned_integer,  // used only above the largest std::int64_t
    real,
    string,
    bytes,
    list,
    tuple,
    dict,
    set,
  };

  PickleValue() = default;

  [[nodiscard]] Kind kind() const { return kind_; }

  [[nodiscard]] bool as_bool() const;
  [[nodiscard]] std::int64_t as_int() const;
  [[nodiscard]] std::uint64_t as_unsigned() const;
  [[nodiscard]] double as_real() const;

 private:
  friend class PickleDocument;

  struct Sequence {
    PickleValue* data;
    std::size_t size;
    std::size_t capacity;
  };

  union Payload {
    std::int64_t integer = 0;  // also holds a boolean
    std::uint64_t unsigned_integer;
    double real;
    const char* text;
    Sequence* sequence;
  };

  PickleValue(Kind kind, Payload payload, std::uint32_t text_size = 0)
      : kind_(kind), text_size_(text_size), payload_(payload) {}

  Kind kind_ = Kind::none;
  std::uint32_t text_size_ = 0;
  Payload payload_;
};

static_assert(sizeof(PickleValue) == 16);

// Names a kind for messages: "a list", "an integer", ...
[[nodiscard]] std::string_view kind_name(PickleValue::Kind kind);

// A parsed pickle. Every accessor, here and in PickleValue, throws PickleError if it does not apply
// to the value's kind.
class PickleDocument {
 public:
  PickleDocument(PickleDocument&&) noexcept;
  PickleDocument& operator=(PickleDocument&&) noexcept;
  ~PickleDocument();

  // Parses a pickle. Throws PickleError, ReadingLimitError, and whatever `limits.poll` throws.
  [[nodiscard]] static PickleDocument parse(std::string_view bytes,
                                            const ReadingLimits& limits = {});

  [[nodiscard]] PickleValue root() const { return root_; }

  // Returns the number of values in all containers together. A container to which several paths
  // lead is counted once.
  [[nodiscard]] std::size_t item_count() const { return item_count_; }

  // Returns the content of a string (UTF-8, not validated) or of bytes.
  [[nodiscard]] std::string_view text(PickleValue value) const;

  // Returns the items of a list, tuple or set. For a dict, returns key, value, key, value, …, in
  // the order in which the keys were set. A key that was set twice occurs twice.
  [[nodiscard]] std::span<const PickleValue> items(PickleValue value) const;

  // Returns the value that was set last for a string key; nothing if the dict lacks the key.
  [[nodiscard]] std::optional<PickleValue> find(PickleValue dict, std::string_view key) const;

 private:
  class Reader;
  class Memory;

  explicit PickleDocument(std::size_t most_memory);

  std::unique_ptr<Memory> memory_;
  std::size_t item_count_ = 0;
  PickleValue root_;
};

}  // namespace plimsoll
