#include "plimsoll/formats/pickle.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <limits>
#include <memory_resource>
#include <new>
#include <system_error>
#include <vector>

#include "plimsoll/base/numbers.h"
#include "plimsoll/base/text.h"

namespace plimsoll {
namespace {

using Kind = PickleValue::Kind;

static_assert(std::endian::native == std::endian::little, "pickles hold little-endian integers");

enum class Opcode : unsigned char {
  mark = '(',
  stop = '.',
  pop = '0',
  pop_mark = '1',
  dup = '2',
  proto = 0x80,
  frame = 0x95,

  none = 'N',
  new_true = 0x88,
  new_false = 0x89,
  int_line = 'I',
  long_line = 'L',
  bin_int = 'J',
  bin_int1 = 'K',
  bin_int2 = 'M',
  long1 = 0x8a,
  long4 = 0x8b,
  float_line = 'F',
  bin_float = 'G',

  string_line = 'S',
  bin_string = 'T',
  short_bin_string = 'U',
  unicode_line = 'V',
  short_bin_unicode = 0x8c,
  bin_unicode = 'X',
  bin_unicode8 = 0x8d,
  short_bin_bytes = 'C',
  bin_bytes = 'B',
  bin_bytes8 = 0x8e,
  byte_array8 = 0x96,

  empty_list = ']',
  list = 'l',
  append = 'a',
  appends = 'e',
  empty_tuple = ')',
  tuple = 't',
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  empty_dict = '}',
  dict = 'd',
  set_item = 's',
  set_items = 'u',
  empty_set = 0x8f,
  add_items = 0x90,
  frozen_set = 0x91,

  get_line = 'g',
  bin_get = 'h',
  long_bin_get = 'j',
  put_line = 'p',
  bin_put = 'q',
  long_bin_put = 'r',
  memoize = 0x94,

  // The reader refuses these opcodes.
  global = 'c',
  stack_global = 0x93,
  inst = 'i',
  obj = 'o',
  new_obj = 0x81,
  new_obj_ex = 0x92,
  reduce = 'R',
  build = 'b',
  ext1 = 0x82,
  ext2 = 0x83,
  ext4 = 0x84,
  pers_id = 'P',
  bin_pers_id = 'Q',
  next_buffer = 0x97,
  readonly_buffer = 0x98,
};

constexpr std::uint8_t kHighestProtocol = 5;

template <typename T>
T load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

std::string describe_opcode(char opcode) {
  if (is_printable(opcode)) return std::string("'") + opcode + "'";
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(opcode);
  return std::string("0x") + kDigits[byte >> 4] + kDigits[byte & 15];
}

std::string expected(std::string_view what, Kind found) {
  return std::string("expected ").append(what).append(", found ").append(kind_name(found));
}

// Returns the digit's value; 16 if `c` is not a hexadecimal digit.
unsigned hex_digit(char c) {
  if (c >= '0' && c <= '9') return static_cast<unsigned>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<unsigned>(c - 'a') + 10;
  if (c >= 'A' && c <= 'F') return static_cast<unsigned>(c - 'A') + 10;
  return 16;
}

// Writes a code point as UTF-8 at `to` and returns the position after its last byte. Surrogates are
// encoded like any other code point, as Python's surrogatepass does.
char* write_utf8(char* to, std::uint32_t code) {
  const auto put = [&to](std::uint32_t byte) { *to++ = static_cast<char>(byte); };
  const auto put_rest = [&](int shift) { put(0x80 | (code >> shift & 0x3f)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | code >> 6);
    put_rest(0);
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12);
    put_rest(6);
    put_rest(0);
  } else {
    put(0xf0 | code >> 18);
    put_rest(12);
    put_rest(6);
    put_rest(0);
  }
  return to;
}

}  // namespace

std::string_view kind_name(Kind kind) {
  switch (kind) {
    case Kind::none: return "None";
    case Kind::boolean: return "a boolean";
    case Kind::integer:
    case Kind::unsigned_integer: return "an integer";
    case Kind::real: return "a float";
    case Kind::string: return "a string";
    case Kind::bytes: return "bytes";
    case Kind::list: return "a list";
    case Kind::tuple: return "a tuple";
    case Kind::dict: return "a dict";
    case Kind::set: return "a set";
  }
  return "an unknown value";
}

bool PickleValue::as_bool() const {
  if (kind_ != Kind::boolean) throw PickleError(expected("a boolean", kind_));
  return payload_.integer != 0;
}

std::int64_t PickleValue::as_int() const {
  if (kind_ == Kind::unsigned_integer) {
    throw PickleError("the integer " + std::to_string(payload_.unsigned_integer) + " is too large");
  }
  if (kind_ != Kind::integer) throw PickleError(expected("an integer", kind_));
  return payload_.integer;
}

std::uint64_t PickleValue::as_unsigned() const {
  if (kind_ == Kind::unsigned_integer) return payload_.unsigned_integer;
  if (kind_ != Kind::integer) throw PickleError(expected("an integer", kind_));
  if (payload_.integer < 0) {
    throw PickleError("the integer " + std::to_string(payload_.integer) + " is negative");
  }
  return static_cast<std::uint64_t>(payload_.integer);
}

double PickleValue::as_real() const {
  if (kind_ != Kind::real) throw PickleError(expected("a float", kind_));
  return payload_.real;
}

// Allocates the memory of a document's values and of its reader, up to a limit.
class PickleDocument::Memory {
 public:
  explicit Memory(std::size_t most) : counted_(most), arena_(&counted_) {}

  // Returns the resource for containers that may shrink. Memory that they give back no longer
  // counts toward the limit.
  std::pmr::memory_resource& counted() { return counted_; }
  std::pmr::memory_resource& arena() { return arena_; }

 private:
  class Counted : public std::pmr::memory_resource {
   public:
    explicit Counted(std::size_t most) : left_(most) {}

   private:
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
      if (bytes > left_) throw ReadingLimitError();
      void* const place = std::pmr::new_delete_resource()->allocate(bytes, alignment);
      left_ -= bytes;
      return place;
    }
    void do_deallocate(void* place, std::size_t bytes, std::size_t alignment) override {
      std::pmr::new_delete_resource()->deallocate(place, bytes, alignment);
      left_ += bytes;
    }
    bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
      return this == &other;
    }

    std::size_t left_;
  };

  Counted counted_;
  std::pmr::monotonic_buffer_resource arena_;
};

PickleDocument::PickleDocument(std::size_t most_memory)
    : memory_(std::make_unique<Memory>(most_memory)) {}
PickleDocument::PickleDocument(PickleDocument&&) noexcept = default;
PickleDocument& PickleDocument::operator=(PickleDocument&&) noexcept = default;
PickleDocument::~PickleDocument() = default;

// Runs the opcodes. The stack, the marks and the memo work as in Python's own unpickler;
// `Sequence`s live in the arena.
class PickleDocument::Reader {
 public:
  Reader(std::string_view bytes, Memory& memory, const std::function<void()>& poll)
      : begin_(bytes.data()),
        end_(begin_ + bytes.size()),
        at_(begin_),
        opcode_at_(begin_),
        poll_(poll),
        stack_(&memory.counted()),
        marks_(&memory.counted()),
        memo_(&memory.counted()),
        arena_(memory.arena()) {
    // This takes only address space until values are stored.
    memo_.reserve(bytes.size() / sizeof(PickleValue));
  }

  PickleValue run();

  [[nodiscard]] std::size_t item_count() const { return item_count_; }

 private:
  using Payload = PickleValue::Payload;
  using Sequence = PickleValue::Sequence;

  [[noreturn]] void fail(const std::string& message) const {
    throw PickleError(message, static_cast<std::size_t>(opcode_at_ - begin_));
  }
  [[noreturn]] void refuse_to_run(std::string_view request) const {
    fail("the pickle would run code: it " + std::string(request));
  }
  [[noreturn]] void refuse_import(std::string_view module, std::string_view name) const {
    refuse_to_run("asks for " + printable(module) + '.' + printable(name));
  }
  [[noreturn]] void refuse(Opcode opcode);

  // Functions for the input.

  std::size_t remaining() const { return static_cast<std::size_t>(end_ - at_); }

  const char* take(std::uint64_t count) {
    if (count > remaining()) fail("the pickle is truncated");
    const char* taken = at_;
    at_ += count;
    return taken;
  }
  template <typename T>
  T take() {
    return load<T>(take(sizeof(T)));
  }
  double take_big_endian_double() {
    char bytes[sizeof(double)];
    const char* from = take(sizeof bytes);
    std::reverse_copy(from, from + sizeof bytes, bytes);
    return load<double>(bytes);
  }
  std::string_view take_line() {
    const auto* newline = static_cast<const char*>(std::memchr(at_, '\n', remaining()));
    if (newline == nullptr) fail("the pickle is truncated");
    const std::string_view line(at_, static_cast<std::size_t>(newline - at_));
    at_ = newline + 1;
    return line;
  }
  // Reads a size that is stored as a signed integer, as in some older opcodes.
  std::uint64_t take_size() {
    const auto size = take<std::int32_t>();
    if (size < 0) fail("a size is negative");
    return static_cast<std::uint64_t>(size);
  }
  std::size_t take_index_line();
  void check_protocol();
  void check_frame();

  // Functions for the stack.

  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  // Returns the stack index at which the topmost `count` values begin. All these values must lie
  // above the last mark.
  std::size_t last(std::size_t count) const {
    if (stack_.size() - floor() < count) fail("an opcode needs more values than there are");
    return stack_.size() - count;
  }
  std::size_t pop_mark() {
    if (marks_.empty()) fail("an opcode needs a mark and there is none");
    const std::size_t position = marks_.back();
    marks_.pop_back();
    return position;
  }
  void pop() {
    if (!marks_.empty() && marks_.back() == stack_.size()) {
      marks_.pop_back();
    } else {
      stack_.resize(last(1));
    }
  }

  void push(Kind kind, Payload payload = {}) { stack_.push_back({kind, payload}); }
  void push_bool(bool value) { push(Kind::boolean, {.integer = value ? 1 : 0}); }
  void push_integer(std::int64_t value) { push(Kind::integer, {.integer = value}); }
  void push_int_line(std::string_view line);
  void push_long_line(std::string_view line);
  void push_decimal(std::string_view line);
  void push_long(std::uint64_t size);
  void push_real_line(std::string_view line);
  void push_text(Kind kind, const char* data, std::uint64_t size) {
    if (size > std::numeric_limits<std::uint32_t>::max()) fail("a string is longer than 4 GiB");
    stack_.push_back({kind, {.text = data}, static_cast<std::uint32_t>(size)});
  }
  void push_text(Kind kind, std::uint64_t size) { push_text(kind, take(size), size); }
  void push_string_line(std::string_view line);
  void push_unicode_line(std::string_view line);
  std::uint32_t take_code_point(const char*& from, const char* end, int digits) const;

  // Functions for containers.

  void append(Sequence& sequence, const PickleValue* values, std::size_t count);
  void build(Kind kind, std::size_t first);
  void extend(Kind kind, std::size_t first);
  void check_pairs(Kind kind, std::size_t first) const {
    if (kind == Kind::dict && (stack_.size() - first) % 2 != 0) {
      fail("a dict has a key without a value");
    }
  }

  // Functions for the memo.

  static constexpr Kind kVacant{0xff};

  void memoize(std::size_t index);
  void recall(std::size_t index) {
    if (index >= memo_.size() || memo_[index].kind() == kVacant) {
      fail("a value is used before it is stored: memo " + std::to_string(index));
    }
    stack_.push_back(memo_[index]);
  }

  const char* begin_;
  const char* end_;
  const char* at_;
  const char* opcode_at_;
  const char* frame_end_ = nullptr;
  const std::function<void()>& poll_;
  std::pmr::vector<PickleValue> stack_;
  std::pmr::vector<std::size_t> marks_;
  std::pmr::vector<PickleValue> memo_;
  std::size_t memoized_ = 0;
  std::size_t item_count_ = 0;
  std::pmr::memory_resource& arena_;
};

PickleValue PickleDocument::Reader::run() {
  constexpr std::size_t kStepsBetweenPolls = 1 << 16;
  for (std::size_t step = 1;; ++step) {
    if (step % kStepsBetweenPolls == 0 && poll_) poll_();
    opcode_at_ = at_;
    if (at_ == end_) fail(at_ == begin_ ? "the pickle is empty" : "the pickle is truncated");
    const auto opcode = static_cast<Opcode>(*at_++);
    switch (opcode) {
      case Opcode::mark: marks_.push_back(stack_.size()); continue;
      case Opcode::stop: return stack_[last(1)];
      case Opcode::pop: pop(); continue;
      case Opcode::pop_mark: stack_.resize(pop_mark()); continue;
      case Opcode::dup: stack_.push_back(stack_[last(1)]); continue;
      case Opcode::proto: check_protocol(); continue;
      case Opcode::frame: check_frame(); continue;

      case Opcode::none: push(Kind::none); continue;
      case Opcode::new_true: push_bool(true); continue;
      case Opcode::new_false: push_bool(false); continue;
      case Opcode::int_line: push_int_line(take_line()); continue;
      case Opcode::long_line: push_long_line(take_line()); continue;
      case Opcode::bin_int: push_integer(take<std::int32_t>()); continue;
      case Opcode::bin_int1: push_integer(take<std::uint8_t>()); continue;
      case Opcode::bin_int2: push_integer(take<std::uint16_t>()); continue;
      case Opcode::long1: push_long(take<std::uint8_t>()); continue;
      case Opcode::long4: push_long(take_size()); continue;
      case Opcode::float_line: push_real_line(take_line()); continue;
      case Opcode::bin_float: push(Kind::real, {.real = take_big_endian_double()}); continue;

      case Opcode::string_line: push_string_line(take_line()); continue;
      case Opcode::bin_string: push_text(Kind::string, take_size()); continue;
      case Opcode::short_bin_string: push_text(Kind::string, take<std::uint8_t>()); continue;
      case Opcode::unicode_line: push_unicode_line(take_line()); continue;
      case Opcode::short_bin_unicode: push_text(Kind::string, take<std::uint8_t>()); continue;
      case Opcode::bin_unicode: push_text(Kind::string, take<std::uint32_t>()); continue;
      case Opcode::bin_unicode8: push_text(Kind::string, take<std::uint64_t>()); continue;
      case Opcode::short_bin_bytes: push_text(Kind::bytes, take<std::uint8_t>()); continue;
      case Opcode::bin_bytes: push_text(Kind::bytes, take<std::uint32_t>()); continue;
      case Opcode::bin_bytes8: push_text(Kind::bytes, take<std::uint64_t>()); continue;
      case Opcode::byte_array8: push_text(Kind::bytes, take<std::uint64_t>()); continue;

      case Opcode::empty_list: build(Kind::list, last(0)); continue;
      case Opcode::list: build(Kind::list, pop_mark()); continue;
      case Opcode::append: extend(Kind::list, last(1)); continue;
      case Opcode::appends: extend(Kind::list, pop_mark()); continue;
      case Opcode::empty_tuple: build(Kind::tuple, last(0)); continue;
      case Opcode::tuple: build(Kind::tuple, pop_mark()); continue;
      case Opcode::tuple1: build(Kind::tuple, last(1)); continue;
      case Opcode::tuple2: build(Kind::tuple, last(2)); continue;
      case Opcode::tuple3: build(Kind::tuple, last(3)); continue;
      case Opcode::empty_dict: build(Kind::dict, last(0)); continue;
      case Opcode::dict: build(Kind::dict, pop_mark()); continue;
      case Opcode::set_item: extend(Kind::dict, last(2)); continue;
      case Opcode::set_items: extend(Kind::dict, pop_mark()); continue;
      case Opcode::empty_set: build(Kind::set, last(0)); continue;
      case Opcode::add_items: extend(Kind::set, pop_mark()); continue;
      case Opcode::frozen_set: build(Kind::set, pop_mark()); continue;

      case Opcode::get_line: recall(take_index_line()); continue;
      case Opcode::bin_get: recall(take<std::uint8_t>()); continue;
      case Opcode::long_bin_get: recall(take<std::uint32_t>()); continue;
      case Opcode::put_line: memoize(take_index_line()); continue;
      case Opcode::bin_put: memoize(take<std::uint8_t>()); continue;
      case Opcode::long_bin_put: memoize(take<std::uint32_t>()); continue;
      case Opcode::memoize: memoize(memoized_); continue;

      case Opcode::global:
      case Opcode::stack_global:
      case Opcode::inst:
      case Opcode::obj:
      case Opcode::new_obj:
      case Opcode::new_obj_ex:
      case Opcode::reduce:
      case Opcode::build:
      case Opcode::ext1:
      case Opcode::ext2:
      case Opcode::ext4:
      case Opcode::pers_id:
      case Opcode::bin_pers_id:
      case Opcode::next_buffer:
      case Opcode::readonly_buffer: refuse(opcode);
    }
    fail("this is no pickle, or a damaged one: unknown opcode " + describe_opcode(*opcode_at_));
  }
}

void PickleDocument::Reader::refuse(Opcode opcode) {
  switch (opcode) {
    case Opcode::global:
    case Opcode::inst: {
      const std::string_view module = take_line();
      refuse_import(module, take_line());
    }
    case Opcode::stack_global: {
      const PickleValue module = stack_[last(2)];
      const PickleValue name = stack_.back();
      if (module.kind() != Kind::string || name.kind() != Kind::string) {
        refuse_to_run("imports something (opcode STACK_GLOBAL)");
      }
      refuse_import({module.payload_.text, module.text_size_},
                    {name.payload_.text, name.text_size_});
    }
    case Opcode::obj: refuse_to_run("builds an object (opcode OBJ)");
    case Opcode::new_obj: refuse_to_run("builds an object (opcode NEWOBJ)");
    case Opcode::new_obj_ex: refuse_to_run("builds an object (opcode NEWOBJ_EX)");
    case Opcode::reduce: refuse_to_run("calls a function (opcode REDUCE)");
    case Opcode::build: refuse_to_run("sets the state of an object (opcode BUILD)");
    case Opcode::ext1: refuse_to_run("asks for a registered extension (opcode EXT1)");
    case Opcode::ext2: refuse_to_run("asks for a registered extension (opcode EXT2)");
    case Opcode::ext4: refuse_to_run("asks for a registered extension (opcode EXT4)");
    case Opcode::pers_id:
      fail("the pickle refers to an object stored outside of it (opcode PERSID)");
    case Opcode::bin_pers_id:
      fail("the pickle refers to an object stored outside of it (opcode BINPERSID)");
    case Opcode::next_buffer:
      fail("the pickle refers to a buffer stored outside of it (opcode NEXT_BUFFER)");
    case Opcode::readonly_buffer:
      fail("the pickle refers to a buffer stored outside of it (opcode READONLY_BUFFER)");
    default: fail("the pickle is not plain data");
  }
}

void PickleDocument::Reader::check_protocol() {
  const auto protocol = take<std::uint8_t>();
  if (protocol > kHighestProtocol) {
    fail("pickle protocol " + std::to_string(protocol) + " is not supported");
  }
}

// Checks the size of a frame, which only tells how many bytes the pickler wrote in one piece. The
// opcodes are read as if there were no frames.
void PickleDocument::Reader::check_frame() {
  const auto size = take<std::uint64_t>();
  if (size > remaining()) fail("the pickle is truncated");
  if (frame_end_ != nullptr && at_ < frame_end_) fail("a frame begins inside another");
  frame_end_ = at_ + size;
}

std::size_t PickleDocument::Reader::take_index_line() {
  const auto index = parse_number<std::size_t>(take_line());
  if (!index) fail("a memo index is not a number");
  return *index;
}

void PickleDocument::Reader::push_int_line(std::string_view line) {
  // Protocols 0 and 1 write booleans as 00 and 01.
  if (line == "00" || line == "01") return push_bool(line == "01");
  push_decimal(line);
}

void PickleDocument::Reader::push_long_line(std::string_view line) {
  if (line.ends_with('L')) line.remove_suffix(1);
  push_decimal(line);
}

void PickleDocument::Reader::push_decimal(std::string_view line) {
  const std::string_view digits = line.substr(line.starts_with('-') ? 1 : 0);
  // Python's two unpicklers disagree on whether a leading 0 means octal or an error. So an integer
  // with a leading 0 is refused.
  if (digits.size() > 1 && digits.front() == '0') fail("an integer is malformed");

  const char* end = line.data() + line.size();
  const auto push_if_valid = [&](Kind kind, auto Payload::* member) {
    Payload payload;
    const auto [stopped, error] = std::from_chars(line.data(), end, payload.*member);
    if (error == std::errc::result_out_of_range) return false;
    if (error != std::errc{} || stopped != end) fail("an integer is malformed");
    push(kind, payload);
    return true;
  };
  if (push_if_valid(Kind::integer, &Payload::integer)) return;
  if (line.starts_with('-') || !push_if_valid(Kind::unsigned_integer, &Payload::unsigned_integer)) {
    fail("an integer is too large for 64 bits");
  }
}

// Reads a two's complement integer, least significant byte first. It may have more bytes than it
// needs.
void PickleDocument::Reader::push_long(std::uint64_t size) {
  const char* bytes = take(size);
  if (size == 0) return push_integer(0);
  const bool negative = (load<std::uint8_t>(bytes + size - 1) & 0x80) != 0;
  std::uint64_t value = 0;
  std::memcpy(&value, bytes, std::min<std::uint64_t>(size, sizeof value));
  if (size < sizeof value) {
    if (negative) value |= ~std::uint64_t{0} << (8 * size);
    return push_integer(static_cast<std::int64_t>(value));
  }
  const char fill = negative ? '\xff' : '\0';
  const bool fits =
      std::all_of(bytes + sizeof value, bytes + size, [fill](char byte) { return byte == fill; });
  const bool has_sign_bit = value >> 63 != 0;
  if (!fits || (negative && !has_sign_bit)) fail("an integer is too large for 64 bits");
  if (has_sign_bit && !negative) {
    push(Kind::unsigned_integer, {.unsigned_integer = value});
  } else {
    push_integer(static_cast<std::int64_t>(value));
  }
}

void PickleDocument::Reader::push_real_line(std::string_view line) {
  const auto value = parse_number<double>(line);
  if (!value) fail("a float is malformed");
  push(Kind::real, {.real = *value});
}

// Reads a string literal of Python 2, in quotes.
void PickleDocument::Reader::push_string_line(std::string_view line) {
  if (line.size() < 2 || line.front() != line.back() ||
      (line.front() != '\'' && line.front() != '"')) {
    fail("a string is not in quotes");
  }
  line = line.substr(1, line.size() - 2);
  if (line.find('\\') == line.npos) return push_text(Kind::string, line.data(), line.size());

  auto* decoded = static_cast<char*>(arena_.allocate(line.size(), 1));
  char* to = decoded;
  const char* from = line.data();
  const char* end = from + line.size();
  while (from < end) {
    if (*from != '\\') {
      *to++ = *from++;
      continue;
    }
    if (++from == end) fail("a string ends in the middle of an escape");
    const char escape = *from++;
    switch (escape) {
      case '\\':
      case '\'':
      case '"': *to++ = escape; break;
      case 'a': *to++ = '\a'; break;
      case 'b': *to++ = '\b'; break;
      case 'f': *to++ = '\f'; break;
      case 'n': *to++ = '\n'; break;
      case 'r': *to++ = '\r'; break;
      case 't': *to++ = '\t'; break;
      case 'v': *to++ = '\v'; break;
      case 'x': *to++ = static_cast<char>(take_code_point(from, end, 2)); break;
      default:
        if (escape < '0' || escape > '7') {
          *to++ = '\\';
          *to++ = escape;
          break;
        }
        auto octal = static_cast<unsigned>(escape - '0');
        for (int more = 2; more > 0 && from < end && *from >= '0' && *from <= '7'; --more) {
          octal = octal * 8 + static_cast<unsigned>(*from++ - '0');
        }
        *to++ = static_cast<char>(octal);
    }
  }
  push_text(Kind::string, decoded, static_cast<std::size_t>(to - decoded));
}

// Reads Latin-1 with \uXXXX and \UXXXXXXXX for other characters; there are no other escapes.
void PickleDocument::Reader::push_unicode_line(std::string_view line) {
  const auto is_verbatim = [](char c) { return c != '\\' && (c & 0x80) == 0; };
  if (std::all_of(line.begin(), line.end(), is_verbatim)) {
    return push_text(Kind::string, line.data(), line.size());
  }
  auto* decoded = static_cast<char*>(arena_.allocate(2 * line.size(), 1));
  char* to = decoded;
  const char* from = line.data();
  const char* end = from + line.size();
  while (from < end) {
    std::uint32_t code = static_cast<unsigned char>(*from++);
    if (code == '\\' && from < end) {
      const char escape = *from++;
      if (escape == 'u' || escape == 'U') {
        code = take_code_point(from, end, escape == 'u' ? 4 : 8);
      } else {
        *to++ = '\\';
        code = static_cast<unsigned char>(escape);
      }
    }
    to = write_utf8(to, code);
  }
  push_text(Kind::string, decoded, static_cast<std::size_t>(to - decoded));
}

std::uint32_t PickleDocument::Reader::take_code_point(const char*& from, const char* end,
                                                      int digits) const {
  constexpr std::uint32_t kLargest = 0x10ffff;
  std::uint32_t code = 0;
  for (; digits > 0 && from < end && code <= kLargest; --digits) {
    const unsigned digit = hex_digit(*from++);
    if (digit >= 16) break;
    code = code << 4 | digit;
  }
  if (digits > 0 || code > kLargest) fail("a string has a malformed escape");
  return code;
}

void PickleDocument::Reader::append(Sequence& sequence, const PickleValue* values,
                                    std::size_t count) {
  const std::size_t needed = sequence.size + count;
  if (needed > sequence.capacity) {
    // Most containers get all their items in a single batch, so the first batch gets exactly the
    // room that it needs. If a later batch does not fit, the capacity at least doubles.
    const std::size_t capacity = std::max(needed, 2 * sequence.capacity);
    auto* data = static_cast<PickleValue*>(
        arena_.allocate(capacity * sizeof(PickleValue), alignof(PickleValue)));
    std::uninitialized_copy_n(sequence.data, sequence.size, data);
    sequence.data = data;
    sequence.capacity = capacity;
  }
  std::uninitialized_copy_n(values, count, sequence.data + sequence.size);
  sequence.size = needed;
  item_count_ += count;
}

// Makes a container of the stack's values from index `first` to the top. The container takes their
// place on the stack.
void PickleDocument::Reader::build(Kind kind, std::size_t first) {
  check_pairs(kind, first);
  auto* sequence = new (arena_.allocate(sizeof(Sequence), alignof(Sequence))) Sequence{};
  append(*sequence, stack_.data() + first, stack_.size() - first);
  stack_.resize(first);
  push(kind, {.sequence = sequence});
}

// Takes the values from index `first` upwards off the stack, and appends them to the container that
// lies right below index `first`.
void PickleDocument::Reader::extend(Kind kind, std::size_t first) {
  if (first <= floor()) fail("an opcode needs more values than there are");
  const PickleValue container = stack_[first - 1];
  if (container.kind() != kind) fail(expected(kind_name(kind), container.kind()));
  check_pairs(kind, first);
  append(*container.payload_.sequence, stack_.data() + first, stack_.size() - first);
  stack_.resize(first);
}

void PickleDocument::Reader::memoize(std::size_t index) {
  const PickleValue value = stack_[last(1)];
  if (index == memo_.size()) {
    memo_.push_back(value);
    ++memoized_;
    return;
  }
  if (index > memo_.size()) {
    // Picklers number memo entries one by one, from 0 or 1, so a valid index is below the pickle's
    // size.
    if (index > static_cast<std::size_t>(end_ - begin_)) fail("a memo index is too large");
    memo_.resize(index + 1, PickleValue(kVacant, {}));
  }
  if (memo_[index].kind() == kVacant) ++memoized_;
  memo_[index] = value;
}

PickleDocument PickleDocument::parse(std::string_view bytes, const ReadingLimits& limits) {
  PickleDocument document(limits.memory);
  Reader reader(bytes, *document.memory_, limits.poll);
  document.root_ = reader.run();
  document.item_count_ = reader.item_count();
  return document;
}

std::string_view PickleDocument::text(PickleValue value) const {
  if (value.kind_ != Kind::string && value.kind_ != Kind::bytes) {
    throw PickleError(expected("a string", value.kind_));
  }
  return {value.payload_.text, value.text_size_};
}

std::span<const PickleValue> PickleDocument::items(PickleValue value) const {
  switch (value.kind_) {
    case Kind::list:
    case Kind::tuple:
    case Kind::dict:
    case Kind::set: return {value.payload_.sequence->data, value.payload_.sequence->size};
    default: throw PickleError(expected("a container", value.kind_));
  }
}

std::optional<PickleValue> PickleDocument::find(PickleValue dict, std::string_view key) const {
  if (dict.kind_ != Kind::dict) throw PickleError(expected("a dict", dict.kind_));
  const std::span<const PickleValue> pairs = items(dict);
  for (std::size_t i = pairs.size(); i > 0; i -= 2) {
    const PickleValue candidate = pairs[i - 2];
    if (candidate.kind_ == Kind::string && text(candidate) == key) return pairs[i - 1];
  }
  return std::nullopt;
}

}  // namespace plimsoll
