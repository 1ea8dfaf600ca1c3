#include "plimsoll/formats/pickle.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "check.h"
#include "support.h"

using namespace std::string_view_literals;
using plimsoll::message_of;
using plimsoll::PickleDocument;
using plimsoll::PickleError;
using plimsoll::PickleValue;
using plimsoll::ReadingLimitError;
using plimsoll::ReadingLimits;
using Kind = PickleValue::Kind;

namespace {

// Results of pickle.dumps(value, protocol) in Python 3.11 for protocols 0 to 5, of the value
//   shared = ["x"]
//   {"none": None, "yes": True, "no": False, "small": 7, "medium": 300, "minus": -70000,
//    "large": 2**40, "lowest": -2**63, "highest": 2**64 - 1, "real": -2.5,
//    "text": "h\u00e9 \u20ac \U0001f600\n\\", "list": [1, [2], []],
//    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)], "dict": {1: "one"},
//    "same": [shared, shared]}
constexpr std::array kProtocols = {
    "(dp0\012Vnone\012p1\012NsVyes\012p2\012I01\012sVno\012p3\012I00\012sVsmall\012p4\012I7"
    "\012sVmedium\012p5\012I300\012sVminus\012p6\012I-70000\012sVlarge\012p7\012L109951162777"
    "6L\012sVlowest\012p8\012L-9223372036854775808L\012sVhighest\012p9\012L184467440737095516"
    "15L\012sVreal\012p10\012F-2.5\012sVtext\012p11\012Vh\351 \134u20ac \134U0001f600\134u000"
    "a\134u005c\012p12\012sVlist\012p13\012(lp14\012I1\012a(lp15\012I2\012aa(lp16\012asVtuple"
    "s\012p17\012(lp18\012(ta(I1\012tp19\012a(I1\012I2\012tp20\012a(I1\012I2\012I3\012tp21"
    "\012a(I1\012I2\012I3\012I4\012tp22\012asVdict\012p23\012(dp24\012I1\012Vone\012p25\012ss"
    "Vsame\012p26\012(lp27\012(lp28\012Vx\012p29\012aag28\012as."sv,
    "}q\000(X\004\000\000\000noneq\001NX\003\000\000\000yesq\002I01\012X\002\000\000\000noq"
    "\003I00\012X\005\000\000\000smallq\004K\007X\006\000\000\000mediumq\005M,\001X\005\000"
    "\000\000minusq\006J\220\356\376\377X\005\000\000\000largeq\007L1099511627776L\012X\006"
    "\000\000\000lowestq\010L-9223372036854775808L\012X\007\000\000\000highestq\011L184467440"
    "73709551615L\012X\004\000\000\000realq\012G\300\004\000\000\000\000\000\000X\004\000\000"
    "\000textq\013X\016\000\000\000h\303\251 \342\202\254 \360\237\230\200\012\134q\014X\004"
    "\000\000\000listq\015]q\016(K\001]q\017K\002a]q\020eX\006\000\000\000tuplesq\021]q\022()"
    "(K\001tq\023(K\001K\002tq\024(K\001K\002K\003tq\025(K\001K\002K\003K\004tq\026eX\004\000"
    "\000\000dictq\027}q\030K\001X\003\000\000\000oneq\031sX\004\000\000\000sameq\032]q\033(]"
    "q\034X\001\000\000\000xq\035ah\034eu."sv,
    "\200\002}q\000(X\004\000\000\000noneq\001NX\003\000\000\000yesq\002\210X\002\000\000\000"
    "noq\003\211X\005\000\000\000smallq\004K\007X\006\000\000\000mediumq\005M,\001X\005\000"
    "\000\000minusq\006J\220\356\376\377X\005\000\000\000largeq\007\212\006\000\000\000\000"
    "\000\001X\006\000\000\000lowestq\010\212\010\000\000\000\000\000\000\000\200X\007\000"
    "\000\000highestq\011\212\011\377\377\377\377\377\377\377\377\000X\004\000\000\000realq"
    "\012G\300\004\000\000\000\000\000\000X\004\000\000\000textq\013X\016\000\000\000h\303"
    "\251 \342\202\254 \360\237\230\200\012\134q\014X\004\000\000\000listq\015]q\016(K\001]q"
    "\017K\002a]q\020eX\006\000\000\000tuplesq\021]q\022()K\001\205q\023K\001K\002\206q\024K"
    "\001K\002K\003\207q\025(K\001K\002K\003K\004tq\026eX\004\000\000\000dictq\027}q\030K\001"
    "X\003\000\000\000oneq\031sX\004\000\000\000sameq\032]q\033(]q\034X\001\000\000\000xq\035"
    "ah\034eu."sv,
    "\200\003}q\000(X\004\000\000\000noneq\001NX\003\000\000\000yesq\002\210X\002\000\000\000"
    "noq\003\211X\005\000\000\000smallq\004K\007X\006\000\000\000mediumq\005M,\001X\005\000"
    "\000\000minusq\006J\220\356\376\377X\005\000\000\000largeq\007\212\006\000\000\000\000"
    "\000\001X\006\000\000\000lowestq\010\212\010\000\000\000\000\000\000\000\200X\007\000"
    "\000\000highestq\011\212\011\377\377\377\377\377\377\377\377\000X\004\000\000\000realq"
    "\012G\300\004\000\000\000\000\000\000X\004\000\000\000textq\013X\016\000\000\000h\303"
    "\251 \342\202\254 \360\237\230\200\012\134q\014X\004\000\000\000listq\015]q\016(K\001]q"
    "\017K\002a]q\020eX\006\000\000\000tuplesq\021]q\022()K\001\205q\023K\001K\002\206q\024K"
    "\001K\002K\003\207q\025(K\001K\002K\003K\004tq\026eX\004\000\000\000dictq\027}q\030K\001"
    "X\003\000\000\000oneq\031sX\004\000\000\000sameq\032]q\033(]q\034X\001\000\000\000xq\035"
    "ah\034eu."sv,
    "\200\004\225\002\001\000\000\000\000\000\000}\224(\214\004none\224N\214\003yes\224\210"
    "\214\002no\224\211\214\005small\224K\007\214\006medium\224M,\001\214\005minus\224J\220"
    "\356\376\377\214\005large\224\212\006\000\000\000\000\000\001\214\006lowest\224\212\010"
    "\000\000\000\000\000\000\000\200\214\007highest\224\212\011\377\377\377\377\377\377\377"
    "\377\000\214\004real\224G\300\004\000\000\000\000\000\000\214\004text\224\214\016h\303"
    "\251 \342\202\254 \360\237\230\200\012\134\224\214\004list\224]\224(K\001]\224K\002a]"
    "\224e\214\006tuples\224]\224()K\001\205\224K\001K\002\206\224K\001K\002K\003\207\224(K"
    "\001K\002K\003K\004t\224e\214\004dict\224}\224K\001\214\003one\224s\214\004same\224]\224"
    "(]\224\214\001x\224ah\034eu."sv,
    "\200\005\225\002\001\000\000\000\000\000\000}\224(\214\004none\224N\214\003yes\224\210"
    "\214\002no\224\211\214\005small\224K\007\214\006medium\224M,\001\214\005minus\224J\220"
    "\356\376\377\214\005large\224\212\006\000\000\000\000\000\001\214\006lowest\224\212\010"
    "\000\000\000\000\000\000\000\200\214\007highest\224\212\011\377\377\377\377\377\377\377"
    "\377\000\214\004real\224G\300\004\000\000\000\000\000\000\214\004text\224\214\016h\303"
    "\251 \342\202\254 \360\237\230\200\012\134\224\214\004list\224]\224(K\001]\224K\002a]"
    "\224e\214\006tuples\224]\224()K\001\205\224K\001K\002\206\224K\001K\002K\003\207\224(K"
    "\001K\002K\003K\004t\224e\214\004dict\224}\224K\001\214\003one\224s\214\004same\224]\224"
    "(]\224\214\001x\224ah\034eu."sv,
};

constexpr std::string_view kPlainData =
    "{'none': None, 'yes': True, 'no': False, 'small': 7, 'medium': 300, 'minus': -70000, "
    "'large': 1099511627776, 'lowest': -9223372036854775808, 'highest': 18446744073709551615, "
    "'real': -2.500000, 'text': 'h\u00e9 \u20ac \U0001f600\n\\', 'list': [1, [2], []], "
    "'tuples': [(), (1,), (1, 2,), (1, 2, 3,), (1, 2, 3, 4,)], 'dict': {1: 'one'}, "
    "'same': [['x'], ['x']]}";

// [{1}, frozenset([2, 3]), b"by\0", bytearray(b"arr")] in protocol 5.
constexpr std::string_view kSetsAndBytes =
    "\200\005\225%\000\000\000\000\000\000\000]\224(\217\224(K\001\220(K\002K\003\221\224C"
    "\003by\000\224\226\003\000\000\000\000\000\000\000arr\224e."sv;

std::string show(const PickleDocument& document, PickleValue value, int depth = 0);

std::string show_items(const PickleDocument& document, PickleValue value, int depth) {
  std::string result;
  bool is_key = true;
  for (const PickleValue item : document.items(value)) {
    const bool after_key = value.kind() == Kind::dict && !is_key;
    if (after_key) {
      result += ": ";
    } else if (!result.empty()) {
      result += ", ";
    }
    result += show(document, item, depth + 1);
    is_key = !is_key;
  }
  return result;
}

std::string show(const PickleDocument& document, PickleValue value, int depth) {
  if (depth > 4) return "...";
  switch (value.kind()) {
    case Kind::none: return "None";
    case Kind::boolean: return value.as_bool() ? "True" : "False";
    case Kind::integer: return std::to_string(value.as_int());
    case Kind::unsigned_integer: return std::to_string(value.as_unsigned());
    case Kind::real: return std::to_string(value.as_real());
    case Kind::string: return '\'' + std::string(document.text(value)) + '\'';
    case Kind::bytes: return std::string("b'").append(document.text(value)) + '\'';
    case Kind::list: return '[' + show_items(document, value, depth) + ']';
    case Kind::tuple: {
      const std::string items = show_items(document, value, depth);
      return '(' + items + (items.empty() ? ")" : ",)");
    }
    case Kind::dict:
    case Kind::set: return '{' + show_items(document, value, depth) + '}';
  }
  return "?";
}

// Returns the pickle's content roughly as Python would print it, or the error's message.
std::string read(std::string_view pickle) {
  try {
    const PickleDocument document = PickleDocument::parse(pickle);
    return show(document, document.root());
  } catch (const PickleError& error) {
    return error.what();
  }
}

std::string repeat(std::string_view part, std::size_t count) {
  std::string result;
  result.reserve(part.size() * count);
  for (std::size_t i = 0; i < count; ++i) result += part;
  return result;
}

// Reads the reachable values at any depth, but stops after about 5000. A build with sanitizers
// finds reads outside the document's memory.
std::size_t visit(const PickleDocument& document) {
  std::vector<PickleValue> pending = {document.root()};
  std::size_t seen = 0;
  while (!pending.empty() && seen < 5000) {
    const PickleValue value = pending.back();
    pending.pop_back();
    ++seen;
    switch (value.kind()) {
      case Kind::string:
      case Kind::bytes:
        for (const char c : document.text(value)) seen += c == '\n' ? 1U : 0U;
        break;
      case Kind::dict: static_cast<void>(document.find(value, "list")); [[fallthrough]];
      case Kind::list:
      case Kind::tuple:
      case Kind::set:
        for (const PickleValue item : document.items(value)) pending.push_back(item);
        break;
      default: break;
    }
  }
  return seen;
}

}  // namespace

TEST(pickle_reads_plain_data_of_every_protocol) {
  for (const std::string_view pickle : kProtocols) CHECK_EQUAL(read(pickle), kPlainData);
}

TEST(pickle_reads_sets_and_bytes) {
  CHECK_EQUAL(read(kSetsAndBytes), "[{1}, {2, 3}, b'by\0', b'arr']"sv);
  CHECK_EQUAL(read("B\2\0\0\0ab."sv), "b'ab'");
  CHECK_EQUAL(read("\x8e\2\0\0\0\0\0\0\0ab."sv), "b'ab'");
}

TEST(pickle_reads_every_string_opcode) {
  CHECK_EQUAL(read("U\2ab."), "'ab'");
  CHECK_EQUAL(read("T\2\0\0\0ab."sv), "'ab'");
  CHECK_EQUAL(read("\x8c\2ab."), "'ab'");
  CHECK_EQUAL(read("X\2\0\0\0ab."sv), "'ab'");
  CHECK_EQUAL(read("\x8d\2\0\0\0\0\0\0\0ab."sv), "'ab'");
  CHECK_EQUAL(read("X\0\0\0\0."sv), "''");
}

TEST(pickle_decodes_the_escapes_of_quoted_strings) {
  CHECK_EQUAL(read("S'ab'\n."), "'ab'");
  CHECK_EQUAL(read("S\"it's\"\n."), "'it's'");
  CHECK_EQUAL(read("S''\n."), "''");
  CHECK_EQUAL(read(R"(S'\\\'\"\a\b\f\n\r\t\v')"
                   "\n."),
              "'\\'\"\a\b\f\n\r\t\v'");
  CHECK_EQUAL(read(R"(S'\x41\x7e\101\0601\7x\q')"
                   "\n."),
              "'A~A01\7x\\q'");
  CHECK_EQUAL(read("S'ab\n."), "a string is not in quotes");
  CHECK_EQUAL(read("S'\n."), "a string is not in quotes");
  CHECK_EQUAL(read("Sab\n."), "a string is not in quotes");
  CHECK_EQUAL(read("S'\\x4'\n."), "a string has a malformed escape");
  CHECK_EQUAL(read("S'\\'\n."), "a string ends in the middle of an escape");
}

TEST(pickle_decodes_the_escapes_of_unicode_lines) {
  CHECK_EQUAL(read("Vab\n."), "'ab'");
  CHECK_EQUAL(read("V\n."), "''");
  CHECK_EQUAL(read("Vh\xe9\n."), "'h\u00e9'");
  CHECK_EQUAL(read("V\\u20ac\\U0001F600\\u005c\n."), "'\u20ac\U0001f600\\'");
  CHECK_EQUAL(read("V\\n\\\\u0041\\\n."), "'\\n\\\\u0041\\'");
  CHECK_EQUAL(read("V\\ud800\n."), "'\xed\xa0\x80'");
  CHECK_EQUAL(read("V\\u12\n."), "a string has a malformed escape");
  CHECK_EQUAL(read("V\\u12g4\n."), "a string has a malformed escape");
  CHECK_EQUAL(read("V\\U00110000\n."), "a string has a malformed escape");
}

TEST(pickle_reads_integers_of_64_bits) {
  CHECK_EQUAL(read("K\xff."), "255");
  CHECK_EQUAL(read("M\xff\xff."), "65535");
  CHECK_EQUAL(read("J\xff\xff\xff\xff."), "-1");
  CHECK_EQUAL(read("\x8a\0."sv), "0");
  CHECK_EQUAL(read("\x8a\1\x80."), "-128");
  CHECK_EQUAL(read("\x8a\2\xff\0."sv), "255");
  CHECK_EQUAL(read("\x8a\6\0\0\0\0\0\x80."sv), "-140737488355328");
  CHECK_EQUAL(read("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0."sv), "18446744073709551615");
  CHECK_EQUAL(read("\x8b\x0c\0\0\0\2\0\0\0\0\0\0\0\0\0\0\0."sv), "2");
  CHECK_EQUAL(read("\x8b\x0c\0\0\0"
                   "\xfe\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff."sv),
              "-2");
  CHECK_EQUAL(read("I-5\n."), "-5");
  CHECK_EQUAL(read("I0\n."), "0");
  CHECK_EQUAL(read("I9223372036854775808\n."), "9223372036854775808");
  CHECK_EQUAL(read("L12L\n."), "12");
  CHECK_EQUAL(read("L12\n."), "12");
}

TEST(pickle_refuses_integers_beyond_64_bits) {
  const std::string too_large = "an integer is too large for 64 bits";
  CHECK_EQUAL(read("\x8a\x09\0\0\0\0\0\0\0\0\1."sv), too_large);
  CHECK_EQUAL(read("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\xff."sv), too_large);
  CHECK_EQUAL(read("I18446744073709551616\n."), too_large);
  CHECK_EQUAL(read("L-9223372036854775809L\n."), too_large);
}

TEST(pickle_refuses_malformed_numbers) {
  for (const auto* pickle : {"I\n.", "I-\n.", "I1x\n.", "I 1\n.", "I010\n.", "I0x10\n.", "LL\n."}) {
    CHECK_EQUAL(read(pickle), "an integer is malformed");
  }
  CHECK_EQUAL(read("Fx\n."), "a float is malformed");
  CHECK_EQUAL(read("F1.5 \n."), "a float is malformed");
}

TEST(pickle_reads_floats) {
  CHECK_EQUAL(read("F1.5\n."), "1.500000");
  CHECK_EQUAL(read("F-inf\n."), "-inf");
  CHECK_EQUAL(read("F1e3\n."), "1000.000000");
  CHECK_EQUAL(read("G\x3f\xf8\0\0\0\0\0\0."sv), "1.500000");
}

TEST(pickle_builds_containers_from_marks) {
  CHECK_EQUAL(read("(I1\nI2\nl."), "[1, 2]");
  CHECK_EQUAL(read("(I1\nI2\nt."), "(1, 2,)");
  CHECK_EQUAL(read("(I1\nI2\nd."), "{1: 2}");
  CHECK_EQUAL(read("(I1\n(I2\nI3\ntl."), "[1, (2, 3,)]");
  CHECK_EQUAL(read("](e."), "[]");
}

TEST(pickle_moves_values_on_the_stack) {
  CHECK_EQUAL(read("K\1K\2"
                   "0."),
              "1");
  CHECK_EQUAL(read("K\1(K\2K\3"
                   "1."),
              "1");
  CHECK_EQUAL(read("K\1(0K\2\x86."), "(1, 2,)");
  CHECK_EQUAL(read("]2K\1a\x86."), "([1], [1],)");
}

TEST(pickle_containers_grow_in_batches) {
  constexpr int kBatches = 300;
  std::string list = "]q\1";
  std::string dict = "}";
  for (int batch = 0; batch < kBatches; ++batch) {
    list += '(' + repeat("K\7", 1000) + 'e';
    dict += '(' + repeat("K\1K\2", 1000) + 'u';
  }
  const std::string pickle = '(' + list + dict + "l.";
  const PickleDocument document = PickleDocument::parse(pickle);
  const auto root = document.items(document.root());
  CHECK_EQUAL(document.items(root[0]).size(), 1000U * kBatches);
  CHECK_EQUAL(document.items(root[0]).back().as_int(), 7);
  CHECK_EQUAL(document.items(root[1]).size(), 2000U * kBatches);
  CHECK_EQUAL(document.items(root[1]).back().as_int(), 2);
}

TEST(pickle_containers_grow_by_single_items) {
  const std::string list = ']' + repeat("Na", 100000) + '.';
  const PickleDocument of_list = PickleDocument::parse(list);
  CHECK_EQUAL(of_list.items(of_list.root()).size(), 100000U);
  const std::string dict = '}' + repeat("NNs", 100000) + '.';
  const PickleDocument of_dict = PickleDocument::parse(dict);
  CHECK_EQUAL(of_dict.items(of_dict.root()).size(), 200000U);
}

TEST(pickle_memo_keeps_identity) {
  CHECK_EQUAL(read("(]q\1h\1K\5al."), "[[5], [5]]");
  CHECK_EQUAL(read("(]\x94h\0(K\5K\6el."sv), "[[5, 6], [5, 6]]");
  CHECK_EQUAL(read("(}r\1\0\0\0j\1\0\0\0K\5K\6sl."sv), "[{5: 6}, {5: 6}]");
  CHECK_EQUAL(read("(lp7\n(g7\nt."), "([],)");
  // MEMOIZE takes the number of stored values as the index. The one stored value has index 5, so
  // MEMOIZE stores the next value at index 1.
  CHECK_EQUAL(read("(K\1q\5K\2\x94h\1l."), "[1, 2, 2]");
}

TEST(pickle_may_hold_recursive_values) {
  const PickleDocument document = PickleDocument::parse("]\x94h\0a."sv);
  const PickleValue list = document.root();
  CHECK_EQUAL(document.items(list).size(), 1U);
  CHECK_EQUAL(document.items(document.items(list)[0]).data(), document.items(list).data());
  CHECK_EQUAL(read("]\x94h\0\x85\x94"
                   "a0h\1."sv),
              "([([(...,)],)],)");
}

TEST(pickle_nests_deeply) {
  constexpr std::size_t kDepth = 100000;
  const std::string lists = repeat("]", kDepth) + repeat("a", kDepth - 1) + '.';
  CHECK_EQUAL(read(lists), "[[[[[...]]]]]");
  const std::string marks = repeat("(", kDepth) + repeat("t", kDepth) + '.';
  CHECK_EQUAL(read(marks), "(((((...,),),),),)");
}

TEST(pickle_finds_the_last_of_equal_keys) {
  const PickleDocument document = PickleDocument::parse("}(U\1aK\1U\1bK\2U\1aK\3K\4K\5u.");
  CHECK_EQUAL(document.find(document.root(), "a")->as_int(), 3);
  CHECK_EQUAL(document.find(document.root(), "b")->as_int(), 2);
  CHECK(!document.find(document.root(), "c"));
  CHECK_EQUAL(document.items(document.root()).size(), 8U);
}

TEST(pickle_values_name_what_was_expected) {
  const PickleDocument document = PickleDocument::parse("(K\1U\1sN]\x88t.");
  const auto root = document.items(document.root());
  CHECK_EQUAL(message_of<PickleError>([&] { return root[1].as_int(); }),
              "expected an integer, found a string");
  CHECK_EQUAL(message_of<PickleError>([&] { return root[2].as_unsigned(); }),
              "expected an integer, found None");
  CHECK_EQUAL(message_of<PickleError>([&] { return root[0].as_bool(); }),
              "expected a boolean, found an integer");
  CHECK_EQUAL(message_of<PickleError>([&] { return root[4].as_real(); }),
              "expected a float, found a boolean");
  CHECK_EQUAL(message_of<PickleError>([&] { return document.text(root[3]); }),
              "expected a string, found a list");
  CHECK_EQUAL(message_of<PickleError>([&] { return document.items(root[0]); }),
              "expected a container, found an integer");
  CHECK_EQUAL(message_of<PickleError>([&] { return document.find(root[3], "a"); }),
              "expected a dict, found a list");
}

TEST(pickle_integers_convert_only_when_they_fit) {
  const PickleDocument document = PickleDocument::parse("(K\5I-5\nI9223372036854775808\nt.");
  const auto root = document.items(document.root());
  CHECK_EQUAL(root[0].as_unsigned(), 5U);
  CHECK_EQUAL(root[2].as_unsigned(), std::uint64_t{1} << 63);
  CHECK_EQUAL(message_of<PickleError>([&] { return root[1].as_unsigned(); }),
              "the integer -5 is negative");
  CHECK_EQUAL(message_of<PickleError>([&] { return root[2].as_int(); }),
              "the integer 9223372036854775808 is too large");
}

TEST(pickle_documents_can_be_moved) {
  PickleDocument first = PickleDocument::parse("(U\1aS'\\n'\n]l.");
  const PickleDocument second = std::move(first);
  CHECK_EQUAL(show(second, second.root()), "['a', '\n', []]");
}

TEST(pickle_strings_are_views_into_the_input) {
  const std::string pickle = "U\3abc.";
  const PickleDocument document = PickleDocument::parse(pickle);
  CHECK_EQUAL(static_cast<const void*>(document.text(document.root()).data()),
              static_cast<const void*>(pickle.data() + 2));
}

TEST(pickle_refuses_imports_by_name) {
  const std::string posix = "the pickle would run code: it asks for posix.system";
  CHECK_EQUAL(read("cposix\nsystem\n(U\2lstR."), posix);
  CHECK_EQUAL(read("\x8c\5posix\x8c\6system\x93."), posix);
  CHECK_EQUAL(read("(U\2lsiposix\nsystem\n."), posix);
  CHECK_EQUAL(read("ccollections\nOrderedDict\n)R."),
              "the pickle would run code: it asks for collections.OrderedDict");
  CHECK_EQUAL(read("K\1K\2\x93."),
              "the pickle would run code: it imports something (opcode STACK_GLOBAL)");
  CHECK_EQUAL(read("cposix\nsystem"), "the pickle is truncated");
  CHECK_EQUAL(read("\x8c\5posix\x93."), "an opcode needs more values than there are");
}

TEST(pickle_refusals_are_fit_to_print) {
  CHECK_EQUAL(read("cos\x1b[2J\n\xff\n."), "the pickle would run code: it asks for os?[2J.?");
  CHECK_EQUAL(read('c' + repeat("m", 1000) + "\nf\n."),
              "the pickle would run code: it asks for " + repeat("m", 80) + "....f");
}

TEST(pickle_refuses_every_opcode_that_runs_code) {
  const std::string runs = "the pickle would run code: it ";
  CHECK_EQUAL(read("NNR."), runs + "calls a function (opcode REDUCE)");
  CHECK_EQUAL(read("NNb."), runs + "sets the state of an object (opcode BUILD)");
  CHECK_EQUAL(read("(No."), runs + "builds an object (opcode OBJ)");
  CHECK_EQUAL(read("NN\x81."), runs + "builds an object (opcode NEWOBJ)");
  CHECK_EQUAL(read("NNN\x92."), runs + "builds an object (opcode NEWOBJ_EX)");
  CHECK_EQUAL(read("\x82\1."), runs + "asks for a registered extension (opcode EXT1)");
  CHECK_EQUAL(read("\x83\1\1."), runs + "asks for a registered extension (opcode EXT2)");
  CHECK_EQUAL(read("\x84\1\1\1\1."), runs + "asks for a registered extension (opcode EXT4)");
}

TEST(pickle_refuses_references_to_the_outside) {
  const std::string object = "the pickle refers to an object stored outside of it ";
  CHECK_EQUAL(read("Pid\n."), object + "(opcode PERSID)");
  CHECK_EQUAL(read("NQ."), object + "(opcode BINPERSID)");
  const std::string buffer = "the pickle refers to a buffer stored outside of it ";
  CHECK_EQUAL(read("\x97."), buffer + "(opcode NEXT_BUFFER)");
  CHECK_EQUAL(read("N\x98."), buffer + "(opcode READONLY_BUFFER)");
}

TEST(pickle_errors_say_where) {
  try {
    static_cast<void>(PickleDocument::parse("K\1K\2NR."));
    CHECK(false);
  } catch (const PickleError& error) {
    CHECK_EQUAL(error.offset(), 5U);
  }
}

TEST(pickle_must_be_complete) {
  CHECK_EQUAL(read(""), "the pickle is empty");
  CHECK_EQUAL(read("K\1"), "the pickle is truncated");
  CHECK_EQUAL(read("."), "an opcode needs more values than there are");
  CHECK_EQUAL(read("N(."), "an opcode needs more values than there are");
  for (const std::string_view pickle : kProtocols) {
    for (std::size_t size = 1; size < pickle.size(); ++size) {
      CHECK_THROWS(PickleDocument::parse(std::string(pickle.substr(0, size))), PickleError);
    }
  }
}

TEST(pickle_ignores_what_follows_its_end) { CHECK_EQUAL(read("K\1.junk"), "1"); }

TEST(pickle_refuses_unknown_opcodes_and_protocols) {
  CHECK_EQUAL(read("\xff."), "this is no pickle, or a damaged one: unknown opcode 0xff");
  CHECK_EQUAL(read("{\"a\": 1}"), "this is no pickle, or a damaged one: unknown opcode '{'");
  CHECK_EQUAL(read("\x80\6N."), "pickle protocol 6 is not supported");
}

TEST(pickle_refuses_lengths_beyond_the_input) {
  for (const std::string_view pickle :
       {"U\xff."sv, "X\xff\xff\xff\xff."sv, "B\xff\xff\xff\xff."sv, "T\xff\xff\xff\x7f."sv,
        "\x8d\xff\xff\xff\xff\xff\xff\xff\xff."sv, "\x8e\xff\xff\xff\xff\xff\xff\xff\x7f."sv,
        "\x96\0\0\0\0\1\0\0\0."sv, "\x8a\xff."sv, "\x8b\xff\xff\xff\x7f."sv,
        "\x95\xff\xff\xff\xff\xff\xff\xff\xffN."sv, "Vab"sv, "I1"sv, "M\1"sv, "G\0\0\0"sv}) {
    CHECK_EQUAL(read(pickle), "the pickle is truncated");
  }
  CHECK_EQUAL(read("T\xff\xff\xff\xff."), "a size is negative");
  CHECK_EQUAL(read("\x8b\xff\xff\xff\xff."), "a size is negative");
}

TEST(pickle_refuses_nested_frames) {
  CHECK_EQUAL(read("\x95\2\0\0\0\0\0\0\0K\1\x95\1\0\0\0\0\0\0\0."sv), "1");
  CHECK_EQUAL(read("\x95\x0b\0\0\0\0\0\0\0\x95\2\0\0\0\0\0\0\0K\1."sv),
              "a frame begins inside another");
}

TEST(pickle_refuses_memo_indices_out_of_range) {
  CHECK_EQUAL(read("Nr\xff\xff\xff\xff."), "a memo index is too large");
  CHECK_EQUAL(read("Np99999999999\n."), "a memo index is too large");
  CHECK_EQUAL(read("Np99999999999999999999999\n."), "a memo index is not a number");
  CHECK_EQUAL(read("Np-1\n."), "a memo index is not a number");
  CHECK_EQUAL(read("Ng\n."), "a memo index is not a number");
  CHECK_EQUAL(read("h\1."), "a value is used before it is stored: memo 1");
  CHECK_EQUAL(read("Nq\2h\1."), "a value is used before it is stored: memo 1");
  CHECK_EQUAL(read("j\xff\xff\xff\xff."), "a value is used before it is stored: memo 4294967295");
  CHECK_EQUAL(read("q\1."), "an opcode needs more values than there are");
  CHECK_EQUAL(read("\x94."), "an opcode needs more values than there are");
}

TEST(pickle_refuses_to_take_from_an_empty_stack) {
  for (const std::string_view pickle :
       {"0."sv,    "2."sv,    "a."sv,      "]a."sv,     "Na"sv,     "s."sv,    "Ns."sv,
        "NNs."sv,  "\x85."sv, "N\x86."sv,  "NN\x87."sv, "(e."sv,    "(NNu."sv, "(\x90."sv,
        "](Na."sv, "](a."sv,  "N(\x85."sv, "](2."sv,    "}(NNs."sv, "N(q\0."sv}) {
    CHECK_EQUAL(read(pickle), "an opcode needs more values than there are");
  }
}

TEST(pickle_refuses_missing_marks) {
  for (const auto* pickle : {"1.", "t.", "l.", "d.", "]e.", "}u.", "\x8f\x90.", "\x91.", "](ee."}) {
    CHECK_EQUAL(read(pickle), "an opcode needs a mark and there is none");
  }
}

TEST(pickle_refuses_keys_without_values) {
  CHECK_EQUAL(read("}(Nu."), "a dict has a key without a value");
  CHECK_EQUAL(read("(Nd."), "a dict has a key without a value");
}

TEST(pickle_refuses_to_fill_the_wrong_container) {
  CHECK_EQUAL(read("}Na."), "expected a list, found a dict");
  CHECK_EQUAL(read("N(Ne."), "expected a list, found None");
  CHECK_EQUAL(read("]NNs."), "expected a dict, found a list");
  CHECK_EQUAL(read(")(NNu."), "expected a dict, found a tuple");
  CHECK_EQUAL(read("](N\x90."), "expected a set, found a list");
}

TEST(pickle_accepts_any_key) { CHECK_EQUAL(read("}(]}NNu."), "{[]: {}, None: None}"); }

TEST(pickle_values_take_no_more_memory_than_they_may) {
  const std::string lists = std::string(100'000, ']') + '.';
  CHECK_THROWS(PickleDocument::parse(lists, {.memory = 1'000'000, .poll = {}}), ReadingLimitError);
  CHECK_EQUAL(PickleDocument::parse(lists, {.memory = 100'000'000, .poll = {}}).root().kind(),
              Kind::list);
}

TEST(pickle_reading_can_be_ended) {
  struct Interrupted {};
  const std::string lists = std::string(1'000'000, ']') + '.';
  int polls = 0;
  const ReadingLimits limits{.poll = [&polls] {
    if (++polls == 3) throw Interrupted();
  }};
  CHECK_THROWS(PickleDocument::parse(lists, limits), Interrupted);
}

TEST(pickle_counts_the_items_of_its_containers) {
  // The list [1, 2, t, t], where t is one tuple (1,): 4 items in the list and 1 in the tuple.
  const PickleDocument document = PickleDocument::parse("](K\1K\2K\1\x85\x94h\0e."sv);
  CHECK_EQUAL(document.item_count(), 5u);
}

TEST(pickle_survives_mutation) {
  std::vector<std::string_view> originals(kProtocols.begin(), kProtocols.end());
  originals.push_back(kSetsAndBytes);
  std::minstd_rand random(1);
  const auto below = [&random](std::size_t limit) { return random() % limit; };
  std::size_t parsed = 0;
  std::size_t refused = 0;
  for (int round = 0; round < 3000; ++round) {
    for (const std::string_view original : originals) {
      std::string pickle(original);
      for (std::size_t changes = 1 + below(3); changes > 0; --changes) {
        const std::size_t at = below(pickle.size());
        const std::size_t from = below(original.size());
        switch (below(4)) {
          case 0: pickle[at] = static_cast<char>(below(256)); break;
          case 1: pickle[at] = original[from]; break;
          case 2: pickle.insert(at, original.substr(from, 1 + below(8))); break;
          default: pickle.erase(at, 1 + below(4));
        }
        if (pickle.empty()) pickle += 'N';
      }
      try {
        const PickleDocument document = PickleDocument::parse(pickle);
        parsed += visit(document) > 0 ? 1U : 0U;
      } catch (const PickleError&) {
        ++refused;
      }
    }
  }
  CHECK(parsed > 1000);
  CHECK(refused > 1000);
}
