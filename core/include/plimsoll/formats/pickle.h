// A pickle, read as plain data. Python's pickle format is a program for a small stack machine, and
// most of its power is to import and call things; torch writes its memory snapshots in it although
// they are only dicts, lists, numbers and strings. PickleDocument runs the part of the machine that
// builds such plain data and refuses the rest by name, so a snapshot from a stranger is safe to
// open: nothing is ever imported or called, and time and memory are linear in the input's size.
// How much memory that may be, the caller says.
//
// Values are 16-byte handles into the document. Strings are views into the input wherever they are
// stored there verbatim, so the input has to outlive the document. A container can be reached by
// several paths and may even contain itself; code that walks a document has to bear that in mind.
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

// What it may cost to read a file that somebody else made.
struct ReadingLimits {
  // The most memory, in bytes, for the values of a document, beside its input.
  std::size_t memory = std::numeric_limits<std::size_t>::max();
  // Called every so often; what it throws ends the reading, as a signal should.
  std::function<void()> poll;
};

// Reading takes more memory than the limits allow.
class ReadingLimitError : public std::runtime_error {
 public:
  ReadingLimitError() : std::runtime_error("reading takes more memory than it may") {}
};

class PickleError : public std::runtime_error {
 public:
  static constexpr std::size_t kUnknownOffset = static_cast<std::size_t>(-1);

  explicit PickleError(const std::string& message, std::size_t offset = kUnknownOffset)
      : std::runtime_error(message), offset_(offset) {}

  // Where in the input the offending opcode starts; unknown when a value is of the wrong kind.
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
    unsigned_integer,  // only for integers above the largest std::int64_t
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
    std::int64_t integer = 0;  // boolean as well
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

// "a list", "an integer", ...: for messages.
[[nodiscard]] std::string_view kind_name(PickleValue::Kind kind);

// Every accessor, here and in PickleValue, throws PickleError when the value is of another kind.
class PickleDocument {
 public:
  PickleDocument(PickleDocument&&) noexcept;
  PickleDocument& operator=(PickleDocument&&) noexcept;
  ~PickleDocument();

  // Throws PickleError, ReadingLimitError, and what `limits.poll` throws.
  [[nodiscard]] static PickleDocument parse(std::string_view bytes,
                                            const ReadingLimits& limits = {});

  [[nodiscard]] PickleValue root() const { return root_; }

  // How many values all containers together have; each counts where it lies, however often the
  // container is shared.
  [[nodiscard]] std::size_t item_count() const { return item_count_; }

  // The contents of a string (UTF-8, not validated) or of bytes.
  [[nodiscard]] std::string_view text(PickleValue value) const;

  // The items of a list, tuple or set; for a dict key, value, key, value ... in the order in which
  // they were set. A key that was set twice is there twice.
  [[nodiscard]] std::span<const PickleValue> items(PickleValue value) const;

  // The value that was set last for a key which is a string.
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
